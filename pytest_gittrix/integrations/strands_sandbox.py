"""The sandbox for Strands: an agent's commands and files are those of a session, and a person promotes the result.

Written against ``strands.sandbox``. The framework's base class lists and removes files and runs code by commands; this sandbox runs the
commands, and reads and writes files.
"""

from __future__ import annotations

import asyncio
import codecs
import io
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from pytest_gittrix.aio.threads import in_thread
from pytest_gittrix.confine.program_streams import Output
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.engine.agents.programs import MOST_OUTPUT, timeout_code
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.files import SandboxFiles

with needs("strands"):
    from strands.sandbox import ExecutionResult, PosixShellSandbox, StreamChunk
    from strands.sandbox.errors import SandboxTimeoutError
    from strands.types.tools import AgentTool
    from strands.vended_tools.file_editor import make_file_editor
    from strands.vended_tools.file_editor.file_editor import DEFAULT_FILE_EDITOR_DESCRIPTION
    from strands.vended_tools.shell import make_shell

    from pytest_gittrix.integrations.waiting import run_cancellable  # loads anyio, which the framework brings

if TYPE_CHECKING:
    from pytest_gittrix.engine.agents.agent_session import AgentSession
    from pytest_gittrix.engine.agents.programs import ProgramSettings

_PIECE: Final = 1 << 16
"""About how many bytes a piece of output has at most."""

_UNREAD: Final = 16
"""How many pieces are kept for a reader; then the command waits, as on a pipe."""


class GittrixSandbox(PosixShellSandbox):
    """A session as the sandbox of an agent: ``Agent(sandbox=...)``. Nothing that the agent is given can promote.

    Relative paths are relative to the workspace.

    Attributes:
        programs: what runs the commands; ``programs.workspace`` is the directory that they start in.
    """

    def __init__(self, session: AgentSession, *, timeout: float | None = 120, **settings: Unpack[ProgramSettings]) -> None:
        """Choose how commands are confined; none is run yet.

        Args:
            session: the agent's side of a session, as ``for_agent()`` gives it.
            timeout: real seconds for a command for which the agent names none; None for no limit.
            settings: ``confine``, ``network``, ``limits`` and ``readable``, as for ``AgentSession.programs``.

        Raises:
            GittrixError: as ``AgentSession.programs``.
        """
        self.programs = session.programs(**settings)
        self._timeout = timeout
        self._files = SandboxFiles(self.programs)

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **_: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a line of shell. It ends with everything that it started, also when the task is cancelled or the generator is closed.

        Args:
            command: the line, for ``sh``.
            timeout: real seconds, above 0; None for the sandbox's.
            cwd: its working directory, relative to the workspace or as commands see it.
            env: more environment variables.

        Yields:
            What it writes, as it comes. A command whose output is not read waits. At the end its result: the first 10 Mi characters of each
            stream, and the exit code, which is 124 if a limit ended it.

        Raises:
            SandboxTimeoutError: it took too long.
            SessionExpired: the session has ended, before the command or while it ran.
            GittrixError: as ``Programs.start``.
        """
        seconds = self._timeout if timeout is None else timeout
        chunks: asyncio.Queue[StreamChunk | None] = asyncio.Queue(_UNREAD)
        kept = {"stdout": io.StringIO(), "stderr": io.StringIO()}
        start = partial(self.programs.start, stdin=b"", cwd=cwd or ".", environment=env, timeout=seconds, most_output=_PIECE)
        async with await in_thread(partial(start, ["/bin/sh", "-c", command]), Running.kill) as running:
            readers = [asyncio.create_task(_read(getattr(running, name), name, chunks)) for name in kept]
            try:
                for _reader in readers:
                    while (chunk := await chunks.get()) is not None:
                        text = kept[chunk.stream_type]
                        text.write(chunk.data[: MOST_OUTPUT - text.tell()])
                        yield chunk
            finally:
                for reader in readers:
                    reader.cancel()
            done = await running.wait_async()
        texts = {name: text.getvalue() for name, text in kept.items()}
        if done.ended is not None:
            await asyncio.to_thread(self.programs.require_live)  # it ended with its session
        if done.timed_out:
            raise SandboxTimeoutError(seconds, **texts)
        yield ExecutionResult(exit_code=timeout_code(done), **texts)

    async def read_file(self, path: str, **_: Any) -> bytes:
        """Read a file at a path that commands see.

        Raises:
            OSError: as for a program in the sandbox.
            TooLarge: it has more than 100 MiB.
            GittrixError: as ``Programs.run``.
        """
        return await run_cancellable(partial(self._files.read, path))

    async def write_file(self, path: str, content: bytes, **_: Any) -> None:
        """Write a file, with the directories above it.

        Raises:
            OSError: as for a program in the sandbox.
            GittrixError: as ``Programs.run``.
        """
        await run_cancellable(partial(self._files.write, path, content))

    def get_tools(self) -> list[AgentTool]:
        """A shell and an editor for files, as the framework's own sandboxes give them."""
        where = f"The project is in {self.programs.workspace}."
        return [
            make_shell(sandbox=self, name="sandbox_shell", description=f"Runs a line of shell. {where}"),
            make_file_editor(sandbox=self, name="sandbox_file_editor", description=f"{DEFAULT_FILE_EDITOR_DESCRIPTION} {where}"),
        ]


async def _read(output: Output, name: str, chunks: asyncio.Queue[StreamChunk | None]) -> None:
    """Pass on what comes on a stream, as text, and None at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for piece in output:
        await chunks.put(StreamChunk(decoder.decode(piece), name))
    await chunks.put(StreamChunk(decoder.decode(b"", final=True), name))
    await chunks.put(None)
