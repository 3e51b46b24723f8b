"""Seconds and pauses that no test moves: for waiting on processes, while a time library of the test holds every other clock still."""

from __future__ import annotations

import select
import time
from datetime import timedelta


def real_seconds() -> float:
    """Seconds since some moment, by the system's monotonic clock; what time libraries replace is not called."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class OutOfTime(Exception):
    """A piece of work has taken all the time that it was given. Whoever gave the time catches this."""


class TimeLimit:
    """The real time that a piece of work may take, from now on.

    Args:
        limit: how long; None for as long as it takes.
    """

    def __init__(self, limit: timedelta | None) -> None:
        self._end = None if limit is None else real_seconds() + limit.total_seconds()

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
