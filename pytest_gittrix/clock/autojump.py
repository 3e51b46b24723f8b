"""``time.sleep``, ``asyncio.sleep`` and trio's, as moves of a clock.

Must not be loaded where no test asks for it: it loads asyncio, and trio where that is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.clock.jumper import Jumper, really_sleep
from pytest_gittrix.clock.jumping_asyncio import jumping_loops
from pytest_gittrix.clock.jumping_trio import jumping_runs
from pytest_gittrix.clock.replacing import WAITERS, RealTime, replaced


@contextmanager
def autojump(clock: FrozenClock, spared: tuple[str, ...], patience: float | None = None) -> Iterator[None]:
    """Have sleeps in this thread move the clock instead of waiting, until the block ends.

    Args:
        clock: the clock.
        spared: prefixes of modules that sleep for real.
        patience: real seconds without any event after which time jumps although another thread or a program is at work; None for as long
            as that takes.
    """
    jumper, real = Jumper(clock, patience), RealTime(WAITERS | {"pytest_gittrix"}, spared)
    with ExitStack() as stack:
        stack.callback(jumper.close)
        stack.enter_context(jumping_loops(jumper))
        stack.enter_context(jumping_runs(jumper))
        sleep = _sleep(jumper, real)
        for module, names in _holders(real):
            stack.enter_context(replaced(module, dict.fromkeys(names, sleep)))
        yield


def _sleep(jumper: Jumper, real: RealTime) -> Callable[[float], None]:
    def sleep(seconds: float, /) -> None:
        is_number = isinstance(seconds, int | float) and seconds > 0
        if is_number and jumper.is_here and not real.has(sys._getframe(1).f_globals.get("__name__")):
            jumper.sleep(seconds)
        else:
            really_sleep(seconds)

    return sleep


def _holders(real: RealTime) -> Iterator[tuple[Any, list[str]]]:
    """The modules that have the function, ``time`` among them, and its names there."""
    for name, module in list(sys.modules.items()):
        if not real.has(name):
            names = [key for key, value in list(getattr(module, "__dict__", {}).items()) if value is really_sleep]
            if names:
                yield module, names
