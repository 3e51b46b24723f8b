"""A state machine for sessions that come from sessions: handed on, crashed and succeeded, forked, killed half-way, and found again.

To run it on our own engine, in a world opened in any way::

    TestLines = machine_of(LineMachine).TestCase

Must know no pytest.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, initialize, invariant, multiple, precondition, rule

from pytest_gittrix.durations import instant_at
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.testing.machines.lineage_model import (
    ASKED,
    DEATHS,
    MOST_SESSIONS,
    OUTCOMES,
    TEXTS,
    UNITS,
    WHO,
    Kin,
    facts_of,
    in_order_of_ids,
)
from pytest_gittrix.testing.machines.lineage_world import LineWorld
from pytest_gittrix.testing.machines.machine_base import BASELINE, FOREVER, ask, at_most, die_at, require_equal
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.session_model import FINE

Joins = Kin | MultipleResults[Kin]
"""What a rule gives to the bundle: a session, or none."""

_ENGINES = st.integers(0, 1)
_WHAT = st.sampled_from(sorted(DEATHS))
_some_living = precondition(lambda self: any(one.lives for one in self.family.kin.values()))
_some_ended = precondition(lambda self: not all(one.lives for one in self.family.kin.values()))
_some_mortal = precondition(lambda self: any(one.lives or one.bequeaths for one in self.family.kin.values()))
_room = precondition(lambda self: len(self.family.kin) < MOST_SESSIONS)


class LineMachine(LineWorld):
    """Families of sessions, by two engines on one store, with kills and recoveries.

    After every step: where each session comes from, how it ended and who goes on with it is as the model has it, in the logs and in every
    query; and no log has changed but of those the step was about.
    """

    sessions: ClassVar[Bundle[Kin]] = Bundle("sessions")
    living = sessions.filter(lambda one: one.lives)
    ended = sessions.filter(lambda one: not one.lives)
    mortal = sessions.filter(lambda one: one.lives or one.bequeaths)

    # How sessions come to be ---------------------------------------------------------------------------------------------------------

    @initialize(target=sessions, who=WHO)
    def first(self, who: dict[str, Any]) -> Kin:
        """A session."""
        return self.started(self.engines[0].start_session("task", eviction=FOREVER, **who).id, who)

    @rule(target=sessions, by=_ENGINES, who=WHO)
    @_room
    def start(self, by: int, who: dict[str, Any]) -> Kin:
        """One more, of a line of its own."""
        return self.started(self.engines[by].start_session("task", eviction=FOREVER, **who).id, who)

    @rule(target=sessions, parent=living, by=_ENGINES, who=WHO)
    @_room
    @_some_living
    def handoff(self, parent: Kin, by: int, who: dict[str, Any]) -> Kin:
        """One ends, and another goes on with its workspace."""
        return self.handed_on(parent, self.handles[by][parent.id].handoff(**who).id, who)

    @rule(target=sessions, parent=mortal, by=_ENGINES, who=WHO)
    @_room
    @_some_mortal
    def succeed(self, parent: Kin, by: int, who: dict[str, Any]) -> Kin:
        """One crashes, unless it has already, and another goes on there; a third one cannot."""
        if parent.lives:
            self.end(parent, by, "crash")
        start = self.engines[by].start_session
        child = start("task", parent=parent.id, eviction=FOREVER, **who)
        ask(f"start(parent={parent}), once more", lambda: start("task", parent=parent.id), {"SESSION_EXPIRED"})
        return self.succeeded(parent, child.id, who)

    @rule(parent=sessions, by=_ENGINES)
    @at_most(2)
    def succeed_in_vain(self, parent: Kin, by: int) -> None:
        """One would go on where another has not crashed, or has a successor."""
        if not parent.bequeaths:
            start = self.engines[by].start_session
            ask(f"start(parent={parent})", lambda: start("task", parent=parent.id), {"SESSION_EXPIRED"})

    @rule(target=sessions, parent=sessions, by=_ENGINES, at=st.none() | st.integers(0, 9), who=WHO, texts=TEXTS)
    @_room
    def fork(self, parent: Kin, by: int, at: int | None, who: dict[str, Any], texts: list[str]) -> Joins:
        """One begins as another was, with its files as they are now, or (after a certain event) with those of its baseline."""
        if parent.lives:
            self.say(parent, by, texts)
        length = len(self.log_of(parent.id))
        at = None if at is None else at % (length + 1)  # the last one is one that there is not
        possible = at is None or at < length
        files = "then" if at is None and parent.lives else "baseline"
        allowed = FINE if possible else frozenset({"INVALID_INPUT"})
        act = self.engines[by].fork
        child = ask(f"fork({parent}, {at})", lambda: act(parent.id, at, files=files, **who), allowed)  # type: ignore[arg-type]
        if child is None:
            return multiple()
        return self.forked(parent, child.id, who, length - 1 if at is None else at, parent.file if files == "then" else BASELINE)

    # What happens in them ------------------------------------------------------------------------------------------------------------

    @rule(one=living, by=_ENGINES, texts=TEXTS)
    @_some_living
    def say(self, one: Kin, by: int, texts: list[str]) -> None:
        """Something is said."""
        self.about.add(one.id)
        one.said += [(self.handles[by][one.id].record("assistant_message", {"text": text}).seq, text) for text in texts]

    @rule(one=living, by=_ENGINES, data=st.sampled_from([BASELINE, b"2\n"]))
    @_some_living
    def write(self, one: Kin, by: int, data: bytes) -> None:
        """A file is written."""
        self.about.add(one.id)
        self.handles[by][one.id].write("a", data)
        one.file = data

    @rule(one=living, by=_ENGINES, outcome=OUTCOMES)
    @_some_living
    def end(self, one: Kin, by: int, outcome: str | None) -> None:
        """A session ends: its agent crashed, was done, or was killed, or nobody says."""
        self.about.add(one.id)
        self.handles[by][one.id].discard(outcome)
        one.state, one.outcome = "discarded", outcome

    @rule(one=ended, by=_ENGINES)
    @_some_ended
    @at_most(2)
    def nothing_more(self, one: Kin, by: int) -> None:
        """Whoever still holds a session that has ended can do nothing with it."""
        held = self.handles[by].get(one.id)
        if held is not None:
            ask(f"{one}.handoff()", held.handoff, {"SESSION_EXPIRED"})
            ask(f"{one}.record()", lambda: held.record("assistant_message", {"text": "no"}), {"SESSION_EXPIRED"})
            ask(f"{one}.discard()", lambda: held.discard("done" if one.outcome == "crash" else "crash"), {"SESSION_EXPIRED"})

    @rule(by=st.sampled_from([timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)]))
    @at_most(3)
    def time_passes(self, by: timedelta) -> None:
        """No session runs out of it."""
        self.world.clock.advance(by)

    @rule(which=_ENGINES)
    @at_most(3)
    def engine_restarts(self, which: int) -> None:
        """After it was closed; nothing is left to recover."""
        self.restart(which)
        self.take_in_hand(which)

    # Kills ---------------------------------------------------------------------------------------------------------------------------

    @rule(target=sessions, parent=living, what=_WHAT, recovers=_ENGINES, restarts=st.booleans())
    @_room
    @_some_living
    @at_most(2)
    def is_killed(self, parent: Kin, what: str, recovers: int, restarts: bool) -> MultipleResults[Kin]:
        """Other processes begin an operation, and each is killed at another point of it; after each, somebody recovers."""
        if what == "succeed":
            self.end(parent, 0, "crash")
        children: list[Kin] = []
        for point, became in DEATHS[what].items():
            length = len(self.log_of(parent.id))
            die_at(point, self.operation(what, parent))
            if restarts:
                self.restart(recovers)
            else:
                require_equal(f"What was killed at {point} can be recovered.", [], self.engines[recovers].recover().problems)
            children += self.settled(parent, what, became, length)
            self.take_in_hand(recovers)
            require_equal("A second recovery finds nothing to do.", [], self.engines[recovers].recover().removed)
            parent = children[-1] if what == "handoff" and children else parent
        return multiple(*children)

    # Questions -----------------------------------------------------------------------------------------------------------------------

    @rule(asked=st.lists(ASKED, min_size=1, max_size=3), by=_ENGINES)
    def query(self, asked: list[dict[str, Any]], by: int) -> None:
        """What fits, newest first."""
        for one in asked:
            self._query(one, by)

    def _query(self, asked: dict[str, Any], by: int) -> None:
        kin = [*self.family.kin.values()]
        wanted = dict(asked)
        if "chain" in wanted:
            wanted["chain"] = kin[wanted["chain"] % len(kin)].id
        for name in {"since", "until"} & wanted.keys():
            wanted[name] = kin[wanted[name] % len(kin)].born
        times: dict[str, Any] = {name: instant_at(wanted[name]) for name in ("since", "until") if name in wanted}
        found = [record.id for record in self.engines[by].query(**(wanted | times))]
        require_equal(f"query({wanted}) finds what fits, newest first.", [one.id for one in self.family.fitting(wanted)], found)

    @rule(unit=UNITS, by=_ENGINES)
    @at_most(2)
    def lines_of_a_work_unit(self, unit: str, by: int) -> None:
        """All lines in which somebody worked on it, whole."""
        lines = [self.family.line(one.chain) for one in self.family.kin.values() if one.identity.get("work_unit") == unit]
        self._require_line(f"work_unit={unit!r}", set[str]().union(*lines), [one.id for one in self.engines[by].chain(work_unit=unit)])

    @rule(one=sessions, by=_ENGINES, depth=st.integers(0, 5))
    def tree(self, one: Kin, by: int, depth: int) -> None:
        """What came of a session, in so many generations."""
        found = in_order_of_ids(self.engines[by].tree(one.id, depth=depth).to_wire())
        require_equal(f"tree({one}, {depth}) is what came of it.", self.family.tree(one, depth), found)

    # What must hold ------------------------------------------------------------------------------------------------------------------

    @invariant()
    def logs_are_as_they_must_be(self) -> None:
        """What each adds up to; and none has changed but of those the step was about."""
        for one in self.family.kin.values():
            raw = self.path_of(one.id).read_bytes()
            require(
                one.id in self.about or raw == self.logs.get(one.id), f"Nothing is written to the log of {one} by what is not about it."
            )
            if raw != self.logs.get(one.id):
                events = self.log_of(one.id)
                require_equal(f"{one} is as it must be.", one.facts(), facts_of(fold(events)))
                told = [(event.seq, event.data["text"]) for event in events if event.type == "assistant_message"]
                require_equal(f"What was said in {one} is what it took along and what was said since.", one.said, told)
            self.logs[one.id] = raw
        self.about.clear()

    @invariant()
    def queries_know_everybody(self) -> None:
        """All of them, and each line."""
        for number, engine in enumerate(self.engines):
            found = [record.id for record in engine.query()]
            require_equal(f"Engine {number} finds every session, newest first.", [one.id for one in self.family.fitting({})], found)
        engine = self.engines[0]
        for chain in {one.chain for one in self.family.kin.values()}:
            self._require_line(chain, self.family.line(chain), [record.id for record in engine.chain(chain)])

    def _require_line(self, what: str, expected: set[str], found: list[str]) -> None:
        require_equal(f"chain({what}) has the whole line, once.", sorted(expected), sorted(found))
        kin = [self.family.kin[id_] for id_ in found]
        ages = [one.born for one in kin]
        later = [one for place, one in enumerate(kin) if one.parent in kin[place:]]
        require(ages == sorted(ages) and not later, f"chain({what}) goes from old to new, a parent before its child.", str(kin))
