"""The lines of a run: one for each clause, plain in a file, and above a bar where a person watches."""

from __future__ import annotations

import io

from pytest_gittrix.conformance.base.outcome import Status
from pytest_gittrix.conformance.progress import ClauseLines


def test_a_file_has_plain_lines() -> None:
    out = io.StringIO()
    lines = ClauseLines(out, terminal=False)

    lines.ended("WREM-01", Status.NO_VERDICT, "modified files\033[1m are not lost", 12)
    lines.ended("WREM-02", Status.KEPT, "staged files are not lost", 12)
    lines.close()

    assert out.getvalue() == (
        "[ 1/12] no verdict         WREM-01  modified files\\x1b[1m are not lost\n"
        "[ 2/12] kept               WREM-02  staged files are not lost\n"
    )


def test_a_run_of_unknown_length_counts_what_is_done() -> None:
    out = io.StringIO()

    ClauseLines(out, terminal=False).ended("ISO-01", Status.KEPT, "it is so", 0)

    assert out.getvalue().startswith("[1] kept ")


def test_a_terminal_has_the_same_lines_in_colour_and_a_bar_that_goes_with_the_last() -> None:
    out = io.StringIO()
    lines = ClauseLines(out, terminal=True)

    lines.ended("ISO-01", Status.KEPT, "one", 2)
    between = out.getvalue()
    lines.ended("ISO-02", Status.BROKEN, "two", 2)

    assert "\033[32m[1/2] kept               ISO-01  one" in between
    assert "1/2" in between.rpartition("clauses")[2]
    assert "\033[31m[2/2] broken             ISO-02  two" in out.getvalue()
    assert out.getvalue().endswith("\033[2K")
    assert out.getvalue().count("\033[?25l") == out.getvalue().count("\033[?25h") == 1
