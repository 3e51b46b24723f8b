"""Seconds and pauses that no test moves: for waiting on processes, while a time library of the test holds every other clock still."""

from __future__ import annotations

import select
import time


def real_seconds() -> float:
    """Seconds since some moment, by the system's monotonic clock; what time libraries replace is not called."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def pause(seconds: float) -> None:
    """Do nothing for some real seconds; a number below 0 counts as 0."""
    select.select([], [], [], max(seconds, 0))
