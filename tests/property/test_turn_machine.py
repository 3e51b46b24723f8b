"""Turns under a state machine: our engine, with workspaces of two kinds."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.testing.machines.machine_base import machine_of
from pytest_gittrix.testing.machines.turn_machine import TurnMachine
from pytest_gittrix.testing.world import World


def with_clones(**options: Any) -> Any:
    """A world whose sessions have whole clones."""
    return World.open(**{**options, "workspace": "clone"})


TestTurns = machine_of(TurnMachine).TestCase
TestTurnsBesideClones = machine_of(TurnMachine, with_clones).TestCase
