"""One clock, its timers, and how an instant reaches git, other processes and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import CLOCK_START as CLOCK_START
    from pytest_gittrix.clock.clock import FrozenClock as FrozenClock
    from pytest_gittrix.clock.clock import SystemClock as SystemClock
    from pytest_gittrix.clock.file_clock import FileClock as FileClock
    from pytest_gittrix.clock.file_clock import clock_from_environment as clock_from_environment
    from pytest_gittrix.clock.freeze import process_freeze as process_freeze

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.clock.clock": (
            "CLOCK_START",
            "FrozenClock",
            "SystemClock",
        ),
        "pytest_gittrix.clock.file_clock": (
            "FileClock",
            "clock_from_environment",
        ),
        "pytest_gittrix.clock.freeze": ("process_freeze",),
    },
)
