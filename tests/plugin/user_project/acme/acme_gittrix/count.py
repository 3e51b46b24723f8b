"""The command ``gittrix count``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pytest_gittrix.commands import CommandResult
from pytest_gittrix.engine import GitTrix

EXAMPLES = ["gittrix count", "gittrix count --json"]


def arguments(verb: ArgumentParser) -> None:
    """Declare the arguments."""
    verb.add_argument("--state", default="active", help="only sessions in this state")


def count(options: Namespace) -> CommandResult:
    """Count sessions."""
    with GitTrix(None, store=options.store, sweep_interval=None) as engine:
        found = len(engine.list_sessions(state=options.state))
    return CommandResult({"sessions": found}, f"{found}\n")
