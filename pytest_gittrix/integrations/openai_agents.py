"""The sandbox for the OpenAI Agents SDK: a client whose sandboxes are sessions, confined, and a person promotes the result.

Written against ``agents.sandbox``. Commands, files and terminals are those of the session's programs: files are read and written by small
programs inside, so nothing that the agent names leads out. ``docs/reference/integrations.md`` lists what is checked.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_gittrix.engine.agents.programs import MOST_OUTPUT, Programs
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.adapter import SandboxAdapter
from pytest_gittrix.os_level.monotonic import real_seconds

with needs("openai-agents"):
    from agents.sandbox import (
        ExecResult,
        ExecTimeoutError,
        ExecTransportError,
        Manifest,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
        resolve_snapshot,
    )
    from agents.sandbox.session import SandboxSession, SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.pty_output import collect_pty_output
    from agents.sandbox.session.pty_types import (
        PTY_PROCESSES_MAX,
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        process_id_to_prune_from_meta,
        resolve_pty_write_yield_time_ms,
    )
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.workspace_payloads import coerce_write_payload
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint
    from pytest_gittrix.confine.running_program import Running
    from pytest_gittrix.confine.started_program import Finished
    from pytest_gittrix.engine.agents.agent_session import AgentSession
    from pytest_gittrix.engine.engine import GitTrix

MOST_BYTES_OF_SNAPSHOT: Final = 1 << 30
"""The size of the largest workspace that is saved as a snapshot, in bytes."""


class GittrixSandboxClientOptions(BaseSandboxClientOptions):
    """The options of one sandbox.

    Attributes:
        task: the task of its session.
    """

    type: Literal["gittrix"] = "gittrix"
    task: str = "openai-agents"


class GittrixSandboxSessionState(SandboxSessionState):
    """What resumes a sandbox, in another process too.

    Attributes:
        gittrix_session: the id of its session in the engine's store.
    """

    type: Literal["gittrix"] = "gittrix"
    gittrix_session: str


class GittrixSandboxClient(BaseSandboxClient[GittrixSandboxClientOptions | None]):
    """Makes sandboxes that are sessions of an engine. Nothing that an agent is given can promote them.

    A sandbox that is closed or deleted leaves its session as it is, for a person to review: the SDK deletes its sandboxes after each run.
    """

    backend_id = "gittrix"
    supports_default_options = True

    def __init__(
        self,
        engine: GitTrix,
        *,
        confine: str | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        readable: Iterable[Path | str] = (),
        instrumentation: Any = None,
    ) -> None:
        """Choose the engine, and how all sandboxes are confined; no session is started yet.

        Args:
            engine: starts and finds the sessions.
            confine, network, limits, readable: as for ``AgentSession.programs``.
            instrumentation: the SDK's, for its events.
        """
        self._engine = engine
        self._programs = partial(_session_programs, confine=confine, network=network, limits=limits, readable=tuple(readable))
        self._instrumentation = instrumentation or Instrumentation()

    async def create(
        self, *, snapshot: Any = None, manifest: Any = None, options: GittrixSandboxClientOptions | None = None
    ) -> SandboxSession:
        """Start a session, and give its sandbox. In a jail the workspace is at the manifest's root, elsewhere at its own path.

        Raises:
            InvalidInput: the manifest has users or groups.
            GittrixError: as ``GitTrix.start_session`` and ``AgentSession.programs``.
        """
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        if manifest.users or manifest.groups:
            raise InvalidInput(
                "The manifest has users or groups.",
                why="Programs of a session run as one user.",
                fix="Leave users and groups out of the manifest.",
            )
        task = (options or GittrixSandboxClientOptions()).task
        session = await asyncio.to_thread(self._engine.start_session, task)
        programs = await asyncio.to_thread(self._programs, session.for_agent(), at=manifest.root)
        state = GittrixSandboxSessionState(
            manifest=manifest.model_copy(update={"root": programs.workspace}, deep=True),
            snapshot=resolve_snapshot(snapshot, session.id),
            gittrix_session=session.id,
        )
        return self._wrap_session(GittrixSandboxSession(state, programs), instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Give the sandbox of a session that was started before.

        Raises:
            InvalidInput: the state is of another client.
            SessionNotFound, SessionExpired: there is no such session, or it has ended.
        """
        if not isinstance(state, GittrixSandboxSessionState):
            raise InvalidInput(f"{type(state).__name__} is no state of this client.", fix="Resume it by the client that made it.")
        session = await asyncio.to_thread(self._engine.get_session, state.gittrix_session)
        programs = await asyncio.to_thread(self._programs, session.for_agent(), at=state.manifest.root)
        inner = GittrixSandboxSession(state, programs, resumed=True)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Let go of a sandbox. Its session stays, until a person promotes or discards it, or it expires."""
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """The state of ``serialize_session_state``."""
        return self._deserialize_session_state_payload(payload, GittrixSandboxSessionState)


def _session_programs(session: AgentSession, **settings: Any) -> Programs:
    return session.programs(**settings)


def _status(done: Finished) -> int:
    """The exit code as the SDK gives it: minus the number of a signal."""
    return -done.signal if done.signal is not None else done.code or 0


@dataclass
class _Terminal:
    """A program that stays, and its output that was not taken yet."""

    running: Running
    tty: bool
    pump: asyncio.Task[None] | None = None
    pieces: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: Finished | None = None
    used: float = field(default_factory=real_seconds)

    async def read(self) -> None:
        """Take in what it writes, to its end."""
        async for piece in self.running.stdout:
            async with self.lock:
                self.pieces.append(piece)
            self.news.set()
        self.ended = await self.running.wait_async()
        self.news.set()

    async def collect(self, milliseconds: int, tokens: int | None) -> tuple[bytes, int | None]:
        """What it writes in some time, or until its end."""
        output, count, _ = await collect_pty_output(
            output_chunks=self.pieces,
            output_lock=self.lock,
            output_notify=self.news,
            is_done=lambda: self.ended is not None,
            yield_time_ms=milliseconds,
            max_output_tokens=tokens,
        )
        self.used = real_seconds()
        return output, count


class GittrixSandboxSession(BaseSandboxSession):
    """The sandbox of one session. ``GittrixSandboxClient`` makes it."""

    state: GittrixSandboxSessionState

    def __init__(self, state: GittrixSandboxSessionState, programs: Programs, *, resumed: bool = False) -> None:
        self.state = state
        self._programs = programs
        self._sandbox = SandboxAdapter(programs)
        self._started = False
        self._terminals: dict[int, _Terminal] = {}
        self._set_start_state_preserved(resumed)

    # Its life.

    async def running(self) -> bool:
        """Whether it was started, and neither it nor its session has ended."""
        try:
            await asyncio.to_thread(self._programs.require_live)
        except GittrixError:
            return False
        return self._started

    async def _after_start(self) -> None:
        self._started = True

    async def _shutdown_backend(self) -> None:
        self._started = False
        await asyncio.to_thread(self._programs.close)

    # Commands.

    def _prepare_exec_command(self, *command: str | Path, shell: bool | list[str], user: Any) -> list[str]:
        if user is not None:
            raise ExecTransportError(command=command, message="programs of a session run as one user; leave user= out")
        # A login shell would reset PATH.
        prepared: list[str] = super()._prepare_exec_command(*command, shell=["sh", "-c"] if shell is True else shell, user=None)
        return prepared

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        done = await self._run([str(word) for word in command], timeout=timeout)
        if done.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        passed = b"" if done.limit is None else f"\nThe command was ended: it passed its limit of {done.limit}.\n".encode()
        return ExecResult(stdout=done.stdout, stderr=done.stderr + passed, exit_code=_status(done))

    async def _run(self, argv: list[str], *, timeout: float | None = None, stdin: bytes = b"", most: int = MOST_OUTPUT) -> Finished:
        variables = await self.state.manifest.environment.resolve()
        try:
            return await self._sandbox.run_async(argv, stdin=stdin, environment=variables, timeout=timeout, most_output=most)
        except GittrixError as error:
            raise ExecTransportError(command=argv, cause=error, message=str(error)) from error

    # Files.

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        if self._programs.confinement.level == "jail":
            found: Path = await self._validate_remote_path_access(path, for_write=for_write)
            return found
        return self.normalize_path(path, for_write=for_write)

    def normalize_path(self, path: Path | str, *, for_write: bool = False) -> Path:
        """The path of a file as programs see it; outside of a jail links are followed here, and one that leads out is an error."""
        follow = self._programs.confinement.level != "jail"
        found: Path = self._workspace_path_policy().normalize_path(path, for_write=for_write, resolve_symlinks=follow)
        return found

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        """Read a file, by a program inside. ``user`` must be None."""
        self._prepare_exec_command("cat", shell=False, user=user)
        shown = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._sandbox.read_async(str(shown)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=Path(path), cause=error) from error
        except (OSError, GittrixError) as error:
            raise WorkspaceArchiveReadError(path=Path(path), cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        """Write a file with the directories above it, by a program inside. ``user`` must be None."""
        self._prepare_exec_command("cat", shell=False, user=user)
        shown = await self._validate_path_access(path, for_write=True)
        contents = coerce_write_payload(path=Path(path), data=data).stream.read()
        try:
            await self._sandbox.write_async(str(shown), contents)
        except (OSError, GittrixError) as error:
            raise WorkspaceArchiveWriteError(path=Path(path), cause=error) from error

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar, without what the SDK leaves out."""
        root = Path(self._programs.workspace)
        left_out = [f"--exclude=./{path.as_posix()}" for path in sorted(self._persist_workspace_skip_relpaths())]
        done = await self._run(
            ["tar", "-C", str(root), "--anchored", "--no-wildcards", *left_out, "-cf", "-", "."], most=MOST_BYTES_OF_SNAPSHOT
        )
        if done.code != 0 or done.truncated:
            raise WorkspaceArchiveReadError(path=root, context={"reason": done.stderr.decode("utf-8", "replace") or "it is too large"})
        return io.BytesIO(done.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar in the workspace. One with a member that leads out of it is refused."""
        root, contents = Path(self._programs.workspace), data.read()
        try:
            with tarfile.open(fileobj=io.BytesIO(contents)) as tar:
                validate_tarfile(tar, allow_external_symlink_targets=False)
        except (UnsafeTarMemberError, tarfile.TarError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        done = await self._run(["tar", "-C", str(root), "--no-same-owner", "-xf", "-"], stdin=contents)
        if done.code != 0:
            raise WorkspaceArchiveWriteError(path=root, context={"reason": done.stderr.decode("utf-8", "replace")})

    # Terminals, and other programs that stay.

    def supports_pty(self) -> bool:
        """It has terminals at every level."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ARG002  (the SDK's own sandboxes take no notice of it either)
        shell: bool | list[str] = True,
        user: Any = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a program that stays, and give what it writes at first."""
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        variables = await self.state.manifest.environment.resolve()
        start = partial(self._programs.start, argv, environment=variables, stdin=None if tty else b"", pty=tty, merged=not tty)
        starting = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            terminal = _Terminal(await asyncio.shield(starting), tty)
        except asyncio.CancelledError:
            await asyncio.to_thread((await starting).kill)
            raise
        except GittrixError as error:
            raise ExecTransportError(command=argv, cause=error, message=str(error)) from error
        terminal.pump = asyncio.create_task(terminal.read())
        await self._make_room()
        number = allocate_pty_process_id(set(self._terminals))
        self._terminals[number] = terminal
        milliseconds = clamp_pty_yield_time_ms(10_000 if yield_time_s is None else int(yield_time_s * 1000))
        return await self._update(number, milliseconds, max_output_tokens)

    async def pty_write_stdin(
        self, *, session_id: int, chars: str, yield_time_s: float | None = None, max_output_tokens: int | None = None
    ) -> PtyExecUpdate:
        """Type on a program's terminal, and give what it writes then; without characters, what it wrote since."""
        terminal = self._resolve_pty_session_entry(pty_processes=self._terminals, session_id=session_id)
        if chars:
            if not terminal.tty:
                raise RuntimeError("stdin is not available for this process")
            terminal.running.write(chars.encode())
        milliseconds = 250 if yield_time_s is None else int(yield_time_s * 1000)
        return await self._update(
            session_id, resolve_pty_write_yield_time_ms(yield_time_ms=milliseconds, input_empty=not chars), max_output_tokens
        )

    async def pty_terminate_all(self) -> None:
        """End all programs that stay, with all that they started."""
        terminals = [*self._terminals.values()]
        self._terminals.clear()
        for terminal in terminals:
            await self._end(terminal)

    async def _update(self, number: int, milliseconds: int, tokens: int | None) -> PtyExecUpdate:
        terminal = self._terminals[number]
        output, count = await terminal.collect(milliseconds, tokens)
        if terminal.ended is None:
            return PtyExecUpdate(process_id=number, output=output, exit_code=None, original_token_count=count)
        self._terminals.pop(number, None)
        if terminal.ended.ended is not None:
            try:
                await asyncio.to_thread(self._programs.require_live)
            except GittrixError as error:  # it ended with its session
                raise ExecTransportError(command=(), cause=error, message=str(error)) from error
        return PtyExecUpdate(process_id=None, output=output, exit_code=_status(terminal.ended), original_token_count=count)

    async def _make_room(self) -> None:
        if len(self._terminals) < PTY_PROCESSES_MAX:
            return
        oldest = process_id_to_prune_from_meta([(number, one.used, one.ended is not None) for number, one in self._terminals.items()])
        if oldest is not None:
            await self._end(self._terminals.pop(oldest))

    async def _end(self, terminal: _Terminal) -> None:
        await asyncio.to_thread(terminal.running.kill)
        if terminal.pump is not None:
            await terminal.pump
