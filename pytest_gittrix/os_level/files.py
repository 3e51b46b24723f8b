"""Files and directories that are there whole or not at all: made under a temporary name, then renamed.

A reader sees the old bytes or the new, never half, whatever kills the writer. A file is its owner's alone unless its maker says otherwise:
those of a store are, those of a person's repository have ``PUBLIC``. The module loads as little as it can, since small
programs of the package use it, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pytest_gittrix.os_level.monotonic import real_wall_seconds

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_NEW: Final = _CREATE | os.O_EXCL
_OVER: Final = _CREATE | os.O_TRUNC
_CHUNK: Final = 1 << 16
_MOST_AT_ONCE: Final = 1 << 30
_PRIVATE: Final = 0o700
_TEMPORARY: Final = ".gittrix-tmp-"
_TOKEN: Final = 16
OWNERS: Final = 0o600
"""The mode of a file that only its owner may read."""
PUBLIC: Final = 0o644
"""The mode of a file that everybody may read, less the umask."""
UNNEEDED_FOR: Final = 86400.0
"""Seconds for which a store keeps unneeded files, before a recovery removes them."""
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)

Permit = Callable[[int], int]
"""Gives the mode that something new gets, of the one that it has after the umask; both as ``st_mode``, with the bits of its kind."""


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, however short the single writes fall."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_file(
    path: str | os.PathLike[str],
    data: bytes | Iterable[bytes],
    *,
    mode: int = OWNERS,
    sync: bool = False,
    prefix: str = "tmp_",
    temporary: str | os.PathLike[str] | None = None,
    unlink_first: bool = False,
    permit: Permit | None = None,
) -> None:
    """Create or replace ``path`` atomically.

    Args:
        path: the file; its directory exists.
        data: its bytes, or pieces of them where there are too many to hold.
        mode: permission bits of the file, less the umask.
        sync: write through to the disk before the rename (the directory is the caller's to sync).
        prefix: how the temporary sibling's name starts; ``tmp_`` names in an object directory are what git's own gc tidies.
        temporary: the temporary file, where its name matters; one that a killed writer left there is written over.
        unlink_first: remove the old file before the rename, which then costs less on ext4; for an instant there is none.
        permit: a repository's own rule for modes; None leaves the umask the last word.

    Raises:
        OSError: as the system says; the temporary file is gone and ``path`` is as it was.
    """
    fresh = write_temporary(os.path.dirname(path), data, mode=mode, sync=sync, prefix=prefix, temporary=temporary, permit=permit)
    with _removed_on_error(fresh):
        if unlink_first:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        os.rename(fresh, path)


def write_temporary(
    directory: str,
    data: bytes | Iterable[bytes],
    *,
    mode: int = OWNERS,
    sync: bool = False,
    prefix: str = "tmp_",
    temporary: str | os.PathLike[str] | None = None,
    permit: Permit | None = None,
) -> str:
    """Write ``data`` to a temporary file and return its path; the arguments are those of ``write_file``.

    Raises:
        OSError: as the system says; nothing is left.
    """
    path = os.path.join(directory, prefix + os.urandom(8).hex()) if temporary is None else os.fspath(temporary)
    descriptor = os.open(path, _NEW if temporary is None else _OVER, mode)
    with _removed_on_error(path):
        try:
            share(descriptor, permit)
            for piece in (data,) if isinstance(data, bytes) else data:
                write_all(descriptor, piece)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return path


@contextlib.contextmanager
def _removed_on_error(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


@contextlib.contextmanager
def whole_directory(path: str | os.PathLike[str], building: str | os.PathLike[str]) -> Iterator[None]:
    """A block that makes a directory under a temporary name; when the block ends, it gets its own name.

    Args:
        path: the directory; nothing, or an empty directory, is there.
        building: its name while it is being made, in the same file system. If the block raises, it is removed with all that is in it.

    Raises:
        OSError: it cannot be renamed, perhaps because another process made ``path`` meanwhile.
    """
    import shutil  # dear to load

    try:
        yield
        os.rename(building, path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def create_whole(path: str, data: bytes, *, beside: str, prefix: str, sync: bool = False, permit: Permit | None = None) -> None:
    """Make a file that is there with its contents or not at all: a lock of git's, whose contents say after a kill who made it.

    Args:
        path: the file.
        data: its bytes.
        beside: a directory on the same file system, for the temporary file that is linked into place.
        prefix: how that one's name starts.
        sync: write through to the disk first.
        permit: a repository's own rule for modes.

    Raises:
        FileExistsError: it is there already.
        OSError: as the system says.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "locked", path)
    temporary = write_temporary(beside, data, mode=0o666, sync=sync, prefix=prefix, permit=permit)
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: made as git makes its locks, and perhaps found empty after a kill.
        write_new(path, data, 0o666, permit)
    finally:
        os.unlink(temporary)


def link_files(source: str | os.PathLike[str], target: str | os.PathLike[str], names: Iterable[str]) -> None:
    """``link_or_copy`` of the files of these names in one directory into another. Raises as it does."""
    here = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        there = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                try:
                    os.link(name, name, src_dir_fd=here, dst_dir_fd=there)
                except OSError:
                    link_or_copy(os.path.join(source, name), os.path.join(target, name))
        finally:
            os.close(there)
    finally:
        os.close(here)


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file that is never written again a second name, or that name to a copy of it where there can be no link.

    Raises:
        FileExistsError: ``target`` is there already.
        OSError: as the system says; ``target`` is not there.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        import shutil  # dear to load

        fresh = f"{os.fspath(target)}.tmp"
        with _removed_on_error(fresh):
            shutil.copyfile(source, fresh)
            os.rename(fresh, target)


def copy_file(source: str, target: str) -> os.stat_result:
    """Copy a regular file with its permissions and its time. Where the file system can, both share their bytes until one is written to.

    Args:
        source: the file; a link is not followed.
        target: where nothing is yet.

    Returns:
        The status of the copy.

    Raises:
        OSError: as the system says, with ``source`` as its ``filename`` if that cannot be read; ``target`` is not there then.
    """
    here = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    try:
        status = os.fstat(here)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", source)
        there = os.open(target, _NEW, stat.S_IMODE(status.st_mode) & 0o777)
        with _removed_on_error(target):
            try:
                _copy_bytes(here, there)
                os.fchmod(there, stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(there, ns=(status.st_atime_ns, status.st_mtime_ns))
                return os.fstat(there)
            finally:
                os.close(there)
    finally:
        os.close(here)


def _copy_bytes(here: int, there: int) -> None:
    """Copy what an open file has behind its offset; the kernel does it, and makes a reflink, where it can."""
    copy_range = getattr(os, "copy_file_range", None)  # Linux alone
    with contextlib.suppress(OSError):
        while copy_range is not None and copy_range(here, there, _MOST_AT_ONCE):
            pass
    while piece := os.read(here, _CHUNK):
        write_all(there, piece)


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
    import ctypes  # dear to load

    from pytest_gittrix.os_level.linux import libc

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.syncfs(descriptor):
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


def private_directory(path: str | os.PathLike[str], *, close: bool = False) -> None:
    """Make a directory that only its owner can enter, if it is missing.

    Args:
        path: the directory; those above it are made as usual.
        close: whether one of this user that is there already is closed to others, too.

    Raises:
        OSError: it cannot be made, or it is no directory.
    """
    try:
        try:
            os.mkdir(path, _PRIVATE)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            os.mkdir(path, _PRIVATE)
    except FileExistsError:
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise
        if close and stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid():
            os.chmod(path, stat.S_IMODE(found.st_mode) & _PRIVATE)


def append(path: str, data: bytes, permit: Permit | None = None) -> None:
    """Append a line to a file, which is made if it is missing. One of another user's keeps its mode.

    Raises:
        OSError: as the system says.
    """
    descriptor = os.open(path, _CREATE | os.O_APPEND, 0o666)
    try:
        with contextlib.suppress(PermissionError):
            share(descriptor, permit)
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def make_directories(path: str, permit: Permit | None = None) -> None:
    """Make a directory and those above it, as far as they are missing.

    Raises:
        OSError: as the system says.
    """
    if os.path.isdir(path):
        return
    make_directories(os.path.dirname(path), permit)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        share(descriptor, permit)
    finally:
        os.close(descriptor)


def share(descriptor: int, permit: Permit | None) -> None:
    """Give an open file or directory the mode that ``permit`` says. Raises PermissionError if it is another user's and has another."""
    if permit is None:
        return
    mode = os.fstat(descriptor).st_mode
    if permit(mode) != mode:
        os.fchmod(descriptor, stat.S_IMODE(permit(mode)))


def write_new(path: str, data: bytes, mode: int = OWNERS, permit: Permit | None = None) -> None:
    """Write a file that is not there yet, in place: for a directory that is not read before it is whole.

    Raises:
        OSError: as the system says; something half-written may stay.
    """
    descriptor = os.open(path, _NEW, mode)
    try:
        share(descriptor, permit)
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def names_in(directory: str | os.PathLike[str]) -> list[str]:
    """The names in a directory, sorted; none where there is no such directory, or not any more. Each may be gone when it is looked at."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_older(path: str | os.PathLike[str], seconds: float) -> bool:
    """Whether a file or directory is there and was last changed more than ``seconds`` seconds ago."""
    try:
        return os.stat(path).st_mtime < real_wall_seconds() - seconds
    except FileNotFoundError:
        return False


def remove_left(directory: str | os.PathLike[str], is_left: Callable[[str], object]) -> list[str]:
    """Remove the files of a directory that killed writers left, and return their names. The caller keeps living ones away.

    Args:
        directory: there or not.
        is_left: says by its name whether a file is one of these.

    Raises:
        OSError: as the system says.
    """
    left = [name for name in names_in(directory) if is_left(name)]
    for name in left:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))
    return left


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


def temporary_name() -> str:
    """A new name for a file while it is being written; snapshots and listings pass over such names."""
    token = os.urandom(_TOKEN // 2).hex()
    return f"{_TEMPORARY}{token}{_seal(token)}"


def is_temporary(name: str) -> bool:
    """Whether a name, without directories, is one of ``temporary_name``: the prefix alone is not, since an agent may use it as well."""
    if not name.startswith(_TEMPORARY):
        return False
    token = name[len(_TEMPORARY) :][:_TOKEN]
    return name == f"{_TEMPORARY}{token}{_seal(token)}"


def _seal(token: str) -> str:
    import hashlib  # dear to load

    return hashlib.sha256(os.fsencode(f"gittrix temporary file {token}")).hexdigest()[:_TOKEN]
