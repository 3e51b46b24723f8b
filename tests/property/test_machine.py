from __future__ import annotations

from pytest_gittrix.harness.machine import machine_for
from pytest_gittrix.harness.world import World

TestEngine = machine_for(World.open).TestCase
