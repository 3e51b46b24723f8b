"""The workspace as a tree: every path that differs from the baseline, found without git and without the agent's ``.git``.

A walk by descriptors compares each file's change time with a stamp taken when the workspace was made. Change times are
the kernel's and cannot be set back, so this sees what an index can be told to overlook (ignored and "unchanged" files,
commits, restored times). Three rules keep it honest: a path not in the baseline is always looked at, a directory that is
not the one we made is looked at whole, and a wall clock that was stepped makes everything suspect. Bytes decide at the end.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, WriteRejected
from pytest_gittrix.git.path_rules import collision_key, is_safe_component
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Changes, Entry, parents, write_trees
from pytest_gittrix.os_level.safe_dir import TEMPORARY_PREFIX
from pytest_gittrix.workspaces.seed import Seed

_TRIES: Final = 5
_DEEPEST: Final = 400
_STEP_NS: Final = 1_000_000
_UNSAFE: Final = "its name could be taken for a git directory"
_SUBMODULE: Final = "it is a submodule; what is inside it is not looked at"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REGULAR: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Limits:
    """What a snapshot may hold.

    Attributes:
        max_file: bytes of one file.
        max_total: bytes of all changed files together.
        max_files: number of changed paths.
    """

    max_file: int = 100 << 20
    max_total: int = 1 << 30
    max_files: int = 100_000


@dataclass(frozen=True, slots=True)
class CreationState:
    """What is known of a workspace from when it was made.

    Attributes:
        stamp: kernel change time, in nanoseconds, later than every file written then.
        boot: wall clock less time since boot, in nanoseconds; it moves only when the clock is stepped or the machine restarted.
        directories: inode of each directory by path ('' is the root).
        complete: whether every file of the baseline was written (absence then means deletion).
    """

    stamp: int
    boot: int
    directories: Mapping[str, int]
    complete: bool


def boot_offset() -> int:
    """The wall clock less the time since boot, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True)
class Snapshot:
    """A workspace at one moment, as its difference from the baseline.

    Attributes:
        seed: the baseline.
        changes: new entry by path, None where the baseline's file is gone; sorted by path.
        blobs: bytes of the new entries by id.
        refused: paths that exist but can never be promoted, each with the reason.
        latest: the newest kernel change time seen, in nanoseconds.
    """

    seed: Seed
    changes: Changes
    blobs: Mapping[str, bytes] = field(repr=False)
    refused: Mapping[str, str]
    latest: int

    @cached_property
    def _written(self) -> tuple[str, dict[str, bytes]]:
        return write_trees(self.seed.trees.read, self.seed.root, self.changes, self.seed.format.hash_object)

    @property
    def tree(self) -> str:
        """Id of the whole workspace as one tree object."""
        return self._written[0]

    @property
    def objects(self) -> dict[str, tuple[str, bytes]]:
        """Every object the tree has and the baseline may lack, kind and data by id."""
        objects = {id_: ("tree", data) for id_, data in self._written[1].items()}
        objects.update((id_, ("blob", data)) for id_, data in self.blobs.items())
        return objects


# What opening a name meets when something else has come to stand there since it was listed.
_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR)


class _Moved(Exception):
    """The workspace changed under the walk."""


class _Walk:
    """One walk over a workspace."""

    def __init__(self, seed: Seed, origin: CreationState, limits: Limits, named: Collection[str], deleted: Collection[str]) -> None:
        self.seed, self.origin, self.limits = seed, origin, limits
        self.named, self.deleted = frozenset(named), frozenset(deleted)
        self.named_directories = {above for path in self.named for above in parents(path)}
        self.changes: dict[str, Entry | None] = {}
        self.blobs: dict[str, bytes] = {}
        self.refused: dict[str, str] = {}
        self.latest = 0
        self.total = 0
        self.visited: set[str] = set()
        self.suspect_all = not origin.complete or abs(boot_offset() - origin.boot) > _STEP_NS

    def run(self, root: int) -> None:
        self._directory(root, "", 0, self.suspect_all)
        self._gone()

    def _directory(self, descriptor: int, path: str, depth: int, suspect: bool) -> None:
        status = os.fstat(descriptor)
        self.latest = max(self.latest, status.st_ctime_ns)
        suspect = suspect or self.origin.directories.get(path) != status.st_ino
        if depth > _DEEPEST:
            raise WriteRejected(
                f"{path!r} is more than {_DEEPEST} directories deep.", why="No repository needs that; the walk stops there."
            )
        self.visited.add(path)
        known = self.seed.directories.get(path, {})
        prefix = f"{path}/" if path else ""
        below: list[str] = []
        seen: list[str] = []
        # Nearly everything in a large workspace is as it was: of that, only the time is looked at.
        unsuspected: Container[str] = () if suspect or self.seed.has_submodules else known
        stamp, latest = self.origin.stamp, self.latest
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name
                if name in unsuspected:
                    status = entry.stat(follow_symlinks=False)
                    changed = status.st_ctime_ns
                    if changed < stamp:
                        seen.append(name)
                        continue
                if name == ".git" or (name.startswith(TEMPORARY_PREFIX) and not self._tracked(prefix + name)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(name)
                    continue
                status = entry.stat(follow_symlinks=False)
                changed = status.st_ctime_ns
                latest = max(latest, changed)
                if name in known:
                    seen.append(name)
                    if changed < stamp and not suspect:
                        continue
                self._candidate(descriptor, prefix + name, name, status, known.get(name))
        self.latest = latest
        for name in below:
            if name in known and known[name].mode == SUBMODULE:
                seen.append(name)
                self._submodule(descriptor, prefix + name, name)
                continue
            self._subdirectory(descriptor, prefix + name, name, depth, suspect)
        if self.origin.complete and len(seen) < len(known):
            self.changes.update(dict.fromkeys(prefix + name for name in known.keys() - set(seen)))

    def _tracked(self, path: str) -> bool:
        return path in self.seed.entries or path in self.seed.directories

    def _submodule(self, parent: int, path: str, name: str) -> None:
        """Its directory was made empty: whatever is in it now would get lost unseen."""
        descriptor = _open_directory(parent, name)
        try:
            with os.scandir(descriptor) as entries:
                if next(entries, None) is not None:
                    self.refused[path] = _SUBMODULE
        finally:
            os.close(descriptor)

    def _subdirectory(self, parent: int, path: str, name: str, depth: int, suspect: bool) -> None:
        tracked = path in self.seed.directories
        if not tracked and path not in self.named_directories and self.seed.ignore.ignored(path, directory=True):
            return
        # Names that the baseline has were not the agent's choice; a change below them is refused where it is found.
        if not tracked and not is_safe_component(os.fsencode(name)):
            self.refused[path] = _UNSAFE
            return
        descriptor = _open_directory(parent, name)
        try:
            self._directory(descriptor, path, depth + 1, suspect)
        finally:
            os.close(descriptor)

    def _candidate(self, parent: int, path: str, name: str, status: os.stat_result, baseline: Entry | None) -> None:
        if baseline is None and path not in self.named and self.seed.ignore.ignored(path):
            return
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            if collision_key(name) == ".gitmodules":
                self.refused[path] = "a .gitmodules that is a symlink leads git outside the repository"
                return
            mode, data = SYMLINK, os.fsencode(_link(parent, name))
        elif kind == stat.S_IFREG:
            if status.st_size > self.limits.max_file:
                self.refused[path] = f"it has {status.st_size} bytes; the limit is {self.limits.max_file}"
                return
            mode, data = _contents(parent, name, self.limits.max_file)
        else:
            # Sockets, pipes and devices have no place in a tree, so git passes them over: where one stands, the file is gone.
            if baseline is not None:
                self.changes[path] = None
            return
        id_ = self.seed.format.hash_object("blob", data)
        if baseline is not None and (baseline.mode, baseline.id) == (mode, id_):
            return
        if not all(map(is_safe_component, os.fsencode(path).split(b"/"))):
            self.refused[path] = _UNSAFE
            return
        self.changes[path] = Entry(mode, id_)
        self.blobs[id_] = data
        self.total += len(data)
        if self.total > self.limits.max_total or len(self.changes) > self.limits.max_files:
            raise WriteRejected(
                f"The workspace holds more than {self.limits.max_total} changed bytes or {self.limits.max_files} changed files.",
                why="A snapshot is held in memory while it is reviewed.",
                fix="Remove what is not meant for durable, or list it in durable's .gitignore.",
                opt_out="Raise the limits with LocalEphemeral(limits=Limits(...)).",
            )

    def _gone(self) -> None:
        if self.origin.complete:
            for directory, names in self.seed.directories.items():
                if directory not in self.visited:
                    prefix = f"{directory}/" if directory else ""
                    self.changes.update(dict.fromkeys(prefix + name for name in names))
            return
        for path in self.deleted:
            if path in self.seed.entries and path not in self.changes:
                self.changes[path] = None
        self.changes.update(dict.fromkeys(self._covered()))

    def _covered(self) -> list[str]:
        """The baseline's files that something of another kind hides where absence alone is no deletion."""
        files = [f"{path}/" for path, entry in self.changes.items() if entry is not None and path in self.seed.directories]
        below = [path for path in self.seed.entries if path.startswith(tuple(files))] if files else []
        return below + [path for path in self.visited if path in self.seed.entries]


def _open_directory(parent: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in _SWAPPED:
            raise _Moved from error
        raise


def _link(parent: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in _SWAPPED:
            raise _Moved from error
        raise


def _contents(parent: int, name: str, limit: int) -> tuple[int, bytes]:
    """Mode and bytes of a regular file, read again if it changed meanwhile."""
    try:
        descriptor = os.open(name, _REGULAR, dir_fd=parent)
    except OSError as error:
        if error.errno in _SWAPPED:
            raise _Moved from error
        raise
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise _Moved
        data = os.read(descriptor, before.st_size + 1)
        while len(data) != before.st_size and len(data) <= limit:  # it grows, or a file system does not say its size
            chunk = os.read(descriptor, 4096)
            if not chunk:
                break
            data += chunk
        after = os.fstat(descriptor)
        if (after.st_ctime_ns, after.st_size) != (before.st_ctime_ns, before.st_size):
            raise _Moved
        return EXECUTABLE if before.st_mode & 0o100 else FILE, data
    finally:
        os.close(descriptor)


def take_snapshot(
    path: str,
    seed: Seed,
    origin: CreationState,
    *,
    limits: Limits | None = None,
    named: Collection[str] = (),
    deleted: Collection[str] = (),
) -> Snapshot:
    """Take a complete snapshot of a workspace.

    Args:
        path: the workspace.
        seed: its baseline.
        origin: what was noted when it was made.
        limits: sizes it may have.
        named: paths written through the session, which count even where the baseline's rules ignore them.
        deleted: paths deleted through the session; they count where absence alone says nothing (``lazy``).

    Raises:
        AdapterUnavailable: the workspace is not there any more, or does not stand still.
        WriteRejected: it is over a limit.
    """
    for _ in range(_TRIES):
        try:
            root = os.open(path, _DIRECTORY)
        except OSError as error:
            raise (workspace_gone(path, error.strerror) if error.errno in _SWAPPED else _unreadable(path, error)) from error
        walk = _Walk(seed, origin, limits or Limits(), named, deleted)
        try:
            walk.run(root)
        except (_Moved, FileNotFoundError):
            points.reached("snapshot:moved")
            continue
        except GittrixError:
            raise  # some of ours are OSErrors too
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            os.close(root)
        changes = dict(sorted(walk.changes.items()))
        return Snapshot(seed, changes, walk.blobs, dict(sorted(walk.refused.items())), walk.latest)
    raise AdapterUnavailable(
        f"The workspace {path} did not stand still while it was read, {_TRIES} times.",
        why="A snapshot of moving files would promote what nobody wrote.",
        fix="Let the agent's programs end, then try again.",
    )


def _unreadable(path: str, error: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(
        f"{error.filename or path!r} in the workspace {path} cannot be read: {error.strerror}.",
        why="A snapshot without it would pass it over, or promote its deletion.",
        fix="Make it readable, or remove it, then try again.",
    )


def workspace_gone(path: str, reason: str | None) -> AdapterUnavailable:
    """The error for a workspace whose directory cannot be opened any more."""
    return AdapterUnavailable(
        f"The workspace {path} is gone ({reason}).",
        why="A vanished workspace is not a deletion of every file, so nothing is promoted from it.",
        fix="Restore the directory, or discard the session.",
    )


def latest_change(path: str) -> int:
    """The newest kernel change time of anything in a workspace, its own git directory included; 0 if it is gone.

    Links are not followed, and what vanishes meanwhile is passed over. In nanoseconds, for ``Clock.instant_of``.
    """
    latest = 0
    # Only times are read, so a directory that is swapped for a link meanwhile can at worst make the session look busier.
    for parent, directories, names in os.walk(path):
        for name in (*directories, *names, "."):
            try:
                latest = max(latest, os.lstat(os.path.join(parent, name)).st_ctime_ns)
            except OSError:
                continue
    return latest
