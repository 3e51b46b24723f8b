"""A run of the worktree profile as text for people: findings and scripts as in every report, then what plain git loses too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_gittrix.conformance.reports import text_report
from pytest_gittrix.conformance.worktrees.findings import ClauseFinding, WorktreeReport, system_report

_SHORT: Final = ("as git", "no verdict")


def report_text(report: WorktreeReport, description: str = "tool.toml") -> str:
    """The report for people.

    Args:
        report: the report.
        description: the file with the description, for the line that runs a clause again.
    """
    return "\n".join([text_report.to_text([system_report(report, description)]), *_rest(report), ""])


def finding_text(one: ClauseFinding) -> str:
    """What is wrong about one clause, with the script that shows it."""
    return f"{one.clause}: {one.reason}\n{one.script}".rstrip()


def _rest(report: WorktreeReport) -> Iterator[str]:
    for verdict in _SHORT:
        by_reason: dict[str, list[str]] = {}
        for one in report.findings:
            if one.verdict == verdict:
                by_reason.setdefault(one.reason.splitlines()[0], []).append(one.clause)
        for reason, codes in by_reason.items():
            yield f"{verdict:<10} {', '.join(codes)}  {reason}"
    yield f"\nThe run took {report.seconds:.0f} seconds."
    if not report.offline:
        yield "The tool was not kept from the network: this system does not allow that."
