"""The workspace backend for pydantic-ai: an agent's tools run commands in a session, and a person promotes the result.

Written against the workspace protocol of pydantic-ai 2 (``pydantic_ai.workspaces.protocol``). It only runs commands; the framework reads
and writes files by commands, so both always see the same files. ``docs/reference/integrations.md`` lists which of the framework's checks
it passes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gittrix.engine.agents.programs import MOST_OUTPUT, Programs, exit_code
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.adapter import run_cancellable

with needs("pydantic-ai"):
    import anyio
    import anyio.abc
    import anyio.to_thread
    from pydantic_ai.workspaces import (
        CommandResult,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
    from pydantic_ai.workspaces.protocol import validate_timeout

if TYPE_CHECKING:
    from pytest_gittrix.confine.started_program import Finished
    from pytest_gittrix.engine.user_session import UserSession

PROVIDER: Final = "gittrix"
_POLL_SECONDS: Final = 0.1
_PREVIEW: Final = 64 * 1024


class GittrixWorkspaceBackend:
    """A session of a store, as the workspace of an agent's run. The first use starts the session.

    The session stays when a run ends: ``gittrix session diff`` shows the work, and ``gittrix promote`` promotes it.
    """

    def __init__(
        self,
        repository: str | os.PathLike[str] | None = None,
        *,
        task: str = "pydantic-ai",
        branch: str = "main",
        store: str | os.PathLike[str] | None = None,
        confine: str = "auto",
        history: str | int = "none",
        ref: WorkspaceRef | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Configure the backend; no session is started yet.

        Args:
            repository: the durable repository that the session starts on; not needed with a ``ref``.
            task: the session's task.
            branch: the branch of the repository.
            store: the directory of the store; the default store of ``gittrix`` if None.
            confine: ``auto``, ``off``, ``guard`` or ``jail``.
            history: how much of the history commands see: ``none``, a number of commits, or ``full``.
            ref: an existing session to use, instead of a new one.
            env: more environment variables for every command.

        Raises:
            InvalidInput: there is neither a repository nor a ref, or the ref is of another provider.
        """
        if ref is None and repository is None:
            raise InvalidInput("The workspace has no repository and no ref.", fix="Give a repository to start on, or the ref of a session.")
        if ref is not None and ref.provider != PROVIDER:
            raise InvalidInput(f"The ref is of the provider {ref.provider!r}, not of {PROVIDER!r}.", fix="Use that provider's backend.")
        self._repository = repository
        self._task = task
        self._branch = branch
        self._store = None if store is None else Path(store).absolute()
        self._confine = confine
        self._history = history
        self._env = dict(env or {})
        self._ref = ref
        self._lock = threading.Lock()
        self._opened: tuple[UserSession, Programs] | None = None
        self._closing = ExitStack()

    @property
    def ref(self) -> WorkspaceRef | None:
        """A reference to the session by its id; None before the session was started."""
        return self._ref

    @property
    def session(self) -> UserSession | None:
        """The session, with the rights of the person in charge; None before the first use."""
        return None if self._opened is None else self._opened[0]

    def close(self) -> None:
        """Close the engine and remove the home directory of commands; the session stays as it is."""
        self._closing.close()
        self._opened = None

    async def working_dir(self) -> str:
        """The directory that commands run in, as they see it; in a jail it is the same for every session."""
        return (await anyio.to_thread.run_sync(self._live_programs)).workspace

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command. Arguments and errors are those of ``SupportsCommands.run``.

        Processes that the command started end with it, at every level of confinement. This is the one difference to the protocol, by
        which detached processes go on.
        """
        validate_timeout(timeout)
        if isinstance(command, str) != shell:
            raise TypeError("A text is a command with shell=True, and a sequence of words without it.")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [*command]
        programs = await anyio.to_thread.run_sync(self._live_programs)
        call = partial(programs.run, argv, environment={**self._env, **(env or {})}, timeout=timeout)
        try:
            done = await self._watched(call)
        except GittrixError as error:
            await anyio.to_thread.run_sync(self._live_programs)
            raise WorkspaceUnavailableError(str(error)) from error
        await anyio.to_thread.run_sync(self._live_programs)  # a command also ends with its session
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        if done.timed_out:
            raise WorkspaceTimeoutError(f"The command did not end within {timeout:g} seconds.", stdout=stdout, stderr=stderr)
        if done.truncated:
            raise WorkspaceOutputLimitError(
                f"The command wrote more than {MOST_OUTPUT} bytes; let it write to a file, and read a part of that.",
                limit=MOST_OUTPUT,
                stdout=stdout[:_PREVIEW],
                stderr=stderr[:_PREVIEW],
            )
        return CommandResult(exit_code=exit_code(done) or 0, stdout=stdout, stderr=stderr)

    async def _watched(self, call: partial[Finished]) -> Finished:
        """Run a command, and end it as soon as its workspace is removed, which a program in a jail would not notice."""
        done: list[Finished] = []
        failed: list[GittrixError] = []

        async def command(group: anyio.abc.TaskGroup) -> None:
            try:
                done.append(await run_cancellable(call))
            except GittrixError as error:
                failed.append(error)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(command, group)
            while self._is_there():
                await anyio.sleep(_POLL_SECONDS)
            group.cancel_scope.cancel()
        if failed:
            raise failed[0]
        if not done:
            raise WorkspaceUnavailableError("The session ended while the command ran.")
        return done[0]

    def _is_there(self) -> bool:
        session = self.session
        return session is not None and os.path.isdir(parts_of(session).workspace.path)

    def _live_programs(self) -> Programs:
        """The programs of the session, which must not have ended. The first call starts the session; concurrent calls wait for it."""
        with self._lock:
            try:
                if self._opened is None:
                    self._opened = self._open()
                session, programs = self._opened
                programs.require_live()
            except InvalidInput:
                raise
            except GittrixError as error:
                raise WorkspaceUnavailableError(str(error)) from error
            if not self._is_there():
                raise WorkspaceUnavailableError(f"The workspace of {session.id} is gone.")
            return programs

    def _open(self) -> tuple[UserSession, Programs]:
        from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
        from pytest_gittrix.engine.engine import GitTrix

        durable = None if self._repository is None else LocalDurable(self._repository, self._branch)
        ephemeral = LocalEphemeral("clone", self._history)  # type: ignore[arg-type]
        engine = self._closing.enter_context(GitTrix(durable, ephemeral, store=self._store, sweep_interval=None))
        if self._ref is None:
            session = engine.start_session(self._task)
            self._ref = WorkspaceRef(provider=PROVIDER, id=session.id)
        else:
            session = engine.get_session(self._ref.id)
        programs = self._closing.enter_context(Programs(session.for_agent(), engine.clock, self._confine))
        return session, programs
