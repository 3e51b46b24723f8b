"""The session system of this project: the reference engine, under another name."""

from __future__ import annotations

from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem

system = GitTrixSystem("lazy")
system.name = "house"
