"""The daemon's requests about members' sessions answer as BotMinter documents them: paths, shapes, status codes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.daemon import DaemonClient, Staff, serving, wait_until

from pytest_gittrix import __version__
from pytest_gittrix.server import run, state

RECORD = {
    "session_id",
    "member_name",
    "session_type",
    "current_state",
    "created_at",
    "state_transitioned_at",
    "agent_pid",
    "workspace_path",
    "finalization_result",
    "finalization_agent_pid",
    "concurrent_count",
}


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path) as opened:
        opened.hires(ada=opened.agents.script("ada").polite().at("up").hang(), bob=opened.commits("b.txt"))
        yield opened


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonClient]:
    """A daemon without a session, for what changes nothing."""
    with Staff.open(tmp_path_factory.mktemp("idle")) as staff, serving(staff.settings) as asked:
        yield asked


# Starting and looking ------------------------------------------------------------------------------------------------------------


def test_a_started_session_is_told_with_its_workspace_and_listed_with_every_field(staff: Staff, daemon: DaemonClient) -> None:
    answer = daemon.ok("POST", "/api/sessions/start", {"member_name": "ada", "session_type": "Loop"})

    assert answer.keys() == {"ok", "session_id", "workspace_path"}
    assert (Path(answer["workspace_path"]) / "projects/app/a.txt").read_text() == "one\n"
    (listed,) = daemon.ok("GET", "/api/sessions")["sessions"]
    assert listed.keys() == RECORD
    assert (listed["session_id"], listed["member_name"], listed["session_type"]) == (answer["session_id"], "ada", "Loop")
    assert (listed["current_state"], listed["concurrent_count"]) == ("Active", 1)
    assert isinstance(listed["agent_pid"], int)
    assert daemon.ok("GET", f"/api/sessions/{answer['session_id']}")["session"] == listed


def test_the_active_sessions_of_a_member_are_counted_in_each_of_them(staff: Staff, daemon: DaemonClient) -> None:
    for member in ("ada", "ada", "eve"):
        staff.start(daemon, member, "Interactive")

    counts = [(one["member_name"], one["concurrent_count"]) for one in daemon.ok("GET", "/api/sessions")["sessions"]]

    assert counts == [("ada", 2), ("ada", 2), ("eve", 1)]


@pytest.mark.parametrize("kind", ["loop", "Robot", "", None, 3])
def test_a_type_that_there_is_not_is_refused_and_nothing_is_made(idle: DaemonClient, kind: object) -> None:
    reply = idle.request("POST", "/api/sessions/start", {"member_name": "ada", "session_type": kind})

    assert reply.error == (400, "INVALID_INPUT")
    assert idle.ok("GET", "/api/sessions")["sessions"] == []


def test_a_work_item_that_is_held_is_a_conflict_until_it_is_given_back(staff: Staff, daemon: DaemonClient) -> None:
    first = staff.start(daemon, "ada", "Interactive", work_item_id="td/7")
    body = {"member_name": "eve", "session_type": "Interactive", "work_item_id": "td/7"}

    assert daemon.request("POST", "/api/sessions/start", body).error == (409, "WORK_ITEM_HELD")
    assert daemon.ok("DELETE", f"/api/sessions/{first}/locks/td%2F7")["released"] is True
    assert daemon.ok("DELETE", f"/api/sessions/{first}/locks/td%2F7")["released"] is False
    assert daemon.ok("POST", "/api/sessions/start", body)["session_id"] != first


def test_a_workspace_that_cannot_be_made_is_a_failure_that_leaves_nothing(staff: Staff, daemon: DaemonClient) -> None:
    staff.app.path.rename(staff.app.path.with_name("gone"))

    reply = daemon.request("POST", "/api/sessions/start", {"member_name": "ada", "session_type": "Loop", "work_item_id": "td-7"})

    assert reply.status == 500
    assert reply.json["error"]["code"] == "ADAPTER_UNAVAILABLE"
    assert daemon.ok("GET", "/api/sessions")["sessions"] == []


# Ends --------------------------------------------------------------------------------------------------------------------------


def test_an_agent_that_ends_is_noticed_and_what_it_left_is_saved(staff: Staff, daemon: DaemonClient) -> None:
    id_ = staff.start(daemon, "bob")

    wait_until(lambda: daemon.state(id_) == "Retained", "the end")

    (row,) = daemon.ok("GET", "/api/sessions/history")["sessions"]
    assert (row["session_id"], row["exit_normal"], row["finalization_status"]) == (id_, True, "completed")
    assert "b.txt" in staff.saved()


@pytest.mark.parametrize("force", [False, True])
def test_stopping_ends_the_agent_and_a_second_time_is_no_error(staff: Staff, daemon: DaemonClient, force: bool) -> None:
    id_ = staff.start(daemon, "ada")
    staff.agents.step("up")

    for _ in range(2):
        assert daemon.ok("POST", f"/api/sessions/{id_}/stop", {"force": force})["current_state"] == "Retained"

    assert staff.agents.gone("ada")
    assert staff.agents.asked == ([] if force else ["SIGTERM"])
    assert daemon.ok("GET", "/api/sessions/history")["sessions"][0]["exit_normal"] is not force


def test_stopping_all_that_run_by_themselves_skips_and_counts_those_of_people(staff: Staff, daemon: DaemonClient) -> None:
    loop, chat = staff.start(daemon, "ada"), staff.start(daemon, "eve", "Interactive")

    answer = daemon.ok("POST", "/api/sessions/stop", {"mode": "autonomous"})

    assert answer == {"ok": True, "deactivated": 1, "killed": 0, "skipped_interactive": 1, "errors": []}
    assert (daemon.state(loop), daemon.state(chat)) == ("Retained", "Active")
    answer = daemon.ok("POST", "/api/sessions/stop", {"mode": "member", "member": "eve", "force": True})
    assert (answer["killed"], daemon.state(chat)) == (1, "Retained")


@pytest.mark.parametrize(
    "body", [{"mode": "member"}, {"mode": "autonomous", "member": "ada"}, {"mode": "all"}, {}, {"mode": "member", "x": 1}]
)
def test_stopping_nobody_in_particular_is_refused(idle: DaemonClient, body: object) -> None:
    assert idle.request("POST", "/api/sessions/stop", body).error == (400, "INVALID_INPUT")


def test_history_goes_by_member_and_by_time_and_leaves_out_a_time_that_is_none(staff: Staff, daemon: DaemonClient) -> None:
    ids = {name: staff.start(daemon, name, "Interactive") for name in ("ada", "eve")}
    for id_ in ids.values():
        daemon.ok("POST", f"/api/sessions/{id_}/stop")

    def found(query: str) -> set[str]:
        return {row["session_id"] for row in daemon.ok("GET", f"/api/sessions/history{query}")["sessions"]}

    assert found("") == found("?since=yesterday") == found("?since=2001-01-01T00:00:00Z") == set(ids.values())
    assert found("?member=eve") == {ids["eve"]}
    assert found("?since=9000-01-01T00:00:00Z") == set()


# Workspaces --------------------------------------------------------------------------------------------------------------------


def test_inspecting_shows_what_is_not_committed_and_how_the_finalization_ended(staff: Staff, daemon: DaemonClient) -> None:
    id_ = staff.start(daemon, "ada", "Interactive")
    (staff.workspace(id_) / "new.txt").write_text("new\n")

    answer = daemon.ok("GET", f"/api/sessions/{id_}/inspect")

    assert answer["session"]["session_id"] == id_
    assert answer["finalization_results"] is None
    (repository,) = answer["git_state"]["repos"]
    assert repository == {
        "repo_name": "app",
        "current_branch": None,
        "uncommitted_files": ["new.txt"],
        "pushed_files": [],
        "unpushed_branches": [],
    }


def test_finalizing_again_is_for_what_is_retained_and_a_conflict_otherwise(staff: Staff, daemon: DaemonClient) -> None:
    id_ = staff.start(daemon, "ada", "Interactive")

    assert daemon.request("POST", f"/api/sessions/{id_}/finalize").error == (409, "WRONG_STATE")
    daemon.ok("POST", f"/api/sessions/{id_}/stop", {"force": True})
    assert daemon.ok("POST", f"/api/sessions/{id_}/finalize")["current_state"] == "Retained"


def test_cleaning_up_one_removes_its_workspace_and_takes_it_off_the_list(staff: Staff, daemon: DaemonClient) -> None:
    id_ = staff.start(daemon, "ada", "Interactive")

    assert daemon.request("DELETE", f"/api/sessions/{id_}").error == (404, "SESSION_NOT_FOUND")
    daemon.ok("POST", f"/api/sessions/{id_}/stop")
    answer = daemon.ok("DELETE", f"/api/sessions/{id_}")

    assert (answer["workspace_removed"], answer["registry_removed"], answer["archive"]) == (True, True, None)
    assert not staff.workspace(id_).exists()
    assert daemon.ok("GET", "/api/sessions")["sessions"] == []
    assert daemon.request("DELETE", f"/api/sessions/{id_}").error == (404, "SESSION_NOT_FOUND")


def test_cleaning_up_many_goes_by_the_filter_and_spares_work_that_is_nowhere_else(staff: Staff, daemon: DaemonClient) -> None:
    clean, dirty = staff.start(daemon, "ada", "Interactive"), staff.start(daemon, "eve", "Interactive")
    (staff.workspace(dirty) / "new.txt").write_text("new\n")
    for id_ in (clean, dirty):
        daemon.ok("POST", f"/api/sessions/{id_}/stop", {"force": True})

    assert daemon.ok("POST", "/api/sessions/cleanup", {"filter": "older_than", "value": "3600"})["reports"] == []
    answer = daemon.ok("POST", "/api/sessions/cleanup", {"filter": "all"})

    assert answer["reports"] == [{"session_id": clean, "workspace_removed": True, "registry_removed": True}]
    assert (answer["spared"], answer["archived"]) == ([dirty], {})
    assert staff.workspace(dirty).exists()


def test_what_is_deleted_by_its_id_is_archived_first_and_the_answer_says_where(staff: Staff, daemon: DaemonClient) -> None:
    id_ = staff.start(daemon, "ada", "Interactive")
    (staff.workspace(id_) / "new.txt").write_text("new\n")
    daemon.ok("POST", f"/api/sessions/{id_}/stop", {"force": True})

    archive = daemon.ok("DELETE", f"/api/sessions/{id_}")["archive"]

    assert not staff.workspace(id_).exists()
    assert (Path(archive) / "projects" / "app" / "new.txt").read_text() == "new\n"


@pytest.mark.parametrize(
    "body",
    [
        {"filter": "some"},
        {"filter": "all", "value": "ada"},
        {"filter": "member"},
        {"filter": "member", "value": 3},
        {"filter": "older_than", "value": "soon"},
        {"filter": "older_than", "value": -1},
        {"filter": "older_than"},
    ],
)
def test_a_filter_with_a_value_that_does_not_fit_is_refused(idle: DaemonClient, body: object) -> None:
    assert idle.request("POST", "/api/sessions/cleanup", body).error == (400, "INVALID_INPUT")


def test_a_lock_is_had_by_one_and_the_other_is_told_who(staff: Staff, daemon: DaemonClient) -> None:
    ada, eve = staff.start(daemon, "ada", "Interactive"), staff.start(daemon, "eve", "Interactive")

    assert daemon.ok("POST", f"/api/sessions/{ada}/locks", {"work_item_id": "x"}) == {"ok": True, "acquired": True}
    assert daemon.ok("POST", f"/api/sessions/{ada}/locks", {"work_item_id": "x"}) == {"ok": True, "acquired": True}
    assert daemon.ok("POST", f"/api/sessions/{eve}/locks", {"work_item_id": "x"}) == {"ok": True, "acquired": False, "holder": ada}


# What is not there -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["deadbeef", "no%20id", "..%2f..", "%00", "x" * 200])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("POST", "/stop", {}),
        ("GET", "/inspect", None),
        ("POST", "/finalize", None),
        ("DELETE", "", None),
        ("POST", "/locks", {"work_item_id": "x"}),
    ],
)
def test_an_unknown_session_is_not_found_whatever_is_asked(idle: DaemonClient, id_: str, method: str, path: str, body: object) -> None:
    reply = idle.request(method, f"/api/sessions/{id_}{path}", body)

    assert reply.status in (404, 405)
    assert reply.json["ok"] is False


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"member_name": "\\ud800", "session_type": "Loop"}', b"[" * 100_000, b'{"a": NaN}'],
)
def test_what_is_no_request_is_refused_in_the_one_shape(idle: DaemonClient, raw: bytes) -> None:
    reply = idle.request("POST", "/api/sessions/start", raw=raw)

    assert reply.error == (400, "INVALID_INPUT")
    assert "Traceback" not in reply.body.decode()


@pytest.mark.parametrize("query", ["/history?membr=ada", "?x=1", "/history?member=a&member=b", "/unknown?x=", "/history?since=x&since=y"])
def test_a_parameter_that_nobody_reads_or_that_is_there_twice_is_refused(idle: DaemonClient, query: str) -> None:
    assert idle.request("GET", f"/api/sessions{query}").error == (400, "INVALID_INPUT")


@pytest.mark.parametrize(
    "body", [b'{"mode": "autonomous", "force": false, "force": true}', b'{"mode": "autonomous", "mode": "autonomous"}']
)
def test_a_key_that_is_there_twice_is_refused(idle: DaemonClient, body: bytes) -> None:
    reply = idle.request("POST", "/api/sessions/stop", raw=body)

    assert reply.error == (400, "INVALID_INPUT")
    assert "2 times" in reply.json["error"]["message"]


def test_a_body_where_none_is_read_is_refused_unless_it_says_nothing(staff: Staff, daemon: DaemonClient) -> None:
    id_ = staff.start(daemon, "ada", "Interactive")
    daemon.ok("POST", f"/api/sessions/{id_}/stop")

    assert daemon.request("DELETE", f"/api/sessions/{id_}", {"dry_run": True}).error == (400, "INVALID_INPUT")
    assert daemon.request("POST", f"/api/sessions/{id_}/finalize", {"force": True}).error == (400, "INVALID_INPUT")
    assert daemon.ok("POST", f"/api/sessions/{id_}/finalize", {})["current_state"] == "Retained"
    assert daemon.ok("DELETE", f"/api/sessions/{id_}")["workspace_removed"] is True


def test_stops_that_wait_keep_nobody_out_and_force_goes_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "REQUESTS", 1)
    monkeypatch.setattr(run, "THREADS", 4)
    with Staff.open(tmp_path) as staff:
        staff.hires(deaf=staff.agents.script("deaf").deaf().at("up").hang())
        with serving(staff.settings) as daemon, ThreadPoolExecutor(8) as pool:
            id_, chat = staff.start(daemon, "deaf"), staff.start(daemon, "eve", "Interactive")
            staff.agents.step("up")
            waiting = [pool.submit(daemon.ok, "POST", f"/api/sessions/{id_}/stop", {}) for _ in range(8)]
            wait_until(lambda: daemon.state(id_) != "Active", "the stop")

            assert daemon.ok("GET", "/health")["active"] == 1
            assert daemon.ok("POST", f"/api/sessions/{chat}/stop", {"force": True})["current_state"] == "Retained"
            assert daemon.ok("POST", f"/api/sessions/{id_}/stop", {"force": True})["current_state"] == "Retained"
            assert not any(one.done() for one in waiting) or staff.agents.gone("deaf")
            assert {one.result()["current_state"] for one in waiting} == {"Retained"}


def test_health_tells_whose_daemon_it_is(staff: Staff, daemon: DaemonClient) -> None:
    staff.start(daemon, "ada", "Interactive")

    answer = daemon.ok("GET", "/health")

    assert answer.keys() == {"ok", "version", "team", "uptime_s", "active", "store"}
    assert (answer["version"], answer["team"], answer["active"]) == (__version__, "blue", 1)
    assert answer["store"] == str(staff.home / "sessions")


def test_paths_and_methods_that_there_are_not_are_answered_in_the_one_shape(idle: DaemonClient) -> None:
    assert idle.request("GET", "/api/nothing").error == (404, "NOT_FOUND")
    assert idle.request("PUT", "/api/sessions").error == (405, "METHOD_NOT_ALLOWED")
