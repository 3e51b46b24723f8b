"""The whole test process on a frozen clock: what it reads from ``time`` and ``datetime`` is what the test's clock shows.

freezegun does the replacing. This module decides what is replaced (the wall clock only, so that locks and timeouts still end) and for whom
(``git*`` and ``gittrix*`` modules and threads too, which freezegun leaves out by default), and proves that it worked. Must not know
sessions, git or pytest.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, get_args

from freezegun import api, config, freeze_time

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import ClockConflict, GittrixError, InvalidInput

FreezeMode = Literal["wall", "all", "none"]

# Prefixes of modules that keep real time, and so does whatever they call within five frames. freezegun's own list has "gi", meant for
# PyGObject, which spares git, gitdb and gittrix; and threading, queue and multiprocessing, which makes threads see two times at once.
# Their waits are on monotonic time, which stays real. pytest's timing is spared so that its reports are stamped with real time.
IGNORED = ("gi.", "nose.plugins", "six.moves", "django.utils.six.moves", "google.gax", "selenium", "prompt_toolkit", "_pytest.timing")

# In mode "all" these packages still read real monotonic time: they wait by it, or measure with it how long a test took.
WAITERS = frozenset(
    {"_pytest", "anyio", "asyncio", "concurrent", "execnet", "filelock", "hypothesis", "multiprocessing", "pytest", "queue"}
    | {"selectors", "subprocess", "threading", "trio", "xdist"}
)

_MONOTONIC = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


@dataclass(frozen=True)
class _Holder:
    clock: FrozenClock
    mode: FreezeMode


_holder: _Holder | None = None
_taking = threading.Lock()


@contextmanager
def process_freeze(clock: FrozenClock, mode: FreezeMode = "wall") -> Iterator[None]:
    """Show ``clock`` to everything in this process, in every thread, until the block ends; it follows each move of the clock.

    Not reached: C extensions that read the clock themselves, ``time.clock_gettime``, ``time.ctime()``, file stamps, and other processes.
    A naive ``datetime.now()`` is UTC.

    Args:
        clock: the clock to show.
        mode: ``wall`` freezes ``time.time``, ``datetime.now`` and their kin; ``all`` freezes ``monotonic`` and ``perf_counter`` too, for
            code that measures its deadlines with them; ``none`` freezes nothing, for code that is given a clock.

    Raises:
        ClockConflict: another library, or another clock or mode, already holds this process; or something else holds part of it.
        InvalidInput: ``mode`` is none of these.
    """
    global _holder
    if mode not in get_args(FreezeMode):
        raise InvalidInput(
            f"freeze={mode!r} is not known.",
            why="It says which clocks of the test process stand still.",
            fix=f"Use one of {', '.join(get_args(FreezeMode))}.",
        )
    if mode == "none" or not _take(_Holder(clock, mode)):
        yield
        return
    try:
        with _frozen(clock, mode):
            yield
    finally:
        _holder = None


def _take(wanted: _Holder) -> bool:
    """Whether the process's clock was free and is now ours; False if it shows just this already."""
    global _holder
    with _taking:
        if _holder == wanted:
            return False
        if _holder is not None:
            raise _held_by_another(_holder, wanted)
        _refuse_other_libraries()
        _holder = wanted
        return True


@contextmanager
def _frozen(clock: FrozenClock, mode: FreezeMode) -> Iterator[None]:
    with ExitStack() as stack:
        probes = stack.enter_context(_probes())
        _load_lazy_modules()
        stack.enter_context(_replaced(_substitutes(clock, mode)))
        freezer: Any = freeze_time(clock.now())
        freezer.ignore = IGNORED + _ignored_by_configuration()
        factory = freezer.start()
        stack.callback(_stop, freezer, factory)
        stack.callback(clock.on_move(lambda: factory.move_to(clock.now())))
        factory.move_to(clock.now())  # it may have moved since
        _prove(probes, clock, mode)
        yield


def _stop(freezer: Any, factory: Any) -> None:
    stacks: tuple[list[Any], ...] = (api.freeze_factories, api.ignore_lists, api.tick_flags, api.tz_offsets)
    left_open = len(api.freeze_factories) - 1 - api.freeze_factories.index(factory)
    for stack in stacks if left_open else ():
        del stack[-left_open:]
    freezer.stop()
    if left_open:
        raise ClockConflict(
            "A freezegun freeze that was started inside this one is still running.",
            why="Freezes undo each other's work, so they must end in reverse order. It was ended to free the process's clock.",
            fix="Stop it, or use it as a context manager, within the test that started it.",
        )


def _substitutes(clock: FrozenClock, mode: FreezeMode) -> dict[str, Callable[..., Any]]:
    """What freezegun should put in place of time's functions, where its own answer is not the right one."""
    substitutes: dict[str, Callable[..., Any]] = {"fake_time_ns": _time_ns, "fake_localtime": _localtime}
    for name in _MONOTONIC:
        real = getattr(api, f"real_{name}")
        # Replacing a function by itself is how it is left alone, with no instant at which another thread could meet a frozen one.
        substitutes[f"fake_{name}"] = real if mode == "wall" else _standing_still(real, clock)
    return substitutes


def _time_ns() -> int:
    """freezegun's goes through a float and is off by up to a microsecond."""
    if api._should_use_real_time():
        return api.real_time_ns()
    return api._get_fake_monotonic_ns()


def _localtime(seconds: float | None = None) -> time.struct_time:
    """freezegun's forgets summer time."""
    if seconds is not None:
        return api.real_localtime(seconds)
    if api._should_use_real_time():
        return api.real_localtime()
    return api.real_localtime(api._get_fake_monotonic_ns() // 1_000_000_000)


def _standing_still(real: Callable[[], Any], clock: FrozenClock) -> Callable[[], Any]:
    """A monotonic function that goes on from where it is, by as much as the clock advances.

    One that counts in floats starts at the next 2**-20 seconds, so that adding whole seconds rounds nothing: after a day, the difference
    of two readings is 86,400 and not a little less.
    """
    start, origin = real(), clock.elapsed_ns
    unit = 1 if isinstance(start, int) else 1e9
    if unit != 1:
        start = math.ceil(start * 2**20) / 2**20

    def frozen() -> Any:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] in WAITERS or api._should_use_real_time():
            return real()
        elapsed = clock.elapsed_ns - origin
        return start + (elapsed if unit == 1 else elapsed / unit)

    frozen.__name__ = f"fake_{real.__name__}"
    return frozen


@contextmanager
def _replaced(substitutes: dict[str, Callable[..., Any]]) -> Iterator[None]:
    missing = sorted(name for name in substitutes if not hasattr(api, name))
    if missing:
        raise GittrixError(
            f"This freezegun has no {', '.join(missing)}.",
            why="The process-wide freeze is built on them.",
            fix="Install freezegun 1.5.1 or a later 1.x.",
            opt_out="Freeze nothing with freeze=none, and give the clock to the code under test.",
        )
    originals = {name: getattr(api, name) for name in substitutes}
    try:
        for name, substitute in substitutes.items():
            setattr(api, name, substitute)
        yield
    finally:
        for name, original in originals.items():
            setattr(api, name, original)


def _ignored_by_configuration() -> tuple[str, ...]:
    """What the user added with ``freezegun.configure(extend_ignore_list=...)``."""
    return tuple(prefix for prefix in config.settings.default_ignore_list if prefix not in config.DEFAULT_IGNORE_LIST)


def _load_lazy_modules() -> None:
    """Have every attribute of every module read now.

    freezegun reads them all after it has replaced ``datetime``. A module that is loaded lazily by such a read keeps the replacement for
    ever, and pydantic cannot build models on it. freezegun remembers what it found, so that the search is made only once.
    """
    seen: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while fresh := set(sys.modules) - seen:
            seen |= fresh
            for name in sorted(fresh):
                module = sys.modules.get(name)
                if isinstance(module, ModuleType) and not name.startswith(IGNORED):
                    _read_attributes(module)


def _read_attributes(module: ModuleType) -> None:
    try:
        api._get_cached_module_attributes(module)
    except Exception:  # noqa: BLE001 - whatever a lazy import raises belongs to the code that asks for it, not to the freeze
        api._GLOBAL_MODULES_CACHE[module.__name__] = (api._get_module_attributes_hash(module), [])


def _refuse_other_libraries() -> None:
    time_machine = sys.modules.get("time_machine")
    if api.freeze_factories:
        raise _held_by_library("freezegun", "Remove freeze_time or the freezer fixture from this test")
    if time_machine is not None and time_machine.escape_hatch.is_travelling():
        raise _held_by_library("time-machine", "Remove time_machine.travel from this test")


def _held_by_library(library: str, fix: str) -> ClockConflict:
    return ClockConflict(
        f"{library} already holds this process's clock.",
        why="Two frozen clocks in one process disagree: moving one leaves the other where it was.",
        fix=f"{fix} and move gittrix_clock instead.",
        opt_out="Keep it, and freeze nothing here with --gittrix-freeze=none.",
    )


def _held_by_another(holder: _Holder, wanted: _Holder) -> ClockConflict:
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


# Names that freezegun's own list would spare. One module imports the functions before the freeze, as code under test does.
_PROBE_NAMES = ("git_clock_probe", "gittrix_clock_probe")
_PROBE = """
import datetime, time
from datetime import datetime as imported_datetime
from time import monotonic, monotonic_ns, perf_counter, perf_counter_ns, time as imported_time, time_ns

def wall():
    utc = datetime.timezone.utc
    return {
        "time.time()": time.time(),
        "time.time_ns()": time.time_ns() / 1e9,
        "datetime.now(UTC)": datetime.datetime.now(utc).timestamp(),
        "time(), imported by name": imported_time(),
        "time_ns(), imported by name": time_ns() / 1e9,
        "datetime.now(UTC), imported by name": imported_datetime.now(utc).timestamp(),
    }
"""


@contextmanager
def _probes() -> Iterator[list[ModuleType]]:
    probes = [ModuleType(name) for name in _PROBE_NAMES]
    for probe in probes:
        exec(_PROBE, probe.__dict__)
        sys.modules[probe.__name__] = probe
    try:
        yield probes
    finally:
        for probe in probes:
            sys.modules.pop(probe.__name__, None)


def _prove(probes: list[ModuleType], clock: FrozenClock, mode: FreezeMode) -> None:
    """Read the clock the way code under test does, and refuse to go on if any reading is wrong."""
    wrong: list[str] = []

    def read(where: str) -> None:
        expected = clock.now_ns() / 1e9
        for probe in probes:
            readings: dict[str, float] = probe.wall()
            wrong.extend(
                f"{reading} in a module named {probe.__name__} in {where} is off by {seconds - expected:+.0f} s"
                for reading, seconds in readings.items()
                if abs(seconds - expected) >= 1
            )

    read("the main thread")
    thread = threading.Thread(target=read, args=("another thread",))
    thread.start()
    thread.join()
    if mode == "wall":
        wrong.extend(f"time.{name} is not the real one" for name in _MONOTONIC if getattr(time, name) is not getattr(api, f"real_{name}"))
        wrong.extend(f"{name}, imported by name, stands still" for name in _MONOTONIC if not _advances(getattr(probes[0], name)))
    if wrong:
        raise ClockConflict(
            "This process's clock could not be frozen: " + "; ".join(wrong) + ".",
            why="Code under test would see two times at once, and a deadline might never pass, or a timeout never end.",
            fix="Look for another library that replaces time functions, or a freezegun.configure(extend_ignore_list=...) that matches.",
            opt_out="Freeze nothing with --gittrix-freeze=none, and give the clock to the code under test.",
        )


def _advances(read: Callable[[], float]) -> bool:
    start = read()
    return any(read() > start for _ in range(100_000))
