"""A process tree that runs only when it is told to: from one call that changes a file, or asks for a lock, to the next.

A *tree* is a command or a forked function with all its descendants, behind a warden that holds each counted call until it is told to let it
happen. Who waits for another tree asks for a lock (flock) that is taken, tries the same call in vain again, or sleeps; each is seen from
outside. Knows neither git nor sessions nor pytest, and one tree at a time: `blackbox_turns` says who goes on.
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
from pytest_gittrix.testing.faults.faults import Call, Run
from pytest_gittrix.testing.faults.seccomp_notify import Effect, Gate, Stopped
from pytest_gittrix.testing.faults.supervisor import StrPath, call_of, exec_of
from pytest_gittrix.testing.faults.tracer import Failure, Warden, states

_LOOK: Final = 0.005  # seconds between looks at whether a tree sleeps
_LEAST_LOOKS: Final = 8
_TRIES: Final = 2  # who has failed to make a thing so often, and tries again, waits for it to go
_AWAKE: Final = 0.25  # share of the looks at which a tree that only polls may be found awake


@dataclass(frozen=True)
class Command:
    """A program as an actor.

    Attributes:
        argv: the command; looked for in PATH.
        env: the whole environment; that of this process if None.
        cwd: where to start.
        stdin: what it can read; nothing if None.
    """

    argv: Sequence[StrPath]
    env: Mapping[str, str] | None = None
    cwd: StrPath | None = None
    stdin: bytes | None = None


Actor = Callable[[], object] | Command | Sequence[StrPath]
"""Who takes part: a function, called in a fork, or a program."""


@dataclass(frozen=True)
class Ended:
    """How an actor ended.

    Attributes:
        value: what a function returned; None for a program.
        code: None if all went well. Otherwise the ``code`` of the error that a function raised (``BASELINE_CONFLICT``), or the name of its
            type; ``EXIT_3`` or the name of a signal for a program; ``KILLED`` for who ran out of time, or waited for ever.
        text: what the error says; of a program, its stderr.
        stdout: what the whole tree wrote to its standard output.
        stderr: and to its standard error, with the traceback of a function that raised.
    """

    value: Any = None
    code: str | None = None
    text: str = ""
    stdout: bytes = b""
    stderr: bytes = b""


class Tree:
    """One actor, started by its first turn.

    Args:
        actor: what it does.
        roots: real absolute paths below which calls count; empty counts all.
        timeout: seconds from its start after which it is killed.

    Attributes:
        held: the call it is held at; None while it runs, before it starts, and once it has ended.
        ended: how it ended.
        calls: those it has made, in order.
    """

    def __init__(self, actor: Actor, roots: tuple[str, ...], timeout: float) -> None:
        self.held: Call | None = None
        self.ended: Ended | None = None
        self.calls: list[Call] = []
        self._actor, self._roots, self._timeout = actor, roots, timeout
        self._warden: Warden | None = None
        self._line: socket.socket | None = None
        self._answer: int | None = None
        self._blocked: str | None = None  # the lock it stands before
        self._effect: Effect = "changes"  # of the call it is held at
        self._vain: Counter[tuple[str, str | None]] = Counter()  # what it has tried in vain since it last got something done

    @property
    def stopped(self) -> bool:
        """Whether nothing happens in it until it is told to go on."""
        return self._warden is None or self.ended is not None or self.held is not None or self._blocked is not None

    @property
    def waits(self) -> str | None:
        """What it waits for: the path of a lock, or of what it has tried to make already; "sleep" while it runs, None if for nothing."""
        if self._blocked is not None:
            return self._blocked
        if not self.stopped:
            return "sleep"
        if self.held is None or self._vain[self.held.name, self.held.path] < _TRIES:
            return None
        return self.held.path if self.held.name == "flock" or os.path.lexists(self.held.path or "") else None

    @property
    def locked_out(self) -> bool:
        """Whether it waits for a lock (flock), which nothing but its release ends."""
        return self._blocked is not None

    def go(self) -> Call | None:
        """Start it, or let the call happen that it is held at; gives that call. Who runs already stays as it is."""
        if self._warden is None:
            self._start()
        assert self._line is not None
        call, self.held = self.held, None
        if call is not None:
            self.calls.append(call)
            self._count(call)
        elif self._blocked is not None:  # it asks for the same lock again
            call = next((made for made in self.calls[-1:] if made.path == self._blocked), None)
            self._blocked = None
        else:
            return None
        with suppress(OSError):  # whose warden has gone: that is heard next
            self._line.send(b"+")
        return call

    def wait(self, patience: float) -> None:
        """Wait until it is stopped, or has slept for ``patience`` seconds: then it waits for somebody, or for time to pass."""
        began, looks, awake = real_seconds(), 0, 0
        while not self._heard(_LOOK):
            looks += 1
            awake += not self.sleeps()
            if real_seconds() - began >= patience and looks >= _LEAST_LOOKS:
                if awake <= _AWAKE * looks:
                    return
                began, looks, awake = real_seconds(), 0, 0

    def sleeps(self) -> bool:
        """Whether at this instant all its processes sleep, and no news of it is on its way."""
        assert self._warden is not None
        return all(state in b"SZ" for _, state in states(self._warden.pid)) and not self._heard(0)

    def end(self) -> None:
        """Kill it, if it has not ended."""
        if self._warden is None or self.ended is not None:
            return
        assert self._line is not None
        self._warden.end()
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        with suppress(CapabilityMissing):
            self._finish()

    def _count(self, call: Call) -> None:
        """Keep count of what is tried in vain, until something is done; of a lock the line tells."""
        if self._effect == "changes" or not os.path.lexists(call.path or ""):
            if call.name != "flock":
                self._vain.clear()
        elif self._effect == "creates":
            self._vain[call.name, call.path] += 1

    def _start(self) -> None:
        if callable(self._actor):
            self._answer = os.memfd_create("answer")
            start, stdin = call_of(_answering(self._actor, self._answer)), None
        else:
            command = self._actor if isinstance(self._actor, Command) else Command(self._actor)
            start, stdin = exec_of(command.argv, command.env, command.cwd), command.stdin
        self._line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._warden = Warden(start, None, self._roots, self._timeout, stdin, _Line(self._line, far))
        far.close()

    def _heard(self, seconds: float) -> bool:
        """Whether it is stopped, having listened for so long."""
        if self.stopped:
            return True
        assert self._line is not None
        assert self._warden is not None
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(self._warden, select.POLLIN)
        heard = {descriptor for descriptor, _ in poll.poll(1000 * seconds)}
        message = b""
        with suppress(OSError):
            message = self._line.recv(1 << 16) if self._line.fileno() in heard else b""
        if message:
            self._take(*pickle.loads(message))
        elif heard:
            self._finish()
        return self.stopped

    def _take(self, news: str, about: Any, effect: Effect) -> None:
        match news:
            case "call":
                self.held, self._effect = about, effect
            case "locked":
                self._vain.clear()
            case "refused":
                self._vain["flock", about] += 1
            case "blocked":
                self._blocked = about

    def _finish(self) -> None:
        assert self._line is not None
        assert self._warden is not None
        outcome = self._warden.outcome()
        self._line.close()
        self.held = self._blocked = None
        answer = b""
        if self._answer is not None:
            with open(self._answer, "rb") as file:
                file.seek(0)
                answer = file.read()
        if isinstance(outcome, Failure):
            self.ended = Ended(code="KILLED", text=outcome.reason)
            raise CapabilityMissing(
                f"A program could not be supervised: {outcome.reason}",
                fix="supported() of testing.faults.supervisor tells whether this machine can; skip with what it returns.",
            )
        self.ended = _ending(outcome, answer)


class _Line:
    """The warden's end: tells of each call, and waits to be told to go on."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._near, self._far = near, far
        self._counted: int | None = None  # the last counted call
        self._refusals: Counter[str] = Counter()  # of each lock, since one was given

    def opened(self) -> None:
        self._near.close()  # else a caller that dies would never be missed

    def may(self, call: Call, stopped: Stopped) -> bool:
        self._counted = stopped.id
        return self._told("call", call, stopped.effect())

    def lock(self, gate: Gate, stopped: Stopped) -> bool:
        try:
            path = stopped.paths()[-1]
            held_up = stopped.id == self._counted
            while not stopped.take_lock():
                if stopped.lock_is_ours():
                    return gate.proceed(stopped)  # another process of this tree has it, and must not be held up
                if not stopped.would_wait:
                    self._refusals[path] += 1
                    if held_up or self._refusals[path] <= _TRIES:
                        self._tell("refused", path)
                        return gate.answer(stopped, error=errno.EWOULDBLOCK)
                held_up = True  # who tries again and again is held up once each time, where its tries are no steps
                if not self._told("blocked", path):
                    return False
        except (OSError, IndexError):
            return gate.proceed(stopped)  # the kernel knows better what is wrong with it
        self._refusals.clear()
        self._tell("locked", path)
        return gate.answer(stopped)

    def _told(self, news: str, about: object, effect: Effect = "changes") -> bool:
        self._tell(news, about, effect)
        return self._far.recv(1) == b"+"

    def _tell(self, news: str, about: object, effect: Effect = "changes") -> None:
        with suppress(OSError):
            self._far.send(pickle.dumps((news, about, effect)))


def _answering(fn: Callable[[], object], answer: int) -> Callable[[], object]:
    """``fn``, with what it returns or raises written to a descriptor."""

    def call() -> None:
        try:
            value = fn()
        except BaseException as error:
            code = getattr(error, "code", None)
            _tell(answer, Ended(code=code if isinstance(code, str) else type(error).__name__, text=str(error)))
            raise
        _tell(answer, Ended(value))

    return call


def _tell(answer: int, ended: Ended) -> None:
    try:
        message = pickle.dumps(ended)
    except Exception as error:  # noqa: BLE001 - pickling runs the code of whatever was returned
        text = f"It returned a {type(ended.value).__name__}, which cannot be carried to another process: {error}"
        message = pickle.dumps(Ended(text=text))
    with open(answer, "wb", closefd=False) as file:
        file.write(message)


def _ending(run: Run, answer: bytes) -> Ended:
    told: Ended = pickle.loads(answer) if answer else Ended(code=_status(run.exit_code))
    code = "KILLED" if run.killed and not answer else told.code
    text = told.text or (os.fsdecode(run.stderr).strip() if code else "")
    return Ended(told.value, code, text, run.stdout, run.stderr)


def _status(exit_code: int | None) -> str | None:
    if exit_code is None:
        return "KILLED"
    if exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"EXIT_{exit_code}" if exit_code else None
