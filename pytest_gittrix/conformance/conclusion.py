"""The end of a run with clauses: what it found out, and the files that were asked for.

It must not know pytest's options, only what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.conformance.html_report import page
from pytest_gittrix.conformance.report import SystemReport, systems_of, to_text

WRITERS: Final[Mapping[str, Callable[[Sequence[SystemReport]], str]]] = {".json": to_text, ".html": page}
"""What each kind of file holds, by its suffix."""

_SUITE: Final = Path(__file__).with_name("test_conformance.py")


def conclude(reports: Iterable[Any], *, rootdir: Path, asked_for: str = "") -> tuple[SystemReport, ...]:
    """Judge the reports of a run's tests.

    Args:
        reports: pytest's, of all phases.
        rootdir: what node ids count from.
        asked_for: the system as it was named on the command line.
    """

    def is_own_file(nodeid: str) -> bool:
        file = rootdir / nodeid.partition("::")[0]
        return file.is_file() and not file.samefile(_SUITE)

    return systems_of(reports, is_own_file=is_own_file, asked_for=asked_for)


def write_files(systems: Sequence[SystemReport], files: Iterable[Path]) -> list[str]:
    """Write what was found out to files, each with a suffix of ``WRITERS``; directories are made.

    Returns:
        A line for each file that could not be written.
    """
    return [problem for file in files if (problem := _written(systems, file))]


def _written(systems: Sequence[SystemReport], file: Path) -> str:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(WRITERS[file.suffix](systems), encoding="utf-8", errors="backslashreplace")
    except OSError as problem:
        return f"gittrix: the conformance report cannot be written: {problem}"
    return ""
