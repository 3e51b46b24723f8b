"""Clients of a model's server, written from the protocols' references and not from the server: one for each protocol, streaming and not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PROTOCOLS = ("anthropic", "responses", "chat", "gemini")
SHELL: Mapping[str, Any] = {
    "name": "bash",
    "description": "Run a command.",
    "schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}


@dataclass
class Heard:
    """What a client understood of one answer.

    Attributes:
        text: what was said.
        thoughts: what was thought.
        calls: the tools that are asked for: id, name and arguments as they came.
        stop: the protocol's word for why the answer ended; None if it never came.
        usage: tokens of the request and of the answer; None if they never came.
        status: of HTTP.
        error: the whole body of an error.
        headers: of the answer.
    """

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    stop: str | None = None
    usage: tuple[int, int] | None = None
    status: int = 200
    error: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class CutOff(Exception):
    """The connection ended within an answer."""


def ask(
    url: str, protocol: str, *messages: Mapping[str, Any] | str, stream: bool = False, tools: Sequence[Any] = (SHELL,), **more: Any
) -> Heard:
    """Ask a model, and understand what it answers. A text is a message of a user, in the words of any protocol.

    Raises:
        CutOff: the connection ended within the answer.
    """
    path, body = _BODIES[protocol](messages, tools, stream)
    status, headers, raw = post(url, path, {**body, **more})
    if status != 200:
        return Heard(status=status, error=json.loads(raw), headers=headers)
    heard = Heard(headers=headers)
    if stream:
        for event in _events(raw):
            _STREAMS[protocol](heard, event)
    else:
        _WHOLES[protocol](heard, json.loads(raw))
    for number, (id_, name, arguments) in enumerate(heard.calls):
        if isinstance(arguments, str):
            heard.calls[number] = (id_, name, json.loads(arguments))
    return heard


def post(url: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Mapping[str, str], bytes]:
    """Send a body as JSON, or bytes as they are. Raises CutOff: the answer ends before its end."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", urlsplit(url).path + path, data, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    except http.client.IncompleteRead as cut:
        raise CutOff(cut.partial.decode(errors="replace")) from None
    finally:
        connection.close()


def results(protocol: str, heard: Heard, *outputs: str) -> list[dict[str, Any]]:
    """The messages that follow an answer with calls: the answer itself, and what the tools gave."""
    calls: list[dict[str, Any]]
    if protocol == "anthropic":
        calls = [{"type": "tool_use", "id": id_, "name": name, "input": arguments} for id_, name, arguments in heard.calls]
        gave = [{"type": "tool_result", "tool_use_id": call[0], "content": text} for call, text in zip(heard.calls, outputs, strict=True)]
        return [{"role": "assistant", "content": calls}, {"role": "user", "content": gave}]
    if protocol == "chat":
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for id_, name, arguments in heard.calls
        ]
        gave = [{"role": "tool", "tool_call_id": call[0], "content": text} for call, text in zip(heard.calls, outputs, strict=True)]
        return [{"role": "assistant", "content": None, "tool_calls": calls}, *gave]
    if protocol == "responses":
        calls = [
            {"type": "function_call", "call_id": id_, "name": name, "arguments": json.dumps(arguments)}
            for id_, name, arguments in heard.calls
        ]
        gave = [
            {"type": "function_call_output", "call_id": call[0], "output": text} for call, text in zip(heard.calls, outputs, strict=True)
        ]
        return [*calls, *gave]
    asked: list[dict[str, Any]] = [{"functionCall": {"id": id_, "name": name, "args": arguments}} for id_, name, arguments in heard.calls]
    answered = [
        {"functionResponse": {"id": call[0], "name": call[1], "response": {"output": text}}}
        for call, text in zip(heard.calls, outputs, strict=True)
    ]
    return [{"role": "model", "parts": asked}, {"role": "user", "parts": answered}]


def _events(raw: bytes) -> Iterator[Any]:
    """The data of the events of a stream, as its standard reads it."""
    for block in raw.decode().split("\n\n"):
        data = "\n".join(line.removeprefix("data:").removeprefix(" ") for line in block.split("\n") if line.startswith("data:"))
        if data and data != "[DONE]":
            yield json.loads(data)


def _anthropic_body(messages: Any, tools: Any, stream: bool) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    offered: list[Any] = [{"name": one["name"], "description": one["description"], "input_schema": one["schema"]} for one in tools]
    return "/v1/messages?beta=true", {"model": "m", "max_tokens": 100, "messages": said, "tools": offered, "stream": stream}


def _chat_body(messages: Any, tools: Any, stream: bool) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    offered = [
        {"type": "function", "function": {"name": one["name"], "description": one["description"], "parameters": one["schema"]}}
        for one in tools
    ]
    more = {"stream_options": {"include_usage": True}} if stream else {}
    return "/v1/chat/completions", {"model": "m", "messages": said, "tools": offered, "stream": stream, **more}


def _responses_body(messages: Any, tools: Any, stream: bool) -> tuple[str, dict[str, Any]]:
    said = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": one}]} if isinstance(one, str) else one
        for one in messages
    ]
    offered = [{"type": "function", "name": one["name"], "description": one["description"], "parameters": one["schema"]} for one in tools]
    return "/v1/responses", {"model": "m", "input": said, "tools": offered, "stream": stream}


def _gemini_body(messages: Any, tools: Any, stream: bool) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "parts": [{"text": one}]} if isinstance(one, str) else one for one in messages]
    offered: list[Any] = [
        {"functionDeclarations": [{"name": one["name"], "description": one["description"], "parameters": one["schema"]} for one in tools]}
    ]
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/m:{method}", {"contents": said, "tools": offered}


_BODIES = {"anthropic": _anthropic_body, "responses": _responses_body, "chat": _chat_body, "gemini": _gemini_body}


def _anthropic_whole(heard: Heard, body: Any) -> None:
    for block in body["content"]:
        if block["type"] == "text":
            heard.text += block["text"]
        elif block["type"] == "thinking":
            heard.thoughts += block["thinking"]
        else:
            heard.calls.append((block["id"], block["name"], block["input"]))
    heard.stop = body["stop_reason"]
    heard.usage = body["usage"]["input_tokens"], body["usage"]["output_tokens"]


def _anthropic_event(heard: Heard, event: Any) -> None:
    if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
        heard.calls.append((event["content_block"]["id"], event["content_block"]["name"], ""))
    elif event["type"] == "content_block_delta":
        delta = event["delta"]
        heard.text += delta.get("text", "")
        heard.thoughts += delta.get("thinking", "")
        if delta["type"] == "input_json_delta":
            id_, name, arguments = heard.calls[-1]
            heard.calls[-1] = id_, name, arguments + delta["partial_json"]
    elif event["type"] == "message_start":
        heard.usage = event["message"]["usage"]["input_tokens"], 0
    elif event["type"] == "message_delta":
        assert heard.usage is not None
        heard.stop, heard.usage = event["delta"]["stop_reason"], (heard.usage[0], event["usage"]["output_tokens"])


def _chat_whole(heard: Heard, body: Any) -> None:
    [choice] = body["choices"]
    message = choice["message"]
    heard.text, heard.thoughts = message["content"] or message["refusal"] or "", message.get("reasoning_content", "")
    heard.calls = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())]
    heard.stop = choice["finish_reason"]
    heard.usage = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]


def _chat_event(heard: Heard, event: Any) -> None:
    for choice in event["choices"]:
        delta = choice["delta"]
        heard.text += delta.get("content") or delta.get("refusal") or ""
        heard.thoughts += delta.get("reasoning_content") or ""
        heard.stop = choice["finish_reason"] or heard.stop
        for one in delta.get("tool_calls", ()):
            if one["index"] == len(heard.calls):
                heard.calls.append((one["id"], one["function"]["name"], ""))
            id_, name, arguments = heard.calls[one["index"]]
            heard.calls[one["index"]] = id_, name, arguments + one["function"]["arguments"]
    if event.get("usage"):
        heard.usage = event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"]


def _responses_whole(heard: Heard, body: Any) -> None:
    for item in body["output"]:
        if item["type"] == "message":
            heard.text += "".join(part.get("text", part.get("refusal", "")) for part in item["content"])
        elif item["type"] == "reasoning":
            heard.thoughts += "".join(part["text"] for part in item["summary"])
        else:
            heard.calls.append((item["call_id"], item["name"], item["arguments"]))
    details = body["incomplete_details"]
    heard.stop = details["reason"] if details else body["status"]
    heard.usage = body["usage"]["input_tokens"], body["usage"]["output_tokens"]


def _responses_event(heard: Heard, event: Any) -> None:
    if event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
        heard.calls.append((event["item"]["call_id"], event["item"]["name"], ""))
    elif event["type"] in ("response.output_text.delta", "response.refusal.delta"):
        heard.text += event["delta"]
    elif event["type"] == "response.reasoning_summary_text.delta":
        heard.thoughts += event["delta"]
    elif event["type"] == "response.function_call_arguments.delta":
        id_, name, arguments = heard.calls[-1]
        heard.calls[-1] = id_, name, arguments + event["delta"]
    elif event["type"] in ("response.completed", "response.incomplete"):
        whole = Heard()
        _responses_whole(whole, event["response"])
        assert (whole.text, whole.thoughts) == (heard.text, heard.thoughts), "the last event tells another answer than the pieces"
        heard.stop, heard.usage = whole.stop, whole.usage


def _gemini_whole(heard: Heard, body: Any) -> None:
    [candidate] = body["candidates"]
    for part in candidate["content"]["parts"]:
        if "functionCall" in part:
            heard.calls.append((part["functionCall"]["id"], part["functionCall"]["name"], part["functionCall"]["args"]))
        elif part.get("thought"):
            heard.thoughts += part["text"]
        else:
            heard.text += part["text"]
    heard.stop = candidate.get("finishReason") or heard.stop
    heard.usage = body["usageMetadata"]["promptTokenCount"], body["usageMetadata"]["candidatesTokenCount"]


_WHOLES = {"anthropic": _anthropic_whole, "chat": _chat_whole, "responses": _responses_whole, "gemini": _gemini_whole}
_STREAMS = {"anthropic": _anthropic_event, "chat": _chat_event, "responses": _responses_event, "gemini": _gemini_whole}
