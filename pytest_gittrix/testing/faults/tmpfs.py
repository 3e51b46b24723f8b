"""A disk that really fills up: a small tmpfs, for errors no fault machine has to invent.

Mounting needs privilege, so this degrades: `small_tmpfs_supported` says why not. Knows nothing of what will be written there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pytest_gittrix.errors import CapabilityMissing, InvalidInput

_MNT_DETACH = 2


@contextmanager
def small_tmpfs(size_bytes: int) -> Iterator[Path]:
    """Give an empty directory on a file system of its own, which is gone, with all in it, after the block.

    Args:
        size_bytes: room for file contents, in bytes; the kernel rounds up to whole pages. One more byte is a true ENOSPC.

    Raises:
        InvalidInput: ``size_bytes`` is less than 1, which to the kernel would mean "no limit".
        CapabilityMissing: mounting is not allowed here (see `small_tmpfs_supported`).
    """
    if size_bytes < 1:
        raise InvalidInput(f"size_bytes is {size_bytes}; it must be 1 or more")
    with tempfile.TemporaryDirectory(prefix="gittrix-disk-") as directory:
        try:
            _mount(directory, f"size={size_bytes},mode=0700")
        except OSError as error:
            raise CapabilityMissing(
                f"a tmpfs of {size_bytes} bytes could not be mounted: {error}",
                fix="Run as root on Linux, or skip with what small_tmpfs_supported() returns.",
            ) from error
        try:
            yield Path(directory)
        finally:
            # Detached at once even if a file is still open; the kernel frees it with the last one.
            _check(_libc().umount2(os.fsencode(directory), _MNT_DETACH), "umount2")


@cache
def small_tmpfs_supported() -> str | None:
    """Return None if `small_tmpfs` works here, tried once, or else the reason why not."""
    if sys.platform != "linux":
        return f"a small tmpfs needs Linux; this is {sys.platform}"
    try:
        with small_tmpfs(4096):
            return None
    except CapabilityMissing as error:
        return error.fact


def _mount(directory: str, options: str) -> None:
    _check(_libc().mount(b"tmpfs", os.fsencode(directory), b"tmpfs", ctypes.c_ulong(0), options.encode()), "mount")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


@cache
def _libc() -> Any:
    if sys.platform != "linux":
        raise OSError(f"there is no tmpfs on {sys.platform}")
    return ctypes.CDLL(None, use_errno=True)
