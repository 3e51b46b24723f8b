"""The whole command line: the verbs that a daemon can run too, and those that only a terminal has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from pytest_gittrix.commands.parser import Parser, add_command, add_group, parser
from pytest_gittrix.extensions import OURS, Extension, registered

_AGENT = "run Claude Code in a session, or watch a scripted agent at work"


def command_line(line: Iterable[str] | None = None) -> Parser:
    """Make the parser of the whole command line, or of the verbs that stand in ``line``; its ``parse_args`` raises Misuse."""
    given = None if line is None else [*line]
    words = None if given is None else frozenset(given)
    return parser(partial(_add_verbs, words, None if given is None else _command_of(given)), words)


def _command_of(line: Sequence[str]) -> str:
    """The word of a line that names its command; empty if there is none."""
    pairs = zip(line, ["", *line], strict=False)
    return next((word for word, before in pairs if not word.startswith("-") and before != "--store"), "")


def _add_verbs(words: Collection[str] | None, command: str | None, areas: Any) -> None:
    """Add the commands of a terminal. Only the modules of those that stand among ``words`` are loaded; None loads all."""
    below = add_group(areas, "eval", "run agents on suites of cases, and compare how they did")
    if words is None or "eval" in words:
        from pytest_gittrix.cli import evals

        evals.arguments(lambda name, *rest: add_command(below, name, *rest, examples=evals.EXAMPLES[f"eval {name}"]))
    for name, ours in OURS["commands"].items():
        _add_registered(words, areas, name, ours)
    if words is None or "agent" in words:
        from pytest_gittrix.cli import acp

        acp.agent_arguments(add_command(areas, "agent", acp.agent, _AGENT, examples=acp.AGENT_EXAMPLES))
    else:
        add_command(areas, "agent", None, _AGENT, examples=())
    if command not in areas.choices and "--version" not in (words or ()):
        for name, extension in registered("commands").items():
            if name not in areas.choices:
                _add_registered(words, areas, name, extension)


def _add_registered(words: Collection[str] | None, areas: Any, name: str, command: Extension) -> None:
    """Add a command that is registered by its name, with its arguments if the line names it."""
    if words is not None and name not in words:
        add_command(areas, name, None, command.what, examples=())
        return
    module = command.load()
    module.arguments(add_command(areas, name, getattr(module, name.replace("-", "_")), command.what, examples=module.EXAMPLES))
