"""A state machine for turns: one at a time, ended in every way there is, with tool calls left open and answered, against a small model.

The turns are puppets: each does what it is told through a pipe, so nothing depends on who is quicker. To run it on our own engine, in a
world opened in any way::

    TestTurns = machine_of(TurnMachine).TestCase

Must know no pytest.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, precondition, rule

from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.testing.machines.machine_base import FOREVER, LONG, WorldMachine, ask, at_most, require_equal
from pytest_gittrix.testing.machines.scripted_turn import Puppet, Running, at_once
from pytest_gittrix.testing.machines.turn_model import Talk, require_turns_in_order
from pytest_gittrix.testing.oracle import invariant_answer, require

_MOST_ALIVE = 2
_some_busy = precondition(lambda self: any(talk.running is not None for talk in self.talks))
_some_idle = precondition(lambda self: any(talk.running is None for talk in self.talks))
_some_ended = precondition(lambda self: any(talk.running is None and talk.ended for talk in self.talks))
_some_ready = precondition(lambda self: any(talk.running is None and not talk.ended for talk in self.talks))
# What a busy session refuses, it refuses after a tenth of a second, which is too dear to do often.
_MOST_REFUSALS = 1
_ENGINES = st.integers(0, 1)
_RUNS = st.sampled_from(["thread"] * 5 + ["process"])
_CALLS = st.sampled_from(["c1", "c2", "c3"])
_TOOLS = st.sampled_from(["shell", "grep"])


class TurnMachine(WorldMachine):
    """Turns in threads and processes, by two engines on one store.

    After every step: each history is what it must be, and can have happened; open calls and open turns are those of the model.
    """

    sessions: ClassVar[Bundle[Talk]] = Bundle("sessions")
    busy = sessions.filter(lambda talk: talk.running is not None)
    idle = sessions.filter(lambda talk: talk.running is None)
    ended = sessions.filter(lambda talk: talk.running is None and talk.ended)
    ready = sessions.filter(lambda talk: talk.running is None and not talk.ended)

    def __init__(self) -> None:
        super().__init__()
        self.talks: list[Talk] = []
        self.statuses: list[str] = []
        self.interrupted: list[str] = []
        for engine in self.engines:
            self._follow(engine)

    def teardown(self) -> None:
        """End every turn, then all else."""
        for one in [one for talk in self.talks for one in talk.over]:
            one.dismiss()
            one.turn.wait(LONG)
        super().teardown()
        for talk in self.talks:
            if talk.running is not None:
                talk.running.dismiss()

    def _follow(self, engine: Any) -> None:
        engine.on("status", lambda event: self.statuses.append(event.data["status"]))

    @initialize(target=sessions)
    def first(self) -> Talk:
        """A session."""
        return self._start()

    @rule(target=sessions)
    @precondition(lambda self: sum(not talk.ended for talk in self.talks) < _MOST_ALIVE)
    def start_session(self) -> Talk:
        """One more session."""
        return self._start()

    def _start(self) -> Talk:
        session = self.engines[0].start_session("task", eviction=FOREVER)
        handles = [each.get_session(session.id) for each in self.engines]
        talk = Talk(f"s{len(self.talks) + 1}", handles, [(event.type, None) for event in self.log_of(session.id)])
        self.talks.append(talk)
        return talk

    def _begun(self, talk: Talk, running: Running) -> None:
        talk.running = running
        require_equal(f"A turn of {talk} has the name that the log has.", talk.turn_starts(running.turn.runs), running.turn.ref)
        require_equal(f"A turn of {talk} runs.", "running", running.turn.status)

    def _ends(self, talk: Talk, status: str, act: Callable[[Running], object], *, value: Any = None, error: str | None = None) -> None:
        one = talk.running
        assert one is not None
        act(one)
        require(one.turn.wait(LONG), f"A turn of {talk} that is to end does end.")
        talk.running = None
        talk.turn_ends(one.turn.ref, status, error)
        require_equal(f"A turn of {talk} says how it ended.", (status, value), (one.turn.status, one.turn.value))
        if status != "interrupted":
            require_equal(f"A turn of {talk} says what went wrong.", error, one.turn.error)
        else:
            self.interrupted.append(status)
        if status == "interrupted" and one.turn.runs == "thread":
            talk.over.append(one)
        else:
            one.dismiss()

    # Turns begin -------------------------------------------------------------------------------------------------------------------

    @rule(talk=ready, by=_ENGINES, runs=_RUNS, calls=st.lists(_CALLS, max_size=2))
    @_some_ready
    def start_turn(self, talk: Talk, by: int, runs: str, calls: list[str]) -> None:
        """What an earlier one left open is closed first; then it calls some tools."""
        puppet = Puppet()
        self._begun(talk, Running(talk.handles[by].start_turn(puppet, runs=runs), by, puppet))
        for call_id in calls:
            self.call(talk, by, True, call_id, "shell")

    @rule(talk=ended, by=_ENGINES, runs=_RUNS)
    @_some_ended
    @at_most(1)
    def start_turn_in_vain(self, talk: Talk, by: int, runs: str) -> None:
        """In a session that is over."""
        start = talk.handles[by].start_turn  # perhaps of an engine that was closed since
        ask(f"{talk}.start_turn()", lambda: start(lambda _context: None, runs=runs), {"SESSION_EXPIRED", "ADAPTER_UNAVAILABLE"})

    @rule(talk=busy, by=_ENGINES, runs=_RUNS)
    @_some_busy
    @at_most(_MOST_REFUSALS)
    def start_another_turn(self, talk: Talk, by: int, runs: str) -> None:
        """While one runs, by whichever engine: it is busy, and nothing comes of it; nor can another engine end the one that runs."""
        start = talk.handles[by].start_turn
        ask(f"{talk}.start_turn() during a turn", lambda: start(lambda _context: None, runs=runs).wait(LONG), {"TURN_BUSY"})
        assert talk.running is not None
        if by != talk.running.engine:
            ask(f"{talk}.interrupt() by another engine", talk.handles[by].interrupt, {"TURN_BUSY"})

    @rule(talk=ready, engines=st.tuples(_ENGINES, _ENGINES))
    @_some_ready
    @at_most(_MOST_REFUSALS)
    def start_two_turns(self, talk: Talk, engines: tuple[int, int]) -> None:
        """At the same time: one of them begins, and the other is told that there is one."""
        begun, refused = at_once(lambda by, puppet: talk.handles[by].start_turn(puppet, runs="thread"), engines)
        talk.over += begun if len(begun) > 1 else []
        require_equal("Of two turns at once one begins.", (1, ["TURN_BUSY"]), (len(begun), refused))
        self._begun(talk, begun[0])
        self._ends(talk, "done", lambda one: one.puppet.tell("return", 7), value=7)  # which one it was must not matter later

    @rule(talk=ready, call_id=_CALLS, tool=_TOOLS)
    @_some_ready
    @at_most(2)
    def engine_is_killed(self, talk: Talk, call_id: str, tool: str) -> None:
        """Another process starts a turn, which calls a tool, and all of it dies."""
        call = {"call_id": call_id, "name": tool, "args": {}}

        def call_and_die(context: TurnContext) -> None:
            context.record("tool_call", call)
            os.kill(os.getpid(), signal.SIGKILL)

        how = in_fork(lambda: talk.handles[0].start_turn(call_and_die, runs="thread").wait(LONG), timeout=LONG)
        require(how.signal == signal.SIGKILL, "A turn begins in another process.", str(how.error))
        talk.lost = talk.turn_starts("thread")
        talk.happens("tool_call", call)

    # What is said ------------------------------------------------------------------------------------------------------------------

    @rule(talk=sessions, by=_ENGINES, within=st.booleans(), call_id=_CALLS, tool=_TOOLS)
    def call(self, talk: Talk, by: int, within: bool, call_id: str, tool: str) -> None:
        """A tool is called, perhaps under an id that was used before."""
        self._say(talk, by, within, "tool_call", {"call_id": call_id, "name": tool, "args": {}})

    @rule(talk=sessions, by=_ENGINES, within=st.booleans(), call_id=_CALLS)
    @at_most(5)
    def answer(self, talk: Talk, by: int, within: bool, call_id: str) -> None:
        """A call is answered: one that is open, or not yet, or not any more."""
        self._say(talk, by, within, "tool_result", {"call_id": call_id, "ok": True})

    @rule(talk=sessions, by=_ENGINES, data=st.sampled_from([b"2\n", b"3\n"]))
    @at_most(3)
    def write(self, talk: Talk, by: int, data: bytes) -> None:
        """A file is written, by the turn if there is one."""
        if talk.running is not None:
            invariant_answer(talk.running.puppet.asked("write", data), talk.allowed, to=f"{talk}'s turn, writing,")
        else:
            ask(f"{talk}.write()", lambda: talk.handles[by].write("a", data), talk.allowed)
        if not talk.ended:
            talk.happens("session.write", {"path": "a", "op": "write"})

    def _say(self, talk: Talk, by: int, within: bool, type_: str, data: dict[str, Any]) -> None:
        if within and talk.running is not None:
            invariant_answer(talk.running.puppet.asked(type_, data), talk.allowed, to=f"{talk}'s turn, recording {type_!r},")
        else:
            ask(f"{talk}.record({type_!r})", lambda: talk.handles[by].record(type_, data), talk.allowed)
        if not talk.ended:
            talk.happens(type_, data)

    # Turns end -----------------------------------------------------------------------------------------------------------------------

    @rule(talk=busy, how=st.sampled_from(["returns", "raises", "dies", "is interrupted"]))
    @_some_busy
    def turn_ends(self, talk: Talk, how: str) -> None:
        """In one of the ways there are; only a process can die by itself."""
        assert talk.running is not None
        if how == "is interrupted":
            by = talk.handles[talk.running.engine]
            self._ends(talk, "interrupted", lambda _one: require(by.interrupt(), f"{talk}.interrupt() says that there was a turn."))
        elif how == "returns":
            self._ends(talk, "done", lambda one: one.puppet.tell("return", 42), value=42)
        elif how == "dies" and talk.running.turn.runs == "process":
            self._ends(talk, "failed", lambda one: one.puppet.tell("die"), error="its process ended with -9")
        else:
            self._ends(talk, "failed", lambda one: one.puppet.tell("raise", "no model"), error="ValueError: no model")

    @rule(talk=idle, by=_ENGINES)
    @_some_idle
    @at_most(3)
    def interrupt_nothing(self, talk: Talk, by: int) -> None:
        """The person thinks that there is a turn."""
        there_was = ask(f"{talk}.interrupt()", talk.handles[by].interrupt, talk.allowed)
        require(not there_was, f"{talk}.interrupt() says that there was no turn.")
        if not talk.ended:
            talk.lost_turn_ends()
            talk.orphans_are_answered("interrupt_no_turn")

    @rule(talk=sessions.filter(lambda talk: talk.over), call_id=_CALLS)
    @precondition(lambda self: any(talk.over for talk in self.talks))
    def thread_goes_on(self, talk: Talk, call_id: str) -> None:
        """After its interrupt, which it did not notice: it can do nothing any more."""
        for one in talk.over:
            for order in (("tool_result", {"call_id": call_id, "ok": True}), ("write", b"late\n")):
                allowed = {"TURN_OVER", "SESSION_EXPIRED"} if talk.ended else {"TURN_OVER"}
                invariant_answer(one.puppet.asked(*order), allowed, to=f"A turn of {talk} that was interrupted")

    @rule(which=_ENGINES)
    @_some_busy
    def engine_closes(self, which: int) -> None:
        """Its turns are interrupted; another engine takes its place."""
        hit = [talk for talk in self.talks if talk.running is not None and talk.running.engine == which]
        engine = self.restart(which)
        self._follow(engine)
        for talk in hit:
            self._ends(talk, "interrupted", lambda _one: None)
        for talk in self.talks:
            if not talk.ended:
                talk.handles[which] = engine.get_session(talk.id)

    @rule(talk=sessions, by=_ENGINES)
    @at_most(2)
    def discard(self, talk: Talk, by: int) -> None:
        """A person gives the session up, even during a turn, which ends with it if the same engine runs it."""
        ask(f"{talk}.discard()", talk.handles[by].discard, talk.allowed)
        if not talk.ended:
            talk.ended = True
            for type_ in ("session.ended", *["archive.written"] * talk.written, "workspace.removed"):
                talk.happens(type_, None)
            if talk.running is not None and talk.running.engine == by:
                self._ends(talk, "interrupted", lambda _one: None)

    # What must hold --------------------------------------------------------------------------------------------------------------------

    @invariant()
    def histories_are_as_they_must_be(self) -> None:
        """Event by event; and they can have happened."""
        for talk in self.talks:
            events = self.log_of(talk.id)
            found = [
                (event.type, dict(event.data) if data is not None else None) for event, (_, data) in zip(events, talk.events, strict=False)
            ]
            found += [(event.type, dict(event.data)) for event in events[len(found) :]]
            require_equal(f"The history of {talk} is what happened.", talk.events, found)
            require_turns_in_order(events)
            state = fold(events)
            require_equal(f"The open calls of {talk} are those without an answer.", talk.calls, state.calls)
            open_turn = talk.running.turn.ref if talk.running is not None else talk.lost
            require_equal(f"The open turn of {talk} is the one that runs, or was lost.", open_turn, state.turn)
            runs = {handle.turn_running for handle in talk.handles}
            require_equal(f"{talk}.turn_running is true while one runs, whichever engine is asked.", {talk.running is not None}, runs)

    @invariant()
    def interrupts_are_announced(self) -> None:
        """Each once."""
        require_equal("Each interrupt is announced, once.", self.interrupted, self.statuses)
