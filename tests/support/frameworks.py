"""What several of these tests need: the levels to test at, and what still runs of a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gittrix.confine.choose import confinement
from pytest_gittrix.engine.agents.session_parts import VARIABLES
from pytest_gittrix.errors import CapabilityMissing

LEVELS = ["off", "guard", "jail"] if os.environ.get("PYTEST_GITTRIX_SOAK") == "1" else ["off", "jail"]
"""Levels at which a framework's whole suite is run; all of them on demand."""

ADDED = "def add(a, b):\n    return a + b\n"
CHECK = ("sh", "-c", 'python3 -B -c "import app; assert app.add(2, 3) == 5"')


def available(level: str) -> str:
    """The level, if this machine has it; else the test is skipped."""
    try:
        confinement(level)
    except CapabilityMissing as error:
        pytest.skip(error.fact)
    return level


def programs_of(session: str) -> list[int]:
    """The processes, on the whole machine, that were started in a session and are alive."""
    mark = f"{VARIABLES[0]}={session}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lives = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
                if lives and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
