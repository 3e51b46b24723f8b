"""The two layers of an ``overlay`` workspace: a checkout of the baseline that sessions share, and above it what one session changed.

The checkout can itself be two layers: that of an earlier baseline, and above it what has changed since.

Programs in a jail see all as one directory, which the kernel mounts there (overlayfs(5)). The lower layer is never written to. What the
kernel writes to the upper one is done here in the same way, so that the engine needs no mount: a *whiteout* (a character device 0/0) is
where something of the lower layer was deleted, and an *opaque* directory hides all that the lower layer has at its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import takewhile
from typing import Final, Self

from pytest_gittrix.errors import PathNotFound, WriteRejected
from pytest_gittrix.git.tree import parents
from pytest_gittrix.os_level import open_below
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.safe_dir import Found, SafeDir

OPAQUE: Final = "user.overlay.opaque"
"""The attribute of a directory of the upper layer that hides what the lower layer has at its place."""
_YES: Final = b"y"
_NOTHING: Final = os.makedev(0, 0)


def is_whiteout(status: os.stat_result) -> bool:
    """Whether something in an upper layer is a whiteout."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _NOTHING


def is_opaque(directory: int) -> bool:
    """Whether an open directory of an upper layer hides what the lower layer has at its place."""
    try:
        return os.getxattr(directory, OPAQUE) == _YES
    except OSError:  # it has no such attribute, or its file system has none
        return False


class LayeredDir(SafeDir):
    """All layers as one directory. It is read without a mount, and changed in the upper layer alone.

    Made by ``above``. Every method that changes something raises WriteRejected while a program has the layers mounted: the kernel would
    not show it what is changed behind its mount.
    """

    _lower: SafeDir
    _work: str
    _is_alone: bool

    @classmethod
    def above(cls, upper: str, lower: str, work: str, below: Sequence[str] = ()) -> Self:
        """Hold the layers.

        Args:
            upper: the directory of what changed.
            lower: the checkout of the baseline, or what of it differs from that of an earlier one.
            work: the directory that the kernel works in. Who has the layers mounted holds a lock on it.
            below: what ``lower`` itself lies above, the uppermost first.

        Raises:
            PathNotFound, WriteRejected: one of them is no directory.
        """
        layers = cls.open(upper)
        layers._lower = cls.above(lower, below[0], work, below[1:]) if below else SafeDir.open(lower)
        layers._work = work
        layers._is_alone = layers._hides(".")
        return layers

    def close(self) -> None:
        """Let go of all layers."""
        super().close()
        self._lower.close()

    # Reading ---------------------------------------------------------------------------------------------------------------------

    def _look(self, path: str) -> tuple[os.stat_result | None, os.stat_result | None]:
        """The status of what the upper layer has at a path, and of what the lower one has, unless something above the path hides that.

        Raises:
            PathNotFound, WriteRejected: something above the path is no directory, as ``typed`` translates it.
        """
        *above, name = open_below.components(path)
        with open_below.typed(path):
            directory = self._root.descend([], last=open_below.LIST)
            shows, held = not self._is_alone, 0
            try:
                for depth, part in enumerate(above, 1):
                    try:
                        child = os.open(part, open_below.LIST, dir_fd=directory)
                    except OSError as error:
                        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                            raise
                        if is_whiteout(os.stat(part, dir_fd=directory, follow_symlinks=False)):
                            return None, None
                        raise open_below.ParentNotDirectory("/".join(above[:depth]), open_below.kind_at(directory, part)) from error
                    os.close(directory)
                    directory, held = child, depth
                    shows = shows and not is_opaque(directory)
                own = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                own = None
            finally:
                os.close(directory)
            return own, self._look_below(path, held) if shows else None

    def _look_below(self, path: str, held: int) -> os.stat_result | None:
        """As ``_look``, of the lower layer; the upper one has directories at the first ``held`` parents of the path, which hide files."""
        found = self._lower.lstat(path)
        if found is None:
            for depth, parent in enumerate(parents(path), 1):
                status = self._lower.lstat(parent)
                if depth > held and status is not None and not stat.S_ISDIR(status.st_mode):
                    raise open_below.ParentNotDirectory(parent, open_below.kind(status))
        return found

    @contextmanager
    def _open(self, directory: str) -> Iterator[int]:
        with open_below.typed(directory):
            descriptor = self._root.descend([] if directory == "." else open_below.components(directory), last=open_below.LIST)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def _hides(self, directory: str) -> bool:
        with self._open(directory) as descriptor:
            return is_opaque(descriptor)

    def _is_below(self, path: str) -> bool:
        """Whether a path shows the lower layer. Raises PathNotFound where there is a whiteout."""
        own, below = self._look(path)
        if own is not None and is_whiteout(own):
            raise PathNotFound(f"no file at {path!r}", why="It was deleted.", fix="List the directory to see its files.")
        return own is None and below is not None

    def status(self, path: str) -> os.stat_result | None:
        """As ``SafeDir.status``, of the layer that shows."""
        try:
            own, below = self._look(path)
        except PathNotFound:
            return None
        return below if own is None else None if is_whiteout(own) else own

    def read(self, path: str, *, max_bytes: int | None = None) -> tuple[bytes, os.stat_result]:
        """As ``SafeDir.read``, from the layer that shows."""
        return self._lower.read(path, max_bytes=max_bytes) if self._is_below(path) else super().read(path, max_bytes=max_bytes)

    def pieces(self, path: str) -> Iterator[bytes]:
        """As ``SafeDir.pieces``, from the layer that shows."""
        return self._lower.pieces(path) if self._is_below(path) else super().pieces(path)

    def read_link(self, path: str) -> bytes:
        """As ``SafeDir.read_link``, from the layer that shows."""
        return self._lower.read_link(path) if self._is_below(path) else super().read_link(path)

    def _list(self, base: str) -> list[Found]:
        if base == ".":
            return _merged(super()._list(base), [] if self._is_alone else self._level(base))
        status, below = self._look(base)
        if status is None and below is not None:
            return self._level(base)
        if status is None or is_whiteout(status):
            raise PathNotFound(f"no directory at {base!r}", why="It was deleted, or never made.", fix="List what is above it.")
        own = super()._list(base)
        merges = below is not None and stat.S_ISDIR(below.st_mode) and not self._hides(base)
        return _merged(own, self._level(base) if merges else [])

    def _level(self, base: str) -> list[Found]:
        """What the lower layer has in a directory."""
        here = "" if base == "." else base
        return [*takewhile(lambda one: one.path.rpartition("/")[0] == here, self._lower.scan(base, skip=lambda _path: False))]

    # Changing --------------------------------------------------------------------------------------------------------------------

    def unmounted(self, path: str) -> AbstractContextManager[int]:
        """A block in which no program mounts the layers. Raises WriteRejected, which names the path, if one does."""
        return locked_file(self._work, shared=True, wait=0, refusal=lambda: _mounted(path))

    def write(
        self, path: str, data: bytes, *, executable: bool | None = None, sync: bool = False, over_link: bool = True
    ) -> os.stat_result:
        """As ``SafeDir.write``."""
        with self.unmounted(path):
            below = self._make_way(path, over_link=over_link)
            if executable is None and below is not None and stat.S_ISREG(below.st_mode):
                executable = bool(below.st_mode & stat.S_IXUSR)
            return super().write(path, data, executable=executable, sync=sync)

    def make_link(self, path: str, target: bytes) -> None:
        """As ``SafeDir.make_link``."""
        with self.unmounted(path):
            self._make_way(path)
            super().make_link(path, target)

    def make_directory(self, path: str) -> None:
        """As ``SafeDir.make_directory``."""
        with self.unmounted(path):
            shown = self.lstat(path)
            if shown is not None and stat.S_ISDIR(shown.st_mode):
                return
            below = self._make_way(path)
            if below is not None:
                raise open_below.wrong_kind(path, open_below.kind(below), "directory")
            own, _ = self._look(path)
            if own is not None and is_whiteout(own):
                self._replace(path, _put_directory)
            else:
                super().make_directory(path)

    def chmod(self, path: str, executable: bool) -> None:
        """As ``SafeDir.chmod``."""
        if self._is_below(path):
            self.write(path, self.read(path)[0], executable=executable)
            return
        with self.unmounted(path):
            super().chmod(path, executable)

    def delete(self, path: str) -> bool:
        """As ``SafeDir.delete``."""
        with self.unmounted(path):
            try:
                own, below = self._look(path)
            except PathNotFound:
                return False
            shown = below if own is None else own
            if shown is None or is_whiteout(shown):
                return False
            if stat.S_ISDIR(shown.st_mode):
                raise open_below.wrong_kind(path, "directory", "file")
            if below is not None:
                self._replace(path, _put_whiteout)
            else:
                with self._at(path) as (parent, name):
                    os.unlink(name, dir_fd=parent)
            self._prune([*parents(path)])
            return True

    def prune(self, path: str) -> None:
        """As ``SafeDir.prune``."""
        with self.unmounted(path):
            self._prune([*parents(path), path])

    def stand_alone(self, top: str = ".") -> None:
        """Copy all that shows of the lower layer into the upper one, which then needs it no more. A killed call is gone on with.

        Args:
            top: the directory below which that is done; ``.`` is the root.

        Raises:
            WriteRejected, OSError: the disk refused, or a program has the layers mounted.
        """
        with self.unmounted(top):
            for found in [*self.scan(top, skip=lambda _path: False)]:
                if not self._is_below(found.path):
                    continue
                if found.is_dir:
                    with self._at(found.path) as (parent, name):
                        os.mkdir(name, dir_fd=parent)
                elif stat.S_ISLNK(found.stat.st_mode):
                    super().make_link(found.path, self._lower.read_link(found.path))
                else:
                    executable = bool(found.stat.st_mode & stat.S_IXUSR)
                    super().write(found.path, self._lower.read(found.path)[0], executable=executable)
            with self._open(top) as directory:
                os.setxattr(directory, OPAQUE, _YES)  # from now on the whiteouts mean nothing
            self._is_alone = self._hides(".")
            self._remove_whiteouts(top)

    def _remove_whiteouts(self, base: str) -> None:
        for found in super()._list(base):
            if found.is_dir:
                self._remove_whiteouts(found.path)
            elif is_whiteout(found.stat):
                with self._at(found.path) as (parent, name):
                    os.unlink(name, dir_fd=parent)

    def _make_way(self, path: str, *, over_link: bool = True) -> os.stat_result | None:
        """Prepare the upper layer for a file at a path; returns what the lower layer shows there, if that shows.

        Raises:
            LinkInTheWay: a link shows there, and is not to be replaced.
            WriteRejected: a directory is there, or what is above it is no directory.
        """
        with suppress(PathNotFound, open_below.ParentNotDirectory):
            own, below = self._look(path)
            shown = below if own is None else own
            if not over_link and shown is not None and stat.S_ISLNK(shown.st_mode):
                raise open_below.LinkInTheWay(path)
            if own is not None or below is not None:  # so what is above it shows, too
                return _file_below(path, own, below)
        for parent in reversed([*parents(path)]):
            try:
                own, below = self._look(parent)
            except PathNotFound:  # a file is above it, which is in the way
                continue
            if own is not None and is_whiteout(own):
                self._replace(parent, _put_directory)
                break
            shown = below if own is None else own
            if shown is not None and not stat.S_ISDIR(shown.st_mode):
                raise open_below.ParentNotDirectory(parent, open_below.kind(shown))
            if shown is not None:
                break
        return _file_below(path, *self._look(path))

    def _prune(self, directories: list[str]) -> None:
        """Remove directories, the last first, until one shows something."""
        for directory in reversed(directories):
            if self._list(directory):
                return
            own, below = self._look(directory)
            if below is not None:
                self._replace(directory, _put_whiteout if own is None else _put_whiteout_over_directory)
            else:
                with suppress(OSError), self._at(directory) as (parent, name):
                    os.rmdir(name, dir_fd=parent)


def _file_below(path: str, own: os.stat_result | None, below: os.stat_result | None) -> os.stat_result | None:
    """What the lower layer shows at a path where a file is to be. Raises WriteRejected if it shows a directory."""
    if own is not None:
        return None
    if below is not None and stat.S_ISDIR(below.st_mode):
        raise open_below.wrong_kind(path, "directory", "file")
    return below


def _merged(own: list[Found], below: list[Found]) -> list[Found]:
    hidden = {found.path for found in own}
    shown = [found for found in own if not is_whiteout(found.stat)] + [found for found in below if found.path not in hidden]
    return sorted(shown, key=lambda found: found.path)


def make_whiteout(parent: int, name: str) -> None:
    """Put a whiteout into an open directory in which nothing has the name."""
    os.mknod(name, stat.S_IFCHR, _NOTHING, dir_fd=parent)  # Linux lets everybody make this one device (5.8)


def _put_whiteout(parent: int, name: str, temporary: str) -> None:
    make_whiteout(parent, temporary)
    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


# A directory and a whiteout change places in one step, so that after a kill nothing that was deleted is back.
def _put_directory(parent: int, name: str, temporary: str) -> None:
    os.mkdir(temporary, dir_fd=parent)
    descriptor = os.open(temporary, open_below.LIST, dir_fd=parent)
    try:
        os.setxattr(descriptor, OPAQUE, _YES)
    finally:
        os.close(descriptor)
    _exchange(parent, temporary, name)
    os.unlink(temporary, dir_fd=parent)


def _put_whiteout_over_directory(parent: int, name: str, temporary: str) -> None:
    make_whiteout(parent, temporary)
    _exchange(parent, temporary, name)
    descriptor = os.open(temporary, open_below.LIST, dir_fd=parent)
    try:
        found = os.listdir(descriptor)
        hidden = [one for one in found if is_whiteout(os.stat(one, dir_fd=descriptor, follow_symlinks=False))]
        for one in hidden:
            os.unlink(one, dir_fd=descriptor)
        try:
            os.rmdir(temporary, dir_fd=parent)
        except OSError:  # somebody made a file in it just now, which has to show
            for one in hidden:
                make_whiteout(descriptor, one)
            _exchange(parent, temporary, name)
            os.unlink(temporary, dir_fd=parent)
    finally:
        os.close(descriptor)


def _exchange(parent: int, one: str, other: str) -> None:
    from pytest_gittrix.os_level.linux import exchange  # ctypes is dear to load, and most commands change no directory

    exchange(parent, one, other)


def _mounted(path: str) -> WriteRejected:
    return WriteRejected(
        f"{path!r} was not changed: a program is at work in this overlay workspace",
        why="What is changed behind a mount is not seen through it.",
        fix="Let the program write it, or wait until it has ended.",
        opt_out="Start the session with the workspace 'clone', where both can write at once.",
    )
