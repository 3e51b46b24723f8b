"""A pull request from its opening to its merge: the agent is a process, the forge is served, and the daemon is killed in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.daemon import AGENT_GIT, DaemonProcess
from support.orchestrator import on_linux

from pytest_gittrix import GitTrix
from pytest_gittrix.backends import GitHubForge
from pytest_gittrix.orchestrator import CommandAgent, Orchestrator, Project
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit

TEAM = """\
confine = "off"
[[projects]]
id = "app"
durable = {durable}
agents = {{ mender = {command} }}
forge = {{ repo = "acme/app", base_url = {forge} }}
"""


@dataclass(frozen=True)
class Shop:
    """A project with a forge, and an agent that breaks ``app.py``, reads a line, and mends it.

    Attributes:
        home: of its daemons.
        remote: its repository.
        server: its forge.
        client: a client of the forge.
        kit: runs the agent, which stops at ``changed`` and at ``mended``.
        project: as an orchestrator in this process has it.
    """

    home: Path
    remote: BareRemote
    server: ForgeServer
    client: GitHubForge
    kit: AgentKit
    project: Project

    @classmethod
    @contextmanager
    def open(cls, root: Path, then: str = "") -> Iterator[Shop]:
        """Make one. After each change the agent's shell goes on with ``then``, in which ``{text}`` is what it wrote."""
        with (
            BareRemote.make(root / "app.git", files={"app.py": "v1\n"}) as remote,
            ForgeServer(remote) as server,
            server.forge() as client,
            AgentKit(root / "kit", timeout=60.0) as kit,
        ):
            broken, mended = (("sh", "-c", (f"echo {text} > app.py" + then).format(text=text)) for text in ("broken", "mended"))
            command = kit.script("mender").polite().run(*broken).at("changed").read().run(*mended).at("mended").hang().command
            home = root / "home"
            home.mkdir()
            names = {"durable": str(remote.path), "command": command, "forge": server.url}
            (home / "team.toml").write_text(TEAM.format(**{name: json.dumps(value) for name, value in names.items()}))
            project = Project("app", remote.path, agents=(CommandAgent("mender", tuple(command)),), forge=client)
            yield cls(home, remote, server, client, kit, project)

    def begin(self, daemon: DaemonProcess) -> dict[str, Any]:
        """Have a daemon start a session about an issue, and wait until its agent has broken the file."""
        session: dict[str, Any] = daemon.ok("POST", "/api/orchestrator/sessions", {"projectId": "app", "issueId": "#42"})["session"]
        self.kit.wait_for("changed")
        return session

    def have_it_mended(self, daemon: DaemonProcess, id: str) -> None:
        """Tell the agent of the failure, and wait until it has mended the file."""
        assert daemon.ok("POST", f"/api/orchestrator/sessions/{id}/send", {"text": "the tests fail"})["sent"]
        self.kit.go("changed")
        self.kit.wait_for("mended")
        assert self.kit.heard == ["the tests fail"]


@on_linux
def test_a_pull_request_fails_its_checks_is_mended_and_merged_while_the_daemon_is_killed(tmp_path: Path) -> None:
    pushes = f" && {AGENT_GIT} commit -qam {{text}} && git push -q {tmp_path / 'app.git'} HEAD"
    with Shop.open(tmp_path, pushes) as shop:
        server = shop.server
        with DaemonProcess(shop.home) as daemon:
            session = shop.begin(daemon)
            id, branch = session["id"], session["branch"]
            assert (session["status"], branch) == ("working", "feat/42")
            number = shop.client.open_pr(branch, "main", "Mend the app").number
            server.state.checks(branch, {"tests": "failure"})
        # The daemon was killed with SIGKILL; its agent runs on.
        assert shop.kit.alive() != []

        with (
            DaemonProcess(shop.home) as daemon,
            GitTrix(None, store=shop.home / "sessions", sweep_interval=None) as engine,
            Orchestrator(engine, [shop.project], confine="off") as lead,
        ):

            def status() -> str:
                lead.poll(id)  # the daemon's own polls are half a minute apart
                return str(daemon.ok("GET", f"/api/orchestrator/sessions/{id}")["session"]["status"])

            assert status() == "ci_failed"
            shop.have_it_mended(daemon, id)
            assert shop.remote.repo.read("app.py", at=branch) == b"mended\n"
            server.state.checks(branch, {"tests": "success"})
            assert status() == "mergeable"
            server.state.merge(number)
            assert status() == "merged"
            lead.kill(id)
        assert shop.remote.repo.read("app.py") == b"mended\n"


@on_linux
def test_after_a_promotion_as_a_pull_request_the_agent_mends_it_in_the_same_session(tmp_path: Path) -> None:
    with Shop.open(tmp_path) as shop:
        server, client = shop.server, shop.client
        with DaemonProcess(shop.home) as daemon:
            session = shop.begin(daemon)
            id, branch = session["id"], session["branch"]
        # The daemon was killed with SIGKILL; its agent runs on.
        agent = shop.kit.alive()

        with (
            GitTrix(None, store=shop.home / "sessions", sweep_interval=None, forge=lambda _durable: client) as engine,
            Orchestrator(engine, [shop.project], confine="off") as lead,
        ):
            first = engine.get_session(id).promote(strategy="pr")
            (opened,) = client.find_prs(head=branch)
            assert (first.branch, first.pr_url, first.warnings) == (branch, opened.url, ())
            assert (engine.info(id).state, engine.info(id).touched_files) == ("active", ())
            server.state.checks(branch, {"tests": "failure"})
            with DaemonProcess(shop.home) as daemon:
                lead.poll(id)
                assert daemon.ok("GET", f"/api/orchestrator/sessions/{id}")["session"]["status"] == "ci_failed"
                shop.have_it_mended(daemon, id)
            assert shop.kit.alive() == agent
            assert engine.info(id).touched_files == ("app.py",)
            second = engine.get_session(id).promote(message="Mend it")
            assert (second.branch, second.pr_url, client.find_prs(head=branch)[0].head_sha) == (branch, None, second.sha)
            server.state.checks(branch, {"tests": "success"})
            assert lead.poll(id)[0].status == "mergeable"
            server.state.merge(opened.number)
            assert lead.poll(id)[0].status == "merged"
            lead.kill(id, purge=True)
        assert len(client.find_prs(head=branch, state="all")) == 1
        assert shop.remote.repo.read("app.py") == b"mended\n"
