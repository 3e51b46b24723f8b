"""Runs a program once for each fault at each of its calls, and reports the faults that it did not survive.

Each fault has a name that a person can type: ``kill``, ``torn:5``, ``ENOSPC``, ``sticky-EIO``. The caller of a sweep provides the program
and restores its first state before each run.
"""

from __future__ import annotations

import errno as errnos
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.faults.faults import Errno, Fault, FileCall, KillAt, ShortWrite, SupervisedRun, TornKill

KINDS: Final = "kill, torn, torn:BYTES, short, short:BYTES, an errno name such as ENOSPC, or one that sticks: sticky-EIO"
"""The kinds of fault, for messages."""

Progress = Callable[[int, int, int], object]
"""Called after each run with the number of runs so far, of all runs, and of failures so far."""

T = TypeVar("T")

_WRITES: Final[Mapping[str, type[TornKill] | type[ShortWrite]]] = {"torn": TornKill, "short": ShortWrite}
_LONGEST_PROBLEM: Final = 600


class CheckFailed(Exception):
    """Raised by a check whose message is to be reported word for word. Of any other exception the report names the class too."""


@dataclass(frozen=True, slots=True)
class SweepFailure:
    """A fault that the program did not survive.

    Attributes:
        at: the number of the call, from 1.
        kind: the name of the fault, see ``KINDS``.
        call: the call, such as ``rename notes.txt``.
        problem: what the check found wrong afterwards.
        replay: a line that plays this fault again.
    """

    at: int
    kind: str
    call: str
    problem: str
    replay: str

    def __str__(self) -> str:
        problem = self.problem.replace("\n", "\n      ")
        return f"  {self.at} {self.kind} at {self.call}: {problem}\n      replay: {self.replay}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a sweep.

    Attributes:
        what: what was tried: ``points`` or ``images``.
        calls: how many calls the clean run made that change a file, or how many of what ``unit`` says.
        tried: how many runs with a fault, or images, were checked.
        failures: the faults that were not survived, in order.
        unit: what ``calls`` counts.
    """

    what: str
    calls: int
    tried: int
    failures: tuple[SweepFailure, ...]
    unit: str = "calls that change something"

    @property
    def survived(self) -> int:
        """How many faults were survived."""
        return self.tried - len(self.failures)

    def __str__(self) -> str:
        counts = f"{self.what} tried {self.tried}, survived {self.survived}, failed {len(self.failures)}"
        return "\n".join([f"{counts} ({self.calls} {self.unit})", *map(str, self.failures)])

    def verify(self) -> Report:
        """Return this report if every fault was survived.

        Raises:
            AssertionError: one was not; the message lists each with the line that plays it again.
        """
        if self.failures:
            raise AssertionError(str(self))
        return self


def require_kind(kind: str) -> Callable[[FileCall], list[Fault]]:
    """Read the name of a kind of fault.

    Args:
        kind: one of ``KINDS``. ``torn`` cuts a write after 1, half and all but one of its bytes, then kills; ``short`` cuts it after half.

    Returns:
        A function that lists the faults of this kind that fit a call: none, one or several.

    Raises:
        InvalidInput: there is no such kind.
    """
    name, _, size = kind.partition(":")
    if kind == "kill":
        return lambda call: [KillAt(call.index)]
    if name in _WRITES and not size and ":" not in kind:
        return lambda call: [_WRITES[name](call.index, cut) for cut in _cuts(name, call.size or 0)]
    if name in _WRITES and re.fullmatch(r"[0-9]{1,9}", size):
        return lambda call: [_WRITES[name](call.index, int(size))] if call.size is not None else []
    errno_name = re.sub(r"^sticky[- ]", "", kind)
    number = getattr(errnos, errno_name, None)
    if not isinstance(number, int):
        raise InvalidInput(f"{kind!r} is no kind of fault.", fix=f"Use {KINDS}.")
    return lambda call: [Errno(call.index, number, sticky=errno_name != kind)]


def fault_at(kind: str, at: int) -> Fault:
    """Return the fault of a kind at call ``at`` of a program whose calls are not known yet: ``torn`` and ``short`` write one byte.

    Raises:
        InvalidInput: there is no such kind, or ``at`` is less than 1.
    """
    require_kind(kind)
    exact = f"{kind}:1" if kind in _WRITES else kind
    return require_kind(exact)(FileCall(at, 0, "", None, 0))[0]


def kind_of(fault: Fault) -> str:
    """Return the name of a fault's kind, as ``require_kind`` reads it."""
    match fault:
        case KillAt():
            return "kill"
        case TornKill(bytes=size):
            return f"torn:{size}"
        case ShortWrite(bytes=size):
            return f"short:{size}"
        case Errno(errno=number, sticky=sticky):
            return f"{'sticky-' if sticky else ''}{errnos.errorcode.get(number, number)}"


def describe_call(call: FileCall, root: str | os.PathLike[str] | None = None) -> str:
    """Describe a call for a person, with its path relative to ``root``: ``write notes.txt (12 bytes)``."""
    path = call.path or "?"
    if root is not None:
        path = os.path.relpath(path, os.path.realpath(root))
    return f"{call.name} {path}" + (f" ({call.size} bytes)" if call.size is not None else "")


def plan(calls: Sequence[FileCall], kinds: Sequence[str], points: Collection[int] | None = None, limit: int | None = None) -> list[Fault]:
    """List the faults to play, kind by kind in the order of the calls.

    Args:
        calls: the calls of a clean run.
        kinds: kinds of fault, see `require_kind`.
        points: numbers of the calls to strike, from 1; all if None.
        limit: at most this many calls, evenly spread from the first to the last; no limit if None.

    Raises:
        InvalidInput: a kind or a point does not exist, ``limit`` is below 1, or no fault is left to play.
    """
    makers = [require_kind(kind) for kind in kinds]
    require_points(
        points,
        [call.index for call in calls],
        f"a clean run has {len(calls)}",
        "A point is a call that changes a file, counted from 1 in the order of the whole process tree.",
    )
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is {limit}; it must be 1 or more.")
    chosen = [call for call in calls if points is None or call.index in points]
    if limit is not None and len(chosen) > limit:
        last = len(chosen) - 1
        chosen = [chosen[round(step * last / max(limit - 1, 1))] for step in range(limit)]
    faults = [fault for make in makers for call in chosen for fault in make(call)]
    if not faults:
        fits = f"none of the {len(chosen)} calls takes {' or '.join(kinds) or 'no fault'}" if calls else "no call changes a file"
        raise InvalidInput(
            f"There is nothing to strike: {fits}.",
            why="A sweep of no points would prove nothing.",
            fix="Calls count only below `within`; torn and short faults strike plain writes only.",
        )
    return faults


def require_points(points: Collection[int] | None, known: Collection[int], have: str, meaning: str) -> None:
    """Refuse points that do not exist.

    Args:
        points: the numbers that the caller asked for; None asks for all.
        known: the numbers that exist.
        have: how many exist, for the message.
        meaning: what a point is, for the message.

    Raises:
        InvalidInput: the message names each number that does not exist.
    """
    if unknown := sorted(set(points or ()) - set(known)):
        raise InvalidInput(f"There is no point {', '.join(map(str, unknown))}: {have}.", why=meaning)


def sweep(
    run: Callable[[Fault | None], SupervisedRun],
    *,
    kinds: Sequence[str] = ("kill",),
    points: slice | Iterable[int] | None = None,
) -> Iterator[tuple[Fault, SupervisedRun]]:
    """Run a program once for each fault at each of its calls, and leave the check to the caller.

    Args:
        run: restores the first state and runs the program with the given fault, through `supervise` or `supervise_function`.
        kinds: kinds of fault, see `require_kind`.
        points: which calls of the clean run: a slice of their list, or numbers from 1; all if None.

    Yields:
        Each fault and the run that met it, kind by kind in the order of the calls.

    Raises:
        InvalidInput: a kind is unknown, the clean run fails, or the program does not repeat its calls, so that a fault never fired.
    """
    makers = [require_kind(kind) for kind in kinds]
    clean = run(None)
    require_success(clean)
    if points is None or isinstance(points, slice):
        chosen = clean.calls[points or slice(None)]
    else:
        wanted = set(points)
        chosen = [call for call in clean.calls if call.index in wanted]
    for fault in (fault for make in makers for call in chosen for fault in make(call)):
        faulty = run(fault)
        if faulty.fired is None:
            raise InvalidInput(
                f"{fault} met nothing: {len(faulty.calls)} counted calls, {len(clean.calls)} in the clean run",
                why="The program does not repeat its calls, so the points of this sweep are not the points it has.",
                fix="Reset the world before each run, narrow `within`, and run nothing in parallel.",
            )
        yield fault, faulty


def sweep_and_check(
    run: Callable[[Fault | None], SupervisedRun],
    check: Callable[[SupervisedRun], object],
    *,
    replay: Callable[[int, str], str],
    kinds: Sequence[str] = ("kill",),
    points: Collection[int] | None = None,
    limit: int | None = None,
    root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run a program once for each fault at each of its calls, and check what each run left.

    Args:
        run: restores the first state and runs the program with the given fault.
        check: inspects the result of a run; raises an ``Exception`` or returns False if something is wrong. Also called after a clean run.
        replay: gives a line that plays one point and kind again.
        kinds, points, limit: see `plan`.
        root: the report shows paths relative to it.
        progress: called after each run.

    Raises:
        InvalidInput: the clean run fails, the check does not hold after it, or see `plan`.
        CapabilityMissing: supervision does not work here.
    """
    for kind in kinds:
        require_kind(kind)
    clean = run(None)
    require_success(clean)
    if problem := check_problem(lambda: check(clean)):
        raise InvalidInput(
            f"The check does not hold after a run without any fault: {problem}",
            why="Then it shows nothing about faults.",
        )

    def failure(fault: Fault) -> SweepFailure | None:
        faulty = run(fault)
        problem = _problem(faulty, check, clean)
        if problem is None:
            return None
        call = faulty.fired or clean.calls[fault.at - 1]
        return SweepFailure(fault.at, kind_of(fault), describe_call(call, root), problem, replay(fault.at, kind_of(fault)))

    return collect("points", len(clean.calls), plan(clean.calls, kinds, points, limit), failure, progress)


def collect(what: str, calls: int, cases: Sequence[T], failure: Callable[[T], SweepFailure | None], progress: Progress | None) -> Report:
    """Try each case of a sweep, and report the failures.

    Args:
        what, calls: see `Report`.
        cases: the faults or images to try.
        failure: tries one; returns its failure, or None if it was survived.
        progress: called after each case.
    """
    failures: list[SweepFailure] = []
    for done, case in enumerate(cases, 1):
        failures += [found] if (found := failure(case)) is not None else []
        if progress is not None:
            progress(done, len(cases), len(failures))
    return Report(what, calls, len(cases), tuple(failures))


def check_problem(check: Callable[[], object]) -> str | None:
    """Call a check; return what it says is wrong, or None."""
    try:
        answer = check()
    except CheckFailed as failed:
        return str(failed)
    except BaseException as error:
        if not _is_failed_check(error):
            raise
        return f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM].rstrip(": \n")
    return "the check says no" if answer is False else None


def _is_failed_check(error: BaseException) -> bool:
    """Whether an exception says that something is wrong. That of ``pytest.fail`` and ``pytest.raises`` does, and is no ``Exception``."""
    return isinstance(error, Exception) or type(error).__name__ == "Failed"


def require_success(clean: SupervisedRun) -> None:
    """Refuse a program that does not work without a fault.

    Raises:
        InvalidInput: it failed, or ran out of time.
    """
    if clean.exit_code == 0 and not clean.killed:
        return
    end = "ran out of time" if clean.timed_out else f"exited with {clean.exit_code}"
    raise InvalidInput(
        f"The program {end} without any fault, after {len(clean.calls)} calls that change a file.",
        why="A sweep over a program that does not work would prove nothing.",
        fix=f"Its stderr was: {os.fsdecode(clean.stderr).strip()[-2000:] or '(empty)'}",
    )


def _problem(faulty: SupervisedRun, check: Callable[[SupervisedRun], object], clean: SupervisedRun) -> str | None:
    if faulty.timed_out:
        return "it hung: its time was up"
    if faulty.fired is None:
        return (
            f"the point was not reached: {len(faulty.calls)} calls, {len(clean.calls)} in the clean run. "
            "The program does not repeat its calls; reset all it leaves behind, or narrow `within`"
        )
    return check_problem(lambda: check(faulty))


def _cuts(name: str, size: int) -> list[int]:
    cuts = {1, size // 2, size - 1} if name == "torn" else {size // 2}
    return sorted(cut for cut in cuts if 0 < cut < size)
