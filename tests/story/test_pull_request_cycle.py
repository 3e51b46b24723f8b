"""A pull request from its opening to its merge: the agent is a process, the forge is served, and the daemon is killed in between."""

from __future__ import annotations

import json
from pathlib import Path

from support.daemon import DaemonProcess
from support.orchestrator import on_linux

from pytest_gittrix import GitTrix
from pytest_gittrix.orchestrator import CommandAgent, Orchestrator, Project
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit

GIT = "git -c user.name=agent -c user.email=agent@example.org"


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
        home = tmp_path / "home"
        home.mkdir()
        team = f"""\
confine = "off"
[[projects]]
id = "app"
durable = {json.dumps(str(remote.path))}
agents = {{ mender = {json.dumps(script.command)} }}
forge = {{ repo = "acme/app", base_url = {json.dumps(server.url)} }}
"""
        (home / "team.toml").write_text(team)

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
