"""A session as its agent holds it, and its programs, for asyncio.

Files and the log are a matter of milliseconds, and are worked on in threads of the event loop's pool. A program has a thread of its own
that attends it, so no thread of the pool waits for its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.aio.threads import AsyncProxy, entered, for_block, mirrored
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.runner import MOST_OUTPUT
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint


def _itself(running: Running) -> Running:
    return running


class AsyncPrograms(AsyncProxy[Programs]):
    """``Programs`` for asyncio. ``AsyncAgentSession.programs`` makes it, for a block, at whose end it kills the programs that still run.

    ``start`` gives a ``Running`` for a block. Its ``stdout.read_async()``, ``wait_async()`` and ``async for piece in running.stdout`` wait;
    ``write``, ``send_signal``, ``resize`` and ``poll`` never do.
    """

    @property
    def workspace(self) -> str:
        """The absolute path of the workspace, as programs see it."""
        return self.blocking.workspace

    @property
    def confinement(self) -> Confinement:
        """The level of confinement, and why it is no stronger."""
        return self.blocking.confinement

    @property
    def place(self) -> Place:
        """Where programs run."""
        return self.blocking.place

    @property
    def home(self) -> Path:
        """Their home directory, on this machine."""
        return self.blocking.home

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """As ``Programs.environment``, which does not block."""
        return self.blocking.environment(more)

    close = mirrored(Programs.close)
    require_live = mirrored(Programs.require_live)

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        most_output: int = MOST_OUTPUT,
        merged: bool = False,
    ) -> Finished:
        """As ``Programs.run``. A cancelled task kills the program with everything that it started, and waits for that."""
        async with self.start(
            argv,
            stdin=stdin,
            cwd=cwd,
            environment=environment,
            timeout=timeout,
            most_output=most_output,
            keep="first",
            merged=merged,
        ) as running:
            return await running.wait_async()

    start = for_block(Programs.start, _itself, Running.kill)


class AsyncAgentSession(AsyncProxy[AgentSession]):
    """The agent's side of a session for asyncio: each method is that of ``AgentSession``, with the same arguments, results and errors."""

    @property
    def id(self) -> str:
        """The session's id."""
        return self.blocking.id

    @property
    def workspace_path(self) -> Path | None:
        """The workspace's root, fit as a working directory; None where no directory is that."""
        return self.blocking.workspace_path

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """As ``AgentSession.environment``, which does not block."""
        return self.blocking.environment(base)

    info = mirrored(AgentSession.info)
    read = mirrored(AgentSession.read)
    write = mirrored(AgentSession.write)
    delete = mirrored(AgentSession.delete)
    list = mirrored(AgentSession.list)
    exists = mirrored(AgentSession.exists)
    touched_files = mirrored(AgentSession.touched_files)
    diff = mirrored(AgentSession.diff)
    commit = mirrored(AgentSession.commit)
    write_and_commit = mirrored(AgentSession.write_and_commit)
    log = mirrored(AgentSession.log)
    record = mirrored(AgentSession.record)
    emit = mirrored(AgentSession.emit)
    history = mirrored(AgentSession.history)
    checkpoint = mirrored(AgentSession.checkpoint)
    attach = mirrored(AgentSession.attach)
    attached = mirrored(AgentSession.attached)

    def step(self, name: str, *, molecule_id: str | None = None) -> AbstractAsyncContextManager[None]:
        """As ``AgentSession.step``."""
        return entered(self.blocking.step(name, molecule_id=molecule_id))

    programs = for_block(AgentSession.programs, AsyncPrograms, Programs.close)

    async def run(
        self,
        argv: Sequence[str],
        *,
        confine: str | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        **options: Any,
    ) -> Finished:
        """As ``AgentSession.run``; ``options`` as for ``AsyncPrograms.run``. A cancelled task ends the program and waits for that."""
        async with self.programs(confine=confine, network=network, limits=limits, at=None, keep_home=False) as programs:
            return await programs.run(argv, **options)
