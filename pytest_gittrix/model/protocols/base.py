"""What the codecs of all protocols have in common: the frames of a stream, and errors of a model's server."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.protocols.values import Answer, Failure, Message, Part, Protocol, Request, Stop, Tool, Usage

Label = Literal["begin", "thinking", "text", "arguments", "call", "stop", "end"]
"""What a frame of a stream carries."""

_PIECE: Final = 24
_FILES: Final = frozenset({"image", "image_url", "input_image", "document", "input_file"})


class Frame(NamedTuple):
    """A piece of a streamed answer, as it is sent.

    Attributes:
        label: what it carries.
        data: its bytes.
    """

    label: Label
    data: bytes


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What a codec needs to know to encode an answer.

    Attributes:
        request: what is answered.
        answer: the answer. Each call has an id.
        usage: its tokens.
        number: of the exchange; ids of messages are made from it.
        seconds: when it is answered, in seconds since 1970.
    """

    request: Request
    answer: Answer
    usage: Usage
    number: int
    seconds: int

    @property
    def model(self) -> str:
        """The model that answers."""
        return self.answer.model or self.request.model


class Asked(NamedTuple):
    """What a client sent.

    Attributes:
        path: that it asked for, with its query.
        body: its JSON.
        headers: without credentials, by names in lower case.
        previous: gives the conversation up to an earlier answer, by the answer's id, where a protocol lets the server keep it.
    """

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    previous: Callable[[str], Sequence[Message]]


class Codec(ABC):
    """One protocol.

    Attributes:
        name: of the protocol.
        stops: the protocol's word for each reason to stop.
    """

    name: ClassVar[Protocol]
    stops: ClassVar[Mapping[Stop, str]] = {}

    @abstractmethod
    def decode(self, asked: Asked) -> Request:
        """What is asked. Raises InvalidInput: it is no request of this protocol."""

    @abstractmethod
    def encode(self, answered: AnswerContext) -> Mapping[str, Any]:
        """An answer as one JSON value."""

    @abstractmethod
    def frames(self, answered: AnswerContext) -> Iterator[Frame]:
        """An answer as the frames of a stream of server-sent events."""

    @abstractmethod
    def error(self, failure: Failure) -> Mapping[str, Any]:
        """An error as a JSON value."""

    @abstractmethod
    def join(self, events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The data of the events of a stream as the one JSON value that says the same. Raises InvalidInput: it has no end."""

    @abstractmethod
    def hear(self, body: Mapping[str, Any]) -> Answer:
        """The answer in the JSON value that a model's server sent."""

    def counted(self, tokens: int) -> Mapping[str, Any]:
        """The answer to a request to count tokens."""
        return {"input_tokens": tokens}

    def request(
        self, asked: Asked, system: str, messages: Sequence[tuple[str, Sequence[Part]]], tools: Iterable[Tool], max_tokens: int | None
    ) -> Request:
        """A request whose body names the model and says whether to stream."""
        body, headers = asked.body, asked.headers
        model, stream = str(body.get("model", "")), bool(body.get("stream"))
        return Request(self.name, model, system, merged(messages), tuple(tools), stream, max_tokens, asked.path, body, headers)

    def heard(self, parts: Iterable[Part], word: object, usage: Usage, body: Mapping[str, Any]) -> Answer:
        """The answer that a server sent; ``word`` is its word for why it stopped."""
        stop: Stop = next((stop for stop, known in self.stops.items() if known == word), "end")
        return Answer(tuple(parts), stop, usage, str(body.get("model", "")))


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event. Raises nothing: ``data`` is JSON."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass") + b"\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text in the pieces in which a stream carries it; at least one, which may be empty."""
    yield text[:_PIECE]
    for at in range(_PIECE, len(text), _PIECE):
        yield text[at : at + _PIECE]


def parsed(arguments: object) -> Mapping[str, Any] | str:
    """Arguments as a client sent them back: an object, or the text that is none."""
    if isinstance(arguments, Mapping):
        return arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def text_of(content: object) -> str:
    """The text of a result: a text, or parts of which only texts are kept. An image has its digest, so that another one is another text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return json.dumps(content, sort_keys=True)
    return "\n".join(part.get("text", _stand_in(part)) if isinstance(part, Mapping) else str(part) for part in content)


def _stand_in(part: Mapping[str, Any]) -> str:
    kind = part.get("type", "part")
    if kind not in _FILES:
        return f"[{kind}]"
    contents = json.dumps({name: value for name, value in part.items() if name != "cache_control"}, sort_keys=True)
    return f"[{kind} {hashlib.sha256(contents.encode()).hexdigest()[:8]}]"


def merged(messages: Sequence[tuple[str, Sequence[Part]]]) -> tuple[Message, ...]:
    """Messages of which neighbours of one role are one, since protocols cut a turn in different ways."""
    found: list[tuple[str, list[Part]]] = []
    for role, parts in messages:
        if found and found[-1][0] == role:
            found[-1][1].extend(parts)
        else:
            found.append((role, [*parts]))
    return tuple(Message("assistant" if role == "assistant" else "user", tuple(parts)) for role, parts in found)


def table(value: object, what: str) -> Mapping[str, Any]:
    """A JSON object. Raises InvalidInput, which names what it is, for anything else."""
    if isinstance(value, Mapping):
        return value
    raise InvalidInput(f"{what} is not a JSON object.", why="A request to a model is one.", fix="See the request that the client sent.")


def items(value: object, what: str) -> Sequence[Any]:
    """A JSON array; empty for null. Raises InvalidInput, which names what it is, for anything else."""
    if value is None:
        return ()
    if isinstance(value, list):
        return value
    raise InvalidInput(f"{what} is not a JSON array.", why="A request has one there.", fix="See the request that the client sent.")


def unfinished() -> InvalidInput:
    """The error for a stream that ends within."""
    return InvalidInput("The stream of the model's server ended early.", why="It has no last event.", fix="Record the exchange again.")
