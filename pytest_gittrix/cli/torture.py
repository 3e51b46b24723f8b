"""``gittrix torture``: the options of a fault sweep over any program, and its report (``testing.faults.torture``).

Exit status 0 means that the program survived every fault, 1 that it did not, 2 that no fault could be tried.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands.declaration import arg, verb
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.values import count, seconds

if TYPE_CHECKING:
    from pytest_gittrix.testing.faults.fault_sweep import Report

_TIMEOUT = 60.0
_SURVIVED, _FAILED, _UNTRIED = 0, 1, 2


def kinds(text: str) -> list[str]:
    """Read kinds of faults separated by commas."""
    from pytest_gittrix.errors import InvalidInput
    from pytest_gittrix.testing.faults.fault_sweep import require_kind

    found = [kind for part in text.split(",") if (kind := part.strip())]
    try:
        for kind in found or [text]:
            require_kind(kind)
    except InvalidInput as problem:
        raise argparse.ArgumentTypeError(f"{problem.fact} {problem.fix}") from None
    return found


def points(text: str) -> list[int]:
    """Read ``3,7-9``: numbers and stretches of numbers, from 1."""
    found: set[int] = set()
    for part in text.split(","):
        stretch = re.fullmatch(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?", part.strip())
        numbers = range(int(stretch[1]), int(stretch[2] or stretch[1]) + 1) if stretch else range(0)
        if not numbers:
            raise argparse.ArgumentTypeError(f"{text!r} names no points: write numbers from 1, such as 3,7-9.")
        found.update(numbers)
    return sorted(found)


@verb(
    arg("command", nargs="+", metavar="COMMAND", help="the program and its words, behind --; or one line of shell in quotes"),
    arg("--oracle", required=True, metavar="CHECK", help="a line of shell that exits with 0 if all is well after a run"),
    arg("--setup", metavar="CMD", help="a line of shell that makes the first state, run once in the copy"),
    arg("--within", default=".", metavar="DIR", help="the directory to work in, which is copied; the current one by default"),
    arg("--kinds", type=kinds, metavar="A,B", help="faults to play; kill,torn,ENOSPC,sticky-EIO by default"),
    arg("--points", type=points, metavar="3,7-9", help="only these calls, from 1"),
    arg("--limit", type=count, metavar="N", help="at most so many calls, evenly spread"),
    arg("--timeout", type=seconds, default=_TIMEOUT, metavar="SECONDS", help="for each run and each check (%(default)g)"),
    examples=(
        "gittrix torture --oracle 'grep -qx -e old -e new notes.txt' -- sh save.sh",
        "gittrix torture --setup 'git init -q' --oracle 'git fsck' --kinds kill,ENOSPC 'git add . && git commit -qm first'",
        "gittrix torture --oracle './check' --points 17 --kinds kill -- ./save",
    ),
    failure=_UNTRIED,
)
def torture(options: argparse.Namespace) -> CommandResult:
    """Play faults at each call of a command that changes a file, and check what it leaves."""
    from pytest_gittrix.testing.faults import torture as fault_sweep

    with _watched(options) as progress:
        report = fault_sweep.torture(
            options.command,
            options.oracle,
            replay=lambda at, kind: _replay(options, at, kind),
            setup=options.setup,
            within=options.within,
            kinds=options.kinds or fault_sweep.DEFAULT_KINDS,
            points=options.points,
            limit=options.limit,
            timeout=options.timeout,
            progress=progress,
        )
    return CommandResult(_data(report), f"{report}\n", status=_FAILED if report.failures else _SURVIVED)


def _data(report: Report) -> dict[str, Any]:
    failures = [
        {"point": one.at, "kind": one.kind, "call": one.call, "problem": one.problem, "replay": one.replay} for one in report.failures
    ]
    return {"calls": report.calls, "tried": report.tried, "survived": report.survived, "failures": failures}


def _replay(options: argparse.Namespace, at: int, kind: str) -> str:
    given = {
        "--setup": options.setup,
        "--within": None if options.within == "." else options.within,
        "--timeout": None if options.timeout == _TIMEOUT else f"{options.timeout:g}",
    }
    flags = [part for flag, value in given.items() if value is not None for part in (flag, value)]
    return shlex.join(
        ["gittrix", "torture", "--oracle", options.oracle, *flags, "--points", str(at), "--kinds", kind, "--", *options.command]
    )


@contextmanager
def _watched(options: argparse.Namespace) -> Iterator[Callable[[int, int, int], None] | None]:
    """A bar on standard error, where a person is watching it."""
    if options.json or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Running it clean", total=None)

        def show(done: int, total: int, failed: int) -> None:
            bar.update(task, description=f"Striking, {failed} not survived", completed=done, total=total)

        yield show
