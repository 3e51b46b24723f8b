"""The report as JSON; docs/how-to/check-your-own-session-system.md explains the keys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from pytest_gittrix import __version__
from pytest_gittrix.conformance.base.clause import first_set
from pytest_gittrix.conformance.reports.model import ClauseOutcome, Finding, SystemReport

FORMAT: Final = 1
"""Version of the JSON report."""


def to_json(systems: Iterable[SystemReport]) -> dict[str, Any]:
    """The report as JSON values."""
    return {"format": FORMAT, "gittrix": __version__, "systems": [_system_data(one) for one in systems]}


def to_text(systems: Iterable[SystemReport]) -> str:
    """The report as JSON text."""
    return json.dumps(to_json(systems), indent=2) + "\n"


def _system_data(system: SystemReport) -> dict[str, Any]:
    return {
        "name": system.name,
        "level": system.level,
        "kept": system.is_kept,
        "headline": system.headline,
        "defect": system.defect,
        "untested": [str(one) for one in system.untested],
        "findings": [_finding_data(one) for one in system.findings],
        "families": [
            {"family": family, "title": system.titles.get(family, "")}
            | {status.replace(" ", "_"): count for status, count in counts.items()}
            for family, counts in system.families.items()
        ],
        "clauses": [_outcome_data(one) for one in system.outcomes],
        "properties": {**system.properties},
    }


def _finding_data(found: Finding) -> dict[str, Any]:
    return {
        "id": found.id,
        "title": found.title,
        "status": found.status,
        "losesWork": found.loses_work,
        "clauses": [one.clause.code for one in found.outcomes],
        "losses": [*found.losses],
        "script": found.script,
        "reproduced": found.reproduced,
    }


def _outcome_data(found: ClauseOutcome) -> dict[str, Any]:
    clause = found.clause
    fields = {"code": clause.code, "promise": clause.promise, "why": clause.why, "needs": sorted(clause.needs)}
    fields |= {"status": found.status, "reason": found.reason, "replay": found.replay, "cause": found.cause}
    return fields | {"since": first_set(clause.code), "waiver": found.waiver}
