"""Seconds, pauses, limits and a wall clock that no test moves, while a time library of the test holds the process's clocks still."""

from __future__ import annotations

import select
import sys
import time
from contextlib import contextmanager

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta
    from typing import Final

_CLOCK_REALTIME_COARSE: Final = 5  # of linux/time.h; Python does not name it
_MOST_LAG_NS: Final = 100_000_000


def real_seconds() -> float:
    """Seconds since some moment, by the system's monotonic clock; what time libraries replace is not called."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def real_wall_ns() -> int:
    """Nanoseconds since 1970 by the machine's wall clock, even while a library shows this process another time.

    time-machine replaces ``clock_gettime`` too, for the wall clock; it leaves alone the kernel's coarse wall clock, which lags by some
    milliseconds. Where the two differ by more, time-machine tells what it hides, or else the coarse clock has to do.
    """
    wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
    if sys.platform != "linux":
        return wall
    coarse = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    return wall if abs(coarse - wall) < _MOST_LAG_NS else _hidden_ns(coarse)


def _hidden_ns(otherwise: int) -> int:
    time_machine = sys.modules.get("time_machine")
    if time_machine is None:
        return otherwise
    try:
        hidden: int = time_machine.escape_hatch.time.clock_gettime_ns(time.CLOCK_REALTIME)
    except ValueError:  # it is not at work
        return otherwise
    return hidden


def real_wall_seconds() -> float:
    """Seconds since 1970, as ``real_wall_ns``."""
    return real_wall_ns() / 1e9


class OutOfTime(Exception):
    """A piece of work has taken all the time that it was given. Whoever gave the time catches this."""


class TimeLimit:
    """The real time that a piece of work may take, from now on.

    Args:
        limit: how long; None for as long as it takes.
    """

    def __init__(self, limit: timedelta | None = None) -> None:
        self._limit = limit
        self._end = None if limit is None else real_seconds() + limit.total_seconds()

    def again(self) -> TimeLimit:
        """The same limit for another piece of work, from now on."""
        return TimeLimit(self._limit)

    def check(self) -> None:
        """End the work if its time is over; called at each of its steps.

        Raises:
            OutOfTime: it is.
        """
        if self._end is not None and real_seconds() >= self._end:
            raise OutOfTime


def pause(seconds: float) -> None:
    """Do nothing for some real seconds; a number below 0 counts as 0."""
    select.select([], [], [], max(seconds, 0))


@contextmanager
def interrupt_after(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """A block that is ended by an error once it has taken too long.

    The error is raised between two instructions of Python in the thread of the block; a call into the system is waited for.

    Args:
        seconds: real seconds.
        error: the class of the error, which takes no arguments.
    """
    import ctypes  # dear to load
    import threading

    thread, lock, over, sent = threading.get_ident(), threading.Lock(), False, False
    began, ended = threading.Event(), threading.Event()

    def end() -> None:
        nonlocal sent
        began.wait()  # the error is for the block, and not for who is still waiting for this thread to start
        if ended.wait(seconds):
            return
        with lock:
            if not over:
                sent = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))

    threading.Thread(target=end, daemon=True).start()
    try:
        began.set()
        yield
    finally:
        with lock:
            over = True
        ended.set()
        if sent:
            _let_it_arrive(error)


def _let_it_arrive(error: type[BaseException]) -> None:
    """Take an error that was sent to this thread and has not arrived yet; it arrives at the next turn of a loop.

    It cannot be called back: ``PyThreadState_SetAsyncExc`` without an error leaves the interpreter looking for one for ever, which slows it
    down, and stops a thread that is traced.
    """
    try:
        for _ in range(100):
            pass
    except error:
        return
