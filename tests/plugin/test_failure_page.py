"""What the page on failures shows is what pytest prints: each of its tests is run and fails, and each line of its output is compared."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "what-a-failure-looks-like.md"
SHOWN = re.compile(r"^```python\n(?P<source>.*?)^```\n\n```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
LEFT_OUT = "..."

Run = Callable[..., pytest.RunResult]


def failures(output: str) -> dict[str, list[str]]:
    """The lines that pytest printed of each failed test, with the directory of its world cut short."""
    plain = re.sub(r"/\S+/\d{4}-(test_\w+)", r"/tmp/\1", output)
    _, *parts = re.split(r"^_{3,} (?:ERROR at (?:setup|teardown) of )?(test_\w+) _{3,}$", plain, flags=re.MULTILINE)
    return {name: lines.splitlines() for name, lines in zip(parts[::2], parts[1::2], strict=True)}


def chunks(shown: str) -> Iterator[list[str]]:
    """The runs of lines between the places where the page leaves some out."""
    for left_out, run in groupby(shown.splitlines(), lambda line: line == LEFT_OUT):
        if not left_out:
            yield [*run]


def stands(line: str, shown: str) -> bool:
    """Whether a line is as the page shows it; the page may cut the end of a long one."""
    return line == shown or (shown.endswith(f" {LEFT_OUT}") and line.startswith(shown.removesuffix(LEFT_OUT).rstrip()))


def place_of(chunk: list[str], lines: list[str], start: int) -> int | None:
    """Where a run of lines ends in an output, from a line on; None if it is not there."""
    printed = [line for line in lines[start:] if line.strip()]
    wanted = [line for line in chunk if line.strip()]
    for at in range(len(printed) - len(wanted) + 1):
        if all(map(stands, printed[at:], wanted)):
            return start + at + len(wanted)
    return None


def test_the_page_shows_what_pytest_prints(run: Run, pytester: pytest.Pytester) -> None:
    shown = {NAME.findall(found["source"])[-1]: found for found in SHOWN.finditer(PAGE.read_text(encoding="utf-8"))}
    assert len(shown) >= 10
    for name, found in shown.items():
        (pytester.path / f"{name}.py").write_text(found["source"], encoding="utf-8")

    before = os.umask(0o022)  # modes of files are shown
    try:
        result = run("", "--gittrix-keep=none")
    finally:
        os.umask(before)

    printed = failures(result.stdout.str())
    assert printed.keys() == shown.keys()
    for name, found in shown.items():
        lines = [line for line in printed[name] if line.strip()]
        at: int | None = 0
        for chunk in chunks(found["output"]):
            at = place_of(chunk, lines, at or 0)
            assert at is not None, "\n".join([f"{name} does not print:", *chunk, "but:", *lines])
