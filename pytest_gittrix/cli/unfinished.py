"""``gittrix unfinished``: what would be lost if a worktree were removed now.

Exit status 0 means that nothing would be, 1 that there is work, 2 that the command was misused or the worktree cannot be read. What is
elsewhere or can be made again is only noted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Final

from pytest_gittrix.commands.declaration import arg, verb
from pytest_gittrix.commands.output import CommandResult, visible
from pytest_gittrix.errors import first_few

FOUND: Final = 1
_UNREAD: Final = 2
_SHOWN: Final = 10


@verb(
    arg("path", nargs="?", default=".", metavar="PATH", help="the worktree; the current one by default"),
    arg("--base", metavar="NAME", help="the branch that finished work is on; by default the remote's HEAD, main or master"),
    arg("--keep", action="append", metavar="PATTERN", help="ignored files that count although they can be made again"),
    arg("--strict", action="store_true", help="count what is elsewhere or can be made again, too"),
    examples=("gittrix unfinished ../app-feature && git worktree remove ../app-feature", "gittrix unfinished --base develop --json ."),
    failure=_UNREAD,
)
def unfinished(options: Namespace) -> CommandResult:
    """Find the work in a worktree that is nowhere else."""
    from pytest_gittrix.workspaces.finder.worktree import unfinished_work

    work = unfinished_work(options.path, options.base, strict=options.strict, keep=options.keep or ())
    lines = [f"{form:<10}  {_listed(found)}\n" for form, found in work.forms()] or ["nothing would be lost\n"]
    notes = [f"{note.form:<10}  {visible(f'{note.item}: {note.where}')}\n" for note in work.noted[:_SHOWN]]
    more = [f"{len(work.noted) - _SHOWN} more\n"] if len(work.noted) > _SHOWN else []
    head = ["not lost:\n"] if notes else []
    return CommandResult(work.to_json(), "".join([*lines, *head, *notes, *more]), status=FOUND if work else 0)


def _listed(found: Sequence[object]) -> str:
    names = [f"{one[0]} ({one[1]} bytes)" if isinstance(one, tuple) else str(one) for one in found]
    return visible(first_few(names, _SHOWN))
