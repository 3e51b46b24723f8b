"""BotMinter's "Session Model" at the command line and over HTTP: its commands, its daemon on port 8484, and the daemon's API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import Cli
from support.daemon import DaemonClient, Staff, serving, wait_until

from pytest_gittrix.cli.verbs import command_line


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


def started(cli: Cli, member: str, *arguments: str) -> str:
    """Start a session; its id."""
    return cli.ok("member", "start", member, *arguments).lines[0]


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

    @pytest.mark.parametrize("selector", [(), ("--all",), ("--member", "eve"), ("--older-than", "0s")])
    def test_bm_session_cleanup_is_session_cleanup(self, cli: Cli, staff: Staff, selector: tuple[str, ...]) -> None:
        id_ = retained(cli)
        cli.ok("session", "cleanup", *(selector or (id_,)))
        assert not (cli.home / "sessions" / id_ / "workspace").exists()
        assert cli.data("member", "list")[0]["state"] == "Removed"

    def test_bm_session_cleanup_older_than_spares_what_is_younger(self, cli: Cli, staff: Staff) -> None:
        id_ = retained(cli)
        cli.ok("session", "cleanup", "--older-than", "48h")
        assert (cli.home / "sessions" / id_ / "workspace").is_dir()


class TestDaemon:
    """The Session Daemon"""

    def test_it_listens_on_port_8484_by_default(self) -> None:
        assert command_line().parse_args(["serve"]).port == 8484

    def test_start_and_stop_delegate_to_it(self, cli: Cli, staff: Staff, daemon: DaemonClient) -> None:
        id_ = started(cli, "ada")
        staff.agents.step("up")
        assert daemon.state(id_) == "Active"
        cli.ok("member", "stop", id_)
        assert daemon.state(id_) == "Retained"

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
