"""Seconds that no test moves: for waiting on processes, while a time library of the test holds every other clock still."""

from __future__ import annotations

import time


def real_seconds() -> float:
    """Seconds since some moment, by the system's monotonic clock; what time libraries replace is not asked."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
