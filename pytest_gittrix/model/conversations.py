"""Requests to a model as conversations: which belong together, which are side requests, and how they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Message, Request, Text, part_lines


class Conversation(str):
    """What was said, as a text. A failed ``assert text in conversation`` shows it line by line."""

    __slots__ = ()


class SideRequest(NamedTuple):
    """A kind of side request that agents send.

    Attributes:
        name: what it asks for.
        asks: tells one.
        answer: what it gets.
        seen_in: the agents that send it.
    """

    name: str
    asks: Callable[[Request], bool]
    answer: str
    seen_in: str


def _says(*words: str) -> Callable[[Request], bool]:
    def asks(request: Request) -> bool:
        said = f"{request.system}\n{request.messages[0].text if request.messages else ''}\n{request.text}".lower()
        return not request.tools and any(word in said for word in words)

    return asks


SIDE_REQUESTS: Final[tuple[SideRequest, ...]] = (
    SideRequest("quota", lambda request: not request.tools and request.max_tokens == 1, "ok", "Claude Code"),
    SideRequest("topic", _says("isnewtopic"), "{}", "Claude Code"),
    SideRequest(
        "title",
        _says("generate a title", "title generator", "concise title", "short title", "sentence-case title"),
        "A task",
        "Claude Code, opencode, gptme",
    ),
    SideRequest("commit message", _says("commit message"), "Change files", "aider"),
)
"""The side requests of agents. Such a request is answered at once, and is no exchange of a script."""


def side_request(request: Request) -> SideRequest | None:
    """The kind of a side request; None for a request of the work."""
    return next((one for one in SIDE_REQUESTS if one.asks(request)), None)


def side_answer(side: SideRequest, request: Request) -> Answer:
    """The answer to a side request: a text, or the smallest JSON of the schema that is asked for."""
    schema = _schema_asked_for(request.body)
    return Answer((Text(side.answer if schema is None else json.dumps(_smallest(schema, side.answer))),))


def readable(exchanges: Sequence[Exchange], last: int | None = None) -> str:
    """Exchanges of one conversation as a text: who said what, who asked for which tool, and what it gave.

    Args:
        exchanges: in order.
        last: only so many, with what came new in each; all if nothing is said.
    """
    turns = [*_turns(exchanges)]
    left_out = 0 if last is None else max(0, len(turns) - last)
    head = [f"({left_out} exchange{'s' * (left_out > 1)} before)"] if left_out else []
    return "\n".join([*head, *(line for turn in turns[left_out:] for line in turn)])


def _turns(exchanges: Sequence[Exchange]) -> Iterator[list[str]]:
    """The lines of each exchange: what came new, and what the model gave."""
    known: tuple[Message, ...] = ()
    names: dict[str, str] = {}
    for number, one in enumerate(exchanges):
        request, content = one.request, one.content
        lines = [f"system: ({len(request.system):,} characters)"] if number == 0 and request.system else []
        same = _common(known, request.messages)
        if same < min(len(known), len(request.messages)) and number:
            lines.append("(the agent rewrote the conversation)")
        for message in request.messages[same:]:
            lines += part_lines(message.role, message.parts, names)
        known = request.messages
        if isinstance(content, Failure):
            lines.append(f"model failed: {content.status} {content.message}")
        else:
            lines += [*part_lines("model", content.parts, names)] or ["model: (nothing)"]
            lines += [f"model stopped: {content.stop}"] if content.stop not in ("end", "tool") else []
            known = (*known, Message("assistant", content.parts)) if one.delivered else known
        lines += [f"  (on purpose: {one.fault})"] if one.fault else []
        lines += ["  (the answer did not reach the agent whole)"] if not one.delivered else []
        yield lines


def _common(known: Sequence[Message], now: Sequence[Message]) -> int:
    """How many messages at the beginning are the same. Agents leave out some of what the model said; what it asked for tells."""
    same = 0
    for one, other in zip(known, now, strict=False):
        if one != other and not (one.role == other.role == "assistant" and _asked_for(one) == _asked_for(other)):
            break
        same += 1
    return same


def _asked_for(message: Message) -> object:
    return [part for part in message.parts if isinstance(part, Call)] or message.text.strip()


def _schema_asked_for(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema that the answer is to fit, in the form of each protocol."""
    for path in (
        ("response_format", "json_schema", "schema"),
        ("text", "format", "schema"),
        ("output_config", "format", "schema"),
        ("output_format", "schema"),
        ("generationConfig", "responseJsonSchema"),
        ("generationConfig", "responseSchema"),
    ):
        found: Any = body
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return None


def _smallest(schema: Mapping[str, Any], text: str) -> Any:
    kind = str(schema.get("type", "string")).lower()
    if schema.get("enum"):
        return schema["enum"][0]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _smallest(properties.get(name, {}), text) for name in schema.get("required", properties)}
    return {"array": [], "integer": 0, "number": 0, "boolean": False, "null": None}.get(kind, text)
