"""Calls that block, waited for by asynchronous frameworks: in a thread, and ended when the one who waits is cancelled.

A thread cannot be cancelled, and a program that nobody waits for must not run on. So each call gets a descriptor to watch, and whoever is
cancelled makes it readable and stays until the call has returned. It must not know what is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import anyio
import anyio.to_thread

Result = TypeVar("Result", covariant=True)


class Stoppable(Protocol[Result]):
    """A call that returns soon after its ``stop`` can be read."""

    def __call__(self, *, stop: int | None) -> Result:
        """Do it."""
        ...


async def run_cancellable(call: Stoppable[Result]) -> Result:
    """What a blocking call returns, or raises.

    Args:
        call: takes ``stop``, a descriptor, and ends its work as soon as that can be read.
    """
    watched, other = os.pipe()
    over: list[tuple[Result | None, BaseException | None]] = []
    returned = anyio.Event()

    async def wait() -> None:
        # Shielded: the thread still reads the descriptor, and what it runs is not over before it has returned. A limiter of its own:
        # programs that take their time must not hold the threads of the framework.
        with anyio.CancelScope(shield=True):
            try:
                over.append((await anyio.to_thread.run_sync(_bound(call, watched), limiter=anyio.CapacityLimiter(1)), None))
            except Exception as error:  # noqa: BLE001  (raised below, outside of the group that would wrap it)
                over.append((None, error))
            returned.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            try:
                await returned.wait()
            except BaseException:
                os.write(other, b"x")
                raise
    finally:
        os.close(watched)
        os.close(other)
    result, error = over[0]
    if error is not None:
        raise error
    return cast("Result", result)


def _bound(call: Stoppable[Result], stop: int) -> Callable[[], Result]:
    return lambda: call(stop=stop)
