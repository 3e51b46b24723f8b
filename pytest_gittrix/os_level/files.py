"""Small files written whole: a temporary sibling, then a rename.

A reader sees the old bytes or the new, never half, whatever kills the writer. Knows nothing of git.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import sys
from typing import Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_CHUNK: Final = 1 << 16
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, however short the single writes fall."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_file(path: str, data: bytes, *, mode: int = 0o644, sync: bool = False, prefix: str = "tmp_") -> None:
    """Create or replace ``path`` atomically.

    Args:
        path: the file; its directory exists.
        data: its bytes.
        mode: permission bits of the file, less the umask.
        sync: write through to the disk before the rename (the directory is the caller's to sync).
        prefix: how the temporary sibling's name starts; ``tmp_`` names in an object directory are what git's own gc tidies.

    Raises:
        OSError: as the system says; the temporary file is gone and ``path`` is as it was.
    """
    temporary = write_temporary(os.path.dirname(path), data, mode=mode, sync=sync, prefix=prefix)
    try:
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_temporary(directory: str, data: bytes, *, mode: int = 0o644, sync: bool = False, prefix: str = "tmp_") -> str:
    """Write ``data`` to a new file of its own in ``directory`` and return its path.

    Raises:
        OSError: as the system says; nothing is left.
    """
    path = os.path.join(directory, prefix + secrets.token_hex(8))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(descriptor, data)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return path


def create_whole(path: str, data: bytes, *, beside: str, prefix: str, sync: bool = False) -> None:
    """Make a file that is there with its contents or not at all: a lock, which whoever made it can be told by after a kill.

    Args:
        path: the file.
        data: its bytes.
        beside: a directory on the same file system, for the temporary file that is linked into place.
        prefix: how that one's name starts.
        sync: write through to the disk first.

    Raises:
        FileExistsError: it is there already.
        OSError: as the system says.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "locked", path)
    temporary = write_temporary(beside, data, sync=sync, prefix=prefix)
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: made as git makes its locks, and perhaps found empty after a kill.
        write_new(path, data)
    finally:
        os.unlink(temporary)


def sync_tree(path: str) -> None:
    """Write every file and directory below a directory, itself included, through to the disk. Links are not followed.

    Raises:
        OSError: the disk refused.
    """
    for parent, _, names in os.walk(path):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(parent)


def sync_file_system(path: str) -> None:
    """Write all that a file system holds back through to the disk: for a directory with many new files, faster than one by one.

    Raises:
        OSError: the disk refused.
    """
    if not sys.platform.startswith("linux"):
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "the disk refused", path)
    finally:
        os.close(descriptor)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make renames and new names in a directory durable: a file's own sync does not cover its name, and git never does it."""
    descriptor = os.open(os.fspath(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file that is not there yet, in place: for a directory that nobody looks into before it is whole.

    Raises:
        OSError: as the system says; something half-written may stay.
    """
    descriptor = os.open(path, _NEW, mode)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def read_text(path: str) -> str | None:
    """A small file's text without its surrounding white space, or None if there is no such file (or it is a directory)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        data = chunk = os.read(descriptor, _CHUNK)
        while chunk:
            chunk = os.read(descriptor, _CHUNK)
            data += chunk
    except IsADirectoryError:
        return None
    finally:
        os.close(descriptor)
    return os.fsdecode(data).strip()
