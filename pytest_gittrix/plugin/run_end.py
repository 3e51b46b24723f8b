"""The end of a test run with clauses or evals: the terminal's summary, the requested files, and the exit status."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pytest_gittrix.conformance.base.clause import PROPERTY


class TerminalSection(NamedTuple):
    """A section of the terminal's summary: its title, and its lines, each with a colour or an empty text."""

    title: str
    lines: Sequence[tuple[str, str]]


def finish_run(session: Any, reports: Sequence[Any], terminal: Any, options: Any) -> tuple[TerminalSection, ...]:
    """Write the requested reports, and decide the exit status.

    Args:
        session: pytest's session.
        reports: the reports of all phases of the tests of clauses and evals.
        terminal: pytest's terminal reporter.
        options: a ``GittrixConfig``.

    Returns:
        The sections of the terminal's summary.
    """
    clauses = [report for report in reports if any(name == PROPERTY for name, _ in report.user_properties)]
    sections = _clause_sections(session, clauses, terminal, options) if clauses else []
    if len(clauses) < len(reports):
        from pytest_gittrix.plugin.evals.summary import summarise_evals

        known = {id(report) for report in clauses}
        evals = [report for report in reports if id(report) not in known]
        found = summarise_evals(session, evals, terminal, options.eval_fail_under, options.judge_at_least)
        sections += [TerminalSection(*section) for section in found]
    return tuple(sections)


def _clause_sections(session: Any, reports: Sequence[Any], terminal: Any, options: Any) -> list[TerminalSection]:
    """Write the requested reports, and fail a run in which a promise was broken although no test failed."""
    from pytest_gittrix.conformance.reports.files import is_own_file, write_files
    from pytest_gittrix.conformance.reports.model import summarise_clauses
    from pytest_gittrix.conformance.reports.text_report import summary
    from pytest_gittrix.conformance.under_test import source_of

    config = session.config
    own = partial(is_own_file, config.rootpath)
    search = {"crash": options.crash, "race": options.race}
    name = config.getoption("gittrix_system") or ""
    source = source_of(name, config.rootpath)
    systems = summarise_clauses(reports, is_own_file=own, requested=name, source=source, search=search)
    problems = write_files(systems, options.conformance_report)
    for problem in problems:
        terminal.ensure_newline()
        terminal.write_line(problem, red=True)
    if problems or not all(system.is_kept for system in systems):
        session.testsfailed = max(session.testsfailed, 1)
    return [TerminalSection(f"gittrix conformance: {system.name}", [*summary(system)]) for system in systems]
