"""Which clock this process shows to code that reads the time itself: the machine's, a test's, or that of another library.

Must not load a time library: it only looks at those that are loaded.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.clock.propagation import python_path
from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import ClockConflict

FreezeMode = Literal["wall", "all", "none"]


@dataclass(frozen=True)
class Shown:
    """A clock that this process shows.

    Attributes:
        clock: the clock.
        mode: ``wall`` or ``all``.
        children: whether Python programs that are started for the test show it too.
    """

    clock: FrozenClock
    mode: FreezeMode
    children: bool = field(default=True, compare=False)


_shown: Shown | None = None
_taking = threading.Lock()


def shown_clock() -> FrozenClock | None:
    """The clock of a test that ``process_freeze`` shows in this process now, if there is one."""
    return _shown.clock if _shown is not None else None


def clock_of_a_test(*, persons_store: bool) -> FrozenClock | None:
    """The clock on which an engine is to run that was given none; None for the machine's, after a warning if the process shows another.

    Args:
        persons_store: whether the engine works on the store that a person has on this machine, whose sessions a test must not let expire.
    """
    clock = shown_clock()
    if clock is not None and not persons_store:
        return clock
    library = "the clock of a test" if clock is not None else other_library()
    if library is not None:
        fix = "Give the engine a store= or home= of the test" if clock is not None else "Move gittrix_clock instead"
        warnings.warn(
            f"This engine runs on the machine's time, while {library} holds this process's clock: its records and deadlines do not follow. "
            f"{fix}, or give it a clock=.",
            stacklevel=3,
        )
    return None


def for_programs(clock: object, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables for programs of a test, so that those in Python see what the test process sees: this clock if it is shown, else real time.

    Args:
        clock: the clock that the variables are of.
        variables: all variables; ``PYTHONPATH`` keeps what else it names.
    """
    frozen = _shown is not None and _shown.clock is clock and _shown.children and _shown.clock.require_file() is not None
    others = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
    times = _shown.clock.environment() if frozen and _shown is not None else {}
    return others | times | python_path(variables.get("PYTHONPATH"), frozen=frozen)


@contextmanager
def showing(clock: FrozenClock, mode: FreezeMode, *, children: bool = True) -> Iterator[bool]:
    """A block in which the clock belongs to this process; gives whether it did not before.

    Raises:
        ClockConflict: another library, or another clock or mode, holds this process.
    """
    global _shown
    wanted = Shown(clock, mode, children)
    with _taking:
        before = _shown
        if before is not None and before != wanted:
            raise _held_by_another(before, wanted)
        if before is None and (library := other_library()) is not None:
            raise held_by_library(library)
        _shown = before or wanted
    try:
        yield before is None
    finally:
        _shown = before


def other_library() -> str | None:
    """The name of the library that shows this process a time of its own, if one does."""
    freezegun, time_machine = sys.modules.get("freezegun.api"), sys.modules.get("time_machine")
    if getattr(freezegun, "freeze_factories", None):
        return "freezegun"
    return "time-machine" if getattr(time_machine, "traveller_stack", None) else None


def held_by_library(library: str) -> ClockConflict:
    """The refusal of a second frozen clock, where the other is that of a library."""
    return ClockConflict(
        f"{library} already holds this process's clock.",
        why="Two frozen clocks in one process disagree: moving one leaves the other where it was.",
        fix=f"{_REMOVE[library]} from this test and move gittrix_clock instead.",
        opt_out="Keep it, and freeze nothing here with --gittrix-freeze=none.",
    )


_REMOVE = {"freezegun": "Remove freeze_time or the freezer fixture", "time-machine": "Remove time_machine.travel or the fixture"}


def refused_library(library: str) -> ClockConflict:
    """The refusal of a library that wants to freeze a process while a test's clock is shown."""
    now = f" ({format_instant(_shown.clock.now())})" if _shown is not None else ""
    return ClockConflict(
        f"{library} cannot freeze this process: it shows the clock of a test{now}.",
        why="Two frozen clocks in one process disagree: the engine and the test would see two times.",
        fix=f"{_REMOVE[library]} from this test and move gittrix_clock instead.",
        opt_out=f"Keep {library}, and freeze nothing here with --gittrix-freeze=none.",
    )


def _held_by_another(holder: Shown, wanted: Shown) -> ClockConflict:
    fact = (
        f"This process's clock is already frozen in mode {holder.mode!r}; mode {wanted.mode!r} was asked for."
        if holder.clock is wanted.clock
        else f"This process already shows another clock ({format_instant(holder.clock.now())})."
    )
    return ClockConflict(
        fact,
        why="A process has one clock: the code of one test would see the time of another.",
        fix="End the first freeze before starting the next, or use one clock and one mode for both.",
        opt_out="Use freeze=none for all but one, and give each its clock by argument.",
    )
