"""Contention: four processes promote into one branch, beside git's own commands that make the same commits under one lock.

``python -m benchmarks.contention --count 100000`` makes that many promotions while a rival commits to the branch with git, a sweeper ends
sessions and git tidies the repository, and then counts whether a commit was lost. It has no measurements.
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.measure import Measurement, scratch
from benchmarks.report import GIT
from benchmarks.sample import BRANCH, Sample
from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.record.eventlog.log import Durability

ENGINE: Final = "the engine"
PROCESSES: Final = 4
RATE: Final = "promotions/s"
_FILES: Final = 100
_NAMES: Final = 5
"""How many files a process writes in turn."""
_RIVALS_PAUSE, _SWEEPERS_PAUSE = 0.05, 0.2
_TIDY_EVERY: Final = 200
_TIMEOUT: Final = 600.0


def contention(*, quick: bool = False) -> list[Measurement]:
    """Promotions a second of four processes, for both durabilities, in memory."""
    times, rounds = (10, 2) if quick else (60, 5)
    found = []
    for durability in ("fast", "full"):
        rates: dict[str, list[float]] = {ENGINE: [], GIT: []}
        for number in range(rounds):
            for name in sorted(rates, reverse=bool(number % 2)):
                rates[name].append(_rate(name, durability, times))
        for name, measured in rates.items():
            middle = sorted(measured)[len(measured) // 2]
            found.append(Measurement("contention", name, durability, PROCESSES, middle, max(measured), rounds, RATE))
    return found


def _rate(name: str, durability: str, times: int) -> float:
    with scratch() as root:
        _prepare(root)
        arguments = [(name, str(root), durability, str(number), str(times)) for number in range(PROCESSES)]
        with _workers(arguments) as workers:
            began = time.perf_counter()
            _wait_for(workers)
            took = time.perf_counter() - began
        promoted = _promoted(root)
        if len(promoted) != PROCESSES * times or not promoted <= _commits(root):
            raise AssertionError("a promotion was lost")
        return PROCESSES * times / took


def _prepare(root: Path) -> None:
    Sample.make(root / "sample.git", _FILES).copy(root / "durable.git")


@contextmanager
def _workers(arguments: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that begin to work at once, when all of them are ready; those that still run at the end are killed."""
    command = [sys.executable, "-m", "benchmarks.contention", "--worker"]
    workers = [
        subprocess.Popen([*command, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
        for given in arguments
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise AssertionError("a worker could not begin")
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _wait_for(workers: Sequence[subprocess.Popen[str]], timeout: float = _TIMEOUT) -> None:
    end = time.monotonic() + timeout
    for worker in workers:
        if worker.wait(max(end - time.monotonic(), 0.1)):
            raise AssertionError("a worker failed")


def _promoted(root: Path) -> set[str]:
    """The commits that workers say they have promoted."""
    return {sha for path in root.glob("promoted-*") for sha in path.read_text().split()}


def _commits(root: Path) -> set[str]:
    return set(_git(root, "rev-list", BRANCH).split())


def _git(root: Path, *arguments: str, index: str = "index", data: str = "") -> str:
    person = {f"GIT_{role}_{fact}": "bench@example.com" for role in ("AUTHOR", "COMMITTER") for fact in ("NAME", "EMAIL")}
    env = hermetic_env() | person | {"GIT_INDEX_FILE": str(root / index)}
    command = [git_binary(), "-C", str(root / "durable.git"), *arguments]
    return subprocess.run(command, env=env, check=True, capture_output=True, input=data, text=True).stdout.strip()


def _commit(root: Path, durability: Durability, who: str, number: int) -> str:
    """Commit a file by git's commands, under a lock; returns the commit."""
    sync = ("-c", f"core.fsync={'committed' if durability == 'full' else 'none'}")
    git = partial(_git, root, *sync, index=f"index-{who}")
    blob = git("hash-object", "-w", "--stdin", data=f"{who} {number}\n")
    head = git("rev-parse", BRANCH)
    git("read-tree", head)
    git("update-index", "--add", "--cacheinfo", f"100644,{blob},{who}/{number % _NAMES}")
    commit = git("commit-tree", git("write-tree"), "-p", head, "-m", "promote")
    git("update-ref", BRANCH, commit, head)
    return commit


@contextmanager
def _engine(root: Path, durability: Durability) -> Iterator[GitTrix]:
    durable = LocalDurable(root / "durable.git", sync=durability == "full", author=("Bench", "bench@example.com"))
    with GitTrix(
        durable,
        LocalEphemeral("lazy"),
        store=root / "sessions",
        home=root / "home",
        durability=durability,
        strategy="commit",
        sweep_interval=None,
    ) as engine:
        yield engine


def _promote(root: Path, durability: Durability, who: str, times: int, ready: Callable[[], object]) -> None:
    with _engine(root, durability) as engine, open(root / f"promoted-{who}", "a") as promoted:
        ready()
        for number in range(times):
            session = engine.start_session("promote")
            session.write(f"{who}/{number % _NAMES}", f"{who} {number}\n")
            promoted.write(f"{session.promote().sha}\n")


def _commit_under_a_lock(root: Path, durability: Durability, who: str, times: int, ready: Callable[[], object]) -> None:
    with open(root / "lock", "w") as lock, open(root / f"promoted-{who}", "a") as promoted:
        ready()
        for number in range(times):
            fcntl.flock(lock, fcntl.LOCK_EX)
            promoted.write(f"{_commit(root, durability, who, number)}\n")
            fcntl.flock(lock, fcntl.LOCK_UN)


@contextmanager
def _turn(root: Path) -> Iterator[None]:
    """A block of the rival or of git's tidying, of which one runs at a time: ``gc --prune=now`` takes the objects of a commit that git is
    making. Those of a promotion are protected, so the engine takes no such turn.
    """
    with open(root / "turn", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _be_the_rival(root: Path, _durability: Durability, who: str, _times: int, ready: Callable[[], object]) -> None:
    """Commit as a person does whom nobody waits for, except while git tidies. Git refuses where the branch was moved meanwhile."""
    path = root / f"promoted-{who}"
    path.touch()
    ready()
    for number in count():
        change = f"M 100644 inline {who}/{number % _NAMES}\ndata <<end\n{number}\nend\n\nget-mark :1\n"
        commit = f"commit {BRANCH}\nmark :1\ncommitter {who} <bench@example.com> now\ndata 0\nfrom {BRANCH}^0\n{change}"
        with suppress(subprocess.CalledProcessError), path.open("a") as promoted, _turn(root):
            promoted.write(f"{_git(root, 'fast-import', '--quiet', '--date-format=now', data=commit)}\n")
        time.sleep(_RIVALS_PAUSE)


def _sweep(root: Path, durability: Durability, _who: str, _times: int, ready: Callable[[], object]) -> None:
    """Leave sessions behind, end them by their age, and have git tidy the repository as it does for a person."""
    with _engine(root, durability) as engine:
        ready()
        for number in count(1):
            engine.start_session("left behind", eviction="1s")
            engine.sweep()
            if number % _TIDY_EVERY == 0:
                with suppress(subprocess.CalledProcessError), _turn(root):
                    _git(root, "gc", "-q", "--prune=now")
            time.sleep(_SWEEPERS_PAUSE)


_WORKERS: Final = {ENGINE: _promote, GIT: _commit_under_a_lock, "rival": _be_the_rival, "sweeper": _sweep}


def main() -> int:
    """Make promotions beside a rival and a sweeper, and count them; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contention", description="Promote beside a rival, and count what is lost.")
    parser.add_argument("--count", type=int, default=1000, help="promotions of all four processes together (default: %(default)s)")
    parser.add_argument("--durability", choices=("fast", "full"), default="full", help="of the engines (default: %(default)s)")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker is not None:
        name, root, durability, who, times = asked.worker
        _WORKERS[name](Path(root), durability, who, int(times), _begin_together)
        return 0
    return _count_losses(asked.count // PROCESSES, asked.durability)


def _begin_together() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _count_losses(times: int, durability: str) -> int:
    with scratch() as root:
        _prepare(root)
        promoters = [(ENGINE, str(root), durability, str(number), str(times)) for number in range(PROCESSES)]
        others = [(name, str(root), durability, name, "0") for name in ("rival", "sweeper")]
        with _workers([*promoters, *others]) as workers:
            began = time.perf_counter()
            _wait_for(workers[:PROCESSES], timeout=_TIMEOUT + PROCESSES * times)
            took = time.perf_counter() - began
        _git(root, "fsck", "--strict", "--connectivity-only")
        reported, commits = _promoted(root), _commits(root)
        rivals = len((root / "promoted-rival").read_text().split())
        lost = len(reported - commits) + PROCESSES * times + rivals - len(reported)
        print(f"{PROCESSES * times:,} promotions, {rivals:,} commits of a rival, {took:.0f} s: {lost} lost")
        return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
