"""A program that runs: its output as it comes, its input as it is wanted, its end by whoever asks for it.

One loop attends each program: it feeds and reads it, watches its time and its limits, and leaves nothing of it behind. A program that stays
has the loop in a thread of its own; one that is waited for at once has it in the thread that waits.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import selectors
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from signal import SIGKILL, SIGTERM
from types import TracebackType
from typing import Any, Final, get_args

from pytest_gittrix.confine.kernel.meter import Meter
from pytest_gittrix.confine.limits import Limit
from pytest_gittrix.confine.program_streams import BLOCK, Changes, Input, KeptOutput, Output
from pytest_gittrix.confine.started_program import SIGNALS, Finished, NeverStarted, Opening, StartedProgram, check_size, set_size
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.process_tree import KILL_WAIT

_MOST_IN_A_PIPE: Final = 1 << 20
_LOOK: Final = 1.0
"""Real seconds between two looks whether a program has to end."""


class Running:
    """A program that was started, and all that it starts. ``Programs.start`` makes it.

    Any thread may call any method at any time. As a context manager it kills the program at the end, with everything that it started.

    Attributes:
        stdout: its output; on a terminal, all that is shown there.
        stderr: its errors; nothing comes here if they are merged with the output.
    """

    def __init__(
        self,
        opening: Callable[[ExitStack], Opening],
        *,
        stdin: bytes | None,
        limit: int,
        keep: KeptOutput,
        timeout: float | None,
        stop: int | None,
        terminal: bool = False,
    ) -> None:
        self._changes = Changes()
        self.stdout = Output(self._changes, self._wake, limit, keep)
        self.stderr = Output(self._changes, self._wake, limit, keep)
        self._input = Input(stdin, terminal=terminal)
        self._opening = opening
        self._deadline = None if timeout is None else real_seconds() + timeout
        self._stop = stop
        self._terminal = terminal
        self._killed = False
        self._ended: str | None = None
        self._held: AbstractContextManager[object] = nullcontext()
        self._why_end: Callable[[], str | None] = lambda: None
        self._grace: float | None = None
        self._looked_at = real_seconds()
        self._started: StartedProgram | None = None
        self._was_started = False
        self._waker: int | None = None
        self._limit: str | None = None
        self._finished: Finished | None = None
        self._problem: BaseException | None = None
        self._attendant: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Running {'ended' if self._is_over else 'program'}>"

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.kill)

    # What the program's user asks for.

    @property
    def reads_no_more(self) -> bool:
        """Whether it has closed its standard input, so that what is written is dropped. It shows once something was written."""
        return self._input.unread

    def write(self, data: bytes) -> None:
        """Put bytes on its standard input; they wait here until it reads, however many they are. Once it cannot read, they are dropped.

        A terminal acts on control bytes, such as Ctrl-C (``b"\\x03"``), instead of passing them on. Until a program switches that off, it
        passes on whole lines, and cuts off what of a line is beyond 4095 bytes.

        Raises:
            InvalidInput: its input was closed before.
        """
        with self._changes:
            self._input.add(data, over=self._is_over)
        self._wake()

    def close_stdin(self) -> None:
        """End its standard input, behind what was written; on a terminal as Ctrl-D does, so that more can be written later."""
        with self._changes:
            self._input.end()
        self._wake()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal; programs on it hear of that by SIGWINCH.

        Raises:
            InvalidInput: it has no terminal, or there is no such size.
        """
        check_size((rows, columns))
        with self._changes:
            if not self._terminal:
                raise InvalidInput("The program has no terminal.", fix="Start it with pty=True.")
            if self._input.descriptor is not None:
                set_size(self._input.descriptor, rows, columns)

    def send_signal(self, number: int) -> None:
        """Send a signal to the program itself; one that has ended gets none. ``kill`` ends it with all that it started.

        Raises:
            InvalidInput: it is not SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 or SIGUSR2.
        """
        if number not in SIGNALS:
            raise InvalidInput(
                f"Signal {number!r} cannot be sent to a confined program.",
                why="Whoever confines it passes on a few signals only.",
                fix=f"Use one of {', '.join(one.name for one in SIGNALS)}, or kill().",
            )
        with self._changes:
            if self._started is not None:
                with suppress(OSError):  # it has ended
                    self._started.signal(number)

    def hold(self, held: AbstractContextManager[object], why: Callable[[], str | None], grace: float) -> None:
        """Hold something until nothing is left of the program, and end it once there is a reason; call this before it begins.

        Args:
            held: left at the end.
            why: gives the reason, or None while it may run; asked each second, by the thread that attends it.
            grace: as for ``end``.
        """
        self._held, self._why_end, self._grace = held, why, grace

    def end(self, reason: str, grace: float) -> None:
        """Tell it to end, and return at once. ``Finished.ended`` is the reason.

        Args:
            reason: why.
            grace: real seconds from SIGTERM until it is killed with everything that it started.
        """
        with self._changes:
            if self._is_over or self._ended is not None:
                return
            self._ended = reason
            until = real_seconds() + grace
            self._deadline = until if self._deadline is None else min(until, self._deadline)
            self._terminate()
            self._wake()

    def _terminate(self) -> None:
        if self._started is not None:
            with suppress(OSError):  # it has ended
                self._started.signal(SIGTERM)

    def kill(self) -> None:
        """End it with everything that it started, and wait for that. One that has ended stays as it ended."""
        self._ask_to_end()
        self._await_end()

    def poll(self) -> Finished | None:
        """How it ended; None while it runs.

        Raises:
            AdapterUnavailable: it could not be confined; it was not started.
        """
        with self._changes:
            return self._outcome()

    def wait(self, timeout: float | None = None) -> Finished:
        """Wait for its end, and see that nothing is left of it; gives how it ended.

        A program whose unread output is full waits for a reader, as on a pipe.

        Args:
            timeout: real seconds to wait; None for ever. The program goes on afterwards.

        Raises:
            TimeoutError: it still runs.
            AdapterUnavailable: it could not be confined; it was not started.
        """
        return self._changes.until(self._outcome, timeout)

    async def wait_async(self) -> Finished:
        """As ``wait``, for asyncio. A cancelled task leaves the program running."""
        return await self._changes.until_async(self._outcome)

    # Waiting, for this class and its streams.

    @property
    def _is_over(self) -> bool:
        return self._finished is not None or self._problem is not None

    def _outcome(self) -> Finished | None:
        if self._problem is not None:
            raise self._problem
        return self._finished

    def _wake(self) -> None:
        """Have the loop look at what is wanted of it."""
        with self._changes:
            if self._waker is not None:
                os.eventfd_write(self._waker, 1)

    def _ask_to_end(self) -> None:
        with self._changes:
            self._killed = True
            self._wake()

    def _await_end(self, timeout: float | None = None) -> None:
        """Block until the program ends; return at once if no thread attends it, or this one does."""
        unattended = (None, threading.current_thread())
        with suppress(TimeoutError):
            self._changes.until(lambda: True if self._is_over or self._attendant in unattended else None, timeout)

    # The loop.

    def attended(self) -> Finished:
        """Attend the program in this thread, to its end; whatever interrupts this kills it."""
        with self._changes:
            self._attendant = threading.current_thread()
        try:
            finished = self._attend()
        except BaseException as problem:
            with self._changes:
                self._problem = problem
                self._over()
            raise
        with self._changes:
            self._finished = finished
            self._over()
        return finished

    def begin(self) -> Running:
        """Attend the program in a thread of its own, and return when it was started. Raises as ``_opening`` does."""
        # bubblewrap ends with the thread that started it, so the program is started by the thread that attends it.
        thread = threading.Thread(target=self._begun, name="gittrix-program", daemon=True)
        _RUNNING.add(self)
        thread.start()
        self._changes.until(lambda: True if self._was_started or self._is_over else None)
        if self._problem is not None and not self._was_started:
            raise self._problem
        return self

    def _begun(self) -> None:
        with suppress(BaseException):  # a waiter for the program gets the error
            self.attended()

    def _over(self) -> None:
        for stream in (self.stdout, self.stderr):
            stream.end()
        self._changes.announce()

    def _attend(self) -> Finished:
        with self._held, ExitStack() as held:
            with self._changes:
                if self._killed or self._ended is not None:
                    return Finished(None, SIGKILL, b"", b"", timed_out=self._ended is None, ended=self._ended)
            try:
                opening = self._opening(held)
            except NeverStarted as problem:
                self.stderr.add(problem.finished.stderr)
                return problem.finished
            started, ended = opening.started, False
            fds = [*started.streams]
            outputs = dict(zip(fds[1:], (self.stdout, self.stderr), strict=False))
            try:
                with self._changes:
                    self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                    self._started, self._input.descriptor = started, fds[0]
                    self._was_started = True
                    if self._ended is not None:  # asked to end while it was being started
                        self._terminate()
                    self._changes.announce()
                ended = self._until_it_ends(started, outputs, opening.meter)
            finally:
                with self._changes:
                    self._started = None
                started.leave(ended=ended)
                self._drain(outputs)
                with self._changes:
                    self._input.close()
                    for fd in (*outputs, *([] if self._waker is None else [self._waker])):
                        os.close(fd)
                    self._waker = None
                status = started.status()
            passed = self._limit or opening.limit()
            account = self._account(status, killed=not ended, passed=passed)
            return opening.conclude(account, self.stderr.beginning or self.stdout.beginning)

    def _account(self, status: int, *, killed: bool, passed: str | None) -> Finished:
        code, number = (status, None) if status >= 0 else (None, -status)
        limit = next((name for name in get_args(Limit) if name == passed), None)
        truncated = self.stdout.truncated or self.stderr.truncated
        reason = self._ended if self._ended is not None else self._why_end()
        timed_out = killed and self._limit is None and reason is None
        return Finished(code, number, self.stdout.peek(), self.stderr.peek(), timed_out, truncated, limit=limit, ended=reason)

    def _until_it_ends(self, started: StartedProgram, outputs: dict[int, Output], meter: Meter | None) -> bool:
        """Feed and read it until it ends; False if its time is over before, it is to be killed, or it passed a limit."""
        waker = self._waker
        assert waker is not None
        always = (started.news, waker, *([] if self._stop is None else [self._stop]))
        for fd in started.streams:
            os.set_blocking(fd, False)
        with selectors.DefaultSelector() as watch:
            for fd in always:
                watch.register(fd, selectors.EVENT_READ)
            ended = False
            while not ended:
                next_look = self._look_whether_over()
                rest = None if self._deadline is None else self._deadline - real_seconds()
                if rest is not None and rest <= 0:
                    return False
                if next_look is not None:
                    rest = next_look if rest is None else min(rest, next_look)
                if meter is not None:
                    self._limit = meter.passed()
                    if self._limit is not None:
                        return False
                    rest = meter.wait() if rest is None else min(rest, meter.wait())
                with self._changes:
                    if self._killed:
                        return False
                    self._watch_streams(watch, outputs)
                for key, _ in watch.select(rest):
                    if key.fd == started.news:
                        ended = started.hear()
                    elif key.fd == waker:
                        os.eventfd_read(waker)
                    elif key.fd == self._stop:
                        return False
                    elif key.fd == self._input.descriptor:
                        with self._changes:
                            self._input.write()
                    elif key.fd in outputs:
                        self._read(key.fd, outputs)
            return True

    def _look_whether_over(self) -> float | None:
        """Tell it to end once there is a reason; gives the real seconds to the next look for one, if there is to be one."""
        if self._grace is None or self._ended is not None:
            return None
        rest = self._looked_at + _LOOK - real_seconds()
        if rest > 0:
            return rest
        self._looked_at = real_seconds()
        if (reason := self._why_end()) is not None:
            self.end(reason, self._grace)
        return _LOOK

    def _watch_streams(self, watch: selectors.BaseSelector, outputs: dict[int, Output]) -> None:
        """Watch what there is something to do for; an input that has all it will get is closed."""
        if (fd := self._input.descriptor) is not None:
            _watched(watch, fd, selectors.EVENT_WRITE if self._input.pending else 0)
            if self._input.complete:
                self._input.close()
        for fd, stream in outputs.items():
            _watched(watch, fd, 0 if stream.full or stream.at_end else selectors.EVENT_READ)

    def _read(self, fd: int, outputs: dict[int, Output]) -> bool:
        """Read what a stream has now; whether it had something."""
        try:
            data = os.read(fd, BLOCK)
        except BlockingIOError:
            return False
        except OSError:  # a terminal that no program has any more
            data = b""
        with self._changes:
            if data:
                outputs[fd].add(data)
            else:
                outputs[fd].end()
            self._changes.announce()
        return bool(data)

    def _drain(self, outputs: dict[int, Output]) -> None:
        """What it wrote before it ended: no more than a pipe holds, since an escaped process may write for ever."""
        for fd in outputs:
            with suppress(OSError):
                for _ in range(_MOST_IN_A_PIPE // BLOCK):
                    if not self._read(fd, outputs):
                        break


def _watched(watch: selectors.BaseSelector, fd: int, events: int) -> None:
    """Have a descriptor watched for some events, or for none."""
    known: Any = watch.get_map().get(fd)
    if known is None:
        if events:
            watch.register(fd, events)
    elif not events:
        watch.unregister(fd)


_RUNNING: Final[weakref.WeakSet[Running]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End what still runs: at level off nothing else would."""
    for running in list(_RUNNING):
        running._ask_to_end()
    for running in list(_RUNNING):
        running._await_end(KILL_WAIT)


os.register_at_fork(after_in_child=_RUNNING.clear)
