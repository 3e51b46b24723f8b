"""A session's files as the agent sees them, and as a person reviews them: reads through to the baseline, diffs, hunks.

Pure reading over a workspace; records nothing and knows no durable repository.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pytest_gittrix.errors import PathNotFound
from pytest_gittrix.git.guarded import TEMPORARY_PREFIX
from pytest_gittrix.git.hunks import Hunk, hunks_of, is_binary
from pytest_gittrix.git.patch import FileChange, Side, patch_text
from pytest_gittrix.git.seed import Seed
from pytest_gittrix.git.snapshot import Snapshot
from pytest_gittrix.git.tree import SUBMODULE, SYMLINK, Changes, Entry, parents
from pytest_gittrix.git.workspace import Workspace

ListType = Literal["file", "dir", "symlink", "submodule"]


@dataclass(frozen=True, slots=True, order=True)
class ListEntry:
    """One line of a listing.

    Attributes:
        path: from the workspace's root.
        type: ``file``, ``dir``, ``symlink`` or ``submodule``.
    """

    path: str
    type: ListType


def read_file(workspace: Workspace, path: str, deleted: Collection[str], max_bytes: int) -> bytes:
    """The bytes at a path: of the workspace, or of the baseline where a ``lazy`` workspace holds nothing there.

    A symlink gives its target, as git stores it; it is never followed.

    Raises:
        PathNotFound: there is no file there, or it was deleted.
        WriteRejected: it is a directory, a device or over the limit.
    """
    status = workspace.files.lstat(path)
    if status is not None and stat.S_ISLNK(status.st_mode):
        return workspace.files.read_link(path)
    if status is not None:
        return workspace.files.read(path, max_bytes=max_bytes)[0]
    entry = baseline_entry(workspace, path, deleted)
    if entry is None or entry.mode == SUBMODULE:
        raise PathNotFound(
            f"There is no file {path!r} in the workspace.", why="A deleted file reads as absent.", fix="list() names those there are."
        )
    return workspace.seed.blob(entry.id)


def baseline_entry(workspace: Workspace, path: str, deleted: Collection[str]) -> Entry | None:
    """What a ``lazy`` workspace shows of the baseline at a path; None for the other kinds, where absent is absent."""
    if workspace.kind != "lazy" or path in deleted or any(workspace.files.exists(parent) for parent in parents(path)):
        return None
    return workspace.seed.entries.get(path)


def file_exists(workspace: Workspace, path: str, deleted: Collection[str]) -> bool:
    """Whether a file or symlink is at a path."""
    return workspace.files.exists(path) or baseline_entry(workspace, path, deleted) is not None


def list_files(workspace: Workspace, path: str, deleted: Collection[str]) -> list[ListEntry]:
    """Everything below a directory (``.`` is the root), sorted by path, whether it is in the workspace or read through.

    Raises:
        PathNotFound: there is no such directory.
    """
    found: dict[str, ListType] = {}
    prefix = "" if path == "." else path + "/"
    here = path == "." or workspace.files.lstat(path) is not None
    if here:
        for item in workspace.files.scan(path):
            kind: ListType = "dir" if item.is_dir else "symlink" if stat.S_ISLNK(item.stat.st_mode) else "file"
            if item.path.rpartition("/")[2] != ".git" and TEMPORARY_PREFIX not in item.path:
                found[item.path] = kind
    if workspace.kind == "lazy":
        for name, entry in workspace.seed.entries.items():
            if not name.startswith(prefix) or name in found or baseline_entry(workspace, name, deleted) is None:
                continue
            found.update({parent: "dir" for parent in parents(name) if parent.startswith(prefix)})
            found[name] = "symlink" if entry.mode == SYMLINK else "submodule" if entry.mode == SUBMODULE else "file"
    if not found and not here:
        raise PathNotFound(f"There is no directory {path!r} in the workspace.", fix="list('.') names those there are.")
    return [ListEntry(name, found[name]) for name in sorted(found)]


def side(seed: Seed, entry: Entry | None, blobs: Mapping[str, bytes]) -> Side | None:
    """One side of a difference, with its bytes from the snapshot or from the baseline."""
    if entry is None:
        return None
    if entry.mode == SUBMODULE:
        return Side(entry.mode, f"Subproject commit {entry.id}\n".encode(), entry.id)
    data = blobs.get(entry.id)
    return Side(entry.mode, seed.blob(entry.id) if data is None else data, entry.id)


def file_changes(snapshot: Snapshot, paths: Iterable[str] | None = None) -> list[FileChange]:
    """The changed paths of a snapshot (or those of ``paths`` that are) with both sides' bytes."""
    seed = snapshot.seed
    wanted = snapshot.changes if paths is None else [path for path in paths if path in snapshot.changes]
    return [
        FileChange(path, side(seed, seed.entries.get(path), snapshot.blobs), side(seed, snapshot.changes[path], snapshot.blobs))
        for path in wanted
    ]


@dataclass(frozen=True)
class Review:
    """What a person looks at before promoting: one fixed snapshot, whose bytes are what a promotion of it promotes (DESIGN rule 12).

    Attributes:
        session_id: the session it is of.
        baseline: the commit that the session started from.
        changes: new entry by path, None for a deletion; the selection asked for.
        snapshot: the whole snapshot behind it.
    """

    session_id: str
    baseline: str
    changes: Changes
    snapshot: Snapshot

    @property
    def tree(self) -> str:
        """Id of the whole workspace as one tree object."""
        return self.snapshot.tree

    @property
    def refused(self) -> Mapping[str, str]:
        """Paths that can never be promoted, each with the reason."""
        return self.snapshot.refused

    @cached_property
    def diff(self) -> str:
        """A unified diff that ``git apply`` accepts."""
        return patch_text(file_changes(self.snapshot, self.changes))

    @cached_property
    def hunks(self) -> Mapping[str, tuple[Hunk, ...]]:
        """The hunks of each changed text file, numbered from 1 as ``promote(hunks=...)`` takes them."""
        found: dict[str, tuple[Hunk, ...]] = {}
        for change in file_changes(self.snapshot, self.changes):
            if change.old is None or change.new is None or SUBMODULE in (change.old.mode, change.new.mode):
                continue
            if not is_binary(change.old.data) and not is_binary(change.new.data):
                found[change.path] = tuple(hunks_of(change.path, change.old.data, change.new.data))
        return found
