"""The end of a run: what clauses and evals found out, and the files that were asked for. Must not know pytest's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pytest_gittrix.conformance.base.clause import PROPERTY


class TerminalSection(NamedTuple):
    """A section of the terminal's summary: its title, and lines with the colour each may have."""

    title: str
    lines: Sequence[tuple[str, str]]


def finish_run(session: Any, reports: Sequence[Any], terminal: Any, options: Any) -> tuple[TerminalSection, ...]:
    """Write what was asked for, and decide the exit status.

    Args:
        session: pytest's.
        reports: of all phases, of tests that are ours.
        terminal: the reporter.
        options: a ``GittrixConfig``.

    Returns:
        What the terminal shows.
    """
    clauses = [report for report in reports if any(name == PROPERTY for name, _ in report.user_properties)]
    endings = _of_clauses(session, clauses, terminal, options) if clauses else []
    if len(clauses) < len(reports):
        from pytest_gittrix.plugin.evals.summary import summarise_evals as conclude_evals

        known = {id(report) for report in clauses}
        evals = [report for report in reports if id(report) not in known]
        endings += [TerminalSection(*told) for told in conclude_evals(session, evals, terminal, options.eval_fail_under)]
    return tuple(endings)


def _of_clauses(session: Any, reports: Sequence[Any], terminal: Any, options: Any) -> list[TerminalSection]:
    """Write the reports that were asked for, and fail a run in which a promise was broken without a test that failed."""
    from pytest_gittrix.conformance.report import summarise_clauses
    from pytest_gittrix.conformance.report_files import is_own_file, write_files
    from pytest_gittrix.conformance.text_report import summary

    config = session.config
    own = partial(is_own_file, config.rootpath)
    systems = summarise_clauses(reports, is_own_file=own, requested=config.getoption("gittrix_system") or "")
    problems = write_files(systems, options.conformance_report)
    for problem in problems:
        terminal.ensure_newline()
        terminal.write_line(problem, red=True)
    if session.exitstatus == 0 and (problems or not all(system.is_kept for system in systems)):
        session.exitstatus = 1
    return [TerminalSection(f"gittrix conformance: {system.name}", [*summary(system)]) for system in systems]
