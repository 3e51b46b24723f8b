"""Programs at work in a workspace: one that the engine runs, and one of a stranger, for as long as a test wants."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.agent_session import AgentSession

LONG: Final = 60.0
"""Real seconds after which something that was to end counts as stuck."""


class Work:
    """A program that the engine runs in a thread: it waits until it is let go, and then does the rest of its script.

    Attributes:
        result: how it ended, once it has.
    """

    def __init__(self, workspace: Path, result: Future[Finished]) -> None:
        self.result = result
        self._go = workspace / "go"

    def finish(self) -> Finished:
        """Let it go, and wait for its end."""
        with suppress(OSError):  # the workspace is gone, or was handed on
            self._go.touch()
        return self.result.result(LONG)


@contextmanager
def at_work(session: AgentSession, then: str = "echo ok > result.txt", *, first: str = ":", confine: str = "off") -> Iterator[Work]:
    """A program in a session, which the test lets go; at the end of the block at the latest.

    Args:
        session: the session.
        then: what its shell does when it was let go.
        first: what it does before it waits.
        confine: its level.
    """
    workspace = session.workspace_path
    assert workspace is not None
    os.mkfifo(workspace / "up")
    # In the background, since dash loses a signal that comes while it starts a program in the foreground.
    script = f"{first}; echo > up; until [ -e go ]; do sleep 0.02 & wait $!; done; rm go; {then}"
    with ThreadPoolExecutor(1) as pool:
        work = Work(workspace, pool.submit(session.run, ["sh", "-c", script], confine=confine, timeout=LONG))
        (workspace / "up").read_bytes()
        try:
            yield work
        finally:
            work.finish()


@contextmanager
def stranger(*argv: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that the engine knows nothing of; it is gone at the end."""
    process = subprocess.Popen(argv or ("sleep", "600"), **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
