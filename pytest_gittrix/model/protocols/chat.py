"""OpenAI Chat Completions: ``POST /v1/chat/completions``, which many other servers and clients speak as well.

Source: the reference of the API, and what its SDK for Python parses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from pytest_gittrix.confine.gateway.usage import tokens_of
from pytest_gittrix.model.protocols.base import AnswerContext, Asked, Codec, Frame, event, items, parsed, pieces, table, text_of, unfinished
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Other, Part, Request, Text, Thinking, Tool, ToolResult, Usage

_ERRORS: Final[Mapping[str, tuple[str, str | None]]] = {
    "invalid": ("invalid_request_error", None),
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "forbidden": ("invalid_request_error", "model_not_allowed"),
    "not found": ("invalid_request_error", "model_not_found"),
    "too large": ("invalid_request_error", "request_too_large"),
    "context": ("invalid_request_error", "context_length_exceeded"),
    "rate limit": ("requests", "rate_limit_exceeded"),
    "overloaded": ("server_error", "overloaded"),
    "internal": ("server_error", None),
}
_SYSTEM: Final = ("system", "developer")
_DONE: Final = b"data: [DONE]\n\n"


def openai_error(failure: Failure) -> Mapping[str, Any]:
    """An error as OpenAI's servers answer it, in both of their protocols."""
    type_, code = _ERRORS[failure.kind]
    return {"error": {"message": failure.message, "type": type_, "param": None, "code": code}}


class ChatCodec(Codec):
    """The codec."""

    name = "chat"
    stops: ClassVar = {"end": "stop", "tool": "tool_calls", "length": "length", "refusal": "content_filter"}

    def decode(self, asked: Asked) -> Request:
        """What is asked; see ``Codec.decode``."""
        body = asked.body
        system: list[str] = []
        messages: list[tuple[str, Sequence[Part]]] = []
        for one in items(body.get("messages"), "messages"):
            message = table(one, "a message")
            role = str(message.get("role"))
            if role in _SYSTEM:
                system.append(text_of(message.get("content")))
            elif role in ("tool", "function"):
                messages.append(("user", [ToolResult(str(message.get("tool_call_id", "")), text_of(message.get("content")))]))
            else:
                messages.append((role, [*_parts(message)]))
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        tools = (_tool(one) for one in items(body.get("tools"), "tools"))
        return self.request(asked, "\n".join(system), messages, tools, limit)

    def encode(self, answered: AnswerContext) -> Mapping[str, Any]:
        """An answer as one JSON value."""
        answer = answered.answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.stop == "refusal":
            message |= {"content": None, "refusal": answer.text}
        thoughts = "".join(part.text for part in answer.parts if isinstance(part, Thinking))
        if thoughts:
            message["reasoning_content"] = thoughts
        if answer.calls:
            message["tool_calls"] = [_call(one) for one in answer.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.stops[answer.stop]}
        return {**_head(answered, "chat.completion"), "choices": [choice], "usage": _usage(answered)}

    def frames(self, answered: AnswerContext) -> Iterator[Frame]:
        """An answer as a stream."""
        with_usage = bool((answered.request.body.get("stream_options") or {}).get("include_usage"))

        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return event({**_head(answered, "chat.completion.chunk"), "choices": [choice], **({"usage": None} if with_usage else {})})

        yield Frame("begin", chunk({"role": "assistant", "content": "", "refusal": None}))
        said = "refusal" if answered.answer.stop == "refusal" else "content"
        calls = 0
        for part in answered.answer.parts:
            if isinstance(part, Text):
                for piece in pieces(part.text):
                    yield Frame("text", chunk({said: piece}))
            elif isinstance(part, Thinking):
                for piece in pieces(part.text):
                    yield Frame("thinking", chunk({"reasoning_content": piece}))
            elif isinstance(part, Call):
                begun = {"index": calls, **_call(Call(part.id, part.name, ""))}
                yield Frame("call", chunk({"tool_calls": [begun]}))
                for piece in pieces(part.json):
                    yield Frame("arguments", chunk({"tool_calls": [{"index": calls, "function": {"arguments": piece}}]}))
                calls += 1
        yield Frame("stop", chunk({}, self.stops[answered.answer.stop]))
        if with_usage:
            yield Frame("stop", event({**_head(answered, "chat.completion.chunk"), "choices": [], "usage": _usage(answered)}))
        yield Frame("end", _DONE)

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """An error as a JSON value."""
        return openai_error(failure)

    def join(self, events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A stream as one JSON value; see ``Codec.join``."""
        message: dict[str, Any] = {"content": "", "reasoning_content": "", "refusal": "", "tool_calls": []}
        body: dict[str, Any] = {}
        finish = None
        for chunk in events:
            body |= {name: chunk[name] for name in ("id", "model", "usage") if chunk.get(name)}
            for choice in chunk.get("choices", ()):
                delta = choice.get("delta", {})
                finish = choice.get("finish_reason") or finish
                message["content"] += delta.get("content") or ""
                message["refusal"] += delta.get("refusal") or ""
                message["reasoning_content"] += delta.get("reasoning_content") or delta.get("reasoning") or ""
                for one in delta.get("tool_calls") or ():
                    _join_call(message["tool_calls"], one)
        if finish is None:
            raise unfinished()
        return {**body, "choices": [{"message": message, "finish_reason": finish}]}

    def hear(self, body: Mapping[str, Any]) -> Answer:
        """The answer in a JSON value; see ``Codec.hear``."""
        [choice, *_] = body.get("choices") or [{"message": {}}]
        usage, message = Usage(*tokens_of(body.get("usage") or {})), choice["message"]
        if message.get("refusal"):
            return Answer((Text(message["refusal"]),), "refusal", usage, str(body.get("model", "")))
        return self.heard(_parts(message), choice.get("finish_reason"), usage, body)


def _parts(message: Mapping[str, Any]) -> Iterator[Part]:
    if message.get("reasoning_content"):
        yield Thinking(str(message["reasoning_content"]))
    content = message.get("content")
    if isinstance(content, str):
        if content:
            yield Text(content)
    else:
        for one in items(content, "content"):
            part = table(one, "a part of content")
            yield Text(str(part.get("text", ""))) if part.get("type") == "text" else Other(str(part.get("type")), part)
    for one in items(message.get("tool_calls"), "tool_calls"):
        call = table(one, "a call")
        function = call.get("function") or call.get("custom") or {}
        yield Call(str(call.get("id", "")), str(function.get("name", "")), parsed(function.get("arguments", function.get("input", ""))))


def _join_call(calls: list[dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Add a piece of a call to the calls of a stream."""
    at = piece.get("index", len(calls))
    if at >= len(calls):
        calls.append({"id": "", "function": {"name": "", "arguments": ""}})
    call, function = calls[-1] if at >= len(calls) else calls[at], piece.get("function") or {}
    call["id"] = piece.get("id") or call["id"]
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def _tool(one: object) -> Tool:
    tool = table(one, "a tool")
    function = tool.get("function") or tool.get("custom") or tool
    return Tool(str(function.get("name", tool.get("type", ""))), str(function.get("description", "")), function.get("parameters") or {})


def _call(call: Call) -> Mapping[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.json}}


def _head(answered: AnswerContext, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answered.number:04}", "object": kind, "created": answered.seconds, "model": answered.model}


def _usage(answered: AnswerContext) -> Mapping[str, Any]:
    usage = answered.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
