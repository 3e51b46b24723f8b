"""The flat files of sessions, their ids, and the audit of what agents report: as documented, as tolerant, and by several at once."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.orchestrator import Watched, at, filed_audit

from pytest_gittrix.durations import format_instant, instant_at
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.orchestrator.flat_audit import MAX_BYTES, append_audit, audit_of, audit_path
from pytest_gittrix.orchestrator.flat_files import (
    changes_of,
    check_id,
    orchestrator_id,
    parse,
    prefix_of,
    raw_status,
    read,
    release,
    render,
    reserve,
    retire,
    session_of,
    sessions,
    tidy,
    update,
    values_of,
)
from pytest_gittrix.views.orchestrator import record

FORK = multiprocessing.get_context("fork")


# The text ----------------------------------------------------------------------------------------------------------------------


def test_the_first_equals_sign_splits_and_comments_are_passed_over() -> None:
    text = "# a comment\nurl = https://x/?a=b\n\n  status=working  \nnonsense\n=nothing\n#k=v\nempty=\nstatus=stuck\r\n"

    assert parse(text) == {"url": "https://x/?a=b", "status": "stuck"}


def test_a_key_whose_last_value_is_empty_is_not_there() -> None:
    assert parse("pr=1\npr=\n") == {}


def test_a_line_ends_at_either_sign_for_it() -> None:
    assert parse("a=1\rb=2\r\nc=3") == {"a": "1", "b": "2", "c": "3"}


def test_what_is_written_is_one_line_a_key() -> None:
    assert render({"a": "b=c", "prompt": "one\r\n\r\ntwo\n", "gone": "", "blank": " \n "}) == "a=b=c\nprompt=one two\n"


@pytest.mark.parametrize("key", ["", "a=b", "#a", " a", "a ", "a\nb", "a\rb"])
def test_a_key_that_could_not_be_read_back_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be a key"):
        render({key: "v"})


@pytest.mark.parametrize(
    ("raw", "document", "head"),
    [
        ("stuck", "stuck", "stuck"),
        ("starting", "working", "working"),
        ("detecting", "spawning", "detecting"),
        ("dancing", "spawning", "spawning"),
        ("", "spawning", "spawning"),
        (None, "spawning", "spawning"),
    ],
)
def test_a_status_that_there_is_not_is_spawning(raw: str | None, document: str, head: str) -> None:
    assert (raw_status(raw), raw_status(raw, dialect="head")) == (document, head)


# The files ---------------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_and_what_is_not_named_stays(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "app-1"

    assert read(path) is None
    assert update(path, {"status": "working", "pr": "x", "note": "n"}) == {"status": "working", "pr": "x", "note": "n"}
    assert update(path, {"status": "stuck", "pr": "", "note": None}) == {"status": "stuck"} == read(path)
    assert path.read_text() == "status=stuck\n"
    assert sorted(os.listdir(path.parent)) == [".lock", "app-1"]


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_a_reservation_and_no_session(tmp_path: Path, text: str) -> None:
    (tmp_path / "app-1").write_text(text)

    assert read(tmp_path / "app-1") is None
    assert sessions(tmp_path) == {}


def test_the_sessions_of_a_directory_are_its_files(tmp_path: Path) -> None:
    for name, text in (("app-2", "status=x\n"), ("app-1", "a=1\n"), ("app-3", ""), (".app-4.tmp", "a=1"), ("no.id", "a=1")):
        (tmp_path / name).write_text(text)
    (tmp_path / "archive").mkdir()
    (tmp_path / "worktrees").mkdir()

    assert sessions(tmp_path) == {"app-1": {"a": "1"}, "app-2": {"status": "x"}}
    assert sessions(tmp_path / "missing") == {}


@pytest.mark.parametrize("raw", [b"\x00\xff\xfe=\xe9\n", b"status", b"\xff" * 5000, b"=\n=\n", b"a\x00=b"])
def test_nonsense_in_a_file_is_no_exception(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "app-1").write_bytes(raw)
    values = read(tmp_path / "app-1")

    assert values is not None
    assert session_of("app-1", values, modified_ns=at(0))["status"] == "spawning"


def test_bytes_that_are_no_text_survive_an_update(tmp_path: Path) -> None:
    (tmp_path / "app-1").write_bytes(b"worktree=/w/\xe9\n")
    update(tmp_path / "app-1", {"status": "working"})

    assert (tmp_path / "app-1").read_bytes() == b"worktree=/w/\xe9\nstatus=working\n"


def test_a_file_that_cannot_be_read_is_an_error_with_a_type(tmp_path: Path) -> None:
    (tmp_path / "app-1").mkdir()
    with pytest.raises(AdapterUnavailable, match="app-1 cannot be read"):
        read(tmp_path / "app-1")
    with pytest.raises(AdapterUnavailable):
        update(tmp_path / "app-1", {"a": "b"})
    with pytest.raises(InvalidInput, match="it is no byte"):
        update(tmp_path / "app-2", {"a": "\ud800"})
    assert sorted(name for name in os.listdir(tmp_path) if not name.startswith(".lock")) == ["app-1"]


def test_what_several_processes_change_at_once_is_all_there(tmp_path: Path) -> None:
    path = tmp_path / "app-1"
    started = FORK.Barrier(4)

    def change(number: int) -> None:
        started.wait(60)
        for count in range(25):
            update(path, {f"k{number}_{count}": str(count)})

    _together(change, 4)
    assert read(path) == {f"k{number}_{count}": str(count) for number in range(4) for count in range(25)}


# A session and its file --------------------------------------------------------------------------------------------------------


def test_a_session_comes_back_from_its_file_as_far_as_it_goes(tmp_path: Path) -> None:
    session = Watched(issue="#42", agent="claude", agent_session="uuid-1", branch="session/app-1", tmux_session="app-1")
    session.tell(1, "runtime.observed", state="alive", pid=7, start_time=12)
    session.tell(2, "pr.observed", state="open", number=9, url="https://github.com/acme/app/pull/9", owner="acme", repo="app")
    session.tell(2, "pr.observed", state="open", branch="session/app-1")
    session.tell(3, "history_compaction", range={"to_seq": 1}, summary="Mended\nthe login")
    session.tell(4, "session.restored")
    update(tmp_path / "app-1", values_of(session.events))
    row = record(session.events)

    assert row["agentInfo"]["summary"] == "Mended\nthe login"
    row["agentInfo"]["summary"] = "Mended the login"
    assert session_of("app-1", read(tmp_path / "app-1") or {}, modified_ns=0) == row


def test_a_file_of_the_original_is_a_session() -> None:
    values = parse(
        "worktree=/w/app-1\nbranch=feat/x\nstatus=starting\nproject=app\nissue=https://github.com/acme/app/issues/3\n"
        "pr=https://github.com/acme/app/pull/12\ntmuxName=ao-app-1\nsummary=Mends it\ncreatedAt=2030-01-01T01:00:00+01:00\ncustom=tag\n"
    )

    assert session_of("app-1", values, modified_ns=at(5)) == {
        "id": "app-1",
        "projectId": "app",
        "status": "working",
        "activity": None,
        "branch": "feat/x",
        "issueId": "https://github.com/acme/app/issues/3",
        "pr": {
            "number": 12,
            "url": "https://github.com/acme/app/pull/12",
            "title": "",
            "owner": "acme",
            "repo": "app",
            "branch": "feat/x",
            "baseBranch": "",
            "isDraft": False,
        },
        "workspacePath": "/w/app-1",
        "runtimeHandle": {"id": "ao-app-1", "runtimeName": "tmux", "data": {}},
        "agentInfo": {"summary": "Mends it", "agentSessionId": None},
        "createdAt": "2030-01-01T00:00:00.000Z",
        "lastActivityAt": "2030-01-01T00:05:00.000Z",
        "metadata": {"custom": "tag"},
    }


@pytest.mark.parametrize("handle", ["{", "[]", '{"id": 3}', "null", "[" * 5000])
def test_a_handle_that_makes_no_sense_is_none(handle: str) -> None:
    imported = session_of("app-1", {"runtimeHandle": handle, "createdAt": "yesterday", "restoredAt": "soon"}, modified_ns=at(5))

    assert imported["runtimeHandle"] is None
    assert imported["createdAt"] == "2030-01-01T00:05:00.000Z"
    assert "restoredAt" not in imported


# Ids ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("project", "prefix"),
    [
        *(("app", "app"), ("API1", "api1"), ("a.b", "a-b"), ("a-", "a")),
        *(("MyCoolApp", "mca"), ("agentOrchestrator", "age"), ("my-cool-app", "mca"), ("my_cool_app", "mca"), ("frontend", "fro")),
        *(("my.cool.app", "mca"), ("x-----", "x")),
    ],
)
def test_a_prefix_is_short(project: str, prefix: str) -> None:
    assert check_id(prefix_of(project)) == prefix


@pytest.mark.parametrize("project", ["", "-app", ".app", "a/b", "a b", "a" * 129, "ä"])
def test_a_project_that_cannot_be_called_so_is_named(project: str) -> None:
    with pytest.raises(InvalidInput, match="is not the id of a project"):
        prefix_of(project)


@pytest.mark.parametrize("id", ["", "a.b", "a/b", "../x", "a b", "archive", "a\n"])
def test_what_is_no_id_is_refused(id: str, tmp_path: Path) -> None:
    for ask in (check_id, lambda id: reserve(tmp_path, id), lambda id: retire(tmp_path, id), lambda id: audit_path(tmp_path, id)):
        with pytest.raises(InvalidInput, match="is not the id of a session"):
            ask(id)
    assert os.listdir(tmp_path) == []


def test_the_next_number_is_one_more_than_any_that_was_taken(tmp_path: Path) -> None:
    assert orchestrator_id("app") == "app-orchestrator"
    assert reserve(tmp_path / "s", "app") == "app-1"
    assert reserve(tmp_path / "s", "app", ["session/app-6", "origin/session/my-app-9", "session/app-x", "main"]) == "app-7"
    (tmp_path / "s" / "app-9.json").touch()
    assert reserve(tmp_path / "s", "app") == "app-10"
    assert reserve(tmp_path / "s", "my-app") == "my-app-1"
    assert read(tmp_path / "s" / "app-10") is None


def test_the_id_of_a_session_is_never_used_again(tmp_path: Path) -> None:
    update(tmp_path / reserve(tmp_path, "app"), {"status": "killed"})

    assert not release(tmp_path, "app-1")
    assert retire(tmp_path, "app-1")
    assert not retire(tmp_path, "app-1")
    assert sessions(tmp_path) == {}
    assert reserve(tmp_path, "app") == "app-2"
    assert release(tmp_path, "app-2")
    assert not release(tmp_path, "app-2")
    assert reserve(tmp_path, "app") == "app-2"


def test_an_id_that_comes_and_goes_while_somebody_counts_is_taken_all_the_same(tmp_path: Path) -> None:
    def meanwhile() -> Iterator[str]:
        update(tmp_path / reserve(tmp_path, "app"), {"status": "killed"})
        assert retire(tmp_path, "app-1")
        yield from ()

    assert reserve(tmp_path, "app", meanwhile()) == "app-2"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file() and path.name != ".lock") == ["app-2"]


def test_what_is_in_the_archive_already_stays(tmp_path: Path) -> None:
    for status in ("killed", "done", "errored"):
        update(tmp_path / "app-1", {"status": status})
        assert retire(tmp_path, "app-1")

    found = {path.name: read(path) for path in (tmp_path / "archive").iterdir()}
    assert found == {"app-1": {"status": "killed"}, "app-1.2": {"status": "done"}, "app-1.3": {"status": "errored"}}
    assert reserve(tmp_path, "app") == "app-2"


def test_where_there_is_no_directory_there_is_nothing_to_let_go(tmp_path: Path) -> None:
    assert not release(tmp_path / "none", "app-1")
    assert not retire(tmp_path / "none", "app-1")
    assert os.listdir(tmp_path) == []


def test_a_path_with_a_null_byte_is_refused() -> None:
    asks: list[Callable[[str], object]] = [
        *(read, sessions, lambda path: update(path, {}), lambda path: reserve(path, "app"), lambda path: release(path, "app-1")),
        *(lambda path: retire(path, "app-1"), lambda path: append_audit(path, "app-1", {})),
    ]
    for ask in asks:
        with pytest.raises(InvalidInput, match="null byte"):
            ask("/tmp/a\0b")


def test_what_an_update_takes_away_is_what_the_log_could_tell() -> None:
    session = Watched(issue="7")
    session.tell(1, "report.submitted", report="working", accepted=True)
    changes = changes_of(session.events)

    assert {key: value for key, value in changes.items() if value is not None} == values_of(session.events)
    assert {key for key, value in changes.items() if value is None} >= {"pr", "restoredAt", "agentReportedNote", "summary"}
    assert [*changes][-1] == "work_unit"


def test_what_a_killed_writer_left_is_tidied_up(tmp_path: Path) -> None:
    update(tmp_path / "app-1", {"status": "working"})
    (tmp_path / ".app-1.7-8.tmp").write_text("status=wor")

    assert tidy(tmp_path) == [".app-1.7-8.tmp"]
    assert tidy(tmp_path) == tidy(tmp_path / "none") == []
    assert read(tmp_path / "app-1") == {"status": "working"}


def test_what_a_file_says_already_is_not_written_again(tmp_path: Path) -> None:
    update(tmp_path / "app-1", {"status": "working"})
    (tmp_path / "app-1").write_text("# by hand\nstatus=working\n")
    update(tmp_path / "app-1", {"status": "working", "pr": None})

    assert (tmp_path / "app-1").read_text() == "# by hand\nstatus=working\n"


def test_no_two_processes_ever_reserve_the_same_id(tmp_path: Path) -> None:
    started = FORK.Barrier(4)
    mine = tmp_path / "mine"
    mine.mkdir()

    def take(number: int) -> None:
        started.wait(60)
        taken = [reserve(tmp_path / "s", "app") for _ in range(25)]
        (mine / str(number)).write_text("\n".join(taken))

    _together(take, 4)
    taken = [id for file in mine.iterdir() for id in file.read_text().split()]
    assert sorted(taken, key=lambda id: int(id[4:])) == [f"app-{number}" for number in range(1, 101)]


def _together(work: Any, count: int) -> None:
    """Run ``work`` in several processes at once."""
    processes = [FORK.Process(target=work, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * count


# The audit ---------------------------------------------------------------------------------------------------------------------


def entry(number: int = 0, **other: Any) -> dict[str, Any]:
    """An entry as a file has it."""
    snapshot = {"legacyStatus": "working", "sessionState": "working", "sessionReason": "task_in_progress", "lastTransitionAt": None}
    report = {"timestamp": format_instant(instant_at(at(number))), "actor": "agent", "source": "report", "reportState": "working"}
    return {**report, "accepted": True, "before": snapshot, "after": snapshot, **other}


def test_every_attempt_is_in_the_audit_with_what_was_then() -> None:
    session = Watched()
    session.tell(1, "report.submitted", report="started", accepted=True, note="hello")
    session.decided(2, "working", "agent_acknowledged")
    session.tell(3, "report.submitted", report="merged", accepted=False, reason="It is seen.")
    session.decided(4, "done", "research_complete")
    working = {"legacyStatus": "working", "sessionState": "working", "sessionReason": "agent_acknowledged"}

    refused, started = audit_of(session.events)
    assert refused == {
        "timestamp": "2030-01-01T00:03:00.000Z",
        "actor": "system",
        "source": "report",
        "reportState": "merged",
        "accepted": False,
        "rejectionReason": "It is seen.",
        **{key: {**working, "lastTransitionAt": "2030-01-01T00:02:00.000Z"} for key in ("before", "after")},
    }
    assert (started["source"], started["note"], started["accepted"]) == ("acknowledge", "hello", True)
    assert started["before"]["legacyStatus"] == "spawning"


def test_what_is_appended_is_read_newest_first(tmp_path: Path) -> None:
    assert filed_audit(tmp_path, "app-1") == []
    for number in range(3):
        append_audit(tmp_path, "app-1", entry(number))

    assert filed_audit(tmp_path, "app-1") == [entry(2), entry(1), entry(0)]
    assert audit_path(tmp_path, "app-1") == tmp_path / ".agent-report-audit" / "app-1.ndjson"


def test_the_newest_two_hundred_stay(tmp_path: Path) -> None:
    path = audit_path(tmp_path, "app-1")
    append_audit(tmp_path, "app-1", entry(0))
    path.write_text(path.read_text() * 220)
    append_audit(tmp_path, "app-1", entry(1))

    assert len(filed_audit(tmp_path, "app-1")) == 200
    assert filed_audit(tmp_path, "app-1")[0] == entry(1)


def test_no_more_than_256_kilobytes_stay_and_the_newest_does(tmp_path: Path) -> None:
    for number in range(7):
        append_audit(tmp_path, "app-1", entry(number, note="x" * 60_000))
    assert [one["timestamp"][14:16] for one in filed_audit(tmp_path, "app-1")] == ["06", "05", "04", "03"]
    assert audit_path(tmp_path, "app-1").stat().st_size <= MAX_BYTES

    append_audit(tmp_path, "app-1", entry(9, note="x" * MAX_BYTES))
    assert len(filed_audit(tmp_path, "app-1")) == 1


def test_a_damaged_line_stays_and_the_next_entry_is_appended(tmp_path: Path) -> None:
    append_audit(tmp_path, "app-1", entry(0))
    path = audit_path(tmp_path, "app-1")
    with path.open("ab") as file:
        file.write(b"\xff\xfe\n{\n")
    before = path.read_bytes()
    append_audit(tmp_path, "app-1", entry(1))

    assert path.read_bytes().startswith(before)
    assert json.loads(path.read_bytes().splitlines()[-1]) == entry(1)


def test_an_entry_that_is_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not JSON"):
        append_audit(tmp_path, "app-1", {"when": object()})
    assert not audit_path(tmp_path, "app-1").exists()


def test_what_several_processes_append_is_all_there(tmp_path: Path) -> None:
    started = FORK.Barrier(4)

    def append(number: int) -> None:
        started.wait(60)
        for count in range(20):
            append_audit(tmp_path, "app-1", entry(note=f"{number}-{count}"))

    _together(append, 4)
    notes = [one["note"] for one in filed_audit(tmp_path, "app-1")][::-1]
    assert [[note for note in notes if note.startswith(f"{n}-")] for n in range(4)] == [[f"{n}-{c}" for c in range(20)] for n in range(4)]
