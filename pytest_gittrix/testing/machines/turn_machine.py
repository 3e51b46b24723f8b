"""A state machine for turns: one at a time, ended in every way there is, with tool calls left open and answered, against a small model.

Each turn does what the machine tells it through a pipe (``ScriptedTurn``), so nothing depends on which process is quicker. To run it on our
own engine, in a world opened in any way::

    TestTurns = machine_of(TurnMachine).TestCase
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, precondition, rule

from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.testing.machines.machine_base import ENGINES, LONG, MachineSession, WorldMachine, ask, at_most, require_equal
from pytest_gittrix.testing.machines.scripted_turn import RunningTurn, at_once
from pytest_gittrix.testing.oracle import invariant_answer, require

_MOST_ALIVE = 2
_some_busy = precondition(lambda self: any(session.running is not None for session in self.known))
_some_idle = precondition(lambda self: any(session.running is None for session in self.known))
_some_ended = precondition(lambda self: any(session.running is None and session.ended for session in self.known))
_some_ready = precondition(lambda self: any(session.running is None and not session.ended for session in self.known))
# What a busy session refuses, it refuses after a tenth of a second, which is too dear to do often.
_MOST_REFUSALS = 1
_RUNS = st.sampled_from(["thread"] * 3 + ["task"] * 2 + ["process"])
_CALLS = st.sampled_from(["c1", "c2", "c3"])
_TOOLS = st.sampled_from(["shell", "grep"])

ExpectedEvent = tuple[str, dict[str, Any] | None]
"""What is expected of an event: its type, and its data; None for any data."""


@dataclass(eq=False, repr=False)
class TurnSession(MachineSession):
    """One session and its expected state; its history is of ``ExpectedEvent``.

    Attributes:
        calls: the tool of each call without an answer, by the id of the call.
        running: its turn; None while none runs.
        lost: the name of a turn that died with its engine.
        over: interrupted turns whose threads still run.
        written: whether a file was ever written.
        unsaved: whether a file was written since the last checkpoint.
    """

    calls: dict[str, str] = field(default_factory=dict)
    running: RunningTurn | None = None
    lost: str | None = None
    over: list[RunningTurn] = field(default_factory=list)
    written: bool = False
    unsaved: bool = False

    def happens(self, type_: str, data: dict[str, Any] | None) -> None:
        """Enter an event; calls are opened and answered by it."""
        if type_ == "tool_call" and data:
            self.calls[data["call_id"]] = data["name"]
        if type_ == "tool_result" and data:
            self.calls.pop(data["call_id"], None)
        if type_ == "session.write":
            self.written = self.unsaved = True
        self.events.append((type_, data))

    def turn_starts(self, runs: str) -> str:
        """Enter that a turn starts, after all that an earlier turn left open is closed; gives its name."""
        self.lost_turn_ends()
        self.orphans_are_answered("before_start_turn")
        self.files_are_saved()
        ref = f"t{len(self.events)}"
        self.happens("turn.started", {"turn": ref, "runs": runs})
        return ref

    def lost_turn_ends(self) -> None:
        """Enter the end of a turn that died with its engine, if there is such a turn."""
        if self.lost is not None:
            self.happens("turn.ended", {"turn": self.lost, "status": "lost"})
            self.lost = None

    def turn_ends(self, ref: str, status: str, error: str | None) -> None:
        """Enter the end of a turn; if it was interrupted, its open calls are answered."""
        self.files_are_saved()
        reason = {"reason": error} if error is not None and status == "failed" else {}
        self.happens("turn.ended", {"turn": ref, "status": status, **reason})
        if status == "interrupted" and not self.ended:
            self.orphans_are_answered("interrupt")

    def files_are_saved(self) -> None:
        """Enter a checkpoint, if files were written since the last one."""
        if self.unsaved and not self.ended:
            self.events.append(("workspace.kept", None))
            self.unsaved = False

    def orphans_are_answered(self, reason: str) -> None:
        """Enter the documented answer to each open call, in the order of their ids."""
        for call_id, tool in sorted(self.calls.items()):
            details = {"call_id": call_id, "tool": tool, "reason": reason}
            error = {"kind": "orphan_tool_call", "message": "The call was never answered.", "details": details}
            self.happens("tool_result", {"call_id": call_id, "ok": False, "error": error})


class TurnMachine(WorldMachine):
    """Turns in threads and processes, and those that the machine runs by itself, by two engines on one store.

    After every step: each history is the expected one, and its turns are in order; open calls and open turns are those of the model.
    """

    sessions: ClassVar[Bundle[TurnSession]] = Bundle("sessions")
    busy = sessions.filter(lambda session: session.running is not None)
    idle = sessions.filter(lambda session: session.running is None)
    ended = sessions.filter(lambda session: session.running is None and session.ended)
    ready = sessions.filter(lambda session: session.running is None and not session.ended)

    def __init__(self) -> None:
        super().__init__()
        self.known: list[TurnSession] = []
        self.statuses: list[str] = []
        self.interrupted: list[str] = []
        for engine in self.engines:
            self._follow(engine)

    def teardown(self) -> None:
        """End every turn, then close the engines and the world."""
        for one in [one for session in self.known for one in session.over]:
            one.dismiss()
            one.turn.wait(LONG)
        super().teardown()
        for session in self.known:
            if session.running is not None:
                session.running.dismiss()

    def _follow(self, engine: Any) -> None:
        engine.on("status", lambda event: self.statuses.append(event.data["status"]))

    @initialize(target=sessions)
    def first(self) -> TurnSession:
        """A session."""
        return self._start()

    @rule(target=sessions)
    @precondition(lambda self: sum(not session.ended for session in self.known) < _MOST_ALIVE)
    def start_session(self) -> TurnSession:
        """One more session."""
        return self._start()

    def _start(self) -> TurnSession:
        handles = self.start_task(0)
        session = TurnSession(f"s{len(self.known) + 1}", handles, [(event.type, None) for event in self.log_of(handles[0].id)])
        self.known.append(session)
        return session

    def _begins(self, session: TurnSession, running: RunningTurn) -> None:
        session.running = running
        require_equal(f"A turn of {session} has the name that the log has.", session.turn_starts(running.turn.runs), running.turn.ref)
        require_equal(f"A turn of {session} runs.", "running", running.turn.status)

    def _ends(
        self, session: TurnSession, status: str, act: Callable[[RunningTurn], object], *, value: Any = None, error: str | None = None
    ) -> None:
        one = session.running
        assert one is not None
        act(one)
        require(one.turn.wait(LONG), f"A turn of {session} that is to end does end.")
        session.running = None
        session.turn_ends(one.turn.ref, status, error)
        require_equal(f"A turn of {session} says how it ended.", (status, value), (one.turn.status, one.turn.value))
        if status != "interrupted":
            require_equal(f"A turn of {session} says what went wrong.", error, one.turn.error)
        else:
            self.interrupted.append(status)
        if status == "interrupted" and one.turn.runs != "process":
            session.over.append(one)
        else:
            one.dismiss()

    # Turns begin -------------------------------------------------------------------------------------------------------------------

    @rule(session=ready, by=ENGINES, runs=_RUNS, calls=st.lists(_CALLS, max_size=2))
    @_some_ready
    def start_turn(self, session: TurnSession, by: int, runs: str, calls: list[str]) -> None:
        """A turn starts, after all that an earlier turn left open is closed; then it calls some tools."""
        self._begins(session, RunningTurn.start(session.handles[by], by, runs))
        for call_id in calls:
            self.call(session, by, True, call_id, "shell")

    @rule(session=ended, by=ENGINES, runs=_RUNS)
    @_some_ended
    @at_most(1)
    def start_turn_in_vain(self, session: TurnSession, by: int, runs: str) -> None:
        """A session that has ended takes no turn."""
        handle = session.handles[by]  # perhaps of an engine that was closed since
        ask(f"{session}.start_turn()", lambda: RunningTurn.start(handle, by, runs), {"SESSION_EXPIRED", "ADAPTER_UNAVAILABLE"})

    @rule(session=busy, by=ENGINES, runs=_RUNS)
    @_some_busy
    @at_most(_MOST_REFUSALS)
    def start_another_turn(self, session: TurnSession, by: int, runs: str) -> None:
        """While a turn runs, either engine is refused a second one, and the other engine cannot interrupt the one that runs."""
        ask(f"{session}.start_turn() during a turn", lambda: RunningTurn.start(session.handles[by], by, runs), {"TURN_BUSY"})
        assert session.running is not None
        if by != session.running.engine:
            ask(f"{session}.interrupt() by another engine", session.handles[by].interrupt, {"TURN_BUSY"})

    @rule(session=ready, engines=st.tuples(ENGINES, ENGINES))
    @_some_ready
    @at_most(_MOST_REFUSALS)
    def start_two_turns(self, session: TurnSession, engines: tuple[int, int]) -> None:
        """Two turns start at the same time: one begins, and the other is refused."""
        begun, refused = at_once(lambda by, scripted: session.handles[by].start_turn(scripted, runs="thread"), engines)
        session.over += begun if len(begun) > 1 else []
        require_equal("Of two turns at once one begins.", (1, ["TURN_BUSY"]), (len(begun), refused))
        self._begins(session, begun[0])
        self._ends(session, "done", lambda one: one.scripted.send("return", 7), value=7)  # which one it was must not matter later

    @rule(session=ready, call_id=_CALLS, tool=_TOOLS)
    @_some_ready
    @at_most(2)
    def engine_is_killed(self, session: TurnSession, call_id: str, tool: str) -> None:
        """Another process starts a turn, which calls a tool, and all of it dies."""
        call = {"call_id": call_id, "name": tool, "args": {}}

        def call_and_die(context: TurnContext) -> None:
            context.record("tool_call", call)
            os.kill(os.getpid(), signal.SIGKILL)

        how = in_fork(lambda: session.handles[0].start_turn(call_and_die, runs="thread").wait(LONG), timeout=LONG)
        require(how.signal == signal.SIGKILL, "A turn begins in another process.", str(how.error))
        session.lost = session.turn_starts("thread")
        session.happens("tool_call", call)

    # Recording and writing ---------------------------------------------------------------------------------------------------------------

    @rule(session=sessions, by=ENGINES, within=st.booleans(), call_id=_CALLS, tool=_TOOLS)
    def call(self, session: TurnSession, by: int, within: bool, call_id: str, tool: str) -> None:
        """A tool is called, perhaps under an id that was used before."""
        self._say(session, by, within, "tool_call", {"call_id": call_id, "name": tool, "args": {}})

    @rule(session=sessions, by=ENGINES, within=st.booleans(), call_id=_CALLS)
    @at_most(5)
    def answer(self, session: TurnSession, by: int, within: bool, call_id: str) -> None:
        """A call is answered that is open, is not open yet, or was answered before."""
        self._say(session, by, within, "tool_result", {"call_id": call_id, "ok": True})

    @rule(session=sessions, by=ENGINES, data=st.sampled_from([b"2\n", b"3\n"]))
    @at_most(3)
    def write(self, session: TurnSession, by: int, data: bytes) -> None:
        """A file is written, by the turn if one runs."""
        if session.running is not None:
            invariant_answer(session.running.scripted.request("write", data), session.allowed, to=f"{session}'s turn, writing,")
        else:
            ask(f"{session}.write()", lambda: session.handles[by].write("a", data), session.allowed)
        if not session.ended:
            session.happens("session.write", {"path": "a", "op": "write"})

    def _say(self, session: TurnSession, by: int, within: bool, type_: str, data: dict[str, Any]) -> None:
        if within and session.running is not None:
            invariant_answer(session.running.scripted.request(type_, data), session.allowed, to=f"{session}'s turn, recording {type_!r},")
        else:
            ask(f"{session}.record({type_!r})", lambda: session.handles[by].record(type_, data), session.allowed)
        if not session.ended:
            session.happens(type_, data)

    # Turns end -----------------------------------------------------------------------------------------------------------------------

    @rule(session=busy, how=st.sampled_from(["returns", "raises", "dies", "is interrupted"]))
    @_some_busy
    def turn_ends(self, session: TurnSession, how: str) -> None:
        """A turn returns, raises, dies or is interrupted; only one in a process can die."""
        assert session.running is not None
        if how == "is interrupted":
            by = session.handles[session.running.engine]
            self._ends(session, "interrupted", lambda _one: require(by.interrupt(), f"{session}.interrupt() says that there was a turn."))
        elif how == "returns":
            self._ends(session, "done", lambda one: one.scripted.send("return", 42), value=42)
        elif how == "dies" and session.running.turn.runs == "process":
            self._ends(session, "failed", lambda one: one.scripted.send("die"), error="its process ended with -9")
        else:
            self._ends(session, "failed", lambda one: one.scripted.send("raise", "no model"), error="ValueError: no model")

    @rule(session=idle, by=ENGINES)
    @_some_idle
    @at_most(3)
    def interrupt_nothing(self, session: TurnSession, by: int) -> None:
        """The person interrupts a session without a turn."""
        there_was = ask(f"{session}.interrupt()", session.handles[by].interrupt, session.allowed)
        require(not there_was, f"{session}.interrupt() says that there was no turn.")
        if not session.ended:
            session.lost_turn_ends()
            session.orphans_are_answered("interrupt_no_turn")

    @rule(session=sessions.filter(lambda session: session.over), call_id=_CALLS)
    @precondition(lambda self: any(session.over for session in self.known))
    def thread_goes_on(self, session: TurnSession, call_id: str) -> None:
        """A thread that did not notice its interrupt goes on: everything it does is refused."""
        for one in session.over:
            for request in (("tool_result", {"call_id": call_id, "ok": True}), ("write", b"late\n")):
                allowed = {"TURN_OVER", "SESSION_EXPIRED"} if session.ended else {"TURN_OVER"}
                invariant_answer(one.scripted.request(*request), allowed, to=f"A turn of {session} that was interrupted")

    @rule(which=ENGINES)
    @_some_busy
    def engine_closes(self, which: int) -> None:
        """An engine is closed, which interrupts its turns; a new one takes its place."""
        interrupted = [session for session in self.known if session.running is not None and session.running.engine == which]
        engine = self.restart(which)
        self._follow(engine)
        for session in interrupted:
            self._ends(session, "interrupted", lambda _one: None)

    @rule(session=sessions, by=ENGINES)
    @at_most(2)
    def discard(self, session: TurnSession, by: int) -> None:
        """The person discards a session, even during a turn, which ends with it if the same engine runs it."""
        ask(f"{session}.discard()", session.handles[by].discard, session.allowed)
        if not session.ended:
            session.ended = True
            for type_ in ("session.ended", *["archive.written"] * session.written, "workspace.removed"):
                session.happens(type_, None)
            if session.running is not None and session.running.engine == by:
                self._ends(session, "interrupted", lambda _one: None)

    # What must hold --------------------------------------------------------------------------------------------------------------------

    @invariant()
    def histories_are_as_they_must_be(self) -> None:
        """Each history is the expected one, event by event, and its turns are in order."""
        for session in self.known:
            events = self.log_of(session.id)
            found = [
                (event.type, dict(event.data) if data is not None else None)
                for event, (_, data) in zip(events, session.events, strict=False)
            ]
            found += [(event.type, dict(event.data)) for event in events[len(found) :]]
            require_equal(f"The history of {session} is what happened.", session.events, found)
            state = fold(events)
            require_equal(f"The open calls of {session} are those without an answer.", session.calls, state.calls)
            open_turn = session.running.turn.ref if session.running is not None else session.lost
            require_equal(f"The open turn of {session} is the one that runs, or was lost.", open_turn, state.turn)
            runs = {handle.turn_running for handle in session.handles}
            require_equal(f"{session}.turn_running is true while one runs, whichever engine is asked.", {session.running is not None}, runs)

    @invariant()
    def interrupts_are_announced(self) -> None:
        """Each interrupt is announced once."""
        require_equal("Each interrupt is announced, once.", self.interrupted, self.statuses)
