"""The whole test process on a frozen clock: what it reads from ``time`` and ``datetime`` is what the test's clock shows.

time-machine replaces the wall clock below Python's objects, so that references which code captured earlier follow too, and leaves
monotonic time alone, so that locks and timeouts still end. This module says what it shows, lets the few go on that wait by the wall clock
or stamp reports with it, and proves that it worked. Must not know sessions, git or pytest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, Final, get_args

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.clock.replacing import replaced
from pytest_gittrix.clock.shown import FreezeMode, refused_library, showing
from pytest_gittrix.errors import ClockConflict, InvalidInput
from pytest_gittrix.os_level.monotonic import real_wall_ns

SPARED: Final = ("_pytest.", "xdist.", "hypothesis.", "git.util")
"""Prefixes of modules that read real time: they stamp reports of tests with it, or wait for a lock by it (GitPython)."""


@contextmanager
def process_freeze(
    clock: FrozenClock, mode: FreezeMode = "wall", *, children: bool = True, autojump: bool | float = False
) -> Iterator[None]:
    """Show ``clock`` to everything in this process, in every thread, until the block ends; it follows each move of the clock.

    Not reached: C extensions that ask the system, clocks of ``time.clock_gettime`` other than ``CLOCK_REALTIME``, a ``time.ctime`` or
    ``time.asctime`` that was captured before, file stamps, and other processes. Local time is UTC, unless the variable TZ names a zone.

    Args:
        clock: the clock to show.
        mode: ``wall`` freezes ``time.time``, ``datetime.now`` and their kin; ``all`` freezes ``monotonic`` and ``perf_counter`` too, for
            code that measures its deadlines with them; ``none`` freezes nothing, for code that is given a clock.
        children: whether Python programs that are started with the environment of the clock's world show it too.
        autojump: whether sleeps in this thread move the clock instead of waiting: ``time.sleep``, and the timers of asyncio and trio. While
            another thread or a program is at work they wait for real; a number is how many real seconds without any event that lasts.

    Raises:
        ClockConflict: another library, or another clock or mode, already holds this process; or something else holds part of it.
        InvalidInput: ``mode`` is none of these.
    """
    if mode not in get_args(FreezeMode):
        raise InvalidInput(
            f"freeze={mode!r} is not known.",
            why="It says which clocks of the test process stand still.",
            fix=f"Use one of {', '.join(get_args(FreezeMode))}.",
        )
    if not autojump >= 0:
        raise InvalidInput(f"autojump={autojump!r} is not known.", fix="Use True, False, or real seconds, not below 0.")
    if mode == "none":
        yield
        return
    with showing(clock, mode, children=children) as is_first, ExitStack() as frozen:
        if is_first:
            _freeze(frozen, clock, mode, autojump)
        yield


def _freeze(frozen: ExitStack, clock: FrozenClock, mode: FreezeMode, jumps: bool | float) -> None:
    from freezegun import api
    from time_machine import travel

    # An aware instant also makes UTC the local time zone, whatever the machine's; one that was chosen by TZ is left alone.
    travelling = travel(clock.now_ns() / 1e9 if "TZ" in os.environ else clock.now(), tick=False)
    traveller = travelling.start()
    frozen.callback(travelling.stop)
    spared = SPARED + _spared_by_configuration()
    traveller.time_ns = _answer(clock, spared)  # type: ignore[method-assign]
    frozen.enter_context(replaced(time, {"ctime": _ctime, "asctime": _asctime}))
    if mode == "all":
        from pytest_gittrix.clock.freeze_monotonic import monotonic_freeze

        frozen.enter_context(monotonic_freeze(clock, spared))
    if jumps is not False:
        from pytest_gittrix.clock.autojump import autojump

        frozen.enter_context(autojump(clock, spared, None if jumps is True else jumps))
    _prove(clock, mode)
    frozen.enter_context(replaced(api._freeze_time, {"start": _refusing("freezegun")}))
    frozen.enter_context(replaced(travel, {"start": _refusing("time-machine")}))


def _answer(clock: FrozenClock, spared: tuple[str, ...]) -> Callable[[], int]:
    """What time-machine asks for each reading of the wall clock; the frame below is that of the code which reads."""

    def time_ns() -> int:
        reader = sys._getframe().f_back
        if reader is not None and str(reader.f_globals.get("__name__")).startswith(spared):
            return real_wall_ns()
        return clock.now_ns()

    return time_ns


def _spared_by_configuration() -> tuple[str, ...]:
    """What the user added with ``freezegun.configure(extend_ignore_list=...)``."""
    from freezegun import config

    return tuple(prefix for prefix in config.settings.default_ignore_list if prefix not in config.DEFAULT_IGNORE_LIST)


_real_ctime, _real_asctime = time.ctime, time.asctime


def _ctime(seconds: float | None = None, /) -> str:
    return _real_ctime(time.time() if seconds is None else seconds)


def _asctime(*when: Any) -> str:
    return _real_asctime(*when or [time.localtime()])


def _refusing(library: str) -> Callable[..., Any]:
    def start(*_: object, **__: object) -> None:
        raise refused_library(library)

    return start


# As code under test captures them.
_WALL: Final[dict[str, Callable[[], float]]] = {
    "time.time()": lambda: time.time(),
    "time.time_ns()": lambda: time.time_ns() / 1e9,
    "time.clock_gettime(CLOCK_REALTIME)": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "datetime.now(UTC)": lambda: datetime.now(UTC).timestamp(),
    "time(), imported by name": (lambda read: lambda: read())(time.time),
}


def _prove(clock: FrozenClock, mode: FreezeMode) -> None:
    """Read the clock the way code under test does, and refuse to go on if any reading is wrong."""
    expected = clock.now_ns() / 1e9
    readings = {name: read() - expected for name, read in _WALL.items()}
    wrong = [f"{name} is off by {off:+.0f} s" for name, off in readings.items() if abs(off) >= 1]
    if mode == "wall":
        wrong += [f"time.{name} does not advance" for name in ("monotonic", "perf_counter") if not _advances(getattr(time, name))]
    if wrong:
        raise ClockConflict(
            "This process's clock could not be frozen: " + "; ".join(wrong) + ".",
            why="Code under test would see two times at once, and a deadline might never pass, or a timeout never end.",
            fix="Look for what replaces functions of time or datetime: a monkeypatch, or another library.",
            opt_out="Freeze nothing with --gittrix-freeze=none, and give the clock to the code under test.",
        )


def _advances(read: Callable[[], float]) -> bool:
    start = read()
    return any(read() > start for _ in range(100_000))
