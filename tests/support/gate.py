"""A store with a daemon, and an agent that tries everything an agent must not do, started by each launcher at each level."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from support.daemon import LONG, DaemonProcess
from support.git import GitRepo

from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.members.members import Members
from pytest_gittrix.orchestrator.config import CommandAgent, Project, SpawnConfig
from pytest_gittrix.orchestrator.orchestrator import Orchestrator
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.workspaces.multi_repo import RepositorySpec

ROOT: Final = Path(__file__).resolve().parents[2]
FOR_PEOPLE: Final = {"GITHUB_TOKEN": "hunter2", "A_KEY": "hunter2", "SSH_AUTH_SOCK": "/run/agent.sock", "GITTRIX_HOME": "/nowhere"} | {
    "GIT_DIR": "/nowhere/.git",  # as in a git hook
    "GIT_INDEX_FILE": "/nowhere/.git/index",
}

AGENT: Final = r"""
import json, os, signal, socket, subprocess, sys, urllib.request

facts, got, why = json.loads(sys.argv[1]), {}, {}
home, other = facts["home"], facts["other"]
repository = "projects/app" if os.path.isdir("projects/app") else "."
ours = {**os.environ, "PYTHONPATH": facts["root"], "GITTRIX_HOME": home}

def attempt(name, do):
    try:
        got[name] = bool(do())
    except BaseException as problem:
        got[name], why[name] = False, repr(problem)

def wrote(path):
    with open(path, "w") as file:
        file.write("got out")
    return True

def ran(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-600:]
    return True

def by_daemon():
    found = json.load(open(home + "/daemon.json"))
    body = json.dumps({"argv": ["promote", other, "--json"], "cwd": "/", "stdin_base64": ""}).encode()
    headers = {"Authorization": "Bearer " + found["key"], "Content-Type": "application/json"}
    address = "http://127.0.0.1:%d/api/command" % found["port"]
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=50) as reply:
        answer = json.load(reply)
    assert answer["status"] == 0, answer
    return True

PROMOTE = "import sys; from pytest_gittrix import GitTrix; GitTrix(None, store=sys.argv[1]).get_session(sys.argv[2]).promote()"
attempt("has a variable that is for people", lambda: [name for name in facts["for_people"] if name in os.environ])
attempt("read the daemon's key", lambda: json.load(open(home + "/daemon.json"))["key"])
attempt("read the store", lambda: open(facts["log"]).read())
attempt("read another session", lambda: "secret" in open(facts["secret"]).read())
attempt("write outside", lambda: wrote(facts["outside"]))
attempt("open the network", lambda: socket.create_connection(("127.0.0.1", facts["port"]), 5))
attempt("signal others", lambda: os.kill(facts["victim"], signal.SIGTERM) is None)
attempt("push", lambda: ran("git", "-C", repository, "push", facts["remote"], "HEAD:refs/heads/pushed"))
attempt("promote by the command line", lambda: ran(sys.executable, "-m", "pytest_gittrix.cli", "promote", other, env=ours))
attempt("promote by the daemon", by_daemon)
attempt("promote by Python", lambda: ran(sys.executable, "-c", PROMOTE, home + "/sessions", other, env=ours))
START = ("member", "start", "eve", "--kind", "interactive")
attempt("start a member", lambda: ran(sys.executable, "-m", "pytest_gittrix.cli", *START, env=ours))
with open("gate.json.new", "w") as file:
    json.dump({"got": got, "why": why}, file)
os.rename("gate.json.new", "gate.json")
"""


MODEL_KEY: Final = "a-key-that-no-agent-has"
CODING_AGENT: Final = """
import json, os, socket, sys, urllib.error, urllib.request

def asked(path, body):
    try:
        with urllib.request.urlopen(os.environ["ANTHROPIC_BASE_URL"] + path, body) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code

def reaches(port):
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True

got = {"answer": asked("/v1/messages", b"hi"), "files": asked("/v1/files", b"x"), "key": os.environ["ANTHROPIC_API_KEY"]}
with open("gate.json.new", "w") as file:
    json.dump({**got, "reaches another server": reaches(json.loads(sys.argv[1])["port"])}, file)
os.rename("gate.json.new", "gate.json")
"""
"""An agent that asks its model, and tries to reach another server of the machine."""


class Gate:
    """A durable repository, a store with another person's session, a daemon, and what can be seen outside of what an agent did.

    Attributes:
        home: the engine's home. durable: the repository that sessions are promoted to, and that is pushed to.
        engine: an engine of this process. daemon: a daemon of the same store. command: the agent, which tries everything by default.
    """

    def __init__(
        self, root: Path, level: Mapping[str, Any], held: ExitStack, agent: str, network: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        self.root, self.home, self.level, self.network, self._variables = root, root / "home", level, network, variables
        self.durable = GitRepo.make(root / "app", {"a.txt": "one\n"})
        self.engine = held.enter_context(
            GitTrix(LocalDurable(self.durable.path), store=self.home / "sessions", home=self.home, sweep_interval=None)
        )
        other = self.engine.start_session("another one's")
        other.write("secret.txt", "secret\n")
        assert other.workspace_path is not None
        listener = held.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        self._victim = held.enter_context(subprocess.Popen(["sleep", "600"]))
        held.callback(self._victim.kill)
        self._outside, self._head = root / "outside", self.durable.text("rev-parse", "HEAD")
        facts = {
            "home": str(self.home),
            "other": other.id,
            "root": str(ROOT),
            "log": str(self.engine.store.directory(other.id) / "events.jsonl"),
            "secret": str(other.workspace_path / "secret.txt"),
            "outside": str(self._outside),
            "port": listener.getsockname()[1],
            "victim": self._victim.pid,
            "remote": str(self.durable.path),
            "for_people": [*FOR_PEOPLE],
        }
        self.command = (sys.executable, "-c", agent, json.dumps(facts))
        self._write_team()
        self.daemon = held.enter_context(DaemonProcess(self.home, environment=variables))

    @classmethod
    @contextmanager
    def open(
        cls, root: Path, level: str | None, *, agent: str = AGENT, network: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> Iterator[Gate]:
        """Make one whose launchers are told a level of confinement, or nothing, and have some variables."""
        with ExitStack() as held:
            yield cls(root, {} if level is None else {"confine": level}, held, agent, network, variables or {})

    def _write_team(self) -> None:
        durable, command = json.dumps(str(self.durable.path)), json.dumps(self.command)
        lines = [
            f"readable = [{json.dumps(str(ROOT))}]",
            f"network = {json.dumps(self.network)}",
            "[[repositories]]",
            'name = "app"',
            f"url = {durable}",
        ]
        lines += ["[members.ada]", f"command = {command}", "[[projects]]", 'id = "app"', f"durable = {durable}"]
        (self.home / "team.toml").write_text("\n".join([*lines, "[projects.agents]", f"agent = {command}"]) + "\n")

    def gittrix(self, *arguments: str) -> dict[str, Any]:
        """The answer of a command that works without the daemon, typed by a person whose environment has tokens."""
        env = {**hermetic_env(self.root / "nobody"), **FOR_PEOPLE, **self._variables, "GITTRIX_HOME": str(self.home), "GITTRIX_DAEMON": "0"}
        options = [word for name, value in self.level.items() for word in (f"--{name}", value)]
        argv = [sys.executable, "-m", "pytest_gittrix.cli", *arguments, *options, "--json"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LONG, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)["data"]
        return answer

    def said(self, workspace: str | None) -> dict[str, Any]:
        """What the agent in a workspace says, once it has tried everything."""
        assert workspace is not None
        result, deadline = Path(workspace, "gate.json"), real_seconds() + LONG
        while not result.exists():
            assert real_seconds() < deadline, [file.read_text() for file in Path(workspace).parent.glob("agent*/output*")]
            pause(0.05)
        said: dict[str, Any] = json.loads(result.read_text())
        return said

    def orchestrator(self) -> Orchestrator:
        """An orchestrator of the gate's project, whose agent is the gate's."""
        project = Project("app", self.durable.path, agents=(CommandAgent("agent", self.command),))
        return Orchestrator(self.engine, [project], readable=[ROOT], network=self.network, **self.level)

    def ended(self) -> list[dict[str, Any]]:
        """What the log says of the network of the one agent that was started, once its end is recorded."""
        deadline = real_seconds() + LONG
        with self.orchestrator() as lead:
            while True:
                lead.poll()  # it records which agents of projects have ended; the daemon does so for members
                logs = [json.loads(line) for file in self.home.glob("sessions/*/events.jsonl") for line in file.read_text().splitlines()]
                found = [one["data"]["network"] for one in logs if "network" in one["data"]]
                if found:
                    return found
                assert real_seconds() < deadline, "no end of an agent is recorded"
                pause(0.05)

    def got(self, workspace: str | None) -> dict[str, bool]:
        """What the agent in a workspace could do: as it can be seen outside, or else as it says."""
        said = self.said(workspace)
        got: dict[str, bool] = said["got"]
        got["write outside"] = self._outside.exists()  # a jail has a directory for temporary files of its own
        # A jail has room for a store of the agent's own, whose members are nobody's.
        got["start a member"] = bool(Members(self.engine, [RepositorySpec("app", str(self.durable.path))]).list(member="eve"))
        assert got["signal others"] == (self._victim.poll() is not None), said
        assert got["push"] == bool(self.durable.text("branch", "--list", "pushed")), said
        promoted = self.durable.text("rev-parse", "HEAD") != self._head
        assert promoted == any(done for name, done in got.items() if name.startswith("promote")), said
        return got


# The launchers -------------------------------------------------------------------------------------------------------------------


def by_members(gate: Gate) -> str:
    members = Members(gate.engine, [RepositorySpec("app", str(gate.durable.path))], readable=[ROOT], network=gate.network, **gate.level)
    return members.start("ada", command=gate.command).workspace


def by_orchestrator(gate: Gate) -> str | None:
    with gate.orchestrator() as lead:
        return lead.spawn(SpawnConfig("app")).workspace_path


def by_daemons_members(gate: Gate) -> str:
    body = {"member_name": "ada", "session_type": "Loop", **gate.level}
    return str(gate.daemon.ok("POST", "/api/sessions/start", body)["workspace_path"])


def by_daemons_projects(gate: Gate) -> str:
    return str(gate.daemon.ok("POST", "/api/orchestrator/sessions", {"projectId": "app", **gate.level})["session"]["workspacePath"])


LAUNCHERS: Final[Mapping[str, Callable[[Gate], str | None]]] = {
    "Members.start": by_members,
    "Orchestrator.spawn": by_orchestrator,
    "gittrix member start": lambda gate: gate.gittrix("member", "start", "ada")["workspace_path"],
    "gittrix session spawn": lambda gate: gate.gittrix("session", "spawn", "app")["workspacePath"],
    "POST /api/sessions/start": by_daemons_members,
    "POST /api/orchestrator/sessions": by_daemons_projects,
}
"""Every launcher of agents that stay: it starts the gate's agent, and gives its workspace."""


def outcome(launcher: str, root: Path) -> str:
    """What becomes of a launcher on this machine that is told no level: ``started``, or what is said by whoever refuses."""
    with Gate.open(root, None) as gate:
        try:
            gate.said(LAUNCHERS[launcher](gate))
        except Exception as problem:
            sessions = [*(gate.home / "sessions").glob("*/events.jsonl")]
            assert len(sessions) == 1, sessions  # the other person's
            return str(problem)
    return "started"


if __name__ == "__main__":
    print(outcome(sys.argv[1], Path(sys.argv[2])))
