"""A session's files as the agent reads them, and as a person reviews them: reads through to the baseline, diffs, hunks.

These functions record nothing, and but for ``catch_up`` they only read a workspace.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from pytest_gittrix.engine.operations.attachments import resource_name
from pytest_gittrix.errors import Advice, InvalidInput, PathIsDirectory, PathNotFound, WriteRejected
from pytest_gittrix.git.hunks import Hunk, hunks_of, is_binary
from pytest_gittrix.git.patch import FileChange, Side, patch_text
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Changes, Entry, parents
from pytest_gittrix.git.worktree.hazards import hazards
from pytest_gittrix.os_level.open_below import LinkInTheWay, ParentNotDirectory, wrong_kind
from pytest_gittrix.os_level.safe_dir import is_temporary
from pytest_gittrix.record.eventlog.events import path_of
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.checkin import checked_in, conversions_for, depends_on, filtered
from pytest_gittrix.workspaces.rebase import rebase
from pytest_gittrix.workspaces.seed import Seed
from pytest_gittrix.workspaces.snapshot import Limits, Snapshot
from pytest_gittrix.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from pytest_gittrix.workspaces.secrets import Suspect

ListType = Literal["file", "dir", "symlink", "submodule"]

_FILES: Final = (FILE, EXECUTABLE)
_MOST_LINKS: Final = 40


@dataclass(frozen=True, slots=True, order=True)
class ListEntry:
    """One line of a listing.

    Attributes:
        path: from the workspace's root.
        type: ``file``, ``dir``, ``symlink`` or ``submodule``.
    """

    path: str
    type: ListType


def is_behind(workspace: Workspace, state: SessionState) -> bool:
    """Whether a promotion moved its session's baseline, and the workspace may not have it yet."""
    return state.kept is not None and (workspace.seed.commit != state.baseline or bool(workspace.bases))


def catch_up(workspace: Workspace, state: SessionState) -> None:
    """See that a workspace has its session's baseline, which a promotion may have moved; the caller holds the lease.

    Raises as ``rebase``.
    """
    kept = state.kept
    if kept is None or not is_behind(workspace, state):
        return
    merged = {path_of(one): Entry(one["mode"], one["id"]) for one in kept.merged}
    promoted = None if kept.promoted is None else {path_of(one) for one in kept.promoted}
    with workspace.operation():
        rebase(workspace, state.baseline, merged, state.api_deleted, promoted, durable=state.durable_path)


def current_snapshot(
    state: SessionState,
    workspace: Workspace,
    limits: Limits,
    selected: Collection[str] = (),
    on_step: Callable[[], object] = lambda: None,
) -> Snapshot:
    """As ``snapshot_of``, once the workspace has its session's baseline; the caller holds the lease."""
    catch_up(workspace, state)
    return snapshot_of(state, workspace, limits, selected, on_step)


def snapshot_of(
    state: SessionState,
    workspace: Workspace,
    limits: Limits,
    selected: Collection[str] = (),
    on_step: Callable[[], object] = lambda: None,
) -> Snapshot:
    """A session's workspace as the tree that ``git add`` would make of it.

    Args:
        state: the session.
        workspace: its workspace.
        limits: sizes that a snapshot may have.
        selected: paths that are read even if the workspace's own rules ignore them.
        on_step: as for ``take_snapshot``, which says what is raised.
    """
    named = {*state.api_touched, *state.seed_files, *selected}
    taken = workspace.snapshot(limits=limits, named=named, deleted=state.api_deleted, on_step=on_step)
    given = {path for path, resource in state.seed_files.items() if _is_as_given(taken, path, resource)}
    return checked_in(taken.with_given(given), state.durable_path)


def narrowed(state: SessionState, snapshot: Snapshot, taken: Collection[str]) -> Snapshot:
    """A session's snapshot as ``git add`` would make it if only some paths were taken; all of them, if none is named."""
    return checked_in(snapshot, state.durable_path, taken) if taken and depends_on(snapshot, taken) else snapshot


def filtered_of(state: SessionState, snapshot: Snapshot, changes: Changes, blobs: Mapping[str, bytes]) -> dict[str, str]:
    """See ``checkin.filtered``; ``changes`` are what is taken of the snapshot."""
    return filtered(snapshot, changes, blobs, conversions_for(snapshot, state.durable_path, changes))


def hazards_of(snapshot: Snapshot, changes: Changes) -> dict[str, str]:
    """The hazards among some changes: new paths that other machines or programs cannot take, or take for something else."""
    added = {path for path, entry in changes.items() if entry is not None and snapshot.seed.entries.get(path) is None}
    return hazards(added, snapshot.nested)


def _is_as_given(snapshot: Snapshot, path: str, resource: str) -> bool:
    """Whether a file that the session was given at its start has still the bytes and the mode that it had then."""
    entry = snapshot.changes.get(path)
    return entry is not None and entry.mode == FILE and resource_name(snapshot.blobs[entry.id]) == resource


def read_file(workspace: Workspace, path: str, deleted: Collection[str], max_bytes: int, *, follow: bool = False) -> bytes:
    """The bytes at a path: of the workspace, or of the baseline where a ``lazy`` workspace holds nothing there.

    A symlink gives its target, as git stores it, or with ``follow`` what ``followed`` says that it leads to. Links above it are followed.

    Raises:
        PathNotFound: there is no file there, or it was deleted.
        PathIsDirectory: it is a directory.
        WriteRejected: it is a device, or over the limit; or ``followed`` raises it.
    """
    status = workspace.files.lstat(path)
    if status is None or (follow and stat.S_ISLNK(status.st_mode)):
        path = followed(workspace, path, deleted, last=follow)
        status = workspace.files.lstat(path)
    if stat.S_ISDIR(status.st_mode) if status is not None else _shows_directory(workspace, path, deleted):
        raise PathIsDirectory(
            f"{path!r} is a directory.",
            why="Only files have bytes.",
            fix=Advice(f"list({path!r}) names what is in it.", "`gittrix session list-files` names what is in it."),
        )
    if status is not None and stat.S_ISLNK(status.st_mode):
        return workspace.files.read_link(path)
    if status is not None:
        return workspace.files.read(path, max_bytes=max_bytes)[0]
    entry = baseline_entry(workspace, path, deleted)
    if entry is None or entry.mode == SUBMODULE:
        raise PathNotFound(
            f"There is no file {path!r} in the workspace.",
            why="A deleted file reads as absent.",
            fix=Advice("list() names those there are.", "`gittrix session list-files` names those there are."),
        )
    return workspace.seed.blob(entry.id)


def baseline_entry(workspace: Workspace, path: str, deleted: Collection[str]) -> Entry | None:
    """The baseline's entry at a path as a ``lazy`` workspace shows it; None for the other kinds, where an absent file is absent.

    A file in the workspace hides the baseline at its path and below it.
    """
    entry = workspace.seed.entries.get(path) if workspace.kind == "lazy" and path not in deleted else None
    if entry is None or workspace.files.lstat(path) is not None:
        return None
    return None if any(_is_other(workspace.files.lstat(parent)) for parent in parents(path)) else entry


def is_executable_below(workspace: Workspace, path: str, deleted: Collection[str]) -> bool:
    """Whether a path is an executable file of the baseline without a file on the disk whose mode could be kept."""
    entry = workspace.seed.entries.get(path) if workspace.kind == "lazy" else None
    return entry is not None and entry.mode == EXECUTABLE and baseline_entry(workspace, path, deleted) is not None


def _is_other(status: os.stat_result | None) -> bool:
    return status is not None and not stat.S_ISDIR(status.st_mode)


def _shows_directory(workspace: Workspace, path: str, deleted: Collection[str]) -> bool:
    """Whether a ``lazy`` workspace shows a directory of the baseline at a path where nothing is on its disk."""
    if workspace.kind != "lazy" or path not in workspace.seed.directories:
        return False
    inside = (name for name in workspace.seed.entries if name.startswith(f"{path}/"))
    return any(baseline_entry(workspace, name, deleted) is not None for name in inside)


def followed(workspace: Workspace, path: str, deleted: Collection[str], *, last: bool = True) -> str:
    """Where a path leads if every link on it is followed, as programs in the workspace do.

    Args:
        workspace: the session's workspace.
        path: canonical, from its root.
        deleted: paths that a ``lazy`` workspace does not show.
        last: whether a link at the path itself is followed too, and not only those above it.

    Returns:
        The path of what is not a link; nothing has to be there.

    Raises:
        WriteRejected: it leads out of the workspace, into a git directory, or nowhere, as a circle of links does.
    """
    with suppress(ParentNotDirectory):
        status = workspace.files.status(path)
        if not (_shows_link(workspace, path, last=last) if status is None else last and stat.S_ISLNK(status.st_mode)):
            return path
    place: list[str] = []
    rest, links = path.split("/"), 0
    while rest:
        component = rest.pop(0)
        if component in ("", ".", ".."):
            here = "/".join(place)
            if place and not _is_directory(workspace, here, deleted):
                raise _leads_nowhere(path, f"{here!r} is no directory, which {component or '/'!r} after it needs")
            if component == ".." and not place:
                raise _leads_nowhere(path, "it goes above the root")
            place = place[:-1] if component == ".." else place
            continue
        name = "/".join([*place, component])
        target = _target_of(workspace, name, deleted) if rest or last else None
        if target is None:
            place.append(component)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise _leads_nowhere(path, f"there are more than {_MOST_LINKS} links on the way")
        text = os.fsdecode(target)
        if text.startswith("/"):
            below = _below_root(workspace, text)
            if below is None:
                raise _leads_nowhere(path, f"{name!r} is a link to {text!r}")
            place, text = [], below
        rest = [*text.split("/"), *rest]
    return check_path("/".join(place)) if links else path


def _below_root(workspace: Workspace, path: str) -> str | None:
    """What an absolute path has after the workspace's root; None if it does not begin with it."""
    for root in (str(workspace.path), os.path.realpath(workspace.path)):
        if path == root or path.startswith(f"{root}/"):
            return path[len(root) + 1 :] or "."
    return None


def _leads_nowhere(path: str, reason: str) -> WriteRejected:
    return WriteRejected(
        f"{path!r} leads out of the workspace, in a circle or nowhere: {reason}.",
        why="What is outside belongs to others.",
        fix="Name a file of the workspace.",
        opt_out=Advice("With follow=False the link itself is meant.", ""),
    )


def _is_directory(workspace: Workspace, path: str, deleted: Collection[str]) -> bool:
    status = workspace.files.lstat(path)
    return stat.S_ISDIR(status.st_mode) if status is not None else _shows_directory(workspace, path, deleted)


def _shows_link(workspace: Workspace, path: str, *, last: bool) -> bool:
    """Whether a ``lazy`` workspace may show a link of the baseline above a path that is not on its disk, or at it."""
    if workspace.kind != "lazy":
        return False
    entries = workspace.seed.entries
    return any(name in entries and entries[name].mode == SYMLINK for name in ((path,) * last + (*parents(path),)))


def touched_name(snapshot: Snapshot, workspace: Workspace, path: str, deleted: Collection[str]) -> str:
    """The name that a path has among the touched ones: that behind the links above it, if it is not touched as it is."""
    if path in snapshot.changes or path in snapshot.refused or path in snapshot.withheld:
        return path
    with suppress(WriteRejected):  # it leads nowhere, and is told as what was not touched
        return followed(workspace, path, deleted, last=False)
    return path


def _target_of(workspace: Workspace, path: str, deleted: Collection[str]) -> bytes | None:
    """Where the link at a path points; None if there is none."""
    status = workspace.files.lstat(path)
    if status is not None:
        return workspace.files.read_link(path) if stat.S_ISLNK(status.st_mode) else None
    entry = baseline_entry(workspace, path, deleted)
    return workspace.seed.blob(entry.id) if entry is not None and entry.mode == SYMLINK else None


def require_no_directory(workspace: Workspace, path: str, deleted: Collection[str]) -> None:
    """Refuse a path where a ``lazy`` workspace shows a directory of the baseline, as a disk does where the directory is on it.

    Raises:
        WriteRejected: one is there.
    """
    if workspace.kind != "lazy":
        return
    entries = workspace.seed.entries
    inside = [path] if path in entries and entries[path].mode == SUBMODULE else []
    if path in workspace.seed.directories:
        inside = [name for name in entries if name.startswith(f"{path}/")]
    if any(baseline_entry(workspace, name, deleted) is not None for name in inside):
        raise wrong_kind(path, "directory", "file")


def require_place(workspace: Workspace, path: str, deleted: Collection[str], *, over_link: bool = True) -> None:
    """Refuse to write where the baseline of a ``lazy`` workspace has something in the way that is not on its disk, or in a submodule.

    Raises:
        WriteRejected: a directory is at the path.
        ParentNotDirectory: what is above it is a file, a link or a submodule.
        LinkInTheWay: a link is at the path, and not to be replaced.
    """
    for parent in parents(path):
        entry = workspace.seed.entries.get(parent)
        if entry is not None and (entry.mode == SUBMODULE or baseline_entry(workspace, parent, deleted) is not None):
            raise ParentNotDirectory(parent, entry.kind)
    there = None if over_link else workspace.seed.entries.get(path)
    if there is not None and there.mode == SYMLINK and baseline_entry(workspace, path, deleted) is not None:
        raise LinkInTheWay(path)
    require_no_directory(workspace, path, deleted)


def file_exists(workspace: Workspace, path: str, deleted: Collection[str]) -> bool:
    """Whether a file or symlink is at a path."""
    if workspace.files.exists(path):
        return True
    entry = baseline_entry(workspace, path, deleted)
    return entry is not None and entry.mode != SUBMODULE


def list_files(workspace: Workspace, path: str, deleted: Collection[str]) -> list[ListEntry]:
    """Everything below a directory (``.`` is the root), sorted by path, whether it is in the workspace or read through.

    Raises:
        PathNotFound: there is no such directory.
        WriteRejected: it is a file, or below one.
    """
    files, seed = workspace.files, workspace.seed

    def skipped(name: str) -> bool:
        last = name.rpartition("/")[2]
        return last == ".git" or (is_temporary(last) and name not in seed.entries and name not in seed.directories)

    here = path == "." or files.lstat(path) is not None
    found = {item.path: _type_of(item.stat.st_mode) for item in files.scan(path, skip=skipped)} if here else {}
    if workspace.kind == "lazy":
        below = _read_through(workspace, path, deleted, found)
        here = here or bool(below)
        found |= below
    if not here:
        raise PathNotFound(
            f"There is no directory {path!r} in the workspace.",
            fix=Advice("list('.') names those there are.", "`gittrix session list-files` names those there are."),
        )
    return [ListEntry(name, type_) for name in sorted(found) if (type_ := found[name]) is not None]


def _type_of(mode: int) -> ListType | None:
    """The type in a listing for a mode of the disk or of git; None for what no commit can hold (pipes, sockets, devices)."""
    kinds: dict[int, ListType] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", SUBMODULE: "submodule"}
    return kinds.get(stat.S_IFMT(mode))


def _read_through(workspace: Workspace, path: str, deleted: Collection[str], found: Mapping[str, ListType | None]) -> dict[str, ListType]:
    """What a ``lazy`` workspace shows of the baseline below a directory, beside what was found on its disk there."""
    if path != ".":
        entry = baseline_entry(workspace, path, deleted)
        if entry is not None and entry.mode != SUBMODULE:
            raise ParentNotDirectory(path, entry.kind)
        if any(_is_other(workspace.files.lstat(parent)) for parent in parents(path)):
            return {}
    shown: dict[str, ListType] = {}
    prefix = "" if path == "." else path + "/"
    for directory, names in workspace.seed.directories.items():
        inside = f"{directory}/" if directory else ""
        above = [name for name in parents(inside) if name.startswith(prefix)]
        if not inside.startswith(prefix) or any(found.get(name, "dir") != "dir" for name in above):
            continue
        visible = {inside + name: entry for name, entry in names.items() if inside + name not in found and inside + name not in deleted}
        if visible:
            shown.update(dict.fromkeys(above, "dir"))
            shown.update((name, _type_of(entry.mode) or "file") for name, entry in visible.items())
    return shown


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


def patch_of(snapshot: Snapshot, paths: Collection[str] | None = None, on_step: Callable[[], object] = lambda: None) -> str:
    """The changes of a snapshot, or those of ``paths``, as a patch; before it a line, which git skips, for each that is too large.

    ``on_step`` is called for each change, and may raise to end the work.
    """
    lines = snapshot.left_out if paths is None else [snapshot.refusal(path) for path in paths if path in snapshot.refused]
    return "".join(f"Not in this patch: {line}.\n" for line in lines) + patch_text(file_changes(snapshot, paths), on_step=on_step)


def suspects(seed: Seed, changes: Changes, blobs: Mapping[str, bytes]) -> list[Suspect]:
    """The files among some changes that seem to hold credentials: by lines that they gained, or new ones by their names.

    Args:
        seed: the baseline.
        changes: new entry by path, None for a deletion.
        blobs: bytes of the new entries by id.
    """
    from pytest_gittrix.workspaces.secrets import Candidate, suspects_among  # its patterns take 7 ms, and most commands need none of them

    candidates = []
    for path, entry in changes.items():
        if entry is None or entry.mode not in _FILES:
            continue
        before = seed.entries.get(path)
        old = [seed.blob(before.id)] if before is not None and before.mode in _FILES else []
        candidates.append(Candidate(path, blobs[entry.id], old, before is None))
    return suspects_among(candidates)


@dataclass(frozen=True)
class Review:
    """What a person reviews before promoting: a fixed snapshot, whose bytes a promotion of it promotes (rule 12).

    Attributes:
        session_id: the session it is of.
        baseline: the commit that the session started from.
        changes: new entry by path, None for a deletion; the selected ones.
        snapshot: the whole snapshot behind it.
        beside: what the agent's own git holds that is no part of this, a line each: other branches, stashes, staged contents.
        filtered: selected files that are not known to be as their filter would store them, each with the filter's name.
    """

    session_id: str
    baseline: str
    changes: Changes
    snapshot: Snapshot
    beside: tuple[str, ...] = ()
    filtered: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def hazards(self) -> Mapping[str, str]:
        """Selected new paths that other machines or programs cannot take, or take for something else, each with the reason."""
        return hazards_of(self.snapshot, self.changes)

    @cached_property
    def secrets(self) -> Mapping[str, tuple[str, ...]]:
        """Selected files that hold credentials by their names, or that gained lines with the shape of a secret: what was found, by path."""
        return {one.path: one.found for one in suspects(self.snapshot.seed, self.changes, self.snapshot.blobs)}

    @property
    def tree(self) -> str:
        """Id of the whole workspace as one tree object."""
        return self.snapshot.tree

    @property
    def refused(self) -> Mapping[str, str]:
        """Paths that can never be promoted, each with the reason."""
        return self.snapshot.refused

    @property
    def touched(self) -> list[str]:
        """Every path that differs from the baseline, whether it is selected, sorted; those of ``refused`` as well."""
        return self.snapshot.touched

    def is_alike_for(self, paths: Collection[str]) -> bool:
        """Whether a review of these paths alone would show them as this one does."""
        return self.snapshot.withheld.keys().isdisjoint(paths) and not depends_on(self.snapshot, paths)

    def without_directories(self, names: Collection[str]) -> Review:
        """The review without what is in directories of these names, at any depth."""
        kept = {path: entry for path, entry in self.changes.items() if frozenset(names).isdisjoint(path.split("/"))}
        if len(kept) == len(self.changes):
            return self
        known = self.snapshot.blobs
        blobs = {entry.id: known[entry.id] for entry in kept.values() if entry is not None and entry.id in known}
        return replace(self, changes=kept, snapshot=replace(self.snapshot, changes=kept, blobs=blobs))

    def choice(self, files: Iterable[str] | None, hunks: Mapping[str, Collection[int]] | None) -> list[str] | None:
        """The files that a promotion of this review takes: the requested ones, all by default, None where only hunks were requested.

        Raises:
            InvalidInput: a path is outside the review.
        """
        requested = None if files is None else [*files]
        outside = [path for path in (*(requested or ()), *(hunks or ())) if path not in self.changes]
        if outside:
            raise InvalidInput(
                f"{outside[0]!r} is not in the review.",
                why="A promotion of a review promotes what was looked at, and nothing else.",
                fix="Review that file too: session.review([...]).",
            )
        return [*self.changes] if requested is None and not hunks else requested

    @cached_property
    def diff(self) -> str:
        """A unified diff that ``git apply`` accepts. A line before it names each path that is not in it."""
        is_whole = len(self.changes) == len(self.snapshot.changes)
        return patch_of(self.snapshot, None if is_whole else [*self.changes, *self.snapshot.refused])

    @cached_property
    def hunks(self) -> Mapping[str, tuple[Hunk, ...]]:
        """The hunks of each text file that both sides have, numbered from 1 as ``promote(hunks=...)`` takes them; links have none."""
        found: dict[str, tuple[Hunk, ...]] = {}
        for change in file_changes(self.snapshot, self.changes):
            if change.old is None or change.new is None or {SYMLINK, SUBMODULE} & {change.old.mode, change.new.mode}:
                continue
            if not is_binary(change.old.data) and not is_binary(change.new.data):
                found[change.path] = tuple(hunks_of(change.path, change.old.data, change.new.data))
        return found
