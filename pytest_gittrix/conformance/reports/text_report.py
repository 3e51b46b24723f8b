"""The report as lines of text for a terminal, readable without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import indent
from typing import Final, NamedTuple

from pytest_gittrix.conformance.base.outcome import FAILING, Status
from pytest_gittrix.conformance.reports.model import ClauseOutcome, Finding, SystemReport

_FEW: Final = 3
"""Up to so many clauses of one finding are listed one by one, although all say the same."""


class ReportLine(NamedTuple):
    """A line of text, and the colour in which a terminal may show it."""

    text: str
    colour: str = ""


def to_text(systems: Iterable[SystemReport]) -> str:
    """The report as a text file, with the script of each finding."""
    return "\n".join(_whole(system) for system in systems)


def _whole(system: SystemReport) -> str:
    facts = [f"{name}: {value}" for name, value in system.properties.items()]
    lines = [f"gittrix conformance: {system.name}", *facts, "", *(line.text for line in summary(system))]
    for found in system.findings:
        if found.script:
            lines += ["", f"A script that shows: {found.title}", "", indent(found.script, "    ").rstrip()]
    return "\n".join([*lines, ""])


def summary(system: SystemReport) -> Iterator[ReportLine]:
    """The counts of each family, then each finding and each waived clause, then the level."""
    yield from _table(system)
    for number, found in enumerate(system.findings, 1):
        yield ReportLine("")
        yield from _finding_lines(number, found)
    for outcome in system.of(Status.WAIVED, Status.DOCUMENTED):
        yield ReportLine("")
        yield from _outcome_lines(outcome, "yellow")
    covered = [outcome for outcome in system.of(Status.KEPT) if outcome.reason]
    if covered:
        yield ReportLine("")
        yield from (ReportLine(f"kept {one.clause.code}: {one.reason}") for one in covered)
    if system.untested:
        yield ReportLine("")
        yield ReportLine(f"declared, and never tested: {', '.join(system.untested)} (each of its clauses was skipped)", "red")
    yield ReportLine("")
    if system.of(*FAILING):
        yield ReportLine(system.headline, "red")
    if system.defect:
        yield ReportLine(system.defect, "red")
    if system.has_levels:
        yield ReportLine(f"level reached: {system.verdict}", "green" if system.is_kept else "red")


def _table(system: SystemReport) -> Iterator[ReportLine]:
    families = system.families
    always = (Status.KEPT, Status.BROKEN, Status.WAIVED, Status.NOT_CLAIMED)
    shown = [one for one in Status if one in always or any(counts[one] for counts in families.values())]
    totals = {status: sum(counts[status] for counts in families.values()) for status in Status}
    rows: list[tuple[str, Sequence[int]]] = [
        (f"{family} {system.titles.get(family, '')}".strip(), [counts[status] for status in shown]) for family, counts in families.items()
    ]
    rows.append(("all", [totals[status] for status in shown]))
    first = max(len(name) for name, _ in rows)
    yield ReportLine(" " * first + "".join(f"  {status}" for status in shown))
    for name, counts in rows:
        yield ReportLine(
            name.ljust(first) + "".join(f"  {count or '.':>{len(status)}}" for status, count in zip(shown, counts, strict=True))
        )


def _finding_lines(number: int, found: Finding) -> Iterator[ReportLine]:
    loses = ", loses work" if found.loses_work else ""
    codes = ", ".join(one.clause.code for one in found.outcomes)
    yield ReportLine(f"{number}. {found.title} ({found.status}{loses}: {codes})", "red")
    if len(found.outcomes) > _FEW and len({one.reason for one in found.outcomes}) == 1:  # what is said once says it
        first = found.outcomes[0]
        yield from (ReportLine(f"  {line}") for line in [*first.reason.splitlines(), f"again: {first.replay}"])
        return
    for outcome in found.outcomes:
        yield from _outcome_lines(outcome, "", "  ")


def _outcome_lines(outcome: ClauseOutcome, colour: str, margin: str = "") -> Iterator[ReportLine]:
    loses = " (loses work)" if outcome.loses_work else ""
    kind = f", {outcome.waiver}" if outcome.waiver else ""
    yield ReportLine(f"{margin}{outcome.status}{kind} {outcome.clause.code}: {outcome.clause.promise}{loses}", colour)
    again = f"again: {outcome.replay}" if outcome.replay else ""
    for text in (outcome.clause.why, outcome.reason, again):
        for line in text.splitlines():
            yield ReportLine(f"{margin}  {line}")
