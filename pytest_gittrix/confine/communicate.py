"""Attends a running program: feeds and reads it, watches its time, and leaves nothing of it behind.

Programs that are confined by bubblewrap, or not at all, are started here; ``zygote_client`` has the others started.
"""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from pytest_gittrix.confine.meter import Meter
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.process_tree import MARK, POLL, AgentTree, process

_BLOCK: Final = 1 << 16
_MOST_IN_A_PIPE: Final = 1 << 20


class Started(Protocol):
    """A program that was started."""

    @property
    def news(self) -> int:
        """A descriptor that can be read when it may have ended."""
        ...

    @property
    def streams(self) -> Sequence[int]:
        """Our ends of its standard input, output and errors; who attends it closes them."""
        ...

    def hear(self) -> bool:
        """Whether it has ended; asked when there is news."""
        ...

    def leave(self, *, ended: bool) -> None:
        """See that nothing is left of it, whether it ended by itself or not."""
        ...

    def status(self) -> int:
        """Its status, or the negative number of the signal that ended it; asked once, when nothing is left of it."""
        ...


@dataclass(frozen=True, slots=True)
class Attended:
    """What came of it.

    Attributes:
        status: of the program; the negative number of the signal that ended it.
        stdout: its output.
        stderr: its errors.
        timed_out: whether it was ended because its time was over.
        truncated: whether there was more output, or more errors.
        limit: the limit that it passed, and was ended for, as far as it was measured here.
    """

    status: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    limit: str | None = None


def attend(started: Started, stdin: bytes, *, most: int, deadline: float | None, stop: int | None, meter: Meter | None = None) -> Attended:
    """Feed and read a program to its end, or to the end of its time; whatever interrupts this ends it.

    Args:
        started: the program.
        stdin: what it reads.
        most: bytes that are kept of each stream.
        deadline: when its time is over, in monotonic seconds; None for never.
        stop: a descriptor; as soon as it can be read, its time is over.
        meter: who measures it; None where its own attendant does, or nobody.
    """
    reading = _Reading(started, most, meter)
    ended = False
    try:
        ended = reading.until_it_ends(stdin, deadline, stop)
    finally:
        started.leave(ended=ended)
        reading.drain()
        for fd in reading.open:
            os.close(fd)
        status = started.status()
    out, err = (bytes(kept) for kept in reading.kept.values())
    return Attended(status, out, err, timed_out=not ended and reading.limit is None, truncated=reading.truncated, limit=reading.limit)


@dataclass
class _Reading:
    started: Started
    most: int
    meter: Meter | None = None
    limit: str | None = None
    open: list[int] = field(default_factory=list)
    kept: dict[int, bytearray] = field(default_factory=dict)
    truncated: bool = False

    def __post_init__(self) -> None:
        self.open = [*self.started.streams]
        self.kept = {fd: bytearray() for fd in self.open[1:]}

    def until_it_ends(self, stdin: bytes, deadline: float | None, stop: int | None) -> bool:
        """Feed and read it until it ends; False if its time is over before, or it passed a limit."""
        unsent = memoryview(stdin)
        feeding, news = self.open[0], self.started.news
        with selectors.DefaultSelector() as watch:
            for fd in (news, *self.kept, *([] if stop is None else [stop])):
                watch.register(fd, selectors.EVENT_READ)
            watch.register(feeding, selectors.EVENT_WRITE)
            for fd in self.open:
                os.set_blocking(fd, False)
            while True:
                rest = None if deadline is None else deadline - real_seconds()
                if rest is not None and rest <= 0:
                    return False
                if self.meter is not None:
                    self.limit = self.meter.passed()
                    if self.limit is not None:
                        return False
                    rest = self.meter.wait() if rest is None else min(rest, self.meter.wait())
                for key, _ in watch.select(rest):
                    if key.fd == news:
                        if self.started.hear():
                            return True
                    elif key.fd == stop:
                        return False
                    elif key.fd == feeding:
                        unsent = _fed(feeding, unsent)
                        if not unsent:
                            watch.unregister(feeding)
                            self.open.remove(feeding)
                            os.close(feeding)
                    elif self._read(key.fd) == b"":
                        watch.unregister(key.fd)

    def _read(self, fd: int) -> bytes | None:
        """What is there to be read of a stream; empty at its end, None if there is nothing yet."""
        try:
            data = os.read(fd, _BLOCK)
        except BlockingIOError:
            return None
        room = self.most - len(self.kept[fd])
        self.kept[fd] += data[:room]
        self.truncated = self.truncated or len(data) > room
        return data

    def drain(self) -> None:
        """What it wrote before it ended: no more than a pipe holds, since an escaped process may write for ever."""
        for fd in self.kept:
            with suppress(OSError):
                for _ in range(_MOST_IN_A_PIPE // _BLOCK):
                    if not self._read(fd):
                        break


def _fed(fd: int, unsent: memoryview) -> memoryview:
    """What is still to be sent; nothing if nobody reads any more."""
    try:
        return unsent[os.write(fd, unsent[:_BLOCK]) :] if unsent else unsent
    except BlockingIOError:
        return unsent
    except OSError:
        return memoryview(b"")


def end_tree_of(leader: Owner | None, mark: str | None = None) -> None:
    """Kill a process that leads a session, with everything that can be found of it.

    Args:
        leader: the process; one that is gone is nobody.
        mark: what all of it has in its environment.
    """
    tree = AgentTree(leader, mark=mark)
    if tree.look():
        tree.end(grace=0, poll=POLL)


@contextmanager
def pipes() -> Iterator[tuple[list[int], list[int]]]:
    """Standard input, output and errors of a program: our ends of them, and the program's, which are closed here when it has them."""
    with ExitStack() as held, ExitStack() as handed:
        ours, theirs = [], []
        for number in range(3):
            read, write = os.pipe()
            mine, its = (write, read) if number == 0 else (read, write)
            held.callback(os.close, mine)
            handed.callback(os.close, its)
            ours.append(mine)
            theirs.append(its)
        yield ours, theirs
        held.pop_all()


class Spawned:
    """A program that is a child of this process.

    Args:
        argv: what to execute.
        environment: all its variables.
        directory: where it starts.
        inherited: descriptors that it gets.
        mark: what it and all that it starts have in their environment, so that it is found; None if it ends that by itself.

    Raises:
        OSError: it cannot be executed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: dict[str, str],
        directory: str | os.PathLike[str],
        *,
        inherited: Sequence[int] = (),
        mark: str | None = None,
    ) -> None:
        self._mark = mark
        with pipes() as (self.streams, theirs):
            self._process = subprocess.Popen(
                argv,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                env={**environment, **({} if mark is None else {MARK: mark})},
                cwd=directory,
                pass_fds=inherited,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.news = os.pidfd_open(self.pid)

    def hear(self) -> bool:
        """Whether it has ended: there is no other news."""
        return True

    def leave(self, *, ended: bool) -> None:
        """Kill what there is of it. It is not waited for yet, so that its number is still its own, and names its session and group."""
        os.close(self.news)
        if self._mark is not None or not ended:
            seen = process(self._process.pid)
            end_tree_of(None if seen is None else replace(Owner.current(), pid=seen.pid, start_time=seen.start_time), self._mark)

    def status(self) -> int:
        """Its status, as ``Popen`` tells it."""
        return self._process.wait()
