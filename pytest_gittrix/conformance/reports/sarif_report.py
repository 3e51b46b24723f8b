"""The report as SARIF 2.1.0, the format in which code hosts show what analysers found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from pytest_gittrix import __version__
from pytest_gittrix.conformance.base.outcome import Status
from pytest_gittrix.conformance.reports.model import NOT_YET, ClauseOutcome, Finding, SystemReport


def to_sarif(systems: Iterable[SystemReport]) -> str:
    """The report as SARIF text: a run for each system, a rule for each clause, a result for each finding and each waived clause.

    Code hosts refuse a result without a place in a file. It is that of the tests, the one that makes the system, the line of the command in
    a description, or where there is no such file the name of what was tested.
    """
    return (
        json.dumps(
            {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [*map(_run, systems)]}, indent=2
        )
        + "\n"
    )


def _run(system: SystemReport) -> Mapping[str, Any]:
    waived = system.of(Status.WAIVED, Status.DOCUMENTED)
    outcomes = {one.clause.code: one for one in [*waived, *(one for found in system.findings for one in found.outcomes)]}
    driver = {"name": "gittrix conform", "version": __version__, "rules": [*map(_rule, outcomes.values())]}
    results = [*(_result(system, found) for found in system.findings), *(_suppressed(system, one) for one in waived)]
    return {"tool": {"driver": driver}, "results": results, "properties": {**system.properties}}


def _rule(outcome: ClauseOutcome) -> Mapping[str, Any]:
    """A clause, with the script that shows its failure as its help."""
    clause, why = outcome.clause, outcome.clause.why or outcome.clause.promise
    rule = {"id": clause.code, "shortDescription": {"text": clause.promise}, "fullDescription": {"text": why}}
    if not outcome.script:
        return rule
    return rule | {"help": {"text": f"{why}\n\n{outcome.script}", "markdown": f"{why}\n\n```sh\n{outcome.script.rstrip()}\n```\n"}}


def _result(system: SystemReport, found: Finding) -> Mapping[str, Any]:
    reasons = "\n\n".join(f"{one.clause.code}: {one.reason}" for one in found.outcomes)
    return {
        "ruleId": found.outcomes[0].clause.code,
        "level": "error" if found.loses_work else "warning",
        "message": {"text": f"{system.name}: {found.title}.\n\n{' '.join(found.losses)}\n\n{reasons}"},
        "partialFingerprints": {"finding/v1": found.id},
        "locations": [_location(system, found.outcomes[0])],
        "properties": {
            "status": found.status,
            "losesWork": found.loses_work,
            "clauses": [one.clause.code for one in found.outcomes],
            "script": found.script,
        },
    }


def _suppressed(system: SystemReport, waived: ClauseOutcome) -> Mapping[str, Any]:
    """A waived clause. Code hosts do not count what is suppressed; they show that a promise is under review if it is to be kept one day."""
    return {
        "ruleId": waived.clause.code,
        "level": "note",
        "message": {"text": f"{system.name}: {waived.status}, {waived.waiver}: {waived.clause.promise}."},
        "partialFingerprints": {"finding/v1": waived.clause.code},
        "locations": [_location(system, waived)],
        "suppressions": [
            {"kind": "external", "status": "underReview" if waived.waiver == NOT_YET else "accepted", "justification": waived.reason}
        ],
    }


def _location(system: SystemReport, outcome: ClauseOutcome) -> Mapping[str, Any]:
    line = system.lines.get(outcome.clause.code, 1)
    place = {"artifactLocation": {"uri": quote(system.file or system.name)}, "region": {"startLine": line}}
    return {"physicalLocation": place, "logicalLocations": [{"name": system.name, "kind": "module"}]}
