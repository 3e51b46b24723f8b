"""Faults that a program can meet at one of its calls, and the result of a run, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gittrix.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class FileCall:
    """A call that changes a file or directory on disk, or makes a change last.

    Attributes:
        index: its number in the order of the whole process tree, from 1.
        pid: the thread that makes the call.
        name: the system call, as in the manual ("openat", "renameat2").
        path: the absolute path that it changes; of two (rename, link) the new one.
        size: how many bytes a plain write asks to write, which can be cut short; None for every other call.
    """

    index: int
    pid: int
    name: str
    path: str | None
    size: int | None


@dataclass(frozen=True, slots=True)
class KillAt:
    """SIGKILL the whole process tree before call ``at`` happens."""

    at: int

    def __post_init__(self) -> None:
        _at_least("at", self.at, 1)


@dataclass(frozen=True, slots=True)
class Errno:
    """Call ``at`` fails with ``errno`` and does not happen; when ``sticky``, so does every later one."""

    at: int
    errno: int
    sticky: bool = False

    def __post_init__(self) -> None:
        _at_least("at", self.at, 1)
        _at_least("errno", self.errno, 1)


@dataclass(frozen=True, slots=True)
class ShortWrite:
    """Call ``at`` writes only its first ``bytes`` bytes and returns that number. Fires at plain writes only."""

    at: int
    bytes: int

    def __post_init__(self) -> None:
        _at_least("at", self.at, 1)
        _at_least("bytes", self.bytes, 0)


@dataclass(frozen=True, slots=True)
class TornKill:
    """Call ``at`` writes its first ``bytes`` bytes, then the whole process tree is killed. Fires at plain writes only."""

    at: int
    bytes: int

    def __post_init__(self) -> None:
        _at_least("at", self.at, 1)
        _at_least("bytes", self.bytes, 0)


Fault = KillAt | Errno | ShortWrite | TornKill


@dataclass(frozen=True, slots=True)
class SupervisedRun:
    """What a supervised program did.

    Attributes:
        exit_code: as in subprocess: negative for a signal; None if the supervisor killed the program.
        killed: whether the supervisor killed the process tree, because of the fault or of the time limit.
        calls: every counted call in order; after a kill the last one did not happen.
        stdout: what the process tree wrote to its standard output.
        stderr: what it wrote to its standard error, with the traceback of a function that raised.
        fired: the first call at which the fault fired; None if it never did.
        timed_out: whether the time limit was reached.
    """

    exit_code: int | None
    killed: bool
    calls: list[FileCall]
    stdout: bytes
    stderr: bytes
    fired: FileCall | None
    timed_out: bool = False


def fires_at(fault: Fault, call: FileCall) -> bool:
    """Whether a fault fires at a call."""
    match fault:
        case Errno(at=at, sticky=True):
            return call.index >= at
        case ShortWrite(at=at) | TornKill(at=at):
            return call.index == at and call.size is not None
        case _:
            return call.index == fault.at


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidInput(f"{name} is {value}; it must be {least} or more")
