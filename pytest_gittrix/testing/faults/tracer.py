"""The process that supervises: parent of the target, holder of its gate, adopter of its orphans.

It is a process of its own so that the caller's children, signals and descriptors stay untouched, and so that a caller that goes away
leaves nothing running. It ends in `os._exit`, after the last descendant, and sends a `Run` or a `Failure` to its caller.
Knows one fault for one run; it neither chooses faults nor judges what comes of them. It may be given a line to somebody who says when
each counted call may happen, which is how several trees take turns.
"""

from __future__ import annotations

import errno as errnos
import gc
import os
import pickle
import select
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.testing.faults import seccomp_notify
from pytest_gittrix.testing.faults.faults import Call, Errno, Fault, Run, ShortWrite, TornKill, strikes

_TICK = 0.02  # seconds; how late the end of a mere orphan may be noticed
_SHORT_TICK = 0.0005
_LONGEST_PARKED = 1.0  # seconds that a thread waits for others to fall asleep


@dataclass(frozen=True, slots=True)
class Failure:
    """What a warden sends instead of a `Run` when it cannot do its work."""

    reason: str


class Warden:
    """A warden at work, as its caller has it. Started at once.

    Args:
        start: what the target does; ends by returning, raising or replacing the process.
        fault: what shall go wrong.
        roots: real absolute paths below which calls count; empty counts all.
        timeout: seconds.
        stdin: what the target can read; nothing if None.
        line: asked before each counted call; nobody is if None.
        before: called in the warden's process with each counted call, while that waits.

    Attributes:
        pid: the warden's.
    """

    def __init__(
        self,
        start: Callable[[], None],
        fault: Fault | None,
        roots: tuple[str, ...],
        timeout: float,
        stdin: bytes | None,
        line: Line | None = None,
        before: Callable[[Call], object] | None = None,
    ) -> None:
        self._socket, theirs = socket.socketpair()
        self.pid = _fork()
        if self.pid == 0:
            self._socket.close()
            if line is not None:
                line.opened()
            _be_warden(theirs, _Duty(theirs, fault, roots, timeout, line, before), start, stdin)
        theirs.close()

    def fileno(self) -> int:
        """A descriptor that is readable once there is an outcome, for poll."""
        return self._socket.fileno()

    def end(self) -> None:
        """Have the tree killed; does nothing if it has ended."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def outcome(self) -> Run | Failure:
        """Wait until the tree has ended. To be called once; left early, by Ctrl-C say, it ends the tree."""
        try:
            with self._socket, self._socket.makefile("rb") as reader:
                message = reader.read()
        finally:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        outcome: Run | Failure = pickle.loads(message) if message else Failure("the warden died")
        return outcome


class Line(Protocol):
    """Who is asked before each counted call. Locks (flock) are counted then, too."""

    def opened(self) -> None:
        """Called first, in the warden's process."""
        ...

    def may(self, call: Call, stopped: seccomp_notify.Stopped) -> bool:
        """Wait until the call may happen; False if the whole tree is to end instead."""
        ...

    def lock(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.Stopped) -> bool:
        """Answer a call that asks for a lock, perhaps later; as ``Gate.answer``."""
        ...


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns if other threads run. Neither side of a fork here takes a lock that such a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_warden(caller: socket.socket, duty: _Duty, start: Callable[[], None], stdin: bytes | None) -> NoReturn:
    try:
        # Frozen, so that no finalizer of the caller's objects runs a second time, in here or in the target.
        gc.freeze()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        outcome: Run | Failure = duty.run(start, stdin)
    except OSError as error:
        outcome = Failure(str(error))
    except BaseException:  # noqa: BLE001 - the caller must hear of everything
        outcome = Failure(traceback.format_exc())
    try:
        with suppress(OSError):
            _end_children()
        caller.sendall(pickle.dumps(outcome))
    finally:
        os._exit(0)


class _Duty:
    def __init__(
        self,
        caller: socket.socket,
        fault: Fault | None,
        roots: tuple[str, ...],
        timeout: float,
        line: Line | None,
        before: Callable[[Call], object] | None,
    ) -> None:
        self.caller, self.fault, self.line, self.before = caller, fault, line, before
        self.roots = tuple(os.path.join(root, "") for root in roots)
        self.deadline = real_seconds() + timeout
        self.calls: list[Call] = []
        self.fired: Call | None = None
        self.exit_code: int | None = None
        self.killed = self.timed_out = False
        self.parked: dict[int, tuple[seccomp_notify.Stopped, str]] = {}  # by thread: who else waits, where turns are taken
        self.parked_until = 0.0
        self.went_on: int | None = None

    def run(self, start: Callable[[], None], stdin: bytes | None) -> Run:
        seccomp_notify.adopt_orphans()
        seccomp_notify.allow_inspection()
        _children()  # a kernel that cannot list them could not be cleaned up after, so it must fail here
        source = _readable(stdin)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        channel, far_channel = socket.socketpair()
        self.target = _fork()
        if self.target == 0:
            _be_target(start, (source, out_end, err_end), far_channel, self.line is not None)
        for end in (source, out_end, err_end):
            os.close(end)
        far_channel.close()
        reason, listeners, _, _ = socket.recv_fds(channel, 4096, 1)
        if not listeners:
            raise OSError(os.fsdecode(reason) or "the target died before it could be filtered")
        self.output: dict[int, list[bytes]] = {out: [], err: []}
        self.watch(seccomp_notify.Gate(listeners[0]))
        _end_children()
        for descriptor in self.output:
            self.drain(descriptor)
        stdout, stderr = (b"".join(self.output[descriptor]) for descriptor in (out, err))
        return Run(self.exit_code, self.killed, self.calls, stdout, stderr, self.fired, self.timed_out)

    def watch(self, gate: seccomp_notify.Gate) -> None:
        """Answer until the tree has ended or must end."""
        poll = select.poll()
        waiting, ended = gate.fileno(), os.pidfd_open(self.target)
        for descriptor in (waiting, self.caller.fileno(), ended, *self.output):
            poll.register(descriptor, select.POLLIN)
        for descriptor in self.output:
            os.set_blocking(descriptor, False)
        while not self.killed:
            left = self.deadline - real_seconds()
            if left <= 0:
                self.killed = self.timed_out = True
                return
            events = poll.poll(1000 * min(left, _SHORT_TICK if self.parked else _TICK))
            for descriptor, event in events:
                if descriptor == waiting and event & select.POLLIN:
                    self.meet(gate)
                elif descriptor == self.caller.fileno():
                    self.killed = True
                elif descriptor not in self.output or not self.drain(descriptor):
                    poll.unregister(descriptor)
            if (waiting, select.POLLIN) not in events:
                if not self.reap():
                    return
                self.take_turns(gate, poll)

    def meet(self, gate: seccomp_notify.Gate) -> None:
        """Take the next waiting call, and answer it, at once unless turns are taken."""
        stopped = gate.receive()
        if stopped is None:
            return
        path = None if stopped.name == "flock" and not stopped.asks_for_lock else self.counted_path(stopped)
        if path is None:
            self.let(gate, stopped)
            return
        if self.line is None:
            self.answer(gate, stopped, path)
            return
        self.parked[stopped.pid] = stopped, path
        self.parked_until = real_seconds() + _LONGEST_PARKED
        if stopped.pid == self.went_on:
            self.unpark(gate, stopped.pid)

    def take_turns(self, gate: seccomp_notify.Gate, poll: select.poll) -> None:
        """Where several threads of the tree would go on at once, the eldest does, once all the others sleep: the same in every run."""
        if not self.parked:
            return
        asleep = all(state in b"SZ" for thread, state in states(os.getpid()) if thread not in self.parked and thread != os.getpid())
        if (asleep and not any(descriptor == gate.fileno() for descriptor, _ in poll.poll(0))) or real_seconds() > self.parked_until:
            self.unpark(gate, min(self.parked))

    def unpark(self, gate: seccomp_notify.Gate, thread: int) -> None:
        self.went_on = thread
        self.answer(gate, *self.parked.pop(thread))

    def answer(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.Stopped, path: str) -> None:
        """Count a call and answer it, unless the answer is the end."""
        call = Call(len(self.calls) + 1, stopped.pid, stopped.name, path, stopped.size())
        if self.line is not None and not self.line.may(call, stopped):
            self.killed = True
            return
        if self.before is not None:
            self.before(call)
        struck = self.fault is not None and strikes(self.fault, call)
        # Only what was still waiting for its answer has happened; an interrupted call will be back, and is counted then.
        if self.strike(gate, stopped) if struck else self.let(gate, stopped):
            self.calls.append(call)
            if struck and self.fired is None:
                self.fired = call

    def let(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.Stopped) -> bool:
        return self.line.lock(gate, stopped) if self.line and stopped.asks_for_lock else gate.proceed(stopped)

    def strike(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.Stopped) -> bool:
        match self.fault:
            case Errno(errno=number):
                return gate.answer(stopped, error=number)
            case ShortWrite(bytes=length):
                try:
                    return gate.answer(stopped, value=stopped.write_part(length))
                except OSError as error:
                    return gate.answer(stopped, error=error.errno or errnos.EIO)
            case TornKill(bytes=length):
                with suppress(OSError):  # it would have failed anyway
                    stopped.write_part(length)
        self.killed = True
        return True

    def counted_path(self, stopped: seccomp_notify.Stopped) -> str | None:
        paths = stopped.paths()
        return paths[-1] if paths and (not self.roots or any(map(self.is_within, paths))) else None

    def is_within(self, path: str) -> bool:
        if _below(path, self.roots):
            return True
        parent, name = os.path.split(path)
        return _below(os.path.join(os.path.realpath(parent), name), self.roots)

    def drain(self, descriptor: int) -> bool:
        """Keep what is there to read; False once there will be no more."""
        with suppress(BlockingIOError):
            while data := os.read(descriptor, 1 << 16):
                self.output[descriptor].append(data)
            return False
        return True

    def reap(self) -> bool:
        """Bury the dead; False once nobody is left."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.target:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        return False


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return (path + "/").startswith(roots)


def _readable(content: bytes | None) -> int:
    if content is None:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.memfd_create("stdin")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return [int(pid) for pid in file.read().split()]


def states(pid: int) -> Iterator[tuple[int, bytes]]:
    """The threads of a process and of all its descendants, each with its state (R, S, D, Z and so on)."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/stat", "rb") as file:
                yield int(task), file.read().rpartition(b")")[2].split()[0]
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children = file.read().split()
        except OSError:
            continue
        for child in children:
            yield from states(int(child))


def _end_children() -> None:
    """Kill this process's children until there are none: those of a killed child become its own, so the whole tree ends."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            # The list may miss one while another is dying, so never wait without looking again.
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.0002)
        except ChildProcessError:
            return


def _be_target(start: Callable[[], None], stdio: tuple[int, int, int], channel: socket.socket, locks: bool) -> NoReturn:
    code = 1
    try:
        os.setsid()  # a program that signals its own process group must not hit the warden
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        try:
            listener = seccomp_notify.install(locks=locks)
        except OSError as error:
            channel.send(os.fsencode(str(error)))
            os._exit(1)
        socket.send_fds(channel, [b"+"], [listener])
        os.close(listener)
        channel.close()
        start()
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must never run on into its parent's program
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)
