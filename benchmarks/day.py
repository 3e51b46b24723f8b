"""A day of work: promotions into several repositories by one engine, and whether what that uses stays the same.

``python -m benchmarks.day`` takes 24 simulated hours and 400 promotions into six repositories. After some of the hours it prints a line:
the size of the store, descriptors, memory and packs, and what a cycle took. It has no measurements.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

from benchmarks.measure import scratch
from benchmarks.report import number, table
from benchmarks.sample import Copy, Sample
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.record.store.listing import ID
from pytest_gittrix.workspaces.kinds import WorkspaceKind

HOURS: Final = (1, 6, 12, 24)
HEAD: Final = ("hour", "promotions", "records MB", "the rest MB", "descriptors", "memory MB", "packs", "seeds", "cycle ms")
_DAY: Final = timedelta(hours=24)
_KINDS: Final[tuple[WorkspaceKind, ...]] = ("clone", "lazy")
_LEFT_BEHIND_EVERY: Final = 10
_WRITES: Final = 5


def day(root: Path, repositories: int, promotions: int, files: int, *, tidied: bool) -> Iterator[tuple[str, ...]]:
    """Work for a day; gives a row of the table after each of ``HOURS``."""
    sample = Sample.make(root / "sample.git", files)
    copies = [sample.copy(root / f"durable{number}.git") for number in range(repositories)]
    clock = FrozenClock(separate_files=False)
    engine = GitTrix(None, LocalEphemeral(spares=1), store=root / "sessions", home=root / "home", clock=clock, strategy="commit")
    took: list[float] = []
    with closing(engine.init()):
        for turn in range(promotions):
            took.append(_cycle(engine, sample, copies[turn % repositories], turn))
            before = _hour(turn, promotions)
            clock.advance(_DAY / promotions)
            if _hour(turn + 1, promotions) == before:
                continue
            if tidied:
                _tidy(copies)
            if before + 1 in HOURS:
                engine.services.resources.spares.wait()
                engine.services.resources.trash.wait()
                yield _row(before + 1, turn + 1, root / "sessions", copies, took)
                took.clear()


def _hour(turn: int, promotions: int) -> int:
    return turn * 24 // promotions


def _cycle(engine: GitTrix, sample: Sample, durable: Copy, turn: int) -> float:
    """Start a session, write, look and promote; gives the milliseconds. Now and then another session is left to the sweep."""
    if turn % _LEFT_BEHIND_EVERY == 0:
        left = engine.start_session("left behind", durable_path=durable.directory, eviction="30m")
        left.write("left.txt", "left\n")
    began = time.perf_counter()
    session = engine.start_session("work", durable_path=durable.directory, workspace=_KINDS[turn // 2 % len(_KINDS)])
    for path, data in sample.writes(turn, _WRITES).items():
        session.write(path, data)
    session.promote(session.review())
    return (time.perf_counter() - began) * 1000


def _tidy(copies: list[Copy]) -> None:
    """What a person's ordinary commands do by themselves: git packs a repository anew when it has more than fifty packs."""
    for copy in copies:
        run_git(["-C", str(copy.directory), "-c", "gc.auto=6700", "-c", "gc.autoDetach=false", "gc", "--auto", "-q"], env=hermetic_env())


def _row(hour: int, promotions: int, store: Path, copies: list[Copy], took: list[float]) -> tuple[str, ...]:
    records = sum(_bytes(path) for path in store.iterdir() if ID.fullmatch(path.name))
    most = max(len([*(copy.directory / "objects" / "pack").glob("*.pack")]) for copy in copies)
    seeds = len([*(store / ".seeds").iterdir()])
    megabytes = [records / 1e6, (_bytes(store) - records) / 1e6]
    counts = [len(os.listdir("/proc/self/fd")), _memory(), most, seeds]
    return (str(hour), str(promotions), *map(number, megabytes), *map(str, counts), number(statistics.median(took)))


def _bytes(path: Path) -> int:
    """What a file or a directory takes on the disk; a file that has several names there counts once."""
    found = {}
    for each in [path, *path.rglob("*")]:
        status = each.lstat()
        found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _memory() -> int:
    """The megabytes of memory that this process has."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].removesuffix("kB")) * 1024 // 1_000_000


def main() -> int:
    """Work for a day, and print its table; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.day", description="Work for a simulated day; print what it uses.")
    parser.add_argument("--repositories", type=int, default=6, metavar="N", help="durable repositories (default: %(default)s)")
    parser.add_argument("--promotions", type=int, default=400, metavar="N", help="of the whole day (default: %(default)s)")
    parser.add_argument("--files", type=int, default=1000, metavar="N", help="of each repository (default: %(default)s)")
    parser.add_argument("--untidied", action="store_true", help="nobody uses git in the repositories, so each promotion's pack stays")
    asked = parser.parse_args()
    with scratch() as root:
        rows = [*day(root, asked.repositories, asked.promotions, asked.files, tidied=not asked.untidied)]
    print(table(HEAD, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
