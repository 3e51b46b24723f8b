"""What goes wrong with a model: it refuses, it is cut, it stalls, it asks for nonsense.

A fault happens to one exchange. Whoever asks again gets the right answer, as though the model had only been unlucky.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pytest_gittrix.model.answers.replies import ModelReply, Place, check_place
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Part, Request, Text


@dataclass(frozen=True)
class AnswerFault:
    """Something that goes wrong with one exchange.

    Attributes:
        name: as it is written in a script.
        apply: gives what is sent instead of the right reply. Gives the same reply where it has nothing to spoil.
        times: how often in a row it happens; None for each time.
        seen_as: ``nothing`` if whoever asked can know that no answer came; ``answer`` if an answer came whole, and is wrong; ``part`` if it
            came in part, and calls in it may be whole.
    """

    name: str
    apply: Callable[[Request, ModelReply], ModelReply] = field(repr=False, compare=False)
    seen_as: Literal["nothing", "part", "answer"] = "answer"
    times: int | None = 1

    def __str__(self) -> str:
        return self.name


def fail(status: int, *, retry_after: float | None = None, message: str = "", times: int | None = 1) -> AnswerFault:
    """The server answers with an error.

    Args:
        status: of HTTP, such as 401, 429, 500, 503 or 529.
        retry_after: how many seconds the client is asked to wait.
        message: for a person; the usual one if it is empty.
        times: how often in a row; None for each time.

    Raises:
        InvalidInput: it is not an error status.
    """
    failure = Failure.of_status(status, message=message, retry_after=retry_after)
    said = "" if retry_after is None else f", retry_after={retry_after:g}"
    said += "" if times == 1 else f", times={times}"
    return AnswerFault(f"fail({status}{said})", lambda _, __: ModelReply(failure), "nothing", times)


def too_long() -> AnswerFault:
    """The server says that the conversation has more tokens than the model takes."""
    return AnswerFault("too_long()", lambda _, __: ModelReply(Failure("context")), "nothing")


def cut(at: Place | float = 0.5) -> AnswerFault:
    """The connection is closed in the middle of the answer.

    Args:
        at: ``tool arguments``, ``text``, ``before stop`` or ``before the end``, or a share of the bytes. An answer that is not streamed is
            cut at its middle for each of the places.

    Raises:
        InvalidInput: it is none of these.
    """
    place = check_place(at)
    return AnswerFault(f"cut({at!r})", lambda _, reply: replace(reply, cut=place), "part")


def stall(seconds: float, at: Place | float = 0.0) -> AnswerFault:
    """The server sends nothing for a while, and then goes on.

    Args:
        seconds: how long: until the test's clock is moved so far, or real time has passed, of which at most 10 seconds.
        at: where in the answer, as in ``cut``; before its first byte if nothing is said.

    Raises:
        InvalidInput: it is no place.
    """
    place = check_place(at)
    return AnswerFault(f"stall({seconds:g})", lambda _, reply: replace(reply, cut=place, stall=seconds), "part")


def content_type(text: str = "text/html") -> AnswerFault:
    """The server says that its answer is something else.

    Args:
        text: the wrong value of the header.
    """
    return AnswerFault(f"content_type({text!r})", lambda _, reply: replace(reply, content_type=text), "part")


def twice() -> AnswerFault:
    """The server sends its answer twice, one after the other."""
    return AnswerFault("twice()", lambda _, reply: replace(reply, copies=2), "part")


def refusal(text: str = "I can not help with that.") -> AnswerFault:
    """The model refuses.

    Args:
        text: what it says.
    """
    return AnswerFault("refusal()", lambda _, __: ModelReply(Answer((Text(text),), "refusal")))


def empty() -> AnswerFault:
    """The model answers nothing."""
    return AnswerFault("empty()", lambda _, __: ModelReply(Answer()))


def token_limit() -> AnswerFault:
    """The model's tokens are used up in the middle of its answer: in the arguments of its last call, or in what it says."""

    def spoiled(part: Part) -> Part:
        if isinstance(part, Call):
            return replace(part, arguments=_half(part.json))
        return replace(part, text=_half(part.text)) if isinstance(part, Text) else part

    def apply(_: Request, reply: ModelReply) -> ModelReply:
        answer = reply.content
        if not isinstance(answer, Answer) or not answer.parts:
            return reply
        return replace(reply, content=replace(answer, parts=(*answer.parts[:-1], spoiled(answer.parts[-1])), stop="length"))

    return AnswerFault("token_limit()", apply)


def bad_json() -> AnswerFault:
    """The arguments of a call are no JSON: they end in their middle, and the answer says that it is whole."""
    return AnswerFault("bad_json()", _on_last_call(lambda _, one: (replace(one, arguments=_half(one.json)),)))


def bad_arguments() -> AnswerFault:
    """The arguments of a call are JSON and break the tool's schema: each is an object of an unknown name."""
    return AnswerFault("bad_arguments()", _on_last_call(lambda _, one: (replace(one, arguments={"unexpected": {"value": []}}),)))


def unknown_tool() -> AnswerFault:
    """The model asks for a tool that the agent does not offer."""
    return AnswerFault("unknown_tool()", _on_last_call(lambda _, one: (replace(one, name="tool_that_nobody_offers"),)))


def duplicate_id() -> AnswerFault:
    """Two calls of one answer have one id; the second asks for a tool that the agent does not offer."""
    return AnswerFault("duplicate_id()", _on_last_call(lambda _, one: (one, Call(one.id, "tool_that_nobody_offers"))), "part")


def _on_last_call(spoiled: Callable[[Request, Call], tuple[Call, ...]]) -> Callable[[Request, ModelReply], ModelReply]:
    def apply(request: Request, reply: ModelReply) -> ModelReply:
        answer = reply.content
        if not isinstance(answer, Answer) or not answer.calls:
            return reply
        last = answer.calls[-1]
        at = answer.parts.index(last)
        return replace(reply, content=replace(answer, parts=(*answer.parts[:at], *spoiled(request, last), *answer.parts[at + 1 :])))

    return apply


def _half(text: str) -> str:
    return text[: max(1, len(text) * 2 // 3)]


FAULTS: Final[tuple[AnswerFault, ...]] = (
    fail(429, retry_after=0.1),
    fail(500),
    fail(503),
    fail(529),
    fail(401, times=None),
    fail(529, times=None),
    too_long(),
    refusal(),
    empty(),
    cut("tool arguments"),
    cut(0.5),
    cut("before stop"),
    stall(0.5),
    token_limit(),
    bad_json(),
    bad_arguments(),
    unknown_tool(),
    duplicate_id(),
    content_type(),
    twice(),
)
"""The faults of a sweep."""
