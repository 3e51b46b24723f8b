"""The environment for the Agent Development Kit: an agent's commands and files are those of a session, and a person promotes the result.

Written against ``google.adk.environment``, which the kit calls experimental.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gittrix.engine.agents.programs import exit_code
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.files import SandboxFiles

with needs("adk"):
    from google.adk.environment import BaseEnvironment, ExecutionResult

    from pytest_gittrix.integrations.waiting import run_cancellable  # loads anyio, which the kit brings

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint
    from pytest_gittrix.engine.agents.agent_session import AgentSession

ENDED: Final = 124
"""The exit code of a command that was ended, as the program ``timeout`` gives it."""


class GittrixEnvironment(BaseEnvironment):
    """A session as an environment: ``EnvironmentToolset(environment=...)``. Nothing that the agent is given can promote.

    Attributes:
        programs: what runs the commands.
    """

    def __init__(
        self,
        session: AgentSession,
        *,
        confine: str | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        readable: Iterable[Path | str] = (),
    ) -> None:
        """Choose how commands are confined; none is run yet.

        Args:
            session: the agent's side of a session, as ``for_agent()`` gives it.
            confine, network, limits, readable: as for ``AgentSession.programs``.

        Raises:
            GittrixError: as ``AgentSession.programs``.
        """
        self._open = partial(session.programs, confine=confine, network=network, limits=limits, readable=readable)
        self._begin()

    def _begin(self) -> None:
        self.programs = self._open()
        self._files = SandboxFiles(self.programs)
        self.is_initialized = True

    async def initialize(self) -> None:
        """Begin again after a ``close``, with an empty home directory; else nothing happens."""
        if not self.is_initialized:
            self._begin()

    @property
    def working_dir(self) -> Path:
        """The workspace, as commands see it."""
        return Path(self.programs.workspace)

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run a line of shell in the workspace. What it started ends with it, and with a cancelled task.

        Args:
            command: the line, for ``sh``.
            timeout: real seconds, above 0; None for no limit.

        Returns:
            At most 10 MiB of each stream, and the exit code: 124 if it was ended, for its time or a limit.

        Raises:
            GittrixError: as ``Programs.run``.
        """
        done = await run_cancellable(partial(self.programs.run, ["/bin/sh", "-c", command], timeout=timeout))
        code = exit_code(done)
        return ExecutionResult(
            exit_code=ENDED if code is None or done.limit is not None else code,
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
            timed_out=done.timed_out,
        )

    async def read_file(self, path: str | Path) -> bytes:
        """Read a file at a path that commands see. Raises OSError as for a program in the sandbox."""
        return await run_cancellable(partial(self._files.read, str(path)))

    async def write_file(self, path: str | Path, content: str | bytes) -> None:
        """Write a file, with the directories above it. Raises OSError as for a program in the sandbox."""
        data = content.encode() if isinstance(content, str) else content
        await run_cancellable(partial(self._files.write, str(path), data))

    async def close(self) -> None:
        """End everything that runs. The session stays, for a person to review."""
        self.is_initialized = False
        self.programs.close()
