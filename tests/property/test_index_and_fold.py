"""The index says what the logs add up to: after every step of a long random history, when built anew, and after a kill anywhere in it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_gittrix.errors import LogDamaged
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.record.eventlog.change_feed import FILE as TOLD
from pytest_gittrix.record.eventlog.events import Event, encode, path_fields
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.state.fold import Policy, SessionState, deadline_ns, fold, metadata_of
from pytest_gittrix.record.store import index_tables
from pytest_gittrix.record.store.index import LARGE, Index, IndexRow, Query
from pytest_gittrix.record.store.store import LOG, Store

SOAK: Final = bool(os.environ.get("PYTEST_GITTRIX_SOAK"))
STEPS: Final = 100_000 if SOAK else 4_000
KILLS: Final = 200 if SOAK else 12
SESSIONS: Final = 50
ALL_OF_THEM_EVERY: Final = 250
MOST_EVENTS: Final = 60

NOW: Final = 1_893_456_000_000_000_000
MINUTE: Final = 60_000_000_000
FACTS: Final = ("agent", "rig", "work_unit", "chain", "outcome", "parent")

Happening = tuple[str, dict[str, Any]]


# A random history ------------------------------------------------------------------------------------------------------------------


def birth(draw: random.Random, id_: str, known: list[SessionState]) -> Happening:
    """The first event of a session: of a line of its own, or coming from one of those there are."""
    ttls = [None, 5 * MINUTE, 240 * MINUTE]
    policy = Policy(draw.choice(ttls), draw.choice(ttls), draw.random() < 0.7, draw.random() < 0.1)
    data: dict[str, Any] = {
        "task": "t", "durable_ref": "local:///r", **path_fields("/r\udce9", "durable_path"), "durable_branch": "main", "baseline": "b" * 40,
        "ephemeral_ref": "local:///w", "workspace": "/w", "workspace_kind": "clone", "git_backed": True, "policy": policy.to_data(),
        "format": "sha1",
    }  # fmt: skip
    if draw.random() < 0.7:
        data["identity"] = identity(draw)
    if known and draw.random() < 0.6:
        parent, relation = draw.choice(known), draw.choice(["handoff", "crash", "fork"])
        fork = relation == "fork"
        data["lineage"] = {"parent": parent.id, "relation": relation, "chain": id_ if fork else parent.chain, "root": parent.root}
    return "session.created", data


def identity(draw: random.Random) -> dict[str, str]:
    """Who works in a session, and on what."""
    facts = {
        "agent": draw.choice(["Toast", "Fig", "é"]),
        "rig": draw.choice(["gastown", "beads"]),
        "work_unit": draw.choice(["gt-1", "gt-2", "gt-3"]),
    }
    return {name: value for name, value in facts.items() if draw.random() < 0.6}


MAY_HAPPEN: Final[list[tuple[int, Callable[[random.Random, SessionState], Happening]]]] = [
    (9, lambda draw, now: ("user_message", {"text": "hello"})),
    (5, lambda draw, now: ("tool_call", {"call_id": draw.choice("abc"), "name": "shell", "args": {}})),
    (5, lambda draw, now: ("tool_result", {"call_id": draw.choice("abc"), "ok": True})),
    (6, lambda draw, now: ("session.write", {"path": draw.choice(["a", "lib/b"]), "op": "write"})),
    (4, lambda draw, now: ("session.accessed", {})),
    (2, lambda draw, now: ("session.commit", {"sha": "c" * 40, "message": "m"})),
    (3, lambda draw, now: ("workspace.ready", {"path": "/w"})),
    (3, lambda draw, now: ("session.extended", {"ttl_idle_ns": draw.choice([None, MINUTE, 600 * MINUTE])})),
    (1, lambda draw, now: ("session.relocated", {"durable_ref": "local:///moved#main", "durable_path": draw.choice(["/moved", "/d"])})),
    (3, lambda draw, now: ("session.activity", {"observed_ns": now.last_access_ns + draw.randint(-9, 9) * MINUTE})),
    (3, lambda draw, now: ("session.identified", {"identity": {**identity(draw), draw.choice(["agent", "rig"]): None}})),
    (2, lambda draw, now: ("step.started", {"step": "s1"})),
    (2, lambda draw, now: ("step.completed", {"step": "s1", "outcome": "done"})),
    (3, lambda draw, now: ("turn.started", {"turn": f"t{now.seq + 1}", "runs": "task"})),
    (3, lambda draw, now: ("turn.ended", {"turn": str(now.turn), "status": "done"})),
    (2, lambda draw, now: ("promote.intent", intent(now))),
    (2, lambda draw, now: ("promote.aborted", {"commit": now.intent.commit if now.intent else "d" * 40, "reason": "r"})),
    (1, lambda draw, now: ("handoff.intent", {"child": "nobody"})),
    (1, lambda draw, now: ("handoff.aborted", {"child": str(now.handoff), "reason": "r"})),
    (1, lambda draw, now: ("session.succeeded", {"child": "nobody"})),
    (1, lambda draw, now: ("succession.aborted", {"child": str(now.successor), "reason": "r"})),
    (1, lambda draw, now: ("archive.written", {"touched": 1})),
    (1, lambda draw, now: ("workspace.removed", {})),
    (1, lambda draw, now: ("promote.done", {"commit": "d" * 40, "ref": "r", "branch": "main", "strategy": "commit"})),
    (2, lambda draw, now: ("promote.kept", kept(draw, now))),
    (2, lambda draw, now: ("session.rebased", {"commit": draw.choice("cdef") * 40, "before": now.baseline})),
    (1, lambda draw, now: ("session.ended", end(draw, now))),
]
"""What may happen to a session, with how often; what is not legal when it comes is drawn anew."""
WEIGHTS: Final = [weight for weight, _ in MAY_HAPPEN]


def intent(now: SessionState) -> dict[str, Any]:
    """A promotion that is about to happen."""
    return {"commit": "d" * 40, "parent": now.baseline, "ref": "refs/heads/main", "tree": "e" * 40, "paths_digest": "p", "count": 1}


def kept(draw: random.Random, now: SessionState) -> dict[str, Any]:
    """A promotion after which the session goes on."""
    commit = now.intent.commit if now.intent else f"{now.seq:040x}"
    merged = [{"path": "a", "mode": 0o100644, "id": "f" * 40}] if draw.random() < 0.5 else []
    where = {"ref": "refs/heads/x", "branch": draw.choice(["main", "x"]), "strategy": draw.choice(["commit", "pr"])}
    return {"commit": commit, **where, "before": now.baseline, "merged": merged}


def end(draw: random.Random, now: SessionState) -> dict[str, Any]:
    """How a session ends."""
    if now.ended:
        return {"state": now.state, "outcome": draw.choice(["done", "crash"])}
    outcome = draw.choice([None, "done", "crash", "killed", "handoff"])
    return {"state": draw.choice(["discarded", "expired"]), **({"outcome": outcome} if outcome else {})}


@dataclass
class History:
    """A history of many sessions, as it goes on in a store.

    Attributes:
        store: where.
        draw: what comes next.
        states: what each log adds up to, folded event by event.
        behind: whether logs are torn and deleted by somebody who tells nobody, which an index of a large store need not see at once.
        now: nanoseconds since 1970 UTC.
    """

    store: Store
    draw: random.Random
    states: dict[str, SessionState] = field(default_factory=dict)
    behind: bool = True
    now: int = NOW
    _logs: dict[str, EventLog] = field(default_factory=dict)

    def step(self) -> str:
        """Let one thing happen; gives the id of the session that it happened to."""
        self.now += self.draw.choice([0, 1000, MINUTE // 10])
        if len(self.states) < SESSIONS and (not self.states or self.draw.random() < 0.02):
            return self._begin()
        chance, id_ = self.draw.random(), self._some_session()
        if self.states[id_].seq > MOST_EVENTS:
            return self._vanish(id_) if self.behind else self._begin()
        if chance < 0.01 and self.behind:
            return self._tear(id_)
        if chance < 0.02:
            self.store.write_metadata(id_, self.states[id_])
        return self._go_on(id_)

    def _some_session(self) -> str:
        """One that has not ended, as a rule: little can happen to the others."""
        found = self.draw.choices([*self.states], k=4)
        return min(found, key=lambda id_: self.states[id_].ended) if self.draw.random() < 0.95 else found[0]

    def _begin(self) -> str:
        id_ = f"sess_{self.draw.getrandbits(48):012x}"
        self.store.create(id_)
        self._append(id_, *birth(self.draw, id_, [*self.states.values()]))
        return id_

    def _go_on(self, id_: str) -> str:
        now = self.states[id_]
        while True:
            ((_, happening),) = self.draw.choices(MAY_HAPPEN, WEIGHTS)
            type_, data = happening(self.draw, now)
            try:
                fold([Event(now.seq + 1, self.now, id_, type_, "agent", data)], now)
            except LogDamaged:
                continue
            self._append(id_, type_, data)
            return id_

    def _append(self, id_: str, type_: str, data: dict[str, Any]) -> None:
        log = self._logs.setdefault(id_, self.store.log(id_))
        event = log.append(type_, data, ts=self.now, actor="agent")
        self.states[id_] = fold(log.refresh() or [event], self.states.get(id_))

    def _tear(self, id_: str) -> str:
        """A writer is killed in the middle of a line; whoever writes next cuts it off."""
        line = encode(Event(self.states[id_].seq + 1, self.now, id_, "session.accessed", "agent", {"op": "x" * 50}))
        with (self.store.directory(id_) / LOG).open("ab") as file:
            file.write(line[: self.draw.randint(1, len(line))])
        self._logs.pop(id_, None)  # whoever writes next has not read it yet
        return id_

    def _vanish(self, id_: str) -> str:
        """Somebody deletes a session."""
        shutil.rmtree(self.store.directory(id_))
        del self.states[id_]
        self._logs.pop(id_, None)
        return id_


# What must be so -------------------------------------------------------------------------------------------------------------------


def facts_of(now: SessionState) -> dict[str, str | None]:
    """What a session can be found by."""
    names = {name: now.identity.get(name) for name in ("agent", "rig", "work_unit")}
    return {**names, "chain": now.chain, "outcome": now.ending, "parent": now.lineage.parent if now.lineage else None}


def expected(store: Store, now: SessionState) -> IndexRow:
    """The row of a session, from its state."""
    size = (store.directory(now.id) / LOG).stat().st_size
    times = (deadline_ns(now), now.created_ns, now.updated_ns, now.last_access_ns)
    return IndexRow(now.id, now.state, *times, now.seq, now.workspace_present, now.legacy, size, json.loads(json.dumps(metadata_of(now))))


def ids(index: Index, **wanted: Any) -> list[str]:
    """The sessions that fit."""
    return [row.id for row in index.query(Query(**wanted))]


def require_one(index: Index, history: History, id_: str, before: SessionState | None) -> None:
    """The index says of one session what its log adds up to, and nothing that was so before."""
    now = history.states.get(id_)
    if now is None:
        assert index.row(id_) is None
        return
    assert index.row(id_) == expected(history.store, now)
    facts = facts_of(now)
    assert id_ in ids(index, **{name: value for name, value in facts.items() if value is not None})
    for name, old in facts_of(before).items() if before is not None else ():
        if old is not None and old != facts[name]:
            assert id_ not in ids(index, **{name: old})


def require_all(index: Index, store: Store) -> None:
    """The index says of all sessions what their logs, folded from the first event, add up to."""
    states, problems = store.scan()
    assert index.problems() == problems == []
    assert {row.id: row for row in index.rows()} == {now.id: expected(store, now) for now in states}
    assert ids(index) == [now.id for now in sorted(states, key=lambda now: (-now.created_ns, now.id))]
    for name in FACTS:
        for value in {fact for now in states if (fact := facts_of(now)[name]) is not None}:
            assert set(ids(index, **{name: value})) == {now.id for now in states if facts_of(now)[name] == value}
    assert index.unsettled() == sorted(now.id for now in states if unsettled(now))
    for at in (NOW, max(now.updated_ns for now in states), NOW + 10**15):
        evictable = [now for now in states if now.state == "active" or (now.state == "promoted" and now.workspace_present)]
        assert set(index.due(at)) == {now.id for now in evictable if (limit := deadline_ns(now)) is not None and at > limit}


def unsettled(now: SessionState) -> bool:
    """Whether something was begun in a session and not finished."""
    if not now.ended:
        return now.intent is not None or now.handoff is not None or not now.workspace_present
    return now.workspace_present and (now.state != "promoted" or now.policy.until_promote)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path / "sessions", durability="fast")


@pytest.fixture(params=[False, True], ids=["looking", "told"])
def trusts(request: pytest.FixtureRequest) -> bool:
    """Whether an index looks where it was told of a change, as in large stores, or at every log."""
    return bool(request.param)


def index_of(store: Store, trusts: bool) -> Index:
    """An index in a file."""
    return Index(store, persist_from=1, trust_from=1 if trusts else LARGE)


def test_after_every_step_of_a_long_history_the_index_says_what_the_logs_add_up_to(store: Store, trusts: bool) -> None:
    history = History(store, random.Random(4), behind=not trusts)
    index = index_of(store, trusts)
    for step in range(STEPS // 2 if trusts else STEPS):
        before = {**history.states}
        id_ = history.step()
        index.sync()
        require_one(index, history, id_, before.get(id_))
        if step % ALL_OF_THEM_EVERY == 0:
            require_all(index, store)

    incremental = index.rows()
    require_all(index, store)
    index.rebuild()
    assert index.rows() == incremental
    require_all(index, store)
    index.close()
    assert (store.root / TOLD).exists() == trusts
    assert {now.state for now in history.states.values()} == {"active", "promoted", "discarded", "expired"}


# Kills -----------------------------------------------------------------------------------------------------------------------------


def looked_at(store: Store, trusts: bool, look: Callable[[Index], None] = Index.sync) -> None:
    """Open the index that a kill left, and see that it says what the logs add up to."""
    left = index_of(store, trusts)
    try:
        look(left)
        require_all(left, store)
    finally:
        left.close()


def test_after_a_kill_anywhere_in_a_history_the_index_says_what_the_logs_add_up_to(store: Store, trusts: bool) -> None:
    draw = random.Random(int(trusts))
    for kill in range(KILLS):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            write_until_killed(store, trusts, random.Random(kill), writing)
        os.close(writing)
        with open(reading, "rb", buffering=0) as said:
            for _ in range(draw.randint(1, 60)):
                assert said.read(1), "the writer ended by itself"
            os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

        looked_at(store, trusts)
        looked_at(store, trusts, Index.rebuild)


def write_until_killed(store: Store, trusts: bool, draw: random.Random, writing: int) -> None:
    """Go on with whatever history there is, saying a byte for each step."""
    try:
        history = History(store, draw, {now.id: now for now in store.scan()[0]}, behind=not trusts)
        history.now = max([NOW, *(now.updated_ns for now in history.states.values())])
        index = index_of(store, trusts)
        while True:
            history.step()
            index.sync()
            os.write(writing, b".")
    finally:
        os._exit(1)


def update_and_die(store: Store, trusts: bool, nth: int) -> bool:
    """Bring the index up to date in another process that is killed as it begins its nth statement; whether it was."""
    connect = index_tables._connect

    def traced(name: str) -> sqlite3.Connection:
        connection = connect(name)
        begun = 0

        def count(_statement: str) -> None:
            nonlocal begun
            begun += 1
            if begun == nth:
                os.kill(os.getpid(), signal.SIGKILL)

        connection.set_trace_callback(count)
        return connection

    def update() -> None:
        index_tables._connect = traced
        index_of(store, trusts).sync()

    ended = in_fork(update)
    assert ended.error is None
    return ended.signal == signal.SIGKILL


@pytest.mark.parametrize("from_nothing", [False, True])
def test_an_index_killed_at_any_statement_of_an_update_is_brought_up_to_date(store: Store, trusts: bool, from_nothing: bool) -> None:
    history = History(store, random.Random(7))
    for _ in range(200):
        history.step()
    looked_at(store, trusts)

    kills = 0
    while True:
        for _ in range(6):
            history.step()
        history._begin()
        history._vanish(history.draw.choice([*history.states]))
        if from_nothing:
            for file in store.root.glob("index.sqlite*"):
                file.unlink()
        if not update_and_die(store, trusts, kills + 1):
            break
        kills += 1
        looked_at(store, trusts)

    assert kills > 10
