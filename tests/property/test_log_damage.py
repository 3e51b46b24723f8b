"""Every way one log of everything can be cut or spoilt by a bit: nothing is read that was not written, and what is left can go on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pytest_gittrix.errors import InvalidInput, LogDamaged
from pytest_gittrix.record.eventlog.events import Event, Scan, path_fields
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.state.fold import Policy, fold
from pytest_gittrix.record.store.store import Store

NOW = 1_893_456_000_000_000_000
STREAM = "sess_a"
SHA, OTHER = "c" * 40, "d" * 40

CREATED: Mapping[str, Any] = {
    "task": "répare ça", "durable_ref": "local:///r", **path_fields("/r\udce9", "durable_path"), "durable_branch": "main", "baseline": SHA,
    "ephemeral_ref": "local:///w", "workspace": "/w", "workspace_kind": "clone", "git_backed": True, "policy": Policy().to_data(),
    "format": "sha1",
}  # fmt: skip
INTENT: Mapping[str, Any] = {"commit": OTHER, "parent": SHA, "ref": "refs/heads/main", "tree": SHA, "paths_digest": "d", "count": 2}

HISTORY: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("session.created", CREATED),
    ("workspace.ready", {"path": "/w"}),
    ("user_message", {"text": 'Two\nlines, "quotes", \\ and \N{SNOWMAN}', "metadata": {"n": 1.5, "deep": [None, True, {}]}}),
    ("turn.started", {"turn": "t1", "runs": "process"}),
    ("tool_call", {"call_id": "c1", "name": "grep", "args": {"pattern": "\x00\x7f"}}),
    ("session.write", {**path_fields("src/\udcff"), "op": "write"}),
    ("tool_result", {"call_id": "c1", "ok": True, "output": ""}),
    ("session.commit", {"sha": SHA, "message": ""}),
    ("assistant_message", {"text": "done"}),
    ("turn.ended", {"turn": "t1", "status": "done"}),
    ("session.extended", {"ttl_idle_ns": None}),
    ("session.activity", {"observed_ns": NOW - 1}),
    ("step.started", {"step": "build"}),
    ("step.completed", {"step": "build", "outcome": "done"}),
    ("session.accessed", {}),
    ("promote.intent", INTENT),
    ("promote.done", {"commit": OTHER, "ref": "refs/heads/main", "branch": "main", "strategy": "commit"}),
    ("worktree.updated", {"commit": OTHER}),
    ("workspace.removed", {}),
    ("session.ended", {"state": "promoted", "outcome": "done"}),
)


def written(path: Path) -> list[Event]:
    """Write the history of 20 events; gives them."""
    log = EventLog(path, STREAM, durability="fast")
    return [log.append(type, data, ts=NOW + 1000 * place, actor="agent") for place, (type, data) in enumerate(HISTORY)]


def starts_of(raw: bytes) -> list[int]:
    """The byte at which each line begins."""
    lines = raw.split(b"\n")[:-1]
    return [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is; no file yet."""
    return tmp_path / "events.jsonl"


def test_the_history_is_one_that_can_have_happened(path: Path) -> None:
    events = written(path)
    assert len(events) == 20
    assert len({event.type for event in events}) == 20
    assert fold(EventLog(path, STREAM).read("strict")).state == "promoted"


def test_cut_at_any_byte_a_log_is_read_up_to_the_cut_mended_and_continued(path: Path) -> None:
    events = written(path)
    raw = path.read_bytes()
    ends = [*starts_of(raw), len(raw)]
    for length in range(len(raw) + 1):
        path.write_bytes(raw[:length])
        whole = max(count for count, end in enumerate(ends) if end <= length)
        torn = length - ends[whole]
        log = EventLog(path, STREAM, durability="fast")
        assert log.read() == log.read("skip") == events[:whole]
        if torn:
            with pytest.raises(LogDamaged, match=f"in line {whole + 1}, at byte {ends[whole]}: It is cut short"):
                log.read("strict")
        else:
            assert log.read("strict") == events[:whole]

        added = log.append("durable.moved", {"ref": "r", "old": SHA, "new": OTHER}, ts=NOW)
        again = EventLog(path, STREAM).read("strict")
        recovered = [(whole, "log.recovered", {"dropped_bytes": torn})] if torn and whole else []
        assert again[:whole] == events[:whole]
        assert [(event.seq, event.type, event.data) for event in again[whole:]] == [*recovered, (added.seq, added.type, added.data)]
        assert added.seq == whole + len(recovered)


def first_fault(found: Scan) -> tuple[int, int]:
    """The line and the byte of the first thing that cannot be believed."""
    if found.damaged:
        return found.damaged[0].line, found.damaged[0].offset
    assert found.torn
    return found.end.seq + 1, found.end.offset


@pytest.mark.parametrize("bit", range(8))
def test_with_any_bit_flipped_nothing_is_read_that_was_not_written(path: Path, bit: int) -> None:
    events = written(path)
    raw = path.read_bytes()
    starts = starts_of(raw)
    log = EventLog(path, STREAM)
    file = os.open(path, os.O_RDWR)
    for place, byte in enumerate(raw):
        line = sum(start <= place for start in starts) - 1
        os.pwrite(file, bytes([byte ^ 1 << bit]), place)
        with pytest.raises(LogDamaged, match=f"in line {line + 1}, at byte {starts[line]}: "):
            log.read("strict")
        # What ends a line belongs to two of them, save the last.
        lost = {line, min(line + 1, 19)} if byte == ord("\n") else {line}
        found = log.salvage()
        assert found.events == [event for event in events if event.seq not in lost]
        assert first_fault(found) == (line + 1, starts[line])
        if not bit:  # it is salvage() once more, so one bit of each byte will do
            assert log.read("skip") == found.events
        os.pwrite(file, bytes([byte]), place)
    os.close(file)
    assert log.read("strict") == events


def test_a_flipped_bit_is_passed_over_as_torn_only_in_the_last_line(path: Path) -> None:
    events = written(path)
    raw = path.read_bytes()
    starts = starts_of(raw)
    for line, start in enumerate(starts):
        spoilt = bytearray(raw)
        spoilt[start + 30] ^= 1
        path.write_bytes(spoilt)
        log = EventLog(path, STREAM, durability="fast")
        if line == 19:
            assert log.read() == events[:19]
            continue
        for act in (log.read, lambda log=log: log.append("session.accessed", {}, ts=NOW), lambda log=log: log.repair(ts=NOW)):
            with pytest.raises(LogDamaged, match=f"in line {line + 1}, "):
                act()
        assert path.read_bytes() == spoilt


def test_a_session_whose_log_is_damaged_can_still_be_looked_at(tmp_path: Path) -> None:
    store = Store(tmp_path / "sessions", durability="fast")
    path = store.create(STREAM) / "events.jsonl"
    written(path)
    raw = path.read_bytes()
    whole = store.load(STREAM)
    for line, start in enumerate(starts_of(raw)):
        spoilt = bytearray(raw)
        spoilt[start + 30] ^= 1
        path.write_bytes(spoilt)
        if line == 0:
            with pytest.raises(LogDamaged, match=r"begins with 'workspace\.ready'"):
                store.load(STREAM, policy="skip")
            continue
        state = store.load(STREAM, policy="skip")
        # Where the promotion's end is lost, the session's cannot have happened.
        end = 18 if line in (16, 19) else 19
        assert (state.id, state.task, state.seq) == (whole.id, whole.task, end)
        assert state.state == ("active" if line == 16 else "promoted")
        assert (state.commits == [SHA]) == (line != 7)
        with pytest.raises(LogDamaged):
            store.load(STREAM, policy="strict")
    path.write_bytes(raw)
    assert store.load(STREAM, policy="skip") == store.load(STREAM, policy="strict") == whole


def test_reading_past_damage_does_not_count_as_read(path: Path) -> None:
    events = written(path)
    log = EventLog(path, STREAM)
    assert log.read("skip") == events
    assert log.refresh() == events


def test_reading_what_is_not_there_past_damage_gives_nothing(path: Path) -> None:
    assert EventLog(path, STREAM).read("skip") == []
    with pytest.raises(InvalidInput, match="repair-tail, strict, skip"):
        EventLog(path, STREAM).read("lenient")  # type: ignore[arg-type]


# These may come in any order and any number in a session that is active.
anything = st.sampled_from(
    [
        (type, data)
        for type, data in HISTORY
        if type.split(".")[0] not in ("promote", "turn") and type not in ("session.created", "session.ended")
    ]
)


@given(st.lists(anything, max_size=8), st.data())
def test_any_prefix_of_a_log_is_a_log_once_it_is_mended(more: list[tuple[str, Mapping[str, Any]]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(prefix="gittrix-log-") as directory:
        path = Path(directory, "events.jsonl")
        log = EventLog(path, STREAM, durability="fast")
        events = [log.append(type, said, ts=NOW) for type, said in [HISTORY[0], *more]]
        raw = path.read_bytes()
        length = data.draw(st.integers(0, len(raw)), "length")
        path.write_bytes(raw[:length])
        whole = raw[:length].count(b"\n")

        mended = EventLog(path, STREAM, durability="fast").repair(ts=NOW)

        left = EventLog(path, STREAM).read("strict")
        torn = length - sum(len(line) + 1 for line in raw.split(b"\n")[:whole])
        assert (mended is not None) == bool(torn and whole)
        assert left == [*events[:whole], *([mended] if mended else [])]
        assert [event.seq for event in left] == list(range(len(left)))
        if left:
            assert fold(left).seq == len(left) - 1
        assert EventLog(path, STREAM, durability="fast").repair(ts=NOW) is None
