"""The whole command line: the commands that a daemon can run too, those that only a terminal has, and those of other packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pytest_gittrix.commands.declaration import Later, Sections
from pytest_gittrix.commands.parser import Parser, parser
from pytest_gittrix.commands.verbs.catalogue import COMMANDS, SESSIONS
from pytest_gittrix.extensions import OURS, Registered, registered


def _later(commands: Registered, *names: str) -> list[Later]:
    return [Later(name, commands[name].what, commands[name].address) for name in names]


ALL: Final[Sections] = {
    "sessions": SESSIONS,
    "agents": _later(OURS["commands"], "agent", "acp", "mcp", "serve"),
    "tests": _later(OURS["commands"], "eval", "tape", "conform", "torture", "world"),
    "worktrees": _later(OURS["commands"], "unfinished"),
    **{title: commands for title, commands in COMMANDS.items() if commands is not SESSIONS},
}
"""The commands of this package."""


def command_line(line: Iterable[str] | None = None) -> Parser:
    """Make the parser of the whole command line, or of the verbs that stand in ``line``; its ``parse_args`` raises Misuse."""
    given = None if line is None else [*line]
    ours = {word for entries in ALL.values() for entry in entries for word in (entry.name, *entry.aliases)}
    if given is not None and ("--version" in given or _command_of(given) in ours):
        return parser(ALL, given)
    others = registered("commands")
    more = _later(others, *(name for name in others if name not in ours))
    return parser({**ALL, "of other packages": more} if more else ALL, given)


def _command_of(line: Sequence[str]) -> str:
    """The word of a line that names its command; empty if there is none."""
    pairs = zip(line, ["", *line], strict=False)
    return next((word for word, before in pairs if not word.startswith("-") and before != "--store"), "")
