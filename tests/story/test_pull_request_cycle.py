"""A pull request from its opening to its merge: the agent is a process, the forge is served, and the daemon is killed in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from support.daemon import DaemonProcess
from support.orchestrator import on_linux

from pytest_gittrix import GitTrix
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
GIT = "git -c user.name=agent -c user.email=agent@example.org"


def home_of_a_daemon(tmp_path: Path, remote: BareRemote, command: Sequence[str], server: ForgeServer) -> Path:
    """A directory for a daemon with one project, whose agent is the command."""
    home = tmp_path / "home"
    home.mkdir()
    names = {"durable": str(remote.path), "command": command, "forge": server.url}
    (home / "team.toml").write_text(TEAM.format(**{name: json.dumps(value) for name, value in names.items()}))
    return home


@on_linux
def test_a_pull_request_fails_its_checks_is_mended_and_merged_while_the_daemon_is_killed(tmp_path: Path) -> None:
    with (
        BareRemote.make(tmp_path / "app.git", files={"app.py": "v1\n"}) as remote,
        ForgeServer(remote) as server,
        server.forge() as client,
        AgentKit(tmp_path / "kit", timeout=60.0) as kit,
    ):

        def change(text: str) -> tuple[str, ...]:
            return "sh", "-c", f"echo {text} > app.py && {GIT} commit -qam {text} && git push -q {remote.path} HEAD"

        script = kit.script("mender").polite().run(*change("broken")).at("pushed").read().run(*change("mended")).at("mended").hang()
        home = home_of_a_daemon(tmp_path, remote, script.command, server)

        with DaemonProcess(home) as daemon:
            session = daemon.ok("POST", "/api/orchestrator/sessions", {"projectId": "app", "issueId": "#42"})["session"]
            id, branch = session["id"], session["branch"]
            assert (session["status"], branch) == ("working", "feat/42")
            kit.wait_for("pushed")
            number = client.open_pr(branch, "main", "Mend the app").number
            server.state.checks(branch, {"tests": "failure"})
        # The daemon was killed with SIGKILL; its agent runs on.
        assert kit.alive() != []

        project = Project("app", remote.path, agents=(CommandAgent("mender", tuple(script.command)),), forge=client)
        with (
            DaemonProcess(home) as daemon,
            GitTrix(None, store=home / "sessions", sweep_interval=None) as engine,
            Orchestrator(engine, [project], confine="off") as lead,
        ):

            def status() -> str:
                lead.poll(id)  # the daemon's own polls are half a minute apart
                return str(daemon.ok("GET", f"/api/orchestrator/sessions/{id}")["session"]["status"])

            assert status() == "ci_failed"
            assert daemon.ok("POST", f"/api/orchestrator/sessions/{id}/send", {"text": "the tests fail"})["sent"]
            kit.go("pushed")
            kit.wait_for("mended")
            assert remote.repo.read("app.py", at=branch) == b"mended\n"
            server.state.checks(branch, {"tests": "success"})
            assert status() == "mergeable"
            server.state.merge(number)
            assert status() == "merged"
            lead.kill(id)
        assert remote.repo.read("app.py") == b"mended\n"
        assert kit.heard == ["the tests fail"]


@on_linux
def test_after_a_promotion_as_a_pull_request_the_agent_mends_it_in_the_same_session(tmp_path: Path) -> None:
    with (
        BareRemote.make(tmp_path / "app.git", files={"app.py": "v1\n"}) as remote,
        ForgeServer(remote) as server,
        server.forge() as client,
        AgentKit(tmp_path / "kit", timeout=60.0) as kit,
    ):

        def change(text: str) -> tuple[str, ...]:
            return "sh", "-c", f"echo {text} > app.py"

        script = kit.script("mender").polite().run(*change("broken")).at("done").read().run(*change("mended")).at("mended").hang()
        home = home_of_a_daemon(tmp_path, remote, script.command, server)

        with DaemonProcess(home) as daemon:
            session = daemon.ok("POST", "/api/orchestrator/sessions", {"projectId": "app", "issueId": "#42"})["session"]
            id, branch = session["id"], session["branch"]
            kit.wait_for("done")
        # The daemon was killed with SIGKILL; its agent runs on.
        agent = kit.alive()

        project = Project("app", remote.path, agents=(CommandAgent("mender", tuple(script.command)),), forge=client)
        with (
            GitTrix(None, store=home / "sessions", sweep_interval=None, forge=lambda _durable: client) as engine,
            Orchestrator(engine, [project], confine="off") as lead,
        ):
            first = engine.get_session(id).promote(strategy="pr")
            (opened,) = client.find_prs(head=branch)
            assert (first.branch, first.pr_url, first.warnings) == (branch, opened.url, ())
            assert (engine.info(id).state, engine.info(id).touched_files) == ("active", ())
            server.state.checks(branch, {"tests": "failure"})
            with DaemonProcess(home) as daemon:
                lead.poll(id)
                assert daemon.ok("GET", f"/api/orchestrator/sessions/{id}")["session"]["status"] == "ci_failed"
                assert daemon.ok("POST", f"/api/orchestrator/sessions/{id}/send", {"text": "the tests fail"})["sent"]
                kit.go("done")
                kit.wait_for("mended")
            assert kit.alive() == agent
            assert engine.info(id).touched_files == ("app.py",)
            second = engine.get_session(id).promote(message="Mend it")
            assert (second.branch, second.pr_url, client.find_prs(head=branch)[0].head_sha) == (branch, None, second.sha)
            server.state.checks(branch, {"tests": "success"})
            assert lead.poll(id)[0].status == "mergeable"
            server.state.merge(opened.number)
            assert lead.poll(id)[0].status == "merged"
            lead.kill(id, purge=True)
        assert len(client.find_prs(head=branch, state="all")) == 1
        assert remote.repo.read("app.py") == b"mended\n"
        assert kit.heard == ["the tests fail"]
