"""The time of what sleeps: it goes on only as the clock of a test moves, and so it jumps from one sleeper to the next.

Only the thread that froze the process moves the clock. Where nothing but sleepers is left, it jumps at once. While other threads or
programs are at work, each sleeper first sleeps as long as it would without a frozen clock, so that no timeout of real work is over early.
The instants to which the clock moves are the same in both cases.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Final

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.proc import children_at_work

really_sleep = time.sleep

_LOOK_AGAIN: Final = 0.01
"""Real seconds between two looks at what is at work: a thread that gave its answer is at work for a moment longer."""


class RealWork:
    """The threads and programs that were not there when this was made."""

    def __init__(self) -> None:
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._programs = children_at_work()

    def is_going_on(self) -> bool:
        """Whether a new thread does anything else than wait for other threads, or a new program lives."""
        threads = [thread.ident for thread in threading.enumerate() if thread.ident not in self._threads]
        frames = sys._current_frames() if threads else {}
        if any(ident is None or not _is_waiting(frames.get(ident)) for ident in threads):
            return True
        return bool(children_at_work() - self._programs)


class Jumper:
    """Moves a clock for who sleeps.

    Args:
        clock: the clock.
        patience: real seconds without any event after which it jumps although something is at work; None for as long as that takes.
    """

    def __init__(self, clock: FrozenClock, patience: float | None) -> None:
        self._clock = clock
        self._patience = math.inf if patience is None else patience
        self._thread: int | None = threading.get_ident()
        self._work = RealWork()
        self._reached = real_seconds()
        self._origin = self._reached - clock.elapsed_ns / 1e9
        self._target, self._waited, self._without_event = 0.0, 0.0, 0.0

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that moves the clock, and not in the middle of a move."""
        return threading.get_ident() == self._thread and not self._clock.is_moving

    def close(self) -> None:
        """Move the clock no more: code that was loaded meanwhile may still hold what asks this."""
        self._thread = None

    def seconds(self) -> float:
        """The time of sleepers; it went on from ``time.monotonic()`` when the process was frozen."""
        return max(self._origin + self._clock.elapsed_ns / 1e9, self._reached)

    def sleep(self, seconds: float) -> None:
        """Sleep in this thread, while nothing else of it runs."""
        waited, most = 0.0, min(seconds, self._patience)
        while waited < most and self._work.is_going_on():
            really_sleep(min(most - waited, _LOOK_AGAIN))
            waited += _LOOK_AGAIN
        self._clock.advance(timedelta(microseconds=_rounded_up(seconds)))

    def wait(self, seconds: float, for_event: Callable[[float], bool], is_busy: Callable[[], bool]) -> None:
        """Let time pass until the next sleeper is due, or something happens, or the next timer of the clock has run.

        Args:
            seconds: how long the next sleeper still sleeps, above 0.
            for_event: waits as many real seconds, at most, for an event; returns whether there was one.
            is_busy: whether the caller knows of something that is at work.
        """
        if for_event(0):
            return
        while left := self.left_to_wait(seconds, is_busy):
            began = real_seconds()
            happened = for_event(left)
            self.add_waited(real_seconds() - began, happened=happened)
            if happened:
                return
        if not for_event(0):  # the event may have come just before the work was found to have ended
            self.jump(seconds)

    def left_to_wait(self, seconds: float, is_busy: Callable[[], bool]) -> float:
        """Real seconds to wait before the next look; 0 if the next sleeper, who sleeps so much longer, may be jumped to."""
        target = self.seconds() + seconds
        if target != self._target:
            self._target, self._waited, self._without_event = target, 0.0, 0.0
        left = min(seconds - self._waited, self._patience - self._without_event, _LOOK_AGAIN)
        return left if left > 0 and (is_busy() or self._work.is_going_on()) else 0.0

    def add_waited(self, seconds: float, *, happened: bool) -> None:
        """Count what was really waited for the next sleeper, and whether that ended with an event."""
        self._waited += seconds
        self._without_event = 0.0 if happened else self._without_event + seconds

    def jump(self, seconds: float) -> None:
        """Have the clock pass so many seconds, but no further than to its own next timer."""
        target, wanted, due = self.seconds() + seconds, _rounded_up(seconds), self._clock.next_due_ns()
        until_due = wanted if due is None else max((due - self._clock.now_ns()) // 1000, 0)
        self._clock.advance(timedelta(microseconds=min(wanted, until_due)))
        if wanted <= until_due:
            self._reached = target  # exactly, for who compares it with a deadline that was added up from floats


def _rounded_up(seconds: float) -> int:
    """Whole microseconds; what is over one by less than a nanosecond comes from adding floats."""
    return math.ceil(seconds * 1e6 - 1e-3)


def _is_waiting(frame: FrameType | None) -> bool:
    """Whether a thread that is in a frame waits until another one gives it something, and has not been given that yet.

    A thread that starts is in no frame.
    """
    if frame is None:
        return False
    place, names = (frame.f_globals.get("__name__"), frame.f_code.co_name), frame.f_locals
    match place:
        case ("threading", "wait"):  # of a condition: whoever ends the wait opens this lock
            return "waiter" in names and names["waiter"].locked()
        case ("threading", "join" | "_wait_for_tstate_lock"):
            return bool(names["self"].is_alive())
        case ("concurrent.futures.thread", "_worker"):
            return not names["work_queue"].qsize()
        case ("trio._core._thread_cache", "_work"):
            return bool(names["self"]._worker_lock.locked())
    return False
