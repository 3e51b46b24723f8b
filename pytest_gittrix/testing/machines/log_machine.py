"""A state machine for the histories of sessions: several writers, listeners, refusals, torn ends and restarts, against plain lists.

To run it on our own engine, in a world opened in any way::

    TestHistory = machine_of(LogMachine).TestCase
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, precondition, rule

from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.testing.machines.log_model import (
    ANNOUNCEMENTS,
    MESSAGES,
    REFUSED,
    Listener,
    LogSession,
    Message,
    as_stored,
    expected_of,
)
from pytest_gittrix.testing.machines.machine_base import LONG, WorldMachine, ask, at_most, done, require_equal
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.session_model import FINE

_MOST_SESSIONS, _MOST_LISTENERS = 3, 6
_ENGINES = st.integers(0, 1)
_FILTERS = st.none() | st.sets(st.sampled_from(["user_message", "tool_call", "tool_result", "text_delta", "session.ended"]), max_size=2)


class LogMachine(WorldMachine):
    """Histories that two engines and other processes write, with refusals, listeners, torn ends and restarts.

    After every step: each history is the expected list, for every reader; its numbers have no gap; stored events have not changed; every
    announced event had been stored before, and reached exactly its listeners.
    """

    sessions: ClassVar[Bundle[LogSession]] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.known: list[LogSession] = []
        self.listeners: list[Listener] = []

    @initialize(target=sessions)
    def first(self) -> LogSession:
        """A session."""
        return self._start(0)

    @rule(target=sessions, engine=_ENGINES)
    @precondition(lambda self: len(self.known) < _MOST_SESSIONS)
    def start(self, engine: int) -> LogSession:
        """One more session."""
        return self._start(engine)

    def _start(self, engine: int) -> LogSession:
        handles = self.start_task(engine)
        events = [expected_of(event) for event in self.log_of(handles[0].id)]
        require_equal("A history begins with a birth and a workspace.", ["session.created", "workspace.ready"], [one[0] for one in events])
        self.known.append(LogSession(f"s{len(self.known) + 1}", handles, events))
        self._listen(self.known[-1], engine, None)
        return self.known[-1]

    # Recording -------------------------------------------------------------------------------------------------------------------

    @rule(session=sessions, by=_ENGINES, agent=st.booleans(), message=MESSAGES)
    def record(self, session: LogSession, by: int, agent: bool, message: Message) -> None:
        """The person or the agent records a message, by either engine."""
        handle = session.handles[by].for_agent() if agent else session.handles[by]
        event = ask(f"{session}.record({message[0]!r})", lambda: handle.record(*message), self._allowed(session))
        if event is not None:
            self._stored(session, message, "agent" if agent else "human", by)
            require_equal("What record() gives is the event as stored.", self._expected_last(session), (event.seq, *expected_of(event)))

    @rule(session=sessions, message=MESSAGES)
    @at_most(3)
    def another_process_records(self, session: LogSession, message: Message) -> None:
        """A message is recorded in another process; listeners in this process receive nothing."""
        act = session.handles[0].record
        refused = done(in_fork(lambda: ask(f"{session}.record()", lambda: act(*message), self._allowed(session)) is None, timeout=LONG))
        if not refused:
            self._stored(session, message, "human", None)

    @rule(session=sessions, by=_ENGINES, what=st.sampled_from(sorted(REFUSED)))
    def record_what_is_refused(self, session: LogSession, by: int, what: str) -> None:
        """A message is refused: nothing is stored, no number is used up, no listener receives it."""
        allowed = {"INVALID_INPUT", "SESSION_EXPIRED"} if session.ended else {"INVALID_INPUT"}
        ask(f"{session}.record() of {what}", lambda: session.handles[by].record(*REFUSED[what]), allowed)
        self._mended(session)

    @rule(session=sessions, by=_ENGINES, message=ANNOUNCEMENTS)
    def emit(self, session: LogSession, by: int, message: Message) -> None:
        """A message is announced and not stored."""
        ask(f"{session}.emit({message[0]!r})", lambda: session.handles[by].emit(*message), self._allowed(session))
        if not session.ended:
            self._announced(session, by, -1, message[0], as_stored(message[1]))

    @rule(session=sessions, by=_ENGINES)
    @at_most(2)
    def end(self, session: LogSession, by: int) -> None:
        """The person discards the session; its history can still be read."""
        now = self._now
        ask(f"{session}.discard()", session.handles[by].discard, self._allowed(session))
        if session.ended:
            return
        self._mended(session)
        session.ended = True
        for type_, data in (("session.ended", {"state": "discarded"}), ("workspace.removed", {})):
            session.events.append((type_, "system", now, data))
            self._announced(session, by, len(session.events) - 1, type_, data)

    # Kills, listeners, restarts and time -----------------------------------------------------------------------------------------------

    @rule(session=sessions, size=st.integers(1, 400))
    def writer_is_killed(self, session: LogSession, size: int) -> None:
        """A writer dies in the middle of a line; the next writer cuts the line off, and records that."""
        if session.torn or session.ended:
            return
        whole = encode(Event(len(session.events), self._now, session.id, "assistant_message", "agent", {"text": "x" * 60}))
        session.torn = min(size, len(whole))
        with self.path_of(session.id).open("ab") as file:
            file.write(whole[: session.torn])

    @rule(session=sessions, by=_ENGINES, types=_FILTERS)
    @precondition(lambda self: len(self.listeners) < _MOST_LISTENERS)
    def listen(self, session: LogSession, by: int, types: set[str] | None) -> None:
        """A listener subscribes."""
        self._listen(session, by, None if types is None else frozenset(types))

    def _listen(self, session: LogSession, by: int, types: frozenset[str] | None) -> None:
        listener = Listener(session, by, types)
        listener.end = session.handles[by].subscribe(lambda event: self._receive(listener, event), types)
        self.listeners.append(listener)

    @rule(which=st.integers(0, _MOST_LISTENERS - 1))
    @precondition(lambda self: self.listeners)
    def listen_no_more(self, which: int) -> None:
        """A listener ends its subscription, and receives nothing from then on."""
        self.listeners[which % len(self.listeners)].end()
        self.listeners[which % len(self.listeners)].engine = -1

    @rule(which=_ENGINES)
    @at_most(3)
    def engine_restarts(self, which: int) -> None:
        """The listeners of the closed engine receive nothing any more."""
        engine = self.restart(which)
        for session in self.known:
            if not session.ended:
                session.handles[which] = engine.get_session(session.id)
        for listener in self.listeners:
            listener.engine = -1 if listener.engine == which else listener.engine

    @rule(by=st.sampled_from([timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)]))
    @at_most(3)
    def time_passes(self, by: timedelta) -> None:
        """The clock advances; the sessions have no time limit."""
        self.world.clock.advance(by)

    @rule(session=sessions, by=_ENGINES, types=_FILTERS)
    def read_some(self, session: LogSession, by: int, types: set[str] | None) -> None:
        """An engine reads the events of some types."""
        wanted = [one for one in session.events if types is None or one[0] in types]
        found = [expected_of(event) for event in session.handles[by].history(types)]
        require_equal(f"{session}.history({types}) has what there is of these.", wanted, found)

    # What must hold ----------------------------------------------------------------------------------------------------------------

    @invariant()
    def histories_are_as_expected(self) -> None:
        """Each history is the expected one, for a new reader and for both engines."""
        for session in self.known:
            events = self.log_of(session.id, torn=bool(session.torn))
            require_equal(f"The history of {session} is what was told.", session.events, [expected_of(event) for event in events])
            require_equal(f"The numbers of {session} have no gap.", [*range(len(events))], [event.seq for event in events])
            for number, handle in enumerate(session.handles):
                require_equal(f"{session}.history() of engine {number} is what is stored.", events, handle.history())

    @invariant()
    def what_is_stored_stays(self) -> None:
        """A log only grows; an unfinished line at its end does not count."""
        for session in self.known:
            raw = self.path_of(session.id).read_bytes()
            require(raw.startswith(session.stored), f"Nothing that was stored of {session} is changed.")
            session.stored = raw[: len(raw) - session.torn]

    @invariant()
    def announcements_are_of_what_is_stored(self) -> None:
        """Every event is stored before a listener receives it, and each listener receives what it asked for, once, in order."""
        for listener in self.listeners:
            require(not listener.unstored, f"An event of {listener.session} is announced once it is stored.", str(listener.unstored))
            require_equal(f"Who listens to {listener.session} hears what it asked for.", listener.expected, listener.received)

    # The model ---------------------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        now = self.world.clock.now_ns()
        return now - now % 1000

    def _allowed(self, session: LogSession) -> frozenset[str]:
        return frozenset({"SESSION_EXPIRED"}) if session.ended else FINE

    def _mended(self, session: LogSession) -> None:
        """Enter that a torn end was cut off: every operation that takes the lease does that, even if it is refused afterwards."""
        events = self.log_of(session.id, torn=True)
        if session.torn and len(events) > len(session.events) and events[len(session.events)].type == "log.recovered":
            session.events.append(("log.recovered", "system", self._now, {"dropped_bytes": session.torn}))
            session.torn = 0

    def _stored(self, session: LogSession, message: Message, actor: str, by: int | None) -> None:
        self._mended(session)
        require(not session.torn, f"A torn end of {session} is cut off, and said so, before anything is stored.")
        session.events.append((message[0], actor, self._now, as_stored(message[1])))
        if by is not None:
            self._announced(session, by, len(session.events) - 1, message[0], as_stored(message[1]))

    def _expected_last(self, session: LogSession) -> tuple[Any, ...]:
        return (len(session.events) - 1, *session.events[-1])

    def _announced(self, session: LogSession, by: int, seq: int, type_: str, data: dict[str, Any]) -> None:
        for listener in self.listeners:
            if listener.session is session and listener.engine == by and (listener.types is None or type_ in listener.types):
                listener.expected.append((seq, type_, data))

    def _receive(self, listener: Listener, event: Event) -> None:
        listener.received.append((event.seq, event.type, dict(event.data)))
        if event.seq >= 0 and event not in EventLog(self.path_of(listener.session.id), listener.session.id).salvage().events[event.seq :]:
            listener.unstored.append(event)
