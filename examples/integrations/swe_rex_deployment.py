"""A deployment and runtime for SWE-ReX: an agent's shells, commands and files are those of a session, and a person promotes the result.

Copy this file into your project. Written against ``swerex.runtime.abstract`` of version 1.4. A shell is the framework's own
``BashSession``. It checks each command by a program of its own, so it runs in the sandbox too: nothing that an agent writes is read by a
shell outside.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio.to_thread
import pexpect
from pydantic import BaseModel, ValidationError
from swerex import exceptions
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.runtime import abstract
from swerex.runtime.abstract import AbstractRuntime
from swerex.utils.log import get_logger

from pytest_gittrix.engine import AgentSession
from pytest_gittrix.errors import CapabilityMissing, GittrixError
from pytest_gittrix.integrations.adapter import AnsweringPython, NoAnswer, Programs, SandboxAdapter, exit_code

_Answer = TypeVar("_Answer", bound=BaseModel)

_SHELL: Final = """
import asyncio
from swerex.runtime import abstract
from swerex.runtime.local import BashSession
os.environ["TERM"] = "dumb"  # for others bash sends control characters, which the framework takes for output
shell = None

def answer_to(kind, fields):
    global shell
    request = getattr(abstract, kind)(**fields)
    if shell is None:
        shell = BashSession(request)
        answer = asyncio.run(shell.start())
        # Where no file of the system sets a prompt, bash has shown two by now. A command leaves none unread.
        asyncio.run(shell.run(abstract.BashAction(command="true", check="silent")))
        return answer
    return asyncio.run(shell.run(request))

for line in questions:
    try:
        answer = {"answer": answer_to(*json.loads(line)).model_dump()}
    except Exception as problem:
        answer = {"error": type(problem).__name__, "text": str(problem), "extra_info": getattr(problem, "extra_info", {})}
    print(json.dumps(answer), file=answers, flush=True)
"""

_UNPACK: Final = 'mkdir -p -- "$1" && exec tar -x --no-same-owner -f - -C "$1"'

_ERRORS: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (*vars(exceptions).values(), pexpect.TIMEOUT, pexpect.EOF)
    if isinstance(kind, type) and issubclass(kind, Exception)
}
"""What a shell may raise, by its name; anything else that it names is a ``SwerexException``."""

_MORE_SECONDS: Final = 30
"""How much longer than its own timeout a shell may take to answer."""


class GittrixRuntime(AbstractRuntime):
    """A session as a runtime of SWE-ReX. Nothing that the agent is given can promote.

    Relative paths are relative to the workspace.

    Attributes:
        programs: what runs the shells and commands; ``programs.workspace`` is the directory that they start in.
    """

    def __init__(self, programs: Programs) -> None:
        """Make it of a session's programs; it closes them at its end.

        Raises:
            CapabilityMissing: they are confined at ``guard``.
        """
        if programs.confinement.level == "guard":
            raise CapabilityMissing(
                "SWE-ReX cannot work at the level guard.",
                why="Its shells make terminals of their own, and at this level no program can.",
                fix="Use confine='jail', on a machine that has it.",
                opt_out="confine='off' runs the agent's commands as your user.",
            )
        self.logger = get_logger("rex-runtime")
        self.programs = programs
        self._sandbox = SandboxAdapter(programs)
        self._shells: dict[str, AnsweringPython] = {}

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Whether the session has not ended."""
        del timeout
        try:
            await asyncio.to_thread(self.programs.require_live)
        except GittrixError as error:
            return abstract.IsAliveResponse(is_alive=False, message=str(error))
        return abstract.IsAliveResponse(is_alive=True)

    async def create_session(self, request: abstract.CreateBashSessionRequest) -> abstract.CreateBashSessionResponse:
        """Start a shell. A cancelled task leaves none.

        Raises:
            SessionExistsError: there is one of that name.
            pexpect.TIMEOUT: it did not start within ``startup_timeout``.
            pexpect.EOF: it ended while it read a file of ``startup_source``.
            SwerexException: it gave no answer.
            SessionExpired: the session has ended.
            GittrixError: as ``Programs.start``.
        """
        if request.session in self._shells:
            raise exceptions.SessionExistsError(f"session {request.session} already exists")
        shell = self._shells[request.session] = AnsweringPython(self.programs, _SHELL)
        try:
            return await self._ask(request, request.startup_timeout, abstract.CreateBashSessionResponse)
        except BaseException:
            await self._end(request.session, shell)
            raise

    async def run_in_session(self, action: abstract.BashAction | abstract.BashInterruptAction) -> abstract.BashObservation:
        """Run a command in a shell, or interrupt the one that runs there. Several shells work at the same time.

        A cancelled task ends the shell with everything that it started.

        Raises:
            SessionDoesNotExistError: there is no shell of that name.
            BashIncorrectSyntaxError: the command is no valid bash.
            CommandTimeoutError: it took too long. It still runs: interrupt it, or close the shell.
            NonZeroExitCodeError, NoExitCodeError: it failed, or its exit code was not found, and ``check`` is ``raise``.
            pexpect.TIMEOUT: an interrupt did not end it.
            pexpect.EOF: it ended the shell.
            SwerexException: the shell gave no answer, and is gone.
            SessionExpired: the session ended, before the command or while it ran.
        """
        tries = getattr(action, "n_retry", 0) + 2
        return await self._ask(action, None if action.timeout is None else action.timeout * tries, abstract.BashObservation)

    async def close_session(self, request: abstract.CloseBashSessionRequest) -> abstract.CloseBashSessionResponse:
        """End a shell with everything that it started.

        Raises:
            SessionDoesNotExistError: there is none of that name.
        """
        await self._end(request.session, self._shell(request.session))
        return abstract.CloseBashSessionResponse()

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        """Run a command of its own, with ``env`` as more variables. What it started ends with it, and with a cancelled task.

        Returns:
            The exit code, and at most 10 MiB of each stream.

        Raises:
            CommandTimeoutError: it took too long, or passed a limit.
            SessionExpired: the session has ended.
            NonZeroExitCodeError: it failed, and ``check`` is set.
        """
        words = [command.command] if isinstance(command.command, str) else [*command.command]
        argv = ["/bin/sh", "-c", *words] if command.shell else words
        options = {"cwd": command.cwd or ".", "environment": command.env, "timeout": command.timeout}
        done = await self._sandbox.run_async(argv, merged=command.merge_output_streams, **options)
        if done.timed_out or done.limit is not None:
            passed = "time" if done.limit is None else f"limit of {done.limit}"
            raise exceptions.CommandTimeoutError(f"The command was ended: it passed its {passed}.")
        stdout, stderr = (stream.decode("utf-8", "backslashreplace") for stream in (done.stdout, done.stderr))
        response = abstract.CommandResponse(stdout=stdout, stderr=stderr, exit_code=exit_code(done))
        if command.check and response.exit_code != 0:
            message = f"Command {command.command!r} failed with exit code {response.exit_code}.\nStdout:\n{stdout}\nStderr:\n{stderr}"
            raise exceptions.NonZeroExitCodeError(f"{command.error_msg}: {message}" if command.error_msg else message)
        return response

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        """Read a text file, with ``encoding`` and ``errors`` as for ``open``.

        Raises:
            OSError: as for a program in the sandbox.
            UnicodeDecodeError: it is no text in that encoding.
            LookupError: there is no such encoding or way to handle errors.
            TooLarge: it has more than 100 MiB.
            GittrixError: as ``Programs.run``.
        """
        data = await self._sandbox.read_async(request.path)
        text = io.TextIOWrapper(io.BytesIO(data), encoding=request.encoding or "utf-8", errors=request.errors)
        return abstract.ReadFileResponse(content=text.read())

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        """Write a text file in UTF-8, with the directories above it.

        Raises:
            OSError: as for a program in the sandbox.
            GittrixError: as ``Programs.run``.
        """
        await self._sandbox.write_async(request.path, request.content.encode())
        return abstract.WriteFileResponse()

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file or directory of this machine into the sandbox, with its mode.

        A link in the directory stays a link, which leads to what the sandbox has at that path: only files of the directory are copied.

        Raises:
            OSError: it cannot be read here or written there.
            GittrixError: as ``Programs.run``.
        """
        source = Path(await asyncio.to_thread(partial(os.path.realpath, request.source_path, strict=True)))
        if not source.is_dir():
            data, mode = await asyncio.to_thread(lambda: (source.read_bytes(), source.stat().st_mode & 0o777))
            await self._sandbox.write_async(request.target_path, data, mode=mode)
            return abstract.UploadResponse()
        packed = await asyncio.to_thread(_packed, source)
        unpack = ["/bin/sh", "-c", _UNPACK, "sh", request.target_path]
        done = await self._sandbox.run_async(unpack, stdin=packed)
        if done.code != 0:
            raise OSError(f"{source} was not uploaded: {done.stderr.decode('utf-8', 'replace')}")
        return abstract.UploadResponse()

    async def close(self) -> abstract.CloseResponse:
        """End everything that runs. The session stays, for a person to review."""
        shells = [*self._shells.values()]
        self._shells.clear()

        def end() -> None:
            for shell in shells:
                shell.end()
            self.programs.close()

        await asyncio.to_thread(end)  # it ends them all, also if the waiting task was cancelled
        return abstract.CloseResponse()

    def _shell(self, name: str) -> AnsweringPython:
        if name not in self._shells:
            raise exceptions.SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._shells[name]

    async def _end(self, name: str, shell: AnsweringPython) -> None:
        """End a shell without blocking the event loop. Its name may be that of a newer one by now, which stays."""
        if self._shells.get(name) is shell:
            del self._shells[name]
        await shell.end_async()

    async def _ask(
        self, request: abstract.CreateBashSessionRequest | abstract.Action, timeout: float | None, kind: type[_Answer]
    ) -> _Answer:
        """Have the shell that a request names answer it."""
        name, shell = request.session, self._shell(request.session)
        ask = partial(shell.ask, [type(request).__name__, request.model_dump()], None if timeout is None else timeout + _MORE_SECONDS)
        try:
            answer = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
            if "error" not in answer:
                return kind.model_validate(answer.get("answer"))
        except asyncio.CancelledError:
            await self._end(name, shell)
            raise
        except (NoAnswer, ValidationError) as problem:
            await self._end(name, shell)
            fact = problem if isinstance(problem, NoAnswer) else "It sent something else than an answer."
            raise exceptions.SwerexException(
                f"The shell {name!r} is gone. {fact}\n"
                "Its variables, its directory and everything that it started are gone too.\n"
                "Create a session of that name again."
            ) from None
        error = _ERRORS.get(str(answer["error"]), exceptions.SwerexException)(str(answer.get("text")))
        vars(error)["extra_info"] = answer.get("extra_info", {})
        raise error


class GittrixDeployment(AbstractDeployment):
    """A session as a deployment of SWE-ReX, such as ``SWEEnv(deployment=...)`` of SWE-agent takes."""

    def __init__(self, session: AgentSession, **settings: Any) -> None:
        """Choose how the agent is confined; nothing is started yet.

        Args:
            session: the agent's side of a session, as ``for_agent()`` gives it.
            settings: ``confine``, ``network``, ``limits`` and ``readable``, as for ``AgentSession.programs``.

        Raises:
            TypeError: there is no such setting.
        """
        signature(session.programs).bind(**settings)
        self.logger = get_logger("rex-deploy")
        self._programs = partial(session.programs, **settings)
        self._hooks = CombinedDeploymentHook()
        self._runtime: GittrixRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        """Call a hook at the start."""
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> GittrixRuntime:
        """The runtime. Raises DeploymentNotStartedError before the start and after the stop."""
        if self._runtime is None:
            raise exceptions.DeploymentNotStartedError
        return self._runtime

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Whether it was started, and the session has not ended."""
        if self._runtime is None:
            return abstract.IsAliveResponse(is_alive=False, message="It was not started.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Make the runtime; nothing happens if there is one.

        Raises:
            GittrixError: as ``AgentSession.programs``, and ``GittrixRuntime``.
        """
        if self._runtime is None:
            self._hooks.on_custom_step("Opening the session")
            self._runtime = GittrixRuntime(await asyncio.to_thread(self._programs))

    async def stop(self) -> None:
        """End everything that runs. The session stays, for a person to review."""
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None


def _packed(directory: Path) -> bytes:
    """A directory as an archive. Its links stay links: one that leads out of it brings no file of this machine along."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packing:
        packing.add(directory, arcname=".")
    return archive.getvalue()
