"""What is due when: timers in the order they fire, on a scale of whole nanoseconds.

Must not know what time it is, nor call anything: a clock asks what is due and runs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from pytest_gittrix.durations import duration_of, format_duration
from pytest_gittrix.errors import InvalidInput


class Timer:
    """Something to be called once or again and again. Made by a clock's ``every`` and ``at``.

    Attributes:
        due: when it fires next, in nanoseconds on its clock's scale.
        interval: nanoseconds from one firing to the next, or None for a timer that fires once.
        fn: what is called.
    """

    __slots__ = ("_active", "_order", "due", "fn", "interval")

    def __init__(self, due: int, order: int, fn: Callable[[], object], interval: int | None) -> None:
        self.due = due
        self.fn = fn
        self.interval = interval
        self._order = order
        self._active = True

    def __repr__(self) -> str:
        return f"<Timer {getattr(self.fn, '__qualname__', self.fn)!r} due={self.due} active={self._active}>"

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self._order) < (other.due, other._order)

    @property
    def active(self) -> bool:
        """Whether it may still fire: not cancelled, and not a one-off that has fired."""
        return self._active

    def cancel(self) -> None:
        """Never fire again. May be called at any time, from any thread, more than once."""
        self._active = False


class Schedule:
    """Timers by due time, then by order of registration. Safe to use from several threads."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._orders = count()
        self._lock = threading.Lock()

    def at(self, due: int, fn: Callable[[], object]) -> Timer:
        """Have ``fn`` come up once, at ``due``."""
        return self._add(due, fn, None)

    def every(self, interval: timedelta | str, fn: Callable[[], object], *, now: int) -> Timer:
        """Have ``fn`` come up each ``interval``, for the first time one interval after ``now``.

        Raises:
            InvalidInput: ``interval`` is not positive, or no duration.
        """
        interval = duration_of(interval)
        if interval <= timedelta():
            raise InvalidInput(
                f"A timer cannot run every {format_duration(interval)}.",
                why="It would never let time pass.",
                fix="Give it a positive interval.",
            )
        step = interval // timedelta(microseconds=1) * 1000
        return self._add(now + step, fn, step)

    def _add(self, due: int, fn: Callable[[], object], interval: int | None) -> Timer:
        with self._lock:
            timer = Timer(due, next(self._orders), fn, interval)
            heappush(self._heap, timer)
            return timer

    def next_due(self) -> int | None:
        """When the next timer is due, or None if there is none."""
        with self._lock:
            self._drop_cancelled()
            return self._heap[0].due if self._heap else None

    def take_due(self, until: int, *, skip_missed: bool = False) -> tuple[int, Timer] | None:
        """Take the first timer that is due at or before ``until``, and set a periodic one up for its next firing.

        Args:
            until: nanoseconds on the clock's scale.
            skip_missed: the next firing of a periodic timer is its first after ``until``, so that it comes up only once.

        Returns:
            When it was due and the timer, or None if nothing is due.
        """
        with self._lock:
            self._drop_cancelled()
            if not self._heap or self._heap[0].due > until:
                return None
            timer = self._heap[0]
            due = timer.due
            if timer.interval is None:
                heappop(self._heap)
                timer.cancel()
            else:
                missed = (until - due) // timer.interval if skip_missed else 0
                timer.due += timer.interval * (missed + 1)
                heapreplace(self._heap, timer)
            return due, timer

    def shift_periodic(self, by: int) -> None:
        """Move the next firing of each periodic timer by ``by`` nanoseconds; one-offs stay where they are."""
        with self._lock:
            for timer in self._heap:
                if timer.interval is not None:
                    timer.due += by
            heapify(self._heap)

    def clear(self) -> None:
        """Cancel every timer."""
        with self._lock:
            for timer in self._heap:
                timer.cancel()
            self._heap.clear()

    def _drop_cancelled(self) -> None:
        while self._heap and not self._heap[0].active:
            heappop(self._heap)
