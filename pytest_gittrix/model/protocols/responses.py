"""OpenAI Responses: ``POST /v1/responses``, whose items are messages, calls, their outputs and reasoning.

Source: the reference of the API, and what its SDK for Python parses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pytest_gittrix.confine.gateway.usage import tokens_of
from pytest_gittrix.model.protocols.base import (
    AnswerContext,
    Asked,
    Codec,
    Frame,
    Label,
    event,
    items,
    parsed,
    pieces,
    table,
    text_of,
    unfinished,
)
from pytest_gittrix.model.protocols.chat import openai_error
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Other, Part, Request, Stop, Text, Thinking, Tool, ToolResult, Usage

_TEXTS: Final = ("input_text", "output_text", "text")
_CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


class _Kind(NamedTuple):
    """How contents are streamed: what a frame of them carries, the events of the part that holds them and its index, the events of the
    pieces, the key that has them, and further fields of the pieces."""

    label: Label
    part: str | None
    numbered: str | None
    event: str
    key: str
    more: Mapping[str, Any] = {}


_KINDS: Final[Mapping[str, _Kind]] = {
    "output_text": _Kind("text", "content_part", "content_index", "output_text", "text", {"logprobs": []}),
    "refusal": _Kind("text", "content_part", "content_index", "refusal", "refusal"),
    "summary_text": _Kind("thinking", "reasoning_summary_part", "summary_index", "reasoning_summary_text", "text"),
    "function_call": _Kind("arguments", None, None, "function_call_arguments", "arguments"),
    "custom_tool_call": _Kind("arguments", None, None, "custom_tool_call_input", "input"),
}


class ResponsesCodec(Codec):
    """The codec."""

    name = "responses"

    def decode(self, asked: Asked) -> Request:
        """What is asked; see ``Codec.decode``."""
        body = asked.body
        system = [str(body["instructions"])] if body.get("instructions") else []
        before = str(body.get("previous_response_id") or "")
        messages: list[tuple[str, Sequence[Part]]] = [(one.role, one.parts) for one in asked.previous(before)] if before else []
        given = body.get("input")
        for one in [{"role": "user", "content": given}] if isinstance(given, str) else items(given, "input"):
            item = table(one, "an item of input")
            kind = item.get("type", "message")
            if kind == "message" and item.get("role") in ("system", "developer"):
                system.append(text_of(item.get("content")))
            else:
                messages.append(_item(kind, item))
        tools = (_tool(one) for one in items(body.get("tools"), "tools"))
        return self.request(asked, "\n".join(system), messages, tools, body.get("max_output_tokens"))

    def encode(self, answered: AnswerContext) -> Mapping[str, Any]:
        """An answer as one JSON value."""
        return {**_head(answered, _status(answered)), "output": [*_output(answered)], "usage": _usage(answered)}

    def frames(self, answered: AnswerContext) -> Iterator[Frame]:
        """An answer as a stream of numbered events."""
        number = 0

        def frame(label: Label, kind: str, **data: Any) -> Frame:
            nonlocal number
            number += 1
            return Frame(label, event({"type": kind, "sequence_number": number - 1, **data}, kind))

        begun = {**_head(answered, "in_progress"), "output": [], "usage": None}
        yield frame("begin", "response.created", response=begun)
        yield frame("begin", "response.in_progress", response=begun)
        for index, item in enumerate(_output(answered)):
            place = {"output_index": index, "item_id": item["id"]}
            kind, part = _kind(item), _only_part(item)
            begin: Label = "call" if kind is not None and kind.label == "arguments" else "begin"
            yield frame(begin, "response.output_item.added", output_index=index, item=_hollow(item))
            if kind is not None:
                within = {**place, **({kind.numbered: 0} if kind.numbered else {})}
                contents = (part or item)[kind.key]
                if part is not None:
                    yield frame("begin", f"response.{kind.part}.added", **within, part={**part, kind.key: ""})
                for piece in pieces(contents):
                    yield frame(kind.label, f"response.{kind.event}.delta", **within, delta=piece, **kind.more)
                named = {"name": item["name"]} if item["type"] == "function_call" else {}
                yield frame(kind.label, f"response.{kind.event}.done", **within, **{kind.key: contents}, **named, **kind.more)
                if part is not None:
                    yield frame("begin", f"response.{kind.part}.done", **within, part=part)
            yield frame("begin", "response.output_item.done", output_index=index, item=item)
        ended = "response.incomplete" if answered.answer.stop == "length" else "response.completed"
        yield frame("stop", ended, response=self.encode(answered))

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """An error as a JSON value."""
        return openai_error(failure)

    def counted(self, tokens: int) -> Mapping[str, Any]:
        """The answer to a request to count tokens."""
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def join(self, events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A stream as one JSON value; see ``Codec.join``. The last event has all of it."""
        for one in events:
            if one.get("type") in ("response.completed", "response.incomplete", "response.failed"):
                return table(one.get("response"), "the response")
        raise unfinished()

    def hear(self, body: Mapping[str, Any]) -> Answer:
        """The answer in a JSON value; see ``Codec.hear``."""
        parts: list[Part] = []
        refused = False
        for one in items(body.get("output"), "output"):
            item = table(one, "an item of output")
            parts += _item(str(item.get("type", "message")), item)[1]
            refused = refused or any(table(part, "a part").get("type") == "refusal" for part in items(item.get("content"), "content"))
        usage = Usage(*tokens_of(body.get("usage") or {}))
        stop: Stop = "tool" if any(isinstance(part, Call) for part in parts) else "refusal" if refused else "end"
        return Answer(tuple(parts), "length" if body.get("status") == "incomplete" else stop, usage, str(body.get("model", "")))


def _item(kind: str, item: Mapping[str, Any]) -> tuple[str, Sequence[Part]]:
    """The role and the parts of one item of the input."""
    if kind in _CALLS:
        return "assistant", [
            Call(str(item.get("call_id", "")), str(item.get("name", "")), parsed(item.get("arguments", item.get("input", ""))))
        ]
    if kind in _OUTPUTS:
        return "user", [ToolResult(str(item.get("call_id", "")), text_of(item.get("output")))]
    if kind == "reasoning":
        return "assistant", [Thinking(text_of(item.get("summary")), str(item.get("encrypted_content") or ""))]
    if kind != "message":
        return "assistant", [Other(kind, item)]
    role, content = str(item.get("role", "user")), item.get("content")
    if isinstance(content, str):
        return role, [Text(content)]
    return role, [_part(table(one, "a part of content")) for one in items(content, "content")]


def _part(part: Mapping[str, Any]) -> Part:
    kind = str(part.get("type"))
    if kind == "refusal":
        return Text(str(part.get("refusal", "")))
    return Text(str(part.get("text", ""))) if kind in _TEXTS else Other(kind, part)


def _tool(one: object) -> Tool:
    tool = table(one, "a tool")
    return Tool(str(tool.get("name", tool.get("type", ""))), str(tool.get("description", "")), tool.get("parameters") or {})


def _custom_tools(request: Request) -> set[str]:
    """The tools whose argument is one text and no JSON."""
    return {str(one.get("name")) for one in items(request.body.get("tools"), "tools") if one.get("type") == "custom"}


def _output(answered: AnswerContext) -> Iterator[dict[str, Any]]:
    """The items of an answer."""
    custom = _custom_tools(answered.request)
    status = _status(answered)
    for number, part in enumerate(answered.answer.parts):
        id_ = f"{answered.number:04}_{number}"
        if isinstance(part, Text):
            said = {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
            if answered.answer.stop == "refusal":
                said = {"type": "refusal", "refusal": part.text}
            yield {"id": f"msg_{id_}", "type": "message", "role": "assistant", "status": status, "content": [said]}
        elif isinstance(part, Thinking):
            summary = [{"type": "summary_text", "text": part.text}]
            yield {"id": f"rs_{id_}", "type": "reasoning", "summary": summary, "encrypted_content": part.signature or None}
        elif isinstance(part, Call) and part.name in custom:
            text = part.arguments.get("input", part.json) if isinstance(part.arguments, Mapping) else part.arguments
            yield {"id": f"ctc_{id_}", "type": "custom_tool_call", "call_id": part.id, "name": part.name, "input": text, "status": status}
        elif isinstance(part, Call):
            names = {"call_id": part.id, "name": part.name}
            yield {"id": f"fc_{id_}", "type": "function_call", **names, "arguments": part.json, "status": status}
        elif isinstance(part, Other):
            yield {"id": f"item_{id_}", **table(part.raw, "a part")}


def _kind(item: Mapping[str, Any]) -> _Kind | None:
    """How the contents of an item are streamed; None for one that comes whole."""
    part = _only_part(item)
    return _KINDS.get(str(part["type"] if part is not None else item["type"]))


def _only_part(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    parts = item.get("content") or item.get("summary")
    return parts[0] if item["type"] in ("message", "reasoning") and parts else None


def _hollow(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item without its contents, as a stream begins it."""
    emptied = {name: type(item[name])() for name in ("content", "summary", "arguments", "input") if name in item}
    return {**item, **emptied, **({"status": "in_progress"} if "status" in item else {})}


def _status(answered: AnswerContext) -> str:
    return "incomplete" if answered.answer.stop == "length" else "completed"


def _head(answered: AnswerContext, status: str) -> dict[str, Any]:
    body = answered.request.body
    return {
        "id": response_id(answered.number),
        "object": "response",
        "created_at": answered.seconds,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": answered.model,
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": body.get("truncation", "disabled"),
        "metadata": body.get("metadata") or {},
    }


def response_id(number: int) -> str:
    """The id of the answer of an answered."""
    return f"resp_{number:04}"


def _usage(answered: AnswerContext) -> Mapping[str, Any]:
    usage = answered.usage
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }
