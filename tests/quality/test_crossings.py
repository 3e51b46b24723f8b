"""An operation goes through no more files than it did: whoever reads it, or looks for what is slow in it, reads them all."""

from __future__ import annotations

import threading
from typing import Final

import pytest

from pytest_gittrix.durations import parse_duration
from tests.quality.crossings import Crossed, Tracer, counts, crossings

MOST: Final = {"start_session": 34, "write": 20, "info": 32, "promote": 73, "sweep": 67}
"""The most files that each operation may cross. Lower a number when you have taken files out of the way; raise one only for what people
gain by it."""


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    return crossings(tmp_path_factory.mktemp("crossings"))


@pytest.mark.parametrize("operation", MOST)
def test_an_operation_crosses_no_more_files_than_before(operation: str, crossed: Crossed) -> None:
    files = sorted({file for file, _ in crossed[operation]})
    assert len(files) <= MOST[operation], files


def test_each_operation_is_traced_down_to_the_log(crossed: Crossed) -> None:
    assert set(counts(crossed)) == set(MOST)
    assert all("record/eventlog/log.py" in {file for file, _ in crossed[operation]} for operation in MOST)


def test_a_tracer_counts_in_threads_and_only_during_an_operation() -> None:
    with Tracer() as tracer:
        parse_duration("1h")
        assert tracer.crossed == {}
        with tracer.during("parse"):
            thread = threading.Thread(target=parse_duration, args=["1h"])
            thread.start()
            thread.join()
    assert ("durations.py", "parse_duration") in tracer.crossed["parse"]
