"""Owners that are stopped, or go silent, while others want their lease: real processes, and never two of them at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pytest_gittrix.errors import EvictionRace
from pytest_gittrix.os_level.lease import Lease

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals that stop a process")

# Holds the leases of some files; then says, for each line it reads, whether it still has each, and lets go when told to.
HOLDER = """
    import sys
    from pytest_gittrix.errors import LeaseLost
    from pytest_gittrix.os_level.lease import Lease

    def has(lease):
        try:
            lease.check()
        except LeaseLost as problem:
            assert problem.code == "LEASE_LOST"
            return "lost" if lease.lost else "free"
        return "held"

    interval, paths = float(sys.argv[1]), sys.argv[2:]
    leases = [Lease(path, stale_after=60).acquire() for path in paths]
    with leases[0].beating(interval):
        print("ready", flush=True)
        for line in sys.stdin:
            print(*map(has, leases), flush=True)
            if line == "release\\n":
                for lease in leases:
                    lease.release()
"""

# Takes each lease it can get without waiting, breaking stale ones, and keeps them; then says which.
BREAKER = """
    import sys
    from pytest_gittrix.errors import EvictionRace
    from pytest_gittrix.os_level.lease import Lease

    leases = [Lease(path, wait=0, stale_after=60, on_stale="break") for path in sys.argv[1:]]
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    for number, lease in enumerate(leases):
        try:
            won.append((number, lease.acquire()))
        except EvictionRace:
            pass
    assert not any(lease.lost for _, lease in won)
    print(*[number for number, _ in won], flush=True)
    sys.stdin.readline()
"""

# Takes one lease again and again; each time it works alone for a moment and then goes silent without letting go.
SILENT = """
    import os, sys
    from pytest_gittrix.os_level.lease import Lease

    path, name, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    marker = path + ".at-work"
    print("ready", flush=True)
    sys.stdin.readline()
    kept = []
    for _ in range(times):
        lease = Lease(path, wait=60, stale_after=60, on_stale="break").acquire()
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        with open(path + ".journal", "a") as journal:
            journal.write(name)
        lease.check()
        os.unlink(marker)
        kept.append(lease)
        os.utime(lease._fd, (0, 0))
"""


@contextmanager
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a script, once it is ready; it is killed at the end if it still runs."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert hear(child) == "ready"
            yield child
        finally:
            child.kill()


def say(child: subprocess.Popen[str], line: str) -> None:
    """Write a line to a process."""
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def hear(child: subprocess.Popen[str]) -> str:
    """The next line a process prints."""
    assert child.stdout is not None
    return child.stdout.readline().removesuffix("\n")


def stop(child: subprocess.Popen[str]) -> None:
    """Stop a process, and wait until it is."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


def silent(*paths: Path) -> None:
    """Make the last heartbeats so old that nobody doubts."""
    for path in paths:
        os.utime(path, (0, 0))


def test_a_stopped_owner_loses_its_lease_and_knows_it_when_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with running(HOLDER, 0.02, path) as owner:
        stop(owner)
        assert Lease(path, stale_after=60).state() == "active"
        silent(path)
        assert Lease(path, stale_after=60).state() == "stale"
        with Lease(path, wait=0, stale_after=60, on_stale="break") as successor:
            owner.send_signal(signal.SIGCONT)
            say(owner, "well?")
            assert hear(owner) == "lost"
            say(owner, "release")
            assert hear(owner) == "lost"
            say(owner, "and now?")
            assert hear(owner) == "free"
            successor.check()
            with pytest.raises(EvictionRace, match="did not let go"):
                Lease(path, wait=0, stale_after=60, on_stale="break").acquire()
    (file,) = (tmp_path / "releases").iterdir()
    assert json.loads(file.read_bytes())["owner"]["pid"] == owner.pid


def test_a_stopped_owner_blocks_who_was_not_told_to_break_and_keeps_its_lease(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with running(HOLDER, 0.02, path) as owner:
        stop(owner)
        silent(path)
        with pytest.raises(EvictionRace, match=f"is stale: process {owner.pid} on "):
            Lease(path, wait=0, stale_after=60).acquire()
        owner.send_signal(signal.SIGCONT)
        say(owner, "well?")
        assert hear(owner) == "held"


def test_an_owner_stopped_for_real_becomes_stale_by_itself(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with running(HOLDER, 0.02, path) as owner:
        stop(owner)
        with Lease(path, wait=60, stale_after=0.3, on_stale="break"):
            owner.send_signal(signal.SIGCONT)
            say(owner, "well?")
            assert hear(owner) == "lost"


def test_a_lease_taken_away_by_hand_is_lost_to_its_stopped_owner(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with running(HOLDER, 0.02, path) as owner:
        stop(owner)
        silent(path)
        assert Lease(path, stale_after=60).force_release("It was stopped.", tmp_path / "evidence")
        owner.send_signal(signal.SIGCONT)
        say(owner, "well?")
        assert hear(owner) == "lost"


def test_of_many_that_break_one_stale_lease_exactly_one_wins(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.lock" for number in range(30)]
    with running(HOLDER, 50, *paths) as owner, ExitStack() as all_running:
        stop(owner)
        silent(*paths)
        breakers = [all_running.enter_context(running(BREAKER, *paths)) for _ in range(6)]
        for breaker in breakers:
            say(breaker, "go")
        won = sorted(int(number) for breaker in breakers for number in hear(breaker).split())
        assert won == list(range(len(paths)))
        owner.send_signal(signal.SIGCONT)
        say(owner, "well?")
        assert hear(owner).split() == ["lost"] * len(paths)
        releases = [json.loads(file.read_bytes()) for file in (tmp_path / "releases").iterdir()]
        assert sorted(one["lease"] for one in releases) == sorted(map(str, paths))
        assert {one["owner"]["pid"] for one in releases} == {owner.pid}


def test_owners_that_go_silent_one_after_the_other_never_work_at_once(tmp_path: Path) -> None:
    path, times = tmp_path / ".lock", 25
    with ExitStack() as all_running:
        children = [all_running.enter_context(running(SILENT, path, name, times)) for name in "abcd"]
        for child in children:
            say(child, "go")
        for child in children:
            child.communicate(timeout=120)
            assert child.returncode == 0
    assert sorted((tmp_path / ".lock.journal").read_text()) == sorted("abcd" * times)
    takings = 4 * times
    # A process that has ended keeps nothing, so what its last lease left is free.
    assert takings - 4 <= len(os.listdir(tmp_path / "releases")) <= takings - 1
