"""What a model's server sends for one request: an answer or a failure, and what happens to it on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.protocols.base import Frame, Label
from pytest_gittrix.model.protocols.values import Answer, Failure, Request

Place = Literal["tool arguments", "text", "before stop", "before the end"]
"""Where a stream is cut: within the arguments of a call or within what is said, before the event that says why it stops, or only before the
last event."""

PLACES: Final[tuple[Place, ...]] = get_args(Place)
_LABELS: Final[Mapping[Place, tuple[Label, ...]]] = {
    "tool arguments": ("arguments",),
    "text": ("text",),
    "before stop": ("stop", "end"),
    "before the end": ("end",),
}


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What is sent for one request.

    Attributes:
        content: the answer, or the failure.
        cut: where the connection is closed in the middle of the answer: a place, or a share of its bytes from 0 to 1; None sends all of it.
        stall: for how many seconds nothing is sent: before the first byte, or where the answer would be cut.
        content_type: what the header says instead of the truth; None for the truth.
        copies: how many times the answer is sent, one after the other.
        origin: where it is from: ``tape``; empty for anything else.
    """

    content: Answer | Failure
    cut: Place | float | None = None
    stall: float = 0.0
    content_type: str | None = None
    copies: int = 1
    origin: str = ""


Answerer: TypeAlias = Callable[[Request], "ModelReply | Answer | Failure | str"]
"""Whoever answers: a script, a recording, a function of a test."""


def reply_of(given: ModelReply | Answer | Failure | str) -> ModelReply:
    """What an answerer gives, as a reply. Raises InvalidInput: it is no answer."""
    if isinstance(given, ModelReply):
        return given
    if isinstance(given, str):
        from pytest_gittrix.model.protocols.values import Text

        given = Answer((Text(given),))
    if not isinstance(given, (Answer, Failure)):
        raise InvalidInput(
            f"{given!r} is not an answer of a model.",
            why="A function that answers gives what the model says.",
            fix="Give a text, an Answer or a Failure.",
        )
    return ModelReply(given)


def check_place(at: object) -> Place | float:
    """Validate where an answer is cut. Raises InvalidInput, which names the places."""
    if isinstance(at, (int, float)) and not isinstance(at, bool) and 0 <= at < 1:
        return float(at)
    for place in PLACES:
        if at == place:
            return place
    raise InvalidInput(
        f"at={at!r} is not a place in an answer.",
        why="The answer is cut there.",
        fix=f"Use one of {', '.join(map(repr, PLACES))}, or a share of its bytes from 0 to below 1.",
    )


def parts_at(frames: Sequence[Frame], at: Place | float) -> tuple[bytes, bytes]:
    """The bytes of a stream before a place and from there on. A stream that has no such place is cut in its middle."""
    whole = b"".join(frame.data for frame in frames)
    where = int(len(whole) * at) if isinstance(at, float) else _offset(frames, _LABELS[at])
    return whole[:where], whole[where:]


def _offset(frames: Sequence[Frame], labels: Sequence[Label]) -> int:
    """Where frames of a label begin if they are those of the end, else the middle of the frames that have it, which may be within one."""
    spans = [(start, len(frame.data)) for start, frame in zip(_starts(frames), frames, strict=True) if frame.label in labels]
    if not spans:
        return sum(len(frame.data) for frame in frames) // 2
    if labels[-1] == "end":
        return spans[0][0]
    start, length = spans[len(spans) // 2]
    return start if len(spans) > 1 else start + length // 2


def _starts(frames: Sequence[Frame]) -> Iterator[int]:
    at = 0
    for frame in frames:
        yield at
        at += len(frame.data)
