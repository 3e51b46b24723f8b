"""What would be lost with a worktree: the function and the command, beside ``git status`` of the same forms."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Final

from benchmarks.measure import TOTAL, Measurement, Phases, Variant, interleave, scratch, summarise
from benchmarks.startup import CPU, PASS, child, environment, gittrix
from pytest_gittrix import unfinished_work
from pytest_gittrix.testing.world import World

FUNCTION: Final = "unfinished_work()"
STATUS: Final = "git status"
FILES: Final = 10_000


def unfinished(*, quick: bool = False) -> list[Measurement]:
    """A finished worktree of 10 000 files, by processor time and by the clock."""
    files = {f"{number // 100}/{number}.py": f"print({number})\n" for number in range(FILES)}
    with scratch() as root, World.open(root / "world", files=files) as world:
        worktree = root / "worktree"
        subprocess.run(["git", "worktree", "add", "-q", "-b", "work", worktree], cwd=world.durable.path, check=True)
        time.sleep(1.1)  # or each file could have changed in the moment in which the index was written
        subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=worktree, check=True)
        jobs = {
            PASS: [sys.executable, "-c", "pass"],
            "import pygit2": [sys.executable, "-c", "import pygit2"],
            STATUS: ["git", "status", "--porcelain", "--ignored", "-uall"],
            "gittrix unfinished": [*gittrix(), "unfinished", str(worktree)],
        }
        env = environment(root)
        variants: dict[str, Variant] = {name: child(arguments, worktree, env) for name, arguments in jobs.items()}
        variants[FUNCTION] = lambda _turn: _looked_at(worktree)
        turns = interleave(variants, rounds=7 if quick else 41, seconds=8 if quick else 60, warm=2)
    return summarise("unfinished", turns, size=FILES)


def _looked_at(worktree: os.PathLike[str]) -> Phases:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    work = unfinished_work(worktree)
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    if work:
        raise RuntimeError(f"{worktree} is not finished")
    return {TOTAL: wall / 1e6, CPU: cpu / 1e6}
