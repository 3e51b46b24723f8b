"""The histories of sessions under a state machine: our engine, with workspaces of two kinds."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.testing.machines.log_machine import LogMachine
from pytest_gittrix.testing.machines.machine_base import machine_of
from pytest_gittrix.testing.world import World


def with_clones(**options: Any) -> Any:
    """A world whose sessions have whole clones."""
    return World.open(**{**options, "workspace": "clone"})


TestHistories = machine_of(LogMachine).TestCase
TestHistoriesBesideClones = machine_of(LogMachine, with_clones).TestCase
