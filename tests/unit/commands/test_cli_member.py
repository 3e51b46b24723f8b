"""The commands for members' sessions: what they say to people and to programs, without a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import Cli, started
from support.daemon import Staff, wait_until

from pytest_gittrix.commands.render import confinement_note
from pytest_gittrix.confine.levels import strongest


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    (tmp_path / "person").mkdir()
    return Cli(tmp_path / "person", monkeypatch, capfdbinary)


@pytest.fixture
def staff(cli: Cli, tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path, cli.home) as made:
        made.hires(ada=made.agents.script("ada").polite().at("up").hang(), bob=made.commits("bob.txt", "bob"))
        yield made


def chat(cli: Cli, member: str = "eve") -> str:
    return started(cli, member, "--kind", "interactive")


def test_start_prints_the_id_and_the_workspace_and_its_agent_goes_on(cli: Cli, staff: Staff) -> None:
    id_, workspace = cli.ok("member", "start", "ada", "--task", "mend it").lines
    staff.agents.wait_for("up")

    assert (Path(workspace) / "projects/app/a.txt").is_file()
    (record,) = cli.data("member", "status")
    assert (record["session_id"], record["member_name"], record["session_type"]) == (id_, "ada", "Loop")
    shown = cli.ok("member", "status")
    assert shown.lines[0].split() == ["MEMBER", "SESSION", "TYPE", "STATE", "PID", "FOR", "CONFINED", "TASK"]
    assert shown.lines[1].split() == ["ada", id_, "loop", "Active", str(record["agent_pid"]), "<1m", "off", "mend", "it"]


def test_a_chat_needs_a_terminal_and_a_program_that_a_person_can_read(cli: Cli, staff: Staff) -> None:
    refused = cli.error("member", "chat", "ada")

    assert (refused["code"], "no terminal to talk on" in refused["message"]) == ("CAPABILITY_MISSING", True)
    assert cli.data("member", "list") == []


def test_a_member_whose_program_is_interactive_is_not_started_silently_without_it(cli: Cli, staff: Staff) -> None:
    with (cli.home / "team.toml").open("a") as team:
        team.write('[members.cleo]\nkind = "interactive"\ncommand = ["cat"]\n[members.dora]\nkind = "interactive"\n')
    refused = cli.error("member", "start", "cleo")

    assert (refused["code"], "gittrix member chat cleo" in refused["message"]) == ("INVALID_INPUT", True)
    assert [cli.data("member", "start", *more)["agent_pid"] for more in (("cleo", "--kind", "interactive"), ("dora",))] == [None, None]
    with_command = cli("member", "start", "cleo", "--json", "--", "sleep", "600")
    assert with_command.envelope["data"]["agent_pid"] is not None
    cli.ok("member", "stop", with_command.envelope["data"]["session_id"], "--force")


@pytest.mark.parametrize(
    ("recorded", "said"),
    [("off", "not confined"), ("jail(bwrap)", "no network"), ("jail(bwrap, network all)", ""), ("", "")],
)
def test_a_person_is_told_what_an_agent_can_reach(recorded: str, said: str) -> None:
    assert said in "".join(confinement_note(recorded))
    assert bool(said) == bool(confinement_note(recorded))


def test_whoever_starts_an_agent_that_is_not_confined_is_told(cli: Cli, staff: Staff) -> None:
    started = cli("member", "start", "ada")
    staff.agents.wait_for("up")

    assert "The agent is not confined" in started.err


def test_a_command_of_its_own_is_run_instead_of_the_teams(cli: Cli, staff: Staff) -> None:
    script = staff.agents.script("other").at("other").polite().hang()

    started(cli, "ada", "--", *script.command)

    staff.agents.wait_for("other")
    assert staff.agents.alive("ada") == []


def test_stop_asks_the_agent_and_saves_its_work(cli: Cli, staff: Staff) -> None:
    id_ = started(cli, "ada")
    staff.agents.step("up")
    (staff.workspace(id_) / "new.txt").write_text("new\n")

    assert cli.ok("member", "stop", id_[:8]).text == f"{id_} is retained\n"

    assert staff.agents.asked == ["SIGTERM"]
    assert "new.txt" in staff.saved()
    assert cli.data("member", "stop", id_)["current_state"] == "Retained"


def test_an_agent_that_is_gone_is_finished_by_the_next_command(cli: Cli, staff: Staff) -> None:
    id_ = started(cli, "bob")
    assert staff.agents.gone("bob")

    wait_until(lambda: cli.data("member", "list")[0]["state"] == "Retained", "the end")

    assert "bob.txt" in staff.saved()
    (row,) = cli.data("member", "history")
    assert (row["session_id"], row["finalization_status"], row["exit_normal"]) == (id_, "completed", True)
    assert cli.ok("member", "history").lines[1].split()[:5] == [id_, "bob", "Loop", "Retained", "completed"]


def test_stopping_all_leaves_chats_and_says_so(cli: Cli, staff: Staff) -> None:
    loop, talk = started(cli, "ada"), chat(cli)
    staff.agents.step("up")

    assert cli.data("member", "stop", "--all") == {"deactivated": [loop], "killed": [], "skipped_interactive": [talk], "errors": {}}
    assert cli.data("member", "stop", "--member", "eve", "--force")["killed"] == [talk]
    assert cli.ok("member", "status").text == "No member is at work.\n"


@pytest.mark.parametrize("given", [(), ("--all", "--member", "ada"), ("some", "--all")])
def test_what_is_to_be_stopped_must_be_said_once(cli: Cli, staff: Staff, given: tuple[str, ...]) -> None:
    assert cli.error("member", "stop", *given)["code"] == "INVALID_INPUT"


def test_lists_and_histories_go_by_member_and_time(cli: Cli, staff: Staff) -> None:
    ids = [chat(cli, member) for member in ("ada", "eve")]
    cli.ok("member", "stop", ids[1])

    assert [row["session_id"] for row in cli.data("member", "list")] == ids
    assert [row["session_id"] for row in cli.data("member", "list", "--member", "eve")] == ids[1:]
    assert [row["session_id"] for row in cli.data("member", "history", "--since", "1h")] == ids[1:]
    assert cli.data("member", "history", "--since", "9000-01-01T00:00:00Z") == []
    assert cli.ok("member", "history", "--member", "ada").text == "There are no such sessions.\n"


def test_an_item_is_worked_on_by_one_session(cli: Cli, staff: Staff) -> None:
    first, second = started(cli, "ada", "--kind", "interactive", "--work-item", "td-7"), chat(cli)

    assert cli.error("member", "lock", second, "td-7")["code"] == "WORK_ITEM_HELD"
    assert cli.error("member", "start", "bob", "--work-item", "td-7")["code"] == "WORK_ITEM_HELD"
    assert cli.ok("member", "unlock", first, "td-7").text == f"{first} gave td-7 back\n"
    assert cli.data("member", "unlock", first, "td-7")["released"] is False
    assert cli.data("member", "lock", second, "td-7") == {"acquired": True, "session_id": second, "item": "td-7"}


def test_inspect_shows_the_record_and_what_is_not_saved(cli: Cli, staff: Staff) -> None:
    id_ = chat(cli)
    (staff.workspace(id_) / "new.txt").write_text("new\n")

    inspected = cli.data("session", "inspect", id_)

    assert inspected["session"]["session_id"] == id_
    assert inspected["git_state"]["repos"][0]["uncommitted_files"] == ["new.txt"]
    assert "not committed: new.txt" in cli.ok("session", "inspect", id_).text


def test_what_is_held_back_goes_through_by_what_a_person_is_told_to_type(cli: Cli, staff: Staff) -> None:
    id_ = chat(cli)
    workspace = Path(cli.data("session", "inspect", id_)["session"]["workspace_path"])
    (workspace / "projects/app/example.env").write_text("token = 'ghp_" + "a1B2" * 9 + "'\n")

    stopped = cli("member", "stop", id_)

    typed = next(line for line in stopped.err.splitlines() if "through: " in line).partition("through: gittrix ")[2].split()
    assert "app: example.env" in stopped.err
    assert "kept in the session's archive.held/app.git" in stopped.err
    assert (cli.home / "sessions" / id_ / "archive.held/app.git/HEAD").exists()
    assert typed[:3] == ["session", "finalize", id_]
    again = cli(*typed)
    assert (again.status, "example.env" in again.err) == (0, False)
    pushed = cli.data("session", "inspect", id_)["finalization_results"]
    assert pushed["pushed_branches"] or pushed["recovery_branches"]


def test_finalize_saves_again_what_was_killed_and_cleanup_takes_it_away(cli: Cli, staff: Staff) -> None:
    id_ = chat(cli)
    (staff.workspace(id_) / "new.txt").write_text("new\n")
    cli.ok("member", "stop", id_, "--force")

    assert cli.data("session", "cleanup", "--all")["spared"] == [id_]
    assert cli.data("session", "finalize", id_)["finalization_result"]["exit_status"] in ("Completed", "CompletedDegraded")
    assert "new.txt" in staff.saved()
    assert cli.data("session", "cleanup", "--all", "--dry-run")["reports"][0]["workspace_removed"] is False
    assert cli.ok("session", "cleanup", "--member", "eve").text == f"{id_} removed\n"
    assert not staff.workspace(id_).exists()
    assert cli.ok("session", "cleanup", "--all").text == "There is nothing to clean up.\n"
    assert cli.error("session", "finalize", id_)["code"] == "INVALID_INPUT"


@pytest.mark.parametrize(
    "given", [(), ("--all", "--older-than", "48h"), ("--member", "ada", "--all"), ("some", "--all")], ids=lambda given: " ".join(given)
)
def test_cleanup_takes_exactly_one_selector(cli: Cli, staff: Staff, given: tuple[str, ...]) -> None:
    assert cli.error("session", "cleanup", *given)["code"] in ("INVALID_INPUT", "SESSION_NOT_FOUND")


@pytest.mark.parametrize("age", ["", "h", "2w", "1h30m", "-1h", "ten"])
def test_an_age_is_one_number_with_one_unit(cli: Cli, staff: Staff, age: str) -> None:
    ran = cli("session", "cleanup", f"--older-than={age}", "--json")

    assert (ran.status, ran.envelope["error"]["code"]) == (2, "USAGE")


def test_the_list_of_sessions_shows_members_sessions_with_their_life(cli: Cli, staff: Staff) -> None:
    ordinary, member = cli.start(), chat(cli)
    cli.ok("member", "stop", member, "--force")

    records = {record["id"]: record for record in cli.data("session", "list")}

    assert records[member]["life"] == {"member": "eve", "kind": "interactive", "state": "retained", "ended": "killed"}
    assert "life" not in records[ordinary]
    states = {line.split()[0]: line.split()[1] for line in cli.ok("session", "list").lines[1:]}
    assert states == {ordinary: "active", member: "retained"}


def test_a_team_file_that_is_wrong_is_named(cli: Cli, staff: Staff, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[members.ada]\nkind = 'robot'\n")

    error = cli.error("member", "start", "ada", "--team", str(tmp_path / "bad.toml"))

    assert error["code"] == "INVALID_INPUT"
    assert "members.ada.kind" in error["message"]


def test_a_start_that_fails_leaves_nothing(cli: Cli, staff: Staff) -> None:
    staff.app.path.rename(staff.app.path.with_name("gone"))

    assert cli.error("member", "start", "ada", "--work-item", "x")["code"] == "ADAPTER_UNAVAILABLE"

    assert cli.data("member", "list") == []
    assert cli.data("session", "list") == []


def test_limits_of_the_command_line_and_of_the_team_file_hold_together(cli: Cli, staff: Staff) -> None:
    if strongest().level == "off":
        pytest.skip("nothing confines programs here")
    staff.hires('limits = {memory = "2GB", processes = 900}\ncommand = ["true"]')
    started = cli("member", "start", "eve", "--confine", "auto", "--limit", "processes=40", "--limit", "disk=1G")

    assert "limits processes=40 memory=2GB disk=1GB" in started.err
    assert cli.error("member", "start", "eve", "--limit", "cores=2")["code"] == "INVALID_INPUT"
    assert cli.error("member", "start", "eve", "--confine", "off")["code"] == "CAPABILITY_MISSING"
