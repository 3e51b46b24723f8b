"""A disk that really fills up, for whoever writes to it: mounted here by root, or in namespaces of a fork by anybody else.

Knows nothing of what will be written there.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.testing.faults.seccomp_notify import allow_inspection
from pytest_gittrix.testing.faults.tmpfs import small_tmpfs, small_tmpfs_supported

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000  # unshare(2)
_RECURSIVE, _PRIVATE = 1 << 14, 1 << 18  # mount(2)


@contextmanager
def small_disk(size: str | int = "256k") -> Iterator[Path]:
    """Give an empty directory on a file system of its own that is full after ``size`` bytes; gone after the block, with all in it.

    It is a tmpfs, so one byte too many is a true ENOSPC for every program and every call, ``mmap`` included.

    Args:
        size: bytes, or a text like ``64k`` or ``2m``; rounded up to whole pages.

    Raises:
        InvalidInput: the size is none.
        CapabilityMissing: this process may not mount. ``run_on_small_disk`` may still work.
    """
    with small_tmpfs(byte_count(size)) as directory:
        yield directory


def run_on_small_disk(fn: Callable[[Path], object], size: str | int = "256k", *, timeout: float = 60.0) -> object:
    """Run ``fn(directory)`` in a fork that has a small disk: for those who may not mount where they are.

    The fork enters a mount namespace of its own, without privilege a user namespace too: only it and its children see the disk.

    Args:
        fn: what to run; what it changes in memory is lost.
        size: as for `small_disk`.
        timeout: seconds.

    Returns:
        What ``fn`` returned, if that can be pickled.

    Raises:
        InvalidInput: the size is none.
        CapabilityMissing: the machine allows neither mounting nor namespaces; or the fork was killed, or its time was up.
        BaseException: whatever ``fn`` raised.
    """
    count = byte_count(size)
    privileged = small_tmpfs_supported() is None

    def run() -> object:
        _enter_namespaces(privileged)
        with small_tmpfs(count) as directory:
            return fn(directory)

    ended = in_fork(run, timeout=timeout)
    if ended.error is not None:
        raise ended.error
    if ended.signal is not None:
        raise CapabilityMissing(
            f"The fork on the small disk {'ran out of time' if ended.timed_out else f'was killed by signal {ended.signal}'}."
        )
    return ended.value


@cache
def supported() -> str | None:
    """Return None if `run_on_small_disk` works here, tried once, or else the reason why not."""
    if sys.platform != "linux":
        return f"a small disk needs Linux; this is {sys.platform}"
    try:
        run_on_small_disk(lambda directory: (directory / "probe").touch(), 4096, timeout=10)
    except (CapabilityMissing, OSError) as error:
        return f"a small disk cannot be had here: {getattr(error, 'fact', error)}"
    return None


class SmallDisks:
    """Small disks of one test, gone at its end. Calling it gives a directory; ``run`` has a function run on one.

    Args:
        enter: enters a context manager that is left at the end of the test.
        cannot: called with the reason where the machine cannot; raises, as ``pytest.skip`` does.
    """

    def __init__(self, enter: Callable[[Any], Any], cannot: Callable[[str], object]) -> None:
        self._enter = enter
        self._cannot = cannot

    def __call__(self, size: str | int = "256k") -> Path:
        """An empty directory on a disk of ``size``. Raises InvalidInput; skips where this process may not mount."""
        byte_count(size)
        if reason := small_tmpfs_supported():
            self._cannot(f"{reason}; gittrix_small_disk.run(fn) may do without" if supported() is None else reason)
        path: Path = self._enter(small_disk(size))
        return path

    def run(self, fn: Callable[[Path], object], size: str | int = "256k", *, timeout: float = 60.0) -> object:
        """`run_on_small_disk`; skips where the machine cannot."""
        if reason := supported():
            self._cannot(reason)
        return run_on_small_disk(fn, size, timeout=timeout)


def byte_count(size: str | int) -> int:
    """Read a size: a number of bytes, or ``64k``, ``2m``, ``1g`` of 1024.

    Raises:
        InvalidInput: it is none, or less than 1.
    """
    found = re.fullmatch(r"([0-9]{1,12})([kmg]?)", str(size).lower())
    count = int(found[1]) * _UNITS[found[2]] if found else 0
    if count < 1:
        raise InvalidInput(f"{size!r} is no size of a disk.", fix="Write bytes from 1, or such as 64k, 256k, 2m.")
    return count


def _enter_namespaces(privileged: bool) -> None:
    """See that what this process mounts is seen, and left behind, by nobody else. Raises CapabilityMissing."""
    user, group = os.geteuid(), os.getegid()
    allow_inspection()  # a process that changed its user may not write its own maps otherwise
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS | (0 if privileged else _NEW_USER)) != 0:
        raise CapabilityMissing(
            f"no namespace to mount in: {os.strerror(ctypes.get_errno())}",
            fix="Run as root, or allow unprivileged user namespaces (some distributions switch them off).",
        )
    libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None)
    if privileged:
        return
    for file, text in (("setgroups", b"deny"), ("uid_map", b"%d %d 1" % (user, user)), ("gid_map", b"%d %d 1" % (group, group))):
        Path("/proc/self", file).write_bytes(text)
