"""Takes set-user-id and set-group-id bits from files: what root's program leaves with them would run as root for everybody."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from pytest_gittrix.os_level.linux import open_in_mount

_BITS = stat.S_ISUID | stat.S_ISGID
_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def drop_set_ids(directory: str) -> None:
    """Take the bits from all regular files below a directory, however deep. Links are not followed, nor are mounts entered.

    Two descriptors are open at a time: the way back is ``..``, and it is checked to lead to where it came from. What cannot be looked at is
    passed over.

    Args:
        directory: where to look.
    """
    try:
        here = os.open(directory, _INTO)
    except OSError:
        return
    above: list[tuple[tuple[int, int], list[str]]] = []
    pending = _drop_in(here)
    try:
        while above or pending:
            if pending:
                with suppress(OSError):
                    below = open_in_mount(here, pending.pop(), _INTO)
                    above.append((_inode(here), pending))
                    os.close(here)
                    here, pending = below, _drop_in(below)
                continue
            inode, pending = above.pop()
            parent = os.open("..", _INTO, dir_fd=here)
            os.close(here)
            here = parent
            if _inode(here) != inode:
                return  # somebody moved it
    except OSError:
        return
    finally:
        os.close(here)


def _drop_in(directory: int) -> list[str]:
    """Take the bits from the files of one directory; gives the directories in it."""
    found: list[str] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
            elif entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mode & _BITS:
                _drop(directory, entry.name)
    return found


def _drop(directory: int, name: str) -> None:
    with suppress(OSError):
        file = os.open(name, _FILE, dir_fd=directory)
        try:
            mode = os.fstat(file).st_mode
            if stat.S_ISREG(mode):
                os.fchmod(file, stat.S_IMODE(mode) & ~_BITS)
        finally:
            os.close(file)


def _inode(directory: int) -> tuple[int, int]:
    found = os.fstat(directory)
    return found.st_dev, found.st_ino
