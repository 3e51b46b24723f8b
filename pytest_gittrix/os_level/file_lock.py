"""Locks, and waiting for them: the system's on an open file, which end with their holder, and git's, which are files that exist.

The system's are ``flock`` for one owner at a time, and record locks by which many writers show that they are at work. A lock of the system
belongs to an open file, so it lasts until everybody who has that file open has closed it: a program that is started with the
descriptor holds the lock as well.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.files import OWNERS, read_text

if sys.platform != "win32":
    import fcntl

_SHORTEST_NAP: Final = 0.0005
_LONGEST_NAP: Final = 0.02
_NAP_SHARE: Final = 0.25
"""A nap as a share of the wait so far, so that a waiter waits little longer than the lock was held."""
_OPEN: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_OPEN_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

RECORD_LOCKS: Final = sys.platform == "linux" and sys.maxsize > 2**32
"""Whether the system has record locks that belong to an open file (Linux, 64 bits)."""
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid. A length of 0 is all of the file.
_RECORD: Final = "hhqqi4x"

_T = TypeVar("_T")


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file if that can be done at once.

    Args:
        descriptor: the open file, directory or pipe.
        shared: whether others may have a shared lock at the same time.

    Raises:
        AdapterUnavailable: Windows has no flock.
        OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        raise AdapterUnavailable("Leases need flock, which Windows does not have.", fix="Use Linux, macOS or WSL.")
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Unlock an open file for every process that has it open, such as a forked child. If there is no other, closing it is enough."""
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def retry(attempt: Callable[[], _T | None], *, wait: float, refusal: Callable[[], Exception]) -> _T:
    """Call a function until it returns something, with naps in between: a quarter of the wait so far, from half a millisecond to 20.

    Args:
        attempt: what to try; returns None while another process has the lock.
        wait: seconds to go on trying; 0 tries once.
        refusal: makes the error to raise when the time is up.
    """
    began = time.monotonic()
    while (got := attempt()) is None:
        waited = time.monotonic() - began
        if waited >= wait:
            raise refusal()
        time.sleep(min(max(waited * _NAP_SHARE, _SHORTEST_NAP), _LONGEST_NAP))
    return got


def _never() -> Exception:
    return AssertionError("A wait without an end has ended.")


@contextmanager
def locked_file(
    path: str | os.PathLike[str],
    *,
    wait: float = math.inf,
    refusal: Callable[[], Exception] = _never,
    busy: Callable[[], object] = lambda: None,
    mode: int = OWNERS,
    shared: bool = False,
) -> Iterator[int]:
    """Hold a lock on a file, which is made if it is missing, or on a directory.

    Args:
        path: the file or directory. Nothing is written to it, and it stays.
        wait: seconds to wait for another holder; 0 tries once.
        refusal: makes the error to raise when the time is up.
        busy: called after each attempt that failed; what it raises is raised here.
        mode: permission bits of a file that is made.
        shared: whether others may hold a shared lock at the same time.

    Yields:
        The descriptor, which a program that is started can inherit to hold the lock as well.

    Raises:
        OSError: the file cannot be opened, or its file system has no locks.
    """

    def attempt() -> bool | None:
        if try_lock(descriptor, shared=shared):
            return True
        busy()
        return None

    descriptor = os.open(path, _OPEN_DIRECTORY if os.path.isdir(path) else _OPEN, mode)
    try:
        retry(attempt, wait=wait, refusal=refusal)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(path: str | os.PathLike[str], *, wait: float = math.inf, refusal: Callable[[], Exception] = _never) -> Iterator[None]:
    """Hold a lock of filelock between processes that seldom meet and do not pass it to programs. It also works where flock does not.

    Args:
        path: the lock file, which is made if it is missing, and stays.
        wait: seconds to wait for another holder; 0 tries once.
        refusal: makes the error to raise when the time is up.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=-1 if math.isinf(wait) else wait)
    try:
        lock.acquire()
    except Timeout:
        raise refusal() from None
    try:
        yield
    finally:
        lock.release()


def make_lock_file(
    lock: str,
    make: Callable[[], None],
    *,
    wait: float,
    settle: Callable[[str], bool] | None,
    busy: Callable[[], object],
    refusal: Callable[[], Exception],
) -> None:
    """Make a lock as git does, which is a file that exists, once no other process has it.

    Args:
        lock: the file.
        make: makes it; raises FileExistsError while it is there.
        wait: seconds to wait for another holder.
        settle: called with the contents of a lock that is in the way; takes away what its owner left if that is known to be dead, and
            returns whether it did.
        busy: called between attempts; passes the point where a test's scheduler can let the holder go on.
        refusal: makes the error to raise when the time is up.
    """

    def attempt() -> bool | None:
        while True:
            try:
                make()
            except FileExistsError:
                contents = read_text(lock)
            else:
                return True
            if contents is not None and not (settle is not None and settle(contents)):
                busy()
                return None

    retry(attempt, wait=wait, refusal=refusal)


def show_at_work(descriptor: int) -> bool:
    """Take a shared record lock on all of an open file, which lasts until the file is closed. False where there are no such locks."""
    if sys.platform != "linux" or not RECORD_LOCKS:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_RECORD, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    return True


def nobody_at_work(descriptor: int) -> bool:
    """Whether no other process has a record lock on an open file; False where that cannot be known."""
    if sys.platform != "linux" or not RECORD_LOCKS:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, struct.pack(_RECORD, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    return bool(struct.unpack(_RECORD, answer)[0] == fcntl.F_UNLCK)
