"""The process that supervises: parent of the target, holder of its gate, adopter of its orphans.

It is a process of its own so that the caller's children, signals and descriptors stay untouched, and so that a caller that goes away
leaves nothing running. It ends in `os._exit`, after the last descendant, and sends a `Run` or a `Failure` to its caller.
Knows one fault for one run; it neither chooses faults nor judges what comes of them.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from pytest_gittrix.harness import seccomp
from pytest_gittrix.harness.faults import Call, Errno, Fault, Run, ShortWrite, TornKill, strikes

_TICK = 0.02  # seconds; how late the end of a mere orphan may be noticed


@dataclass(frozen=True, slots=True)
class Failure:
    """What a warden sends instead of a `Run` when it cannot do its work."""

    reason: str


def run_under_warden(
    start: Callable[[], None], fault: Fault | None, roots: tuple[str, ...], timeout: float, stdin: bytes | None
) -> Run | Failure:
    """Fork a warden, have it run ``start()`` in a fork of its own, and wait for both.

    Args:
        start: ends by returning, raising or replacing the process.
        fault: what shall go wrong.
        roots: real absolute paths below which calls count; empty counts all.
        timeout: seconds.
        stdin: what the target can read; nothing if None.
    """
    ours, theirs = socket.socketpair()
    warden = _fork()
    if warden == 0:
        ours.close()
        _be_warden(theirs, start, fault, roots, timeout, stdin)
    theirs.close()
    try:
        with ours, ours.makefile("rb") as reader:
            # Left early, by Ctrl-C say, this hangs up, at which the warden ends its tree and itself.
            message = reader.read()
    finally:
        with suppress(ChildProcessError):
            os.waitpid(warden, 0)
    outcome: Run | Failure = pickle.loads(message) if message else Failure("the warden died")
    return outcome


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns if other threads run. Neither side of a fork here takes a lock that such a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_warden(
    caller: socket.socket, start: Callable[[], None], fault: Fault | None, roots: tuple[str, ...], timeout: float, stdin: bytes | None
) -> NoReturn:
    try:
        # Frozen, so that no finalizer of the caller's objects runs a second time, in here or in the target.
        gc.freeze()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        outcome: Run | Failure = _Warden(caller, fault, roots, timeout).run(start, stdin)
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


class _Warden:
    def __init__(self, caller: socket.socket, fault: Fault | None, roots: tuple[str, ...], timeout: float) -> None:
        self.caller, self.fault = caller, fault
        self.roots = tuple(os.path.join(root, "") for root in roots)
        self.deadline = _now() + timeout
        self.calls: list[Call] = []
        self.fired: Call | None = None
        self.exit_code: int | None = None
        self.killed = self.timed_out = False

    def run(self, start: Callable[[], None], stdin: bytes | None) -> Run:
        seccomp.adopt_orphans()
        seccomp.allow_inspection()
        _children()  # a kernel that cannot list them could not be cleaned up after, so it must fail here
        source = _readable(stdin)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        channel, far_channel = socket.socketpair()
        self.target = _fork()
        if self.target == 0:
            _be_target(start, (source, out_end, err_end), far_channel)
        for end in (source, out_end, err_end):
            os.close(end)
        far_channel.close()
        reason, listeners, _, _ = socket.recv_fds(channel, 4096, 1)
        if not listeners:
            raise OSError(os.fsdecode(reason) or "the target died before it could be filtered")
        self.output: dict[int, list[bytes]] = {out: [], err: []}
        self.watch(seccomp.Gate(listeners[0]))
        _end_children()
        for descriptor in self.output:
            self.drain(descriptor)
        stdout, stderr = (b"".join(self.output[descriptor]) for descriptor in (out, err))
        return Run(self.exit_code, self.killed, self.calls, stdout, stderr, self.fired, self.timed_out)

    def watch(self, gate: seccomp.Gate) -> None:
        """Answer until the tree has ended or must end."""
        poll = select.poll()
        waiting, ended = gate.fileno(), os.pidfd_open(self.target)
        for descriptor in (waiting, self.caller.fileno(), ended, *self.output):
            poll.register(descriptor, select.POLLIN)
        for descriptor in self.output:
            os.set_blocking(descriptor, False)
        while not self.killed:
            left = self.deadline - _now()
            if left <= 0:
                self.killed = self.timed_out = True
                return
            events = poll.poll(1000 * min(left, _TICK))
            for descriptor, event in events:
                if descriptor == waiting and event & select.POLLIN:
                    self.meet(gate)
                elif descriptor == self.caller.fileno():
                    self.killed = True
                elif descriptor not in self.output or not self.drain(descriptor):
                    poll.unregister(descriptor)
            if (waiting, select.POLLIN) not in events and not self.reap():
                return

    def meet(self, gate: seccomp.Gate) -> None:
        """Take the next waiting call, count it if it counts, and answer it, unless the answer is the end."""
        stopped = gate.receive()
        if stopped is None:
            return
        path = self.counted_path(stopped)
        if path is None:
            gate.proceed(stopped)
            return
        call = Call(len(self.calls) + 1, stopped.pid, stopped.name, path, stopped.size())
        struck = self.fault is not None and strikes(self.fault, call)
        # Only what was still waiting for its answer has happened; an interrupted call will be back, and is counted then.
        if self.strike(gate, stopped) if struck else gate.proceed(stopped):
            self.calls.append(call)
            if struck and self.fired is None:
                self.fired = call

    def strike(self, gate: seccomp.Gate, stopped: seccomp.Stopped) -> bool:
        match self.fault:
            case Errno(errno=number):
                return gate.answer(stopped, error=number)
            case ShortWrite(bytes=length):
                try:
                    return gate.answer(stopped, value=stopped.write_part(length))
                except OSError as error:
                    return gate.answer(stopped, error=error.errno or errnos.EIO)
            case TornKill(bytes=length):
                stopped.write_part(length)
        self.killed = True
        return True

    def counted_path(self, stopped: seccomp.Stopped) -> str | None:
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


def _now() -> float:
    # Time libraries of tests replace time.time and time.monotonic, but not this.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


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


def _be_target(start: Callable[[], None], stdio: tuple[int, int, int], channel: socket.socket) -> NoReturn:
    code = 1
    try:
        os.setsid()  # a program that signals its own process group must not hit the warden
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        try:
            listener = seccomp.install()
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
