"""The report as JUnit XML: a suite for each family, a test case for each clause."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gittrix.conformance.base.outcome import FAILING, Status
from pytest_gittrix.conformance.reports.model import ClauseOutcome, SystemReport
from pytest_gittrix.formats.junit import JUnitCase, JUnitSuite, junit_xml


def to_junit(systems: Iterable[SystemReport]) -> str:
    """The report as JUnit XML. A clause that was not run is left out; one that neither failed nor is kept counts as skipped."""
    return junit_xml(
        JUnitSuite(
            f"{system.name}: {family}",
            [_case(system, one) for one in system.outcomes if one.clause.family == family and one.status is not Status.NOT_RUN],
            system.properties,
        )
        for system in systems
        for family in system.families
    )


def _case(system: SystemReport, outcome: ClauseOutcome) -> JUnitCase:
    clause, status, reason = outcome.clause, outcome.status, outcome.reason
    group, name = f"{system.name}.{clause.family}", f"{clause.code} {clause.promise}"
    if status in FAILING:
        text = "\n".join(filter(None, (clause.why, reason, outcome.replay, outcome.script)))
        return JUnitCase(group, name, "failure", reason.partition("\n")[0], text, kind=str(status))
    if status is Status.KEPT:
        return JUnitCase(group, name)
    return JUnitCase(group, name, "skipped", f"{status}: {reason}" if reason else str(status))
