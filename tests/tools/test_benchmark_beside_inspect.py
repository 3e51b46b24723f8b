"""The benchmark beside Inspect runs both, on the same samples, and finds all of them right."""

from __future__ import annotations

import tempfile

import pytest

pytest.importorskip("inspect_ai", reason='needs pip install "pytest-gittrix[inspect]"')

from benchmarks.evals import FUNCTION, LOOP, PROGRAM
from benchmarks.evals_beside_inspect import INSPECT, beside_inspect
from benchmarks.measure import TOTAL
from benchmarks.report import Run

# Inspect leaves streams of its own open; whatever is collected later would be told of a test that has nothing to do with it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_every_variant_is_measured_and_temporary_files_are_where_they_were() -> None:
    before = tempfile.gettempdir()

    run = Run(beside_inspect(1))

    names = [item.name for item in run.measurements if item.phase == TOTAL]
    assert sorted(names) == sorted([FUNCTION, INSPECT.format(FUNCTION), PROGRAM, INSPECT.format(PROGRAM), LOOP])
    assert [verdict.goal for verdict in run.verdicts()] == ["eval sample of an agent that is a function: ms"]
    assert tempfile.gettempdir() == before
