"""Anthropic Messages: ``POST /v1/messages``, and its stream of named events.

Source: the reference of the Messages API, and what its SDK for Python parses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from pytest_gittrix.confine.gateway.usage import tokens_of
from pytest_gittrix.model.protocols.base import AnswerContext, Asked, Codec, Frame, event, items, parsed, pieces, table, text_of, unfinished
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Other, Part, Request, Text, Thinking, Tool, ToolResult, Usage

_DELTAS: Final = (("text", "text"), ("thinking", "thinking"), ("signature", "signature"), ("partial_json", "input"))
_ERRORS: Final = {
    "invalid": "invalid_request_error",
    "unauthorized": "authentication_error",
    "forbidden": "permission_error",
    "not found": "not_found_error",
    "too large": "request_too_large",
    "context": "invalid_request_error",
    "rate limit": "rate_limit_error",
    "overloaded": "overloaded_error",
    "internal": "api_error",
}


class AnthropicCodec(Codec):
    """The codec."""

    name = "anthropic"
    stops: ClassVar = {"end": "end_turn", "tool": "tool_use", "length": "max_tokens", "refusal": "refusal"}

    def decode(self, asked: Asked) -> Request:
        """What is asked; see ``Codec.decode``."""
        body = asked.body
        messages = [(str(one.get("role")), [*_parts(one.get("content"))]) for one in items(body.get("messages"), "messages")]
        tools = (_tool(one) for one in items(body.get("tools"), "tools"))
        return self.request(asked, text_of(body.get("system")), messages, tools, body.get("max_tokens"))

    def encode(self, answered: AnswerContext) -> Mapping[str, Any]:
        """An answer as one JSON value."""
        content = [_block(part) for part in answered.answer.parts]
        stop = self.stops[answered.answer.stop]
        return {**_head(answered), "content": content, "stop_reason": stop, "usage": _usage(answered)}

    def frames(self, answered: AnswerContext) -> Iterator[Frame]:
        """An answer as a stream."""
        begun = {**_head(answered), "content": [], "stop_reason": None, "usage": {**_usage(answered), "output_tokens": 1}}
        yield Frame("begin", event({"type": "message_start", "message": begun}, "message_start"))
        for number, part in enumerate(answered.answer.parts):
            yield from _block_frames(number, part)
        end = {
            "type": "message_delta",
            "delta": {"stop_reason": self.stops[answered.answer.stop], "stop_sequence": None},
            "usage": {"output_tokens": answered.usage.output},
        }
        yield Frame("stop", event(end, "message_delta"))
        yield Frame("end", event({"type": "message_stop"}, "message_stop"))

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """An error as a JSON value."""
        return {"type": "error", "error": {"type": _ERRORS[failure.kind], "message": failure.message}, "request_id": "req_0"}

    def join(self, events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A stream as one JSON value; see ``Codec.join``."""
        body: dict[str, Any] = {}
        for event_ in events:
            kind, delta = event_.get("type"), event_.get("delta", {})
            if kind == "message_start":
                body = {**event_["message"], "content": []}
            elif kind == "content_block_start":
                body["content"].append({**event_["content_block"], **({"input": ""} if "input" in event_["content_block"] else {})})
            elif kind == "content_block_delta":
                for key, name in _DELTAS:
                    if key in delta:
                        body["content"][event_["index"]][name] = body["content"][event_["index"]].get(name, "") + delta[key]
            elif kind == "message_delta":
                body |= {**delta, "usage": {**body["usage"], **event_.get("usage", {})}}
            elif kind == "message_stop":
                return body
        raise unfinished()

    def hear(self, body: Mapping[str, Any]) -> Answer:
        """The answer in a JSON value; see ``Codec.hear``."""
        usage = Usage(*tokens_of(body.get("usage") or {}))
        return self.heard(_parts(body.get("content")), body.get("stop_reason"), usage, body)


def _parts(content: object) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(content)
        return
    for one in items(content, "content"):
        block = table(one, "a block of content")
        kind = block.get("type")
        if kind == "text":
            yield Text(block.get("text", ""))
        elif kind == "tool_use":
            yield Call(block.get("id", ""), block.get("name", ""), parsed(block.get("input", {})))
        elif kind == "tool_result":
            yield ToolResult(block.get("tool_use_id", ""), text_of(block.get("content")), bool(block.get("is_error")))
        elif kind == "thinking":
            yield Thinking(block.get("thinking", ""), block.get("signature", ""))
        else:
            yield Other(str(kind), block)


def _tool(one: object) -> Tool:
    tool = table(one, "a tool")
    return Tool(str(tool.get("name", "")), str(tool.get("description", "")), tool.get("input_schema") or {})


def _head(answered: AnswerContext) -> dict[str, Any]:
    id_ = f"msg_{answered.number:04}"
    return {"id": id_, "type": "message", "role": "assistant", "model": answered.model, "stop_sequence": None}


def _usage(answered: AnswerContext) -> dict[str, Any]:
    usage = answered.usage
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _block(part: Part) -> Mapping[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if isinstance(part, Call):
        # Arguments that are no object exist in streams alone, where they come as text.
        given = part.arguments if isinstance(part.arguments, Mapping) else {}
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}
    assert isinstance(part, Other), "a model answers with no results"
    return table(part.raw, "a part")


def _block_frames(number: int, part: Part) -> Iterator[Frame]:
    """The events of one block: its beginning without contents, the contents, its end."""

    def frame(label: Any, kind: str, data: Mapping[str, Any]) -> Frame:
        return Frame(label, event({"type": kind, "index": number, **data}, kind))

    if isinstance(part, Text):
        yield frame("begin", "content_block_start", {"content_block": {"type": "text", "text": ""}})
        for piece in pieces(part.text):
            yield frame("text", "content_block_delta", {"delta": {"type": "text_delta", "text": piece}})
    elif isinstance(part, Thinking):
        yield frame("begin", "content_block_start", {"content_block": {"type": "thinking", "thinking": "", "signature": ""}})
        for piece in pieces(part.text):
            yield frame("thinking", "content_block_delta", {"delta": {"type": "thinking_delta", "thinking": piece}})
        yield frame("thinking", "content_block_delta", {"delta": {"type": "signature_delta", "signature": part.signature}})
    elif isinstance(part, Call):
        yield frame("call", "content_block_start", {"content_block": {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}})
        for piece in pieces(part.json):
            yield frame("arguments", "content_block_delta", {"delta": {"type": "input_json_delta", "partial_json": piece}})
    else:
        yield frame("begin", "content_block_start", {"content_block": _block(part)})
    yield frame("begin", "content_block_stop", {})
