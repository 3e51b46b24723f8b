"""Messages, answers and tools as the JSON of a tape: a text is a text, a call and its result are objects with few keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.protocols.values import (
    STOPS,
    Answer,
    Call,
    Failure,
    Message,
    Other,
    Part,
    Request,
    Text,
    Thinking,
    Tool,
    ToolResult,
    Usage,
)

Json = Any
Rewrite = Callable[[str], str]


def part_to_json(part: Part) -> Json:
    """One part."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Thinking):
        return {"thinking": part.text, **({"signature": part.signature} if part.signature else {})}
    if isinstance(part, Call):
        return {"call": part.name, "id": part.id, "arguments": part.arguments}
    if isinstance(part, ToolResult):
        return {"result": part.id, "text": part.text, **({"failed": True} if part.is_error else {})}
    return {"other": part.kind, "raw": part.raw}


def part_from_json(value: Json) -> Part:
    """The inverse of ``part_to_json``. Raises InvalidInput: it is no part."""
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, dict):
        if "thinking" in value:
            return Thinking(value["thinking"], value.get("signature", ""))
        if "call" in value:
            return Call(value.get("id", ""), value["call"], value.get("arguments", {}))
        if "result" in value:
            return ToolResult(value["result"], value.get("text", ""), bool(value.get("failed")))
        if "other" in value:
            return Other(value["other"], value.get("raw"))
    raise InvalidInput(f"{value!r} is not a message part.", fix="Record the tape again: --gittrix-model=rewrite.")


def message_to_json(message: Message) -> Json:
    """One message: what its role says, under the name of the role."""
    return {message.role: [part_to_json(part) for part in message.parts]}


def messages_to_json(messages: Iterable[Message]) -> list[Json]:
    """Messages, in order."""
    return [message_to_json(message) for message in messages]


def tool_to_json(tool: Tool) -> Json:
    """One tool that is offered."""
    return {"name": tool.name, "description": tool.description, "schema": tool.schema}


def request_to_json(request: Request) -> Json:
    """What of a request decides on its answer: not its headers, nor what is only for the protocol's server, such as keys of caches."""
    return {
        "protocol": request.protocol,
        "system": request.system,
        "tools": [tool_to_json(tool) for tool in request.tools],
        "messages": messages_to_json(request.messages),
    }


def answer_to_json(content: Answer | Failure) -> dict[str, Json]:
    """An answer or a failure: its keys stand in the line of the exchange."""
    if isinstance(content, Failure):
        waits = {} if content.retry_after is None else {"retry_after": content.retry_after}
        return {"failure": content.status, "kind": content.kind, "message": content.message, **waits}
    found: dict[str, Json] = {"answer": [part_to_json(part) for part in content.parts], "stop": content.stop}
    if content.usage is not None:
        found["usage"] = [content.usage.input, content.usage.output, content.usage.cached]
    return found


def answer_from_json(line: Mapping[str, Json]) -> Answer | Failure:
    """The inverse of ``answer_to_json``. Raises InvalidInput: there is none in the line."""
    if "failure" in line:
        return Failure(line.get("kind", "internal"), line["failure"], line.get("message", ""), line.get("retry_after"))
    if "answer" not in line:
        raise InvalidInput("A line of the tape has no answer.", fix="Record the tape again: --gittrix-model=rewrite.")
    usage = Usage(*line["usage"]) if "usage" in line else None
    stop = line.get("stop", "end")
    if stop not in STOPS:
        raise InvalidInput(f"{stop!r} is no reason for an answer to stop.", fix=f"Use one of {', '.join(STOPS)}.")
    return Answer(tuple(map(part_from_json, line["answer"])), stop, usage)


def placed_here(answer: Answer, show: Rewrite) -> Answer:
    """An answer whose placeholders are the texts of this run."""
    return replace(answer, parts=tuple(part_from_json(rewritten(part_to_json(part), show)) for part in answer.parts), placed=False)


def rewritten(value: Json, rewrite: Rewrite) -> Json:
    """A JSON value of which each text is rewritten, keys too."""
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, Mapping):
        return {rewrite(name): rewritten(one, rewrite) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [rewritten(one, rewrite) for one in value]
    return value
