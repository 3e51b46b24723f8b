"""A first description of a worktree manager: made from what its help says, and tried in fresh repositories, or from a person's answers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool
from pytest_gittrix.conformance.worktrees.clauses.create import there_is_a_worktree
from pytest_gittrix.conformance.worktrees.help_lines import HelpLine, arguments, help_lines, options_of, shown_arguments, usage_of
from pytest_gittrix.conformance.worktrees.profile import apart
from pytest_gittrix.conformance.worktrees.stage import CellStage
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.remove_tree import scratch_directory

WORDS: Final = {
    "create": (("new", "create", "add", "start", "take", "checkout", "switch", "spawn", "up"), " {name}"),
    "delete": (("delete", "remove", "rm", "destroy", "drop", "release", "free", "clean"), " {name}"),
    "clean": (("clean", "cleanup", "prune", "sweep", "gc"), ""),
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

_GUESSED: Final = "# Made from the help, and each line was tried in a fresh repository. See that each is right."
_ANSWERED: Final = "# Made from answers; see that each line runs without a question."
_TIMEOUT: Final = 20.0
_LONGEST: Final = 600.0
_MOST: Final = 4
"""How many ways of typing a command are tried."""

# What a help says of commands that no description has, and of those that a command of a description is among.
_NO_PART: Final = r"discard|reset --hard|\bforced?\b|not (yet )?implemented|deprecated|\bshell\b|completion|upgrade"
_NEVER: Final = re.compile(_NO_PART, re.IGNORECASE)
_MEANS: Final = {
    "create": re.compile(r"tree|work|branch|sandbox|slot|task|pod|agent|feature", re.IGNORECASE),
    "clean": re.compile(r"trees|spaces|branches|slots|merged|finished|stale|\ball\b", re.IGNORECASE),
    "sync": re.compile(r"base|main|trunk|master|rebase|upstream|up to date|origin|remote", re.IGNORECASE),
}
_OF_ONE: Final = re.compile(r"\b(the|a|one|this) (\w+ )?(worktree|workspace|slot)\b", re.IGNORECASE)
_OPENS_NOTHING: Final = re.compile(r"--no-(open|cd|term|launch|attach|clipboard|editor|ide|ai|tmux|interactive)[\w-]*")
_ASKS_NOTHING: Final = ("--yes", "--no-input", "--no-prompt", "--non-interactive", "--assume-yes", "--confirm")
_HERE: Final = re.compile(r"current (worktree|workspace|branch)", re.IGNORECASE)
_BEGINS: Final = ("init", "setup", "convert", "adopt")
_REMOTE: Final = re.compile(r"\b(origin|remote)\b")
_POOL: Final = re.compile(r"\bpool\b", re.IGNORECASE)

Part: TypeAlias = Mapping[str, Any]
"""Keys of a description, with their values."""


def first_description(tool: str, ask: Callable[[str], str] | None = None) -> str:
    """The text of a description, from what a tool's help says and does in fresh repositories, or from what a person answers.

    Args:
        tool: how the tool is typed, such as ``tool`` or ``python -m tool``.
        ask: puts a question to a person and gives the answer, which is empty for the default. Without it the help and the tool alone count.

    Raises:
        InvalidInput: without ``ask``, the tool cannot be run, or its help lists no command that makes a worktree.
    """
    helped = ToolHelp(tool)
    if ask is not None:
        guessed: Mapping[str, str] = {}
        with suppress(InvalidInput):
            guessed = {command: parts[0][command] for command in WORDS if (parts := helped.parts(command))}
        return _text(_asked(tool, guessed, ask), {}, _ANSWERED)
    if not helped.parts("create"):
        words = ", ".join(WORDS["create"][0])
        raise InvalidInput(
            f"The help of {tool!r} lists no command that makes a worktree.",
            why=f"Looked for: {words}.",
            fix=f'Answer questions, with `--ask`, or write the file yourself: [worktree] and create = "{tool} ... {{name}}".',
        )
    commands = {command: helped.parts(command) for command in WORDS}
    settings = [*helped.settings()]
    found, failed = apart(lambda stage, _offline: _tried(stage, commands, settings), _LONGEST)
    return _text(found, failed, _GUESSED)


@dataclass
class ToolHelp:
    """What the help of a tool says. It is asked in an empty directory, which is home too, since a tool may do what it is to explain.

    Attributes:
        tool: how the tool is typed.
    """

    tool: str
    _texts: dict[str, str] = field(default_factory=dict)

    def text(self, typed: str = "") -> str:
        """The help of the tool, or of one of its commands.

        Raises:
            InvalidInput: it cannot be run.
        """
        if typed not in self._texts:
            self._texts[typed] = _help_of(self.tool, typed)
        return self._texts[typed]

    @cached_property
    def lines(self) -> list[HelpLine]:
        """The commands that the help tells of, but those that a description never has."""
        return [one for one in self._lines_of("") if not _NEVER.search(one.text)]

    def _lines_of(self, typed: str) -> list[HelpLine]:
        text = self.text(typed)
        own = re.search(r"usage:\s+(\S+)", text, re.IGNORECASE)
        return help_lines(text, {Path(shlex.split(self.tool)[-1]).name, *([own[1]] if own else [])})

    def parts(self, command: str) -> Sequence[Part]:
        """The ways in which a command of a description may be typed, the likeliest first."""
        words, _ = WORDS[command]
        lines = [one for word in words for one in self.lines if word in one.names and self._means(command, one)]
        if command == "clean":
            removing = {part["delete"].split(" {")[0] for part in self.parts("delete")}
            lines = [one for one in lines if f"{self.tool} {one.typed}" not in removing]
        found = [dict(part) for one in lines for part in self._ways(command, one)]
        return [one for at, one in enumerate(found) if one not in found[:at]][:_MOST]

    def _means(self, command: str, one: HelpLine) -> bool:
        if command == "delete" and "clean" in one.names:
            return bool(_OF_ONE.search(one.text))
        return not one.text or command not in _MEANS or bool(_MEANS[command].search(one.text))

    def _ways(self, command: str, one: HelpLine) -> Iterator[Part]:
        """How one command may be typed: by its own usage, as the helps show it, or as most tools have it."""
        own = self.text(one.typed)
        usage, options = usage_of(own, one.typed), options_of(own)
        flags = [*sorted(found for found in options if command == "create" and _OPENS_NOTHING.fullmatch(found))]
        flags += [found for found in _ASKS_NOTHING if found in options and command != "create"][:1]
        if usage is None:
            usage = next((line.follows for line in self.lines if line.typed == one.typed and line.follows.startswith(("[", "<"))), None)
        typed = f"{self.tool} {one.typed}"
        shown = [line for line in [*self._lines_of(one.typed), *self.lines] if f"{line.typed} ".startswith(f"{one.typed} ")]
        lines = [f"{self.tool} {line.typed} {shown_arguments(line.follows)}".strip() for line in shown if line.follows[:1] not in ("", "[")]
        lines = [line for line in lines if not re.search(r" (-f|--force|-i|-p)\b", line)]
        if usage is not None and "..." not in usage:
            lines.insert(0, " ".join([typed, *(arguments(usage) if command not in ("clean", "list") else [])]))
        elif not lines:
            lines = [f"{typed}{WORDS[command][1]}"]
        if command == "delete":
            lines += [line.replace("{name}", "{path}") for line in lines]
        for line in dict.fromkeys(lines):
            yield from _placed(command, " ".join([line, *flags]), here=bool(_HERE.search(f"{one.text} {own}")), options=options)

    def settings(self) -> Iterator[Part]:
        """What may have to be done before the first worktree, and the kind of tool: the simplest first."""
        pool = {"pool": True} if _POOL.search(self.text()) else {}
        begun = [line for word in _BEGINS for line in self.lines if word in line.names]
        setups = [self._beginning(one) for one in begun]
        fills = [f"{self.tool} fill"] if any("fill" in one.names for one in self.lines) else []
        yield from [{**pool, "setup": [line, *fills]} for line in setups if pool]
        yield pool
        yield from [{"setup": [line]} for line in setups if not pool]
        yield from [{"setup": [line], "main": "{repo}/main"} for line in setups]

    def _beginning(self, one: HelpLine) -> str:
        flags = [found for found in ("--defaults", *_ASKS_NOTHING) if found in options_of(self.text(one.typed))]
        return " ".join([self.tool, one.typed, *flags[:1]])


def _placed(command: str, line: str, *, here: bool, options: set[str]) -> Iterator[Part]:
    """A line of a command, with the directory that it runs in; a tool of several repositories is told of the one that there is."""
    if command in ("finish", "sync"):
        place = "worktree" if here or "{name}" not in line else "repo"
        yield {command: line, f"{command}_cwd": place}
        return
    yield {command: line}
    if command == "create" and "--repo" in options:
        yield {command: f"{line} --repo app", "cwd": "{world}"}


def _help_of(tool: str, typed: str) -> str:
    with scratch_directory("gittrix-help-") as place:
        try:
            done = subprocess.run(
                [*shlex.split(tool), *typed.split(), "--help"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT,
                check=False,
                cwd=place,
                env={**os.environ, "HOME": place, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
            raise InvalidInput(
                f"{tool!r} --help cannot be run: {problem}.", fix="Type it as in a shell, or answer questions, with `--ask`."
            ) from None
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _tried(stage: CellStage, commands: Mapping[str, Sequence[Part]], settings: Sequence[Part]) -> tuple[Part, Mapping[str, str]]:
    """The keys that work in fresh repositories, and why lines do not that stay in the file nevertheless, by their commands."""
    found, said = _first_to_work(stage, "create", [{**setting, **part} for setting in settings for part in commands["create"]])
    failed = {"create": said} if said else {}
    for command in [*WORDS][1:]:
        if parts := commands[command]:
            ways = [{**found, **part} for part in parts]
            found, said = (ways[0], "it was not tried") if "create" in failed else _first_to_work(stage, command, ways)
            failed |= {command: said} if said else {}
    return found, failed


def _first_to_work(stage: CellStage, command: str, ways: Sequence[Part]) -> tuple[Part, str]:
    """The first of some descriptions whose command works, or the first one, and why it does not."""
    reasons, working = [], []
    for way in ways:
        tool = _tool(way)
        reasons.append(stage.control(tool, command))
        if not reasons[-1]:
            working.append(way)
            # A worktree is not all: it is to be on a branch of its name.
            if command != "create" or tool.unnamed or stage.cell(tool, there_is_a_worktree).verdict == "kept":
                return way, ""
    if working:
        return working[0], ""
    if _REMOTE.search(reasons[0]) and "origin" not in ways[0]:
        found, said = _first_to_work(stage, command, [{**way, "origin": "bare"} for way in ways])
        return (ways[0], reasons[0]) if said else (found, "")
    return ways[0], reasons[0]


def _tool(keys: Part) -> WorktreeTool:
    return WorktreeTool.model_validate({**keys, "unnamed": "{name}" not in keys["create"]})


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


def _text(keys: Part, failed: Mapping[str, str], first: str) -> str:
    """The file. A text as JSON writes it is one of TOML too, and so are a list of them and a truth."""
    unnamed = {} if "{name}" in keys["create"] else {"unnamed": True}
    return "\n".join([first, "[worktree]", *_written({**keys, **unnamed}, failed), ""])


def _written(keys: Part, failed: Mapping[str, str]) -> Iterator[str]:
    order = ["setup", "main", "origin", "pool", "unnamed", "cwd", *(name for command in WORDS for name in (command, f"{command}_cwd"))]
    for name in [one for one in order if keys.get(one)]:
        if name in failed:
            yield f"# This did not work: {' '.join(failed[name].split())}"
        yield f"{name} = {json.dumps(keys[name], ensure_ascii=False)}"
