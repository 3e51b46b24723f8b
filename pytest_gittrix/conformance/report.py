"""The report of a run on session systems, made from the reports of its tests: one finding for each clause, in a fixed order.

All functions are pure. The same outcomes of tests give the same report, in whatever order and in however many processes the tests ran.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pytest_gittrix import __version__
from pytest_gittrix.conformance.base.catalogue import all_clauses, clauses_by_code, in_order
from pytest_gittrix.conformance.base.clause import FAMILIES, LACKING, PROPERTY, SYSTEM, WAIVED, Clause
from pytest_gittrix.testing.systems.protocol import Capability

FORMAT: Final = 1
"""Version of the JSON report."""

_LONGEST: Final = 200


class Status(StrEnum):
    """The outcome of a clause."""

    KEPT = "kept"
    BROKEN = "broken"
    WAIVED = "waived"
    NOT_CLAIMED = "not claimed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


# If several tests are of one clause, the report has the first of these statuses that one of them ended in.
_WEIGHT: Final = (Status.BROKEN, Status.WAIVED, Status.KEPT, Status.SKIPPED, Status.NOT_CLAIMED, Status.NOT_RUN)


@dataclass(frozen=True)
class Finding:
    """The outcome of one clause.

    Attributes:
        clause: the clause.
        status: its outcome.
        reason: why it is broken, waived, not claimed or skipped, in one line.
        replay: the command that runs the clause again, if it is broken.
    """

    clause: Clause
    status: Status
    reason: str = ""
    replay: str = ""


@dataclass(frozen=True)
class SystemReport:
    """The outcome of a run on one system.

    Attributes:
        name: the system's name.
        findings: one for each clause of the suite, by family and number.
    """

    name: str
    findings: tuple[Finding, ...]

    def of(self, *statuses: Status) -> tuple[Finding, ...]:
        """The findings with one of these statuses."""
        return tuple(one for one in self.findings if one.status in statuses)

    @property
    def families(self) -> Mapping[str, Mapping[Status, int]]:
        """The number of clauses with each status, for each family of which a clause was run."""
        found: dict[str, dict[Status, int]] = {}
        for one in self.findings:
            found.setdefault(one.clause.family, dict.fromkeys(Status, 0))[one.status] += 1
        return {family: counts for family, counts in found.items() if counts[Status.NOT_RUN] < sum(counts.values())}

    @property
    def untested(self) -> tuple[Capability, ...]:
        """The declared capabilities of which every clause was skipped. A capability with a clause that was not run is left out."""
        return tuple(one for one in Capability if self._is_untested([found for found in self.findings if one in found.clause.needs], one))

    @staticmethod
    def _is_untested(findings: Sequence[Finding], capability: Capability) -> bool:
        idle = all(one.status in (Status.SKIPPED, Status.NOT_CLAIMED) for one in findings)
        declared = any(one.status is Status.SKIPPED or capability not in one.reason.split(", ") for one in findings)
        return bool(findings) and idle and declared

    @property
    def is_kept(self) -> bool:
        """Whether no clause is broken, and no declared capability is untested."""
        return not self.of(Status.BROKEN) and not self.untested

    @property
    def level(self) -> str | None:
        """``EXTENDED`` if every clause is kept, ``BASE`` if every clause that needs no capability is kept, otherwise None."""
        if all(one.status is Status.KEPT for one in self.findings):
            return "EXTENDED"
        if all(one.status is Status.KEPT for one in self.findings if not one.clause.needs):
            return "BASE"
        return None

    @property
    def verdict(self) -> str:
        """The level that is reached, and the clauses that the next level lacks, as one sentence."""
        if left_out := self.of(Status.NOT_RUN):
            return f"not told, as {len(left_out)} of {len(self.findings)} clauses were not run"
        if self.level == "EXTENDED":
            return "EXTENDED"
        base = [one for one in self.findings if not one.clause.needs and one.status is not Status.KEPT]
        lacking = base or [one for one in self.findings if one.status is not Status.KEPT]
        return f"{self.level or 'none'} ({'EXTENDED' if self.level else 'BASE'} lacks {_some(one.clause.code for one in lacking)})"


def summarise_clauses(reports: Iterable[Any], *, is_own_file: Callable[[str], bool], requested: str = "") -> tuple[SystemReport, ...]:
    """Make a report of each system, sorted by name, from pytest's reports.

    Args:
        reports: pytest's reports of all phases; reports of tests that are not clauses are ignored.
        is_own_file: whether a node id is in a file of the project, so that pytest can run the test by it.
        requested: the name of the system on the command line; empty if none was given.
    """
    best: dict[str, dict[str, Finding]] = {}
    for report in reports:
        properties = dict(report.user_properties)
        if PROPERTY not in properties or (found := _finding(report, properties)) is None:
            continue
        if found.status is Status.BROKEN:
            found = replace(found, replay=_replay(report.nodeid, found.clause.code, is_own_file(report.nodeid), requested))
        findings = best.setdefault(properties[SYSTEM], {})
        findings[found.clause.code] = min(findings.get(found.clause.code, found), found, key=_rank)
    return tuple(SystemReport(name, _all(best[name])) for name in sorted(best))


def to_json(systems: Iterable[SystemReport]) -> dict[str, Any]:
    """The report as JSON; docs/how-to/check-your-own-session-system.md explains the keys."""
    return {"format": FORMAT, "gittrix": __version__, "systems": [_system_data(one) for one in systems]}


def to_text(systems: Iterable[SystemReport]) -> str:
    """The report as JSON text."""
    return json.dumps(to_json(systems), indent=2) + "\n"


def _system_data(system: SystemReport) -> dict[str, Any]:
    return {
        "name": system.name,
        "level": system.level,
        "kept": system.is_kept,
        "untested": [str(one) for one in system.untested],
        "families": [
            {"family": family, "title": FAMILIES.get(family, ""), **{status.replace(" ", "_"): count for status, count in counts.items()}}
            for family, counts in system.families.items()
        ],
        "clauses": [_finding_data(one) for one in system.findings],
    }


def _finding_data(found: Finding) -> dict[str, Any]:
    clause = found.clause
    fields = {"code": clause.code, "promise": clause.promise, "why": clause.why, "needs": sorted(clause.needs)}
    return fields | {"status": found.status, "reason": found.reason, "replay": found.replay}


def _finding(report: Any, properties: Mapping[str, str]) -> Finding | None:
    """The finding that one of pytest's reports gives for its clause; None for a phase that decides nothing."""
    code = properties[PROPERTY]
    clause = clauses_by_code().get(code) or Clause(code, report.nodeid.rpartition("::")[2], "", frozenset())
    if report.outcome == "failed":
        return Finding(clause, Status.BROKEN, _why_failed(report, properties))
    if report.outcome == "skipped" and hasattr(report, "wasxfail"):
        if WAIVED in properties:
            return Finding(clause, Status.WAIVED, one_line(properties[WAIVED]))
        return Finding(clause, Status.BROKEN, "it is marked xfail, and not waived")
    if report.outcome == "skipped":
        status = Status.NOT_CLAIMED if LACKING in properties else Status.SKIPPED
        return Finding(clause, status, properties.get(LACKING) or one_line(_skip_reason(report)))
    return Finding(clause, Status.KEPT) if (report.when, report.outcome) == ("call", "passed") else None


def _why_failed(report: Any, properties: Mapping[str, str]) -> str:
    if WAIVED in properties and str(report.longrepr).startswith("[XPASS(strict)]"):
        return f"it is kept now: remove its waiver ({one_line(properties[WAIVED])})"
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr or report.outcome)
    prefix = "" if report.when == "call" else f"in {report.when}: "
    return prefix + one_line(message)


def _skip_reason(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def one_line(text: str) -> str:
    """The first line of a text that is not blank, with unprintable characters escaped, cut to 200 characters."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    clean = "".join(char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii") for char in first)
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}..."


def _replay(nodeid: str, code: str, own: bool, requested: str) -> str:
    if own:
        return shlex.join(["pytest", nodeid])
    return shlex.join(["gittrix", "conform", *([requested] if requested else []), "--clause", code])


def _rank(found: Finding) -> tuple[int, str, str]:
    return (_WEIGHT.index(found.status), found.reason, found.replay)


def _all(found: Mapping[str, Finding]) -> tuple[Finding, ...]:
    missing = [Finding(clause, Status.NOT_RUN) for clause in all_clauses() if clause.code not in found]
    return tuple(sorted([*found.values(), *missing], key=lambda one: in_order(one.clause)))


def _some(codes: Collection[str] | Iterable[str]) -> str:
    listed = [*codes]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
