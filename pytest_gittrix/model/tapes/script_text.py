"""A tape as the script that answers the same: Python that a person reads, changes and runs."""

from __future__ import annotations

import keyword
import pprint
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pytest_gittrix.model.tapes.neutral import Json
from pytest_gittrix.model.tapes.placeholders import has_place
from pytest_gittrix.model.tapes.tape import Recorded, Tape

_HEAD: Final = '"""The answers of {name}, as a script: gittrix_model.script(*SCRIPT)."""\n\nfrom pytest_gittrix.model import {names}\n\n'
_WIDTH: Final = 120


def script_of(tape: Tape, name: str) -> str:
    """A module with the script of a tape; it has the answers alone, whatever is asked.

    A tape of several conversations gives a script of each, ``SCRIPT_1`` and so on, with what its first message begins with.

    Args:
        tape: the tape.
        name: of the tape, for the module's docstring.
    """
    groups: dict[str, list[Recorded]] = {}
    for one in tape.exchanges:
        groups.setdefault(repr(one.form["messages"][:1]), []).append(one)
    printer = _Printer()
    many = len(groups) > 1
    parts: list[str] = []
    for number, group in enumerate(groups.values(), 1):
        about = f"# gittrix_model.script(*SCRIPT_{number}, about={_about(group[0])!r})\n" if many else ""
        steps = "".join(f"    {printer.step(one.content)},\n" for one in group)
        parts.append(f"{about}SCRIPT{f'_{number}' if many else ''} = (\n{steps})\n")
    head = _HEAD.format(name=name, names=", ".join(sorted(printer.names)) or "say")
    return head + "\n".join(parts or ["SCRIPT = ()\n"])


class _Printer:
    """Prints steps, and notes the names that they need."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def step(self, content: Mapping[str, Json]) -> str:
        """One step of a script."""
        made = self._failing(content) if "failure" in content else self._answering(content["answer"], content.get("stop", "end"))
        return self._made("placed", made) if has_place(made) else made

    def _made(self, function: str, *arguments: str) -> str:
        self.names.add(function)
        return f"{function}({', '.join(arguments)})"

    def _failing(self, content: Mapping[str, Json]) -> str:
        waits = content.get("retry_after")
        more = [] if waits is None else [f"retry_after={waits!r}"]
        return self._made("fail", str(content["failure"]), *more, f"message={content.get('message', '')!r}")

    def _answering(self, parts: Iterable[Json], stop: str) -> str:
        parts = [*parts]
        if stop in ("end", "tool") and parts and all(_is_plain_call(part) for part in parts):
            calls = [self._made("call", repr(part["call"]), *_keywords(part.get("arguments", {}))) for part in parts]
            return calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
        if stop == "end" and len(parts) == 1 and isinstance(parts[0], str):
            return self._made("say", repr(parts[0]))
        made = "".join(f"{self._part(part)}, " for part in parts).rstrip(" ")
        return self._made("Answer", f"({made})", repr(stop))

    def _part(self, part: Json) -> str:
        if isinstance(part, str):
            return self._made("Text", repr(part))
        if "thinking" in part:
            return self._made("Thinking", repr(part["thinking"]), repr(part.get("signature", "")))
        if "call" in part:
            return self._made("Call", '""', repr(part["call"]), _value(part.get("arguments", {})))
        return self._made("Other", repr(part["other"]), _value(part.get("raw")))


def _is_plain_call(part: Json) -> bool:
    """Whether a part is a call whose arguments can be written by keywords."""
    if not isinstance(part, Mapping) or "call" not in part:
        return False
    arguments = part.get("arguments", {})
    return isinstance(arguments, Mapping) and all(name.isidentifier() and not keyword.iskeyword(name) for name in arguments)


def _keywords(arguments: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_value(one)}" for name, one in arguments.items()]


def _value(value: Any) -> str:
    return repr(value) if isinstance(value, str) else pprint.pformat(value, width=_WIDTH, sort_dicts=False, compact=True)


def _about(one: Recorded) -> str:
    """Enough of a conversation's beginning to tell it from others."""
    message = one.form["messages"][0] if one.form["messages"] else {}
    texts = [part for parts in message.values() for part in parts if isinstance(part, str)]
    return texts[0][:_WIDTH] if texts else ""
