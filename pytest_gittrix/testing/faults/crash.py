"""Crashes for tests: at a named point, at the N-th call that changes a file, or at every such call.

The code that crashes can be a function of the test's process, or a program in any language.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pytest_gittrix import points as named
from pytest_gittrix.errors import CapabilityMissing, Deadlock, InvalidInput
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.testing.faults.fault_sweep import Progress, Report, fault_at, sweep_and_check
from pytest_gittrix.testing.faults.faults import Fault, SupervisedRun
from pytest_gittrix.testing.faults.supervisor import StrPath, supervise, supervise_function, supported

Program = Callable[[], object] | Sequence[StrPath]
"""A function, which runs in a fork, or a command and its arguments, which is looked for in PATH."""


class Crashed(BaseException):
    """Simulated death at a point. Not an ``Exception``, so that code which handles errors does not catch it.

    Attributes:
        point: the name of the point.
    """

    def __init__(self, point: str) -> None:
        super().__init__(point)
        self.point = point


@contextmanager
def crash_at(point: str, *, nth: int = 1) -> Iterator[None]:
    """End the block at a named point, as if the process had died there.

    ``Crashed`` is raised at the point, on the thread that reaches it, and suppressed at the end of the block. It needs no fork, but is
    weaker than a real death: ``finally`` and ``with`` clean up, and locks are released. After that every point raises it again.

    Args:
        point: the name of the point, such as ``promote:head-read``.
        nth: which time it is reached, from 1.

    Raises:
        InvalidInput: ``nth`` is less than 1.
        Deadlock: the block ended without reaching the point.
    """
    _require_nth(nth)
    passed: list[str] = []
    dead = False

    def listen(name: str) -> None:
        nonlocal dead
        passed.append(name)
        dead = dead or passed.count(point) == nth
        if dead:
            raise Crashed(point)

    try:
        with named.listening(listen):
            yield
    except Crashed:
        pass
    if not dead:
        raise _unreached(point, nth, passed)


class Crash:
    """Kills programs, and makes their calls fail.

    Args:
        cannot: called with the reason where this machine cannot do it; raises, as ``pytest.skip`` does. By default
            ``CapabilityMissing`` is raised.
    """

    def __init__(self, *, cannot: Callable[[str], object] | None = None) -> None:
        self._cannot = cannot

    def at(self, point: str, fn: Callable[[], object], *, nth: int = 1, timeout: float = 60.0) -> tuple[str, ...]:
        """Run ``fn()`` in a fork, and SIGKILL the fork and what it started when it reaches a named point.

        Args:
            point: the name of a point that the code under test reaches with ``points.reached(name)``.
            fn: the function to run. What it changes in memory is lost, so inspect what it left with fresh objects.
            nth: which time the point is reached, from 1.
            timeout: seconds after which the fork is killed.

        Returns:
            The names of the points it reached; it died at the last one.

        Raises:
            Deadlock: it ended, or ran out of time, before it reached the point.
            InvalidInput: ``nth`` is less than 1.
            CapabilityMissing: this platform has no fork.
            BaseException: whatever ``fn`` raised before it reached the point.
        """
        _require_nth(nth)
        if not hasattr(os, "fork"):
            self._refuse("this platform has no fork")
        with tempfile.TemporaryFile() as log:
            ended = in_fork(lambda: _die_at(point, nth, fn, log.fileno()), timeout=timeout)
            log.seek(0)
            passed = tuple(log.read().decode().splitlines())
        if ended.error is not None:
            raise ended.error
        if ended.signal != signal.SIGKILL or ended.timed_out:
            raise _unreached(point, nth, passed, "its time was up" if ended.timed_out else "")
        return passed

    in_process = staticmethod(crash_at)

    def at_call(
        self,
        n: int,
        run: Program,
        *,
        kind: str = "kill",
        within: StrPath | Iterable[StrPath] = (),
        env: Mapping[str, str] | None = None,
        cwd: StrPath | None = None,
        timeout: float = 60.0,
    ) -> SupervisedRun:
        """Play a fault at the N-th call that changes a file, counted over the whole process tree.

        Args:
            n: the number of the call, from 1.
            run: the program; a function runs in a fork.
            kind: ``kill`` (the process tree, before the call), ``torn:5`` (five bytes are written, then it is killed), ``short:5`` (five
                bytes are written, and the call returns 5), ``ENOSPC`` or another errno, ``sticky-ENOSPC`` (from that call on).
            within: count only calls that concern a path below one of these; everywhere on disk if empty.
            env, cwd: environment and directory of a command; those of this process by default.
            timeout: seconds after which the program is killed.

        Returns:
            What the program did: ``calls``, ``exit_code``, ``stdout``, ``stderr`` and more.

        Raises:
            InvalidInput: an argument is not allowed, or the program makes no N-th call that the kind fits.
            CapabilityMissing: supervision does not work here.
        """
        self._need_supervision()
        fault = fault_at(kind, n)
        faulty = _supervised(run, within, env, cwd, timeout)(fault)
        if faulty.fired is None:
            raise InvalidInput(
                f"{kind} met nothing at call {n}: the program made {len(faulty.calls)} that change a file.",
                why="A fault that did not happen shows nothing.",
                fix="Torn and short faults strike plain writes only; calls count only below `within`.",
            )
        return faulty

    def sweep(
        self,
        run: Program,
        reset: Callable[[], object],
        check: Callable[[SupervisedRun], object],
        *,
        kinds: Sequence[str] = ("kill",),
        points: Collection[int] | None = None,
        limit: int | None = None,
        within: StrPath | Iterable[StrPath] = (),
        env: Mapping[str, str] | None = None,
        cwd: StrPath | None = None,
        timeout: float = 60.0,
        progress: Progress | None = None,
    ) -> Report:
        """Play a fault at every call that changes a file, one run each, and check what each run left.

        Args:
            run: the program; a function runs in a fork.
            reset: restores the state before the first run.
            check: inspects what a run left. Something is wrong if it raises an ``Exception`` or returns False.
            kinds: as for ``at_call``; ``torn`` tries three cuts of each write.
            points: the numbers of the calls, from 1; all if None.
            limit: at most this many of them, evenly spread; no limit if None.
            within, env, cwd, timeout: as for ``at_call``.
            progress: called after each run with the number of runs so far, of all runs, and of failures so far.

        Returns:
            The report; its ``str`` lists the failures, and ``verify()`` raises them.

        Raises:
            InvalidInput: an argument is not allowed; the program fails, or the check does not hold, without any fault.
            CapabilityMissing: supervision does not work here.
        """
        self._need_supervision()
        roots = [within] if isinstance(within, str | os.PathLike) else list(within)
        supervised = _supervised(run, roots, env, cwd, timeout)

        def reset_and_run(fault: Fault | None) -> SupervisedRun:
            reset()
            return supervised(fault)

        return sweep_and_check(
            reset_and_run,
            check,
            replay=lambda at, kind: f"gittrix_crash.at_call({at}, run, kind={kind!r}{', within=within' if roots else ''})",
            kinds=kinds,
            points=points,
            limit=limit,
            root=roots[0] if len(roots) == 1 else None,
            progress=progress,
        )

    def _need_supervision(self) -> None:
        if reason := supported():
            self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        if self._cannot is not None:
            self._cannot(reason)
        raise CapabilityMissing(reason, fix="On such a machine: with crash_at(point).")


def _supervised(
    run: Program, within: StrPath | Iterable[StrPath], env: Mapping[str, str] | None, cwd: StrPath | None, timeout: float
) -> Callable[[Fault | None], SupervisedRun]:
    if not callable(run):
        return lambda fault: supervise(run, fault=fault, within=within, env=env, cwd=cwd, timeout=timeout)
    if env is not None or cwd is not None:
        raise InvalidInput("env and cwd are for commands; the program is a function.", fix="Let the function set them.")
    return lambda fault: supervise_function(run, fault=fault, within=within, timeout=timeout)


def _die_at(point: str, nth: int, fn: Callable[[], object], log: int) -> None:
    passes = 0

    def listen(name: str) -> None:
        nonlocal passes
        os.write(log, f"{name}\n".encode())
        passes += name == point
        if passes == nth:
            os.killpg(0, signal.SIGKILL)

    with named.listening(listen):
        fn()


def _require_nth(nth: int) -> None:
    if nth < 1:
        raise InvalidInput(f"nth is {nth}; it must be 1 or more.")


def _unreached(point: str, nth: int, passed: Sequence[str], why: str = "") -> Deadlock:
    times = "" if nth == 1 else f" {nth} times"
    return Deadlock(
        f"Never reached{times}: {point}{f', {why}' if why else ''}.",
        why="Nothing crashed, so the test has shown nothing.",
        fix=f"Points that were passed: {', '.join(dict.fromkeys(passed)) or 'none'}.",
    )
