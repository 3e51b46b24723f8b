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


def _lines(report: WorktreeReport, *, scripts: bool) -> Iterator[str]:
    promises = {one.code: one.promise for one in worktree_clauses()}
    yield f"worktree profile: {report.tool}{f' ({report.version})' if report.version else ''}, beside {report.git}"
    for one in report.broken:
        yield ""
        yield f"BROKEN {one.clause}: {promises[one.clause]}"
        yield f"  {_what(one)}"
        if one.script and scripts:
            yield f"  {'This script shows it:' if one.reproduced else 'This script is what was run; run once more, it did not show it:'}"
            yield from (f"    {line}" for line in one.script.splitlines())
        elif not one.script:
            yield "  No script shows it: it takes a kill, or another program, at that call."
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
