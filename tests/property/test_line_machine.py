"""Families of sessions under a state machine: our engine, with workspaces of two kinds."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.testing.machines.lineage_machine import LineMachine
from pytest_gittrix.testing.machines.machine_base import machine_of
from pytest_gittrix.testing.world import World


def with_clones(**options: Any) -> Any:
    """A world whose sessions have whole clones."""
    return World.open(**{**options, "workspace": "clone"})


TestLines = machine_of(LineMachine).TestCase
TestLinesOfClones = machine_of(LineMachine, with_clones).TestCase
