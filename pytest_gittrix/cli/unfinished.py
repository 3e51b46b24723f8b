"""``gittrix unfinished``: what would be lost if a worktree were removed now.

Exit status 0 means that nothing would be, 1 that there is work, 2 that the command was misused or the worktree cannot be read.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Final

from pytest_gittrix.commands.output import CommandResult, visible

EXAMPLES = ["gittrix unfinished ../app-feature && git worktree remove ../app-feature", "gittrix unfinished --base develop --json ."]
FOUND: Final = 1
_UNREAD: Final = 2
_SHOWN: Final = 10


def arguments(verb: ArgumentParser) -> None:
    """Declare the arguments."""
    verb.set_defaults(failure=_UNREAD)
    verb.add_argument("path", nargs="?", default=".", metavar="PATH", help="the worktree; the current one by default")
    verb.add_argument("--base", metavar="NAME", help="the branch that finished work is on; by default the remote's HEAD, main or master")


def unfinished(options: Namespace) -> CommandResult:
    """Find the work in a worktree that is nowhere else."""
    from pytest_gittrix.workspaces.unfinished import unfinished_work

    work = unfinished_work(options.path, options.base)
    lines = [f"{form:<10}  {_listed(found)}\n" for form, found in work.forms()]
    return CommandResult(work.to_json(), "".join(lines) or "nothing would be lost\n", status=FOUND if work else 0)


def _listed(found: Sequence[object]) -> str:
    names = [f"{one[0]} ({one[1]} bytes)" if isinstance(one, tuple) else str(one) for one in found]
    return visible(", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""))
