"""Moving a workspace to another baseline while its session goes on, after a promotion or by a rebase.

What its agent did stays, and all else becomes as the baseline has it.

The session's record moves first, and the workspace follows it. A kill in between does no harm: whoever uses the workspace next does what is
left, and to do it a second time changes nothing.

A path stays behind where the agent has work of its own and durable changed it too. The workspace keeps the entry that this work is based on
(``Workspace.bases``), and the next promotion judges durable's change from there. A path that shows that entry again is brought forward.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pytest_gittrix import points
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Changes, Entry, parents
from pytest_gittrix.os_level.open_below import system_refused
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.checkin import as_stored
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

Differences = Mapping[str, tuple[Entry | None, Entry | None]]
"""The entries of two baselines, the earlier one first, by path."""


@dataclass(frozen=True)
class MergedTexts:
    """The paths at which both sides changed a text, and the two edits were merged.

    Attributes:
        ours: what the agent had there.
        becomes: what its workspace gets instead; at the other paths of ``ours``, what the next baseline has.
        read: the bytes of that by its id; None if they are gone.
    """

    ours: Changes = field(default_factory=dict)
    becomes: Mapping[str, Entry] = field(default_factory=dict)
    read: Callable[[str], bytes | None] = lambda _id: None


class Differing(NamedTuple):
    """A path at which a workspace is not yet as its next baseline.

    Attributes:
        path: the path.
        is_own: whether the agent has work of its own there.
        is_merged: whether it has what was merged there.
        here: what the workspace has there.
    """

    path: str
    is_own: bool
    is_merged: bool
    here: Entry | None


class ChangedPaths(NamedTuple):
    """Paths at which a workspace differs from its baseline.

    Attributes:
        entries: what the workspace has, by path.
        blobs: the bytes of that by id.
        unfit: those of the paths at which there is what no tree shows, or what is too large to be read.
    """

    entries: Changes
    blobs: Mapping[str, bytes]
    unfit: frozenset[str]


_NOTHING: Final = object()
_FOREIGN: Final = Entry(0, "")
"""An entry of neither baseline, which need not be read to know that."""
_MOST_READ: Final = Limits().max_file


def from_bases(differences: Differences, bases: Changes, seed: Seed) -> dict[str, tuple[Entry | None, Entry | None]]:
    """What differs from a baseline, where a path that stayed behind is compared with the entry that the work there is based on.

    Args:
        differences: what differs from the baseline.
        bases: that entry, by path.
        seed: the baseline.
    """
    behind = {path: (base, differences[path][1] if path in differences else seed.entries.get(path)) for path, base in bases.items()}
    return {path: (old, new) for path, (old, new) in {**differences, **behind}.items() if old != new}


def differing(
    workspace: Workspace, between: Differences, ours: Changes, deleted: Collection[str], durable: str | None
) -> Iterator[Differing]:
    """The paths at which a workspace is not yet as its next baseline.

    Where the agent has no work of its own, the path is as in the earlier baseline, or as the agent had it when that was promoted or merged.
    Something that no tree shows is work too if it is in the way of a file. Deletions come first.

    Args:
        workspace: at the earlier baseline.
        between: where the two baselines differ.
        ours: what the agent had where the next baseline has a merged text.
        deleted: paths that a ``lazy`` workspace does not show.
        durable: the path of the repository whose configuration counts: a file is what git would store of it.
    """
    stored = as_stored(workspace.seed, durable)
    going: set[str] = set()
    for path, (old, new) in sorted(between.items(), key=lambda item: item[1][1] is not None):
        here = _entry_at(workspace, path, old, new, going, deleted)
        if here is not None and here.mode in (FILE, EXECUTABLE) and here not in (old, new, ours.get(path)):
            here = Entry(here.mode, workspace.seed.format.hash_object("blob", stored(path, workspace.files.read(path)[0])))
        hides = old is not None and new is not None and workspace.kind == "lazy" and path in deleted
        if here == new and not hides:
            continue
        is_merged = here == ours.get(path, _NOTHING)
        is_own = hides or (here != old and not is_merged)
        if new is None and not is_own:
            going.add(path)
        yield Differing(path, is_own, is_merged, here)


def changed_at(workspace: Workspace, paths: Collection[str], deleted: Collection[str], durable: str | None) -> ChangedPaths:
    """Where a workspace differs from its baseline among some paths. No other path is looked at.

    Args:
        workspace: the workspace, within its ``operation``.
        paths: the paths.
        deleted, durable: as for ``differing``.
    """
    entries, stored = workspace.seed.entries, as_stored(workspace.seed, durable)
    same = {path: (entry, entry) for path in paths for entry in (entries.get(path),)}
    found = {one.path: one.here for one in differing(workspace, same, {}, deleted, durable)}
    unfit = frozenset(path for path, entry in found.items() if entry == _FOREIGN)
    blobs: dict[str, bytes] = {}
    for path, entry in found.items():
        if entry is not None and path not in unfit and entry.mode != SUBMODULE:
            files = workspace.files
            blobs[entry.id] = files.read_link(path) if entry.mode == SYMLINK else stored(path, files.read(path)[0])
    return ChangedPaths(found, blobs, unfit)


def rebase(
    workspace: Workspace,
    commit: str,
    merged: MergedTexts,
    deleted: Collection[str],
    promoted: Collection[str] | None = None,
    *,
    durable: str | None = None,
) -> None:
    """See that a workspace has the baseline of its session, whose lease the caller holds.

    What the agent wrote since the promotion stays as it is, and is then a change of the next baseline.

    Args:
        workspace: the workspace, within its ``operation``.
        commit: the session's baseline.
        merged: the texts that were merged.
        deleted: paths that a ``lazy`` workspace does not show.
        promoted: the paths that the baseline has just as they were promoted; None if it has nothing else that is new.
        durable: as for ``differing``.

    Raises:
        AdapterUnavailable: the seed of the baseline is gone, or what was noted about the workspace cannot be read.
        WriteRejected: the disk refused, or a program has the layers of an ``overlay`` mounted, which is to be changed.
        OSError: the disk refused.
    """
    workspace.reread_baseline()
    if workspace.seed.commit == commit and not workspace.bases:
        return
    seed = workspace.seed if workspace.seed.commit == commit else workspace.seed_of(commit)
    between = from_bases(workspace.seed.differences(seed), workspace.bases, workspace.seed)
    bases: dict[str, Entry | None] = {}
    brought: list[str] = []
    for path, is_own, is_merged, _ in differing(workspace, between, merged.ours, deleted, durable):
        old, new = between[path]
        text = merged.becomes.get(path)
        if is_own and text is not None and _entry_at(workspace, path, old, text, (), deleted) == text:
            brought.append(path)  # by a process that was killed, perhaps before its directory was synced
            continue
        if is_merged and text is not None:
            data = merged.read(text.id)
            is_own = data is None or not _bring(workspace, path, text, data, seed)
            brought.append(path)
            points.reached("rebase:written")
        elif not is_own and (workspace.kind != "lazy" or workspace.files.lstat(path) is not None):
            data = b"" if new is None or new.mode == SUBMODULE else seed.blob(new.id)
            is_own = not _bring(workspace, path, new, data, seed)
            brought.append(path)
            points.reached("rebase:written")
        if is_own and (path in workspace.bases if promoted is None else path not in promoted):
            bases[path] = old
    if seed.sync:
        workspace.files.sync(brought)
    if seed is workspace.seed and bases == workspace.bases:
        return
    workspace.store_baseline(seed, bases)
    points.reached("rebase:stored")


def _entry_at(
    workspace: Workspace, path: str, old: Entry | None, new: Entry | None, going: Collection[str], deleted: Collection[str]
) -> Entry | None:
    """What a workspace shows at a path where two baselines differ.

    None is also what no tree shows, such as a pipe; where that is in the way of the new entry it is ``_FOREIGN``. The files of ``going``
    are not in the way: they will be removed.
    """
    files, format_ = workspace.files, workspace.seed.format
    status = files.lstat(path)
    if status is None:
        above = {parent for parent in parents(path) if _is_other(files, parent)}
        if new is not None and not above.issubset(going):
            return _FOREIGN
        return None if workspace.kind != "lazy" or path in deleted or above else workspace.seed.entries.get(path)
    if stat.S_ISDIR(status.st_mode):
        return _directory_at(files, path, old, new, going)
    if stat.S_ISLNK(status.st_mode):
        return Entry(SYMLINK, format_.hash_object("blob", files.read_link(path)))
    if not stat.S_ISREG(status.st_mode):
        return None if new is None else _FOREIGN
    id_ = _blob_id(workspace, path, status.st_size)
    return _FOREIGN if id_ is None else Entry(EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE, id_)


def _directory_at(files: SafeDir, path: str, old: Entry | None, new: Entry | None, going: Collection[str]) -> Entry | None:
    """As ``_entry_at``, where there is a directory: it is a submodule if a baseline has one there, and else nothing."""
    was_submodule, is_submodule = (entry is not None and entry.mode == SUBMODULE for entry in (old, new))
    if was_submodule and is_submodule:
        return new
    found = files.scan(path, skip=lambda _path: False)
    is_held = any(not one.is_dir and one.path not in going for one in found)
    if new is not None and is_held:
        return _FOREIGN
    if is_submodule and not any(one.startswith(f"{path}/") for one in going):
        return new
    return old if was_submodule and not is_held else None


def _is_other(files: SafeDir, directory: str) -> bool:
    status = files.lstat(directory)
    return status is not None and not stat.S_ISDIR(status.st_mode)


def _blob_id(workspace: Workspace, path: str, size: int) -> str | None:
    """The id of a regular file as a blob; None for one that is too large to have been promoted, or that changes meanwhile."""
    before = workspace.seed.entries.get(path)
    if size > _MOST_READ and (before is None or before.mode == SUBMODULE or workspace.seed.size(path) != size):
        return None
    hasher, left = workspace.seed.format.hasher("blob", size), size
    for piece in workspace.files.pieces(path):
        left -= len(piece)
        if left < 0:
            break
        hasher.update(piece)
    return None if left else hasher.hexdigest()


def _bring(workspace: Workspace, path: str, entry: Entry | None, data: bytes, seed: Seed) -> bool:
    """Give a path an entry, with its bytes; returns whether that was done, and nothing that the agent made meanwhile is in the way."""
    files = workspace.files
    with workspace.unmounted():
        try:
            _remove_directories(files, path)
            if entry is None:
                files.delete(path)
            elif entry.mode == SUBMODULE:
                files.make_directory(path)
            elif entry.mode == SYMLINK:
                files.make_link(path, data)
            else:
                files.write(path, data, executable=entry.mode == EXECUTABLE, sync=seed.sync)
        except GittrixError as error:
            if system_refused(error):
                raise
            return False
    return True


def _remove_directories(files: SafeDir, path: str) -> None:
    """Remove a directory that has nothing but directories in it."""
    status = files.lstat(path)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return
    inside = [*files.scan(path, skip=lambda _path: False)]
    if all(one.is_dir for one in inside):
        for one in reversed(inside):
            files.prune(one.path)
        files.prune(path)
