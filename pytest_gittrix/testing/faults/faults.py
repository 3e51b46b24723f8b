"""What can go wrong for a program at one of its calls, and what came of it, as values.

Knows nothing of how a call is stopped or a fault played; `supervisor` and `warden` do.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gittrix.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Call:
    """A call that changes a file or directory on disk, or makes a change last.

    Attributes:
        index: its place in the order of the whole tree, from 1.
        pid: the thread that makes it.
        name: the system call, as in the manual ("openat", "renameat2").
        path: the absolute path it changes; of two (rename, link) the new one.
        size: bytes it asks to write, for the plain writes that can be cut short; None for every other call.
    """

    index: int
    pid: int
    name: str
    path: str | None
    size: int | None


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the whole tree before call ``at`` happens."""

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
    """Call ``at`` writes its first ``bytes`` bytes only, and says so. Does not fire at a call that is no plain write."""

    at: int
    bytes: int

    def __post_init__(self) -> None:
        _at_least("at", self.at, 1)
        _at_least("bytes", self.bytes, 0)


@dataclass(frozen=True, slots=True)
class TornKill:
    """Call ``at`` writes its first ``bytes`` bytes, then the whole tree is killed. Does not fire at a call that is no plain write."""

    at: int
    bytes: int

    def __post_init__(self) -> None:
        _at_least("at", self.at, 1)
        _at_least("bytes", self.bytes, 0)


Fault = Kill | Errno | ShortWrite | TornKill


@dataclass(frozen=True, slots=True)
class Run:
    """What a supervised program did.

    Attributes:
        exit_code: as in subprocess: negative for a signal of its own; None if it was killed by the supervisor.
        killed: whether the supervisor killed the tree, for the fault or for the time.
        calls: every counted call in order; after a kill the last is the one that did not happen.
        stdout: what the tree wrote to its standard output.
        stderr: what it wrote to its standard error, with the traceback of a function that raised.
        fired: the call the fault struck first; None if it never did.
        timed_out: whether the time was up.
    """

    exit_code: int | None
    killed: bool
    calls: list[Call]
    stdout: bytes
    stderr: bytes
    fired: Call | None
    timed_out: bool = False


def strikes(fault: Fault, call: Call) -> bool:
    """Whether ``fault`` strikes this call."""
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
