"""The model of ``log_machine``: what may be recorded and what not, each session's expected history, and what each listener must receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.testing.machines.machine_base import MachineSession

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
    "a call that nobody could match": ("tool_call", {"call_id": 1, "name": "shell", "args": {}}),
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
    """One session and its expected history.

    Attributes:
        events: its expected history.
        torn: how many bytes of an unfinished line a killed writer left.
        ended: whether it has ended.
        stored: the bytes of its log after the last step, without the torn end.
    """

    events: list[ExpectedEvent]
    torn: int = 0
    ended: bool = False
    stored: bytes = b""


@dataclass(eq=False)
class Listener:
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
