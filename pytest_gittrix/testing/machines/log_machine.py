"""A state machine for the histories of sessions: several writers, listeners, refusals, torn ends and restarts, against plain lists.

To run it on our own engine, in a world opened in any way::

    TestHistory = machine_of(LogMachine).TestCase
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, precondition, rule

from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.testing.machines.machine_base import ENGINES, LONG, MachineSession, WorldMachine, ask, at_most, done, require_equal
from pytest_gittrix.testing.oracle import require

_MOST_SESSIONS, _MOST_LISTENERS = 3, 6
_FILTERS = st.none() | st.sets(st.sampled_from(["user_message", "tool_call", "tool_result", "text_delta", "session.ended"]), max_size=2)

ExpectedEvent = tuple[str, str, int, dict[str, Any]]
"""What is expected of an event: type, actor, time and data. Its number is its index."""

Message = tuple[str, dict[str, Any]]
"""The type and the data of an event to record."""

REFUSED: Final[Mapping[str, Message]] = {
    "an unknown type": ("nonsense", {}),
    "a missing key": ("user_message", {}),
    "a key too many": ("user_message", {"text": "a", "colour": "red"}),
    "what only the engine may record": ("session.write", {"path": "a", "op": "write"}),
    "what is only announced": ("text_delta", {"chunk": "a"}),
    "two keys of one name": ("user_message", {"text": {1: "a", "1": "b"}}),
    "a call with an id that is no text": ("tool_call", {"call_id": 1, "name": "shell", "args": {}}),
    "what is not JSON": ("assistant_message", {"text": {"a", "b"}}),
    "not a number": ("assistant_message", {"text": float("nan")}),
    "text that is not Unicode": ("user_message", {"text": "\ud800"}),
}
"""Messages that are refused, by what is wrong with each."""

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
_KEYS = _TEXT.filter(lambda key: not key.isdigit()) | st.integers(0, 9)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=4,
)
_CALL_IDS = st.sampled_from(["c1", "c2"])
MESSAGES: Final[st.SearchStrategy[Message]] = st.one_of(
    st.builds(lambda text: ("user_message", {"text": text}), _TEXT),
    st.builds(lambda text, more: ("assistant_message", {"text": text, "metadata": more}), _TEXT, _VALUES),
    st.builds(lambda call, args: ("tool_call", {"call_id": call, "name": "shell", "args": args}), _CALL_IDS, _VALUES),
    st.builds(lambda call, ok: ("tool_result", {"call_id": call, "ok": ok}), _CALL_IDS, st.booleans()),
    st.builds(lambda data: ("skill_activation", data), st.dictionaries(_KEYS, _VALUES, max_size=3)),
)
"""Messages that may be recorded."""
ANNOUNCEMENTS: Final[st.SearchStrategy[Message]] = st.one_of(
    MESSAGES,
    st.builds(lambda chunk: ("text_delta", {"chunk": chunk}), _TEXT),
    st.just(("status", {"status": "thinking"})),
)
"""Messages that may be announced without being recorded."""


def as_stored(value: Any) -> Any:
    """A value as JSON gives it back: keys are text, and sequences are lists."""
    if isinstance(value, dict):
        return {str(key): as_stored(inner) for key, inner in value.items()}
    return [as_stored(inner) for inner in value] if isinstance(value, list | tuple) else value


def expected_of(event: Event) -> ExpectedEvent:
    """An event as it is expected."""
    return event.type, event.actor, event.ts, dict(event.data)


@dataclass(eq=False, repr=False)
class LogSession(MachineSession):
    """One session and its expected history, of ``ExpectedEvent``.

    Attributes:
        torn: how many bytes of an unfinished line a killed writer left.
        stored: the bytes of its log after the last step, without the torn end.
    """

    torn: int = 0
    stored: bytes = b""


@dataclass(eq=False)
class EventListener:
    """A listener of a session at one engine.

    Attributes:
        session: the session.
        engine: the number of the engine; -1 once it listens no more.
        types: the types of events it asked for; None for all.
        expected: number, type and data of each event that it must receive.
        received: the same of each event that it received.
        unstored: events that were announced and were not in the log at that moment.
        end: ends the subscription.
    """

    session: LogSession
    engine: int
    types: frozenset[str] | None
    expected: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    received: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    unstored: list[Event] = field(default_factory=list)
    end: Callable[[], None] = lambda: None


class LogMachine(WorldMachine):
    """Histories that two engines and other processes write, with refusals, listeners, torn ends and restarts.

    After every step: each history is the expected list, for every reader; its numbers have no gap; stored events have not changed; every
    announced event had been stored before, and reached exactly its listeners.
    """

    sessions: ClassVar[Bundle[LogSession]] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.known: list[LogSession] = []
        self.listeners: list[EventListener] = []

    @initialize(target=sessions)
    def first(self) -> LogSession:
        """A session."""
        return self._start(0)

    @rule(target=sessions, engine=ENGINES)
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

    @rule(session=sessions, by=ENGINES, agent=st.booleans(), message=MESSAGES)
    def record(self, session: LogSession, by: int, agent: bool, message: Message) -> None:
        """The person or the agent records a message, by either engine."""
        handle = session.handles[by].for_agent() if agent else session.handles[by]
        event = ask(f"{session}.record({message[0]!r})", lambda: handle.record(*message), session.allowed)
        if event is not None:
            self._stored(session, message, "agent" if agent else "human", by)
            require_equal("What record() gives is the event as stored.", self._expected_last(session), (event.seq, *expected_of(event)))

    @rule(session=sessions, message=MESSAGES)
    @at_most(3)
    def another_process_records(self, session: LogSession, message: Message) -> None:
        """A message is recorded in another process; listeners in this process receive nothing."""
        act = session.handles[0].record
        refused = done(in_fork(lambda: ask(f"{session}.record()", lambda: act(*message), session.allowed) is None, timeout=LONG))
        if not refused:
            self._stored(session, message, "human", None)

    @rule(session=sessions, by=ENGINES, what=st.sampled_from(sorted(REFUSED)))
    def record_what_is_refused(self, session: LogSession, by: int, what: str) -> None:
        """A message is refused: nothing is stored, no number is used up, no listener receives it."""
        allowed = {"INVALID_INPUT", "SESSION_EXPIRED"} if session.ended else {"INVALID_INPUT"}
        ask(f"{session}.record() of {what}", lambda: session.handles[by].record(*REFUSED[what]), allowed)
        self._mended(session)

    @rule(session=sessions, by=ENGINES, message=ANNOUNCEMENTS)
    def emit(self, session: LogSession, by: int, message: Message) -> None:
        """A message is announced and not stored."""
        ask(f"{session}.emit({message[0]!r})", lambda: session.handles[by].emit(*message), session.allowed)
        if not session.ended:
            self._announced(session, by, -1, message[0], as_stored(message[1]))

    @rule(session=sessions, by=ENGINES)
    @at_most(2)
    def end(self, session: LogSession, by: int) -> None:
        """The person discards the session; its history can still be read."""
        now = self._now
        ask(f"{session}.discard()", session.handles[by].discard, session.allowed)
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

    @rule(session=sessions, by=ENGINES, types=_FILTERS)
    @precondition(lambda self: len(self.listeners) < _MOST_LISTENERS)
    def listen(self, session: LogSession, by: int, types: set[str] | None) -> None:
        """A listener subscribes."""
        self._listen(session, by, None if types is None else frozenset(types))

    def _listen(self, session: LogSession, by: int, types: frozenset[str] | None) -> None:
        listener = EventListener(session, by, types)
        listener.end = session.handles[by].subscribe(lambda event: self._receive(listener, event), types)
        self.listeners.append(listener)

    @rule(which=st.integers(0, _MOST_LISTENERS - 1))
    @precondition(lambda self: self.listeners)
    def listen_no_more(self, which: int) -> None:
        """A listener ends its subscription, and receives nothing from then on."""
        self.listeners[which % len(self.listeners)].end()
        self.listeners[which % len(self.listeners)].engine = -1

    @rule(which=ENGINES)
    @at_most(3)
    def engine_restarts(self, which: int) -> None:
        """The listeners of the closed engine receive nothing any more."""
        self.restart(which)
        for listener in self.listeners:
            listener.engine = -1 if listener.engine == which else listener.engine

    @rule(by=st.sampled_from([timedelta(microseconds=1), timedelta(minutes=1), timedelta(days=1)]))
    @at_most(3)
    def time_passes(self, by: timedelta) -> None:
        """The clock advances; the sessions have no time limit."""
        self.world.clock.advance(by)

    @rule(session=sessions, by=ENGINES, types=_FILTERS)
    def read_some(self, session: LogSession, by: int, types: set[str] | None) -> None:
        """An engine reads the events of some types."""
        wanted = [one for one in session.events if types is None or one[0] in types]
        found = [expected_of(event) for event in session.handles[by].history(types)]
        require_equal(f"{session}.history({types}) has every event of these types.", wanted, found)

    # What must hold ----------------------------------------------------------------------------------------------------------------

    @invariant()
    def histories_are_as_expected(self) -> None:
        """Each history is the expected one, for a new reader and for both engines."""
        for session in self.known:
            events = self.log_of(session.id, torn=bool(session.torn))
            require_equal(f"The history of {session} is what was recorded.", session.events, [expected_of(event) for event in events])
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

    def _receive(self, listener: EventListener, event: Event) -> None:
        listener.received.append((event.seq, event.type, dict(event.data)))
        if event.seq >= 0 and event not in EventLog(self.path_of(listener.session.id), listener.session.id).salvage().events[event.seq :]:
            listener.unstored.append(event)
