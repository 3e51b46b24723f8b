"""Daemons for tests: in a thread of this process, or as a separate process; with a team, remotes and scripted agents."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from support.git import GitRepo

from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.server import daemon_file
from pytest_gittrix.server.daemon_file import DaemonFile
from pytest_gittrix.server.run import Serving, Settings
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit, AgentScript

LONG: Final = 60.0
"""Real seconds after which an awaited event counts as stuck."""

AGENT_GIT: Final = "git -c user.name=agent -c user.email=agent@example.org"
"""Git as an agent's shell runs it to commit."""

_NUMBERS: Final = count()


@dataclass(frozen=True)
class Reply:
    """A response: its status, its headers by lower-case name, its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """The status and the code of an error."""
        assert self.json["ok"] is False
        return self.status, self.json["error"]["code"]


class DaemonClient:
    """A client of a daemon that listens."""

    file: DaemonFile

    @property
    def secret(self) -> dict[str, str]:
        """The header with the key of the daemon's file."""
        return {"Authorization": f"Bearer {self.file.key}"}

    def request(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None, raw: bytes | None = None
    ) -> Reply:
        """Send a request on a new connection, with the key of the daemon's file unless ``headers`` has another ``Authorization``."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if data is not None else {}
        with closing(http.client.HTTPConnection(self.file.host, self.file.port, timeout=LONG)) as connection:
            connection.request(method, path, data, {**self.secret, **kind, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())

    def ok(self, method: str, path: str, body: object = None, **settings: Any) -> dict[str, Any]:
        """The response to a request that must succeed."""
        reply = self.request(method, path, body, **settings)
        assert reply.status == 200, reply.body
        assert reply.json["ok"] is True
        answer: dict[str, Any] = reply.json
        return answer

    def command(self, *argv: str, cwd: Path, stdin: str | None = "") -> Reply:
        """Have the daemon run a command."""
        body = {"argv": argv, "cwd": str(cwd)} | ({} if stdin is None else {"stdin_base64": stdin})
        return self.request("POST", "/api/command", body)

    def state(self, id_: str) -> str:
        """The state of a member's session."""
        return str(self.ok("GET", f"/api/sessions/{id_}")["session"]["current_state"])


@contextmanager
def serving(settings: Settings) -> Iterator[DaemonClient]:
    """A daemon in a thread of this process."""
    up = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            daemon.run()
        except BaseException as problem:  # raised again below
            failures.append(problem)
        finally:
            up.set()

    daemon = Serving(settings, listening=lambda _file: up.set())
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert up.wait(LONG)
        client = DaemonClient()
        client.file = daemon.file
        yield client
    finally:
        daemon.end()
        thread.join(LONG)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


class DaemonProcess(DaemonClient):
    """``gittrix serve`` as a separate process. Use it as a context manager, which kills it at the end.

    Args:
        home: the engine's home.
        arguments: more of the command line.
        environment: variables that it has besides the usual ones.
    """

    def __init__(self, home: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        env = {**hermetic_env(home.parent / f"nobody-{next(_NUMBERS)}"), **(environment or {}), "GITTRIX_HOME": str(home)}
        argv = [sys.executable, "-m", "pytest_gittrix.cli", "serve", "--port", "0", "--json", *arguments]
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self.greeting = self._first_line()
            if self.greeting["ok"]:
                found = daemon_file.read(home)
                assert found is not None
                self.file = found
        except BaseException:
            self.kill()
            raise

    def _first_line(self) -> Any:
        """The line that it prints once it listens, or with the error."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read().decode()
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def end(self) -> tuple[int, str]:
        """Send it SIGTERM, and wait; return its exit status and its standard error."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for it; return its exit status and its standard error."""
        _, err = self.process.communicate(timeout=LONG)
        return self.process.returncode, err.decode()

    def kill(self) -> None:
        """Kill it, as a crash does."""
        self.process.kill()
        self.process.communicate(timeout=LONG)


class Staff:
    """A team for a daemon: one repository, and members whose agents follow scripts.

    Attributes:
        home: the engine's home. agents: the scripts of the agents. app: the remote.
    """

    def __init__(self, root: Path, agents: AgentKit, home: Path | None = None) -> None:
        self.home = home or root / "home"
        self.home.mkdir(parents=True)
        self.agents = agents
        self.app = GitRepo.make(root / "remotes" / "app.git", {"a.txt": "one\n"}, bare=True)

    @classmethod
    @contextmanager
    def open(cls, root: Path, home: Path | None = None) -> Iterator[Staff]:
        """Make a team; its home is below ``root`` by default. Its agents are ended afterwards."""
        with AgentKit(root / "kit", timeout=LONG) as agents:
            yield cls(root, agents, home)

    @property
    def settings(self) -> Settings:
        return Settings(port=0, store=self.home / "sessions")

    def hires(self, more: str = "", **scripts: AgentScript) -> Path:
        """Write the team file, with a member for each script."""
        # The agents obey scripts outside of their workspaces.
        lines = ['team = "blue"', 'confine = "off"', more, "[[repositories]]", 'name = "app"', f"url = {json.dumps(str(self.app.path))}"]
        for name, script in scripts.items():
            lines += [f"[members.{name}]", f"command = {json.dumps(script.command)}"]
        file = self.home / "team.toml"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    def start(self, daemon: DaemonClient, member: str, kind: str = "Loop", **more: Any) -> str:
        """Start a session; its id."""
        return str(daemon.ok("POST", "/api/sessions/start", {"member_name": member, "session_type": kind, **more})["session_id"])

    def commits(self, path: str, name: str = "agent") -> AgentScript:
        """A script that commits a file on a new branch, and ends."""
        line = f"cd projects/app && git checkout -q -b work && echo work > {path} && git add {path} && {AGENT_GIT} commit -q -m work"
        return self.agents.script(name).run("sh", "-c", line)

    def saved(self) -> set[str]:
        """The files of all branches of the remote."""
        branches = self.app.text("for-each-ref", "--format=%(refname)").split()
        return {path for branch in branches for path in self.app.text("ls-tree", "-r", "--name-only", branch).split()}

    def workspace(self, id_: str) -> Path:
        return self.home / "sessions" / id_ / "workspace" / "projects" / "app"


def wait_until(holds: Callable[[], bool], what: str = "it") -> None:
    """Wait until a condition holds that other processes bring about."""
    deadline = real_seconds() + LONG
    while not holds():
        assert real_seconds() < deadline, f"{what} did not come about"
        pause(0.02)


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def impostor(home: Path, port: int, **changes: Any) -> None:
    """Publish a daemon's file that leads to a port."""
    owner = Owner.current()
    published = daemon_file.DaemonFile(
        "team",
        "127.0.0.1",
        port,
        owner.pid,
        owner.start_time,
        "",
        str(home / "sessions"),
        os.environ.get("PYTEST_GITTRIX_CLOCK"),
        None,
        "key",
        owner.to_json(),
    )
    daemon_file.publish(home, replace(published, **changes))


@contextmanager
def listener(answer: bytes | None, *, greeting: bytes | None = None, heard: list[bytes] | None = None) -> Iterator[int]:
    """Something that takes connections, and answers the first request of each with ``greeting`` and all others with ``answer``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                for number, text in enumerate((greeting or answer, answer)):
                    if text is None:
                        break
                    if not (said := connection.recv(65536)):
                        break
                    if heard is not None:
                        heard.append(said)
                    connection.sendall(text)
                    if number or greeting is None:
                        connection.close()
                        break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in held:
            connection.close()


def http_answer(status: str, body: object) -> bytes:
    """A whole answer of an HTTP server, with a body of JSON."""
    text = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
