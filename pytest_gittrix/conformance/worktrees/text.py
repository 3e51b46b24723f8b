"""A report of the worktree profile as text: the findings first, each with its script, then a count and what was not judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

from pytest_gittrix.conformance.worktrees.base.clause import Verdict
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from pytest_gittrix.conformance.worktrees.findings import ClauseFinding, WorktreeReport

_SHORT: Final = ("as git", "documented", "no verdict")


def report_text(report: WorktreeReport, *, scripts: bool = True) -> str:
    """The report for people.

    Args:
        report: the report.
        scripts: whether to show the script of each broken clause.
    """
    return "\n".join([*_lines(report, scripts=scripts), ""])


def finding_text(one: ClauseFinding, *, scripts: bool = True) -> str:
    """A broken clause for people: the promise, what is lost, and the script that shows it."""
    return "\n".join(_broken(one, scripts=scripts))


def _broken(one: ClauseFinding, *, scripts: bool) -> Iterator[str]:
    promise = next(clause.promise for clause in worktree_clauses() if clause.code == one.clause)
    yield f"BROKEN {one.clause}: {promise}"
    yield f"  {_what(one)}"
    if not one.script:
        yield "  No script shows it: it takes a kill, or another program, at that call."
    elif scripts:
        yield f"  {'This script shows it:' if one.reproduced else 'This script is what was run; run once more, it did not show it:'}"
        yield from (f"    {line}" for line in one.script.splitlines())


def _lines(report: WorktreeReport, *, scripts: bool) -> Iterator[str]:
    yield f"worktree profile: {report.tool}{f' ({report.version})' if report.version else ''}, beside {report.git}"
    for one in report.broken:
        yield ""
        yield from _broken(one, scripts=scripts)
    yield ""
    for verdict in _SHORT:
        for one in report.findings:
            if one.verdict == verdict:
                yield f"{verdict:<10} {one.clause}  {_what(one)}"
    yield ""
    yield ", ".join(f"{report.count(verdict)} {verdict}" for verdict in get_args(Verdict)) + f"; {report.seconds:.0f} s"
    if not report.offline:
        yield "The tool was not kept from the network: this system lets nobody leave it."


def _what(one: ClauseFinding) -> str:
    return f"{one.what} ({', '.join(one.cases)})" if one.cases else one.what
