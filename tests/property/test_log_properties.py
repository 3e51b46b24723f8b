"""Histories nobody thought of: the log against a plain list, the fold in pieces, the index against one built from nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, note
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytest_gittrix.errors import LogDamaged
from pytest_gittrix.record.eventlog.events import ACTORS, VOCABULARY, Event, decode, encode, path_fields, path_of, scan
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.state.fold import Policy, SessionState, deadline_ns, fold, metadata_of, state_from_metadata
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store

NOW = 1_893_456_000_000_000_000
STREAM = "sess_a"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
micros = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
events = st.builds(
    Event,
    seq=st.integers(0, 2**63),
    ts=micros.map(lambda us: us * 1000),
    stream=text,
    type=st.sampled_from(sorted(VOCABULARY)),
    actor=st.sampled_from(ACTORS),
    data=st.dictionaries(text, json_values, max_size=4),
)
any_path = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


# Lines -----------------------------------------------------------------------------------------------------------------------------


@given(events)
def test_any_event_is_one_line_and_comes_back_as_it_was(event: Event) -> None:
    line = encode(event)
    assert b"\n" not in line
    assert decode(line) == event
    assert encode(decode(line)) == line


@given(any_path)
def test_any_path_comes_back_through_an_event(path: str) -> None:
    event = Event(0, 0, "s", "session.write", "agent", {**path_fields(path), "op": "write"})
    assert path_of(decode(encode(event)).data) == path


@given(st.binary(max_size=200))
def test_no_other_bytes_are_taken_for_an_event(raw: bytes) -> None:
    for line in raw.split(b"\n"):
        try:
            decode(line)
        except LogDamaged:
            continue
        raise AssertionError(line)


@given(st.data())
def test_whatever_is_done_to_its_bytes_a_log_never_says_what_was_not_written(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6), "events")
    lines = [encode(Event(seq, NOW, STREAM, "session.accessed", "agent", {"op": str(seq)})) + b"\n" for seq in range(count)]
    raw = bytearray(b"".join(lines))
    written = scan(bytes(raw), STREAM).events
    for _ in range(data.draw(st.integers(0, 4), "edits")):
        place = data.draw(st.integers(0, len(raw)), "place")
        length = data.draw(st.integers(0, 300), "length")
        raw[place : place + length] = data.draw(st.binary(max_size=40) | st.sampled_from(lines), "new bytes")
    found = scan(bytes(raw), STREAM)
    assert all(event in written for event in found.events)
    assert [event.seq for event in found.events] == sorted({event.seq for event in found.events})
    assert found.events[: found.end.seq] == written[: found.end.seq]
    assert raw[: found.end.offset] == b"".join(lines)[: found.end.offset]
    if not found.damaged:
        assert found.end.offset + found.torn == len(raw)


# A log that several write, and that is torn now and then ------------------------------------------------------------------------------


class LogMachine(RuleBasedStateMachine):
    """Two writers that take turns, a reader that is never told anything, and kills in the middle of an append."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="gittrix-log-"))
        self.path = self.directory / "events.jsonl"
        self.writers = [EventLog(self.path, STREAM, durability="fast") for _ in range(2)]
        self.reader = EventLog(self.path, STREAM)
        self.written: list[Event] = []
        self.seen: list[Event] = []
        self.torn = b""
        self.kept = b""

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    def _recovered(self) -> None:
        """What an append or a repair adds first when the end is torn."""
        if self.torn and self.written:
            data = {"dropped_bytes": len(self.torn)}
            self.written.append(Event(len(self.written), NOW, STREAM, "log.recovered", "system", data))
        self.torn = b""

    @rule(who=st.integers(0, 1), path=any_path)
    def append(self, who: int, path: str) -> None:
        self._recovered()
        event = self.writers[who].append("session.write", {**path_fields(path), "op": "write"}, ts=NOW, actor="agent")
        self.written.append(event)
        assert event.seq == len(self.written) - 1

    @rule(size=st.integers(1, 200))
    def killed_while_appending(self, size: int) -> None:
        line = encode(Event(len(self.written), NOW, STREAM, "session.accessed", "agent", {})) + b"\n"
        piece = line[: min(size, len(line) - 1)]
        if not self.torn:  # whoever writes next repairs before it writes
            with self.path.open("ab") as file:
                file.write(piece)
            self.torn = piece

    @rule(who=st.integers(0, 1))
    def repair(self, who: int) -> None:
        expected = bool(self.torn and self.written)
        self._recovered()
        event = self.writers[who].repair(ts=NOW)
        assert (event is not None) == expected

    @rule()
    def look(self) -> None:
        self.seen += self.reader.refresh()
        assert self.seen == self.written

    @rule(who=st.integers(0, 1))
    def reopen(self, who: int) -> None:
        self.writers[who] = EventLog(self.path, STREAM, durability="fast")

    @precondition(lambda self: self.written)
    @rule()
    def damage_is_noticed_and_undone(self) -> None:
        whole = self.path.read_bytes()
        self.path.write_bytes(b"?" + whole[1:] + b"tail\n")
        try:
            EventLog(self.path, STREAM).read()
        except LogDamaged:
            pass
        else:
            raise AssertionError("damage went unnoticed")
        finally:
            self.path.write_bytes(whole)

    @invariant()
    def the_log_is_what_was_written(self) -> None:
        found = EventLog(self.path, STREAM).salvage()
        assert found.events == self.written
        assert (found.damaged, found.torn) == ((), len(self.torn))

    @invariant()
    def what_was_stored_is_never_changed(self) -> None:
        raw = self.path.read_bytes() if self.path.exists() else b""
        assert raw.startswith(self.kept)
        self.kept = raw[: len(raw) - len(self.torn)]


TestLogMachine = LogMachine.TestCase


# The fold ------------------------------------------------------------------------------------------------------------------------------

MINUTE = 60_000_000_000
limits = st.none() | st.integers(1, 300).map(lambda minutes: minutes * MINUTE)
policies = st.builds(Policy, limits, limits, st.booleans(), st.booleans())
paths = st.sampled_from(["a", "b/c", "é", "\udcff"])
shas = st.sampled_from(["c" * 40, "d" * 40])


def _event(type: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.fixed_dictionaries(fields).map(lambda data: (type, data))


def _says(value: Any) -> st.SearchStrategy[Any]:
    return st.just(value)


steps = st.one_of(
    _event("workspace.ready", path=_says("/w")),
    _event("session.accessed"),
    st.tuples(_says("session.write"), paths.map(lambda path: {**path_fields(path), "op": "write"})),
    _event("session.commit", sha=shas, message=text),
    _event("session.extended", ttl_idle_ns=limits),
    _event("session.relocated", durable_ref=text, durable_path=text),
    _event("session.activity", observed_ns=st.integers(-100, 1000).map(lambda minutes: NOW + minutes * MINUTE)),
    _event(
        "promote.intent",
        commit=shas, parent=shas, ref=text, tree=shas, paths_digest=text, count=st.integers(0, 9), owner=_says({}),
    ),
    _event("promote.done", commit=shas, ref=text, branch=text, strategy=st.sampled_from(["commit", "branch"])),
    _event("promote.aborted", commit=shas, reason=text),
    _event("promote.conflict", paths_digest=text, count=st.integers(0, 9), head=shas),
    _event("archive.written", touched=st.lists(text, max_size=2)),
    _event("session.ended", state=st.sampled_from(["promoted", "discarded", "expired"])),
    _event("workspace.removed"),
    _event("durable.moved", ref=text, old=shas, new=shas),
    _event("log.recovered", dropped_bytes=st.integers(1, 99)),
)  # fmt: skip
timed_steps = st.tuples(steps, st.integers(0, 90).map(lambda minutes: minutes * MINUTE))


def created(policy: Policy) -> tuple[str, dict[str, Any]]:
    """The first event of a session."""
    return "session.created", {
        "task": "t", "durable_ref": "local:///r", **path_fields("/r\udce9", "durable_path"), "durable_branch": "main", "baseline": "b" * 40,
        "ephemeral_ref": "local:///w", "workspace": "/w", "workspace_kind": "clone", "git_backed": True, "policy": policy.to_data(),
        "format": "sha1",
    }  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """A history that can have happened: events that are not legal where they come are left out."""
    type, data = created(draw(policies))
    history = [Event(0, NOW, STREAM, type, "human", data)]
    state, now = fold(history), NOW
    for (type, data), later in draw(st.lists(timed_steps, max_size=12)):
        now += later
        event = Event(len(history), now, STREAM, type, "agent", data)
        try:
            state = fold([event], state)
        except LogDamaged:
            continue
        history.append(event)
    return history


@given(histories(), st.data())
def test_any_history_folds_the_same_in_any_pieces(history: list[Event], data: st.DataObject) -> None:
    whole = fold(history)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(history)), max_size=4), "cuts"))
    state: SessionState | None = None
    for start, end in zip([0, *cuts], [*cuts, len(history)], strict=True):
        state = fold(history[start:end], state) if history[start:end] else state
    assert state == whole


@given(histories())
def test_once_ended_a_session_stays_as_it_ended(history: list[Event]) -> None:
    states = [fold(history[: length + 1]) for length in range(len(history))]
    ends = [state.state for state in states if state.ended]
    assert len(set(ends)) <= 1
    assert [state.ended for state in states] == sorted(state.ended for state in states)


@given(histories())
def test_any_state_survives_its_record_and_its_time_is_the_records(history: list[Event]) -> None:
    state = fold(history)
    again = state_from_metadata(metadata_of(state))
    assert metadata_of(again) == metadata_of(state)
    assert deadline_ns(again) == deadline_ns(state)


# The index -------------------------------------------------------------------------------------------------------------------------------


class IndexMachine(RuleBasedStateMachine):
    """A store that lives, an index that follows it, and the truth: every log folded."""

    ids = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="gittrix-index-"))
        self.store = Store(self.directory / "sessions", durability="fast")
        self.index = Index(self.store, persist_from=2)
        self.now = NOW

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.directory)

    def _there(self, id: str) -> bool:
        return self.store.directory(id).exists()

    @rule(id=ids, policy=policies)
    def start(self, id: str, policy: Policy) -> None:
        if not self._there(id):
            self.store.create(id)
            type, data = created(policy)
            self.store.log(id).append(type, data, ts=self.now)

    @rule(id=ids, step=timed_steps)
    def happen(self, id: str, step: tuple[tuple[str, dict[str, Any]], int]) -> None:
        (type, data), later = step
        self.now += later
        try:
            state = self.store.load(id)
            fold([Event(state.seq + 1, self.now, id, type, "agent", data)], state)
        except Exception:
            return
        self.store.log(id).append(type, data, ts=self.now, actor="agent")

    @rule(id=ids, keep=st.integers(0, 300))
    def tear(self, id: str, keep: int) -> None:
        path = self.store.directory(id) / "events.jsonl"
        if path.exists():
            raw = path.read_bytes()
            path.write_bytes(raw[: max(len(raw) - 1 - keep, 0)])

    @rule(id=ids)
    def damage(self, id: str) -> None:
        path = self.store.directory(id) / "events.jsonl"
        if path.exists():
            path.write_bytes(b"garbage\n" + path.read_bytes())

    @rule(id=ids)
    def become_foreign(self, id: str) -> None:
        if id in {state.id for state in self.store.scan()[0]}:
            self.store.write_metadata(id, self.store.load(id))
            (self.store.directory(id) / "events.jsonl").unlink(missing_ok=True)

    @rule(id=ids)
    def vanish(self, id: str) -> None:
        shutil.rmtree(self.store.directory(id), ignore_errors=True)

    @rule()
    def sync(self) -> None:
        self.index.sync()

    @rule()
    def restart(self) -> None:
        self.index.close()
        self.index = Index(self.store, persist_from=2)

    @rule(junk=st.binary(max_size=30))
    def spoil(self, junk: bytes) -> None:
        self.index.close()
        if self.index.path.exists():
            self.index.path.write_bytes(junk)

    @rule()
    def agrees_with_one_built_from_nothing_and_with_the_logs(self) -> None:
        self.index.sync()
        fresh = Index(Store(self.store.root, durability="fast"), persist_from=99)
        fresh.sync()
        assert self.index.rows() == fresh.rows()
        assert self.index.problems() == fresh.problems()
        assert self.index.unsettled() == fresh.unsettled()
        states, problems = self.store.scan()
        note(f"{states} {problems}")
        assert sorted(row.id for row in self.index.rows()) == [state.id for state in states]
        assert self.index.problems() == problems
        for now in (self.now, self.now + 60 * MINUTE, self.now + 400 * MINUTE):
            evictable = [s for s in states if s.state == "active" or (s.state == "promoted" and s.workspace_present)]
            due = {s.id for s in evictable if (deadline := deadline_ns(s)) is not None and now > deadline}
            assert set(self.index.due(now)) == set(fresh.due(now)) == due
        fresh.close()


TestIndexMachine = IndexMachine.TestCase
