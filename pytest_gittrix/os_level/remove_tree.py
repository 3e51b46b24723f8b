"""Removal of a directory that an agent could have filled: past any depth and mode, but through no link and into no mount.

Every directory is opened relative to the one above it, and entries are removed relative to its descriptor. Two descriptors are open at a
time, however deep the tree is: the way back is ``..``, and it is checked to lead to the directory that it came from.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix.os_level.open_below import LIST, PASS

_NO_DIRECTORY: Final = (errno.ENOTDIR, errno.ELOOP)
_NO_OPENAT2: Final = (errno.ENOSYS, errno.EPERM)
"""The answers of an older kernel, and of a sandbox around this process that does not know the call."""
_MEMORY: Final = "/dev/shm"
_LEAST_MEMORY: Final = 1 << 30


def remove_tree(path: str | os.PathLike[str]) -> list[OSError]:
    """Remove a directory with everything below it, or a file or link. What is gone already is no error.

    Directories without permissions are given them first. A mounted file system, directory or file stays as it is, with the directories
    above it.

    Args:
        path: links on the way to it are followed, and it may be a mount's; it is not followed itself.

    Returns:
        Why something is still there: one error for each thing that could not be removed, whose ``filename`` is its path.
    """
    top, name = _split(path)
    try:
        here = os.open(top, PASS & ~os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        return [_named(problem, top)]
    removal = _Removal(top, here)
    try:
        removal.remove(name)
    finally:
        os.close(removal.here)
    return removal.left


def permit_owner(path: str | os.PathLike[str]) -> None:
    """Give the owner of a directory every right on it. One that has a link or a mount in its place is left alone.

    Raises:
        OSError: it is no directory, or somebody else's.
    """
    top, name = _split(path)
    parent = os.open(top, PASS & ~os.O_NOFOLLOW)
    try:
        os.close(_open_directory(parent, name))
    finally:
        os.close(parent)


def memory_directory() -> str | None:
    """The directory of the system that is in memory, for files that come and go by the thousand; a disk takes most of their time.

    Returns:
        Its path. None where ``TMPDIR`` says where temporary files go, and where the directory is missing, has less than a gigabyte free, or
        lets no program run.
    """
    if os.environ.get("TMPDIR") or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    status = os.statvfs(_MEMORY)
    roomy = status.f_bavail * status.f_frsize >= _LEAST_MEMORY
    return _MEMORY if roomy and not status.f_flag & os.ST_NOEXEC else None


@contextmanager
def scratch_directory(prefix: str, directory: str | os.PathLike[str] | None = None) -> Iterator[str]:
    """A temporary directory for programs that may leave anything in it; it is removed after the block as far as it can be.

    Args:
        prefix: how its name begins.
        directory: where it is made; None for the system's place.

    Yields:
        Its path, without links.
    """
    import tempfile  # dear to load

    path = os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=directory))
    try:
        yield path
    finally:
        remove_tree(path)


@dataclass(slots=True)
class _Level:
    """A directory that is being emptied.

    Attributes:
        name: its name in the directory above.
        inode: its device and inode.
        pending: the directories in it that are still to be removed.
        stays: whether something in it could not be removed.
    """

    name: str
    inode: tuple[int, int]
    pending: list[str] = field(default_factory=list)
    stays: bool = False


class _Removal:
    """The removal of one tree.

    Attributes:
        here: the descriptor of the directory that is being worked in.
        left: why something is still there.
    """

    def __init__(self, top: str, here: int) -> None:
        self.here = here
        self.left: list[OSError] = []
        self._levels = [_Level(top, _inode(here))]

    def remove(self, name: str) -> None:
        """Remove what has a name in the directory above the tree."""
        self._unlink(name)
        while len(self._levels) > 1 or self._levels[0].pending:
            level = self._levels[-1]
            if level.pending:
                self._enter(level.pending.pop())
            elif not self._leave():
                return

    def _unlink(self, name: str) -> None:
        """Remove a file or a link; what is found to be a directory is left to be entered."""
        try:
            os.unlink(name, dir_fd=self.here)
        except FileNotFoundError:
            pass
        except OSError as problem:
            if _is_directory(self.here, name):
                self._levels[-1].pending.append(name)
            else:
                self._keep(name, problem)

    def _enter(self, name: str) -> None:
        """Go into a directory, and remove all that is in it but directories."""
        try:
            below = _open_directory(self.here, name)
        except FileNotFoundError:
            return
        except OSError as problem:
            if problem.errno in _NO_DIRECTORY:
                self._unlink(name)  # it was replaced meanwhile
            else:
                self._keep(name, problem)
            return
        os.close(self.here)
        self.here = below
        level = _Level(name, _inode(below))
        self._levels.append(level)
        try:
            with os.scandir(below) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as problem:
            self._keep("", problem)
            return
        level.pending = [name for name, is_directory in found if is_directory]
        for name, is_directory in found:
            if not is_directory:
                self._unlink(name)

    def _leave(self) -> bool:
        """Go back to the directory above, and remove the one that was emptied; returns whether the way back was there."""
        try:
            above = os.open("..", PASS, dir_fd=self.here)
        except OSError as problem:
            self._keep("", problem)
            return False
        os.close(self.here)
        self.here = above
        emptied = self._levels.pop()
        if _inode(above) != self._levels[-1].inode:
            self._keep(emptied.name, OSError(errno.ESTALE, "it was moved while it was being removed"))
            return False
        if emptied.stays:
            self._levels[-1].stays = True
            return True
        try:
            os.rmdir(emptied.name, dir_fd=above)
        except FileNotFoundError:
            pass
        except OSError as problem:
            self._keep(emptied.name, problem)
        return True

    def _keep(self, name: str, problem: OSError) -> None:
        self._levels[-1].stays = True
        self.left.append(_named(problem, os.path.join(*(level.name for level in self._levels), name)))


def _open_directory(parent: int, name: str) -> int:
    """Open a directory to be emptied: its owner may list it, search it and write to it from now on.

    Raises:
        OSError: it is no directory, has something mounted on it (``EXDEV``), or is not this user's.
    """
    try:
        descriptor = _open_in_mount(parent, name, LIST)
    except PermissionError:
        _permit_unreadable(parent, name)
        descriptor = _open_in_mount(parent, name, LIST)
    if os.fstat(descriptor).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with suppress(PermissionError):  # somebody else's, in which this user may still be allowed to write
            os.fchmod(descriptor, stat.S_IRWXU)
    return descriptor


def _permit_unreadable(parent: int, name: str) -> None:
    """Change the mode of a directory that cannot be opened to be read."""
    if sys.platform != "linux":
        os.chmod(name, stat.S_IRWXU, dir_fd=parent, follow_symlinks=False)
        return
    passed = _open_in_mount(parent, name, PASS)
    try:
        os.chmod(f"/proc/self/fd/{passed}", stat.S_IRWXU)
    finally:
        os.close(passed)


def _open_in_mount(parent: int, name: str, flags: int) -> int:
    """Open a directory in another one. Raises OSError with ``EXDEV`` if something is mounted on it, a bind mount as well."""
    if sys.platform == "linux":
        from pytest_gittrix.os_level.linux import open_in_mount  # loads ctypes, which is dear

        try:
            return open_in_mount(parent, name, flags)
        except OSError as problem:
            if problem.errno == errno.EXDEV:
                raise _mounted(name) from problem
            if problem.errno not in _NO_OPENAT2:
                raise
    descriptor = os.open(name, flags, dir_fd=parent)
    if _mount(descriptor) == _mount(parent):
        return descriptor
    os.close(descriptor)
    raise _mounted(name)


def _mounted(name: str) -> OSError:
    return OSError(errno.EXDEV, "something is mounted on it", name)


def _mount(descriptor: int) -> int:
    """What tells the mount of an open directory from others: its number, or where there is no such thing, the device."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(b"mnt_id:"))
    except (FileNotFoundError, StopIteration):
        return os.fstat(descriptor).st_dev


def _inode(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _is_directory(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _split(path: str | os.PathLike[str]) -> tuple[str, str]:
    top, name = os.path.split(os.fspath(path).rstrip("/"))
    return top or ".", name


def _named(problem: OSError, path: str) -> OSError:
    return OSError(problem.errno, problem.strerror, path)
