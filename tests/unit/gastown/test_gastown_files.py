"""A store as the files of Gas Town's document: its layout, whole files whatever happens, and readers that pass over what is damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site
from support.gastown import START, TOAST, add, born, events_of, ns_at

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.gastown.files import MARK, Exported, export, read_index, read_town_events
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.metadata import metadata_of
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.faults import SupervisedRun
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.testing.repos.member_witness import everything_below
from pytest_gittrix.views import gastown

FILES = {"app.py": "v1\n"}

MB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two sessions of one chain and one that lives, ids not in the order of their starts."""
    store = Store(tmp_path / "sessions", durability="fast")
    born(store, "zoe", 0, identity={**TOAST, "work_unit": "gt-1"})
    add(store, "zoe", 1, "step.started", step="design", molecule_id="mol-1")
    add(store, "zoe", 2, "step.completed", step="design", outcome="done")
    add(store, "zoe", 3, "handoff.intent", child="amy")
    born(store, "amy", 3, lineage={"parent": "zoe", "relation": "handoff", "chain": "zoe", "root": "zoe"})
    add(store, "zoe", 3, "session.ended", state="discarded", outcome="handoff", successor="amy")
    add(store, "amy", 20, "session.ended", state="discarded", outcome="crash")
    born(store, "max", 10, identity={"agent": "gastown/crew/max", "rig": "gastown", "role": "crew"})
    add(store, "max", 30, "step.started", step="review")
    return store


@pytest.fixture
def town(tmp_path: Path) -> Path:
    """Where to export to; not there yet."""
    return tmp_path / "export" / "gt"


def minute(number: int) -> datetime:
    """So many minutes after the start."""
    return START + timedelta(minutes=number)


def files(root: Path) -> list[str]:
    """Every file below a directory but for the mark of an export."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.name != MARK)


def contents(root: Path) -> dict[str, bytes]:
    """Their bytes."""
    return {name: (root / name).read_bytes() for name in files(root)}


def marked(root: Path) -> None:
    """Make a directory as an export does."""
    root.mkdir(parents=True)
    (root / MARK).touch()


def detail(path: Path) -> dict[str, Any]:
    """A session's file."""
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


# Layout ---------------------------------------------------------------------------------------------------------------------------


def test_the_files_are_those_of_the_document(store: Store, town: Path) -> None:
    assert export(store, town) == Exported(sessions=3, archived=0, events=9, problems=())
    assert files(town) == [".events.jsonl", ".sessions/amy.json", ".sessions/index.jsonl", ".sessions/max.json", ".sessions/zoe.json"]


def indexed(events: list[Event]) -> dict[str, Any]:
    """The fields of a session's record that a line of the index has."""
    return {name: value for name, value in gastown.record(events).items() if name in gastown.INDEX_FIELDS}


def test_the_index_has_a_line_for_each_session_the_oldest_first(store: Store, town: Path) -> None:
    export(store, town)
    lines = (town / ".sessions" / "index.jsonl").read_text("ascii").splitlines()

    assert lines[0] == (
        '{"id":"zoe","agent":"gastown/polecats/Toast","started_at":"2030-01-01T00:00:00Z","work_unit":"gt-1","chain_id":"zoe"}'
    )
    assert [json.loads(line) for line in lines] == [indexed(events_of(store, id)) for id in ("zoe", "amy", "max")]


def test_a_session_has_a_file_with_its_record_and_its_steps(store: Store, town: Path) -> None:
    export(store, town)
    zoe = detail(town / ".sessions" / "zoe.json")

    assert zoe.pop("steps") == [
        {
            "step": "design",
            "molecule_id": "mol-1",
            "outcome": "done",
            "started_at": "2030-01-01T00:01:00Z",
            "ended_at": "2030-01-01T00:02:00Z",
            "first_seq": 2,
            "last_seq": 3,
        }
    ]
    assert zoe == gastown.record(events_of(store, "zoe"))
    assert detail(town / ".sessions" / "max.json")["steps"] == [
        {"step": "review", "started_at": "2030-01-01T00:30:00Z", "first_seq": 2, "last_seq": 2}
    ]
    assert detail(town / ".sessions" / "amy.json")["steps"] == []


def test_a_session_has_a_file_of_all_that_happened_in_it(store: Store, town: Path) -> None:
    add(store, "max", 31, "session.commit", sha="c" * 40, message="first")
    export(store, town)

    assert detail(town / ".sessions" / "max.json")["commits"] == ["c" * 40]


def test_the_event_log_is_of_all_sessions_by_time_then_session_then_place(store: Store, town: Path) -> None:
    export(store, town)
    lines = read_town_events(town / ".events.jsonl")

    assert [(line["ts"][11:16], line["type"], line["payload"].get("session_id")) for line in lines] == [
        ("00:00", "session_start", "zoe"),
        ("00:01", "session_step_started", "zoe"),
        ("00:02", "session_step_completed", "zoe"),
        ("00:03", "session_start", "amy"),
        ("00:03", "handoff", None),
        ("00:03", "session_end", "zoe"),
        ("00:10", "session_start", "max"),
        ("00:20", "session_death", None),
        ("00:30", "session_step_started", "max"),
    ]
    first = (town / ".events.jsonl").read_text("ascii").splitlines()[0]
    assert first == (
        '{"ts":"2030-01-01T00:00:00Z","source":"gt","type":"session_start","actor":"gastown/polecats/Toast",'
        '"payload":{"session_id":"zoe","role":"polecat","topic":"fix the bug","work_unit":"gt-1","cwd":"/w"},"visibility":"feed"}'
    )


def test_a_line_of_the_event_log_names_who_worked_then(store: Store, town: Path) -> None:
    add(store, "max", 31, "session.identified", identity={"agent": "gastown/crew/moe"})
    add(store, "max", 32, "step.completed", step="review")
    export(store, town)

    assert [line["actor"] for line in read_town_events(town / ".events.jsonl") if line["payload"].get("session_id") == "max"] == [
        "gastown/crew/max",
        "gastown/crew/max",
        "gastown/crew/moe",
    ]


def test_an_empty_store_gives_empty_files(tmp_path: Path, town: Path) -> None:
    assert export(Store(tmp_path / "none"), town) == Exported(0, 0, 0, ())
    assert contents(town) == {".events.jsonl": b"", ".sessions/index.jsonl": b""}


def test_sessions_of_the_engine_are_exported(site: Site, town: Path) -> None:
    session = site.start(agent="gastown/polecats/Toast", role="polecat", work_unit="gt-1")
    session.write("app.py", "v2\n")
    site.clock.advance(minutes=5)
    child = session.handoff()
    site.clock.advance(minutes=5)
    child.promote()
    exported = export(site.engine.store, town)

    assert (exported.sessions, exported.problems) == (2, ())
    assert [line["type"] for line in read_town_events(town / ".events.jsonl") if line["ts"] != "2030-01-01T00:05:00Z"] == [
        "session_start",
        "session_end",
    ]
    assert sorted(line["type"] for line in read_town_events(town / ".events.jsonl")[1:4]) == ["handoff", "session_end", "session_start"]
    assert [line["id"] for line in read_index(town / ".sessions" / "index.jsonl")] == [session.id, child.id]
    assert detail(town / ".sessions" / f"{child.id}.json")["outcome"] == "done"


def test_a_session_without_a_log_has_a_record_and_no_events(store: Store, town: Path) -> None:
    record = metadata_of(store.load("max")) | {"id": "old"}
    (store.root / "old").mkdir()
    (store.root / "old" / "metadata.json").write_text(json.dumps(record))
    exported = export(store, town)

    assert (exported.sessions, exported.events, exported.problems) == (4, 9, ())
    assert detail(town / ".sessions" / "old.json") == {
        **gastown.record_of(store.load("old")),
        "steps": [],
    }


def test_a_workspace_whose_name_is_not_utf8_is_written_and_read(store: Store, town: Path) -> None:
    born(store, "odd", 40, ready=False)
    add(store, "odd", 40, "workspace.ready", path_b64="L+k=")
    export(store, town)

    assert detail(town / ".sessions" / "odd.json")["cwd"] == "/\udce9"
    assert read_town_events(town / ".events.jsonl")[-1]["payload"]["cwd"] == "/\udce9"


# Archive --------------------------------------------------------------------------------------------------------------------------


def test_sessions_that_ended_before_go_to_the_archive(store: Store, town: Path) -> None:
    export(store, town)
    exported = export(store, town, archive_before=minute(20))

    assert exported.archived == 1
    assert [name for name in files(town) if name.endswith(".json")] == [
        ".sessions/amy.json",
        ".sessions/archive/zoe.json",
        ".sessions/max.json",
    ]
    assert len(read_index(town / ".sessions" / "index.jsonl")) == 3


def test_a_session_that_lives_is_never_archived(store: Store, town: Path) -> None:
    assert export(store, town, archive_before=minute(10_000)).archived == 2
    assert (town / ".sessions" / "max.json").exists()


def test_a_session_is_in_one_place_whatever_was_exported_before(store: Store, town: Path) -> None:
    export(store, town, archive_before=minute(10_000))
    export(store, town)

    assert [name for name in files(town) if "archive" in name] == []
    assert len(files(town)) == 5


def test_the_bound_of_the_archive_needs_a_time_zone(store: Store, town: Path) -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        export(store, town, archive_before=datetime(2030, 1, 1))
    assert not town.exists()


# Derived --------------------------------------------------------------------------------------------------------------------------


def test_the_same_store_gives_the_same_bytes(store: Store, town: Path, tmp_path: Path) -> None:
    before = everything_below(store.root)
    first = export(store, town, archive_before=minute(10)), contents(town)
    again = export(store, town, archive_before=minute(10)), contents(town)
    export(store, tmp_path / "elsewhere", archive_before=minute(10))

    assert again == first
    assert contents(tmp_path / "elsewhere") == first[1]
    assert everything_below(store.root) == before


@pytest.mark.parametrize("gone", [".", ".sessions", ".events.jsonl", ".sessions/index.jsonl", ".sessions/amy.json"])
def test_what_was_deleted_is_made_again(store: Store, town: Path, gone: str) -> None:
    export(store, town)
    first = contents(town)
    (shutil.rmtree if (town / gone).is_dir() else os.unlink)(town / gone)
    export(store, town)

    assert contents(town) == first


def test_what_was_damaged_is_made_again(store: Store, town: Path) -> None:
    export(store, town)
    first = contents(town)
    for name in first:
        (town / name).write_bytes(first[name][: len(first[name]) // 2] + b"\xff{[")
    told = read_town_events(town / ".events.jsonl")
    export(store, town)

    found = contents(town)
    log = found.pop(".events.jsonl").splitlines()
    assert found == {name: data for name, data in first.items() if name != ".events.jsonl"}
    whole = first[".events.jsonl"].splitlines()
    assert log[: len(told)] == whole[: len(told)]
    assert sorted(line for line in log if not line.endswith(b"\xff{[")) == sorted(whole)


def test_the_event_log_is_appended_to(store: Store, town: Path) -> None:
    export(store, town)
    log = town / ".events.jsonl"
    before, number = log.read_bytes(), log.stat().st_ino
    export(store, town)
    assert log.read_bytes() == before

    add(store, "max", 40, "session.ended", state="discarded", outcome="done")
    export(store, town)

    assert log.read_bytes().startswith(before)
    assert log.stat().st_ino == number
    (line,) = log.read_bytes().removeprefix(before).splitlines()
    assert (json.loads(line)["type"], json.loads(line)["payload"]["session_id"]) == ("session_end", "max")


def test_what_the_event_log_has_of_a_session_stays_when_its_record_is_gone(store: Store, town: Path) -> None:
    export(store, town)
    before = (town / ".events.jsonl").read_bytes()
    shutil.rmtree(store.directory("max"))
    export(store, town)

    assert (town / ".events.jsonl").read_bytes() == before


def test_a_line_that_is_there_twice_is_not_lost(store: Store, town: Path) -> None:
    for _ in range(2):
        add(store, "max", 40, "step.completed", step="review", outcome="done")
    export(store, town)
    (log,) = [data for name, data in contents(town).items() if name == ".events.jsonl"]
    assert max(log.splitlines().count(line) for line in log.splitlines()) == 2
    export(store, town)
    assert (town / ".events.jsonl").read_bytes() == log


def test_the_event_log_is_not_written_through_a_link(store: Store, town: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    marked(town)
    (town / ".events.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(AdapterUnavailable, match=r"events\.jsonl"):
        export(store, town)
    assert (tmp_path / "precious").read_text() == ""


def test_a_session_that_cannot_be_read_is_told_and_stops_no_other(store: Store, town: Path) -> None:
    export(store, town)
    earlier = (town / ".sessions" / "amy.json").read_bytes()
    log = store.directory("amy") / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b"workspace.ready", b"workspace.reedy"))
    (store.root / "bad").mkdir()
    (store.root / "bad" / "metadata.json").write_text("{")
    exported = export(store, town)

    assert [problem.id for problem in exported.problems] == ["amy", "bad"]
    assert "line 2" in exported.problems[0].message
    assert (exported.sessions, exported.events) == (2, 7)
    assert [line["id"] for line in read_index(town / ".sessions" / "index.jsonl")] == ["zoe", "max"]
    assert (town / ".sessions" / "amy.json").read_bytes() == earlier


# Whole files ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
def test_an_export_that_is_killed_anywhere_leaves_whole_files_and_is_done_again(store: Store, town: Path, tmp_path: Path) -> None:
    export(store, town)
    old, begun = contents(town), tmp_path / "begun"
    shutil.copytree(town, begun)
    add(store, "max", 40, "session.ended", state="discarded", outcome="done")
    new = tmp_path / "new"
    export(store, new, archive_before=minute(10))
    wanted = contents(new)

    def reset() -> None:
        shutil.rmtree(town)
        shutil.copytree(begun, town)

    def check(_run: SupervisedRun) -> None:
        found = {name: data for name, data in contents(town).items() if not name.endswith(".tmp")}
        torn = [name for name, data in found.items() if data not in (old.get(name), wanted.get(name))]
        assert torn == []
        assert {Path(name).name for name in found} >= {Path(name).name for name in old}
        export(store, town, archive_before=minute(10))
        assert {name: data for name, data in contents(town).items() if not name.endswith(".tmp")} == wanted

    Crash().sweep(lambda: export(store, town, archive_before=minute(10)), reset, check, kinds=("kill", "ENOSPC"), within=town).verify()


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left_beside_it(store: Store, town: Path) -> None:
    marked(town)
    (town / ".sessions" / "index.jsonl").mkdir(parents=True)

    with pytest.raises(AdapterUnavailable, match=r"index\.jsonl cannot be written"):
        export(store, town)
    assert [name for name in files(town) if name.endswith(".tmp")] == []


def test_an_export_does_not_write_through_a_link(store: Store, town: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    marked(town)
    (town / ".sessions").mkdir()
    (town / ".sessions" / "zoe.json").symlink_to(tmp_path / "precious")
    export(store, town)

    assert (tmp_path / "precious").read_text() == "mine"
    assert detail(town / ".sessions" / "zoe.json")["id"] == "zoe"


# What is a town's own -------------------------------------------------------------------------------------------------------------

OWN: list[dict[str, Any]] = [
    {"type": "sling", "payload": {"bead": "gt-1"}},
    {"type": "mass_death"},
    {"type": "session_start", "payload": {"session_id": "x", "role": "crew", "actor_pid": "crew-12"}},
    {"type": "session_death", "payload": {"session": "gt-x", "caller": "daemon"}},
]


@pytest.mark.parametrize("line", OWN, ids=lambda line: str(line["type"]))
def test_a_log_to_which_a_town_has_written_is_not_replaced(store: Store, town: Path, line: dict[str, Any]) -> None:
    marked(town)
    log = town / ".events.jsonl"
    log.write_text("garbage\n" + json.dumps(line) + "\n")
    before = everything_below(town)

    with pytest.raises(InvalidInput, match=f"'{line['type']}' that no export wrote"):
        export(store, town)
    assert everything_below(town) == before


@pytest.mark.parametrize("name", [".events.jsonl", ".sessions/index.jsonl", ".sessions/gt-x.json", ".sessions/archive/gt-x.json"])
def test_what_no_export_made_is_not_replaced_whatever_is_in_it(store: Store, town: Path, name: str) -> None:
    for text in ("", "garbage\n", json.dumps({"type": "session_start", "id": "gt-x"}) + "\n"):
        (town / name).parent.mkdir(parents=True, exist_ok=True)
        (town / name).write_text(text)
        before = everything_below(town)

        with pytest.raises(InvalidInput, match="no export made it"):
            export(store, town)
        assert everything_below(town) == before


def test_other_files_in_the_directory_stay(store: Store, town: Path) -> None:
    town.mkdir(parents=True)
    (town / "notes").write_text("mine")
    export(store, town)
    export(store, town)

    assert (town / "notes").read_text() == "mine"
    assert len(read_index(town / ".sessions" / "index.jsonl")) == 3


# Readers --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_index, read_town_events])
def test_a_missing_file_has_no_lines(tmp_path: Path, read: Callable[[Path], list[dict[str, Any]]]) -> None:
    (tmp_path / "file").touch()

    assert read(tmp_path / "none") == []
    assert read(tmp_path / "file") == []
    assert read(tmp_path / "file" / "below") == []


@pytest.mark.parametrize("read", [read_index, read_town_events])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, read: Callable[[Path], list[dict[str, Any]]]) -> None:
    with pytest.raises(AdapterUnavailable, match="cannot be read"):
        read(tmp_path)


GARBAGE = [
    b"",
    b"   ",
    b"garbage",
    b"{",
    b'{"id":"x","type":"x"',
    b'{"id":"x","type":"x"}{"id":"y","type":"y"}',
    b"[1]",
    b'"x"',
    b"null",
    b'{"id":1,"type":1}',
    b"{}",
    b'{"id":"\xff","type":"\xff"}',
    b"[" * 200_000,
    b'{"id":"x","type":"x","n":' + b"9" * 10_000 + b"}",
    b'{"id":"x","type":"x","pad":"' + b"." * MB + b'"}',
    b'{"id":"x","type":"x","pad":"' + b"." * (3 * MB) + b'"}',
    b"." * (MB + 1) + b'{"id":"x","type":"x"}',
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda line: repr(line[:24]) + str(len(line)))
@pytest.mark.parametrize("where", ["first", "between", "last", "torn"])
def test_a_line_that_is_none_is_passed_over(tmp_path: Path, garbage: bytes, where: str) -> None:
    lines = [b'{"id":"a","type":"a"}', b'{"id":"b","type":"b"}']
    lines.insert({"first": 0, "between": 1}.get(where, 2), garbage)
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"" if where == "torn" else b"\n"))

    assert [line["id"] for line in read_index(path)] == ["a", "b"]
    assert [line["type"] for line in read_town_events(path)] == ["a", "b"]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_line_may_be_as_long_as_a_town_reads(tmp_path: Path, end: str) -> None:
    line = '{"id":"a","pad":"%s"}'
    path = tmp_path / "index.jsonl"
    for size, seen in ((MB, 1), (MB + 1, 0)):
        text = line % ("." * (size - len(line % "") - end.count("\r")))
        path.write_text(text + end, newline="")
        assert len(read_index(path)) == seen


def test_of_several_lines_of_a_session_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    path.write_text('{"id":"a","agent":"x"}\n{"id":"b"}\n{"id":"a","outcome":"done"}\n')

    assert read_index(path) == [{"id": "a", "outcome": "done"}, {"id": "b"}]


def test_an_end_that_was_never_set_is_none(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    path.write_text('{"id":"a","ended_at":"0001-01-01T00:00:00Z"}\n{"id":"b","ended_at":"2030-01-01T00:00:00Z"}\n')

    assert read_index(path) == [{"id": "a"}, {"id": "b", "ended_at": "2030-01-01T00:00:00Z"}]


def test_every_event_of_a_town_is_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / ".events.jsonl"
    path.write_text('{"ts":"2","type":"sling"}\n{"ts":"1","type":"session_start"}\n{"ts":"2","type":"sling"}\n')

    assert [line["type"] for line in read_town_events(path)] == ["sling", "session_start", "sling"]


def test_an_export_is_read_as_it_was_meant(store: Store, town: Path) -> None:
    export(store, town)
    ids = ["zoe", "amy", "max"]

    assert read_index(town / ".sessions" / "index.jsonl") == [indexed(events_of(store, id)) for id in ids]
    assert len(read_town_events(town / ".events.jsonl")) == 9
    assert gastown.activity(ns_at(30), ns_at(36)) == "yellow"
