"""Tapes: files of exchanges with a model, one a line, each with what is new since the last one of its conversation.

A line that begins with ``#`` is a comment of whoever edits the file; a recording does not keep it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Message, Request, Tool
from pytest_gittrix.model.tapes.matching import normal_form
from pytest_gittrix.model.tapes.neutral import Json, answer_from_json, answer_to_json, part_from_json, rewritten
from pytest_gittrix.model.tapes.placeholders import Known, without_volatile
from pytest_gittrix.os_level.atomic_text import write_whole

FORMAT: Final = 1
_CONFLICT: Final = tuple(sign * 7 for sign in "<|=>")
_AS_ANSWERED: Final = "="
"""Marks a message that is the answer of the exchange before, as it was given."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange of a tape.

    Attributes:
        form: the request, in the normal form.
        content: the answer or failure, with placeholders.
    """

    form: Mapping[str, Json]
    content: Mapping[str, Json]

    @property
    def request(self) -> Request:
        """The request, as far as the normal form has it."""
        messages = tuple(
            Message(role, tuple(map(part_from_json, parts))) for message in self.form["messages"] for role, parts in message.items()
        )
        tools = tuple(Tool(one["name"], one["description"], one["schema"]) for one in self.form["tools"])
        return Request(self.form["protocol"], "", self.form["system"], messages, tools)

    def answer(self, known: Known) -> Answer | Failure:
        """What is answered here and now."""
        return answer_from_json(rewritten(self.content, known.show))


@dataclass(slots=True)
class _Conversation:
    """What a tape has said of a conversation so far."""

    system: str = ""
    tools: Json = field(default_factory=list)
    messages: list[Json] = field(default_factory=list)
    answer: Json = None


@dataclass
class Tape:
    """What was asked of a model, and answered.

    Attributes:
        exchanges: in order.
    """

    exchanges: list[Recorded] = field(default_factory=list)

    def add(self, exchange: Exchange, known: Known) -> None:
        """Record an exchange that was."""
        self.exchanges.append(recorded(exchange, known))

    @property
    def text(self) -> str:
        """The tape as a file has it."""
        lines = TapeLines()
        return "".join([lines.head, *map(lines.line, self.exchanges)])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the tape to a file, whose directory is made when needed. Raises OSError."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, self.text)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Tape:
        """Read a tape.

        Raises:
            InvalidInput: it is none, or there is no such file. It names the line.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            raise InvalidInput(
                f"There is no tape {path}.",
                why="The model answers from it.",
                fix="Record it: pytest --gittrix-model=once, with a model's key.",
            ) from None
        except OSError as problem:
            raise InvalidInput(f"The tape {path} cannot be read: {problem.strerror}.", fix="Name a file that a recording wrote.") from None
        except UnicodeDecodeError as problem:
            raise _broken(path, problem.object[: problem.start].count(b"\n") + 1, "it is not UTF-8") from None
        return cls.of_lines(text.split("\n"), name=path)

    @classmethod
    def of_lines(cls, lines: Iterable[str], *, name: object) -> Tape:
        """A tape from its lines.

        Args:
            lines: those of its file.
            name: of the tape, for messages.

        Raises:
            InvalidInput: they are no tape. It names the line.
        """
        found: list[tuple[int, Any]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith(_CONFLICT):
                raise _broken(name, number, "a merge left a conflict there")
            try:
                found.append((number, json.loads(line)))
            except (ValueError, RecursionError) as problem:
                raise _broken(name, number, str(problem)) from None
        if not found or not isinstance(found[0][1], dict) or found[0][1].get("tape") != FORMAT:
            raise _broken(name, found[0][0] if found else 1, f'it does not begin with {{"tape": {FORMAT}}}')
        return cls([*_exchanges(found[1:], name)])


def recorded(exchange: Exchange, known: Known) -> Recorded:
    """An exchange as a tape has it: without secrets, and with placeholders for what differs from run to run."""
    volatile = without_volatile()
    content = rewritten(answer_to_json(_without_ids(exchange.content)), lambda text: volatile(known.hide(text)))
    return Recorded(normal_form(exchange.request, known), content)


def _broken(path: object, line: int, what: str) -> InvalidInput:
    return InvalidInput(
        f"{path} is not a valid tape: line {line}: {what}.",
        why="The model answers from it.",
        fix="Record it again: pytest --gittrix-model=rewrite.",
    )


def _without_ids(content: Answer | Failure) -> Answer | Failure:
    """An answer whose calls get ids when it is given: they follow from the conversation."""
    if isinstance(content, Failure):
        return content
    parts = tuple(Call("", part.name, part.arguments) if isinstance(part, Call) else part for part in content.parts)
    return Answer(parts, content.stop, content.usage)


class TapeLines:
    """Makes the lines of a tape: of each exchange what is new since the last one of its conversation."""

    def __init__(self, exchanges: Iterable[Recorded] = ()) -> None:
        """Begin a tape, or go on with one.

        Args:
            exchanges: those that it has already.
        """
        self._conversations: list[_Conversation] = []
        self._number = 0
        for one in exchanges:
            self.line(one)

    @property
    def head(self) -> str:
        """The first line."""
        return _as_line({"tape": FORMAT})

    def line(self, one: Recorded) -> str:
        """The line of the next exchange."""
        form = one.form
        known = next((known for known in self._conversations if known.messages[:1] == form["messages"][:1]), None)
        if known is None:
            known = _Conversation()
            self._conversations.append(known)
        self._number += 1
        line: dict[str, Json] = {
            "n": self._number,
            "conversation": self._conversations.index(known) + 1,
            "protocol": form["protocol"],
        }
        line |= {name: form[name] for name in ("system", "tools") if form[name] != getattr(known, name)}
        before = len(known.messages)
        if form["messages"][:before] == known.messages:
            new = [*form["messages"][before:]]
            if new and new[0] == known.answer:
                new[0] = _AS_ANSWERED
            line["new"] = new
        else:
            line["rewritten"] = form["messages"]
        known.system, known.tools, known.messages = form["system"], form["tools"], [*form["messages"]]
        known.answer = _as_message(one.content, known.messages)
        return _as_line({**line, **one.content})


def _as_line(value: Json) -> str:
    return f"{json.dumps(value, ensure_ascii=False)}\n"


def _exchanges(lines: Iterable[tuple[int, Mapping[str, Json]]], name: object) -> Iterator[Recorded]:
    """The exchanges of numbered lines. Raises InvalidInput, which names the line that is none."""
    conversations: dict[int, _Conversation] = {}
    for number, line in lines:
        try:
            yield _exchange(line, conversations)
        except InvalidInput as problem:
            raise _broken(name, number, problem.fact.rstrip(".")) from None
        except (KeyError, TypeError, AttributeError, IndexError) as problem:
            raise _broken(name, number, f"{type(problem).__name__} {problem}") from None


def _exchange(line: Mapping[str, Json], conversations: dict[int, _Conversation]) -> Recorded:
    known = conversations.setdefault(line["conversation"], _Conversation())
    known.system, known.tools = line.get("system", known.system), line.get("tools", known.tools)
    if "rewritten" in line:
        known.messages = [*line["rewritten"]]
    else:
        known.messages = [*known.messages, *(known.answer if one == _AS_ANSWERED else one for one in line["new"])]
    form = {"protocol": line["protocol"], "system": known.system, "tools": known.tools, "messages": known.messages}
    content = {name: line[name] for name in _CONTENT if name in line}
    answer_from_json(content)
    known.answer = _as_message(content, known.messages)
    return Recorded(form, content)


_CONTENT: Final = ("answer", "stop", "usage", "failure", "kind", "message", "retry_after")


def _as_message(content: Mapping[str, Json], messages: list[Json]) -> Json:
    """An answer as the message that the next request has, if the agent sends it back as it is; None for a failure."""
    if "answer" not in content:
        return None
    ids = [
        part["id"] for message in messages for parts in message.values() for part in parts if isinstance(part, Mapping) and "call" in part
    ]
    number = len(dict.fromkeys(ids))
    said = []
    for part in content["answer"]:
        if isinstance(part, Mapping) and "call" in part:
            number += 1
            said.append({**part, "id": f"call {number}"})
        else:
            said.append(part)
    return {"assistant": said}
