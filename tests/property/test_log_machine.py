"""The histories of sessions under a state machine: our engine, with workspaces of two kinds."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.harness.log_machine import LogMachine
from pytest_gittrix.harness.world import World
from pytest_gittrix.harness.world_machine import machine_of


def with_clones(**options: Any) -> Any:
    """A world whose sessions have whole clones."""
    return World.open(**{**options, "workspace": "clone"})


TestHistories = machine_of(LogMachine).TestCase
TestHistoriesBesideClones = machine_of(LogMachine, with_clones).TestCase
