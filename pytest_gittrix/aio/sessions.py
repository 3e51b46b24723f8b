"""A session as its agent holds it, and its programs, for asyncio.

Files and the log are a matter of milliseconds, and are worked on in threads of the event loop's pool. A program has a thread of its own
that attends it, so no thread of the pool waits for its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.aio.threads import Mirror, entered, in_thread, mirrored
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.program_streams import KeptOutput
from pytest_gittrix.confine.runner import MOST_OUTPUT, SIZE
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint


class AsyncPrograms(Mirror[Programs]):
    """``Programs`` for asyncio. ``AsyncAgentSession.programs`` makes it."""

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

    @asynccontextmanager
    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        most_output: int = MOST_OUTPUT,
        keep: KeptOutput = "unread",
        merged: bool = False,
        pty: bool = False,
        size: tuple[int, int] = SIZE,
    ) -> AsyncIterator[Running]:
        """As ``Programs.start``, for a block. However the block ends, the program is killed with everything that it started.

        Its ``stdout.read_async()``, ``wait_async()`` and ``async for piece in running.stdout`` wait for it; ``write``, ``send_signal``,
        ``resize`` and ``poll`` never wait.
        """
        start = partial(
            self.blocking.start,
            argv,
            stdin=stdin,
            cwd=cwd,
            environment=environment,
            timeout=timeout,
            most_output=most_output,
            keep=keep,
            merged=merged,
            pty=pty,
            size=size,
        )
        running = await in_thread(start, Running.kill)
        try:
            yield running
        finally:
            await in_thread(running.kill)


class AsyncAgentSession(Mirror[AgentSession]):
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

    @asynccontextmanager
    async def programs(
        self,
        *,
        confine: str | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        at: str | None = "/workspace",
        readable: Iterable[Path | str] = (),
        beside: Sequence[str] = (),
        sockets: Mapping[str, Path | str] | None = None,
        keep_home: bool = True,
    ) -> AsyncIterator[AsyncPrograms]:
        """As ``AgentSession.programs``, for a block; programs that still run at its end are killed."""
        make = partial(
            self.blocking.programs,
            confine=confine,
            network=network,
            limits=limits,
            at=at,
            readable=readable,
            beside=beside,
            sockets=sockets,
            keep_home=keep_home,
        )
        programs = await in_thread(make, Programs.close)
        try:
            yield AsyncPrograms(programs)
        finally:
            await in_thread(programs.close)

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
