"""Kills, refused calls, torn writes and power cuts at the N-th call of any program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.testing.faults.crash import Crash as Crash
    from pytest_gittrix.testing.faults.crash import Crashed as Crashed
    from pytest_gittrix.testing.faults.crash import crash_at as crash_at
    from pytest_gittrix.testing.faults.fault_sweep import sweep as sweep
    from pytest_gittrix.testing.faults.powercut import power_cuts as power_cuts
    from pytest_gittrix.testing.faults.small_disks import run_on_small_disk as run_on_small_disk
    from pytest_gittrix.testing.faults.small_disks import small_disk as small_disk

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.testing.faults.crash": (
            "Crash",
            "Crashed",
            "crash_at",
        ),
        "pytest_gittrix.testing.faults.fault_sweep": ("sweep",),
        "pytest_gittrix.testing.faults.powercut": ("power_cuts",),
        "pytest_gittrix.testing.faults.small_disks": (
            "run_on_small_disk",
            "small_disk",
        ),
    },
)
