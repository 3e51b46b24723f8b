"""The files that a run with clauses writes, by their suffix; and which tests are a project's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.reports import json_report, text_report
from pytest_gittrix.conformance.reports.badge import to_badge
from pytest_gittrix.conformance.reports.html_report import page
from pytest_gittrix.conformance.reports.junit_report import to_junit
from pytest_gittrix.conformance.reports.model import SystemReport
from pytest_gittrix.conformance.reports.sarif_report import to_sarif


def _histories(systems: Sequence[SystemReport]) -> str:
    return "".join(outcome.history for system in systems for outcome in system.outcomes)


WRITERS: Final[Mapping[str, Callable[[Sequence[SystemReport]], str]]] = {
    ".json": json_report.to_text,
    ".html": page,
    ".txt": text_report.to_text,
    ".xml": to_junit,
    ".sarif": to_sarif,
    ".svg": to_badge,
    ".jsonl": _histories,
}
"""The function that gives a file's text, by the file's suffix."""

_SUITE: Final = Path(__file__).parents[1] / "test_conformance.py"


def is_own_file(rootdir: Path, nodeid: str) -> bool:
    """Whether a test is in a file of the project, and not in the suite's own module.

    Args:
        rootdir: the directory that node ids are relative to.
        nodeid: of the test.
    """
    file = rootdir / nodeid.partition("::")[0]
    return file.is_file() and not file.samefile(_SUITE)


def write_files(systems: Sequence[SystemReport], files: Iterable[Path]) -> list[str]:
    """Write the reports of systems to files, each with a suffix of ``WRITERS``; missing directories are made.

    Returns:
        An error message for each file that could not be written.
    """
    return [problem for file in files if (problem := _write(systems, file))]


def _write(systems: Sequence[SystemReport], file: Path) -> str:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(WRITERS[file.suffix](systems), encoding="utf-8", errors="backslashreplace")
    except OSError as problem:
        return f"gittrix: the conformance report cannot be written: {problem}"
    return ""
