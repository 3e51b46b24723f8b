"""Files of a directory, read and changed without ever leaving it, whoever else is moving things inside it.

Each operation opens the parent directory (``open_below``) and acts on the last name relative to its descriptor, never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from pytest_gittrix.errors import InvalidInput, PathNotFound, WriteRejected
from pytest_gittrix.os_level import open_below
from pytest_gittrix.os_level.files import write_all

# O_NONBLOCK: opening a pipe, or a file somebody holds a lease on, must not wait for them.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | open_below.NO_FOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | open_below.NO_FOLLOW
# A writer may find its parent pruned by a concurrent delete; this often in a row is somebody else's doing.
_ATTEMPTS = 60
_AT_ONCE = 10

_T = TypeVar("_T")


class Found(NamedTuple):
    """What a scan met: a path below the root, and its own status (of the link, where it is one)."""

    path: str
    stat: os.stat_result

    @property
    def is_dir(self) -> bool:
        """Whether it is a real directory."""
        return stat.S_ISDIR(self.stat.st_mode)


class SafeDir:
    """A directory whose files can be read and changed, and nothing outside it.

    Paths are canonical: relative, ``/``-separated, no ``.`` or ``..`` components, bytes that are not UTF-8 by surrogateescape. Safe to
    use from several threads; ``close`` lets operations under way finish. A context manager.

    Every method may raise:
        InvalidInput: the directory is closed.
        WriteRejected: the path is not canonical, a parent on it is a symbolic link, or the system refused (the message has its reason).
    """

    def __init__(self, root: open_below.Root, name: str) -> None:
        self._held: open_below.Root | None = root
        self._name = name

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, hold: bool = False) -> Self:
        """Hold a directory by descriptor; later renames of it change nothing.

        Args:
            path: the root. Links on the way to it are the caller's and are followed; it must not be one itself.
            hold: hold the directories that are entered below it as well, for one operation of one thread. If one of them is removed
                meanwhile, a write into it fails, and the next call finds the directory that is there by then.

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a directory, or the system refused.
            CapabilityMissing: this platform has no descriptor-relative access.
        """
        name = os.fspath(path)
        return cls(open_below.Root(name, hold=hold), name)

    def close(self) -> None:
        """Let go of the directory. Closing twice is allowed."""
        self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def is_in_place(self) -> bool:
        """Whether the path it was opened by still leads to this very directory."""
        return self._root.is_at(self._name)

    def __repr__(self) -> str:
        return f"SafeDir({self._name!r}{'' if self._held else ', closed'})"

    def read(self, path: str, *, max_bytes: int | None = None) -> tuple[bytes, os.stat_result]:
        """The contents of a regular file, and its status from before they were read (so that a change meanwhile shows in a second look).

        Args:
            path: the file.
            max_bytes: refuse more than this; None reads anything that fits in memory.

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a regular file (links: see ``read_link``), or is over the limit.
        """
        with self._file(path) as (fd, status):
            if max_bytes is not None and status.st_size > max_bytes:
                raise open_below.too_large(path, status.st_size, max_bytes)
            data = os.read(fd, status.st_size + 1)
            if len(data) != status.st_size:  # changing while it is read, or a file system that does not say its size
                data = _read_rest(fd, data, max_bytes)
                if max_bytes is not None and len(data) > max_bytes:
                    raise open_below.too_large(path, max(len(data), os.fstat(fd).st_size), max_bytes)
            return data, status

    def part(self, path: str, most: int, *, end: int | None = None) -> tuple[bytes, int]:
        """The last bytes of a regular file, or those before an offset.

        Args:
            path: the file.
            most: how many bytes at most.
            end: the offset to stop at; the end of the file by default.

        Returns:
            The bytes, and the offset of the first of them.

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a regular file.
        """
        with self._file(path) as (fd, status):
            stop = status.st_size if end is None else min(end, status.st_size)
            start = max(0, stop - most)
            return os.pread(fd, stop - start, start), start

    def pieces(self, path: str) -> Iterator[bytes]:
        """The contents of a regular file of any size, a mebibyte at a time.

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a regular file.
        """
        with self._file(path) as (fd, _):
            while piece := os.read(fd, 1 << 20):
                yield piece

    def read_link(self, path: str) -> bytes:
        """Where a symbolic link points, as its raw bytes.

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a symbolic link.
        """
        with self._at(path) as (parent, name):
            try:
                return os.readlink(os.fsencode(name), dir_fd=parent)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                raise open_below.wrong_kind(path, open_below.kind_at(parent, name), "symbolic link") from error

    def lstat(self, path: str) -> os.stat_result | None:
        """The status of the file at a path; None if there is none. As in git, there is none beyond a link or a file."""
        try:
            return self.status(path)
        except open_below.ParentNotDirectory:
            return None

    def status(self, path: str) -> os.stat_result | None:
        """As ``lstat``, but a path beyond a link is an error.

        Raises:
            ParentNotDirectory: a parent is a link, or (not in every kind of directory) a file.
        """
        *parents, name = open_below.components(path)
        try:
            root = self._root
            parent = root.descend(parents)
            try:
                return os.stat(name, dir_fd=parent, follow_symlinks=False)
            finally:
                root.leave(parent)
        except FileNotFoundError:
            return None
        except OSError:
            with open_below.typed(path):  # here and not around it all, since every look at a file comes through here
                raise

    def exists(self, path: str) -> bool:
        """Whether a regular file or a symbolic link (dangling or not) is at a path."""
        status = self.lstat(path)
        return status is not None and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode))

    def write(
        self, path: str, data: bytes, *, executable: bool | None = None, sync: bool = False, over_link: bool = True
    ) -> os.stat_result:
        """Put a file at a path, whole or not at all: readers see the old contents or the new. A link there is never followed.

        Args:
            path: the file; missing parents are made.
            data: its contents.
            executable: whether it may be run; None keeps what a replaced file had.
            sync: write the contents through to the disk first, so that a power cut leaves no empty file (its name is for ``sync``).
            over_link: whether the file takes the place of a link that is there.

        Returns:
            The status of the file that was put there.

        Raises:
            LinkInTheWay: a link is there, and stays.
            WriteRejected: a directory is there, a parent is not a directory, or the system refused (disk full, quota, read-only). Nothing
                is left behind then.
        """

        def place(parent: int, name: str, temporary: str) -> os.stat_result:
            before = open_below.status_at(parent, name)
            if before is not None and not over_link and stat.S_ISLNK(before.st_mode):
                raise open_below.LinkInTheWay(path)
            fd = os.open(temporary, _CREATE, 0o666, dir_fd=parent)
            try:
                if before is not None or executable is not None:
                    fresh = stat.S_IMODE(os.fstat(fd).st_mode)
                    kept = before.st_mode & 0o777 if before is not None and stat.S_ISREG(before.st_mode) else fresh
                    mode = _mode(kept, executable)
                    if mode != fresh:
                        os.fchmod(fd, mode)
                write_all(fd, data)
                if sync:
                    os.fsync(fd)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
                return os.fstat(fd)  # of this very file, whatever is over it by now; after the rename, which moves its ctime
            finally:
                os.close(fd)

        return self._replace(path, place)

    def make_link(self, path: str, target: bytes) -> None:
        """Put a symbolic link at a path, over a file or link that is there.

        Args:
            path: the link; missing parents are made.
            target: where it points, raw; may lead anywhere, since no method here follows it.

        Raises:
            WriteRejected: as for ``write``, or the target is empty or holds a NUL.
        """
        if not target or b"\0" in target:
            raise WriteRejected(
                f"{path!r} cannot link to {target!r}",
                why="A link needs a target of at least one byte and no NUL.",
                fix="Pass the path it should point to.",
            )

        def place(parent: int, name: str, temporary: str) -> None:
            os.symlink(target, temporary, dir_fd=parent)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)

        self._replace(path, place)

    def delete(self, path: str) -> bool:
        """Remove a file, link, pipe or socket, and the parents that this leaves empty, as git does.

        Returns:
            Whether something was there.

        Raises:
            WriteRejected: it is a directory.
        """
        root = self._root
        try:
            with self._at(path) as (parent, name):
                try:
                    os.unlink(name, dir_fd=parent)
                except OSError as error:
                    if open_below.kind_at(parent, name) != "directory":
                        raise
                    raise open_below.wrong_kind(path, "directory", "file") from error
        except PathNotFound:
            return False
        root.prune(open_below.components(path)[:-1])
        return True

    def prune(self, path: str) -> None:
        """Remove a directory if it is empty, and the parents that this leaves empty. One that is not, or is no directory, stays."""
        self._root.prune(open_below.components(path))

    def make_directory(self, path: str) -> None:
        """Make a directory, with the parents that are missing. One that is there already is no error.

        Raises:
            WriteRejected: something else is there, a parent is not a directory, or the system refused.
        """
        self._replace(path, open_below.make_directory_at)

    def chmod(self, path: str, executable: bool) -> None:
        """Set or clear a regular file's executable bits (set: for whoever may read it).

        Raises:
            PathNotFound: nothing is there.
            WriteRejected: it is not a regular file.
        """
        with self._file(path) as (fd, status):
            mode = stat.S_IMODE(status.st_mode)
            if _mode(mode, executable) == mode:
                return
            if status.st_nlink == 1:
                os.fchmod(fd, _mode(mode, executable))
                return
        # The same file has another name, perhaps outside: this one gets a copy of its own instead.
        self.write(path, self.read(path)[0], executable=executable)

    def sync(self, paths: Iterable[str]) -> None:
        """Write the names of files through to the disk, and those of the directories that lead to them. ``write`` does it with contents.

        Args:
            paths: the files. Where nothing is any more, its absence is written.

        Raises:
            WriteRejected: the disk refused; whether it kept the names is unknown.
        """
        names = [open_below.components(path) for path in paths]
        directories = {(*name[:depth],) for name in names for depth in range(len(name))}
        for parents in sorted(directories, key=len, reverse=True):
            with open_below.tolerating_shape(), open_below.typed("/".join(parents) or "."):
                fd = self._root.descend(parents, last=open_below.LIST)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def scan(self, path: str = ".", *, skip: Callable[[str], bool] = lambda path: path == ".git") -> Iterator[Found]:
        """Walk everything below a directory: parents before children, siblings by name, links never followed.

        Args:
            path: where to start; ``.`` is the root.
            skip: paths to leave out, with all below them; by default the top ``.git``.

        Yields:
            Everything met. What disappears during the walk is left out.

        Raises:
            PathNotFound: the start is not there.
            WriteRejected: the start is not a directory, or a path is longer than any that can be written.
        """
        pending = [path]
        while pending:
            base = pending.pop()
            try:
                everything = self._list(base)
            except (PathNotFound, open_below.ParentNotDirectory):
                if base == path:
                    raise
                continue
            kept = [found for found in everything if not skip(found.path)]
            yield from kept
            pending.extend(found.path for found in reversed(kept) if found.is_dir)

    def _list(self, base: str) -> list[Found]:
        # The whole directory at once: no descriptor is open while a caller holds the walk, however deep it goes.
        parts, prefix = ([], "") if base == "." else (open_below.components(base), f"{base}/")
        found = []
        with open_below.typed(base):
            fd = self._root.descend(parts, last=open_below.LIST)
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            found.append(Found(prefix + entry.name, entry.stat(follow_symlinks=False)))
            finally:
                os.close(fd)
        found.sort(key=lambda one: one.path)
        return found

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[int, str]]:
        """The parent's descriptor and the last name, for a body whose ``OSError`` becomes a typed error."""
        *parents, name = open_below.components(path)
        with open_below.typed(path):
            root = self._root
            parent = root.descend(parents)
            try:
                yield parent, name
            finally:
                root.leave(parent)

    @contextmanager
    def _file(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """A descriptor to read a regular file by, and its status."""
        with self._at(path) as (parent, name):
            try:
                fd = os.open(name, _READ, dir_fd=parent)
            except OSError as error:
                kind = open_below.kind_at(parent, name)
                if kind in ("", "file"):
                    raise
                raise open_below.wrong_kind(path, kind, "file") from error
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise open_below.wrong_kind(path, open_below.kind(status), "file")
                yield fd, status
            finally:
                os.close(fd)

    @property
    def _root(self) -> open_below.Root:
        if self._held is not None:
            return self._held
        raise InvalidInput(
            f"{self!r} was used after it was closed",
            why="Its descriptor is gone, and the number may already belong to another file.",
            fix="Open the directory again, or keep the with block around every use.",
        )

    def _replace(self, path: str, place: Callable[[int, str, str], _T]) -> _T:
        """Run ``place(parent, name, temporary)``, which makes ``temporary`` and renames it to ``name``; leave nothing if it fails."""
        root, (*parents, name) = self._root, open_below.components(path)
        attempt = 0
        while True:
            attempt += 1
            try:
                return root.replace(parents, name, place)
            except IsADirectoryError as error:
                raise open_below.wrong_kind(path, "directory", "file") from error
            except OSError as error:
                root.forget()
                if not isinstance(error, FileNotFoundError) or attempt == _ATTEMPTS or root.holds:
                    raise open_below.not_written(path, error) from error
                if attempt > _AT_ONCE:
                    time.sleep(0.0002 * attempt)  # another process removes its directory each time: get out of step


def _mode(mode: int, executable: bool | None) -> int:
    if executable is None:
        return mode
    return mode | (mode & 0o444) >> 2 if executable else mode & ~0o111


def _read_rest(fd: int, head: bytes, max_bytes: int | None) -> bytes:
    chunks, size = [head], len(head)
    while chunks[-1] and (max_bytes is None or size <= max_bytes):
        chunks.append(os.read(fd, 1 << 20))
        size += len(chunks[-1])
    return b"".join(chunks)
