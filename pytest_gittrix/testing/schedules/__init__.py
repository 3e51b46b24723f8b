"""Who goes next: races of threads and processes, in every order or in the one that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.testing.schedules.blackbox import calls_of as calls_of
    from pytest_gittrix.testing.schedules.blackbox import explore_processes as explore_processes
    from pytest_gittrix.testing.schedules.blackbox import interleave as interleave
    from pytest_gittrix.testing.schedules.blackbox import intrude as intrude
    from pytest_gittrix.testing.schedules.explorer import Run as Run
    from pytest_gittrix.testing.schedules.explorer import explore as explore
    from pytest_gittrix.testing.schedules.explorer import replay as replay
    from pytest_gittrix.testing.schedules.explorer import schedules as schedules
    from pytest_gittrix.testing.schedules.linearize import Call as Call
    from pytest_gittrix.testing.schedules.linearize import CallHistory as CallHistory
    from pytest_gittrix.testing.schedules.linearize import History as History
    from pytest_gittrix.testing.schedules.linearize import linearise as linearise
    from pytest_gittrix.testing.schedules.process_stepper import Command as Command
    from pytest_gittrix.testing.schedules.race import Race as Race
    from pytest_gittrix.testing.schedules.sequential import sessions_model as sessions_model

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.testing.schedules.blackbox": (
            "calls_of",
            "explore_processes",
            "interleave",
            "intrude",
        ),
        "pytest_gittrix.testing.schedules.process_stepper": ("Command",),
        "pytest_gittrix.testing.schedules.linearize": (
            "Call",
            "CallHistory",
            "History",
            "linearise",
        ),
        "pytest_gittrix.testing.schedules.sequential": ("sessions_model",),
        "pytest_gittrix.testing.schedules.explorer": (
            "Run",
            "explore",
            "replay",
            "schedules",
        ),
        "pytest_gittrix.testing.schedules.race": ("Race",),
    },
)
