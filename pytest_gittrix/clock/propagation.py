"""How an instant reaches other programs: git's date variables, a clock file, and libfaketime where it is installed.

Each function is given the instant, in nanoseconds since 1970.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from glob import iglob
from pathlib import Path

from pytest_gittrix.durations import instant_at, ns_of, parse_instant
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.files import write_file

CLOCK_VARIABLE = "PYTEST_GITTRIX_CLOCK"

FOR_PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child")
"""The directory from which a Python program loads what shows it the clock file; see ``child.sitecustomize``."""

# The library for programs with threads first: it also serves those without, and the other way round it may deadlock.
FAKETIME_LIBRARIES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)


def git_dates(ns: int) -> dict[str, str]:
    """The variables that make git commit at an instant and count relative dates from it.

    ``GIT_TEST_DATE_NOW`` is git's own test hook (``date.c``), honoured by released binaries: it decides what "two weeks ago" means to
    ``reflog expire``, ``gc`` and ``worktree prune``.
    """
    seconds = ns // 1_000_000_000
    # git takes a number of up to eight digits for a calendar date unless it is marked as a timestamp.
    date = f"{'' if seconds >= 10**8 else '@'}{seconds} +0000"
    return {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "GIT_TEST_DATE_NOW": str(seconds)}


def python_path(before: str | None, *, frozen: bool) -> dict[str, str]:
    """The variable that makes Python programs follow the clock file, or leaves them alone; none where it would be empty.

    Args:
        before: the variable's value, with or without our directory.
        frozen: whether they are to follow.
    """
    rest = [path for path in before.split(os.pathsep) if path != FOR_PYTHON] if before is not None else []
    paths = [FOR_PYTHON, *rest] if frozen else rest
    return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}


def write_instant(path: Path, ns: int) -> None:
    """Put an instant into a clock file (and its twin for libfaketime), each replaced in one step.

    A reader in another process sees the old instant or the new one, never a half-written line.
    """
    iso = instant_at(ns).replace(tzinfo=None).isoformat(timespec="microseconds")
    _replace(path, f"{iso}Z\n")
    seconds, rest = divmod(ns, 1_000_000_000)
    _replace(_faketime_file(path), f"{seconds}.{rest // 1000:06}\n")


def write_moves(path: Path, moves: Iterable[tuple[int, int]]) -> None:
    """Write the moves of a clock next to its file: pairs of a kernel stamp and the instant in force after it, in nanoseconds."""
    _replace(_moves_file(path), "".join(f"{stamp} {instant}\n" for stamp, instant in moves))


def append_move(path: Path, stamp: int, instant: int) -> None:
    """Add one move to those next to a clock file."""
    with _moves_file(path).open("a", encoding="ascii") as file:
        file.write(f"{stamp} {instant}\n")


def read_moves(path: Path) -> list[tuple[int, int]]:
    """The moves next to a clock file, oldest first; empty without a file. A line that is still being written is left out."""
    try:
        lines = _moves_file(path).read_text(encoding="ascii").split("\n")[:-1]
        return [(int(stamp), int(instant)) for stamp, instant in (line.split() for line in lines)]
    except (OSError, ValueError):
        return []


def _moves_file(path: Path) -> Path:
    return path.with_name(path.name + ".moves")


def read_instant(path: Path) -> int:
    """The instant in a clock file, in nanoseconds since 1970.

    Raises:
        InvalidInput: the file cannot be read or holds no instant.
    """
    try:
        return ns_of(parse_instant(path.read_text(encoding="ascii").strip()))
    except (OSError, UnicodeDecodeError, InvalidInput) as problem:
        cause = problem.fact if isinstance(problem, InvalidInput) else str(problem)
        raise InvalidInput(
            f"The clock file {str(path)!r} cannot be used: {cause}",
            why="Without it this process would run on real time while the test's clock is frozen.",
            fix=f"Point {CLOCK_VARIABLE} at a file written by FrozenClock.attach_file.",
            opt_out=f"Unset {CLOCK_VARIABLE} to run on real time.",
        ) from problem


def faketime_library() -> str | None:
    """The path of libfaketime's library in the places where systems install it, or None."""
    return next((path for pattern in FAKETIME_LIBRARIES for path in iglob(pattern)), None)


def faketime_environment(path: Path) -> dict[str, str] | None:
    """The variables that make an unaware program follow the clock file at ``path``, live; None where libfaketime is not installed.

    Monotonic time stays real, or timeouts would hang; so do file stamps, or every file would look as if changed just now.
    """
    library = faketime_library()
    if library is None:
        return None
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(_faketime_file(path)),
        "FAKETIME_FMT": "%s",  # seconds since 1970: the default format is read in the child's time zone
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        CLOCK_VARIABLE: str(path),
    }


def _faketime_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.faketime")


def _replace(path: Path, text: str) -> None:
    write_file(path, text.encode("ascii"), mode=0o666, temporary=path.with_name(f".{path.name}.{os.getpid()}.new"))
