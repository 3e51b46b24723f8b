"""Whether something that no clock of a test moves is at work for it: another thread, or a program."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from pytest_gittrix.os_level.proc import children_at_work


class RealWork:
    """The threads and programs that were not there when this was made."""

    def __init__(self) -> None:
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._programs = children_at_work()

    def is_going_on(self) -> bool:
        """Whether a new thread does anything else than wait for other threads, or a new program lives."""
        threads = [thread.ident for thread in threading.enumerate() if thread.ident not in self._threads]
        frames = sys._current_frames() if threads else {}
        if any(ident is None or not _is_waiting(frames.get(ident)) for ident in threads):
            return True
        return bool(children_at_work() - self._programs)


def _is_waiting(frame: FrameType | None) -> bool:
    """Whether a thread that is in a frame waits until another one gives it something, and has not been given that yet.

    A thread that starts is in no frame.
    """
    if frame is None:
        return False
    place, names = (frame.f_globals.get("__name__"), frame.f_code.co_name), frame.f_locals
    match place:
        case ("threading", "wait"):  # of a condition: whoever ends the wait opens this lock
            return "waiter" in names and names["waiter"].locked()
        case ("threading", "join" | "_wait_for_tstate_lock"):
            return bool(names["self"].is_alive())
        case ("concurrent.futures.thread", "_worker"):
            return not names["work_queue"].qsize()
        case ("trio._core._thread_cache", "_work"):
            return bool(names["self"]._worker_lock.locked())
    return False
