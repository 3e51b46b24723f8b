"""What ``log_machine`` knows of a history: what may be told and what not, what was, and who must have heard it.

Must know no pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.record.eventlog.events import Event

Line = tuple[str, str, int, dict[str, Any]]
"""What is expected of an event: type, actor, time and data. Its number is its place."""
Saying = tuple[str, dict[str, Any]]

REFUSED: Final[Mapping[str, Saying]] = {
    "an unknown type": ("nonsense", {}),
    "a missing key": ("user_message", {}),
    "a key too many": ("user_message", {"text": "a", "colour": "red"}),
    "what the engine says itself": ("session.write", {"path": "a", "op": "write"}),
    "what is only announced": ("text_delta", {"chunk": "a"}),
    "two keys of one name": ("user_message", {"text": {1: "a", "1": "b"}}),
    "a call that nobody could match": ("tool_call", {"call_id": 1, "name": "shell", "args": {}}),
    "what is not JSON": ("assistant_message", {"text": {"a", "b"}}),
    "no number": ("assistant_message", {"text": float("nan")}),
    "text that is not Unicode": ("user_message", {"text": "\ud800"}),
}
"""What nobody may record, by what is wrong with it."""

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
_KEYS = _TEXT.filter(lambda key: not key.isdigit()) | st.integers(0, 9)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=4,
)
_CALL_IDS = st.sampled_from(["c1", "c2"])
SAYINGS: Final[st.SearchStrategy[Saying]] = st.one_of(
    st.builds(lambda text: ("user_message", {"text": text}), _TEXT),
    st.builds(lambda text, more: ("assistant_message", {"text": text, "metadata": more}), _TEXT, _VALUES),
    st.builds(lambda call, args: ("tool_call", {"call_id": call, "name": "shell", "args": args}), _CALL_IDS, _VALUES),
    st.builds(lambda call, ok: ("tool_result", {"call_id": call, "ok": ok}), _CALL_IDS, st.booleans()),
    st.builds(lambda data: ("skill_activation", data), st.dictionaries(_KEYS, _VALUES, max_size=3)),
)
"""What may be recorded."""
PASSING: Final[st.SearchStrategy[Saying]] = st.one_of(
    SAYINGS,
    st.builds(lambda chunk: ("text_delta", {"chunk": chunk}), _TEXT),
    st.just(("status", {"status": "thinking"})),
)
"""What may be announced."""


def as_stored(value: Any) -> Any:
    """A value as JSON gives it back: keys are text, and sequences are lists."""
    if isinstance(value, dict):
        return {str(key): as_stored(inner) for key, inner in value.items()}
    return [as_stored(inner) for inner in value] if isinstance(value, list | tuple) else value


def line(event: Event) -> Line:
    """What of an event is expected."""
    return event.type, event.actor, event.ts, dict(event.data)


@dataclass(eq=False)
class Telling:
    """One session and what its history must be.

    Attributes:
        name: ``s1``, ``s2`` and so on.
        handles: the session, as each engine has it.
        lines: its history.
        torn: bytes of a line that a killed writer left.
        ended: whether it is over.
        kept: its log as it was last, without the torn end.
    """

    name: str
    handles: list[UserSession]
    lines: list[Line]
    torn: int = 0
    ended: bool = False
    kept: bytes = b""

    def __repr__(self) -> str:
        return self.name

    @property
    def id(self) -> str:
        """Its id."""
        return self.handles[0].id


@dataclass(eq=False)
class Ear:
    """Somebody who listens to a session by one engine.

    Attributes:
        to: the session.
        engine: by which engine.
        types: of what, if not of everything.
        expected: number, type and data of what must be heard.
        heard: what was.
        unstored: events that were announced and not found in the log then.
    """

    to: Telling
    engine: int
    types: frozenset[str] | None
    expected: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    heard: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    unstored: list[Event] = field(default_factory=list)
    end: Callable[[], None] = lambda: None
