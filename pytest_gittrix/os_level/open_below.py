"""Reaching a directory below a root without ever following a link, and saying in typed errors why it could not be reached.

Every component is opened relative to the descriptor of the one before, with ``O_NOFOLLOW``. Nothing is checked by name and then
opened by name, so there is no gap for a link to be swapped into. ``safe_dir`` reads and writes the files there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from pytest_gittrix.errors import CapabilityMissing, GittrixError, PathNotFound, WriteRejected
from pytest_gittrix.os_level.files import temporary_name

MAX_PATH = 4096

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | NO_FOLLOW
# O_PATH needs no read permission on a directory that is only passed through.
PASS = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY
LIST = os.O_RDONLY | _DIRECTORY

_IS_SUPPORTED = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")

_NEVER = frozenset(("", ".", ".."))
# What the shape of a directory answers: something is missing, or of another kind, or has too long a name.
_OF_SHAPE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENAMETOOLONG, errno.ENOTEMPTY)
)
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


T = TypeVar("T")


class ParentNotDirectory(WriteRejected):
    """A component on the way to a path is a link or a file.

    Attributes:
        parent: that component, with those before it.
        kind: what it was found to be, as ``kind_at`` names it.
    """

    def __init__(self, parent: str, kind: str) -> None:
        super().__init__(
            f"{parent!r} is a {kind or 'thing that keeps changing'}, not a directory",
            why="Following a link could leave the workspace, and git stores nothing beyond a link or a file.",
            fix="Name the file by its real path, or delete what is in the way first.",
        )
        self.parent, self.kind = parent, kind


class LinkInTheWay(WriteRejected):
    """A symbolic link is where a file was to be written that must not replace one."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path!r} is a symbolic link",
            why="The file that it leads to may be the one that was meant.",
            fix="Write to the path that it leads to.",
            opt_out="over_link=True puts a file in its place.",
        )


class Root:
    """Owns a directory's descriptor and closes it when the last user lets go, so its number is never reused under an operation."""

    __slots__ = ("_fd",)

    def __init__(self, name: str) -> None:
        """Open a directory. Links on the way to it are the caller's and are followed; it must not be one itself.

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a directory, or the system refused.
            CapabilityMissing: this platform has no descriptor-relative access.
        """
        self._fd = -1
        if not _IS_SUPPORTED:
            raise CapabilityMissing(
                f"{name!r} cannot be guarded on this platform",
                why="Descriptor-relative access (openat and O_NOFOLLOW) is what keeps an agent's links from leading out of its workspace.",
                fix="Run on Linux or macOS.",
            )
        with typed(name):
            try:
                self._fd = os.open(name, PASS)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise ParentNotDirectory(name, kind_at(None, name)) from error

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def is_at(self, name: str) -> bool:
        """Whether a path leads to this very directory."""
        try:
            return os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(self._fd))
        except OSError:
            return False

    def descend(self, parents: Sequence[str], *, last: int = PASS, made: list[int] | None = None) -> int:
        """A descriptor, the caller's to close, of the directory at ``parents``.

        Args:
            parents: components, as ``components`` gives them; none for the root itself.
            last: flags to open the directory with; those before it are only passed through.
            made: when given, missing directories are made, and their depths (from 1) noted here.

        Raises:
            OSError: as the system says, for ``typed`` to translate.
            ParentNotDirectory: a component is not a directory.
        """
        if not parents:
            return os.open(".", last, dir_fd=self._fd)
        fd = self._fd
        for depth in range(1, len(parents) + 1):
            flags = last if depth == len(parents) else PASS
            try:
                child = _enter(fd, parents[:depth], flags) if made is None else _enter_or_make(fd, parents[:depth], flags, made)
            finally:
                if fd != self._fd:
                    os.close(fd)
            fd = child
        return fd

    def prune(self, parents: Sequence[str], *, keep: int = 0) -> None:
        """Remove empty directories, the innermost of ``parents`` first, sparing the first ``keep``; stop at one that is not empty."""
        with suppress(OSError, ParentNotDirectory):
            for depth in range(len(parents), keep, -1):
                fd = self.descend(parents[: depth - 1])
                try:
                    os.rmdir(parents[depth - 1], dir_fd=fd)
                finally:
                    os.close(fd)

    def replace(self, parents: Sequence[str], name: str, place: Callable[[int, str, str], T]) -> T:
        """Run ``place(parent, name, temporary)``, which makes ``temporary`` and renames it to ``name``; leave nothing if it fails.

        Args:
            parents: components of the directory, made where they are missing.
            name: what is made there.
            place: called with the directory's descriptor.

        Raises:
            OSError: as the system says.
            ParentNotDirectory: a component is not a directory.
        """
        temporary = temporary_name()
        made: list[int] = []
        try:
            parent = self.descend(parents, made=made)
            try:
                return place(parent, name, temporary)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            finally:
                os.close(parent)
        except BaseException:
            if made:
                self.prune(parents, keep=made[0] - 1)
            raise


def components(path: str) -> list[str]:
    """A canonical path's components.

    Raises:
        WriteRejected: the path could name something outside the root, or is longer than ``MAX_PATH`` characters.
    """
    parts = path.split("/")
    if _NEVER.isdisjoint(parts) and "\0" not in path and len(path) <= MAX_PATH:
        return parts
    shown = repr(path) if len(path) <= MAX_PATH else f"{path[:80]!r}..."
    raise WriteRejected(
        f"{shown} is not a canonical path below the directory",
        why=f"Empty, '.' and '..' components, NUL, or more than {MAX_PATH} characters can name nothing, or something outside.",
        fix="Pass a relative path such as 'src/app.py'.",
    )


def kind(status: os.stat_result) -> str:
    """What a file is, in words: ``file``, ``directory``, ``symbolic link``, ``named pipe``, ..."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "special file")


def kind_at(parent: int | None, name: str) -> str:
    """The kind of the file at a name, or an empty string. For messages only: it may have changed by the time it is read."""
    try:
        return kind(os.stat(name, dir_fd=parent, follow_symlinks=False))
    except OSError:
        return ""


def wrong_kind(path: str, found: str, wanted: str) -> WriteRejected:
    """The error for a path that has another kind of file than the one asked for."""
    return WriteRejected(
        f"{path!r} is a {found or 'thing that keeps changing'}, not a {wanted}",
        why="Only regular files and symbolic links can be part of a commit, and links are never followed.",
        fix="Use read_link() for a link and scan() for a directory; choose another path otherwise.",
    )


def system_refused(error: BaseException) -> bool:
    """Whether an error is environmental (disk, quota, permission), not caused by a path that the agent controls."""
    cause = error if isinstance(error, OSError) and error.errno is not None else error.__cause__
    return isinstance(cause, OSError) and cause.errno not in _OF_SHAPE


@contextmanager
def tolerating_shape() -> Iterator[None]:
    """Pass over a path that is not there or is another kind of file, as an agent may have made it. What the system refused is raised."""
    try:
        yield
    except GittrixError as error:
        if system_refused(error):
            raise


@contextmanager
def typed(path: str) -> Iterator[None]:
    """Turn the ``OSError`` of a body into ``PathNotFound`` or ``WriteRejected`` naming ``path``; typed errors pass.

    A path below a file is not found, like any other that is not there. One beyond a link is refused: it may be somewhere.
    """
    try:
        yield
    except ParentNotDirectory as error:
        if error.kind != "file" or error.parent == path:
            raise
        raise _not_found(path) from error
    except GittrixError:  # PathNotFound is an OSError too
        raise
    except FileNotFoundError as error:
        raise _not_found(path) from error
    except OSError as error:
        raise WriteRejected(
            f"{path!r} cannot be used: {error.strerror}",
            why="The operating system refused; nothing was changed.",
            fix="Mend the cause, then repeat the call.",
        ) from error


def _enter(fd: int, parents: Sequence[str], flags: int) -> int:
    try:
        return os.open(parents[-1], flags, dir_fd=fd)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise ParentNotDirectory("/".join(parents), kind_at(fd, parents[-1])) from error


def _enter_or_make(fd: int, parents: Sequence[str], flags: int, made: list[int]) -> int:
    try:
        return _enter(fd, parents, flags)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(parents[-1], dir_fd=fd)
            made.append(len(parents))
        return _enter(fd, parents, flags)


def _not_found(path: str) -> PathNotFound:
    return PathNotFound(
        f"no file at {path!r}",
        why="A file that was deleted, or never made, reads as absent.",
        fix="List the directory.",
    )


def not_written(path: str, error: OSError) -> WriteRejected:
    """The error for a file that the system refused to write."""
    return WriteRejected(
        f"{path!r} was not written: {error.strerror}",
        why="The operating system refused; the earlier file is as it was, and nothing half-written is left.",
        fix="Mend the cause (free space, quota, permissions, a directory removed meanwhile), then write again.",
    )


def too_large(path: str, size: int, limit: int) -> WriteRejected:
    """The error for a file that is larger than what may be read."""
    return WriteRejected(
        f"{path!r} has {size} bytes, over the limit of {limit}",
        why="A file is read whole into memory.",
        fix="Leave it out, make it smaller, or raise the limit.",
    )
