"""Starts confined programs through a zygote: one zygote for each process, started with the first program and ended with the process.

Each request gets a socket to an attendant of its own, so any number of threads may make requests at once. A fork of this process gets a
zygote of its own when it first needs one. A zygote that is gone is replaced. So is one whose user, limits or rights are no longer those
of this process, because what it forks has those that it started with.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.confine import zygote as zygote
from pytest_gittrix.confine.started_program import Streams, opened
from pytest_gittrix.confine.zygote import ENDED, HELLO, LIMIT, LOST, REFUSED, request
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.proc import HELPERS
from pytest_gittrix.os_level.process_tree import Process, ProcessTree, process, signal_process

_WAIT: Final = 60.0
_FAREWELL: Final = 2.0
_BLOCK: Final = 1 << 16
_LOCALE: Final = ("LC_ALL", "LC_CTYPE", "LANG")
_TRIES: Final = 3
_OF_A_THREAD: Final = (b"Uid:", b"Gid:", b"Groups:", b"Umask:", b"Cap", b"NoNewPrivs:", b"Seccomp", b"Cpus_allowed_list:")
_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid_for_children", "user", "uts")


@dataclass
class _Zygote:
    """One that runs, or did.

    Attributes:
        pid: its number.
        seen: how the system listed it.
        control: the socket to ask it on.
        likeness: what this process was when it started it.
    """

    pid: int
    seen: Process | None
    control: socket.socket
    likeness: tuple[object, ...]


class _CurrentZygote:
    """The zygote of this process, started with the first request and replaced when it no longer fits."""

    _zygote: _Zygote | None
    _let_go: list[int]

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._zygote = None
        self._let_go = []

    def ask(self, descriptors: Sequence[int]) -> _Zygote:
        """Have an attendant forked that has copies of these; gives the zygote that was asked.

        Raises:
            OSError: there can be no zygote.
        """
        now = _likeness()
        with self._lock:
            if self._zygote is not None and self._zygote.likeness != now:
                self._leave()
            if self._zygote is None:
                self._zygote = _born(now)
            try:
                socket.send_fds(self._zygote.control, [b"?"], descriptors, socket.MSG_DONTWAIT)
            except OSError:  # it is gone, or stopped and asked too much
                self._leave(kill=True)
                raise
            return self._zygote

    def drop(self, zygote: _Zygote) -> None:
        """Have another one from now on, since this does not answer. What its attendants run goes on."""
        with self._lock:
            if self._zygote is zygote:
                self._leave(kill=True)

    def forget(self) -> None:
        """Have no zygote, in a fork; the parent's must not be kept from seeing that its own end is closed."""
        parents = self._zygote
        self._begin()
        if parents is not None:
            parents.control.close()

    def end(self) -> None:
        """Let go of the zygote, and see it off as far as it has nothing left to do."""
        with self._lock:
            self._leave()
            left, self._let_go = self._let_go, []
        for pid in left:
            with suppress(OSError):
                ends = os.pidfd_open(pid)
                try:
                    select.select([ends], [], [], _FAREWELL)
                finally:
                    os.close(ends)
                os.waitpid(pid, os.WNOHANG)

    def _leave(self, *, kill: bool = False) -> None:
        if self._zygote is not None:
            self._zygote.control.close()
            if kill and self._zygote.seen is not None:
                signal_process(self._zygote.seen, signal.SIGKILL)
            self._let_go.append(self._zygote.pid)
            self._zygote = None
        self._let_go = [pid for pid in self._let_go if not _buried(pid)]


_CURRENT: Final = _CurrentZygote()
os.register_at_fork(after_in_child=_CURRENT.forget)
atexit.register(_CURRENT.end)


class ZygoteProgram:
    """A program that an attendant of the zygote runs; see ``started_program.StartedProgram``.

    Args:
        spec: how it is confined.
        command: the program and its arguments.
        environment: all its variables.
        streams: what its standard streams are.

    Raises:
        AdapterUnavailable: there is no zygote to be had.
    """

    def __init__(self, spec: dict[str, Any], command: Sequence[str], environment: Mapping[str, str], streams: Streams) -> None:
        self._wanted_streams = streams
        wanted = request(spec, [*command], dict(environment))
        problem: OSError | None = None
        for _ in range(_TRIES):
            try:
                return self._start(wanted)
            except OSError as refused:
                problem = refused
        raise AdapterUnavailable(
            f"The process that confines programs does not start: {problem}.",
            why="The program was not started, since it would have run without confinement.",
            fix="See whether this machine has processes, memory and open files left, and try again.",
            opt_out="Run it at level off.",
        ) from problem

    def _start(self, wanted: bytes) -> None:
        """Have an attendant take the request. Who has not said that it is there does not get it, so nothing is started twice."""
        self._said = b""
        with ExitStack() as held, opened(self._wanted_streams) as (self.streams, theirs):
            self._line, far = socket.socketpair()
            held.callback(self._line.close)
            held.callback(self._hang_up)
            self._line.settimeout(_WAIT)
            with far:
                zygote = _CURRENT.ask([far.fileno(), *theirs])
            try:
                self._attendant = self._greeted()
                self._line.sendall(wanted)
            except OSError:
                _CURRENT.drop(zygote)
                raise
            self._line.setblocking(False)
            held.pop_all()

    def _greeted(self) -> tuple[int, int]:
        while b"\n" not in self._said:
            more = self._line.recv(_BLOCK)
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "it ends at once")
            self._said += more
        pid, start_time = map(int, (self._reported(HELLO) or b"").split())
        return pid, start_time

    @property
    def news(self) -> int:
        """The line to the attendant."""
        return self._line.fileno()

    def hear(self) -> bool:
        """Take in what is on the line; whether that was the last."""
        try:
            more = self._line.recv(_BLOCK)
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        self._said += more
        return not more or self._reported(ENDED) is not None

    def signal(self, number: int) -> None:
        """Send it a signal by its attendant, who passes it on."""
        signal_process(Owner.here(*self._attendant), number)

    def leave(self, *, ended: bool) -> None:
        """Kill what there is of it, if its attendant has not seen to that."""
        if not ended:
            ProcessTree(Owner.here(*self._attendant)).end()
            self._hang_up()
        self._line.close()

    def _hang_up(self) -> None:
        """Have the attendant end everything, and wait for that."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
            self._line.settimeout(_FAREWELL)
            while self._line.recv(_BLOCK):
                pass

    def status(self) -> int:
        """How the program ended; whose attendant was killed is taken for killed."""
        ended = self._reported(ENDED)
        return -signal.SIGKILL if ended is None else os.waitstatus_to_exitcode(int(ended))

    def refusal(self) -> bytes | None:
        """Why the program was not started; None if it was."""
        return self._reported(REFUSED)

    def limit(self) -> str | None:
        """The limit that the program passed, and was ended for; None if it passed none."""
        passed = self._reported(LIMIT)
        return None if passed is None else passed.decode()

    def lost(self) -> str | None:
        """What of its confinement ended before the program did; None if all of it stayed."""
        if self._reported(ENDED) is None:
            return "the process that attends it was killed"
        number = self._reported(LOST)
        return None if number is None else f"the first process of its jail was ended by signal {int(number)}"

    def _reported(self, kind: bytes) -> bytes | None:
        return next((line[1:] for line in self._said.split(b"\n")[:-1] if line.startswith(kind)), None)


def _born(likeness: tuple[object, ...]) -> _Zygote:
    root = Path(zygote.__file__).absolute().parents[1]
    argv = [sys.executable, "-I", "-S", "-c", zygote.COMMAND, str(root)]
    # Nothing of this process's environment is to be seen in it; but both have to read names of files alike.
    environment = {name: os.environ[name] for name in _LOCALE if name in os.environ}
    control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ExitStack() as failed, far, ExitStack() as held:
        failed.callback(control.close)
        given = [far.fileno(), os.pidfd_open(os.getpid())]
        held.callback(os.close, given[1])
        # Neither may be in the other's place, where this process has no standard input or output.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in given]
        for fd in high:
            held.callback(os.close, fd)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)]
        nothing = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_RDWR, 0)
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=[*actions, nothing], setsid=True, setsigmask=())
        failed.pop_all()
    HELPERS.add(pid)
    return _Zygote(pid, process(pid), control, likeness)


def _buried(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _likeness() -> tuple[object, ...]:
    """What children of this thread would inherit that confinement depends on, or that a program could tell."""
    here = "/proc/thread-self"
    status = [line for line in Path(here, "status").read_bytes().split(b"\n") if line.startswith(_OF_A_THREAD)]
    namespaces = [os.readlink(f"{here}/ns/{name}") for name in _NAMESPACES if os.path.lexists(f"{here}/ns/{name}")]
    limits, root = Path(here, "limits").read_bytes(), os.readlink(f"{here}/root")
    return (os.getpid(), *status, limits, *namespaces, root, os.getpriority(os.PRIO_PROCESS, 0))
