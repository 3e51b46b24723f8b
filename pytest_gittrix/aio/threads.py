"""Makes blocking calls in threads for asyncio. A thread cannot be cancelled: a cancelled task waits for it, and undoes what it made."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Blocking = TypeVar("Blocking")
Wrapped = TypeVar("Wrapped")


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


async def in_own_thread(call: Callable[[], T]) -> T:
    """Make a call that may take for ever, such as a question to a person, in a thread of its own: the loop's pool has few.

    A task that is cancelled meanwhile does not wait for the call, which goes on; what it returns is dropped.

    Args:
        call: the call.

    Raises:
        Exception: as the call.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # from now on nothing but the call settles it

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as problem:  # noqa: BLE001  (who waits gets it)
            answer.set_exception(problem)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), name="gittrix-call", daemon=True).start()
    return await asyncio.wrap_future(answer)


async def decided(policy: Callable[P, T | Awaitable[T]], /, *arguments: P.args, **options: P.kwargs) -> T:
    """What a policy decides: a coroutine function is awaited, and any other is called as by :func:`in_own_thread`.

    Raises:
        Exception: as the policy.
    """
    call = partial(policy, *arguments, **options)
    answer = call() if inspect.iscoroutinefunction(policy) else await in_own_thread(call)
    return await answer if inspect.isawaitable(answer) else answer


@asynccontextmanager
async def entered(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a blocking context manager in threads. A task that is cancelled while it enters leaves it again."""

    def leave(error: BaseException) -> None:
        manager.__exit__(type(error), error, error.__traceback__)

    value = await in_thread(manager.__enter__, lambda _value: leave(asyncio.CancelledError()))
    try:
        yield value
    except BaseException as error:
        await in_thread(partial(leave, error))
        raise
    await in_thread(partial(manager.__exit__, None, None, None))


def _begun(call: Callable[[], T]) -> asyncio.Future[T]:
    # A future and no task: the end of the event loop cancels tasks.
    return asyncio.get_running_loop().run_in_executor(None, partial(contextvars.copy_context().run, call))


async def _until_done(future: asyncio.Future[Any]) -> None:
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])


class AsyncProxy(Generic[Blocking]):
    """An object whose methods make the calls of a blocking one in threads.

    Attributes:
        blocking: that object.
    """

    def __init__(self, blocking: Blocking) -> None:
        self.blocking = blocking

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.blocking!r}>"


def mirrored(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method of a proxy that makes the call of this name in a thread, with the same arguments, result and errors.

    Raises:
        TypeError: it is no method but a property, which has no call.
    """
    if not inspect.isfunction(method):
        raise TypeError(f"{method!r} is no method, and cannot be mirrored as one.")

    async def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        made: Callable[P, T] = getattr(self.blocking, method.__name__)
        return await in_thread(partial(made, *arguments, **options))

    update_wrapper(call, method)
    return call


def for_block(
    method: Callable[Concatenate[Any, P], T], wrap: Callable[[T], Wrapped], end: Callable[[T], object]
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[Wrapped]]:
    """As :func:`mirrored`, for a result that is used in a block, as ``wrap`` gives it, and ended with the block, however that ends."""

    @asynccontextmanager
    async def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> AsyncIterator[Wrapped]:
        made: Callable[P, T] = getattr(self.blocking, method.__name__)
        result = await in_thread(partial(made, *arguments, **options), end)
        try:
            yield wrap(result)
        finally:
            await in_thread(partial(end, result))

    update_wrapper(call, method)
    return call
