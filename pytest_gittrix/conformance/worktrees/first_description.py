"""A first description of a worktree manager, made from what its ``--help`` lists: a file to correct, not one to trust."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
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

_TIMEOUT: Final = 20.0
# A command of a list: a word at the beginning of an indented line, in a frame perhaps, or one of {a,b,c}.
_LISTED: Final = re.compile(r"^[\s│|]+([a-z][a-z-]*)(?:[,\s│|(]|$)", re.MULTILINE)
_BRACED: Final = re.compile(r"\{([a-z][a-z,-]*)\}")


def first_description(tool: str) -> str:
    """The text of a description, from the commands that a tool's help lists.

    Args:
        tool: how the tool is typed, such as ``tool`` or ``python -m tool``.

    Raises:
        InvalidInput: it cannot be run, or its help lists no command that makes a worktree.
    """
    try:
        done = subprocess.run([*shlex.split(tool), "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise InvalidInput(f"{tool!r} --help cannot be run: {problem}.", fix="Type it as in a shell.") from None
    listed = commands_in((done.stdout + done.stderr).decode("utf-8", "replace"))
    lines = [*_lines(tool, listed)]
    if not lines or not lines[0].startswith("create"):
        words = ", ".join(WORDS["create"][0])
        raise InvalidInput(
            f"The help of {tool!r} lists no command that makes a worktree.",
            why=f"Looked for: {words}.",
            fix=f'Write the file yourself: [worktree] and create = "{tool} ... {{name}}".',
        )
    return "\n".join(["# Made from the help; see that each line is right, and runs without a question.", "[worktree]", *lines, ""])


def commands_in(text: str) -> set[str]:
    """The words in a help that look like commands."""
    return {*_LISTED.findall(text), *(word for braces in _BRACED.findall(text) for word in braces.split(","))}


def _lines(tool: str, listed: Iterable[str]) -> Iterator[str]:
    known = {*listed}
    for command, (words, rest) in WORDS.items():
        word = next((word for word in words if word in known), None)
        if word is not None:
            yield f'{command} = "{tool} {word}{rest}"'
