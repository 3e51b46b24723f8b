"""Failures of the machine, which say nothing about an agent: a sandbox that died, memory that ran out, a disk that is full."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from pytest_gittrix.confine.levels import lets_signals_out
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.files import PUBLIC, write_file
from pytest_gittrix.os_level.proc import oom_kills

_PROBE: Final = 1 << 16
_KILLED: Final = 128 + signal.SIGKILL


def require_sandbox(done: Finished, level: str, kills_before: int) -> None:
    """See that a program came to an end of its own, and not to that of its sandbox.

    Args:
        done: how the program ended.
        level: its level of confinement.
        kills_before: what ``oom_kills`` gave before the program began.

    Raises:
        AdapterUnavailable: its sandbox was ended from outside, or the kernel killed the program for want of memory.
    """
    # Where signals get out of a guard, the program itself could have ended what attends it.
    if done.lost is not None and not (level == "guard" and lets_signals_out()):
        raise AdapterUnavailable(
            f"The sandbox of a program died: {done.lost}{_for_memory(kills_before)}.",
            why="How the program would have ended is unknown.",
            fix="See in the kernel's log what ended it, and run the sample again.",
        )
    ended_itself = done.timed_out or done.limit is not None or done.ended is not None
    # A shell ends with the second status where what it started was killed.
    was_killed = done.signal == signal.SIGKILL or done.code == _KILLED
    if was_killed and not ended_itself and oom_kills() > kills_before:
        raise AdapterUnavailable(
            "The machine ran out of memory: a program was killed while the kernel killed for want of it.",
            why="Whether the program took the memory, or something else did, is unknown.",
            fix="Give a limit, such as --limit memory=2GB: a program that takes more fails by its own doing.",
        )


def _for_memory(kills_before: int) -> str:
    return ", while the kernel killed for want of memory" if oom_kills() > kills_before else ""


def full_disk(directory: Path) -> str:
    """Why nothing can be written to a directory, tried by writing; empty if it can."""
    probe = directory / f".probe-{secrets.token_hex(4)}"
    try:
        write_file(str(probe), b"\0" * _PROBE, mode=PUBLIC, sync=True)
        probe.unlink()
    except OSError as problem:
        with suppress(OSError):
            probe.unlink()
        return os.strerror(problem.errno) if problem.errno else str(problem)
    return ""


def has_no_room(directory: Path) -> bool:
    """Whether the disk of a directory looks full, without writing to it."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _PROBE or (found.f_files > 0 and found.f_favail == 0)


def require_room(directory: Path) -> None:
    """See that a directory can be written: where it cannot, a sample that failed says nothing about its agent.

    Raises:
        AdapterUnavailable: it cannot.
    """
    why = full_disk(directory)
    if why:
        raise AdapterUnavailable(f"{directory} cannot be written: {why}.", fix="Make room, or give another --scratch.")
