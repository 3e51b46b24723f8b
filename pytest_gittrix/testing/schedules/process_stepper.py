"""Steps a process tree from one call that changes a file, or asks for a lock, to the next.

The process tree is a command or a forked function with all its descendants, under a tracer that holds each counted call until the test lets
it happen. A process tree that waits for another one asks for a taken lock (flock), tries the same call in vain again, or sleeps; each of
these can be observed from outside. `process_schedule` decides which process tree goes on.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import signal
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.proc import thread_states
from pytest_gittrix.testing.faults.faults import FileCall, SupervisedRun
from pytest_gittrix.testing.faults.seccomp_notify import Effect, Gate, StoppedThread
from pytest_gittrix.testing.faults.supervisor import StrPath, call_of, exec_of
from pytest_gittrix.testing.faults.tracer import Tracer, TracerFailure

_POLL: Final = 0.005  # seconds between two checks whether a process tree sleeps
_LEAST_POLLS: Final = 8
_TRIES: Final = 2  # an actor that failed so often to create a path, and tries again, waits for it to be removed
_AWAKE: Final = 0.25  # share of the checks at which a process tree that only polls may be found awake


@dataclass(frozen=True)
class Command:
    """A program as an actor.

    Attributes:
        argv: the program and its arguments; looked for in PATH.
        env: the whole environment; that of this process if None.
        cwd: the directory to start in; that of this process if None.
        stdin: what the program can read; nothing if None.
    """

    argv: Sequence[StrPath]
    env: Mapping[str, str] | None = None
    cwd: StrPath | None = None
    stdin: bytes | None = None


Actor = Callable[[], object] | Command | Sequence[StrPath]
"""What an actor does: a function, called in a fork, or a program."""


@dataclass(frozen=True)
class Ended:
    """How an actor ended.

    Attributes:
        value: what a function returned; None for a program.
        code: None for success. Otherwise the ``code`` of the error that a function raised (``BASELINE_CONFLICT``), or the name of its
            type; ``EXIT_3`` or the name of a signal for a program; ``KILLED`` if the actor ran out of time, or waited for ever.
        text: the message of the error; of a program, its stderr.
        stdout: what the process tree wrote to its standard output.
        stderr: what it wrote to its standard error, with the traceback of a function that raised.
    """

    value: Any = None
    code: str | None = None
    text: str = ""
    stdout: bytes = b""
    stderr: bytes = b""


class SteppedProcess:
    """The process tree of one actor, started by its first turn.

    Args:
        actor: what the actor does.
        roots: real absolute paths below which calls count; empty counts all.
        timeout: seconds from the start after which the process tree is killed.

    Attributes:
        held: the call that waits for the next turn; None while the actor runs, before it starts, and once it has ended.
        ended: how the actor ended; None before that.
        calls: the calls it has made, in order.
    """

    def __init__(self, actor: Actor, roots: tuple[str, ...], timeout: float) -> None:
        self.held: FileCall | None = None
        self.ended: Ended | None = None
        self.calls: list[FileCall] = []
        self._actor, self._roots, self._timeout = actor, roots, timeout
        self._tracer: Tracer | None = None
        self._socket: socket.socket | None = None
        self._result: int | None = None  # descriptor of the file that takes the result of a function
        self._blocked: str | None = None  # path of the lock it waits for
        self._effect: Effect = "changes"  # of the held call
        self._vain: Counter[tuple[str, str | None]] = Counter()  # calls tried in vain since the last one that succeeded

    @property
    def stopped(self) -> bool:
        """Whether the actor does nothing until its next turn."""
        return self._tracer is None or self.ended is not None or self.held is not None or self._blocked is not None

    @property
    def waits(self) -> str | None:
        """What the actor waits for: the path of a lock or of what it cannot create yet; "sleep" while it runs, None for nothing."""
        if self._blocked is not None:
            return self._blocked
        if not self.stopped:
            return "sleep"
        if self.held is None or self._vain[self.held.name, self.held.path] < _TRIES:
            return None
        return self.held.path if self.held.name == "flock" or os.path.lexists(self.held.path or "") else None

    @property
    def locked_out(self) -> bool:
        """Whether the actor waits for a lock (flock), which nothing but a release can end."""
        return self._blocked is not None

    def go(self) -> FileCall | None:
        """Start the actor, or let its held call happen and return that call. Does nothing while the actor runs."""
        if self._tracer is None:
            self._start()
        assert self._socket is not None
        call, self.held = self.held, None
        if call is not None:
            self.calls.append(call)
            self._count(call)
        elif self._blocked is not None:  # the actor asks for the same lock again
            call = next((made for made in self.calls[-1:] if made.path == self._blocked), None)
            self._blocked = None
        else:
            return None
        with suppress(OSError):  # the tracer has ended, which the next poll finds
            self._socket.send(b"+")
        return call

    def wait(self, patience: float) -> None:
        """Wait until the actor is stopped, or has slept for ``patience`` seconds: then it waits for another actor or for time to pass."""
        began, polls, awake = real_seconds(), 0, 0
        while not self._receive(_POLL):
            polls += 1
            awake += not self.sleeps()
            if real_seconds() - began >= patience and polls >= _LEAST_POLLS:
                if awake <= _AWAKE * polls:
                    return
                began, polls, awake = real_seconds(), 0, 0

    def sleeps(self) -> bool:
        """Whether at this instant all processes of the actor sleep, and none of its messages is unread."""
        assert self._tracer is not None
        return all(state in b"SZ" for _, state in thread_states(self._tracer.pid)) and not self._receive(0)

    def end(self) -> None:
        """Kill the actor, if it has started and not ended."""
        if self._tracer is None or self.ended is not None:
            return
        assert self._socket is not None
        self._tracer.end()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(CapabilityMissing):
            self._finish()

    def _count(self, call: FileCall) -> None:
        """Count what is tried in vain until a call succeeds; of locks the messages of the tracer tell."""
        if self._effect == "changes" or not os.path.lexists(call.path or ""):
            if call.name != "flock":
                self._vain.clear()
        elif self._effect == "creates":
            self._vain[call.name, call.path] += 1

    def _start(self) -> None:
        if callable(self._actor):
            self._result = os.memfd_create("answer")
            start, stdin = call_of(_recorded(self._actor, self._result)), None
        else:
            command = self._actor if isinstance(self._actor, Command) else Command(self._actor)
            start, stdin = exec_of(command.argv, command.env, command.cwd), command.stdin
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tracer = Tracer(start, None, self._roots, self._timeout, stdin, control=_TurnControl(self._socket, far))
        far.close()

    def _receive(self, seconds: float) -> bool:
        """Wait at most so many seconds for a message of the tracer; whether the actor is stopped now."""
        if self.stopped:
            return True
        assert self._socket is not None
        assert self._tracer is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._tracer, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * seconds)}
        message = b""
        with suppress(OSError):
            message = self._socket.recv(1 << 16) if self._socket.fileno() in ready else b""
        if message:
            self._handle(*pickle.loads(message))
        elif ready:
            self._finish()
        return self.stopped

    def _handle(self, event: str, subject: Any, effect: Effect) -> None:
        match event:
            case "call":
                self.held, self._effect = subject, effect
            case "locked":
                self._vain.clear()
            case "refused":
                self._vain["flock", subject] += 1
            case "blocked":
                self._blocked = subject

    def _finish(self) -> None:
        assert self._socket is not None
        assert self._tracer is not None
        outcome = self._tracer.outcome()
        self._socket.close()
        self.held = self._blocked = None
        result = b""
        if self._result is not None:
            with open(self._result, "rb") as file:
                file.seek(0)
                result = file.read()
        if isinstance(outcome, TracerFailure):
            self.ended = Ended(code="KILLED", text=outcome.reason)
            raise CapabilityMissing(
                f"A program could not be supervised: {outcome.reason}",
                fix="supported() of testing.faults.supervisor tells whether this machine can; skip with what it returns.",
            )
        self.ended = _ended(outcome, result)


class _TurnControl:
    """The tracer's side: reports each call, and waits for the actor's next turn."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._near, self._far = near, far
        self._counted: int | None = None  # the last counted call
        self._refusals: Counter[str] = Counter()  # by path of the lock, since the last one that was taken

    def opened(self) -> None:
        self._near.close()  # otherwise the tracer would not notice that its caller has died

    def allow(self, call: FileCall, stopped: StoppedThread) -> bool:
        self._counted = stopped.id
        return self._report_and_wait("call", call, stopped.effect())

    def answer_lock(self, gate: Gate, stopped: StoppedThread) -> bool:
        try:
            path = stopped.paths()[-1]
            held_up = stopped.id == self._counted
            while not stopped.take_lock():
                if stopped.lock_is_ours():
                    return gate.proceed(stopped)  # another process of this process tree holds it, so the kernel must wait
                if not stopped.would_wait:
                    self._refusals[path] += 1
                    if held_up or self._refusals[path] <= _TRIES:
                        self._report("refused", path)
                        return gate.answer(stopped, error=errno.EWOULDBLOCK)
                held_up = True  # an actor that keeps trying is held once for each try, where its tries are no steps
                if not self._report_and_wait("blocked", path):
                    return False
        except (OSError, IndexError):
            return gate.proceed(stopped)  # the kernel gives the right error for such a call
        self._refusals.clear()
        self._report("locked", path)
        return gate.answer(stopped)

    def _report_and_wait(self, event: str, subject: object, effect: Effect = "changes") -> bool:
        self._report(event, subject, effect)
        return self._far.recv(1) == b"+"

    def _report(self, event: str, subject: object, effect: Effect = "changes") -> None:
        with suppress(OSError):
            self._far.send(pickle.dumps((event, subject, effect)))


def _recorded(fn: Callable[[], object], result: int) -> Callable[[], object]:
    """Return ``fn`` with what it returns or raises written to the descriptor ``result``."""

    def call() -> None:
        try:
            value = fn()
        except BaseException as error:
            code = getattr(error, "code", None)
            _write(result, Ended(code=code if isinstance(code, str) else type(error).__name__, text=str(error)))
            raise
        _write(result, Ended(value))

    return call


def _write(result: int, ended: Ended) -> None:
    try:
        message = pickle.dumps(ended)
    except Exception as error:  # noqa: BLE001 - pickling runs the code of the returned object
        text = f"It returned a {type(ended.value).__name__}, which cannot be carried to another process: {error}"
        message = pickle.dumps(Ended(text=text))
    with open(result, "wb", closefd=False) as file:
        file.write(message)


def _ended(run: SupervisedRun, result: bytes) -> Ended:
    recorded: Ended = pickle.loads(result) if result else Ended(code=_status(run.exit_code))
    code = "KILLED" if run.killed and not result else recorded.code
    text = recorded.text or (os.fsdecode(run.stderr).strip() if code else "")
    return Ended(recorded.value, code, text, run.stdout, run.stderr)


def _status(exit_code: int | None) -> str | None:
    if exit_code is None:
        return "KILLED"
    if exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"EXIT_{exit_code}" if exit_code else None
