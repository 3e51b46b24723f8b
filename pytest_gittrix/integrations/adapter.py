"""What every integration is made of: a session's commands, files and a Python that stays, for blocking and for asynchronous frameworks.

Harnesses name files by absolute paths too: of the workspace, of a temporary directory, of the system. From outside the sandbox such a
path is another file, or leads out of the sandbox through a link that an agent made. So a small program inside the sandbox reads and writes
each file: it can reach no more than the agent's programs, and always sees the same files.

A thread cannot be cancelled, and a program that no task waits for must not run on. So each asynchronous call watches a file descriptor; a
cancelled task makes that descriptor readable and waits until the call has returned.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

from pytest_gittrix.aio.threads import in_thread
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.programs import MOST_OUTPUT as MOST_OUTPUT
from pytest_gittrix.engine.agents.programs import Programs as Programs
from pytest_gittrix.engine.agents.programs import exit_code as exit_code
from pytest_gittrix.engine.agents.programs import run_while_live
from pytest_gittrix.engine.agents.programs import timeout_code as timeout_code
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.monotonic import real_seconds

LONGEST_ANSWER: Final = 1 << 26
"""The most bytes that an answer may have."""

_MOST_ERRORS: Final = 1 << 12

# Questions and answers have descriptors that no other program inherits. What is printed below Python goes with the errors.
_STREAMS: Final = """
import json, os, sys
questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
"""

MOST_BYTES: Final = 100 << 20
"""The size of the largest file that is read, by default, in bytes."""

_DIRECTORY, _ABSENT, _DENIED, _NO_FILE, _NO_DIRECTORY = 121, 122, 123, 124, 120

_ERRORS: Final[dict[int, tuple[type[OSError], int]]] = {
    _DIRECTORY: (IsADirectoryError, errno.EISDIR),
    _ABSENT: (FileNotFoundError, errno.ENOENT),
    _DENIED: (PermissionError, errno.EACCES),
    _NO_FILE: (OSError, errno.EINVAL),
    _NO_DIRECTORY: (NotADirectoryError, errno.ENOTDIR),
}
_READ: Final = f"""
[ ! -d "$1" ] || exit {_DIRECTORY}
[ -e "$1" ] || exit {_ABSENT}
[ -f "$1" ] || exit {_NO_FILE}
[ -r "$1" ] || exit {_DENIED}
exec cat -- "$1"
"""
_WRITE: Final = f"""
[ ! -d "$1" ] || exit {_DIRECTORY}
[ ! -e "$1" ] || [ -f "$1" ] || exit {_NO_FILE}
[ ! -e "$1" ] || [ -w "$1" ] || exit {_DENIED}
parent=${{1%/*}}
if [ -n "$parent" ] && [ ! -d "$parent" ]; then
    above=$parent
    while [ -n "$above" ] && [ ! -e "$above" ]; do case $above in */*) above=${{above%/*}};; *) above=;; esac; done
    [ -z "$above" ] || [ -d "$above" ] || exit {_NO_DIRECTORY}
    mkdir -p -- "$parent" || exit {_DENIED}
fi
cat > "$1" || exit
[ -z "$2" ] || exec chmod -- "$2" "$1"
"""

Result = TypeVar("Result", covariant=True)


class TooLarge(InvalidInput):
    """A file is larger than the caller can take."""


class SandboxAdapter:
    """The commands and files of one session, as frameworks ask for them. A call for which a task waits ends when the task is cancelled.

    Attributes:
        programs: what runs the commands; ``AgentSession.programs`` makes it.
    """

    def __init__(self, programs: Programs) -> None:
        self.programs = programs

    def run(self, command: str | Sequence[str], **options: Any) -> Finished:
        """Run a command. One that ended with its session is an error, since a framework would report it as a failure and try again.

        Args:
            command: a line of shell, or a program and its arguments.
            options: as for ``Programs.run``.

        Raises:
            SessionExpired: the session ended, before the command or while it ran.
            GittrixError: as ``Programs.run``.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        return run_while_live(self.programs, argv, **options)

    async def run_async(self, command: str | Sequence[str], **options: Any) -> Finished:
        """Run a command as ``run`` does, without blocking the event loop."""
        return await run_cancellable(partial(self.run, command, **options))

    async def start_async(self, command: str | Sequence[str], **options: Any) -> Running:
        """Start a program that stays, in an event loop of asyncio. It is killed if the task is cancelled meanwhile.

        Args:
            command: as for ``run``.
            options: as for ``Programs.start``.

        Raises:
            GittrixError: as ``Programs.start``.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        return await in_thread(partial(self.programs.start, argv, **options), Running.kill)

    async def read_async(self, path: str, *, most: int = MOST_BYTES) -> bytes:
        """Read a file as ``read`` does, without blocking the event loop."""
        return await run_cancellable(partial(self.read, path, most=most))

    async def write_async(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file as ``write`` does, without blocking the event loop."""
        await run_cancellable(partial(self.write, path, data, mode=mode))

    def read(self, path: str, *, most: int = MOST_BYTES, stop: int | None = None) -> bytes:
        """Read a file.

        Args:
            path: relative to the workspace's root, or absolute as programs see it.
            most: the size of the largest file that the caller accepts, in bytes.
            stop: as for ``Programs.run``.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError, OSError: as for a program in the sandbox.
            TooLarge: the file is larger than ``most``.
            InvalidInput: the path is empty or has a NUL.
            CapabilityMissing: there is no shell in the sandbox.
            SessionExpired: the session ended, before the file was read or while it was.
            GittrixError: as ``Programs.run``.
        """
        done = self.run(["/bin/sh", "-c", _READ, "sh", self._named(path)], most_output=most + 1, stop=stop)
        if done.truncated or len(done.stdout) > most:
            raise TooLarge(f"{path!r} has more than {most} bytes.", why="The caller takes no more.", fix="Read a part of it by a program.")
        if done.code != 0:
            self._failed(path, done.code, done.stderr)
        return done.stdout

    def write(self, path: str, data: bytes, *, mode: int | None = None, stop: int | None = None) -> None:
        """Create a file and the directories above it, or replace the contents of a file; links are followed.

        Args:
            path: as for ``read``.
            data: the file's new contents.
            mode: the file's permissions afterwards; None for the usual ones, and for those that an existing file has.
            stop: as for ``Programs.run``.

        Raises:
            IsADirectoryError, NotADirectoryError, PermissionError, OSError: as for a program in the sandbox.
            InvalidInput, CapabilityMissing, SessionExpired, GittrixError: as for ``read``.
        """
        argv = ["/bin/sh", "-c", _WRITE, "sh", self._named(path), "" if mode is None else f"{mode:o}"]
        done = self.run(argv, stdin=data, stop=stop)
        if done.code != 0:
            self._failed(path, done.code, done.stderr)

    def _named(self, path: str) -> str:
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidInput(f"{path!r} is no path.", fix="Give a text without NUL.")
        return path if path.startswith("/") else os.path.join(self.programs.workspace, path)

    def _failed(self, path: str, code: int | None, stderr: bytes) -> NoReturn:
        if code in _ERRORS:
            kind, number = _ERRORS[code]
            raise kind(number, os.strerror(number) if number != errno.EISDIR else "Is a directory", path)
        if code in (126, 127):
            raise CapabilityMissing(
                "There is no shell in the sandbox.",
                why="Files are read and written by programs inside, so that both see the same.",
                fix="Let /bin/sh and cat be in it.",
            )
        text = stderr.decode("utf-8", "replace").strip()
        raise OSError(errno.EIO, text or f"the program that was to do it ended with {code}", path)


class NoAnswer(Exception):
    """A Python has ended without an answer; the text says why."""


class AnsweringPython:
    """A Python in a session, started by its first question, and again by the first one after it has ended."""

    def __init__(self, programs: Programs, source: str) -> None:
        """Choose what it runs; it is not started yet.

        Args:
            programs: what runs it.
            source: reads lines of JSON from ``questions``, and for each prints one with an object to ``answers``.
        """
        self._programs = programs
        self._source = _STREAMS + source
        self._turn = threading.Lock()
        self._running: Running | None = None
        self._ended = False
        self._errors = b""

    def ask(self, question: object, timeout: float | None = None) -> dict[str, Any]:
        """Give it a question and wait for its answer. What it sends is as little to be trusted as the output of any program of an agent.

        Args:
            question: what JSON can say.
            timeout: real seconds; None for no limit.

        Raises:
            NoAnswer: it ended, or it was ended because it took too long or sent too much, or by ``end``.
            SessionExpired: the session ended, before the question or before the answer.
            GittrixError: as ``Programs.start``.
        """
        self._programs.require_live()
        with self._turn:
            try:
                running = self._started()
                running.write(json.dumps(question).encode() + b"\n")
                return _object(self._line(running, timeout))
            except BaseException as problem:  # also an interrupt: the answer that comes later would be taken for that of the next question
                self.kill()
                if isinstance(problem, NoAnswer):
                    self._programs.require_live()  # it also ends with the session
                raise

    def _started(self) -> Running:
        """The Python that runs; one is started if none does."""
        self._require_not_ended()
        if self._running is None or self._running.poll() is not None:
            self._running = self._programs.start([sys.executable, "-P", "-u", "-c", self._source])
            self._reader = threading.Thread(target=self._keep_errors, args=(self._running,), daemon=True)
            self._reader.start()
            self._require_not_ended()  # end() knows nothing of one that was still being started
        return self._running

    def _require_not_ended(self) -> None:
        if self._ended:
            raise NoAnswer("It was ended.")

    def _line(self, running: Running, timeout: float | None) -> bytes:
        deadline = None if timeout is None else real_seconds() + timeout
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                piece = running.stdout.read(None if deadline is None else deadline - real_seconds())
            except TimeoutError:
                raise NoAnswer(f"It did not end within {timeout:g} seconds.") from None
            if not piece:
                running.kill()  # it may have closed its answers alone, and go on
                self._reader.join()
                raise NoAnswer(f"It ended its Python: {self._errors.decode('utf-8', 'replace')}")
            line += piece
            if len(line) > LONGEST_ANSWER:
                raise NoAnswer(f"It gave more than {LONGEST_ANSWER} bytes.")
        return bytes(line)

    def _keep_errors(self, running: Running) -> None:
        """Keep the last errors, and read all of them: a program whose errors are not read blocks."""
        self._errors = b""
        for piece in running.stderr:
            self._errors = (self._errors + piece)[-_MOST_ERRORS:]

    def kill(self) -> None:
        """End it, with everything that it started. The next question starts another one."""
        if self._running is not None:
            self._running.kill()

    def end(self) -> None:
        """End it for good, with everything that it started: no question starts another one. Ending twice does nothing."""
        self._ended = True
        self.kill()

    async def end_async(self) -> None:
        """End it for good as ``end`` does, without blocking the event loop of asyncio."""
        await in_thread(self.end)


def _object(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise NoAnswer("It gave something else than an answer.")
    return answer


class Stoppable(Protocol[Result]):
    """A call that returns soon after its descriptor ``stop`` becomes readable."""

    def __call__(self, *, stop: int | None) -> Result:
        """Make the call."""
        ...


async def run_cancellable(call: Stoppable[Result]) -> Result:
    """Run a blocking call in a thread; return its result, or raise its exception.

    Args:
        call: the call; it takes a descriptor ``stop``, and ends its work as soon as that is readable.
    """
    import anyio  # the frameworks bring it
    import anyio.to_thread

    watched, other = os.pipe()
    outcome: list[tuple[Result | None, BaseException | None]] = []
    returned = anyio.Event()

    async def wait() -> None:
        # Shielded, since the thread still watches the descriptor and its program has not ended. A separate limiter, since slow programs
        # must not use up the threads of the framework.
        with anyio.CancelScope(shield=True):
            try:
                outcome.append((await anyio.to_thread.run_sync(_bound(call, watched), limiter=anyio.CapacityLimiter(1)), None))
            except Exception as error:  # noqa: BLE001  (raised below, outside of the group that would wrap it)
                outcome.append((None, error))
            returned.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            try:
                await returned.wait()
            except BaseException:
                os.write(other, b"x")
                raise
    finally:
        os.close(watched)
        os.close(other)
    result, error = outcome[0]
    if error is not None:
        raise error
    return cast("Result", result)


def _bound(call: Stoppable[Result], stop: int) -> Callable[[], Result]:
    return lambda: call(stop=stop)
