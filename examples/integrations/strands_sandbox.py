"""A sandbox for Strands: an agent's commands and files are those of a session, and a person promotes the result.

Copy this file into your project. Written against ``strands.sandbox`` of version 1.62. The framework's base class lists and removes files
and runs code by commands; this sandbox runs the commands, and reads and writes files.
"""

from __future__ import annotations

import asyncio
import codecs
import io
from collections.abc import AsyncGenerator
from typing import Any, Final

from strands.sandbox import ExecutionResult, PosixShellSandbox, StreamChunk
from strands.sandbox.errors import SandboxTimeoutError
from strands.types.tools import AgentTool
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.file_editor.file_editor import DEFAULT_FILE_EDITOR_DESCRIPTION
from strands.vended_tools.shell import make_shell

from pytest_gittrix.confine import Output
from pytest_gittrix.engine import AgentSession
from pytest_gittrix.integrations.adapter import MOST_OUTPUT, SandboxAdapter, timeout_code

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

    def __init__(self, session: AgentSession, *, timeout: float | None = 120, **settings: Any) -> None:
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
        self._sandbox = SandboxAdapter(self.programs)

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
        options = {"stdin": b"", "cwd": cwd or ".", "environment": env, "timeout": seconds, "most_output": _PIECE}
        async with await self._sandbox.start_async(command, **options) as running:
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
        return await self._sandbox.read_async(path)

    async def write_file(self, path: str, content: bytes, **_: Any) -> None:
        """Write a file, with the directories above it.

        Raises:
            OSError: as for a program in the sandbox.
            GittrixError: as ``Programs.run``.
        """
        await self._sandbox.write_async(path, content)

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
