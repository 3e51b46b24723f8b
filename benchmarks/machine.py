"""The state machine on the reference engine: how many steps it makes a second, all judging included, and what a fresh world costs it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from benchmarks.measure import TOTAL, Measurement, Phases, Stopwatch, interleave, scratch, summarise
from pytest_gittrix.testing.machines.session_machine import SandboxMachine, machine_for
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.repos.edits import Tree
from pytest_gittrix.testing.world import World
from pytest_gittrix.workspaces.kinds import WorkspaceKind

FRESH: Final = "fresh world ms"
KINDS: Final[tuple[WorkspaceKind, ...]] = ("lazy", "clone")
_FILES: Final = Tree({"a": b"1\n2\n3\n", "lib/b": b"2\n"})
_STEPS: Final = 50


def machine(*, quick: bool = False) -> list[Measurement]:
    """Steps a second for each kind of workspace, and opening and closing a world with its judge; in memory."""
    examples, rounds = (10, 3) if quick else (40, 5)
    with scratch() as root, _temporary_files_in(root):
        found = [_steps(kind, examples, rounds) for kind in KINDS]
        worlds = interleave({FRESH: _world}, rounds=20 if quick else 200, seconds=10)
    return found + summarise("machine", worlds)


def _steps(kind: WorkspaceKind, examples: int, rounds: int) -> Measurement:
    rates = []
    for number in range(rounds + 1):
        counting = _counting(kind)
        limits = settings(
            max_examples=examples,
            stateful_step_count=_STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        )
        before = time.perf_counter()
        run_state_machine_as_test(seed(number)(counting), settings=limits)
        rates.append(counting.steps / (time.perf_counter() - before))
    rates = rates[1:]  # the first round loads what the others find loaded
    return Measurement("machine", f"machine steps/s, {kind}", TOTAL, None, statistics.median(rates), max(rates), rounds, "steps/s")


def _counting(kind: WorkspaceKind) -> Any:
    def opened(**arguments: Any) -> World:
        return World.open(**{**arguments, "workspace": kind})

    class Counting(machine_for(opened)):  # type: ignore[misc]
        steps = 0

        @invariant()
        def count(self: SandboxMachine) -> None:
            Counting.steps += 1

    return Counting


def _world(_turn: int) -> Phases:
    watch = Stopwatch()
    trial = Trial(World.open, files=_FILES, workspace="clone")
    watch.lap("open")
    trial.close()
    watch.lap("close and delete")
    return watch.phases


@contextmanager
def _temporary_files_in(root: Path) -> Iterator[None]:
    """Worlds without a path of their own are made where temporary files are."""
    import tempfile

    before, tempfile.tempdir = tempfile.tempdir, os.fspath(root)
    try:
        yield
    finally:
        tempfile.tempdir = before
