"""Runs blocking calls for asynchronous frameworks: in a thread, and ended when the waiting task is cancelled.

A thread cannot be cancelled, and a program that no task waits for must not run on. So each call watches a file descriptor; a cancelled task
makes that descriptor readable and waits until the call has returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import anyio
import anyio.to_thread

Result = TypeVar("Result", covariant=True)


class Stoppable(Protocol[Result]):
    """A call that returns soon after its descriptor ``stop`` becomes readable."""

    def __call__(self, *, stop: int | None) -> Result:
        """Make the call."""
        ...


async def run_cancellable(call: Stoppable[Result]) -> Result:
    """Run a blocking call in a thread; gives its result, or raises its exception.

    Args:
        call: the call; it takes a descriptor ``stop``, and ends its work as soon as that is readable.
    """
    watched, other = os.pipe()
    outcome: list[tuple[Result | None, BaseException | None]] = []
    returned = anyio.Event()

    async def wait() -> None:
        # Shielded, since the thread still watches the descriptor and its program has not ended. A separate limiter, since slow programs
        # must not use up the threads of the framework.
        with anyio.CancelScope(shield=True):
            try:
                outcome.append((await anyio.to_thread.run_sync(_bound(call, watched), limiter=anyio.CapacityLimiter(1)), None))
            except Exception as error:  # noqa: BLE001  (raised below, outside of the group that would wrap it)
                outcome.append((None, error))
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
    result, error = outcome[0]
    if error is not None:
        raise error
    return cast("Result", result)


def _bound(call: Stoppable[Result], stop: int) -> Callable[[], Result]:
    return lambda: call(stop=stop)
