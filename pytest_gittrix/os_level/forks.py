"""A function run in a fork of this process, with what it returned or raised brought back, or the word that it was killed.

The fork leads a process group of its own, so that whatever it starts can be killed with it.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, NoReturn

from pytest_gittrix.errors import CapabilityMissing, GittrixError
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.process_tree import end_tree

_FIRST_NAP, _LONGEST_NAP = 0.0005, 0.01  # seconds


@dataclass(frozen=True, slots=True)
class ForkResult:
    """How a fork ended.

    Attributes:
        value: what the function returned; None if that cannot be pickled.
        error: what it raised, with the fork's traceback as a note; a ``GittrixError`` of the same text if it cannot be pickled.
        signal: the signal it was killed by; None if it was not.
        timed_out: it was killed because its time was up.
    """

    value: object = None
    error: BaseException | None = None
    signal: int | None = None
    timed_out: bool = False


def fork() -> int:
    """Fork as ``os.fork`` does, without the warning that Python 3.12 and later give where other threads run.

    A lock that such a thread holds at this instant stays held in the child: the child takes none of theirs, or whoever waits for it does so
    for a limited time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_fork(fn: Callable[[], object], *, timeout: float = 60.0) -> ForkResult:
    """Run ``fn()`` in a fork of this process, and wait for it.

    The fork runs no cleanup of this process (no atexit, no finalizers), and what ``fn`` changes in memory is lost.

    Args:
        fn: what to run.
        timeout: seconds, after which the fork and all of its process group are killed.

    Raises:
        CapabilityMissing: this platform has no fork.
    """
    if not hasattr(os, "fork"):
        raise CapabilityMissing(f"{sys.platform} has no fork.", fix="Play the crash in this process: with crash_at(point).")
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()  # or the fork would say it again
    with tempfile.TemporaryFile() as result:
        pid = fork()  # a lock that another thread holds at this instant would show as a timeout
        if pid == 0:
            _be_fork(fn, result)
        status, timed_out = _wait(pid, timeout)
        if os.WIFSIGNALED(status):
            return ForkResult(signal=os.WTERMSIG(status), timed_out=timed_out)
        result.seek(0)
        answer = result.read()
        if not answer:
            code = os.waitstatus_to_exitcode(status)
            return ForkResult(error=GittrixError(f"The fork ended by itself, with status {code}, before its function did."))
        value, error = pickle.loads(answer)
        return ForkResult(value, error)


def _wait(pid: int, timeout: float) -> tuple[int, bool]:
    deadline, nap = real_seconds() + timeout, _FIRST_NAP
    try:
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status, False
            if real_seconds() > deadline:
                end_tree(pid)
                return os.waitpid(pid, 0)[1], True
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
    except BaseException:
        end_tree(pid)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        raise


def _be_fork(fn: Callable[[], object], result: IO[bytes]) -> NoReturn:
    try:
        gc.freeze()  # no finalizer of the parent's objects runs a second time
        os.setsid()
        try:
            answer: tuple[object, BaseException | None] = _picklable(fn()), None
        except BaseException as error:  # noqa: BLE001 - a fork must never run on into its parent's program
            answer = None, _portable(error)
        pickle.dump(answer, result)
        result.flush()
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
    finally:
        os._exit(0)


def _picklable(value: object) -> object:
    return value if _survives(value) else None


def _portable(error: BaseException) -> BaseException:
    trace = "".join(traceback.format_exception(error))
    if not _survives(error):
        error = GittrixError(f"{type(error).__name__}: {error}", why="It was raised in a fork, and cannot be pickled.")
    error.add_note(f"In the fork:\n{trace}")
    return error


def _survives(value: object) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 - pickling runs anybody's code
        return False
    return True
