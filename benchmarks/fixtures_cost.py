"""What a fixture costs a test: a generated test file of trivial tests, with ``gittrix_session`` and without, in a pytest of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import Measurement, Phases, Stopwatch, interleave, scratch, summarise
from pytest_gittrix.testing.world import World

FILES: Final = {f"src/module{number}.py": f"VALUE = {number}\n" * 100 for number in range(10)}
_TESTS: Final = """\
import pytest

FILES = {files!r}

def test_warm({warm}):
    pass

@pytest.mark.parametrize("number", range({count}))
{marker}
def test_trivial(number, {fixture}):
    pass
"""
# The whole protocol of a test is timed, because a world is taken away in the report of its teardown.
_TIMER: Final = """\
import json, os, time
import pytest

now = time.perf_counter_ns
took = []

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    before = now()
    result = yield
    took.append((now() - before) / 1e6)
    return result

def pytest_runtest_logreport(report):
    phases.setdefault(report.when, []).append(report.duration * 1000)

phases = {}

def pytest_sessionfinish():
    with open(os.environ["BENCH_RESULT"], "w") as file:
        json.dump({"total": took[1:], **{name: found[1:] for name, found in phases.items()}}, file)
"""
_QUIET: Final = ("-q", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "bench_timer")


def fixtures_cost(*, quick: bool = False) -> list[Measurement]:
    """A test with each fixture less a test with none, and ``World.open``; in memory and on the disk."""
    found: list[Measurement] = []
    count, runs = (60, 1) if quick else (200, 3)
    for disk, place in ((False, "memory"), (True, "disk")):
        with scratch(disk=disk) as root:
            fixtures = {"no fixture": "request", "gittrix_durable": "gittrix_durable", "gittrix_session": "gittrix_session"}
            turns: dict[str, list[Phases]] = {name: [] for name in fixtures}
            for number in range(runs):
                for name, fixture in fixtures.items():
                    turns[name] += _run(root / f"{fixture}-{number}", fixture, count)
            found += summarise("fixture", {f"{name}, {place}": rounds for name, rounds in turns.items()})
            worlds = interleave({f"World.open, start, close, {place}": partial(_world, root)}, rounds=count, seconds=10)
            found += summarise("world", worlds)
    return found


def _run(root: Path, fixture: str, count: int) -> Iterator[dict[str, float]]:
    root.mkdir()
    marker = "" if fixture == "request" else "@pytest.mark.gittrix(files=FILES)"
    test = root / "test_generated.py"
    test.write_text(_TESTS.format(files=FILES, count=count, fixture=fixture, warm=fixture, marker=marker))
    (root / "bench_timer.py").write_text(_TIMER)
    result = root / "result.json"
    env = {**os.environ, "BENCH_RESULT": str(result), "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *_QUIET, f"--rootdir={root}", f"--basetemp={root / 'tmp'}", str(test)]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the generated tests failed:\n{done.stdout}{done.stderr}")
    columns: dict[str, list[float]] = json.loads(result.read_text())
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _world(root: Path, turn: int) -> Phases:
    watch = Stopwatch()
    world = World.open(root / f"world-{turn}", files=FILES, keep=False, separate_files=False)
    watch.lap("open")
    world.start()
    watch.lap("start")
    world.close()
    watch.lap("close and delete")
    return watch.phases
