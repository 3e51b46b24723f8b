"""What a program that stays costs at each level of confinement: until its first output, and in memory with fifty at once."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.confine import MEANS
from benchmarks.measure import TOTAL, Measurement, Phases, Stopwatch, Variant, interleave, summarise
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.levels import missing
from pytest_gittrix.confine.runner import start
from pytest_gittrix.os_level.proc import with_descendants
from pytest_gittrix.os_level.process_tree import table

PLAIN: Final = "plain subprocess.Popen"
AT_ONCE: Final = 50
_PROGRAM: Final = ("sh", "-c", "echo up; read line")

Begin = Callable[[ExitStack], object]
"""Starts the program, and returns when its first output was read; it ends with the stack."""


def programs(*, quick: bool = False) -> list[Measurement]:
    """A shell that says that it is up, and waits."""
    with _variants() as variants:
        turns = {name: _timed(begin) for name, begin in variants.items()}
        found = summarise("programs", interleave(turns, rounds=20 if quick else 200, seconds=5 if quick else 40, warm=2))
        for name, begin in variants.items():
            taken = [_memory(begin) for _ in range(1 if quick else 3)]
            found.append(Measurement("programs at once", name, TOTAL, AT_ONCE, median(taken), min(taken), len(taken), "MB"))
        return found


@contextmanager
def _variants() -> Iterator[dict[str, Begin]]:
    with tempfile.TemporaryDirectory(prefix="gittrix-bench-") as root:
        workspace, home = Path(root, "workspace"), Path(root, "home")
        workspace.mkdir()
        home.mkdir()
        place, variables = Place(workspace, home), {"PATH": os.defpath}
        confined = {str(means): partial(_confined, place, means, variables) for means in MEANS if not missing(means.by)}
        yield {PLAIN: partial(_plain, workspace, variables), **confined}


def _plain(workspace: Path, variables: dict[str, str], held: ExitStack) -> None:
    process = held.enter_context(subprocess.Popen(_PROGRAM, cwd=workspace, env=variables, stdin=-1, stdout=-1))
    held.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()


def _confined(place: Place, means: Confinement, variables: dict[str, str], held: ExitStack) -> None:
    running = held.enter_context(start(_PROGRAM, place, means, environment=variables))
    running.stdout.read()


def _timed(begin: Begin) -> Variant:
    def turn(_: int) -> Phases:
        with ExitStack() as held:
            watch = Stopwatch()
            begin(held)
            watch.lap(TOTAL)
        return watch.phases

    return turn


def _memory(begin: Begin) -> float:
    """The megabytes that the processes of so many programs take, ours among them: what several share counts once."""
    with ExitStack() as held:
        before = _of_all_processes()
        for _ in range(AT_ONCE):
            begin(held)
        return (_of_all_processes() - before) / 1e6


def _of_all_processes() -> float:
    ours = with_descendants([os.getpid()], {pid: one.parent for pid, one in table().items()})
    return sum(map(_of_process, ours))


def _of_process(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or this user may not look
        return 0.0
    return sum(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("Pss:"))
