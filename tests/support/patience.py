"""Time limits that something has to begin within, on machines of any speed and under any load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_ATTEMPTS = 8


def long_enough(attempt: Callable[[float], T], began: Callable[[T], object], *, first: float = 0.3) -> T:
    """Give something twice as long, again and again, until it had the time to begin.

    Args:
        attempt: makes an attempt that has so many seconds.
        began: says of what an attempt gave whether the time was long enough.
        first: the seconds of the first attempt.

    Returns:
        What the last attempt gave, whether it was long enough or not.
    """
    for number in range(_ATTEMPTS):
        found = attempt(first * 2**number)
        if began(found):
            break
    return found
