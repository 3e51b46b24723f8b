"""Walks a workspace and compares it with its baseline, without git and without the agent's ``.git``.

A walk through descriptors compares each file's change time with a stamp taken when the workspace was made. The kernel sets change times and
no program can set them back, so the walk finds what an index can be told to overlook (ignored and "unchanged" files, commits, restored
times). A file is read, whatever its change time, if it is not in the baseline, if its directory is not the one that the engine made, or if
the wall clock was stepped. Whether a file has changed is decided by its bytes. Of an overlay only the upper layer is walked.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pytest_gittrix.errors import Advice, WriteRejected
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.path_rules import is_safe_component, is_safe_path, may_be_link
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry
from pytest_gittrix.os_level.files import is_temporary
from pytest_gittrix.os_level.monotonic import real_wall_ns
from pytest_gittrix.workspaces.creation_note import CreationState
from pytest_gittrix.workspaces.overlay import is_opaque
from pytest_gittrix.workspaces.provided import Provided
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.visibility import Visibility, WorkspaceGit

_DEEPEST: Final = 400  # a descriptor is open for each
_SETTLED_NS: Final = 2 * 10**9
_RULES: Final = ".gitignore"
_LARGEST_RULES: Final = 1 << 20
_UNSAFE: Final = "its name could be taken for a git directory"
_DAMAGED: Final = "it was changed before its session began, in a workspace that was made ahead; write it again, or start another session"
_SUBMODULE: Final = "it is a submodule; what is inside it is not looked at"
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REGULAR: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The ids of large files that were hashed last, by what the system says of them.
_HASHED: Final[OrderedDict[tuple[int, int, int, int, str], str]] = OrderedDict()
_MOST_HASHED: Final = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The size that a snapshot may have.

    Attributes:
        max_file: most bytes of one file.
        max_total: most bytes of all changed files together.
        max_files: most changed paths.
    """

    max_file: int = 100 << 20
    max_total: int = 1 << 30
    max_files: int = 100_000


class LargeFile(NamedTuple):
    """A changed file that is over ``Limits.max_file``: it was not read, and cannot be promoted.

    Attributes:
        mode: its mode in git.
        size: in bytes.
    """

    mode: int
    size: int


# Errors of opening a name that was replaced by something else since it was listed.
# Errors of opening a name that was replaced by something else since it was listed.
REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR)


class ChangedDuringWalk(Exception):
    """The workspace changed while it was walked."""


class Walk:
    """One walk over a workspace, which collects its changes."""

    def __init__(
        self,
        seed: Seed,
        created: CreationState,
        limits: Limits,
        named: Collection[str],
        deleted: Collection[str],
        git: WorkspaceGit,
        provided: Provided,
        on_step: Callable[[], object],
    ) -> None:
        self.seed, self.created, self.limits, self.on_step = seed, created, limits, on_step
        self.deleted = frozenset(deleted)
        self.provided = provided
        self.visibility = Visibility(seed.ignore, named, git, provided.includes)
        self.changes: dict[str, Entry | None] = {}
        self.blobs: dict[str, bytes] = {}
        self.refused: dict[str, str] = {}
        self.large: dict[str, LargeFile] = {}
        self.withheld: dict[str, int] = {}
        self.ignored: list[str] = []
        self.nested: list[str] = []
        self.latest = 0
        self.total = 0
        self.visited: set[str] = set()
        self.hiding: list[str] = []
        self.suspect_all = not created.complete or not created.is_comparable

    def run(self, root: int) -> None:
        """Collect the changes below an open directory. Raises ChangedDuringWalk, OSError, WriteRejected."""
        if self.created.complete:
            self.seed.read_all()
        self._walk_directory(root, "", 0, suspect=self.suspect_all, complete=self.created.complete)
        self._add_deletions()

    def _walk_directory(self, descriptor: int, path: str, depth: int, *, suspect: bool, complete: bool) -> None:
        self.on_step()
        status = os.fstat(descriptor)
        self.latest = max(self.latest, status.st_ctime_ns)
        suspect = suspect or self.created.directories.get(path) != status.st_ino
        if depth > _DEEPEST:
            self.refused[f"{path}/"] = f"it is more than {_DEEPEST} directories deep, where nothing is looked at"
            self.visited.update(name for name in self.seed.directories if f"{name}/".startswith(f"{path}/"))
            return
        self.visited.add(path)
        if self.created.layered and not complete and is_opaque(descriptor):
            complete = True  # what is not here is nowhere
            self.hiding.append(path)
        known = self.seed.directories.get(path, {})
        prefix = f"{path}/" if path else ""
        subdirectories: list[str] = []
        present: list[str] = []
        # In a large workspace nearly every file is unchanged, so for a known file the change time is tested first, and alone.
        unsuspected: Container[str] = () if suspect or self.seed.has_submodules else known
        stamp, latest = self.created.stamp, self.latest
        with os.scandir(descriptor) as scanned:
            entries = [*scanned]
        remaining = [entry for entry in entries if entry.name not in unsuspected or entry.stat(follow_symlinks=False).st_ctime_ns >= stamp]
        unchanged = len(entries) - len(remaining)
        self._read_rules(descriptor, path, entries, remaining, known, complete=complete)
        for entry in remaining:
            name = entry.name
            if name == ".git":
                if path and entry.is_dir(follow_symlinks=False):
                    self.nested.append(path)
                continue
            if is_temporary(name) and not self._tracked(prefix + name):
                continue
            if entry.is_dir(follow_symlinks=False):
                subdirectories.append(name)
                continue
            status = entry.stat(follow_symlinks=False)
            changed = status.st_ctime_ns
            latest = max(latest, changed)
            if self.created.layered and prefix + name in self.seed.directories:
                self.hiding.append(prefix + name)
            if name in known:
                present.append(name)
                if changed < stamp and not suspect:
                    continue
            self._compare_file(descriptor, prefix + name, name, status, known.get(name))
        self.latest = latest
        for name in subdirectories:
            if name in known and known[name].mode == SUBMODULE:
                present.append(name)
                self._check_submodule(descriptor, prefix + name, name)
                continue
            if self.created.layered and name in known:  # even if the directory is ignored
                self.changes[prefix + name] = None
            self._enter_subdirectory(descriptor, prefix + name, name, depth, suspect=suspect, complete=complete)
        if complete and unchanged + len(present) < len(known):
            absent = known.keys() - {*present, *({entry.name for entry in entries} - {entry.name for entry in remaining})}
            self.changes.update(dict.fromkeys(prefix + name for name in absent))

    def _read_rules(
        self,
        descriptor: int,
        path: str,
        entries: list[os.DirEntry[str]],
        remaining: list[os.DirEntry[str]],
        known: Mapping[str, Entry],
        *,
        complete: bool,
    ) -> None:
        """Note the ignore rules of a directory, if they may be other ones than the baseline's."""
        changed = next((entry for entry in remaining if entry.name == _RULES), None)
        if changed is not None:
            # Git passes over rules that are a link, too.
            is_read = changed.is_file(follow_symlinks=False) and changed.stat(follow_symlinks=False).st_size <= _LARGEST_RULES
            self.visibility.read_rules(path, _read_file(descriptor, _RULES, _LARGEST_RULES)[1] if is_read else b"")
        elif _RULES in known and (
            not any(entry.name == _RULES for entry in entries) if complete else f"{path}/{_RULES}".lstrip("/") in self.deleted
        ):
            self.visibility.read_rules(path, b"")

    def _tracked(self, path: str) -> bool:
        return path in self.seed.entries or path in self.seed.directories

    def _check_submodule(self, parent: int, path: str, name: str) -> None:
        """Refuse a submodule whose directory is not empty any more: its contents would be lost silently."""
        descriptor = _open(parent, name, DIRECTORY_FLAGS)
        try:
            with os.scandir(descriptor) as entries:
                if next(entries, None) is not None:
                    self.refused[path] = _SUBMODULE
        finally:
            os.close(descriptor)

    def _enter_subdirectory(self, parent: int, path: str, name: str, depth: int, *, suspect: bool, complete: bool) -> None:
        standing = "work" if path in self.seed.directories else self.visibility.standing(path, directory=True)
        if standing == "ignored":
            self.ignored.append(f"{path}/")
            return
        # The agent did not choose a name that is in the baseline; a change below such a directory is refused file by file.
        if standing == "work" and path not in self.seed.directories and not is_safe_component(os.fsencode(name)):
            self.refused[path] = _UNSAFE
            return
        descriptor = _open(parent, name, DIRECTORY_FLAGS)
        try:
            self._walk_directory(descriptor, path, depth + 1, suspect=suspect, complete=complete)
        finally:
            os.close(descriptor)

    def _compare_file(self, parent: int, path: str, name: str, status: os.stat_result, baseline: Entry | None) -> None:
        self.on_step()
        if baseline is None and self.provided.origin_of(path, status) == "durable":
            return
        kind = stat.S_IFMT(status.st_mode)
        standing = "work" if baseline is not None or kind not in (stat.S_IFREG, stat.S_IFLNK) else self.visibility.standing(path)
        if standing == "ignored":
            self.ignored.append(path)
            return
        if standing == "withheld":
            self.withheld[path] = status.st_size
            return
        if kind == stat.S_IFLNK:
            if not may_be_link(path):
                self.refused[path] = "a link that can be read as .gitmodules leads git outside the repository"
                return
            mode, data = SYMLINK, os.fsencode(_read_link(parent, name))
        elif kind == stat.S_IFREG:
            if status.st_size > self.limits.max_file:
                self._compare_large_file(parent, path, name, status, baseline)
                return
            mode, data = _read_file(parent, name, self.limits.max_file)
        else:
            # A tree cannot hold sockets, pipes and devices, so git skips them: a file that one replaced is deleted.
            if baseline is not None:
                self.changes[path] = None
            return
        id_ = self.seed.format.hash_object("blob", data)
        if baseline is not None and (baseline.mode, baseline.id) == (mode, id_):
            return
        if not is_safe_path(path):
            self.refused[path] = _UNSAFE
            return
        if self.created.stamp < status.st_ctime_ns < self.created.taken and not self.suspect_all:
            self.refused[path] = _DAMAGED
            return
        self.changes[path] = Entry(mode, id_)
        self.blobs[id_] = data
        self.total += len(data)
        if self.total > self.limits.max_total or len(self.changes) > self.limits.max_files:
            raise WriteRejected(
                f"The workspace holds more than {self.limits.max_total} changed bytes or {self.limits.max_files} changed files.",
                why="A snapshot is held in memory while it is reviewed.",
                fix="Remove what is not meant for durable, or list it in durable's .gitignore.",
                opt_out=Advice(
                    "Raise the limits with LocalEphemeral(limits=Limits(...)).", "Only Python has more: LocalEphemeral(limits=Limits(...))."
                ),
            )

    def _compare_large_file(self, parent: int, path: str, name: str, status: os.stat_result, baseline: Entry | None) -> None:
        mode = EXECUTABLE if status.st_mode & 0o100 else FILE
        if baseline is not None and baseline.mode == mode and self._has_blob(parent, path, name, status, baseline):
            return
        self.refused[path] = f"it has {status.st_size} bytes; the limit is {self.limits.max_file}"
        if is_safe_path(path):
            self.large[path] = LargeFile(mode, status.st_size)

    def _has_blob(self, parent: int, path: str, name: str, status: os.stat_result, baseline: Entry) -> bool:
        """Whether a large file is as in the baseline. One of another size is not; any other is hashed once for as long as it stays."""
        if status.st_size != self.seed.size(path):
            return False
        known = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns, self.seed.format.name)
        id_ = _HASHED.get(known)
        if id_ is None:
            id_ = _hash_file(parent, name, status.st_size, self.seed.format, self.on_step)
            # A file that changed just now could change again without another change time.
            if real_wall_ns() - status.st_ctime_ns > _SETTLED_NS:
                _HASHED[known] = id_
                while len(_HASHED) > _MOST_HASHED:
                    _HASHED.popitem(last=False)
        return id_ == baseline.id

    def _add_deletions(self) -> None:
        if self.created.complete:
            for directory, names in self.seed.directories.items():
                if directory not in self.visited:
                    prefix = f"{directory}/" if directory else ""
                    self.changes.update(dict.fromkeys(prefix + name for name in names))
            return
        if self.created.layered:
            for hidden in self.hiding:
                below = self.seed.files_below(hidden)
                self.changes.update(dict.fromkeys(path for path in below if path.rpartition("/")[0] not in self.visited))
            return
        for path in self.deleted:
            if path in self.seed.entries and path not in self.changes:
                self.changes[path] = None
        self.changes.update(dict.fromkeys(self._replaced()))

    def _replaced(self) -> list[str]:
        """The baseline's files that another kind of file replaced, in a workspace where a missing file alone is no deletion."""
        files = [f"{path}/" for path, entry in self.changes.items() if entry is not None and path in self.seed.directories]
        below = [path for path in self.seed.entries if path.startswith(tuple(files))] if files else []
        return below + [path for path in self.visited if path in self.seed.entries]


def _open(parent: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno in REPLACED:
            raise ChangedDuringWalk from error
        raise


def _read_link(parent: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in REPLACED:
            raise ChangedDuringWalk from error
        raise


def _read_file(parent: int, name: str, limit: int) -> tuple[int, bytes]:
    """Mode and bytes of a regular file that does not change while it is read."""
    descriptor = _open(parent, name, _REGULAR)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise ChangedDuringWalk
        data = os.read(descriptor, before.st_size + 1)
        while len(data) != before.st_size and len(data) <= limit:  # the file grows, or its file system reports no size
            chunk = os.read(descriptor, 4096)
            if not chunk:
                break
            data += chunk
        after = os.fstat(descriptor)
        if (after.st_ctime_ns, after.st_size) != (before.st_ctime_ns, before.st_size):
            raise ChangedDuringWalk
        return EXECUTABLE if before.st_mode & 0o100 else FILE, data
    finally:
        os.close(descriptor)


def _hash_file(parent: int, name: str, size: int, format_: ObjectFormat, on_step: Callable[[], object]) -> str:
    """The id that a regular file of any size would have."""
    descriptor, hasher = _open(parent, name, _REGULAR), format_.hasher("blob", size)
    try:
        while piece := os.read(descriptor, 1 << 20):
            on_step()
            hasher.update(piece)
    finally:
        os.close(descriptor)
    return hasher.hexdigest()
