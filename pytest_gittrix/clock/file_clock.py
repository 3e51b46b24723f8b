"""The clock of a process that was started by a test: it shows what the test's clock file says."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from pytest_gittrix.clock.clock import Clock, SystemClock, instant_after
from pytest_gittrix.clock.propagation import CLOCK_VARIABLE, read_instant, read_moves
from pytest_gittrix.clock.timers import Schedule, Timer
from pytest_gittrix.durations import instant_at, ns_of


class FileClock:
    """Shows the instant in a file that :meth:`FrozenClock.attach_file` keeps up to date. Timers run when :meth:`poll` is called.

    Args:
        path: the clock file; each call reads it.

    Raises:
        InvalidInput: the file cannot be read or holds no instant. So does every method that reads it.
    """

    resolution = timedelta(0)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._schedule = Schedule()
        self.now_ns()

    def now(self) -> datetime:
        """The instant as an aware UTC datetime."""
        return instant_at(self.now_ns())

    def now_ns(self) -> int:
        """The instant in nanoseconds since 1970-01-01T00:00:00Z."""
        return read_instant(self._path)

    def every(self, interval: timedelta | str, fn: Callable[[], object]) -> Timer:
        """Have :meth:`poll` call ``fn`` each time ``interval`` has gone by.

        Raises:
            InvalidInput: ``interval`` is not positive.
        """
        return self._schedule.every(interval, fn, now=self.now_ns())

    def at(self, when: datetime, fn: Callable[[], object]) -> Timer:
        """Have :meth:`poll` call ``fn`` once, when the file shows ``when`` or later.

        Raises:
            InvalidInput: ``when`` is naive.
        """
        return self._schedule.at(ns_of(when), fn)

    def poll(self) -> None:
        """Run each timer that has fallen due, once, in order. What a timer raises propagates; the timers after it stay due."""
        now = self.now_ns()
        while due := self._schedule.take_due(now, skip_missed=True):
            due[1].fn()

    def instant_of(self, kernel_ns: int) -> int:
        """The instant the test's clock showed when the kernel gave a file that stamp, as :meth:`FrozenClock.instant_of` has it.

        A clock file that somebody else keeps says nothing of its moves; then every file counts as changed just now, so that nothing that is
        in use can look idle.
        """
        moves = read_moves(self._path)
        return instant_after(moves, kernel_ns) if moves else self.now_ns()

    def close(self) -> None:
        """Cancel every timer."""
        self._schedule.clear()


def clock_from_environment() -> Clock:
    """The clock a command should run on: the file in ``PYTEST_GITTRIX_CLOCK``, or the real one where that is unset.

    Raises:
        InvalidInput: the variable is set, but its file cannot be read or holds no instant.
    """
    path = os.environ.get(CLOCK_VARIABLE)
    return FileClock(path) if path else SystemClock()
