"""Operations of several processes that are let go at the same instant.

An explorer plays few orders exactly, and stops a process only at calls that it sees. Here nothing is stopped: many repetitions meet the
windows between those calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.testing.repos.journal import TimedOperation


def at_once(operations: Iterable[Callable[[], Callable[[], TimedOperation]]], *, delays: Iterable[float] = ()) -> list[TimedOperation]:
    """Run each operation in a process of its own, all let go at the same instant.

    Args:
        operations: each prepares its process, and gives what to do at that instant, as ``timed`` does.
        delays: seconds that each of them waits after that, 0 by default.

    Returns:
        What each of them gives.

    Raises:
        AssertionError: a process died, or gave no answer within a minute.
    """
    ready, go = os.pipe(), os.pipe()
    todo = [*operations]
    waits = [*delays, *(0.0 for _ in todo)]

    def held(number: int) -> TimedOperation:
        def run() -> object:
            try:
                act = todo[number]()
            finally:
                os.write(ready[1], b".")
            os.read(go[0], 1)
            if waits[number]:
                time.sleep(waits[number])
            return act()

        found = in_fork(run)
        if isinstance(found.value, TimedOperation):
            return found.value
        raise AssertionError(f"A process that worked at the same instant as another gave no answer: {found}") from found.error

    try:
        with ThreadPoolExecutor(len(todo)) as threads:
            running = [threads.submit(held, number) for number in range(len(todo))]
            for _ in todo:
                os.read(ready[0], 1)
            os.write(go[1], b"." * len(todo))
            return [one.result() for one in running]
    finally:
        for end in (*ready, *go):
            os.close(end)
