"""Threads for long work: finalizing, stopping, cleaning up. Of work with the same key, only one runs at a time.

The threads are daemon threads: their work can be killed at any instant and continues at the next start, so the end of the process waits
for them only as long as ``close`` is given.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from pytest_gittrix.os_level.monotonic import real_seconds

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds until failed work is tried again: at first, and at most."""

Work = tuple[Callable[[], Any], "Future[Any]"]


class Workers:
    """A few threads, started when there is work.

    Args:
        count: how many at most.
        name: the beginning of their names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._failures: dict[Hashable, tuple[int, float]] = {}
        self._closed = False

    def do(self, key: Hashable, work: Callable[[], Any]) -> Future[Any]:
        """Start work, unless the same key is running, and return its future. After ``close`` the future is cancelled."""
        with self._lock:
            if (same := self._under_way.get(key)) is not None:
                return same
            future: Future[Any] = Future()
            if self._closed:
                future.cancel()
                return future
            self._under_way[key] = future
            future.add_done_callback(lambda done: self._done(key, done))
            self._work.put((partial(copy_context().run, work), future))
            if len(self._under_way) > len(self._threads) < self._count:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
                self._threads.append(thread)
                thread.start()
            return future

    def rests(self, key: Hashable) -> bool:
        """Whether the work of a key failed so recently that it is too early to retry; each failure doubles the time."""
        failures, until = self._failures.get(key, (0, 0.0))
        return bool(failures) and real_seconds() < until

    def close(self, timeout: float) -> None:
        """Take no new work, cancel what has not begun, and wait ``timeout`` seconds for the rest."""
        with self._lock:
            self._closed = True
            waiting = list(self._under_way.values())
        for future in waiting:
            future.cancel()
        for _ in self._threads:
            self._work.put(None)
        deadline = real_seconds() + timeout
        for thread in self._threads:
            thread.join(max(deadline - real_seconds(), 0.0))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = work()
            except BaseException as problem:  # noqa: BLE001  (the future raises it to its caller)
                future.set_exception(problem)
            else:
                future.set_result(found)

    def _done(self, key: Hashable, future: Future[Any]) -> None:
        failed = not future.cancelled() and future.exception() is not None
        with self._lock:
            self._under_way.pop(key, None)
            failures = self._failures.pop(key, (0, 0.0))[0] + 1
            if failed:
                self._failures[key] = failures, real_seconds() + min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
