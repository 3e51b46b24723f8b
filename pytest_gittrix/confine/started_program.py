"""Programs that were started: their standard streams, signals to them, and their end, with nothing of them left behind.

Programs that are confined by bubblewrap, or not at all, are children of this process; ``zygote_client`` has the others started. ``running``
attends them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from pytest_gittrix.confine.kernel.meter import Meter
from pytest_gittrix.confine.limits import Limit
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.proc import children
from pytest_gittrix.os_level.process_tree import MARK, ProcessTree, process, signal_process

_LARGEST_TERMINAL: Final = (1 << 16) - 1
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that can be sent to a program at every level; killing it is something else."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What the standard streams of a program are.

    Attributes:
        merged: whether its errors come on its output, in the order in which both were written.
        terminal: the rows and columns of the terminal that all three are; None for pipes.
    """

    merged: bool = False
    terminal: tuple[int, int] | None = None


class StartedProgram(Protocol):
    """A program that was started."""

    @property
    def news(self) -> int:
        """A descriptor that can be read when it may have ended."""
        ...

    @property
    def streams(self) -> Sequence[int]:
        """Our ends of its standard input, its output, and its errors if they are apart; who attends it closes them."""
        ...

    def hear(self) -> bool:
        """Whether it has ended; asked when there is news."""
        ...

    def signal(self, number: int) -> None:
        """Send it one of ``SIGNALS``; one that has ended gets none."""
        ...

    def leave(self, *, ended: bool) -> None:
        """See that nothing is left of it, whether it ended by itself or not."""
        ...

    def status(self) -> int:
        """Its status, or the negative number of the signal that ended it; asked once, when nothing is left of it."""
        ...


def check_size(size: tuple[int, int]) -> None:
    """Judge the rows and columns of a terminal. Raises InvalidInput if there is no such size."""
    if not all(isinstance(number, int) and 0 < number <= _LARGEST_TERMINAL for number in size):
        raise InvalidInput(f"{size!r} is no size of a terminal.", fix=f"Use rows and columns from 1 to {_LARGEST_TERMINAL}.")


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Say how large a terminal is; the kernel tells the programs on it."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("=4H", rows, columns, 0, 0))


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended.

    Attributes:
        code: its status; None if a signal ended it. 127: there is no such program, 126: it cannot be executed.
        signal: the number of the signal that ended it. bubblewrap also reports one for a status of 128 and more, which is what a shell
            gives for a child that a signal ended.
        stdout: its output, as far as it was kept and not read before.
        stderr: standard error; empty if merged into stdout.
        timed_out: whether it was killed with everything it started, because its time was over or a caller asked for that.
        truncated: whether it wrote more than was asked for, and only a part of that is here.
        network: what the gateway decided, a line of JSON each, for a network that is a list.
        limit: the limit that it passed, and was killed for with everything it started; None if it passed none.
        ended: how its session ended while it ran (``expired`` or ``discarded``): it got SIGTERM for that, and what was left of it a few
            seconds later was killed. None if the session goes on, or was promoted.
        lost: what of its confinement ended before it did, such as a jail's first process that the kernel killed for want of memory. How
            the program would have ended is unknown then. None if the confinement stayed until its end.
    """

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    network: tuple[str, ...] = ()
    limit: Limit | None = None
    ended: str | None = None
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """A program that was started, for who attends it.

    Attributes:
        started: the program.
        conclude: makes the account of its end that is given, of a first one and the beginning of its errors; it may raise.
        meter: who measures it; None if its own attendant does, or it is not measured.
        limit: names the limit that its own attendant ended it for.
    """

    started: StartedProgram
    conclude: Callable[[Finished, bytes], Finished]
    meter: Meter | None = None
    limit: Callable[[], str | None] = lambda: None


class NeverStarted(Exception):
    """There is no such program, or it cannot be executed: it ended before it began."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(finished.stderr)
        self.finished = finished


@contextmanager
def opened(wanted: Streams) -> Iterator[tuple[list[int], list[int]]]:
    """The standard streams of a program: our ends, as ``StartedProgram.streams`` has them, and its three, which are closed afterwards."""
    with ExitStack() as held, ExitStack() as handed:

        def keep(fd: int, ends: list[int], stack: ExitStack) -> None:
            stack.callback(os.close, fd)
            ends.append(fd)

        ours: list[int] = []
        theirs: list[int] = []
        if wanted.terminal is not None:
            master, slave = os.openpty()
            keep(master, ours, held)
            keep(slave, theirs, handed)
            set_size(slave, *wanted.terminal)
            keep(os.dup(master), ours, held)
        else:
            for number in range(2 if wanted.merged else 3):
                read, write = os.pipe()
                keep(read if number else write, ours, held)
                keep(write if number else read, theirs, handed)
        while len(theirs) < 3:
            keep(os.dup(theirs[-1]), theirs, handed)
        yield ours, theirs
        held.pop_all()


def with_terminal(argv: Sequence[str]) -> list[str]:
    """A command line that gives a program its standard input as its controlling terminal, by which it hears Ctrl-C.

    Raises:
        CapabilityMissing: this system has no ``setsid`` of util-linux or BusyBox.
    """
    setsid = shutil.which("setsid", path="/usr/bin:/bin")
    if setsid is None:
        raise CapabilityMissing(
            "There is no program setsid in /usr/bin or /bin.",
            why="It gives a program its controlling terminal at off and by bubblewrap.",
            fix="Install util-linux.",
            opt_out="Use pipes (pty=False), a guard, or a jail by namespaces.",
        )
    return [setsid, "-c", *argv]


class Spawned:
    """A program that is a child of this process.

    Args:
        argv: what to execute.
        environment: all its variables.
        directory: where it starts.
        streams: what its standard streams are.
        inherited: descriptors that it gets.
        mark: what it and all that it starts have in their environment, so that it is found; None if it ends that by itself.
        leads: whether it is made the leader of a session here, and does not make itself one.

    Raises:
        OSError: it cannot be executed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        directory: str | os.PathLike[str],
        *,
        streams: Streams,
        inherited: Sequence[int] = (),
        mark: str | None = None,
        leads: bool = True,
    ) -> None:
        self._mark = mark
        with opened(streams) as (self.streams, theirs):
            self._process = subprocess.Popen(
                argv,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                env={**environment, **({} if mark is None else {MARK: mark})},
                cwd=directory,
                pass_fds=inherited,
                start_new_session=leads,
            )
        self.pid = self._process.pid
        self.news = os.pidfd_open(self.pid)

    def hear(self) -> bool:
        """Whether it has ended: there is no other news."""
        return True

    def signal(self, number: int) -> None:
        """Send it a signal; its number is its own until it has been waited for."""
        signal.pidfd_send_signal(self.news, number)

    def leave(self, *, ended: bool) -> None:
        """Kill what there is of it. It is not waited for yet, so that its number is still its own, and names its session and group."""
        os.close(self.news)
        if self._mark is not None or not ended:
            seen = process(self._process.pid)
            ProcessTree(None if seen is None else Owner.here(*seen.identity), mark=self._mark).end()

    def status(self) -> int:
        """Its status, as ``Popen`` tells it."""
        return self._process.wait()


def signal_child(parent: int, number: int) -> None:
    """Send a signal to the child of a process, if it has one."""
    for pid in children(parent):
        seen = process(pid)
        if seen is not None and seen.parent == parent:
            signal_process(seen, number)
