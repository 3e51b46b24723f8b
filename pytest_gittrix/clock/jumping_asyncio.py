"""Loops of asyncio whose timers move the clock of a test.

The time of a loop and its wait for events are both replaced, in the classes: a loop that was made before follows, too, and goes on with
real time afterwards. Loops of other threads keep real time, as do loops with another selector than the usual one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from pytest_gittrix.clock.jumper import Jumper
from pytest_gittrix.clock.replacing import replaced

_Loop = asyncio.BaseEventLoop
_Selector = selectors.DefaultSelector


@contextmanager
def jumping_loops(jumper: Jumper) -> Iterator[None]:
    """Have the loops of this thread jump until the block ends."""
    loops: WeakSet[Any] = WeakSet()
    calls: WeakSet[Any] = WeakSet()
    real_time, real_select, real_executor = _Loop.time, _Selector.select, _Loop.run_in_executor

    def loop_time(loop: Any) -> float:
        if not jumper.is_here or type(_selector_of(loop)) is not _Selector:
            return real_time(loop)
        loops.add(loop)
        return jumper.seconds()

    def run_in_executor(loop: Any, *arguments: Any) -> Any:
        call = real_executor(loop, *arguments)
        calls.add(call)
        return call

    def select(selector: Any, timeout: float | None = None) -> Any:
        loop = asyncio._get_running_loop()
        if timeout is None or timeout <= 0 or _selector_of(loop) is not selector or not jumper.is_here:
            return real_select(selector, timeout)
        found: list[Any] = []

        def for_event(seconds: float) -> bool:
            found[:] = real_select(selector, seconds)
            return bool(found)

        jumper.wait(timeout, for_event, lambda: _has_files(loop, selector) or any(not call.done() for call in calls))
        return found

    with replaced(_Loop, {"time": loop_time, "run_in_executor": run_in_executor}), replaced(_Selector, {"select": select}):
        try:
            yield
        finally:
            for loop in loops:
                _go_on(loop, real_time(loop) - jumper.seconds())


def _selector_of(loop: Any) -> Any:
    return getattr(loop, "_selector", None)


def _has_files(loop: object, selector: Any) -> bool:
    """Whether a loop waits for more than the socket by which other threads wake it."""
    own = getattr(loop, "_ssock", None)
    return any(own is None or fd != own.fileno() for fd in selector.get_map())


def _go_on(loop: Any, by: float) -> None:
    """Move the timers that a loop still has to where they are in real time."""
    for handle in getattr(loop, "_scheduled", ()):
        setattr(handle, "_when", handle.when() + by)  # noqa: B010 - a name of asyncio, which has no other way
