"""What several of these tests need: the levels to test at, what still runs of a session, and commands that are cancelled or end with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix import UserSession
from pytest_gittrix.confine.levels import confinement
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


async def begun(session: UserSession, command: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """The task of a command, as soon as the command has made the file ``started`` in the workspace; that file is removed."""
    task = asyncio.create_task(command)
    assert session.workspace_path is not None
    made = session.workspace_path / "started"
    while not made.exists():
        assert not task.done()
        await asyncio.sleep(0.02)
    made.unlink()
    return task


async def cancel(session: UserSession, command: Coroutine[Any, Any, Any]) -> None:
    """Cancel the task of a command that has made the file ``started``; nothing that it started is left."""
    task = await begun(session, command)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert programs_of(session.id) == []


async def discard_while(session: UserSession, command: Coroutine[Any, Any, Any]) -> BaseException | None:
    """Discard a session while a command runs, which has made the file ``started``; gives what the command raises."""
    task = await begun(session, command)
    await asyncio.to_thread(session.discard, force=True)
    return (await asyncio.gather(task, return_exceptions=True))[0]
