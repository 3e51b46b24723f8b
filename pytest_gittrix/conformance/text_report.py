"""The report as lines of text for a terminal, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_gittrix.conformance.base.clause import FAMILIES
from pytest_gittrix.conformance.report import Finding, Status, SystemReport


class ReportLine(NamedTuple):
    """A line of text, and the colour in which a terminal may show it."""

    text: str
    colour: str = ""


def summary(system: SystemReport) -> Iterator[ReportLine]:
    """The counts of each family, then each clause that is broken or waived, then the level."""
    yield from _table(system)
    for found in system.of(Status.BROKEN):
        yield ReportLine("")
        yield from _finding_lines(found, "red", f"again: {found.replay}")
    for found in system.of(Status.WAIVED):
        yield ReportLine("")
        yield from _finding_lines(found, "yellow")
    if system.untested:
        yield ReportLine("")
        yield ReportLine(f"declared, and never tested: {', '.join(system.untested)} (each of its clauses was skipped)", "red")
    yield ReportLine("")
    yield ReportLine(f"level reached: {system.verdict}", "green" if system.is_kept else "red")


def _table(system: SystemReport) -> Iterator[ReportLine]:
    families = system.families
    always = (Status.KEPT, Status.BROKEN, Status.WAIVED, Status.NOT_CLAIMED)
    shown = [one for one in Status if one in always or any(counts[one] for counts in families.values())]
    totals = {status: sum(counts[status] for counts in families.values()) for status in Status}
    rows: list[tuple[str, Sequence[int]]] = [
        (f"{family} {FAMILIES.get(family, '')}".strip(), [counts[status] for status in shown]) for family, counts in families.items()
    ]
    rows.append(("all", [totals[status] for status in shown]))
    first = max(len(name) for name, _ in rows)
    yield ReportLine(" " * first + "".join(f"  {status}" for status in shown))
    for name, counts in rows:
        yield ReportLine(
            name.ljust(first) + "".join(f"  {count or '.':>{len(status)}}" for status, count in zip(shown, counts, strict=True))
        )


def _finding_lines(found: Finding, colour: str, *more: str) -> Iterator[ReportLine]:
    yield ReportLine(f"{found.status} {found.clause.code}: {found.clause.promise}", colour)
    for text in (found.clause.why, found.reason, *more):
        if text:
            yield ReportLine(f"  {text}")
