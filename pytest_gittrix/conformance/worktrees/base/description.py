"""The description of a worktree manager: a few lines of TOML that say how its commands are typed.

Commands are lines of shell. ``{name}`` is the name of a worktree, ``{base}`` the branch it starts from, ``{path}`` the worktree's
directory, ``{repo}`` the main checkout and ``{world}`` the directory around it; each is quoted for the shell when it is filled in.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.formats.toml_file import read_toml, validated

COMMANDS: Final = ("create", "delete", "clean", "dry_run", "expire", "finish", "sync", "list")
"""The keys of a description that are commands of the tool."""
PLACEHOLDERS: Final = ("name", "base", "path", "repo", "world")
"""What may stand in braces in a command."""

_PLACEHOLDER: Final = re.compile(r"\{([a-z]+)\}")
_CODE: Final = re.compile(r"W[A-Z]{3}-\d\d")
_HEADING: Final = re.compile(r"\s*\[(tool\.gittrix\.)?worktree\]")
_TABLES: Final = (("worktree",), ("tool", "gittrix", "worktree"))


class Waiver(BaseModel):
    """A promise that a tool does not make on purpose, with the words of its own help that say so; or that it does not keep yet.

    Attributes:
        quote: words of the help; white space does not matter.
        help: the command that prints them, such as ``tool delete --help``.
        not_yet: why the promise is not kept yet, such as the address of an issue; in the place of the other two.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    quote: str = Field(default="", min_length=8)
    help: str = Field(default="", min_length=1)
    not_yet: str = Field(default="", min_length=8)

    @model_validator(mode="after")
    def _one_reason(self) -> Waiver:
        if bool(self.not_yet) == bool(self.quote or self.help) or bool(self.quote) != bool(self.help):
            raise ValueError("a waiver has quote and help, or not_yet")
        return self


class WorktreeTool(BaseModel):
    """A manager of git worktrees, as its description tells it. Only ``create`` has to be given.

    Attributes:
        name: what the report calls it; the first word of ``create`` by default.
        version: a command that prints its version.
        create: makes a worktree.
        delete: removes one; without it the family WREM is not claimed.
        clean: removes all that are finished; without it WMRG is not claimed.
        dry_run: prints what ``clean`` would remove.
        expire: removes all that were not used for long; with a limit of at most a year, such as ``tool clean --older-than 30d``.
        finish: brings the work of one to the base branch; without it WFIN is not claimed.
        sync: brings a worktree up to date with the base branch.
        list: prints the worktrees; without it WTRU is not claimed.
        setup: commands that run once in each world, before the first command of the tool, such as one that writes a configuration which the
            tool requires.
        main: the main checkout, where ``setup`` moves it, as tools do that keep a bare repository with worktrees in it: ``{repo}/main``.
        env: further environment variables of all commands.
        cwd: where ``create``, ``delete``, ``clean`` and ``list`` run: ``repo``, ``worktree``, or a path with placeholders.
        finish_cwd: the same for ``finish``.
        sync_cwd: the same for ``sync``; ``worktree`` by default.
        unnamed: the tool gives names itself, so that clauses about names are not claimed.
        origin: the address of the remote of each world: a ``file`` URL, a ``bare`` path, or ``none``.
        pty: run commands on a terminal.
        answers: lines that commands find on their standard input, which is empty by default.
        timeout: seconds for each command.
        pool: worktrees are reused: a new one is the one whose HEAD changed.
        base: the branch that worktrees start from; each world's repository begins on it.
        waive: promises that the tool does not make, by the codes of clauses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    version: str = ""
    create: str = Field(min_length=1)
    delete: str = ""
    clean: str = ""
    dry_run: str = ""
    expire: str = ""
    finish: str = ""
    sync: str = ""
    list: str = ""
    setup: tuple[str, ...] = ()
    main: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str = "repo"
    finish_cwd: str = "repo"
    sync_cwd: str = "worktree"
    unnamed: bool = False
    origin: Literal["file", "bare", "none"] = "none"
    pty: bool = False
    answers: tuple[str, ...] = ()
    timeout: float = Field(default=20.0, gt=0, le=600)
    pool: bool = False
    base: str = "main"
    waive: dict[str, Waiver] = Field(default_factory=dict)

    @field_validator("setup", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator(*COMMANDS, "setup", "main")
    @classmethod
    def _known_placeholders(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for line in (value,) if isinstance(value, str) else value:
            for word in _PLACEHOLDER.findall(line):
                if word not in PLACEHOLDERS:
                    raise ValueError(f"{{{word}}} is no placeholder; there are {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}")
        return value

    @field_validator("waive")
    @classmethod
    def _codes(cls, value: dict[str, Waiver]) -> dict[str, Waiver]:
        for code in value:
            if not _CODE.fullmatch(code):
                raise ValueError(f"{code!r} is no code of a clause, such as WREM-01")
        return value

    @property
    def title(self) -> str:
        """What the report calls the tool."""
        return self.name or self.create.split()[0]

    def has(self, command: str) -> bool:
        """Whether the description gives a command."""
        return bool(getattr(self, command))

    def line(self, command: str, values: Mapping[str, str]) -> str:
        """The line of shell of a command, with its placeholders filled in."""
        return fill(getattr(self, command), values)

    def directory(self, command: str) -> str:
        """Where a command runs: ``repo``, ``worktree``, or a path with placeholders."""
        return {"finish": self.finish_cwd, "sync": self.sync_cwd}.get(command, self.cwd)


def line_of(text: str, command: str) -> int:
    """The line of a description that gives a command, from 1; that of the table if it does not give it in a line of its own."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if _HEADING.match(line)), 0)
    return next((number for number in range(start, len(lines)) if re.match(rf"\s*{re.escape(command)}\s*=", lines[number])), start) + 1


def fill(line: str, values: Mapping[str, str], quote: Callable[[str], str] = shlex.quote) -> str:
    """Fill the placeholders of a line of shell, quoted; those without a value stay. A path, which no shell reads, takes ``str``."""
    return _PLACEHOLDER.sub(lambda found: quote(values[found[1]]) if found[1] in values else found[0], line)


def read_tool(path: str | os.PathLike[str]) -> WorktreeTool:
    """Read a description.

    Args:
        path: a TOML file with the table ``[worktree]``, or a ``pyproject.toml`` with ``[tool.gittrix.worktree]``.

    Raises:
        InvalidInput: the file cannot be read, or is no description; the message names the line and the keys that there are.
    """
    file = Path(path)
    found, text = read_toml(file, fix="`gittrix conform --worktree-init` writes a description.")
    for table in _TABLES:
        description: Any = found
        for key in table:
            description = description.get(key) if isinstance(description, dict) else None
        if isinstance(description, dict):
            return validated(file, WorktreeTool, description, text=text, table=table)
    raise InvalidInput(
        f"{file} has no table [worktree].",
        why="The description of a worktree manager is there, or in [tool.gittrix.worktree] of a pyproject.toml.",
        fix='Write [worktree] and below it create = "your-tool new {name}".',
    )
