"""Crashes for a test to ask for: at a named point, at the N-th call that changes a file, or at every one of them.

For code of anybody's: a function of the test's process, or a program in any language. Knows neither git, sessions nor pytest.
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
from pytest_gittrix.testing.faults.fault_sweep import Progress, Report, fault_at, strike_all
from pytest_gittrix.testing.faults.faults import Fault, Run
from pytest_gittrix.testing.faults.supervisor import StrPath, supervise, supervise_function, supported

Program = Callable[[], object] | Sequence[StrPath]
"""A function, which is run in a fork, or the words of a command, which is looked for in PATH."""


class Crashed(BaseException):
    """Played death at a point. No ``Exception``, so that code which handles errors does not handle it.

    Attributes:
        point: where.
    """

    def __init__(self, point: str) -> None:
        super().__init__(point)
        self.point = point


@contextmanager
def crash_at(point: str, *, nth: int = 1) -> Iterator[None]:
    """Have the block end where it passes a named point, as if the process had died there.

    ``Crashed`` is raised at the point, on the thread that passes it, and swallowed where the block ends. It needs no fork, but is
    weaker than a real death: ``finally`` and ``with`` clean up, and locks are given back. No point is passed any more once it was
    raised: each raises it again.

    Args:
        point: its name, such as ``promote:head-read``.
        nth: which time it is passed, from 1.

    Raises:
        InvalidInput: ``nth`` is less than 1.
        Deadlock: the block ends without having come there.
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
    """Ways to kill a program, or to have its disk fail.

    Args:
        cannot: called with the reason where a machine cannot do what was asked; raises, as ``pytest.skip`` does. By default
            ``CapabilityMissing`` is raised.
    """

    def __init__(self, *, cannot: Callable[[str], object] | None = None) -> None:
        self._cannot = cannot

    def at(self, point: str, fn: Callable[[], object], *, nth: int = 1, timeout: float = 60.0) -> tuple[str, ...]:
        """Run ``fn()`` in a fork and kill it, and what it started, with SIGKILL when it reaches a named point.

        Args:
            point: its name; see ``points``. A point that the code under test passes with ``points.reached(name)``.
            fn: what to run. What it changes in memory is lost, so look at what it left with fresh objects.
            nth: which time the point is passed, from 1.
            timeout: seconds.

        Returns:
            The points it passed; the last is the one it died at.

        Raises:
            Deadlock: it ended, or its time was up, before it came there.
            InvalidInput: ``nth`` is less than 1.
            CapabilityMissing: this platform has no fork.
            BaseException: whatever ``fn`` raised before it came there.
        """
        _require_nth(nth)
        if not hasattr(os, "fork"):
            self._refuse("this platform has no fork")
        with tempfile.TemporaryFile() as diary:
            ended = in_fork(lambda: _die_at(point, nth, fn, diary.fileno()), timeout=timeout)
            diary.seek(0)
            passed = tuple(diary.read().decode().splitlines())
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
    ) -> Run:
        """Strike at the N-th call that changes a file, counted over the whole process tree.

        Args:
            n: which call, from 1.
            run: what is struck; a function runs in a fork.
            kind: ``kill`` (the tree, before the call), ``torn:5`` (five bytes are written, then it is killed), ``short:5`` (five bytes
                are written, and the program is told so), ``ENOSPC`` or another errno, ``sticky-ENOSPC`` (from that call on).
            within: only calls that concern a path below one of these count; everywhere on disk if empty.
            env, cwd: for a command; those of this process by default.
            timeout: seconds.

        Returns:
            What it did: ``calls``, ``exit_code``, ``stdout``, ``stderr`` and more.

        Raises:
            InvalidInput: an argument is not allowed, or the program does not come to an N-th call (that writes, if the kind asks for it).
            CapabilityMissing: supervision does not work here.
        """
        self._need_supervision()
        fault = fault_at(kind, n)
        struck = _supervised(run, within, env, cwd, timeout)(fault)
        if struck.fired is None:
            raise InvalidInput(
                f"{kind} met nothing at call {n}: the program made {len(struck.calls)} that change a file.",
                why="A fault that never struck shows nothing.",
                fix="Torn and short faults strike plain writes only; calls count only below `within`.",
            )
        return struck

    def sweep(
        self,
        run: Program,
        reset: Callable[[], object],
        check: Callable[[Run], object],
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
        """Strike at every call that changes a file, one run each, and check what is left.

        Args:
            run: what is struck; a function runs in a fork.
            reset: puts everything back to how it was before the first run.
            check: looks at what a run left. Something is wrong if it raises an ``Exception`` or returns False.
            kinds: as for ``at_call``; ``torn`` tries three cuts of each write.
            points: which calls, from 1; all if None.
            limit: at most this many of them, evenly spread.
            within, env, cwd, timeout: as for ``at_call``.
            progress: called after each run with: how many there were, how many there will be, how many failed.

        Returns:
            A report, which prints itself and has ``verify()``.

        Raises:
            InvalidInput: an argument is not allowed; the program fails, or the check does not hold, without any fault.
            CapabilityMissing: supervision does not work here.
        """
        self._need_supervision()
        roots = [within] if isinstance(within, str | os.PathLike) else list(within)
        supervised = _supervised(run, roots, env, cwd, timeout)

        def reset_and_run(fault: Fault | None) -> Run:
            reset()
            return supervised(fault)

        return strike_all(
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
) -> Callable[[Fault | None], Run]:
    if not callable(run):
        return lambda fault: supervise(run, fault=fault, within=within, env=env, cwd=cwd, timeout=timeout)
    if env is not None or cwd is not None:
        raise InvalidInput("env and cwd are for commands; the program is a function.", fix="Let the function set them.")
    return lambda fault: supervise_function(run, fault=fault, within=within, timeout=timeout)


def _die_at(point: str, nth: int, fn: Callable[[], object], diary: int) -> None:
    passes = 0

    def listen(name: str) -> None:
        nonlocal passes
        os.write(diary, f"{name}\n".encode())
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
        why="Nothing crashed, so the test has not shown what it says.",
        fix=f"Points that were passed: {', '.join(dict.fromkeys(passed)) or 'none'}.",
    )
