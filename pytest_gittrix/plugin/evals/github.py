"""The report of evals for GitHub Actions: a table in the summary of the step and a few annotations, within its limits.

GitHub takes at most 1 MiB of summary and shows ten annotations for each step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.safe_text import visible, visible_line

MOST_BYTES: Final = 1 << 20
"""The limit of the summary of a step, with what other programs wrote."""
MOST_ERRORS: Final = 10
"""The limit of annotations of a step."""

_CUT: Final = "\n… and {left} more samples: they are in the directory of the run.\n"
_MARGIN: Final = 200


@dataclass(frozen=True)
class SampleRow:
    """The row of a sample.

    Attributes:
        sample: the name of the sample.
        outcome: its outcome.
        reason: why it did not pass.
        file: the file of the test, from the root directory.
        line: the line of the test, from 1.
    """

    sample: str
    outcome: str
    reason: str
    file: str
    line: int

    @property
    def title(self) -> str:
        """The title of the annotation."""
        return f"{self.sample}: {self.outcome}"


def summary(heading: str, facts: Sequence[str], rows: Sequence[SampleRow], limit: int) -> str:
    """A table in Markdown of limited size; it says how many rows were cut.

    Args:
        heading: the title.
        facts: the lines above the table.
        rows: its rows; those that did not pass come first.
        limit: the largest size in bytes.
    """
    top = "\n".join(
        [f"### {_cell(heading)}", "", *(f"{_cell(fact)}  " for fact in facts), "", "| sample | outcome | why |", "|---|---|---|"]
    )
    text = f"{top}\n"
    if len(text.encode()) > limit - _MARGIN:
        return ""
    ordered = sorted(rows, key=lambda row: row.outcome == "pass")
    used = len(text.encode())
    lines: list[str] = []
    for row in ordered:
        line = f"| {_cell(row.sample)} | {_cell(row.outcome)} | {_cell(row.reason)} |\n"
        used += len(line.encode())
        if used > limit - _MARGIN:
            break
        lines.append(line)
    left = len(ordered) - len(lines)
    return text + "".join(lines) + (_CUT.format(left=left) if left else "\n")


def append_summary(file: Path, heading: str, facts: Sequence[str], rows: Sequence[SampleRow]) -> str:
    """Add the table to the summary of the step.

    Args:
        file: the file that ``GITHUB_STEP_SUMMARY`` names.
        heading: the title of the table.
        facts: the lines above the table.
        rows: its rows.

    Returns:
        Why the table could not be added; empty if it was.
    """
    try:
        there = os.path.getsize(file) if file.exists() else 0
        text = summary(heading, facts, rows, MOST_BYTES - there)
        with open(file, "a", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except OSError as problem:
        return f"the summary of the step cannot be written: {problem}"
    return "" if text else "the summary of the step is full"


def errors_of(rows: Iterable[SampleRow]) -> list[str]:
    """Workflow commands for the samples that did not pass: at most ``MOST_ERRORS`` errors, and one notice for the rest."""
    wrong = [row for row in rows if row.outcome != "pass"]
    lines = [
        f"::error file={_property(row.file)},line={row.line},title={_property(row.title)}::{_data(row.reason or row.outcome)}"
        for row in wrong[:MOST_ERRORS]
    ]
    if len(wrong) > MOST_ERRORS:
        lines.append(f"::notice title=gittrix eval::{len(wrong) - MOST_ERRORS} more samples did not pass; the summary lists them.")
    return lines


def _cell(text: str) -> str:
    """Text on one line, escaped for Markdown."""
    plain = visible_line(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*_[]|~":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _data(text: str) -> str:
    return visible(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
