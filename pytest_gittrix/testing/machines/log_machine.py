"""A state machine for the history of sessions: several writers, listeners, refusals, torn ends and restarts, against a plain list.

To run it on our own engine, in a world opened in any way::

    TestHistory = machine_of(LogMachine).TestCase

Must know no pytest.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, precondition, rule

from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.testing.machines.log_model import PASSING, REFUSED, SAYINGS, Ear, Saying, Telling, as_stored, line
from pytest_gittrix.testing.machines.machine_base import FOREVER, LONG, WorldMachine, ask, at_most, done, require_equal
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.session_model import FINE

_MOST_SESSIONS, _MOST_EARS = 3, 6
_ENGINES = st.integers(0, 1)
_FILTERS = st.none() | st.sets(st.sampled_from(["user_message", "tool_call", "tool_result", "text_delta", "session.ended"]), max_size=2)


class LogMachine(WorldMachine):
    """Histories that two engines and other processes write, with refusals, listeners, torn ends and restarts.

    After every step: each history is the list it must be, for every reader; its numbers have no gap; what was stored is as it was; what was
    announced had been stored, and reached exactly those who listen.
    """

    sessions: ClassVar[Bundle[Telling]] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Telling] = []
        self.ears: list[Ear] = []

    @initialize(target=sessions)
    def first(self) -> Telling:
        """A session."""
        return self._start(0)

    @rule(target=sessions, engine=_ENGINES)
    @precondition(lambda self: len(self.told) < _MOST_SESSIONS)
    def start(self, engine: int) -> Telling:
        """One more session."""
        return self._start(engine)

    def _start(self, engine: int) -> Telling:
        session = self.engines[engine].start_session("task", eviction=FOREVER)
        lines = [line(event) for event in self.log_of(session.id)]
        require_equal("A history begins with a birth and a workspace.", ["session.created", "workspace.ready"], [one[0] for one in lines])
        handles = [each.get_session(session.id) for each in self.engines]
        self.told.append(Telling(f"s{len(self.told) + 1}", handles, lines))
        self._listen(self.told[-1], engine, None)
        return self.told[-1]

    # What is said ----------------------------------------------------------------------------------------------------------------

    @rule(session=sessions, by=_ENGINES, agent=st.booleans(), saying=SAYINGS)
    def record(self, session: Telling, by: int, agent: bool, saying: Saying) -> None:
        """Somebody records something, by either engine, as the person or the agent."""
        handle = session.handles[by].for_agent() if agent else session.handles[by]
        event = ask(f"{session}.record({saying[0]!r})", lambda: handle.record(*saying), self._allowed(session))
        if event is not None:
            self._stored(session, saying, "agent" if agent else "human", by)
            require_equal("What record() gives is the event as stored.", self._expected_last(session), (event.seq, *line(event)))

    @rule(session=sessions, saying=SAYINGS)
    @at_most(3)
    def another_process_records(self, session: Telling, saying: Saying) -> None:
        """The same in another process; nobody here is told."""
        act = session.handles[0].record
        answer = done(in_fork(lambda: ask(f"{session}.record()", lambda: act(*saying), self._allowed(session)) is None, timeout=LONG))
        if not answer:
            self._stored(session, saying, "human", None)

    @rule(session=sessions, by=_ENGINES, what=st.sampled_from(sorted(REFUSED)))
    def record_what_is_refused(self, session: Telling, by: int, what: str) -> None:
        """Nothing is stored, no number is used up, nobody is told."""
        allowed = {"INVALID_INPUT", "SESSION_EXPIRED"} if session.ended else {"INVALID_INPUT"}
        ask(f"{session}.record() of {what}", lambda: session.handles[by].record(*REFUSED[what]), allowed)
        self._mended(session)

    @rule(session=sessions, by=_ENGINES, saying=PASSING)
    def emit(self, session: Telling, by: int, saying: Saying) -> None:
        """Somebody announces something, and stores nothing."""
        ask(f"{session}.emit({saying[0]!r})", lambda: session.handles[by].emit(*saying), self._allowed(session))
        if not session.ended:
            self._announced(session, by, -1, saying[0], as_stored(saying[1]))

    @rule(session=sessions, by=_ENGINES)
    @at_most(2)
    def end(self, session: Telling, by: int) -> None:
        """A person gives the session up; its history can still be read."""
        now = self._now
        ask(f"{session}.discard()", session.handles[by].discard, self._allowed(session))
        if session.ended:
            return
        self._mended(session)
        session.ended = True
        for type_, data in (("session.ended", {"state": "discarded"}), ("workspace.removed", {})):
            session.lines.append((type_, "system", now, data))
            self._announced(session, by, len(session.lines) - 1, type_, data)

    # What may come in between ------------------------------------------------------------------------------------------------------

    @rule(session=sessions, size=st.integers(1, 400))
    def writer_is_killed(self, session: Telling, size: int) -> None:
        """In the middle of a line; whoever writes next cuts it off, and says so."""
        if session.torn or session.ended:
            return
        whole = encode(Event(len(session.lines), self._now, session.id, "assistant_message", "agent", {"text": "x" * 60}))
        session.torn = min(size, len(whole))
        with self.path_of(session.id).open("ab") as file:
            file.write(whole[: session.torn])

    @rule(session=sessions, by=_ENGINES, types=_FILTERS)
    @precondition(lambda self: len(self.ears) < _MOST_EARS)
    def listen(self, session: Telling, by: int, types: set[str] | None) -> None:
        """Somebody listens from now on."""
        self._listen(session, by, None if types is None else frozenset(types))

    def _listen(self, session: Telling, by: int, types: frozenset[str] | None) -> None:
        ear = Ear(session, by, types)
        ear.end = session.handles[by].subscribe(lambda event: self._hear(ear, event), types)
        self.ears.append(ear)

    @rule(which=st.integers(0, _MOST_EARS - 1))
    @precondition(lambda self: self.ears)
    def listen_no_more(self, which: int) -> None:
        """Somebody does not listen any more, and hears nothing from then on."""
        self.ears[which % len(self.ears)].end()
        self.ears[which % len(self.ears)].engine = -1

    @rule(which=_ENGINES)
    @at_most(3)
    def engine_restarts(self, which: int) -> None:
        """Who listened by it listens no more."""
        engine = self.restart(which)
        for session in self.told:
            if not session.ended:
                session.handles[which] = engine.get_session(session.id)
        for ear in self.ears:
            ear.engine = -1 if ear.engine == which else ear.engine

    @rule(by=st.sampled_from([timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)]))
    @at_most(3)
    def time_passes(self, by: timedelta) -> None:
        """No session runs out of it."""
        self.world.clock.advance(by)

    @rule(session=sessions, by=_ENGINES, types=_FILTERS)
    def read_some(self, session: Telling, by: int, types: set[str] | None) -> None:
        """The history of some types."""
        wanted = [one for one in session.lines if types is None or one[0] in types]
        found = [line(event) for event in session.handles[by].history(types)]
        require_equal(f"{session}.history({types}) has what there is of these.", wanted, found)

    # What must hold ----------------------------------------------------------------------------------------------------------------

    @invariant()
    def histories_are_as_told(self) -> None:
        """For a reader that has seen nothing yet, and for both engines."""
        for session in self.told:
            events = self.log_of(session.id, torn=bool(session.torn))
            require_equal(f"The history of {session} is what was told.", session.lines, [line(event) for event in events])
            require_equal(f"The numbers of {session} have no gap.", [*range(len(events))], [event.seq for event in events])
            for number, handle in enumerate(session.handles):
                require_equal(f"{session}.history() of engine {number} is what is stored.", events, handle.history())

    @invariant()
    def what_is_stored_stays(self) -> None:
        """A log only grows; what follows its last whole line is not in it."""
        for session in self.told:
            raw = self.path_of(session.id).read_bytes()
            require(raw.startswith(session.kept), f"Nothing that was stored of {session} is changed.")
            session.kept = raw[: len(raw) - session.torn]

    @invariant()
    def announcements_are_of_what_is_stored(self) -> None:
        """Each one, when it is heard; and whoever listens hears what it asked for, once, in order."""
        for ear in self.ears:
            require(not ear.unstored, f"An event of {ear.to} is announced once it is stored.", str(ear.unstored))
            require_equal(f"Who listens to {ear.to} hears what it asked for.", ear.expected, ear.heard)

    # The model ---------------------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        now = self.world.clock.now_ns()
        return now - now % 1000

    def _allowed(self, session: Telling) -> frozenset[str]:
        return frozenset({"SESSION_EXPIRED"}) if session.ended else FINE

    def _mended(self, session: Telling) -> None:
        """Take in that a torn end was cut off, which whoever takes the lease does, even if it is refused afterwards."""
        events = self.log_of(session.id, torn=True)
        if session.torn and len(events) > len(session.lines) and events[len(session.lines)].type == "log.recovered":
            session.lines.append(("log.recovered", "system", self._now, {"dropped_bytes": session.torn}))
            session.torn = 0

    def _stored(self, session: Telling, saying: Saying, actor: str, by: int | None) -> None:
        self._mended(session)
        require(not session.torn, f"A torn end of {session} is cut off, and said so, before anything is stored.")
        session.lines.append((saying[0], actor, self._now, as_stored(saying[1])))
        if by is not None:
            self._announced(session, by, len(session.lines) - 1, saying[0], as_stored(saying[1]))

    def _expected_last(self, session: Telling) -> tuple[Any, ...]:
        return (len(session.lines) - 1, *session.lines[-1])

    def _announced(self, session: Telling, by: int, seq: int, type_: str, data: dict[str, Any]) -> None:
        for ear in self.ears:
            if ear.to is session and ear.engine == by and (ear.types is None or type_ in ear.types):
                ear.expected.append((seq, type_, data))

    def _hear(self, ear: Ear, event: Event) -> None:
        ear.heard.append((event.seq, event.type, dict(event.data)))
        if event.seq >= 0 and event not in EventLog(self.path_of(ear.to.id), ear.to.id).salvage().events[event.seq :]:
            ear.unstored.append(event)
