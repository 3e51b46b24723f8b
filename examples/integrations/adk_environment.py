"""An environment for the Agent Development Kit: an agent's commands and files are those of a session, and a person promotes the result.

Copy this file into your project. Written against ``google.adk.environment`` of version 2.13, which calls it experimental.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from google.adk.environment import BaseEnvironment, ExecutionResult

from pytest_gittrix.engine import AgentSession
from pytest_gittrix.integrations.adapter import SandboxAdapter, timeout_code


class GittrixEnvironment(BaseEnvironment):
    """A session as an environment: ``EnvironmentToolset(environment=...)``. Nothing that the agent is given can promote.

    Relative paths are relative to the workspace.
    """

    def __init__(self, session: AgentSession, **settings: Any) -> None:
        """Choose how commands are confined; none is run yet.

        Args:
            session: the agent's side of a session, as ``for_agent()`` gives it.
            settings: ``confine``, ``network``, ``limits`` and ``readable``, as for ``AgentSession.programs``.

        Raises:
            GittrixError: as ``AgentSession.programs``.
        """
        self._open = partial(session.programs, **settings)
        self._begin()

    def _begin(self) -> None:
        self._sandbox = SandboxAdapter(self._open())
        self.is_initialized = True

    async def initialize(self) -> None:
        """Begin again after a ``close``, with the home directory of the session. Before a ``close``, this does nothing.

        Raises:
            GittrixError: as ``AgentSession.programs``.
        """
        if not self.is_initialized:
            await asyncio.to_thread(self._begin)

    @property
    def working_dir(self) -> Path:
        """The workspace, as commands see it."""
        return Path(self._sandbox.programs.workspace)

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run a line of shell in the workspace. It ends with everything that it started, also when the task is cancelled.

        Args:
            command: the line, for ``sh``.
            timeout: real seconds, above 0; None for no limit.

        Returns:
            The first 10 MiB of each stream, and the exit code: 124 if its time or a limit ended it.

        Raises:
            SessionExpired: the session has ended, before the command or while it ran.
            GittrixError: as ``Programs.run``.
        """
        done = await self._sandbox.run_async(command, timeout=timeout)
        return ExecutionResult(
            exit_code=timeout_code(done),
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
            timed_out=done.timed_out,
        )

    async def read_file(self, path: str | Path) -> bytes:
        """Read a file at a path that commands see.

        Raises:
            OSError: as for a program in the sandbox.
            TooLarge: it has more than 100 MiB.
            GittrixError: as ``Programs.run``.
        """
        return await self._sandbox.read_async(str(path))

    async def write_file(self, path: str | Path, content: str | bytes) -> None:
        """Write a file, with the directories above it. A text is written in UTF-8.

        Raises:
            OSError: as for a program in the sandbox.
            GittrixError: as ``Programs.run``.
        """
        await self._sandbox.write_async(str(path), content.encode() if isinstance(content, str) else content)

    async def close(self) -> None:
        """End everything that runs. The session stays, for a person to review."""
        self.is_initialized = False
        await asyncio.to_thread(self._sandbox.programs.close)
