"""Small disks that really fill up: a tmpfs that root mounts here, and that other users mount in namespaces of a fork."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.forks import in_fork

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@contextmanager
def small_disk(size: str | int = "256k") -> Iterator[Path]:
    """Give an empty directory on its own file system that is full after ``size`` bytes. Both are removed after the block.

    It is a tmpfs, so one byte too many is a true ENOSPC for every program and every call, ``mmap`` included.

    Args:
        size: bytes, or a text like ``64k`` or ``2m``; rounded up to whole pages.

    Raises:
        InvalidInput: ``size`` is no size.
        CapabilityMissing: this process may not mount. ``run_on_small_disk`` may still work.
    """
    count = byte_count(size)
    with tempfile.TemporaryDirectory(prefix="gittrix-disk-") as directory:
        try:
            _mount_tmpfs(directory, count)
        except OSError as error:
            raise CapabilityMissing(
                f"a tmpfs of {count} bytes could not be mounted: {error}",
                fix="Run as root on Linux, or skip with what mounting_supported() returns.",
            ) from error
        try:
            yield Path(directory)
        finally:
            # Detached at once even if a file is still open; the kernel frees it with the last one.
            linux.unmount(directory)


def run_on_small_disk(fn: Callable[[Path], object], size: str | int = "256k", *, timeout: float = 60.0) -> object:
    """Run ``fn(directory)`` in a fork that has a small disk, also where this process may not mount.

    The fork enters a new mount namespace, and without privilege a new user namespace too: only it and its children see the disk.

    Args:
        fn: the function to run; what it changes in memory is lost.
        size: as for `small_disk`.
        timeout: seconds after which the fork is killed.

    Returns:
        What ``fn`` returned, if that can be pickled.

    Raises:
        InvalidInput: ``size`` is no size.
        CapabilityMissing: the machine allows neither mounting nor namespaces; or the fork was killed, or ran out of time.
        BaseException: whatever ``fn`` raised.
    """
    count = byte_count(size)
    privileged = mounting_supported() is None

    def run() -> object:
        _enter_namespaces(privileged)
        with small_disk(count) as directory:
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
def mounting_supported() -> str | None:
    """Return None if `small_disk` works in this process, or else the reason why not. It is tried once."""
    if sys.platform != "linux":
        return f"a small tmpfs needs Linux; this is {sys.platform}"
    try:
        with small_disk(4096):
            return None
    except CapabilityMissing as error:
        return error.fact


@cache
def supported() -> str | None:
    """Return None if `run_on_small_disk` works on this machine, or else the reason why not. It is tried once."""
    if sys.platform != "linux":
        return f"a small disk needs Linux; this is {sys.platform}"
    try:
        run_on_small_disk(lambda directory: (directory / "probe").touch(), 4096, timeout=10)
    except (CapabilityMissing, OSError) as error:
        return f"a small disk cannot be had here: {getattr(error, 'fact', error)}"
    return None


class SmallDisks:
    """The small disks of one test, removed at its end. A call gives a directory on one; ``run`` runs a function on one.

    Args:
        enter: enters a context manager, and leaves it at the end of the test.
        cannot: called with the reason where the machine cannot; raises, as ``pytest.skip`` does.
    """

    def __init__(self, enter: Callable[[Any], Any], cannot: Callable[[str], object]) -> None:
        self._enter = enter
        self._cannot = cannot

    def __call__(self, size: str | int = "256k") -> Path:
        """Return an empty directory on a disk of ``size``. Raises InvalidInput; skips where this process may not mount."""
        byte_count(size)
        if reason := mounting_supported():
            self._cannot(f"{reason}; gittrix_small_disk.run(fn) may do without" if supported() is None else reason)
        path: Path = self._enter(small_disk(size))
        return path

    def run(self, fn: Callable[[Path], object], size: str | int = "256k", *, timeout: float = 60.0) -> object:
        """Call `run_on_small_disk`; skips where the machine cannot."""
        if reason := supported():
            self._cannot(reason)
        return run_on_small_disk(fn, size, timeout=timeout)


def byte_count(size: str | int) -> int:
    """Read a size in bytes: a number, or a text with the unit ``k``, ``m`` or ``g`` of 1024, such as ``64k``.

    Raises:
        InvalidInput: it is no size, or less than 1.
    """
    found = re.fullmatch(r"([0-9]{1,12})([kmg]?)", str(size).lower())
    count = int(found[1]) * _UNITS[found[2]] if found else 0
    if count < 1:
        raise InvalidInput(f"{size!r} is no size of a disk.", fix="Write bytes from 1, or such as 64k, 256k, 2m.")
    return count


def _enter_namespaces(privileged: bool) -> None:
    """Put this process in a mount namespace that no other process sees, and that goes with it. Raises CapabilityMissing."""
    user, group = os.geteuid(), os.getegid()
    linux.allow_inspection()  # a process that changed its user may not write its own maps otherwise
    try:
        linux.unshare(linux.NEW_NS | (0 if privileged else linux.NEW_USER))
    except OSError as problem:
        raise CapabilityMissing(
            f"no namespace to mount in: {os.strerror(problem.errno or 0)}",
            fix="Run as root, or allow unprivileged user namespaces (some distributions switch them off).",
        ) from problem
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    if not privileged:
        linux.keep_ids(user, group)


def _mount_tmpfs(directory: str, size: int) -> None:
    if sys.platform != "linux":
        raise OSError(f"there is no tmpfs on {sys.platform}")
    linux.mount("tmpfs", directory, "tmpfs", 0, f"size={size},mode=0700")
