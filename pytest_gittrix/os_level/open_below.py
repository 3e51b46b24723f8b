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
_MOST_HELD = 100

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

    __slots__ = ("_entered", "_fd")

    def __init__(self, name: str, *, hold: bool = False) -> None:
        """Open a directory. Links on the way to it are the caller's and are followed; it must not be one itself.

        Args:
            name: the path.
            hold: keep the directories below it open that are passed through, until the root is closed or one of them is missing. Only
                one thread may use such a root.

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a directory, or the system refused.
            CapabilityMissing: this platform has no descriptor-relative access.
        """
        self._fd = -1
        self._entered: dict[tuple[str, ...], int] | None = {} if hold else None
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
        self.forget()
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def holds(self) -> bool:
        """Whether directories stay open."""
        return self._entered is not None

    def forget(self) -> None:
        """Close the directories that were kept open, so that the next look finds what is at their paths by then."""
        if self._entered:
            for fd in self._entered.values():
                os.close(fd)
            self._entered.clear()

    def is_at(self, name: str) -> bool:
        """Whether a path leads to this very directory."""
        try:
            return os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(self._fd))
        except OSError:
            return False

    def descend(self, parents: Sequence[str], *, last: int = PASS, made: list[int] | None = None) -> int:
        """A descriptor of the directory at ``parents``, for the caller to ``leave``.

        Args:
            parents: components, as ``components`` gives them; none for the root itself.
            last: flags to open the directory with; those before it are only passed through.
            made: when given, missing directories are made, and their depths (from 1) noted here.

        Raises:
            OSError: as the system says, for ``typed`` to translate.
            ParentNotDirectory: a component is not a directory.
        """
        if not parents:
            return self._fd if last == PASS else os.open(".", last, dir_fd=self._fd)
        if self._entered and len(self._entered) >= _MOST_HELD:
            self.forget()
        depth, fd = self._nearest(parents, len(parents) if last == PASS else len(parents) - 1)
        while depth < len(parents):
            depth += 1
            flags = last if depth == len(parents) else PASS
            try:
                child = _enter(fd, parents[:depth], flags) if made is None else _enter_or_make(fd, parents[:depth], flags, made)
            finally:
                self.leave(fd)
            fd = child
            if self._entered is not None and flags == PASS:
                self._entered[*parents[:depth]] = fd
        return fd

    def leave(self, fd: int) -> None:
        """Close what ``descend`` gave, unless it is the root's own or stays open."""
        if fd != self._fd and not (self._entered and fd in self._entered.values()):
            os.close(fd)

    def _nearest(self, parents: Sequence[str], depth: int) -> tuple[int, int]:
        """The depth and descriptor of the innermost of the first ``depth`` parents that is open."""
        while self._entered and depth:
            if (fd := self._entered.get((*parents[:depth],))) is not None:
                return depth, fd
            depth -= 1
        return 0, self._fd

    def prune(self, parents: Sequence[str], *, keep: int = 0) -> None:
        """Remove empty directories, the innermost of ``parents`` first, sparing the first ``keep``; stop at one that is not empty."""
        with suppress(OSError, ParentNotDirectory):
            for depth in range(len(parents), keep, -1):
                fd = self.descend(parents[: depth - 1])
                try:
                    os.rmdir(parents[depth - 1], dir_fd=fd)
                finally:
                    self.leave(fd)
                self.forget()

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
                self.leave(parent)
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


def status_at(parent: int, name: str) -> os.stat_result | None:
    """The status of the file at a name, of the link where it is one; None if nothing is there."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def make_directory_at(parent: int, name: str, _temporary: str) -> None:
    """Make a directory at a name, for ``Root.replace``; one that is there already stays.

    Raises:
        WriteRejected: something else is there.
    """
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        if (found := kind_at(parent, name)) != "directory":
            raise wrong_kind(name, found, "directory") from None


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
