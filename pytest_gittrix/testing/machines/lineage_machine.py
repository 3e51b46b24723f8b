"""A state machine for sessions that come from sessions: handed on, crashed and succeeded, forked, killed half-way, and found again.

To run it on our own engine, in a world opened in any way::

    TestLines = machine_of(LineMachine).TestCase
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, initialize, invariant, multiple, precondition, rule

from pytest_gittrix.durations import instant_at
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.testing.machines.lineage_model import (
    DEATHS,
    FILTERS,
    IDENTITIES,
    MOST_SESSIONS,
    OUTCOMES,
    STILLBORN,
    TEXTS,
    UNITS,
    LineageModel,
    LineageSession,
    facts_of,
    in_order_of_ids,
)
from pytest_gittrix.testing.machines.machine_base import BASELINE, ENGINES, FOREVER, WorldMachine, ask, at_most, die_at, require_equal
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.session_model import FINE

Added = LineageSession | MultipleResults[LineageSession]
"""What a rule adds to the bundle: a session, or none."""

_WHAT = st.sampled_from(sorted(DEATHS))
_some_living = precondition(lambda self: any(one.lives for one in self.model.sessions.values()))
_some_ended = precondition(lambda self: not all(one.lives for one in self.model.sessions.values()))
_some_mortal = precondition(lambda self: any(one.lives or one.may_have_successor for one in self.model.sessions.values()))
_not_full = precondition(lambda self: len(self.model.sessions) < MOST_SESSIONS)


class LineMachine(WorldMachine):
    """Sessions that come from sessions, by two engines on one store, with kills and recoveries.

    After every step: the parent, the end and the successor of each session are those of the model, in the logs and in every query; and the
    step has written to the logs of its own sessions alone.

    Attributes:
        model: the expected lineage of every session.
        handles: for each engine, its handles of the sessions by id; a session that has ended keeps its handle.
        logs: the bytes of each session's log after the last step.
        writable: the ids of the sessions to whose logs this step may write.
    """

    sessions: ClassVar[Bundle[LineageSession]] = Bundle("sessions")
    living = sessions.filter(lambda one: one.lives)
    ended = sessions.filter(lambda one: not one.lives)
    mortal = sessions.filter(lambda one: one.lives or one.may_have_successor)

    def __init__(self) -> None:
        super().__init__()
        self.model = LineageModel()
        self.handles: list[dict[str, UserSession]] = [{}, {}]
        self.logs: dict[str, bytes] = {}
        self.writable: set[str] = set()

    # Starts, handoffs and forks --------------------------------------------------------------------------------------------------------

    @initialize(target=sessions, identity=IDENTITIES)
    def first(self, identity: dict[str, Any]) -> LineageSession:
        """A session."""
        return self._started(self.engines[0].start_session("task", eviction=FOREVER, **identity).id, identity)

    @rule(target=sessions, by=ENGINES, identity=IDENTITIES)
    @_not_full
    def start(self, by: int, identity: dict[str, Any]) -> LineageSession:
        """One more session starts, in a new line."""
        return self._started(self.engines[by].start_session("task", eviction=FOREVER, **identity).id, identity)

    @rule(target=sessions, parent=living, by=ENGINES, identity=IDENTITIES)
    @_not_full
    @_some_living
    def handoff(self, parent: LineageSession, by: int, identity: dict[str, Any]) -> LineageSession:
        """A session is handed on to a new one, which has its workspace."""
        return self._handed_on(parent, self.handles[by][parent.id].handoff(**identity).id, identity)

    @rule(target=sessions, parent=mortal, by=ENGINES, identity=IDENTITIES)
    @_not_full
    @_some_mortal
    def succeed(self, parent: LineageSession, by: int, identity: dict[str, Any]) -> LineageSession:
        """A session crashes, unless it has already, and a new one succeeds it; a second successor is refused."""
        if parent.lives:
            self.end(parent, by, "crash")
        start = self.engines[by].start_session
        child = start("task", parent=parent.id, eviction=FOREVER, **identity)
        ask(f"start(parent={parent}), once more", lambda: start("task", parent=parent.id), {"SESSION_EXPIRED"})
        return self._succeeded(parent, child.id, identity)

    @rule(parent=sessions, by=ENGINES)
    @at_most(2)
    def succeed_in_vain(self, parent: LineageSession, by: int) -> None:
        """A successor is refused to a session that has not crashed, or that has one."""
        if not parent.may_have_successor:
            start = self.engines[by].start_session
            ask(f"start(parent={parent})", lambda: start("task", parent=parent.id), {"SESSION_EXPIRED"})

    @rule(target=sessions, parent=sessions, by=ENGINES, at=st.none() | st.integers(0, 9), identity=IDENTITIES, texts=TEXTS)
    @_not_full
    def fork(self, parent: LineageSession, by: int, at: int | None, identity: dict[str, Any], texts: list[str]) -> Added:
        """A session is forked, with its files as they are now, or after an earlier event with those of its baseline."""
        if parent.lives:
            self.say(parent, by, texts)
        length = len(self.log_of(parent.id))
        at = None if at is None else at % (length + 1)  # an event with the number ``length`` does not exist
        possible = at is None or at < length
        files = "then" if at is None and parent.lives else "baseline"
        allowed = FINE if possible else frozenset({"INVALID_INPUT"})
        act = self.engines[by].fork
        child = ask(f"fork({parent}, {at})", lambda: act(parent.id, at, files=files, **identity), allowed)  # type: ignore[arg-type]
        if child is None:
            return multiple()
        return self._forked(parent, child.id, identity, length - 1 if at is None else at, parent.file if files == "then" else BASELINE)

    # Messages, files and ends -----------------------------------------------------------------------------------------------------------

    @rule(one=living, by=ENGINES, texts=TEXTS)
    @_some_living
    def say(self, one: LineageSession, by: int, texts: list[str]) -> None:
        """Messages are recorded."""
        self.writable.add(one.id)
        one.messages += [(self.handles[by][one.id].record("assistant_message", {"text": text}).seq, text) for text in texts]

    @rule(one=living, by=ENGINES, data=st.sampled_from([BASELINE, b"2\n"]))
    @_some_living
    def write(self, one: LineageSession, by: int, data: bytes) -> None:
        """A file is written."""
        self.writable.add(one.id)
        self.handles[by][one.id].write("a", data)
        one.file = data

    @rule(one=living, by=ENGINES, outcome=OUTCOMES)
    @_some_living
    def end(self, one: LineageSession, by: int, outcome: str | None) -> None:
        """A session is discarded, with an outcome or without one."""
        self.writable.add(one.id)
        self.handles[by][one.id].discard(outcome)
        one.state, one.outcome = "discarded", outcome

    @rule(one=ended, by=ENGINES)
    @_some_ended
    @at_most(2)
    def nothing_more(self, one: LineageSession, by: int) -> None:
        """A handle of a session that has ended is refused everything."""
        handle = self.handles[by].get(one.id)
        if handle is not None:
            ask(f"{one}.handoff()", handle.handoff, {"SESSION_EXPIRED"})
            ask(f"{one}.record()", lambda: handle.record("assistant_message", {"text": "no"}), {"SESSION_EXPIRED"})
            ask(f"{one}.discard()", lambda: handle.discard("done" if one.outcome == "crash" else "crash"), {"SESSION_EXPIRED"})

    @rule(by=st.sampled_from([timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)]))
    @at_most(3)
    def time_passes(self, by: timedelta) -> None:
        """The clock advances; the sessions have no time limit."""
        self.world.clock.advance(by)

    @rule(which=ENGINES)
    @at_most(3)
    def engine_restarts(self, which: int) -> None:
        """An engine is closed and replaced; nothing is left to recover."""
        self.restart(which)
        self._reopen_sessions(which)

    # Kills ---------------------------------------------------------------------------------------------------------------------------

    @rule(target=sessions, parent=living, what=_WHAT, recovers=ENGINES, restarts=st.booleans())
    @_not_full
    @_some_living
    @at_most(2)
    def is_killed(self, parent: LineageSession, what: str, recovers: int, restarts: bool) -> MultipleResults[LineageSession]:
        """Other processes begin an operation, and each is killed at another point of it; after each kill, an engine recovers."""
        if what == "succeed":
            self.end(parent, 0, "crash")
        children: list[LineageSession] = []
        for point, became in DEATHS[what].items():
            length = len(self.log_of(parent.id))
            die_at(point, self._operation(what, parent))
            if restarts:
                self.restart(recovers)
            else:
                require_equal(f"What was killed at {point} can be recovered.", [], self.engines[recovers].recover().problems)
            children += self._settled(parent, what, became, length)
            self._reopen_sessions(recovers)
            require_equal("A second recovery finds nothing to do.", [], self.engines[recovers].recover().removed)
            parent = children[-1] if what == "handoff" and children else parent
        return multiple(*children)

    # Queries ----------------------------------------------------------------------------------------------------------------------

    @rule(all_filters=st.lists(FILTERS, min_size=1, max_size=3), by=ENGINES)
    def query(self, all_filters: list[dict[str, Any]], by: int) -> None:
        """A query finds the sessions that fit, newest first."""
        for filters in all_filters:
            self._query(filters, by)

    def _query(self, filters: dict[str, Any], by: int) -> None:
        sessions = [*self.model.sessions.values()]
        wanted = dict(filters)
        if "chain" in wanted:
            wanted["chain"] = sessions[wanted["chain"] % len(sessions)].id
        for name in {"since", "until"} & wanted.keys():
            wanted[name] = sessions[wanted[name] % len(sessions)].born
        times: dict[str, Any] = {name: instant_at(wanted[name]) for name in ("since", "until") if name in wanted}
        found = [record.id for record in self.engines[by].query(**(wanted | times))]
        require_equal(f"query({wanted}) finds what fits, newest first.", [one.id for one in self.model.fitting(wanted)], found)

    @rule(unit=UNITS, by=ENGINES)
    @at_most(2)
    def lines_of_a_work_unit(self, unit: str, by: int) -> None:
        """``chain(work_unit=...)`` finds every line with a session that worked on the unit, whole."""
        lines = [self.model.line(one.chain) for one in self.model.sessions.values() if one.identity.get("work_unit") == unit]
        self._require_line(f"work_unit={unit!r}", set[str]().union(*lines), [one.id for one in self.engines[by].chain(work_unit=unit)])

    @rule(one=sessions, by=ENGINES, depth=st.integers(0, 5))
    def tree(self, one: LineageSession, by: int, depth: int) -> None:
        """``tree`` finds the descendants of a session, in so many generations."""
        found = in_order_of_ids(self.engines[by].tree(one.id, depth=depth).to_wire())
        require_equal(f"tree({one}, {depth}) is what came of it.", self.model.tree(one, depth), found)

    # What must hold ------------------------------------------------------------------------------------------------------------------

    @invariant()
    def logs_are_as_expected(self) -> None:
        """The fold of each log is the expected one, and the step has written to the logs of its own sessions alone."""
        for one in self.model.sessions.values():
            raw = self.path_of(one.id).read_bytes()
            require(
                one.id in self.writable or raw == self.logs.get(one.id), f"Nothing is written to the log of {one} by what is not about it."
            )
            if raw != self.logs.get(one.id):
                events = self.log_of(one.id)
                require_equal(f"{one} is as it must be.", one.facts(), facts_of(fold(events)))
                found = [(event.seq, event.data["text"]) for event in events if event.type == "assistant_message"]
                require_equal(f"The messages of {one} are those it took along and those since.", one.messages, found)
            self.logs[one.id] = raw
        self.writable.clear()

    @invariant()
    def queries_find_every_session(self) -> None:
        """A query without filters finds all sessions, and ``chain`` each line."""
        for number, engine in enumerate(self.engines):
            found = [record.id for record in engine.query()]
            require_equal(f"Engine {number} finds every session, newest first.", [one.id for one in self.model.fitting({})], found)
        engine = self.engines[0]
        for chain in {one.chain for one in self.model.sessions.values()}:
            self._require_line(chain, self.model.line(chain), [record.id for record in engine.chain(chain)])

    def _require_line(self, what: str, expected: set[str], found: list[str]) -> None:
        require_equal(f"chain({what}) has the whole line, once.", sorted(expected), sorted(found))
        sessions = [self.model.sessions[id_] for id_ in found]
        ages = [one.born for one in sessions]
        later = [one for place, one in enumerate(sessions) if one.parent in sessions[place:]]
        require(ages == sorted(ages) and not later, f"chain({what}) goes from old to new, a parent before its child.", str(sessions))

    # The model ---------------------------------------------------------------------------------------------------------------------

    def _reopen_sessions(self, which: int) -> None:
        """Have a restarted engine open every live session."""
        for one in self.model.sessions.values():
            if one.lives:
                self.handles[which][one.id] = self.engines[which].get_session(one.id)

    def _started(self, id_: str, identity: dict[str, Any], became: str = "born", **where: Any) -> LineageSession:
        """Enter a session that was started, or one that is left of a start that was killed."""
        now = self.world.clock.now_ns()
        fields = {"chain": id_, "root": id_, "identity": identity, **where}
        one = LineageSession(f"s{len(self.model.sessions) + 1}", id_, now - now % 1000, **fields)
        self.model.sessions[id_] = one
        self.writable.add(id_)
        if became == STILLBORN:
            one.state = "discarded"
            return one
        for handles, engine in zip(self.handles, self.engines, strict=True):
            handle = ask(f"get_session({one})", partial(engine.get_session, id_))
            assert handle is not None
            handles[id_] = handle
        require_equal(f"{one} has the files it begins with.", one.file, self.handles[0][id_].read("a"))
        return one

    def _handed_on(self, parent: LineageSession, id_: str, identity: dict[str, Any]) -> LineageSession:
        """Enter a handoff: the parent has ended, and the child has its files and goes on in its line."""
        self.writable.add(parent.id)
        parent.state, parent.outcome, parent.successor = "discarded", "handoff", id_
        origin: dict[str, Any] = {"parent": parent, "relation": "handoff", "chain": parent.chain, "root": parent.root}
        return self._started(id_, {**parent.identity, **identity}, file=parent.file, **origin)

    def _succeeded(self, parent: LineageSession, id_: str, identity: dict[str, Any], became: str = "born") -> LineageSession:
        """Enter a session that goes on with the work of one that crashed."""
        self.writable.add(parent.id)
        if became != STILLBORN:
            parent.successor = id_
        return self._started(id_, identity, became, parent=parent, relation="crash", chain=parent.chain, root=parent.root)

    def _forked(
        self, parent: LineageSession, id_: str, identity: dict[str, Any], at: int, file: bytes, became: str = "born"
    ) -> LineageSession:
        """Enter a fork made after an event, with the messages up to that event."""
        copied = [(event.seq, event.data["text"]) for event in self.log_of(id_) if event.type == "assistant_message"]
        expected = [text for seq, text in parent.messages if seq <= at]
        if became != STILLBORN:
            require_equal(f"A fork of {parent} takes along what was said up to event {at}.", expected, [text for _, text in copied])
        origin: dict[str, Any] = {"parent": parent, "relation": "fork", "root": parent.root, "at_seq": at}
        return self._started(id_, {**parent.identity, **identity}, became, file=file, messages=copied, **origin)

    def _operation(self, what: str, parent: LineageSession) -> Callable[[], object]:
        """The operation of a name in ``DEATHS``, for another process to run."""
        engine = self.engines[0]
        if what == "handoff":
            return self.handles[0][parent.id].handoff
        if what == "fork":
            return partial(engine.fork, parent.id)
        return partial(engine.start_session, "task", eviction=FOREVER, parent=parent.id if what == "succeed" else None)

    def _settled(self, parent: LineageSession, what: str, became: str, length: int) -> list[LineageSession]:
        """Enter what a recovery left of an operation that was killed.

        Args:
            parent: the session that the operation was about.
            what: the operation, a name in ``DEATHS``.
            became: what must be left of the child.
            length: how many events the parent's log had before.
        """
        fresh = sorted(set(self.engines[0].store.ids()) - self.model.sessions.keys())
        require_equal(f"A {what} that was killed leaves no more than its child.", int(became != "nothing"), len(fresh))
        self.writable |= {parent.id} if what in ("handoff", "succeed") else set()
        if what == "start":
            return [self._started(id_, {}, became) for id_ in fresh]
        if what == "succeed":
            return [self._succeeded(parent, id_, {}, became) for id_ in fresh]
        if what == "fork":
            return [self._forked(parent, id_, {}, length - 1, parent.file, became) for id_ in fresh]
        return [self._handed_on(parent, id_, {}) for id_ in fresh]
