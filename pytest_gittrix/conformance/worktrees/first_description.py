"""A first description of a worktree manager, made from what its ``--help`` lists and a person answers: a file to correct."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from pytest_gittrix.errors import InvalidInput

WORDS: Final = {
    "create": (("new", "create", "add", "start", "switch", "spawn", "up"), " {name}"),
    "delete": (("delete", "remove", "rm", "destroy", "drop"), " {name}"),
    "clean": (("clean", "cleanup", "prune", "gc"), ""),
    "finish": (("merge", "finish", "land", "complete", "done"), " {name}"),
    "sync": (("sync", "rebase", "update"), " {name}"),
    "list": (("list", "ls", "status"), ""),
}
"""The commands of a description, with the words that tools have for them, the likeliest first, and what follows."""

NOTHING: Final = "-"
"""The answer of a person whose tool has no such command."""
QUESTIONS: Final = {
    "create": "How is a worktree made? {name} is its name.",
    "delete": "How is one removed?",
    "clean": "How are all removed that are finished?",
    "finish": "How does the work of one get onto the base branch?",
    "list": "How are they listed?",
}
"""The questions to a person, by the commands that they are about; an empty answer takes the default that is shown."""

_GUESSED: Final = "# Made from the help; see that each line is right, and runs without a question."
_ANSWERED: Final = "# Made from answers; see that each line runs without a question."
_TIMEOUT: Final = 20.0
# A command of a list: a word at the beginning of an indented line, in a frame perhaps, or one of {a,b,c}.
_LISTED: Final = re.compile(r"^[\s│|]+([a-z][a-z-]*)(?:[,\s│|(]|$)", re.MULTILINE)
_BRACED: Final = re.compile(r"\{([a-z][a-z,-]*)\}")


def first_description(tool: str, ask: Callable[[str], str] | None = None) -> str:
    """The text of a description, from the commands that a tool's help lists, and from what a person answers.

    Args:
        tool: how the tool is typed, such as ``tool`` or ``python -m tool``.
        ask: puts a question to a person and gives the answer, which is empty for the default. Without it the help alone counts.

    Raises:
        InvalidInput: without ``ask``, the tool cannot be run, or its help lists no command that makes a worktree.
    """
    if ask is not None:
        guessed: Mapping[str, str] = {}
        with suppress(InvalidInput):
            guessed = _lines(tool, commands_in(_help_of(tool)))
        return _text(_asked(tool, guessed, ask), _ANSWERED)
    lines = _lines(tool, commands_in(_help_of(tool)))
    if "create" not in lines:
        words = ", ".join(WORDS["create"][0])
        raise InvalidInput(
            f"The help of {tool!r} lists no command that makes a worktree.",
            why=f"Looked for: {words}.",
            fix=f'Answer questions, with `--ask`, or write the file yourself: [worktree] and create = "{tool} ... {{name}}".',
        )
    return _text(lines, _GUESSED)


def _help_of(tool: str) -> str:
    try:
        done = subprocess.run([*shlex.split(tool), "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise InvalidInput(
            f"{tool!r} --help cannot be run: {problem}.", fix="Type it as in a shell, or answer questions, with `--ask`."
        ) from None
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _asked(tool: str, guessed: Mapping[str, str], ask: Callable[[str], str]) -> dict[str, str]:
    """The commands that a person names; the defaults are what was guessed, and for a worktree's beginning the likeliest word."""
    lines = {**guessed}
    lines.setdefault("create", f"{tool} {WORDS['create'][0][0]} {{name}}")
    for command, question in QUESTIONS.items():
        answer = ask(f"{question} [{lines.get(command, NOTHING)}] ").strip()
        if answer == NOTHING and command != "create":
            lines.pop(command, None)
        elif answer and answer != NOTHING:
            lines[command] = answer
    return lines


def _text(lines: Mapping[str, str], first: str) -> str:
    """The file. A text as JSON writes it is one of TOML too."""
    written = (f"{command} = {json.dumps(lines[command], ensure_ascii=False)}" for command in WORDS if command in lines)
    return "\n".join([first, "[worktree]", *written, ""])


def commands_in(text: str) -> set[str]:
    """The words in a help that look like commands."""
    return {*_LISTED.findall(text), *(word for braces in _BRACED.findall(text) for word in braces.split(","))}


def _lines(tool: str, listed: Collection[str]) -> dict[str, str]:
    """The commands that can be made of the words of a help."""
    found = {command: next((word for word in words if word in listed), None) for command, (words, _) in WORDS.items()}
    return {command: f"{tool} {word}{WORDS[command][1]}" for command, word in found.items() if word is not None}
