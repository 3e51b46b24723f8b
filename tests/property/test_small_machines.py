"""Histories, turns and families of sessions under state machines: our engine, with workspaces of two kinds."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.testing.machines import LineMachine, LogMachine, TurnMachine, machine_of
from pytest_gittrix.testing.world import World


def with_clones(**options: Any) -> Any:
    """A world whose sessions have whole clones."""
    return World.open(**{**options, "workspace": "clone"})


TestHistories = machine_of(LogMachine).TestCase
TestHistoriesWithClones = machine_of(LogMachine, with_clones).TestCase
TestTurns = machine_of(TurnMachine).TestCase
TestTurnsWithClones = machine_of(TurnMachine, with_clones).TestCase
TestLines = machine_of(LineMachine).TestCase
TestLinesWithClones = machine_of(LineMachine, with_clones).TestCase
