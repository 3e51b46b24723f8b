"""What is new since an earlier report: for runs that fail only for new faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gittrix.conformance.base.outcome import FAILING, Status
from pytest_gittrix.conformance.reports.json_report import FORMAT
from pytest_gittrix.errors import InvalidInput

_SEVERITY = (*FAILING[::-1],)


@dataclass(frozen=True)
class BaselineDifference:
    """The difference between two reports. Each item is the name of a system and a clause's code, or an untested capability.

    Attributes:
        new: what fails now and did not fail then, or was only an incomplete refusal.
        known: what failed then and fails now.
        mended: what failed then and is kept now.
    """

    new: tuple[str, ...]
    known: tuple[str, ...]
    mended: tuple[str, ...]

    def lines(self) -> list[str]:
        """The comparison as sentences, one a line."""
        parts = (("New", self.new), ("Fixed", self.mended), ("Same", self.known))
        return [f"{title}: {', '.join(items)}." for title, items in parts if items] or ["Nothing failed, then or now."]


def read_baseline(path: str) -> Mapping[str, Any]:
    """Read a JSON report.

    Raises:
        InvalidInput: the file cannot be read, or is not such a report.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        if report["format"] == FORMAT:
            _failures(report)
            return dict(report)
        problem = f"its format is {report['format']!r}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise InvalidInput(
        f"{path!r} is not a report of clauses: {problem}.",
        why="The faults in a baseline are the ones that do not fail a run.",
        fix="Write one with `gittrix conform SYSTEM --report baseline.json`.",
        opt_out="Without --against, every fault fails the run.",
    )


def compare(baseline: Mapping[str, Any], report: Mapping[str, Any]) -> BaselineDifference:
    """Compare two reports, clause by clause.

    Args:
        baseline: the earlier report, as ``read_baseline`` gives it.
        report: the report of now, of the same format.
    """
    then, now = _failures(baseline), _failures(report)
    new = [name for name, severity in now.items() if severity > then.get(name, -1)]
    kept = {f"{system['name']}: {one['code']}" for system in report["systems"] for one in system["clauses"] if one["status"] == Status.KEPT}
    return BaselineDifference(tuple(new), tuple(name for name in now if name not in new), tuple(name for name in then if name in kept))


def _failures(report: Mapping[str, Any]) -> dict[str, int]:
    """How bad each failure of a report is, by its name."""
    found: dict[str, int] = {}
    for system in report["systems"]:
        failing = (one for one in system["clauses"] if one["status"] in FAILING)
        found |= {f"{system['name']}: {one['code']}": _SEVERITY.index(one["status"]) for one in failing}
        found |= {f"{system['name']}: untested {one}": 0 for one in system["untested"]}
    return found
