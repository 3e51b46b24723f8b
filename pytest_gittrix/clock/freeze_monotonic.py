"""Monotonic time on a frozen clock, for code that measures its deadlines with it.

freezegun finds ``time.monotonic`` and its kin in every module, replaces them and gives them back. Its own answers are those of the wall
clock; this module has it put others in their place, and leave everything else alone.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from freezegun import api, freeze_time

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.clock.replacing import WAITERS, RealTime, replaced
from pytest_gittrix.errors import GittrixError

_MONOTONIC: Final = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
_WALL: Final = ("time", "time_ns", "localtime", "gmtime", "strftime")


@contextmanager
def monotonic_freeze(clock: FrozenClock, spared: tuple[str, ...]) -> Iterator[None]:
    """Have monotonic time stand still until the block ends, and move as the clock advances.

    Args:
        clock: the clock.
        spared: prefixes of modules that keep real time.
    """
    _look_at_modules(spared)
    real = RealTime(WAITERS | {"anyio", "queue", "trio"}, spared)
    freezer: Any = freeze_time(clock.now())
    freezer.ignore = spared  # its own list has "gi", meant for PyGObject, which spares git and gittrix
    with replaced(api, _substitutes(clock, real)):
        freezer.start()
        try:
            yield
        finally:
            freezer.stop()


def _substitutes(clock: FrozenClock, real: RealTime) -> dict[str, Any]:
    """What freezegun is to put in place of what. Replacing something by itself is how it is left alone."""
    itself = {f"fake_{name}": f"real_{name}" for name in _WALL} | {"FakeDatetime": "real_datetime", "FakeDate": "real_date"}
    missing = sorted({name for pair in itself.items() for name in pair if not hasattr(api, name)})
    if missing:
        raise GittrixError(
            f"This freezegun has no {', '.join(missing)}.",
            why="The freeze of monotonic time is built on them.",
            fix="Install freezegun 1.5.1 or a later 1.x.",
            opt_out="Freeze the wall clock alone, with freeze=wall.",
        )
    still = {f"fake_{name}": _standing_still(getattr(api, f"real_{name}"), clock, real) for name in _MONOTONIC}
    pickled = dict.fromkeys(("pickle_fake_datetime", "pickle_fake_date"), lambda value: value.__reduce_ex__(4))
    return {fake: getattr(api, name) for fake, name in itself.items()} | still | pickled


def _standing_still(read: Callable[[], Any], clock: FrozenClock, real: RealTime) -> Callable[[], Any]:
    """A monotonic function that goes on from where it is, by as much as the clock advances.

    One that counts in floats starts at the next 2**-20 seconds, so that adding whole seconds rounds nothing: after a day, the difference
    of two readings is 86,400 and not a little less.
    """
    start, origin = read(), clock.elapsed_ns
    unit = 1 if isinstance(start, int) else 1e9
    if unit != 1:
        start = math.ceil(start * 2**20) / 2**20

    def frozen() -> Any:
        if real.has(sys._getframe(1).f_globals.get("__name__")):
            return read()
        elapsed = clock.elapsed_ns - origin
        return start + (elapsed if unit == 1 else elapsed / unit)

    frozen.__name__ = f"fake_{read.__name__}"
    return frozen


def _look_at_modules(spared: tuple[str, ...]) -> None:
    """Have freezegun look through every module now, and remember what it found.

    It reads each attribute, and so loads modules that load lazily. What else than an ImportError such a module raises would end its start.
    """
    seen: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while fresh := set(sys.modules) - seen:
            seen |= fresh
            for name in sorted(fresh):
                module = sys.modules.get(name)
                if isinstance(module, ModuleType) and not name.startswith(spared):
                    _read_attributes(module)


def _read_attributes(module: ModuleType) -> None:
    try:
        api._get_cached_module_attributes(module)
    except Exception:  # noqa: BLE001 - whatever a lazy import raises belongs to the code that asks for it, not to the freeze
        api._GLOBAL_MODULES_CACHE[module.__name__] = (api._get_module_attributes_hash(module), [])
