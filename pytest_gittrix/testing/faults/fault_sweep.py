"""Faults by name, at the calls they fit, and what came of striking a program with each of them.

A fault is told in a word that a person can type again: ``kill``, ``torn:5``, ``ENOSPC``, ``sticky-EIO``. Knows neither what the program
is nor how its world is put back; who sweeps brings both.
"""

from __future__ import annotations

import errno as errnos
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.faults.faults import Call, Errno, Fault, Kill, Run, ShortWrite, TornKill

KINDS: Final = "kill, torn, torn:BYTES, short, short:BYTES, an errno name such as ENOSPC, or one that sticks: sticky-EIO"
"""The kinds of fault, for messages."""

Progress = Callable[[int, int, int], object]
"""Called after each run with: how many there were, how many there will be, how many failed."""

_WRITES: Final[Mapping[str, type[TornKill] | type[ShortWrite]]] = {"torn": TornKill, "short": ShortWrite}
_LONGEST_PROBLEM: Final = 600


class Rejected(Exception):
    """What a check may raise to be quoted word for word; of any other exception the class is told too."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A strike that was not survived.

    Attributes:
        at: the point, from 1.
        kind: the fault, as it can be typed again.
        call: what was struck, as ``rename notes.txt``.
        problem: what was wrong afterwards.
        replay: how to play this one again, on a line.
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
    """What a sweep found.

    Attributes:
        what: what was tried: ``points`` or ``images``.
        calls: how many there are in a clean run.
        tried: how many runs with a fault, or images.
        failures: those that were not survived, in order.
    """

    what: str
    calls: int
    tried: int
    failures: tuple[Failure, ...]

    @property
    def survived(self) -> int:
        """How many were survived."""
        return self.tried - len(self.failures)

    def __str__(self) -> str:
        told = f"{self.what} tried {self.tried}, survived {self.survived}, failed {len(self.failures)}"
        return "\n".join([f"{told} ({self.calls} calls that change something)", *map(str, self.failures)])

    def verify(self) -> Report:
        """Return this report if all were survived.

        Raises:
            AssertionError: some were not; the message has each with a line to play it again.
        """
        if self.failures:
            raise AssertionError(str(self))
        return self


def require_kind(kind: str) -> Callable[[Call], list[Fault]]:
    """What a kind of fault means at a call: nothing, one fault, or several.

    Args:
        kind: one of ``KINDS``. ``torn`` cuts a write after 1, half and all but one of its bytes, then kills; ``short`` after half.

    Raises:
        InvalidInput: there is no such kind.
    """
    name, _, size = kind.partition(":")
    if kind == "kill":
        return lambda call: [Kill(call.index)]
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
    """The fault of a kind at a call nothing else is known of: ``torn`` and ``short`` write one byte.

    Raises:
        InvalidInput: there is no such kind, or ``at`` is less than 1.
    """
    require_kind(kind)
    exact = f"{kind}:1" if kind in _WRITES else kind
    return require_kind(exact)(Call(at, 0, "", None, 0))[0]


def spelled(fault: Fault) -> str:
    """The kind of a fault, as it can be typed again."""
    match fault:
        case Kill():
            return "kill"
        case TornKill(bytes=size):
            return f"torn:{size}"
        case ShortWrite(bytes=size):
            return f"short:{size}"
        case Errno(errno=number, sticky=sticky):
            return f"{'sticky-' if sticky else ''}{errnos.errorcode.get(number, number)}"


def told(call: Call, root: str | os.PathLike[str] | None = None) -> str:
    """A call in words, its path relative to ``root``: ``write notes.txt (12 bytes)``."""
    path = call.path or "?"
    if root is not None:
        path = os.path.relpath(path, os.path.realpath(root))
    return f"{call.name} {path}" + (f" ({call.size} bytes)" if call.size is not None else "")


def plan(calls: Sequence[Call], kinds: Sequence[str], points: Collection[int] | None = None, limit: int | None = None) -> list[Fault]:
    """Which faults to play, kind by kind in the order of calls.

    Args:
        calls: those of a clean run.
        kinds: see `require_kind`.
        points: which calls, from 1; all if None.
        limit: at most this many calls, from the first to the last in even steps.

    Raises:
        InvalidInput: a kind or a point there is not, a limit below 1, or nothing is left to play.
    """
    makers = [require_kind(kind) for kind in kinds]
    if points is not None and (strangers := sorted(set(points) - {call.index for call in calls})):
        raise InvalidInput(
            f"There is no point {', '.join(map(str, strangers))}: a clean run has {len(calls)}.",
            why="A point is a call that changes a file, counted from 1 in the order of the whole process tree.",
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


def strike_all(
    run: Callable[[Fault | None], Run],
    check: Callable[[Run], object],
    *,
    replay: Callable[[int, str], str],
    kinds: Sequence[str] = ("kill",),
    points: Collection[int] | None = None,
    limit: int | None = None,
    root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Strike a program at its points, one run each, and check what it left.

    Args:
        run: puts the world into its first state and runs the program with the fault given.
        check: looks at the world afterwards; raises an ``Exception`` or returns False if something is wrong. Also called after a clean run.
        replay: tells how to play one point and kind again.
        kinds, points, limit: see `plan`.
        root: paths are told relative to it.
        progress: called after each run.

    Raises:
        InvalidInput: the clean run fails, the check does not hold after it, or see `plan`.
        CapabilityMissing: supervision does not work here.
    """
    for kind in kinds:
        require_kind(kind)
    clean = run(None)
    _require_clean(clean, check)
    faults = plan(clean.calls, kinds, points, limit)
    failures: list[Failure] = []
    for done, fault in enumerate(faults, 1):
        struck = run(fault)
        problem = _problem(struck, check, clean)
        if problem is not None:
            call = struck.fired or clean.calls[fault.at - 1]
            failures.append(Failure(fault.at, spelled(fault), told(call, root), problem, replay(fault.at, spelled(fault))))
        if progress is not None:
            progress(done, len(faults), len(failures))
    return Report("points", len(clean.calls), len(faults), tuple(failures))


def verdict(check: Callable[[], object]) -> str | None:
    """What a check says is wrong, or None."""
    try:
        answer = check()
    except Rejected as rejected:
        return str(rejected)
    except BaseException as error:
        if not _is_verdict(error):
            raise
        return f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM].rstrip(": \n")
    return "the check says no" if answer is False else None


def _is_verdict(error: BaseException) -> bool:
    """Whether an exception says that something is wrong; that of ``pytest.fail`` and ``pytest.raises`` does, and is no ``Exception``."""
    return isinstance(error, Exception) or type(error).__name__ == "Failed"


def require_success(clean: Run) -> None:
    """See that a run without a fault did well.

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


def _require_clean(clean: Run, check: Callable[[Run], object]) -> None:
    require_success(clean)
    if problem := verdict(lambda: check(clean)):
        raise InvalidInput(
            f"The check does not hold after a run without any fault: {problem}",
            why="Then it tells nothing of faults.",
        )


def _problem(struck: Run, check: Callable[[Run], object], clean: Run) -> str | None:
    if struck.timed_out:
        return "it hung: its time was up"
    if struck.fired is None:
        return (
            f"the point was not reached: {len(struck.calls)} calls, {len(clean.calls)} in the clean run. "
            "The program does not repeat its calls; reset all it leaves behind, or narrow `within`"
        )
    return verdict(lambda: check(struck))


def _cuts(name: str, size: int) -> list[int]:
    cuts = {1, size // 2, size - 1} if name == "torn" else {size // 2}
    return sorted(cut for cut in cuts if 0 < cut < size)
