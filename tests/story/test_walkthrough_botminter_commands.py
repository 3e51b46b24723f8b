"""BotMinter's "Session Model" at the command line and over HTTP: its commands, its daemon on port 8484, and the daemon's API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.cli import Cli, started
from support.daemon import LONG, DaemonClient, DaemonProcess, Staff, serving, wait_until
from support.git import GitRepo
from support.orchestrator import on_linux

from pytest_gittrix.cli import daemon_proxy

SERVES = """
import fcntl, json, socket, struct, subprocess, sys
from urllib.request import urlopen
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 1))
with subprocess.Popen([sys.executable, "-m", "pytest_gittrix.cli", "serve", "--json"], stdout=subprocess.PIPE) as daemon:
    try:
        daemon.stdout.readline()
        with urlopen("http://127.0.0.1:8484/health") as answer:
            print(answer.status, json.load(answer)["ok"])
    finally:
        daemon.terminate()
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    (tmp_path / "person").mkdir()
    return Cli(tmp_path / "person", monkeypatch, capfdbinary)


@pytest.fixture
def staff(cli: Cli, tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path, cli.home) as made:
        made.hires(ada=made.agents.script("ada").polite().at("up").hang(), bob=made.commits("bob.txt", "bob"))
        yield made


@pytest.fixture
def daemon(staff: Staff) -> Iterator[DaemonClient]:
    with serving(staff.settings) as asked:
        yield asked


def retained(cli: Cli, member: str = "eve") -> str:
    """A chat that was stopped; its id."""
    id_ = started(cli, member, "--kind", "interactive")
    cli.ok("member", "stop", id_)
    return id_


class TestCommands:
    """bm start, bm chat, bm stop, bm status, bm session"""

    def test_bm_start_is_member_start(self, cli: Cli, staff: Staff) -> None:
        started(cli, "ada")
        staff.agents.wait_for("up")
        assert [row["session_type"] for row in cli.data("member", "status")] == ["Loop"]

    def test_bm_start_of_a_chat_first_member_is_member_start_of_a_brain(self, cli: Cli, staff: Staff, tmp_path: Path) -> None:
        crew = GitRepo.make(tmp_path / "crew.git", {"brain-prompt.md": "You multiplex.\n"}, bare=True)
        ours = f'[[repositories]]\nname = "crew"\nurl = {json.dumps(str(crew.path))}\nteam = true'
        staff.hires(ours, ada=staff.agents.script("ada").polite().at("up").hang())
        started(cli, "ada")
        staff.agents.wait_for("up")
        assert [row["session_type"] for row in cli.data("member", "status")] == ["Brain"]

    def test_bm_meetings_is_member_start_of_an_interactive_session(self, cli: Cli, staff: Staff) -> None:
        started(cli, "ada", "--kind", "interactive")
        assert [row["session_type"] for row in cli.data("member", "status")] == ["Interactive"]

    def test_bm_stop_is_member_stop(self, cli: Cli, staff: Staff) -> None:
        id_ = started(cli, "ada")
        staff.agents.step("up")
        assert cli.data("member", "stop", id_)["current_state"] == "Retained"

    def test_bm_stop_force_is_member_stop_force(self, cli: Cli, staff: Staff) -> None:
        id_ = started(cli, "ada")
        staff.agents.wait_for("up")
        cli.ok("member", "stop", id_, "--force")
        assert staff.agents.gone("ada")
        assert cli.data("session", "inspect", id_)["session"]["finalization_result"] is None

    def test_bm_status_shows_active_members_with_current_session_ids(self, cli: Cli, staff: Staff) -> None:
        id_ = started(cli, "ada")
        retained(cli)
        assert [(row["member_name"], row["session_id"]) for row in cli.data("member", "status")] == [("ada", id_)]

    def test_bm_session_list_shows_active_and_terminal_sessions(self, cli: Cli, staff: Staff) -> None:
        over, running = retained(cli), started(cli, "ada")
        assert {row["session_id"]: row["state"] for row in cli.data("member", "list")} == {over: "Retained", running: "Active"}

    def test_bm_session_inspect_is_session_inspect(self, cli: Cli, staff: Staff) -> None:
        id_ = started(cli, "ada", "--kind", "interactive")
        (staff.workspace(id_) / "new.txt").write_text("new\n")
        inspected = cli.data("session", "inspect", id_)
        assert (inspected["session"]["session_id"], inspected["git_state"]["repos"][0]["uncommitted_files"]) == (id_, ["new.txt"])

    def test_bm_session_finalize_is_session_finalize(self, cli: Cli, staff: Staff) -> None:
        id_ = started(cli, "ada", "--kind", "interactive")
        (staff.workspace(id_) / "new.txt").write_text("new\n")
        cli.ok("member", "stop", id_, "--force")
        assert "new.txt" not in staff.saved()
        cli.ok("session", "finalize", id_)
        assert "new.txt" in staff.saved()
        moved = [one["data"]["to"] for one in cli.data("session", "history", id_) if one["type"] == "life.moved"]
        assert moved[-4:] == ["retained", "finalizing", "completed", "retained"]

    @pytest.mark.parametrize("selector", [(), ("--all",), ("--member", "eve"), ("--older-than", "0s")])
    def test_bm_session_cleanup_is_session_cleanup(self, cli: Cli, staff: Staff, selector: tuple[str, ...]) -> None:
        id_, other = retained(cli), retained(cli, "ada")
        cli.ok("session", "cleanup", *(selector or (id_,)))
        spared = [other] if selector in ((), ("--member", "eve")) else []
        assert [one for one in (id_, other) if (cli.home / "sessions" / one / "workspace").exists()] == spared
        states = {row["session_id"]: row["state"] for row in cli.data("member", "list")}
        assert states == {id_: "Removed", other: "Retained" if spared else "Removed"}

    def test_bm_session_cleanup_older_than_spares_what_is_younger(self, cli: Cli, staff: Staff) -> None:
        id_ = retained(cli)
        cli.ok("session", "cleanup", "--older-than", "48h")
        assert (cli.home / "sessions" / id_ / "workspace").is_dir()


class TestDaemon:
    """The Session Daemon"""

    @on_linux
    def test_it_listens_on_port_8484_by_default(self, cli: Cli) -> None:
        """In a network of its own, where nobody else has that port."""
        alone = ["unshare", "--map-root-user", "--net"]
        if shutil.which(alone[0]) is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip("this user can have no network namespace")
        done = subprocess.run([*alone, sys.executable, "-c", SERVES], capture_output=True, text=True, timeout=LONG, check=False)
        assert done.stdout == "200 True\n", done.stderr

    def test_start_and_stop_delegate_to_it(self, cli: Cli, staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
        """The agent has the variables of the daemon, and the command does nothing in its own process."""
        staff.hires(ada=staff.agents.script("ada").polite().facts().at("up").hang())
        monkeypatch.setattr(daemon_proxy, "_directly", lambda *_arguments: pytest.fail("the command did it itself"))
        with DaemonProcess(cli.home, environment={"LC_STARTED_BY": "the daemon"}) as daemon:
            id_ = started(cli, "ada")
            staff.agents.step("up")
            facts = json.loads((cli.home / "sessions" / id_ / "workspace/facts.json").read_text())
            assert (facts["environment"]["LC_STARTED_BY"], daemon.state(id_)) == ("the daemon", "Active")
            cli.ok("member", "stop", id_)
            assert staff.agents.gone("ada")
            assert daemon.state(id_) == "Retained"
            daemon.end()

    def test_it_removes_what_has_been_retained_for_long_enough(self, cli: Cli, staff: Staff) -> None:
        staff.hires('[retention]\nloop_brain = "6h"', ada=staff.agents.script("ada").polite().at("up").hang())
        clock = cli.freeze()
        with DaemonProcess(cli.home, environment={"PYTEST_GITTRIX_CLOCK": os.environ["PYTEST_GITTRIX_CLOCK"]}) as daemon:
            id_ = started(cli, "ada")
            staff.agents.step("up")
            cli.ok("member", "stop", "--all")
            begun = clock.now()

            def removed() -> bool:
                clock.advance(minutes=30)
                return daemon.state(id_) == "Removed"

            wait_until(removed, "the end of its retention")
            assert clock.now() - begun > timedelta(hours=6)
            assert not (cli.home / "sessions" / id_ / "workspace").exists()
            daemon.end()

    def test_it_goes_on_after_members_stop_and_keeps_their_records(self, cli: Cli, staff: Staff, daemon: DaemonClient) -> None:
        started(cli, "ada")
        staff.agents.step("up")
        cli.ok("member", "stop", "--all")
        assert daemon.request("GET", "/health").status == 200
        assert len(daemon.ok("GET", "/api/sessions")["sessions"]) == 1

    def test_it_finalizes_after_an_agent_exits_without_being_asked(self, staff: Staff, daemon: DaemonClient) -> None:
        id_ = staff.start(daemon, "bob")
        wait_until(lambda: daemon.state(id_) == "Retained", "the end")
        assert "bob.txt" in staff.saved()

    def test_it_exposes_session_state_over_http(self, staff: Staff, daemon: DaemonClient) -> None:
        id_ = staff.start(daemon, "eve", "Interactive")
        assert daemon.ok("GET", f"/api/sessions/{id_}")["session"]["current_state"] == "Active"
        assert daemon.ok("GET", f"/api/sessions/{id_}/inspect")["git_state"]["repos"][0]["repo_name"] == "app"
        assert daemon.request("GET", "/api/sessions/nobody").status == 404

    def test_each_documented_operation_has_its_path(self, staff: Staff, daemon: DaemonClient) -> None:
        id_ = staff.start(daemon, "eve", "Interactive")
        assert daemon.ok("POST", f"/api/sessions/{id_}/locks", {"work_item_id": "td-7"})["acquired"]
        assert daemon.ok("DELETE", f"/api/sessions/{id_}/locks/td-7")["released"]
        daemon.ok("POST", f"/api/sessions/{id_}/stop", {})
        wait_until(lambda: daemon.state(id_) == "Retained", "the end")
        daemon.ok("POST", f"/api/sessions/{id_}/finalize")
        wait_until(lambda: daemon.state(id_) == "Retained", "the second end")
        assert [row["session_id"] for row in daemon.ok("GET", "/api/sessions/history")["sessions"]] == [id_]
        assert daemon.ok("POST", "/api/sessions/stop", {"mode": "autonomous"})
        assert daemon.ok("DELETE", f"/api/sessions/{id_}")["workspace_removed"]
        assert daemon.ok("POST", "/api/sessions/cleanup", {"filter": "all"})
        assert not os.path.lexists(staff.home / "sessions" / id_ / "workspace")
