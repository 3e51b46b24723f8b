"""The report as one HTML page that loads nothing: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gittrix import __version__
from pytest_gittrix.conformance.base.outcome import FAILING, Status
from pytest_gittrix.conformance.reports.model import ClauseOutcome, SystemReport
from pytest_gittrix.formats.html import templates


def page(systems: Iterable[SystemReport]) -> str:
    """The HTML of a report on some systems."""
    template = templates("pytest_gittrix.conformance.reports").get_template("report.html")
    functions = {function.__name__: function for function in (counts_of, bar_of, columns_of, waived_of, anchor_of)}
    return template.render(functions, systems=[*systems], failing=FAILING, version=__version__)


def counts_of(system: SystemReport) -> dict[Status, int]:
    """The number of clauses with each status that one has."""
    return {status: count for status in Status if (count := len(system.of(status)))}


def bar_of(system: SystemReport) -> dict[Status, int]:
    """The counts that fill the bar: of clauses that the system claims, and that were run."""
    return {status: count for status, count in counts_of(system).items() if status not in (Status.NOT_CLAIMED, Status.NOT_RUN)}


def columns_of(system: SystemReport) -> list[Status]:
    """The statuses that a clause of a shown family has."""
    return [status for status in Status if any(counts[status] for counts in system.families.values())]


def waived_of(system: SystemReport) -> tuple[ClauseOutcome, ...]:
    """The clauses that the system need not keep."""
    return system.of(Status.WAIVED, Status.DOCUMENTED)


def anchor_of(system: SystemReport, family: str) -> str:
    """The name of a family's place on the page."""
    slug = "".join(char if char.isascii() and char.isalnum() else f"-{ord(char):x}-" for char in system.name)
    return f"{slug}-{family}"
