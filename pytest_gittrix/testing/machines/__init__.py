"""State machines, models and strategies that look for bugs in a session system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.testing.machines.lineage_machine import LineMachine as LineMachine
    from pytest_gittrix.testing.machines.log_machine import LogMachine as LogMachine
    from pytest_gittrix.testing.machines.machine_base import machine_of as machine_of
    from pytest_gittrix.testing.machines.machine_base import replay as replay
    from pytest_gittrix.testing.machines.session_machine import machine_for as machine_for
    from pytest_gittrix.testing.machines.turn_machine import TurnMachine as TurnMachine

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.testing.machines.session_machine": ("machine_for",),
        "pytest_gittrix.testing.machines.log_machine": ("LogMachine",),
        "pytest_gittrix.testing.machines.turn_machine": ("TurnMachine",),
        "pytest_gittrix.testing.machines.lineage_machine": ("LineMachine",),
        "pytest_gittrix.testing.machines.machine_base": ("machine_of", "replay"),
    },
)
