"""The backend for LangChain deepagents: an agent's files and commands are those of a session, and a person promotes the result.

Written against ``deepagents.backends``. The framework's base class reads, edits and searches files by commands; this backend runs the
commands. ``docs/reference/integrations.md`` lists which of the framework's checks it passes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.adapter import SandboxAdapter, run_cancellable, timeout_code

with needs("deepagents"):
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox

if TYPE_CHECKING:
    from pytest_gittrix.engine.agents.agent_session import AgentSession
    from pytest_gittrix.engine.agents.programs import ProgramSettings

DIRECTORIES: Final = ("/large_tool_results", "/conversation_history", "/blobs")
"""Where the framework puts large results, old messages and media. In a jail they are outside the workspace, and never promoted."""

_ERRORS: Final = {
    errno.ENOENT: "file_not_found",
    errno.EACCES: "permission_denied",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "invalid_path",
}


class GittrixBackend(BaseSandbox):
    """A session as the backend of ``create_deep_agent``. Nothing that the agent is given can promote.

    Attributes:
        programs: what runs the commands; ``programs.workspace`` is the working directory to tell the model.
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
        self._session = session
        self._timeout = timeout
        self.programs = session.programs(**settings, beside=DIRECTORIES)
        self._sandbox = SandboxAdapter(self.programs)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a line of shell in the workspace. What it started ends with it.

        Args:
            command: the line, for ``sh``.
            timeout: real seconds; 0 for no limit, None for the backend's.

        Returns:
            Both streams in the order in which they were written, and the exit code: 124 if the command was ended, for its time or a limit.

        Raises:
            SessionExpired: the session has ended, before the command or while it ran.
            GittrixError: as ``Programs.run``.
        """
        return self._execute(command, timeout, stop=None)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """As ``execute``; a cancelled task ends the command with all that it started."""
        return await run_cancellable(partial(self._execute, command, timeout))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, with the directories above them. Each has a response, in order; a file that cannot be written raises nothing.

        Args:
            files: absolute paths as commands see them, and contents.

        Raises:
            SessionExpired: the session ended, before the first file or meanwhile.
            GittrixError: as ``Programs.run``.
        """
        self.programs.require_live()
        written = [(path, _attempt(path, partial(self._sandbox.write, path, data))) for path, data in files]
        return [FileUploadResponse(path=path, error=error) for path, (_, error) in written]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files. Each has a response, in order; a file that cannot be read raises nothing.

        Args:
            paths: absolute, as commands see them.

        Raises:
            SessionExpired: the session ended, before the first file or meanwhile.
            GittrixError: as ``Programs.run``.
        """
        self.programs.require_live()
        read = [(path, _attempt(path, partial(self._sandbox.read, path))) for path in paths]
        return [FileDownloadResponse(path=path, content=content, error=error) for path, (content, error) in read]

    def _execute(self, command: str, timeout: int | None, *, stop: int | None) -> ExecuteResponse:
        seconds = self._timeout if timeout is None else timeout or None
        done = self._sandbox.run(command, timeout=seconds, merged=True, stop=stop)
        output = done.stdout.decode("utf-8", "replace")
        if done.limit is not None:
            output += f"\nThe command was ended: it passed its limit of {done.limit}.\n"
        elif done.timed_out:
            output += f"\nThe command was ended: it did not end within {seconds:g} seconds.\n"
        return ExecuteResponse(output=output, exit_code=timeout_code(done), truncated=done.truncated)


def _attempt(path: str, call: Callable[[], bytes | None]) -> tuple[bytes | None, str | None]:
    """What a call for a file gives, and the framework's word for why it failed, or a sentence where it has none."""
    if not path.startswith("/"):
        return None, "invalid_path"
    try:
        return call(), None
    except OSError as error:
        return None, _ERRORS.get(error.errno or 0, str(error))
    except InvalidInput as error:
        return None, "invalid_path" if "\0" in path else str(error)
