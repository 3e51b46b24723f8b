"""Gemini generateContent: ``POST /v1beta/models/MODEL:generateContent`` and ``:streamGenerateContent?alt=sse``.

Source: the reference of the API, and what its SDK for Python parses. Its stream has no event for an end, and a call comes whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from pytest_gittrix.confine.gateway.usage import tokens_of
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.protocols.base import AnswerContext, Asked, Codec, Frame, event, items, merged, parsed, pieces, table, unfinished
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Other, Part, Request, Stop, Text, Thinking, Tool, ToolResult, Usage

_PATH: Final = re.compile(r".*/models/([^/:]+):(\w+)")
_HEARD: Final[Mapping[str, Stop]] = {"MAX_TOKENS": "length", "SAFETY": "refusal", "PROHIBITED_CONTENT": "refusal"}
_ERRORS: Final = {
    "invalid": "INVALID_ARGUMENT",
    "unauthorized": "UNAUTHENTICATED",
    "forbidden": "PERMISSION_DENIED",
    "not found": "NOT_FOUND",
    "too large": "INVALID_ARGUMENT",
    "context": "INVALID_ARGUMENT",
    "rate limit": "RESOURCE_EXHAUSTED",
    "overloaded": "UNAVAILABLE",
    "internal": "INTERNAL",
}


class GeminiCodec(Codec):
    """The codec."""

    name = "gemini"
    stops: ClassVar = {"end": "STOP", "tool": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}

    def decode(self, asked: Asked) -> Request:
        """What is asked; see ``Codec.decode``."""
        named = _PATH.fullmatch(asked.path.partition("?")[0])
        if named is None:
            raise InvalidInput(f"{asked.path} names no model.", why="This protocol has it in the path.", fix="See the client's address.")
        # A request to count tokens can hold the request that it is about.
        whole = table(asked.body.get("generateContentRequest") or asked.body, "the request")
        system = table(whole.get("systemInstruction") or whole.get("system_instruction") or {}, "systemInstruction")
        contents = [table(one, "a content") for one in items(whole.get("contents"), "contents")]
        messages = [("assistant" if one.get("role") == "model" else "user", [*_parts(one)]) for one in contents]
        settings = table(whole.get("generationConfig") or {}, "generationConfig")
        return Request(
            "gemini",
            named[1],
            "\n".join(part.text for part in _parts(system) if isinstance(part, Text)),
            merged(messages),
            tuple(_tools(items(whole.get("tools"), "tools"))),
            named[2] == "streamGenerateContent",
            settings.get("maxOutputTokens"),
            asked.path,
            whole,
            asked.headers,
        )

    def encode(self, answered: AnswerContext) -> Mapping[str, Any]:
        """An answer as one JSON value."""
        return _answer(answered, [_part(part) for part in answered.answer.parts], self.stops[answered.answer.stop])

    def frames(self, answered: AnswerContext) -> Iterator[Frame]:
        """An answer as a stream."""
        for part in answered.answer.parts:
            if isinstance(part, (Text, Thinking)):
                kind = type(part)
                for piece in pieces(part.text):
                    label = "text" if kind is Text else "thinking"
                    yield Frame(label, event(_answer(answered, [_part(kind(piece))], None)))  # type: ignore[arg-type]
            elif isinstance(part, Call):
                yield Frame("arguments", event(_answer(answered, [_part(part)], None)))
        yield Frame("stop", event(_answer(answered, [{"text": ""}], self.stops[answered.answer.stop])))

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """An error as a JSON value."""
        return {"error": {"code": failure.status, "message": failure.message, "status": _ERRORS[failure.kind]}}

    def counted(self, tokens: int) -> Mapping[str, Any]:
        """The answer to a request to count tokens."""
        return {"totalTokens": tokens}

    def join(self, events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A stream as one JSON value; see ``Codec.join``."""
        parts: list[dict[str, Any]] = []
        body: dict[str, Any] = {}
        finish = None
        for chunk in events:
            body |= {name: chunk[name] for name in ("usageMetadata", "modelVersion") if name in chunk}
            for candidate in chunk.get("candidates", ())[:1]:
                finish = candidate.get("finishReason") or finish
                for part in (candidate.get("content") or {}).get("parts") or ():
                    _join_part(parts, part)
        if finish is None:
            raise unfinished()
        return {**body, "candidates": [{"content": {"parts": parts}, "finishReason": finish}]}

    def hear(self, body: Mapping[str, Any]) -> Answer:
        """The answer in a JSON value; see ``Codec.hear``."""
        [candidate, *_] = body.get("candidates") or [{}]
        parts = tuple(part for part in _parts(candidate.get("content") or {}) if part != Text(""))
        usage = Usage(*tokens_of(body.get("usageMetadata") or {}))
        stop: Stop = "tool" if any(isinstance(part, Call) for part in parts) else "end"
        return Answer(parts, _HEARD.get(str(candidate.get("finishReason")), stop), usage, str(body.get("modelVersion", "")))


def _parts(content: Mapping[str, Any]) -> Iterator[Part]:
    for one in items(content.get("parts"), "parts"):
        part = table(one, "a part")
        call, result = part.get("functionCall"), part.get("functionResponse")
        if call is not None:
            yield Call(str(call.get("id") or call.get("name", "")), str(call.get("name", "")), parsed(call.get("args") or {}))
        elif result is not None:
            given = result.get("response")
            output = given.get("output", given.get("result", given.get("error", given))) if isinstance(given, Mapping) else given
            failed = isinstance(given, Mapping) and "error" in given
            text = output if isinstance(output, str) else json.dumps(output, sort_keys=True)
            yield ToolResult(str(result.get("id") or result.get("name", "")), text, failed)
        elif "text" in part:
            yield Thinking(part["text"], str(part.get("thoughtSignature", ""))) if part.get("thought") else Text(part["text"])
        else:
            yield Other(next(iter(part), "part"), part)


def _join_part(parts: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    """Add a part of a stream: text goes on where text of its kind was."""
    if "text" in part and parts and "text" in parts[-1] and bool(parts[-1].get("thought")) == bool(part.get("thought")):
        parts[-1] |= {**part, "text": parts[-1]["text"] + part["text"]}
    else:
        parts.append({**part})


def _tools(tools: Sequence[Any]) -> Iterator[Tool]:
    for one in tools:
        for declared in items(table(one, "tools").get("functionDeclarations"), "functionDeclarations"):
            tool = table(declared, "a tool")
            schema = tool.get("parametersJsonSchema") or tool.get("parameters") or {}
            yield Tool(str(tool.get("name", "")), str(tool.get("description", "")), schema)


def _part(part: Part) -> Mapping[str, Any]:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, Thinking):
        return {"text": part.text, "thought": True, **({"thoughtSignature": part.signature} if part.signature else {})}
    if isinstance(part, Call):
        arguments = part.arguments if isinstance(part.arguments, Mapping) else {"arguments": part.arguments}
        return {"functionCall": {"id": part.id, "name": part.name, "args": arguments}}
    assert isinstance(part, Other), "a model answers with no results"
    return table(part.raw, "a part")


def _answer(answered: AnswerContext, parts: Sequence[Mapping[str, Any]], finish: str | None) -> Mapping[str, Any]:
    usage = answered.usage
    return {
        "candidates": [{"content": {"role": "model", "parts": [*parts]}, "index": 0, **({"finishReason": finish} if finish else {})}],
        "usageMetadata": {
            "promptTokenCount": usage.input,
            "candidatesTokenCount": usage.output,
            "totalTokenCount": usage.input + usage.output,
            "cachedContentTokenCount": usage.cached,
        },
        "modelVersion": answered.model,
        "responseId": f"response-{answered.number:04}",
    }
