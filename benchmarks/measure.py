"""How time is taken: rounds of all variants in rotated order, medians of them, in one flat list of measurements.

The machine drifts while a run lasts, so variants that are to be compared take turns, and only numbers of one table are compared. Must not
know what is measured.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

Phases = Mapping[str, float]
"""Milliseconds of one turn, by phase."""

Variant = Callable[[int], Phases]
"""One way to do a job: takes the number of the turn, does it, and says how long each phase took. What it tidies it does not count."""

TOTAL: Final = "total"
_FEWEST: Final = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number of a run.

    Attributes:
        bench: the table it belongs to.
        name: the variant.
        phase: the part of the job; ``total`` for all of it.
        size: files in the repository, sessions in the store, or None where nothing grows.
        median: in ``unit``, over ``rounds``.
        best: the smallest.
        unit: such as ``ms``, ``events/s`` or ``MB``.
    """

    bench: str
    name: str
    phase: str
    size: int | None
    median: float
    best: float
    rounds: int
    unit: str = "ms"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


class Stopwatch:
    """Splits one turn into phases; a phase that comes twice is added up."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter_ns()

    def lap(self, phase: str) -> None:
        """Everything since the last lap was ``phase``."""
        now = time.perf_counter_ns()
        self.phases[phase] = self.phases.get(phase, 0.0) + (now - self._last) / 1e6
        self._last = time.perf_counter_ns()

    def skip(self) -> None:
        """Everything since the last lap was none of the job."""
        self._last = time.perf_counter_ns()


def timed(job: Callable[[], object]) -> Phases:
    """One turn that is one phase."""
    watch = Stopwatch()
    job()
    watch.lap(TOTAL)
    return watch.phases


def interleave(variants: Mapping[str, Variant], *, rounds: int, seconds: float, warm: int = 1) -> dict[str, list[Phases]]:
    """Let variants take turns, each round in another order, the same ones every time.

    Args:
        variants: by name.
        rounds: how many turns each gets.
        seconds: after which no further round begins, once there were three.
        warm: rounds that do not count, first.

    Returns:
        The turns that count, by name.
    """
    names = [*variants]
    turns: dict[str, list[Phases]] = {name: [] for name in names}
    for number in range(-warm, 0):
        for name in names:
            variants[name](number)
    # What is there by now is not to be collected: going over it before each turn would leave cold caches to its first phase.
    gc.collect()
    gc.freeze()
    try:
        end = time.monotonic() + seconds
        for number in range(rounds):
            if number >= _FEWEST and time.monotonic() > end:
                break
            # Whoever comes after git commands finds cold caches; that must not always be the same one.
            for name in random.Random(number).sample(names, len(names)):
                gc.collect()
                turns[name].append(variants[name](number))
    finally:
        gc.unfreeze()
    return turns


def summarise(
    bench: str, turns: Mapping[str, Sequence[Phases]], *, size: int | None = None, outside: Sequence[str] = ()
) -> list[Measurement]:
    """Median and best of each phase of each variant, and of their sum.

    Args:
        bench: the table's name.
        turns: what ``interleave`` gave.
        size: what the job grew with.
        outside: phases that are told but are no part of the sum.
    """
    found: list[Measurement] = []
    for name, rounds in turns.items():
        phases = dict.fromkeys(phase for turn in rounds for phase in turn)
        columns = {phase: [turn.get(phase, 0.0) for turn in rounds] for phase in phases}
        if TOTAL not in columns:
            columns[TOTAL] = [sum(took for phase, took in turn.items() if phase not in outside) for turn in rounds]
        found += [
            Measurement(bench, name, phase, size, statistics.median(column), min(column), len(column)) for phase, column in columns.items()
        ]
    return found


def peak_memory(job: Callable[[], object]) -> float:
    """Do a job in a new process; gives the most megabytes of memory that the process had at once. The job must be one to pickle."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
        return apart.submit(_peak_of, job).result()


def _peak_of(job: Callable[[], object]) -> float:
    job()
    # What `getrusage` tells begins with the memory of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].removesuffix("kB")) * 1024 / 1e6


def memory_directory() -> str | None:
    """A directory in memory, where a file's cost is the system's and not the disk's; None where there is none."""
    return "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None


@contextmanager
def scratch(*, disk: bool = False) -> Iterator[Path]:
    """A directory for one measurement, in memory where that can be had, or on the disk that temporary files are on."""
    path = tempfile.mkdtemp(prefix="gittrix-bench-", dir=None if disk else memory_directory())
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
