"""The whole command line: the verbs that a daemon can run too, and those that only a terminal has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_gittrix.cli import conform, evals, mcp, serve, torture
from pytest_gittrix.commands.parser import Parser, add_command, add_group, parser


def command_line(line: Iterable[str] | None = None) -> Parser:
    """Make the parser of the whole command line, or of the verbs that stand in ``line``; its ``parse_args`` raises Misuse."""
    return parser(_add_verbs, line)


def _add_verbs(areas: Any) -> None:
    below = add_group(areas, "eval", "run agents on suites of cases, and compare how they did")
    evals.arguments(lambda name, *rest: add_command(below, name, *rest, examples=evals.EXAMPLES[f"eval {name}"]))
    what = "run the daemon: sessions over HTTP, until a signal ends it"
    serve.arguments(add_command(areas, "serve", serve.serve, what, examples=serve.EXAMPLES))
    what = "see which promises a session system keeps"
    conform.arguments(add_command(areas, "conform", conform.conform, what, examples=conform.EXAMPLES))
    what = "serve a session to an agent, by the Model Context Protocol"
    mcp.arguments(add_command(areas, "mcp", mcp.mcp, what, examples=mcp.EXAMPLES))
    what = "strike any program at each call that changes a file; see what is left"
    torture.arguments(add_command(areas, "torture", torture.torture, what, examples=torture.EXAMPLES))
