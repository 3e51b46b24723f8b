"""Makes blocking calls in threads for asyncio. A thread cannot be cancelled: a cancelled task waits for it, and undoes what it made."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Blocking = TypeVar("Blocking")


async def in_thread(call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Make a blocking call in a thread of the event loop's pool.

    A task that is cancelled meanwhile is so once the call has returned: it was made whole, or not at all, and nothing goes on in secret.

    Args:
        call: the call.
        undo: undoes what it made, if the task is cancelled meanwhile; None leaves it.

    Raises:
        Exception: as the call.
    """
    calling = _begun(call)
    try:
        return await asyncio.shield(calling)
    except asyncio.CancelledError:
        await _until_done(calling)
        if calling.exception() is None and undo is not None:
            await _until_done(undoing := _begun(partial(undo, calling.result())))
            undoing.exception()
        raise


def _begun(call: Callable[[], T]) -> asyncio.Future[T]:
    # A future and no task: the end of the event loop cancels tasks.
    return asyncio.get_running_loop().run_in_executor(None, partial(contextvars.copy_context().run, call))


async def _until_done(future: asyncio.Future[Any]) -> None:
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])


class Mirror(Generic[Blocking]):
    """An object whose methods make the calls of a blocking one in threads.

    Attributes:
        blocking: that object.
    """

    def __init__(self, blocking: Blocking) -> None:
        self.blocking = blocking

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.blocking!r}>"


def mirrored(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method of a mirror that makes the call of this name in a thread, with the same arguments, result and errors."""

    async def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        made: Callable[P, T] = getattr(self.blocking, method.__name__)
        return await in_thread(partial(made, *arguments, **options))

    update_wrapper(call, method)
    return call
