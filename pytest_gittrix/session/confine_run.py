"""Running one program to its end, confined or not: its input and output, its time, and the end of everything it started.

Needs Linux: elsewhere nobody could tell what it left behind. It must not know sessions. Source: eval-anchors section 5.
"""

from __future__ import annotations

import json
import os
import re
import select
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput
from pytest_gittrix.record.heartbeat import Owner
from pytest_gittrix.session.agent_tree import KILL_WAIT, MARK, AgentTree, process, seconds
from pytest_gittrix.session.agents import POLL
from pytest_gittrix.session.confine_jail import jail_filter
from pytest_gittrix.session.confine_launch import NOT_EXECUTABLE, NOT_FOUND, exit_code
from pytest_gittrix.session.confine_place import Place, layout
from pytest_gittrix.session.confine_wrap import Confinement, Launch, launch

MOST_OUTPUT: Final = 10 << 20

_BLOCK: Final = 1 << 16
_MOST_IN_A_PIPE: Final = 1 << 20
_BWRAP_EXEC: Final = re.compile(rb"^bwrap: execvp .*: (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended.

    Attributes:
        code: its status; None if a signal ended it. 127: there is no such program, 126: it cannot be executed.
        signal: the number of the signal that ended it. By bubblewrap that is also told of a status of 128 and more, which is what a shell
            gives for a child that a signal ended.
        stdout: its output.
        stderr: its errors.
        timed_out: whether its time was over, and it was killed with everything it started.
        truncated: whether it wrote more than was asked for, and only the first of that is here.
    """

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False


def run(
    argv: Sequence[str],
    place: Place,
    confinement: Confinement,
    *,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    timeout: float | None = None,
    most_output: int = MOST_OUTPUT,
    cwd: str = ".",
    stop: int | None = None,
) -> Finished:
    """Run a program to its end; what it started ends with it, as far as the level can tell what that is.

    Whatever interrupts this call, an exception or Ctrl-C, kills all of it.

    Args:
        argv: the program, looked for in the ``PATH`` of the environment, and its arguments.
        place: where it works.
        confinement: how.
        environment: all its variables; home and temporary directory are set, and paths in the workspace are told as it sees them.
        stdin: what it reads.
        timeout: real seconds it has; None for ever.
        most_output: bytes that are kept, of output and of errors each; what is beyond is read and thrown away.
        cwd: where it starts, in the workspace.
        stop: a descriptor; as soon as it can be read, the program's time is over. By it another thread ends this call.

    Raises:
        InvalidInput: the command is none, the limits are none, or a place is not there.
        CapabilityMissing: this system is not Linux.
        AdapterUnavailable: it could not be confined; it was not started.
    """
    if not sys.platform.startswith("linux"):
        raise CapabilityMissing(
            "Programs of agents are run on Linux only.", why="Elsewhere what they start could not be ended.", fix="Run them on Linux."
        )
    if most_output < 0 or (timeout is not None and not timeout >= 0):
        raise InvalidInput(
            f"timeout={timeout!r} and most_output={most_output!r} are no limits.", fix="Use numbers from 0; timeout may be None."
        )
    with ExitStack() as held:
        home = place.home if place.home is not None else held.enter_context(_passing_home())
        laid = layout(place, home, jailed=confinement.level == "jail")
        told = _Pipe(held) if confinement.level != "off" else None
        life = _Pipe(held) if told is not None else None
        if life is not None and confinement.by == "bwrap":
            os.write(life.write, jail_filter())
            os.close(life.give("write"))
        news, lifeline = told.write if told else None, life.read if life else None
        wanted = launch(argv, laid, confinement, environment=environment, cwd=cwd, news=news, lifeline=lifeline)
        inherited = [fd for fd in (news, lifeline) if fd is not None]
        finished = _Running(wanted, inherited, attended=told is not None, most=most_output).run(stdin, timeout, stop)
        if told is None or finished.timed_out:
            return finished
        os.close(told.give("write"))
        said = _all_of(told.read)
        return _as_bwrap_says(finished, said) if confinement.by == "bwrap" else _as_launcher_says(finished, said)


@contextmanager
def _passing_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gittrix-home-", ignore_cleanup_errors=True) as path:
        yield Path(path)


class _Pipe:
    """Both ends of a pipe, closed when the stack is."""

    def __init__(self, held: ExitStack) -> None:
        self.read, self.write = os.pipe()
        self._open = {self.read, self.write}
        held.callback(self._close)

    def give(self, end: str) -> int:
        """An end that the caller closes."""
        fd: int = getattr(self, end)
        self._open.discard(fd)
        return fd

    def _close(self) -> None:
        for fd in self._open:
            os.close(fd)


class _Running:
    """One program, from its start to its end.

    Args:
        wanted: what to execute.
        inherited: descriptors that it gets.
        attended: whether it ends what it started by itself; else that is marked, and looked for.
        most: bytes that are kept of each stream.
    """

    def __init__(self, wanted: Launch, inherited: Sequence[int], *, attended: bool, most: int) -> None:
        self._wanted = wanted
        self._inherited = inherited
        self._most = most
        self._kept: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._truncated = False
        self._attended = attended
        self._marked = {} if attended else {MARK: os.urandom(8).hex()}

    def run(self, stdin: bytes, timeout: float | None, stop: int | None = None) -> Finished:
        """Run it to its end, or to the end of its time."""
        deadline = None if timeout is None else seconds() + timeout
        try:
            started = subprocess.Popen(
                self._wanted.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._wanted.environment, **self._marked},
                cwd=self._wanted.directory,
                pass_fds=self._inherited,
                start_new_session=True,
            )
        except OSError as problem:
            return self._unexecuted(problem)
        ended = False
        try:
            ended = self._attend(started, stdin, deadline, stop)
        finally:
            if not (ended and self._attended):
                self._end_rest(started)
            self._drain(started)
            for stream in (started.stdin, started.stdout, started.stderr):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            status = started.wait()
        code, number = (status, None) if status >= 0 else (None, -status)
        out, err = (bytes(self._kept[name]) for name in ("stdout", "stderr"))
        return Finished(code, number, out, err, timed_out=not ended, truncated=self._truncated)

    def _unexecuted(self, problem: OSError) -> Finished:
        if problem.filename != self._wanted.argv[0] and problem.filename is not None:
            raise AdapterUnavailable(f"{self._wanted.argv[0]} was not started: {problem}.", fix="Try again.") from problem
        text = os.fsencode(f"{self._wanted.argv[0]}: {problem.strerror}\n")
        return Finished(exit_code(problem), None, b"", text)

    def _attend(self, started: subprocess.Popen[bytes], stdin: bytes, deadline: float | None, stop: int | None) -> bool:
        """Feed and read it until it ends; False if its time is over before."""
        ends = os.pidfd_open(started.pid)
        unsent = memoryview(stdin)
        with selectors.DefaultSelector() as watch:
            try:
                watch.register(ends, selectors.EVENT_READ)
                if stop is not None:
                    watch.register(stop, selectors.EVENT_READ)
                for stream in (started.stdin, started.stdout, started.stderr):
                    assert stream is not None
                    os.set_blocking(stream.fileno(), False)
                    watch.register(stream, selectors.EVENT_WRITE if stream is started.stdin else selectors.EVENT_READ)
                while True:
                    rest = None if deadline is None else deadline - seconds()
                    if rest is not None and rest <= 0:
                        return False
                    for key, _ in watch.select(rest):
                        if key.fileobj == ends:
                            return True
                        if key.fileobj == stop:
                            return False
                        if key.fileobj is started.stdin:
                            unsent = _fed(started.stdin, unsent)
                            if not unsent:
                                watch.unregister(key.fileobj)
                                _close(started.stdin)
                        elif self._read(started, key.fileobj) == b"":
                            watch.unregister(key.fileobj)
            finally:
                os.close(ends)

    def _read(self, started: subprocess.Popen[bytes], stream: Any) -> bytes | None:
        """What is there to be read of a stream; empty at its end, None if there is nothing yet."""
        try:
            data = os.read(stream.fileno(), _BLOCK)
        except BlockingIOError:
            return None
        kept = self._kept["stdout" if stream is started.stdout else "stderr"]
        room = self._most - len(kept)
        kept += data[:room]
        self._truncated = self._truncated or len(data) > room
        return data

    def _drain(self, started: subprocess.Popen[bytes]) -> None:
        """What it wrote before it ended: no more than a pipe holds, since an escaped process may write for ever."""
        for stream in (started.stdout, started.stderr):
            with suppress(OSError, ValueError):
                for _ in range(_MOST_IN_A_PIPE // _BLOCK):
                    if not self._read(started, stream):
                        break

    def _end_rest(self, started: subprocess.Popen[bytes]) -> None:
        """Kill what there is of it. It is not waited for yet, so that its number is still its own, and names its session and group."""
        seen = process(started.pid)
        leader = None if seen is None else replace(Owner.current(), pid=seen.pid, start_time=seen.start_time)
        tree = AgentTree(leader, mark=self._marked.get(MARK))
        if tree.look():
            tree.end(grace=0, poll=POLL)


def _fed(stream: IO[bytes] | None, unsent: memoryview) -> memoryview:
    """What is still to be sent; nothing if nobody reads any more."""
    assert stream is not None
    try:
        return unsent[os.write(stream.fileno(), unsent[:_BLOCK]) :] if unsent else unsent
    except BlockingIOError:
        return unsent
    except OSError:
        return memoryview(b"")


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(OSError):
            stream.close()


def _all_of(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, _BLOCK):
        data += chunk
    return data


def _as_launcher_says(finished: Finished, said: bytes) -> Finished:
    if not said:
        return finished
    raise _not_confined(said)


def _as_bwrap_says(finished: Finished, said: bytes) -> Finished:
    """bubblewrap ends with 1 if it cannot execute a program, and with 128 and its number for a signal; here that is told as elsewhere."""
    told: dict[str, Any] = {}
    for line in said.splitlines():
        with suppress(ValueError):
            told.update(json.loads(line))
    _end_first(told.get("child-pid"), told.get("pid-namespace"))
    if finished.signal is not None:
        return finished
    if "exit-code" not in told:
        missing = _BWRAP_EXEC.search(finished.stderr)
        if missing is None:
            raise _not_confined(finished.stderr)
        return replace(finished, code=NOT_FOUND if missing[1] in (b"No such file or directory", b"Not a directory") else NOT_EXECUTABLE)
    code = finished.code or 0
    return replace(finished, code=None, signal=code - 128) if code - 128 in signal.valid_signals() else finished


def _end_first(pid: int | None, namespace: int | None) -> None:
    """bubblewrap is gone before number 1 of its jail is, and with that everything in it: have it end, and wait until it has."""
    if pid is None:
        return
    with suppress(OSError):
        first = os.pidfd_open(pid)
        try:
            if os.stat(f"/proc/{pid}/ns/pid").st_ino == namespace:
                signal.pidfd_send_signal(first, signal.SIGKILL)
                select.select([first], [], [], KILL_WAIT)
        finally:
            os.close(first)


def _not_confined(said: bytes) -> AdapterUnavailable:
    return AdapterUnavailable(
        f"The program could not be confined: {said.decode('utf-8', 'replace').strip() or 'nothing was said about it'}.",
        why="It was not started, since it would have run with less confinement than was asked for.",
        fix="See whether this machine allows namespaces or Landlock to this user; confinement('auto') takes what there is.",
        opt_out="Run it at a weaker level.",
    )
