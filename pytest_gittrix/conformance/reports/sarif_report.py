"""The report as SARIF 2.1.0, the format in which code hosts show what analysers found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from pytest_gittrix import __version__
from pytest_gittrix.conformance.base.clause import Clause
from pytest_gittrix.conformance.reports.model import Finding, SystemReport


def to_sarif(systems: Iterable[SystemReport]) -> str:
    """The report as SARIF text: a run for each system, a rule for each clause, a result for each finding.

    Code hosts refuse a result without a place in a file. It is the file of the tests, or what was tested: a description file, or a name.
    """
    return (
        json.dumps(
            {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [*map(_run, systems)]}, indent=2
        )
        + "\n"
    )


def _run(system: SystemReport) -> Mapping[str, Any]:
    clauses = {one.clause.code: one.clause for found in system.findings for one in found.outcomes}
    driver = {"name": "gittrix conform", "version": __version__, "rules": [_rule(clause) for clause in clauses.values()]}
    results = [_result(system, found) for found in system.findings]
    return {"tool": {"driver": driver}, "results": results, "properties": {**system.properties}}


def _rule(clause: Clause) -> Mapping[str, Any]:
    return {"id": clause.code, "shortDescription": {"text": clause.promise}, "fullDescription": {"text": clause.why or clause.promise}}


def _result(system: SystemReport, found: Finding) -> Mapping[str, Any]:
    place = {"artifactLocation": {"uri": quote(system.file or system.name)}, "region": {"startLine": 1}}
    reasons = "\n\n".join(f"{one.clause.code}: {one.reason}" for one in found.outcomes)
    return {
        "ruleId": found.outcomes[0].clause.code,
        "level": "error" if found.loses_work else "warning",
        "message": {"text": f"{system.name}: {found.title}.\n\n{' '.join(found.losses)}\n\n{reasons}"},
        "partialFingerprints": {"finding/v1": found.id},
        "locations": [{"physicalLocation": place, "logicalLocations": [{"name": system.name, "kind": "module"}]}],
        "properties": {
            "status": found.status,
            "losesWork": found.loses_work,
            "clauses": [one.clause.code for one in found.outcomes],
            "script": found.script,
        },
    }
