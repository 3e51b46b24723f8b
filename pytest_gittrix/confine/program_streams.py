"""The streams of a program that runs: its output is kept until it is read, its input until the program takes it.

A thread and a task wait for them alike, by ``Changes``.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, TypeVar

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.monotonic import real_seconds

KeptOutput = Literal["unread", "first", "last"]

BLOCK: Final = 1 << 16
_BEGINNING: Final = 1 << 12
_END_OF_INPUT: Final = b"\x04"

T = TypeVar("T")


class Changes:
    """What threads and tasks wait for. As a context manager it is the lock under which all of a program's state changes."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._listeners: set[Callable[[], object]] = set()

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._condition.release()

    def announce(self) -> None:
        """Have all that wait look for their answer; the caller holds the lock."""
        self._condition.notify_all()
        for ring in self._listeners:
            ring()

    def until(self, answer: Callable[[], T | None], timeout: float | None = None) -> T:
        """Wait until there is an answer that is not None; it is asked for at each change. Raises TimeoutError."""
        deadline = None if timeout is None else real_seconds() + timeout
        with self._condition:
            while (found := answer()) is None:
                rest = None if deadline is None else deadline - real_seconds()
                if rest is not None and rest <= 0:
                    raise TimeoutError(f"Nothing came of the program within {timeout:g} s.")
                self._condition.wait(rest)
            return found

    async def until_async(self, answer: Callable[[], T | None]) -> T:
        """As ``until``, in a task."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(news.set)

        with self:
            self._listeners.add(ring)
        try:
            while True:
                news.clear()
                with self:
                    found = answer()
                if found is not None:
                    return found
                await news.wait()
        finally:
            with self:
                self._listeners.discard(ring)


class Output:
    """What a program writes on one stream: kept until it is read. Iterating over it gives the pieces as they come.

    Attributes:
        truncated: whether something was thrown away, because more came than is kept.
        beginning: the first bytes that came, read or not.
    """

    truncated = False
    beginning = b""

    def __init__(self, changes: Changes, wake: Callable[[], object], limit: int, keep: KeptOutput) -> None:
        self._changes = changes
        self._wake = wake
        self._limit = limit
        self._keep = keep
        self._kept = bytearray()
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read():
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read_async():
            yield piece

    def read(self, timeout: float | None = None) -> bytes:
        """Take everything that is kept, and wait until there is something.

        Args:
            timeout: real seconds to wait; None for ever.

        Returns:
            The bytes; empty at the end of the stream.

        Raises:
            TimeoutError: nothing came in that time.
        """
        return self._changes.until(self._taken, timeout)

    async def read_async(self) -> bytes:
        """As ``read``, for asyncio."""
        return await self._changes.until_async(self._taken)

    def peek(self) -> bytes:
        """What is kept, without taking it."""
        with self._changes:
            return bytes(self._kept)

    def _taken(self) -> bytes | None:
        if not self._kept:
            return b"" if self._ended else None
        data, was_full = bytes(self._kept), self.full
        self._kept.clear()
        if was_full:
            self._wake()
        return data

    @property
    def full(self) -> bool:
        """Whether the program has to wait until somebody reads."""
        return self._keep == "unread" and len(self._kept) >= self._limit

    def add(self, data: bytes) -> None:
        """Keep what came, as far as there is room."""
        self.beginning += data[: _BEGINNING - len(self.beginning)]
        if self._keep == "first":
            room = self._limit - len(self._kept)
            self.truncated = self.truncated or len(data) > room
            data = data[:room]
        self._kept += data
        if self._keep == "last" and len(self._kept) > self._limit:
            self.truncated = True
            del self._kept[: len(self._kept) - self._limit]

    @property
    def at_end(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True


class Input:
    """What a program is to read on its standard input: kept until it is written. All methods are called under the lock.

    Args:
        first: what it reads at first; None if more is to be written later.
        terminal: whether it is a terminal.

    Attributes:
        descriptor: our end; None before the program was started, and once it has all it will get.
        unread: whether the program has closed its end, so that what is written is dropped.
    """

    def __init__(self, first: bytes | None, *, terminal: bool) -> None:
        self.descriptor: int | None = None
        self.unread = False
        self._terminal = terminal
        self._unsent = bytearray(first or b"")
        self._last = bytes(self._unsent[-1:])
        self._ends = first is not None and not terminal
        if first is not None and terminal:
            self.end()

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._unsent)

    def add(self, data: bytes, *, over: bool) -> None:
        """Keep bytes to be written, or drop them if the program has closed its end. Raises InvalidInput after ``end``, unless ``over``."""
        if self._ends and not over:
            raise InvalidInput("The standard input of the program is closed.", fix="Write before close_stdin(), and start without stdin=.")
        if data and not self.unread:
            self._unsent += data
            self._last = bytes(data[-1:])

    def end(self) -> None:
        """End it, behind what was written; on a terminal as Ctrl-D does."""
        if not self._terminal:
            self._ends = True
            return
        # At the beginning of a line the byte ends the input; elsewhere it only passes on what there is of the line.
        self._unsent += _END_OF_INPUT if self._last in (b"", b"\n", b"\r", _END_OF_INPUT) else _END_OF_INPUT * 2
        self._last = _END_OF_INPUT

    @property
    def complete(self) -> bool:
        """Whether the program has all it will get."""
        return (self._ends or self.unread) and not self._unsent

    def close(self) -> None:
        """Close our end, if it is open."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def write(self) -> None:
        """Write what the program takes now."""
        if self.descriptor is None:
            return
        try:
            del self._unsent[: os.write(self.descriptor, self._unsent[:BLOCK])]
        except BlockingIOError:
            return
        except OSError:  # the program has closed its end
            self._unsent.clear()
            self.unread = True
