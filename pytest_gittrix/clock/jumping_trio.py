"""Runs of trio whose deadlines move the clock of a test; nothing where trio is not installed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pytest_gittrix.clock.jumper import Jumper
from pytest_gittrix.clock.replacing import replaced
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.os_level.monotonic import real_seconds


@contextmanager
def jumping_runs(jumper: Jumper) -> Iterator[None]:
    """Have the runs of trio that begin in this thread without a clock of their own jump, until the block ends."""
    try:
        import trio
    except ImportError:
        yield
        return
    runs: Any = import_module("trio._core._run")
    real_clock = getattr(runs, "SystemClock", None)
    if real_clock is None:
        raise GittrixError(
            f"trio {trio.__version__} makes its clock elsewhere than earlier versions.",
            why="Runs of trio would wait for real while the other sleeps of the test jump.",
            fix="Install trio 0.27 to 0.35, or give each run a clock of its own.",
            opt_out="Switch autojump off for this test.",
        )
    with replaced(runs, {"SystemClock": lambda: _jumping_clock(jumper, trio) if jumper.is_here else real_clock()}):
        yield


def _jumping_clock(jumper: Jumper, trio: Any) -> Any:
    class JumpingClock(trio.abc.Clock):  # type: ignore[misc]
        """Is asked how long to wait whenever no task can run, and for the time after each wait."""

        def __init__(self) -> None:
            self._began: float | None = None

        def start_clock(self) -> None:
            """Needs no start."""

        def current_time(self) -> float:
            began, self._began = self._began, None  # the look at trio's tasks asks for the time, too
            if began is not None:
                jumper.add_waited(real_seconds() - began, happened=_has_work(trio))
            return jumper.seconds()

        def deadline_to_sleep_time(self, deadline: float) -> float:
            seconds = deadline - self.current_time()
            if not 0 < seconds < math.inf:
                return max(seconds, 0.0)
            left = jumper.left_to_wait(seconds, lambda: _has_files(trio))
            # The work may have queued a call just before it was found to have ended.
            if trio.lowlevel.current_statistics().run_sync_soon_queue_size:
                return 0.0
            if left:
                self._began = real_seconds()
                return left
            jumper.jump(seconds)
            return 0.0

    return JumpingClock()


def _has_work(trio: Any) -> bool:
    return bool(trio.lowlevel.current_statistics().tasks_runnable)


def _has_files(trio: Any) -> bool:
    """Whether tasks wait for files or sockets; one of trio's own waits for other threads to wake it."""
    waiting = trio.lowlevel.current_statistics().io_statistics
    return getattr(waiting, "tasks_waiting_read", 1) > 1 or getattr(waiting, "tasks_waiting_write", 0) > 0
