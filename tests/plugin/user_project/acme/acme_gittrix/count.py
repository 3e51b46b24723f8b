"""The command ``gittrix count``."""

from __future__ import annotations

from argparse import Namespace

from pytest_gittrix.commands import CommandResult, Group, arg, verb
from pytest_gittrix.engine import GitTrix


@verb(
    arg("--state", default="active", help="only sessions in this state"),
    examples=["gittrix count", "gittrix count --json"],
)
def count(options: Namespace) -> CommandResult:
    """Count sessions."""
    with GitTrix(None, store=options.store, sweep_interval=None) as engine:
        found = len(engine.list_sessions(state=options.state))
    return CommandResult({"sessions": found}, f"{found}\n")


ACME = Group("acme", "the commands of Acme", {"sessions": (count,)})
