"""Moving a workspace to another baseline while its session goes on: what its agent did stays, and all else becomes as the baseline has it.

The session's record moves first, and the workspace follows it. A kill in between does no harm: whoever uses the workspace next does what is
left, and to do it a second time changes nothing.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Changes, Entry, parents
from pytest_gittrix.os_level.open_below import tolerating_shape
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.seed import Seed
from pytest_gittrix.workspaces.workspace import Workspace

Differences = Mapping[str, tuple[Entry | None, Entry | None]]
"""The entries of two baselines, the earlier one first, by path."""

_NOTHING: Final = object()


def differing(workspace: Workspace, between: Differences, ours: Changes, deleted: Collection[str]) -> Iterator[tuple[str, bool]]:
    """The paths at which a workspace is not yet as its next baseline, each with whether the agent has work of its own there.

    Where it has none, the path is as in the earlier baseline, or as the agent had it when that was promoted. Deletions come first.

    Args:
        workspace: at the earlier baseline.
        between: where the two baselines differ.
        ours: what the agent had where the next baseline has a merged text.
        deleted: paths that a ``lazy`` workspace does not show.
    """
    for path, (old, new) in sorted(between.items(), key=lambda item: item[1][1] is not None):
        here = _entry_at(workspace, path, deleted)
        hides = new is not None and workspace.kind == "lazy" and path in deleted
        if here != new or hides:
            submodule = SUBMODULE in (old and old.mode, new and new.mode)
            yield path, hides or submodule or (here != old and here != ours.get(path, _NOTHING))


def rebase(workspace: Workspace, commit: str, ours: Changes, deleted: Collection[str]) -> None:
    """See that a workspace has the baseline of its session, whose lease the caller holds.

    What the agent wrote since the promotion stays as it is, and is then a change of the next baseline.

    Args:
        workspace: the workspace, within its ``operation``.
        commit: the session's baseline.
        ours: what the agent had where that baseline has a merged text.
        deleted: paths that a ``lazy`` workspace does not show.

    Raises:
        AdapterUnavailable: the seed of the baseline is gone, or what was noted about the workspace cannot be read.
        WriteRejected: the disk refused, or a program has the layers of an ``overlay`` mounted, which is to be changed.
        OSError: the disk refused.
    """
    if workspace.seed.commit != commit:
        workspace.reread_baseline()
    if workspace.seed.commit == commit:
        return
    seed = workspace.seed_of(commit)
    between = workspace.seed.differences(seed)
    files = workspace.files
    for path, is_own in differing(workspace, between, ours, deleted):
        if is_own or (workspace.kind == "lazy" and files.lstat(path) is None):
            continue
        with workspace.unmounted(), tolerating_shape():  # an agent may have put a directory in the way
            _write(files, path, between[path][1], seed)
        points.reached("rebase:written")
    workspace.store_baseline(seed)
    points.reached("rebase:stored")


def _entry_at(workspace: Workspace, path: str, deleted: Collection[str]) -> Entry | None:
    """What a workspace shows at a path; None for what no tree can hold."""
    files, format_ = workspace.files, workspace.seed.format
    status = files.lstat(path)
    if status is None:
        hidden = workspace.kind != "lazy" or path in deleted or any(_is_other(files, parent) for parent in parents(path))
        return None if hidden else workspace.seed.entries.get(path)
    if stat.S_ISLNK(status.st_mode):
        return Entry(SYMLINK, format_.hash_object("blob", files.read_link(path)))
    if not stat.S_ISREG(status.st_mode):
        return None
    return Entry(EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE, format_.hash_object("blob", files.read(path)[0]))


def _is_other(files: SafeDir, directory: str) -> bool:
    status = files.lstat(directory)
    return status is not None and not stat.S_ISDIR(status.st_mode)


def _write(files: SafeDir, path: str, entry: Entry | None, seed: Seed) -> None:
    if entry is None:
        files.delete(path)
    elif entry.mode == SYMLINK:
        files.make_link(path, seed.blob(entry.id))
    else:
        files.write(path, seed.blob(entry.id), executable=entry.mode == EXECUTABLE, sync=seed.sync)
    if seed.sync:
        files.sync(path)
