"""The tracer: a process that starts the target, answers its calls, plays one fault, and adopts its orphans.

It is a separate process so that the caller's children, signals and descriptors stay untouched, and so that nothing keeps running when the
caller dies. It ends in `os._exit`, after the last descendant, and sends a `SupervisedRun` or a `TracerFailure` to its caller. A
`CallControl` can decide when each counted call may happen, which is how several process trees take turns.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.forks import fork
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.proc import children_of_thread, thread_states
from pytest_gittrix.testing.faults import seccomp_notify
from pytest_gittrix.testing.faults.faults import Errno, Fault, FileCall, ShortWrite, SupervisedRun, TornKill, fires_at

_TICK = 0.02  # seconds; how late the end of an orphan may be noticed
_SHORT_TICK = 0.0005
_LONGEST_PARKED = 1.0  # seconds that a thread waits for others to fall asleep


@dataclass(frozen=True, slots=True)
class TracerFailure:
    """What a tracer sends instead of a `SupervisedRun` when it cannot do its work."""

    reason: str


class Tracer:
    """The caller's handle on a tracer, which starts at once.

    Args:
        start: what the target does; ends by returning, raising or replacing the process.
        fault: the fault to play; none if None.
        roots: real absolute paths below which calls count; empty counts all.
        timeout: seconds after which the process tree is killed.
        stdin: what the target can read; nothing if None.
        control: decides when each counted call may happen; at once if None.
        before: called in the tracer with each counted call, while that call waits.

    Attributes:
        pid: the tracer's process id.
    """

    def __init__(
        self,
        start: Callable[[], None],
        fault: Fault | None,
        roots: tuple[str, ...],
        timeout: float,
        stdin: bytes | None,
        control: CallControl | None = None,
        before: Callable[[FileCall], object] | None = None,
    ) -> None:
        self._socket, theirs = socket.socketpair()
        self.pid = fork()
        if self.pid == 0:
            self._socket.close()
            if control is not None:
                control.opened()
            _be_tracer(theirs, _Tracing(theirs, fault, roots, timeout, control, before), start, stdin)
        theirs.close()

    def fileno(self) -> int:
        """Return a descriptor, for poll, that is readable once there is an outcome."""
        return self._socket.fileno()

    def end(self) -> None:
        """Kill the process tree; does nothing if it has ended."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def outcome(self) -> SupervisedRun | TracerFailure:
        """Wait until the process tree has ended. To be called once; an interruption, such as Ctrl-C, kills the process tree."""
        try:
            with self._socket, self._socket.makefile("rb") as reader:
                message = reader.read()
        finally:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        outcome: SupervisedRun | TracerFailure = pickle.loads(message) if message else TracerFailure("the tracer died")
        return outcome


class CallControl(Protocol):
    """Decides when each counted call may happen. With one, calls that ask for a lock (flock) are counted too."""

    def opened(self) -> None:
        """Called first, in the tracer."""
        ...

    def allow(self, call: FileCall, stopped: seccomp_notify.StoppedThread) -> bool:
        """Wait until the call may happen; False if the process tree is to be killed instead."""
        ...

    def answer_lock(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.StoppedThread) -> bool:
        """Answer a call that asks for a lock, possibly after waiting; returns as ``Gate.answer``."""
        ...


def _be_tracer(caller: socket.socket, tracing: _Tracing, start: Callable[[], None], stdin: bytes | None) -> NoReturn:
    try:
        # Frozen, so that no finalizer of the caller's objects runs a second time, in here or in the target.
        gc.freeze()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        outcome: SupervisedRun | TracerFailure = tracing.run(start, stdin)
    except OSError as error:
        outcome = TracerFailure(str(error))
    except BaseException:  # noqa: BLE001 - the caller receives every error
        outcome = TracerFailure(traceback.format_exc())
    try:
        with suppress(OSError):
            _end_children()
        caller.sendall(pickle.dumps(outcome))
    finally:
        os._exit(0)


class _Tracing:
    """One run of a target, in the tracer."""

    def __init__(
        self,
        caller: socket.socket,
        fault: Fault | None,
        roots: tuple[str, ...],
        timeout: float,
        control: CallControl | None,
        before: Callable[[FileCall], object] | None,
    ) -> None:
        self.caller, self.fault, self.control, self.before = caller, fault, control, before
        self.roots = tuple(os.path.join(root, "") for root in roots)
        self.deadline = real_seconds() + timeout
        self.calls: list[FileCall] = []
        self.fired: FileCall | None = None
        self.exit_code: int | None = None
        self.killed = self.timed_out = False
        self.parked: dict[int, tuple[seccomp_notify.StoppedThread, str]] = {}  # calls that wait, by thread
        self.parked_until = 0.0
        self.last_thread: int | None = None

    def run(self, start: Callable[[], None], stdin: bytes | None) -> SupervisedRun:
        linux.adopt_orphans()
        linux.allow_inspection()
        children_of_thread(
            os.getpid(), os.getpid()
        )  # a kernel that cannot list them must fail here, since their descendants could not be killed
        source = _readable(stdin)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        channel, far_channel = socket.socketpair()
        self.target = fork()
        if self.target == 0:
            _be_target(start, (source, out_end, err_end), far_channel, self.control is not None)
        for end in (source, out_end, err_end):
            os.close(end)
        far_channel.close()
        with channel:
            reason, listeners, _, _ = socket.recv_fds(channel, 4096, 1)
        if not listeners:
            raise OSError(os.fsdecode(reason) or "the target died before it could be filtered")
        self.output: dict[int, list[bytes]] = {out: [], err: []}
        self.watch(seccomp_notify.Gate(listeners[0]))
        _end_children()
        for descriptor in self.output:
            self.drain(descriptor)
        stdout, stderr = (b"".join(self.output[descriptor]) for descriptor in (out, err))
        return SupervisedRun(self.exit_code, self.killed, self.calls, stdout, stderr, self.fired, self.timed_out)

    def watch(self, gate: seccomp_notify.Gate) -> None:
        """Answer calls until the process tree has ended or must be killed."""
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
                    self.receive(gate)
                elif descriptor == self.caller.fileno():
                    self.killed = True
                elif descriptor not in self.output or not self.drain(descriptor):
                    poll.unregister(descriptor)
            if (waiting, select.POLLIN) not in events:
                if not self.reap():
                    return
                self.take_turns(gate, poll)

    def receive(self, gate: seccomp_notify.Gate) -> None:
        """Take the next waiting call, and answer it at once, or park it where threads take turns."""
        stopped = gate.receive()
        if stopped is None:
            return
        path = None if stopped.name == "flock" and not stopped.asks_for_lock else self.counted_path(stopped)
        if path is None:
            self.proceed(gate, stopped)
            return
        if self.control is None:
            self.answer(gate, stopped, path)
            return
        self.parked[stopped.pid] = stopped, path
        self.parked_until = real_seconds() + _LONGEST_PARKED
        if stopped.pid == self.last_thread:
            self.unpark(gate, stopped.pid)

    def take_turns(self, gate: seccomp_notify.Gate, poll: select.poll) -> None:
        """Let the oldest of the parked threads go on once all other threads sleep, so that the order is the same in every run."""
        if not self.parked:
            return
        asleep = all(state in b"SZ" for thread, state in thread_states(os.getpid()) if thread not in self.parked and thread != os.getpid())
        if (asleep and not any(descriptor == gate.fileno() for descriptor, _ in poll.poll(0))) or real_seconds() > self.parked_until:
            self.unpark(gate, min(self.parked))

    def unpark(self, gate: seccomp_notify.Gate, thread: int) -> None:
        self.last_thread = thread
        self.answer(gate, *self.parked.pop(thread))

    def answer(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.StoppedThread, path: str) -> None:
        """Count a call and answer it, unless the process tree is to be killed."""
        call = FileCall(len(self.calls) + 1, stopped.pid, stopped.name, path, stopped.size())
        if self.control is not None and not self.control.allow(call, stopped):
            self.killed = True
            return
        if self.before is not None:
            self.before(call)
        fires = self.fault is not None and fires_at(self.fault, call)
        # Only a call that was still waiting for its answer has happened; an interrupted one comes again, and is counted then.
        if self.play_fault(gate, stopped) if fires else self.proceed(gate, stopped):
            self.calls.append(call)
            if fires and self.fired is None:
                self.fired = call

    def proceed(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.StoppedThread) -> bool:
        return self.control.answer_lock(gate, stopped) if self.control and stopped.asks_for_lock else gate.proceed(stopped)

    def play_fault(self, gate: seccomp_notify.Gate, stopped: seccomp_notify.StoppedThread) -> bool:
        match self.fault:
            case Errno(errno=number):
                return gate.answer(stopped, error=number)
            case ShortWrite(bytes=length):
                try:
                    return gate.answer(stopped, value=stopped.write_part(length))
                except OSError as error:
                    return gate.answer(stopped, error=error.errno or errnos.EIO)
            case TornKill(bytes=length):
                with suppress(OSError):  # the write would have failed anyway
                    stopped.write_part(length)
        self.killed = True
        return True

    def counted_path(self, stopped: seccomp_notify.StoppedThread) -> str | None:
        paths = stopped.paths()
        return paths[-1] if paths and (not self.roots or any(map(self.is_within, paths))) else None

    def is_within(self, path: str) -> bool:
        if _below(path, self.roots):
            return True
        parent, name = os.path.split(path)
        return _below(os.path.join(os.path.realpath(parent), name), self.roots)

    def drain(self, descriptor: int) -> bool:
        """Read what is available; False at the end of the stream."""
        with suppress(BlockingIOError):
            while data := os.read(descriptor, 1 << 16):
                self.output[descriptor].append(data)
            return False
        return True

    def reap(self) -> bool:
        """Wait for ended children; False once there is none left."""
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


def _end_children() -> None:
    """Kill the children of this process until there are none. It adopts the children of those, so the whole process tree ends."""
    while True:
        for pid in children_of_thread(os.getpid(), os.getpid()):
            os.kill(pid, signal.SIGKILL)
        try:
            # The list may miss a child while another one dies, so it is read again before each wait.
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.0002)
        except ChildProcessError:
            return


def _be_target(start: Callable[[], None], stdio: tuple[int, int, int], channel: socket.socket, locks: bool) -> NoReturn:
    code = 1
    try:
        os.setsid()  # a program that signals its own process group must not hit the tracer
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
