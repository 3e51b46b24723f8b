"""A clock that the test moves, and the real one, behind one protocol. Nothing here reads what the freeze of a process replaces."""

from __future__ import annotations

import os
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol, get_args

from pytest_gittrix.clock.propagation import (
    CLOCK_VARIABLE,
    append_move,
    faketime_environment,
    git_dates,
    write_instant,
    write_moves,
)
from pytest_gittrix.clock.timers import Schedule, Timer
from pytest_gittrix.durations import distance_ns, format_instant, instant_at, ns_of
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.monotonic import pause, real_wall_ns

__all__ = ["CLOCK_START", "Clock", "FrozenClock", "SystemClock", "Timer"]

CLOCK_START = datetime(2030, 1, 1, tzinfo=UTC)
"""Where clocks start by default."""

MissedTimers = Literal["each", "once", "none"]

_MICROSECOND = timedelta(microseconds=1)


def _elapsed_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _earliest_stamp() -> int:
    """No file changed from now on gets a stamp before this one."""
    # Linux stamps files by CLOCK_REALTIME_COARSE (5 in linux/time.h), or by a finer clock that never runs behind it.
    return time.clock_gettime_ns(5) if sys.platform == "linux" else real_wall_ns() - 10_000_000


def _since_1970(ns: int) -> int:
    if ns >= 0:
        return ns
    raise InvalidInput(
        f"The clock cannot stand at {format_instant(instant_at(ns))}, before 1970.",
        why="Git counts the seconds of a commit from 1970 and refuses a date before.",
        fix="Use a later instant.",
    )


def instant_after(moves: Sequence[tuple[int, int]], stamp: int) -> int:
    """The instant in force when the kernel gave a stamp: that of the last move before it, or of the first."""
    return moves[max(bisect_left(moves, (stamp,)) - 1, 0)][1]


class Clock(Protocol):
    """What the engine asks of a clock."""

    @property
    def resolution(self) -> timedelta:
        """How far apart two accesses must be to be recorded apart."""

    def now(self) -> datetime:
        """The instant as an aware UTC datetime, in whole microseconds."""

    def now_ns(self) -> int:
        """The instant in nanoseconds since 1970-01-01T00:00:00Z."""

    def every(self, interval: timedelta, fn: Callable[[], object]) -> Timer:
        """Call ``fn`` each time ``interval`` has gone by, for the first time one interval from now."""

    def at(self, when: datetime, fn: Callable[[], object]) -> Timer:
        """Call ``fn`` once, when this clock shows ``when`` or later."""

    def instant_of(self, kernel_ns: int) -> int:
        """The instant of this clock, in nanoseconds, at which the kernel gave a file the stamp ``kernel_ns`` (``st_ctime_ns``)."""

    def close(self) -> None:
        """Cancel every timer."""


class FrozenClock:
    """A clock that only the test moves.

    Timers run on the thread that moves the clock, each at its own instant, so four hours with a timer of five minutes are 48 calls.
    Reading the clock and adding or cancelling timers is safe from any thread, also from timers; moves take turns.

    Args:
        clock_start: the first instant; aware.
        separate_files: let the kernel's file clock tick before each move (a few milliseconds), so that :meth:`instant_of` can tell files
            changed before the move from files changed after it. Switch off where no files are looked at.

    Raises:
        InvalidInput: ``clock_start`` is naive, or before 1970.
    """

    resolution = timedelta(0)

    def __init__(self, clock_start: datetime = CLOCK_START, *, separate_files: bool = True) -> None:
        self._now = _since_1970(ns_of(clock_start))
        self._elapsed = 0
        self._schedule = Schedule()
        self._separate_files = separate_files
        self._turn = threading.RLock()
        self._moving = False
        self._file: Path | None = None
        self._offered: Path | None = None
        self._moves = [(-1, self._now)]
        """Kernel stamps, each with the instant that file stamps after it belong to, up to the next."""

    def __repr__(self) -> str:
        return f"<FrozenClock at {format_instant(self.now())}>"

    def now(self) -> datetime:
        """The instant as an aware UTC datetime."""
        return instant_at(self._now)

    def now_ns(self) -> int:
        """The instant in nanoseconds since 1970-01-01T00:00:00Z."""
        return self._now

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds moved so far, skews not counted: what a monotonic clock would have measured."""
        return self._elapsed

    @property
    def is_moving(self) -> bool:
        """Whether it is in the middle of a move: a timer runs."""
        return self._moving

    def next_due_ns(self) -> int | None:
        """The instant of the next timer, in nanoseconds since 1970-01-01T00:00:00Z; None if there is none."""
        return self._schedule.next_due()

    def every(self, interval: timedelta | str, fn: Callable[[], object]) -> Timer:
        """Call ``fn`` each time the clock has advanced by ``interval``. Like a real timer it does not notice a skew.

        Raises:
            InvalidInput: ``interval`` is not positive, or no duration.
        """
        return self._schedule.every(interval, fn, now=self._now)

    def at(self, when: datetime, fn: Callable[[], object]) -> Timer:
        """Call ``fn`` once, when the clock is advanced to ``when`` or beyond; at the next move if that is in the past.

        Raises:
            InvalidInput: ``when`` is naive.
        """
        return self._schedule.at(ns_of(when), fn)

    def advance(self, by: timedelta | str | None = None, /, *, timers: MissedTimers = "each", **units: float) -> datetime:
        """Move forward, running what falls due, in order of due time and then of registration.

        A timer that raises stops the clock at its instant; the exception propagates, and the timers after it stay due.

        Args:
            by: how far, as a timedelta or a text such as ``"1h30m"``; or in words of ``timedelta``: ``advance(hours=4, minutes=5)``.
            timers: ``each`` runs every firing at its own instant. ``once`` runs each timer that fell due once, at the end, as after a
                laptop was asleep. ``none`` runs nothing, as if the process had not been there: one-offs that fell due are gone, periodic
                timers go on after now.

        Returns:
            The instant arrived at.

        Raises:
            InvalidInput: a negative or missing distance, an unknown unit or value of ``timers``, a call from a timer.
        """
        distance = distance_ns(by, units)
        with self._turn:  # another thread's move, from here on, would leave the target in the past
            return self._move(self._now + distance, timers)

    def advance_to(self, when: datetime, *, timers: MissedTimers = "each") -> datetime:
        """Move forward to ``when``, like :meth:`advance`.

        Raises:
            InvalidInput: as :meth:`advance`; and ``when`` is naive or in the past.
        """
        return self._move(ns_of(when), timers)

    def just_before(self, when: datetime) -> datetime:
        """Advance to one microsecond before ``when``: the last instant at which a deadline has not come."""
        return self.advance_to(when - _MICROSECOND)

    def just_after(self, when: datetime) -> datetime:
        """Advance to one microsecond after ``when``: the first instant at which a deadline has passed."""
        return self.advance_to(when + _MICROSECOND)

    def skew(self, by: timedelta | str | None = None, /, **units: float) -> datetime:
        """Set the wall clock forward or back, as an operator or NTP does: no timer runs, and no time has elapsed.

        Periodic timers stay as far away as they were. One-offs stay at their instant: those it jumped over run at the next move.

        Returns:
            The instant arrived at.

        Raises:
            InvalidInput: no distance, an unknown unit, an instant outside the years 1970 to 9999, a call from a timer.
        """
        distance = distance_ns(by, units)
        with self._one_move():
            instant_at(_since_1970(self._now + distance))
            self._schedule.shift_periodic(distance)
            self._let_stamps_pass()
            self._stand_at(self._now + distance)
        return self.now()

    def instant_of(self, kernel_ns: int) -> int:
        """The instant this clock showed when the kernel gave a file the stamp ``kernel_ns``.

        Exact between moves. A change by a timer maps to the timer's instant or a later one of the same advance, a file older than the clock
        to its start. With ``separate_files`` off, a change within a tick before a move may map to after it. Pass ``st_ctime_ns``.
        """
        return instant_after(self._moves, kernel_ns)

    def attach_file(self, path: str | os.PathLike[str]) -> Path:
        """Keep a clock file up to date, for other processes: the instant in ISO 8601, replaced at each move. An earlier file stays."""
        with self._turn:
            target = Path(os.path.abspath(path))
            write_moves(target, self._moves)
            write_instant(target, self._now)
            self._file = target
            return target

    def offer_file(self, path: str | os.PathLike[str]) -> None:
        """Say where the clock file is to be if a program needs one and none is attached. An earlier offer counts."""
        if self._offered is None:
            self._offered = Path(os.path.abspath(path))

    def require_file(self) -> Path | None:
        """The clock file; the one that was offered is attached now if there is none yet. None if none was offered either."""
        if self._file is None and self._offered is not None:
            self.attach_file(self._offered)
        return self._file

    def environment(self) -> dict[str, str]:
        """The variables for a child process: git's dates, which are those of now, and the clock file if one is attached."""
        clock_file = {CLOCK_VARIABLE: str(self._file)} if self._file else {}
        return git_dates(self._now) | clock_file

    def faketime_environment(self) -> dict[str, str] | None:
        """What makes a program that knows nothing of us follow this clock, by libfaketime; None where that is not installed.

        Unlike :meth:`environment` it is live: running children see each move. Statically linked programs do not follow.

        Raises:
            InvalidInput: no clock file is attached.
        """
        if self._file is None:
            raise InvalidInput(
                "This clock has no file for other programs to follow.",
                why="libfaketime reads the instant from a file.",
                fix="Call attach_file(path) first.",
            )
        return faketime_environment(self._file)

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """``argv`` as a command line that runs under this clock by libfaketime.

        Raises:
            CapabilityMissing: libfaketime is not installed.
            InvalidInput: no clock file is attached.
        """
        variables = self.faketime_environment()
        if variables is None:
            raise CapabilityMissing(
                "libfaketime is not installed.",
                why="A program that does not read PYTEST_GITTRIX_CLOCK sees this clock only through it.",
                fix="Install your system's faketime package.",
                opt_out="Skip the test where faketime_environment() is None.",
            )
        return ["env", *(f"{name}={value}" for name, value in variables.items()), *argv]

    def touch(self, path: str | os.PathLike[str]) -> None:
        """Set a file's access and modification times to now, for systems that judge idleness by them."""
        os.utime(path, ns=(self._now, self._now))

    def close(self) -> None:
        """Cancel every timer, and leave the clock file behind."""
        self._schedule.clear()
        self._file = None

    def _move(self, target: int, timers: MissedTimers) -> datetime:
        if timers not in get_args(MissedTimers):
            raise InvalidInput(
                f"timers={timers!r} is not known.",
                why="It says what happens to timers that fall due on the way.",
                fix=f"Use one of {', '.join(get_args(MissedTimers))}.",
            )
        with self._one_move():
            arrived = instant_at(target)
            if target < self._now:
                raise InvalidInput(
                    f"Time can't go backwards: {format_instant(arrived)} is before {format_instant(self.now())}.",
                    why="Timers that ran cannot be unrun.",
                    fix="Move to a later instant.",
                    opt_out="To set the wall clock back as an operator would, use skew().",
                )
            if target > self._now:
                self._let_stamps_pass()
            if timers != "each":
                self._pass_to(target)
            while due := self._schedule.take_due(target, skip_missed=timers != "each"):
                instant, timer = due
                self._pass_to(max(instant, self._now))  # an overdue one-off runs now
                if timers != "none":
                    timer.fn()
            self._pass_to(target)
        return arrived

    @contextmanager
    def _one_move(self) -> Iterator[None]:
        with self._turn:
            if self._moving:
                raise InvalidInput(
                    "The clock was moved from inside a move.",
                    why="A timer runs at its own instant; moving on from there would run later timers before this one is done.",
                    fix="Schedule the next step with clock.at() or clock.every(), or move the clock from the test.",
                )
            self._moving = True
            try:
                yield
            finally:
                self._moving = False

    def _pass_to(self, ns: int) -> None:
        self._elapsed += ns - self._now
        self._stand_at(ns)

    def _stand_at(self, ns: int) -> None:
        if ns == self._now:
            return
        self._moves.append((max(_earliest_stamp() - 1, self._moves[-1][0]), ns))
        self._now = ns
        if self._file:
            append_move(self._file, *self._moves[-1])
            write_instant(self._file, ns)

    def _let_stamps_pass(self) -> None:
        """Wait until new stamps are later than any stamp given so far. Bounded, for a wall clock set back meanwhile."""
        if not self._separate_files:
            return
        before = real_wall_ns()
        for _ in range(200):
            if _earliest_stamp() > before:
                return
            pause(0.0005)


class SystemClock:
    """The real clock. Timers run one at a time on one daemon thread, which starts with the first timer.

    Periodic timers count elapsed time, which a change of the wall clock does not disturb, and skip firings they could not keep up with.
    One-offs follow the wall clock. What a timer raises goes to ``threading.excepthook``, and the timer goes on. A fork has no timer thread.
    """

    resolution = timedelta(seconds=1)

    def __init__(self) -> None:
        self._periodic, self._one_offs = Schedule(), Schedule()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def now(self) -> datetime:
        """The instant as an aware UTC datetime."""
        return instant_at(real_wall_ns())

    def now_ns(self) -> int:
        """The instant in nanoseconds since 1970-01-01T00:00:00Z."""
        return real_wall_ns()

    def every(self, interval: timedelta | str, fn: Callable[[], object]) -> Timer:
        """Call ``fn`` on the timer thread each time ``interval`` has gone by.

        Raises:
            InvalidInput: ``interval`` is not positive, or the clock is closed.
        """
        return self._started(lambda: self._periodic.every(interval, fn, now=_elapsed_ns()))

    def at(self, when: datetime, fn: Callable[[], object]) -> Timer:
        """Call ``fn`` once on the timer thread, when the wall clock shows ``when`` or later.

        Raises:
            InvalidInput: ``when`` is naive, or the clock is closed.
        """
        return self._started(lambda: self._one_offs.at(ns_of(when), fn))

    def instant_of(self, kernel_ns: int) -> int:
        """The stamp itself: the kernel and this clock agree."""
        return kernel_ns

    def close(self) -> None:
        """Cancel every timer and end the thread, once a timer that is running is done."""
        with self._wake:
            self._closed = True
            self._periodic.clear()
            self._one_offs.clear()
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _started(self, add: Callable[[], Timer]) -> Timer:
        with self._wake:
            if self._closed:
                raise InvalidInput(
                    "The clock is closed.",
                    why="Nothing would ever call the timer.",
                    fix="Add timers before close(), or use a new clock.",
                )
            timer = add()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gittrix-clock", daemon=True)
                self._thread.start()
            self._wake.notify_all()
            return timer

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._closed:
                    return
                due = self._periodic.take_due(_elapsed_ns(), skip_missed=True) or self._one_offs.take_due(real_wall_ns())
                if due is None:
                    self._wake.wait(self._seconds_to_wait())
                    continue
            try:
                due[1].fn()
            except Exception:  # noqa: BLE001 - one failing timer must not stop the others
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def _seconds_to_wait(self) -> float:
        # Look again at least once a second: a wait measures elapsed time, and the wall clock may be set.
        waits = [1.0]
        if (periodic := self._periodic.next_due()) is not None:
            waits.append((periodic - _elapsed_ns()) / 1e9)
        if (one_off := self._one_offs.next_due()) is not None:
            waits.append((one_off - real_wall_ns()) / 1e9)
        return max(min(waits), 0.0)
