"""What a run of the worktree profile found: a verdict for each clause, with a script for each that is broken."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.base.clause import Clause
from pytest_gittrix.conformance.base.outcome import Status
from pytest_gittrix.conformance.reports.model import ClauseOutcome, SystemReport
from pytest_gittrix.conformance.worktrees.base.clause import FAMILY_TITLES, Verdict, WorktreeClause
from pytest_gittrix.conformance.worktrees.base.description import line_of
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from pytest_gittrix.safe_text import printable

_JUDGED: Final = ("broken", "no verdict")
"""The verdicts that have a script: one that shows the fault, or one that did not, which is a defect of this kit."""


_DOING: Final = {
    "create": "Creating",
    "delete": "Removing",
    "clean": "Cleaning",
    "expire": "Cleaning by age",
    "finish": "Finishing",
    "sync": "Syncing",
}
_DOES: Final = {"lost: ": "loses", "removed: ": "takes away"}
"""What is said of a command, by how a clause begins to say what it saw."""


@dataclass(frozen=True)
class CellOutcome:
    """One case of one clause, as a tool did in it.

    Attributes:
        code: the clause.
        case: the name of the case; empty where the clause has only one.
        verdict: ``kept``, ``broken`` or ``no verdict``.
        what: what is lost or wrong, why there is no verdict, or how much was tried of what is kept.
        script: lines of shell that show it, or were to show it; empty if it is neither broken nor was thought to be.
        reproduced: whether the script was run and showed it.
        lost: whether work can no longer be found.
    """

    code: str
    case: str
    verdict: Verdict
    what: str = ""
    script: str = ""
    reproduced: bool = False
    lost: bool = False

    def excuses(self, other: CellOutcome) -> bool:
        """Whether this is broken as badly as another one: what loses no work excuses nothing that does."""
        return self.verdict == "broken" and self.lost >= other.lost


@dataclass(frozen=True)
class ClauseFinding:
    """What a run says about one clause.

    Attributes:
        clause: the clause's code.
        verdict: the verdict.
        what: what is lost or wrong, why there is no verdict, how much was tried of what is kept, or the quote of the waiver.
        cases: the cases that are broken or have no verdict, where the clause has several.
        script: lines of shell that show it; empty if it is not broken.
        reproduced: whether the script showed it when it was run.
        lost: whether work can no longer be found.
    """

    clause: str
    verdict: Verdict
    what: str = ""
    cases: tuple[str, ...] = ()
    script: str = ""
    reproduced: bool = False
    lost: bool = False

    @property
    def reason(self) -> str:
        """What is wrong, in which cases, and whether a script shows it."""
        text = f"{self.what} ({', '.join(self.cases)})" if self.cases else self.what
        if self.verdict != "broken" or self.reproduced:
            return text
        if self.script:
            return f"{text}\nThe script, run once more, did not show it."
        return f"{text}\nNo script shows it: it takes a kill, or another program, at that call." if self.clause.startswith("WSRV") else text


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
        date: the day of the run, such as ``2030-01-31``.
    """

    tool: str
    version: str
    git: str
    seconds: float
    findings: tuple[ClauseFinding, ...]
    offline: bool = False
    date: str = ""

    @property
    def broken(self) -> tuple[ClauseFinding, ...]:
        """The findings that fail the run."""
        return tuple(one for one in self.findings if one.verdict == "broken")

    @property
    def judged(self) -> bool:
        """Whether there is a verdict about any clause. A tool that is not installed, or does not run here, has none."""
        return any(one.verdict not in ("not claimed", "no verdict") for one in self.findings)

    def count(self, verdict: Verdict) -> int:
        """How many clauses have a verdict."""
        return sum(one.verdict == verdict for one in self.findings)


def system_report(report: WorktreeReport, description: str = "tool.toml") -> SystemReport:
    """A report in the form that every kind of file is written from.

    Args:
        report: the report.
        description: the file with the description, for the line that runs a clause again.
    """
    known = {one.code: one for one in worktree_clauses()}
    outcomes = tuple(_outcome(one, known[one.clause], description) for one in report.findings)
    properties = {name: value for name in ("version", "date", "git") if (value := getattr(report, name))}
    file, text = _read(description)
    lines = {one.clause: line_of(text, known[one.clause].needs[-1]) for one in report.findings}
    # The name is without the version: what was known of one version is not new in the next.
    return SystemReport(
        printable(report.tool), outcomes, titles=FAMILY_TITLES, has_levels=False, file=file, lines=lines, properties=properties
    )


def _read(description: str) -> tuple[str, str]:
    """The place of a description for a code host, relative to the current directory, and its text; empty if it is not below that."""
    path = Path(description).resolve()
    if not path.is_relative_to(Path.cwd()) or not path.is_file():
        return "", ""
    return path.relative_to(Path.cwd()).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _outcome(one: ClauseFinding, clause: WorktreeClause, description: str) -> ClauseOutcome:
    again = f"gittrix conform --worktree {shlex.quote(description)} --clause {one.clause}" if one.verdict == "broken" else ""
    why = f"Otherwise {clause.why}."
    return ClauseOutcome(
        Clause(clause.code, clause.promise, why, frozenset(), protects_work=True),
        Status(one.verdict),
        one.reason,
        replay=again,
        loses_work=one.lost,
        script=one.script if one.verdict in _JUDGED else "",
        reproduced=one.reproduced if one.verdict in _JUDGED and one.script else None,
        happened=_happened(one.what, clause) if one.verdict == "broken" else "",
    )


def _happened(what: str, clause: WorktreeClause) -> str:
    """What a clause saw, as a sentence: ``Removing loses the commits of a detached HEAD``."""
    doing = _DOING.get(clause.needs[-1], "")
    for seen, does in _DOES.items():
        if what.startswith(seen) and doing and clause.family != "WSRV":
            return f"{doing} {does} {what.removeprefix(seen)}"
    return what


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
            lost = any(cell.lost for cell in found)
            return ClauseFinding(code, verdict, first.what, cases, first.script, first.reproduced, lost)  # type: ignore[arg-type]
    if open_cells := [cell for cell in cells if cell.verdict == "no verdict"]:
        some = tuple(cell.case or "''" for cell in open_cells) if len(open_cells) < len(cells) else ()
        unshown = next((cell.script for cell in open_cells if cell.script), "")
        return ClauseFinding(code, "no verdict", open_cells[0].what, some, unshown)
    return ClauseFinding(code, "kept", "; ".join(f"{cell.case}: {cell.what}".removeprefix(": ") for cell in cells if cell.what))
