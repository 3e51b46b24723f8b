"""Which recorded exchange a request is: by its contents, and by its order only among equal ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_gittrix.model.protocols.values import Call, Message, Part, Request, Text, ToolResult
from pytest_gittrix.model.tapes.neutral import Json, request_to_json, rewritten
from pytest_gittrix.model.tapes.placeholders import Known, without_volatile


class Difference(NamedTuple):
    """The first place where two requests differ.

    Attributes:
        path: where, such as ``messages[2].user[0].text``.
        recorded: what the tape has there.
        now: what the agent sends there.
    """

    path: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"at {self.path}\n  recorded: {self.recorded}\n  now:      {self.now}"


def normal_form(request: Request, known: Known) -> dict[str, Json]:
    """What of a request has to be the same in a later run: without what differs from run to run, and without secrets."""
    numbered = replace(request, messages=tuple(_numbered(request.messages)))
    volatile = without_volatile()
    form: dict[str, Json] = rewritten(request_to_json(numbered), lambda text: volatile(known.hide(text)))
    return form


def lenient_form(form: Mapping[str, Json]) -> dict[str, Json]:
    """The protocol, the tools that are offered, and of the messages the roles, calls and results. What is said may differ."""
    messages = [
        {role: [part for part in parts if isinstance(part, Mapping) and ("call" in part or "result" in part)]}
        for message in form["messages"]
        for role, parts in message.items()
    ]
    return {"protocol": form["protocol"], "tools": sorted(tool["name"] for tool in form["tools"]), "messages": messages}


def key_of(form: Mapping[str, Json]) -> str:
    """A digest that two requests share if they are the same."""
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode(errors="surrogatepass")).hexdigest()


def first_difference(recorded: Json, now: Json, path: str = "") -> Difference | None:
    """The first leaf that differs; None if there is none."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for name in [*recorded, *(name for name in now if name not in recorded)]:
            inner = f"{path}.{name}".removeprefix(".")
            if name not in recorded or name not in now:
                return Difference(inner, _shown(recorded.get(name)), _shown(now.get(name)))
            if found := first_difference(recorded[name], now[name], inner):
                return found
        return None
    if _is_list(recorded) and _is_list(now):
        for at in range(max(len(recorded), len(now))):
            inner = f"{path}[{at}]"
            if at >= len(recorded) or at >= len(now):
                return Difference(inner, _shown(recorded[at:][:1]), _shown(now[at:][:1]))
            if found := first_difference(recorded[at], now[at], inner):
                return found
        return None
    if recorded == now:
        return None
    if isinstance(recorded, str) and isinstance(now, str):
        return Difference(path, *_around(recorded, now))
    return Difference(path, _shown(recorded), _shown(now))


def _numbered(messages: Sequence[Message]) -> list[Message]:
    """Messages whose calls are numbered: clients and servers make ids in ways of their own."""
    numbers: dict[str, str] = {}

    def number(id_: str) -> str:
        return numbers.setdefault(id_, f"call {len(numbers) + 1}")

    def renamed(part: Part) -> Part:
        return replace(part, id=number(part.id)) if isinstance(part, (Call, ToolResult)) else part

    return [Message(one.role, tuple(renamed(part) for part in one.parts if part != Text(""))) for one in messages]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shown(value: Any) -> str:
    text = "nothing" if value in (None, []) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _around(recorded: str, now: str) -> tuple[str, str]:
    """Two texts around the first sign that differs."""
    at = next(
        (number for number, (one, other) in enumerate(zip(recorded, now, strict=False)) if one != other), min(len(recorded), len(now))
    )
    start = max(0, at - 60)
    dots = "..." if start else ""
    return f"{dots}{recorded[start : at + 120]!r}", f"{dots}{now[start : at + 120]!r}"
