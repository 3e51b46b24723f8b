"""The whole command line: the verbs that a daemon can run too, and those that only a terminal has."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from importlib import import_module
from typing import Any

from pytest_gittrix.commands.parser import Parser, add_command, add_group, parser

_COMMANDS = {
    "serve": "run the daemon: sessions over HTTP, until a signal ends it",
    "conform": "see which promises a session system keeps",
    "unfinished": "see what would be lost if a worktree were removed now",
    "mcp": "serve a session to an agent, by the Model Context Protocol",
    "acp": "serve sessions to an editor, by the Agent Client Protocol",
    "torture": "strike any program at each call that changes a file; see what is left",
}
"""The commands of a terminal. Each is the function of its name, in the module of its name beside this one."""

_AGENT = "run Claude Code in a session, or watch a scripted agent at work"


def command_line(line: Iterable[str] | None = None) -> Parser:
    """Make the parser of the whole command line, or of the verbs that stand in ``line``; its ``parse_args`` raises Misuse."""
    words = None if line is None else frozenset(line)
    return parser(partial(_add_verbs, words), words)


def _add_verbs(words: Collection[str] | None, areas: Any) -> None:
    """Add the commands of a terminal. Only the modules of those that stand among ``words`` are loaded; None loads all."""
    below = add_group(areas, "eval", "run agents on suites of cases, and compare how they did")
    if words is None or "eval" in words:
        from pytest_gittrix.cli import evals

        evals.arguments(lambda name, *rest: add_command(below, name, *rest, examples=evals.EXAMPLES[f"eval {name}"]))
    for name, what in _COMMANDS.items():
        if words is None or name in words:
            module = import_module(f"pytest_gittrix.cli.{name}")
            module.arguments(add_command(areas, name, getattr(module, name), what, examples=module.EXAMPLES))
        else:
            add_command(areas, name, None, what, examples=())
    if words is None or "agent" in words:
        from pytest_gittrix.cli import acp

        acp.agent_arguments(add_command(areas, "agent", acp.agent, _AGENT, examples=acp.AGENT_EXAMPLES))
    else:
        add_command(areas, "agent", None, _AGENT, examples=())
