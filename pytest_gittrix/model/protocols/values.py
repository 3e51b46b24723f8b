"""Requests to a model and its answers, whatever protocol they were sent in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from pytest_gittrix.errors import InvalidInput

Protocol = Literal["anthropic", "responses", "chat", "gemini"]
"""A protocol of models: Anthropic Messages, OpenAI Responses, OpenAI Chat Completions, Gemini generateContent."""

_LONGEST: Final = 2_000
"""How many characters of a text are shown to people."""

PROTOCOLS: Final[tuple[Protocol, ...]] = ("anthropic", "responses", "chat", "gemini")

Role = Literal["user", "assistant"]

Stop = Literal["end", "tool", "length", "refusal"]
"""Why an answer ended: it is whole, it asks for tools, its tokens were used up, or the model refuses."""

STOPS: Final[tuple[Stop, ...]] = get_args(Stop)


@dataclass(frozen=True, slots=True)
class Text:
    """What somebody said."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a model thought before it answered; clients send it back as it is.

    Attributes:
        text: the thoughts, or a summary of them.
        signature: what proves to the model's server that the thoughts are its own; empty where there is none.
    """

    text: str
    signature: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Call:
    """A tool that a model asks for.

    Attributes:
        id: names the call, for its result.
        name: of the tool.
        arguments: by name; a text where they are not an object, as with arguments that were cut.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)

    @property
    def json(self) -> str:
        """The arguments as the model wrote them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)

    def __str__(self) -> str:
        """The call as a line of Python."""
        if isinstance(self.arguments, str):
            return f"{self.name}({_short(self.arguments)})"
        return f"{self.name}({', '.join(f'{name}={_short(repr(value))}' for name, value in self.arguments.items())})"

    def __repr__(self) -> str:
        return f"<Call {self.id}: {self}>"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gave.

    Attributes:
        id: of the call.
        text: its output; other parts than text are replaced by ``[image 1a2b3c4d]``, with a
            digest, and the like.
        is_error: whether the client says that the tool failed. Some protocols cannot say so.
    """

    id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Other:
    """A part that has no common form, such as an image: its kind, and its JSON."""

    kind: str
    raw: Any


Part = Text | Thinking | Call | ToolResult | Other


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """One message of a conversation. Results of tools are the user's."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """What is said in it."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    def __str__(self) -> str:
        """What is said, asked for and given in it, in a line to read."""
        return "; ".join(part_lines(self.role, self.parts, {}))

    def __repr__(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a client offers.

    Attributes:
        name: its name.
        description: what it is for.
        schema: the JSON schema of its arguments.
    """

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument, by name."""
        found = self.schema.get("properties", {})
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> tuple[str, ...]:
        """The arguments that must be given."""
        return tuple(self.schema.get("required", ()))


@dataclass(frozen=True, repr=False)
class Request:
    """One request for an answer.

    Attributes:
        protocol: how it was sent.
        model: which model is asked.
        system: the instructions.
        messages: the conversation.
        tools: what the model may ask for.
        stream: whether the answer is to come in pieces.
        max_tokens: the most tokens of the answer; None where the client names no limit.
        path: that was asked for, with its query.
        body: the whole request as it was sent.
        headers: without credentials, in lower case.
    """

    protocol: Protocol
    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    stream: bool = False
    max_tokens: int | None = None
    path: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        last = self.messages[-1] if self.messages else "nothing said"
        return f"<Request {self.protocol} {self.model}: message {len(self.messages)}, {last}>"

    @property
    def text(self) -> str:
        """What the user said last."""
        return next((message.text for message in reversed(self.messages) if message.role == "user" and message.text), "")

    @property
    def opening(self) -> str:
        """What its conversation began with."""
        return self.messages[0].text if self.messages else ""

    @property
    def conversation(self) -> str:
        """What identifies the conversation that it belongs to."""
        return f"{self.protocol} {self.opening}"

    def tool(self, name: str) -> Tool | None:
        """The tool of a name; None if the client offers none."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results of tools that came since the model's last answer."""
        return tuple(part for part in (self.messages[-1].parts if self.messages else ()) if isinstance(part, ToolResult))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one exchange: of the request, of the answer, and of the request those that a cache had."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input + other.input, self.output + other.output, self.cached + other.cached)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answers.

    Attributes:
        parts: text, thoughts and calls, in order.
        stop: why it ended.
        usage: tokens, estimated if the server did not count them.
        model: who answered; empty for the one that was asked.
        placed: whether its texts have the placeholders of tapes for places, days and facts of the machine.
    """

    parts: tuple[Part, ...] = ()
    stop: Stop = "end"
    usage: Usage | None = None
    model: str = ""
    placed: bool = False

    @property
    def text(self) -> str:
        """What it says."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tools that it asks for."""
        return tuple(part for part in self.parts if isinstance(part, Call))


ErrorKind = Literal["invalid", "unauthorized", "forbidden", "not found", "too large", "context", "rate limit", "overloaded", "internal"]
"""A kind of error that servers of models answer with."""

_ERRORS: Final[Mapping[ErrorKind, tuple[int, str]]] = {
    "invalid": (400, "The request is invalid."),
    "unauthorized": (401, "The API key is invalid."),
    "forbidden": (403, "The API key may not use this model."),
    "not found": (404, "There is no such model."),
    "too large": (413, "The request is too large."),
    "context": (400, "The prompt is too long: it has more tokens than the context of the model."),
    "rate limit": (429, "Too many requests. Try again later."),
    "overloaded": (529, "The model is overloaded. Try again later."),
    "internal": (500, "Internal server error."),
}
_KINDS: Final[Mapping[int, ErrorKind]] = {
    401: "unauthorized",
    403: "forbidden",
    404: "not found",
    413: "too large",
    429: "rate limit",
    503: "overloaded",
    529: "overloaded",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a model's server answers with. Its form is the protocol's own.

    Attributes:
        kind: what is wrong.
        status: of HTTP; 0 for the usual one of the kind.
        message: for a person; empty for the usual one of the kind.
        retry_after: how many seconds the client is asked to wait; None says nothing of that.
    """

    kind: ErrorKind
    status: int = 0
    message: str = ""
    retry_after: float | None = None

    def __post_init__(self) -> None:
        status, message = _ERRORS[self.kind]
        object.__setattr__(self, "status", self.status or status)
        object.__setattr__(self, "message", self.message or message)

    @classmethod
    def of_status(cls, status: int, **details: Any) -> Failure:
        """The usual failure of a status of HTTP.

        Args:
            status: from 400 to 599.
            details: ``message`` and ``retry_after``.

        Raises:
            InvalidInput: it is not an error status.
        """
        if not 400 <= status <= 599:
            raise InvalidInput(f"{status} is not an error status.", fix="Use one from 400 to 599, such as 429.")
        return cls(_KINDS.get(status, "invalid" if status < 500 else "internal"), status, **details)


def part_lines(who: str, parts: Iterable[Part], names: dict[str, str]) -> Iterator[str]:
    """The parts of a message as lines to read: what was said, which tool was asked for, and what it gave.

    Args:
        who: said it: ``user`` or ``assistant``, which is the model.
        parts: of the message.
        names: the tools' names by the ids of calls, of the messages before; those of this one are added.
    """
    who = "model" if who == "assistant" else who
    for part in parts:
        if isinstance(part, Text):
            yield f"{who}: {_short(part.text)}"
        elif isinstance(part, Thinking):
            yield f"{who} thinks: {_short(part.text)}"
        elif isinstance(part, Call):
            names[part.id] = part.name
            yield f"{who} calls {part}"
        elif isinstance(part, ToolResult):
            yield f"{names.get(part.id, 'a tool')} {'failed' if part.is_error else 'gave'}: {_short(part.text)}"
        else:
            yield f"{who} sends {part.kind}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text) - _LONGEST:,} characters more)"


def tokens_in(text: str) -> int:
    """About how many tokens a text has: four characters each."""
    return -(-len(text) // 4)


def estimated(request: Request, answer: Answer) -> Usage:
    """About how many tokens an exchange took, if the server did not count them. It grows with the conversation, as a model's count does."""
    said = sum(tokens_in(text) for message in request.messages for text in _texts(message.parts))
    offered = sum(tokens_in(tool.name + tool.description + json.dumps(tool.schema, sort_keys=True)) for tool in request.tools)
    return Usage(tokens_in(request.system) + said + offered, sum(map(tokens_in, _texts(answer.parts))))


def _texts(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Call):
            yield part.name + part.json
        elif isinstance(part, (Text, Thinking, ToolResult)):
            yield part.text
        else:
            yield json.dumps(part.raw, sort_keys=True)
