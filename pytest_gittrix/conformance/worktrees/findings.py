"""What a run of the worktree profile found: a verdict for each clause, with a script for each that is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pytest_gittrix.conformance.worktrees.base.clause import Verdict
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses


@dataclass(frozen=True)
class CellOutcome:
    """One case of one clause, as a tool did in it.

    Attributes:
        code: the clause.
        case: the name of the case; empty where the clause has only one.
        verdict: ``kept``, ``broken`` or ``no verdict``.
        what: what is lost or wrong, or why there is no verdict.
        script: lines of shell that show it; empty if it is not broken.
        reproduced: whether the script was run and showed it.
    """

    code: str
    case: str
    verdict: Verdict
    what: str = ""
    script: str = ""
    reproduced: bool = False


@dataclass(frozen=True)
class ClauseFinding:
    """What a run says about one clause.

    Attributes:
        clause: the clause's code.
        verdict: the verdict.
        what: what is lost or wrong, why there is no verdict, or the quote of the waiver.
        cases: the cases that are broken, where the clause has several.
        script: lines of shell that show it; empty if it is not broken.
        reproduced: whether the script showed it when it was run.
    """

    clause: str
    verdict: Verdict
    what: str = ""
    cases: tuple[str, ...] = ()
    script: str = ""
    reproduced: bool = False


@dataclass(frozen=True)
class WorktreeReport:
    """The result of a run.

    Attributes:
        tool: the tool's name.
        version: what the tool's version command printed; empty if the description has none.
        git: the version of git.
        seconds: how long the run took.
        findings: one for each clause that was run, in order.
        offline: whether the tool was kept from the machine's network.
    """

    tool: str
    version: str
    git: str
    seconds: float
    findings: tuple[ClauseFinding, ...]
    offline: bool = False

    @property
    def broken(self) -> tuple[ClauseFinding, ...]:
        """The findings that fail the run."""
        return tuple(one for one in self.findings if one.verdict == "broken")

    def count(self, verdict: Verdict) -> int:
        """How many clauses have a verdict."""
        return sum(one.verdict == verdict for one in self.findings)


def report_data(report: WorktreeReport) -> dict[str, Any]:
    """A report as JSON has it."""
    known = {one.code: one for one in worktree_clauses()}
    clauses = [
        {
            "clause": one.clause,
            "promise": known[one.clause].promise,
            "why": known[one.clause].why,
            "verdict": one.verdict,
            "what": one.what,
            "cases": [*one.cases],
            "script": one.script,
            "reproduced": one.reproduced,
        }
        for one in report.findings
    ]
    counts = {verdict: report.count(verdict) for verdict in get_args(Verdict)}
    head = {"tool": report.tool, "version": report.version, "git": report.git, "seconds": round(report.seconds, 1)}
    return {**head, "offline": report.offline, "counts": counts, "clauses": clauses}


def combined(code: str, cells: Sequence[CellOutcome], as_git: frozenset[str]) -> ClauseFinding:
    """The finding of a clause from its cases.

    Args:
        code: the clause.
        cells: what the tool did in each case.
        as_git: the cases that plain git breaks too.
    """
    worse = [cell for cell in cells if cell.verdict == "broken" and cell.case not in as_git]
    same = [cell for cell in cells if cell.verdict == "broken" and cell.case in as_git]
    for verdict, found in (("broken", worse), ("as git", same)):
        if found:
            first, cases = found[0], tuple(cell.case for cell in found if cell.case)
            return ClauseFinding(code, verdict, first.what, cases, first.script, first.reproduced)  # type: ignore[arg-type]
    if cells and all(cell.verdict == "no verdict" for cell in cells):
        return ClauseFinding(code, "no verdict", cells[0].what)
    return ClauseFinding(code, "kept")
