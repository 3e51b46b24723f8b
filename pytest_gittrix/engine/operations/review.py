"""A session's changes as a snapshot, for a person to review: diffs, hunks, and what looks like credentials or a hazard.

These functions record nothing, and but for ``catch_up`` they only read a workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pytest_gittrix.engine.operations.attachments import resource_name
from pytest_gittrix.engine.operations.checkpoints import saved_blob
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.hunks import Hunk, hunks_of, is_binary
from pytest_gittrix.git.patch import FileChange, Side, patch_text
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Changes, Entry
from pytest_gittrix.git.worktree.hazards import hazards
from pytest_gittrix.record.eventlog.events import Event, path_of
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.checkin import checked_in, conversions_for, depends_on, filtered
from pytest_gittrix.workspaces.rebase import MergedTexts, rebase
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from pytest_gittrix.workspaces.secrets import Suspect

_FILES: Final = (FILE, EXECUTABLE)


def is_behind(workspace: Workspace, state: SessionState) -> bool:
    """Whether a promotion or a rebase moved its session's baseline, and the workspace may not have it yet."""
    return state.kept is not None and (workspace.seed.commit != state.baseline or bool(workspace.bases))


def catch_up(workspace: Workspace, state: SessionState) -> None:
    """Give a workspace its session's baseline, which a promotion or a rebase may have moved; the caller holds the lease.

    Raises as ``rebase``.
    """
    kept = state.kept
    if kept is None or not is_behind(workspace, state):
        return
    merged = {path_of(one): Entry(one["mode"], one["id"]) for one in kept.merged}
    becomes = {path_of(one): Entry(**one["becomes"]) for one in kept.merged if "becomes" in one}
    promoted = None if kept.promoted is None else {path_of(one) for one in kept.promoted}

    def read(id_: str) -> bytes | None:
        return None if workspace.state_dir is None else saved_blob(workspace.state_dir, workspace.began, id_)

    with workspace.operation():
        texts = MergedTexts(merged, becomes, read)
        rebase(workspace, state.baseline, texts, state.api_deleted, promoted, durable=state.durable_path)


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
    chosen, provided = {*state.initial_files, *selected}, workspace.provided
    kept_back = [path for path in state.api_touched if path not in chosen and provided.includes(path)]
    named = {*state.api_touched, *chosen}.difference(kept_back)
    taken = workspace.snapshot(limits=limits, named=named, deleted=state.api_deleted, on_step=on_step)
    given = {path for path, resource in state.initial_files.items() if _is_as_given(taken, path, resource)}
    return checked_in(_with_withheld(taken, workspace, kept_back).with_given(given), state.durable_path)


def _with_withheld(snapshot: Snapshot, workspace: Workspace, paths: Collection[str]) -> Snapshot:
    """The snapshot in which included files that were written through the session are withheld, as those are that a program changed."""
    found = {path: status for path in paths if (status := workspace.files.lstat(path)) is not None}
    sizes = {path: status.st_size for path, status in found.items() if snapshot.provided.origin_of(path, status) is None}
    if not sizes:
        return snapshot
    ignored = tuple(path for path in snapshot.ignored if path not in sizes)
    return replace(snapshot, withheld=dict(sorted({**snapshot.withheld, **sizes}.items())), ignored=ignored)


def narrowed(state: SessionState, snapshot: Snapshot, taken: Collection[str]) -> Snapshot:
    """A session's snapshot as ``git add`` would make it if only some paths were taken; all of them, if none is named."""
    return checked_in(snapshot, state.durable_path, taken) if taken and depends_on(snapshot, taken) else snapshot


def filtered_of(state: SessionState, snapshot: Snapshot, changes: Changes, blobs: Mapping[str, bytes]) -> dict[str, str]:
    """See ``checkin.filtered``; ``changes`` are the selected ones of the snapshot."""
    return filtered(snapshot, changes, blobs, conversions_for(snapshot, state.durable_path, changes))


def hazards_of(snapshot: Snapshot, changes: Changes) -> dict[str, str]:
    """The hazards among some changes: new paths that other machines or programs cannot take, or take for something else."""
    added = {path for path, entry in changes.items() if entry is not None and snapshot.seed.entries.get(path) is None}
    return hazards(added, snapshot.nested)


def _is_as_given(snapshot: Snapshot, path: str, resource: str) -> bool:
    """Whether a file that the session was given at its start has still the bytes and the mode that it had then."""
    entry = snapshot.changes.get(path)
    return entry is not None and entry.mode == FILE and resource_name(snapshot.blobs[entry.id]) == resource


def changes_now(state: SessionState, workspace: Workspace, limits: Limits) -> tuple[list[FileChange], Mapping[str, str]]:
    """A session's changes since its baseline, read without its lease, and the reasons of paths that can never be promoted.

    A workspace that did not follow its session's baseline yet is not changed: only the lease allows that.

    Args, Raises: as for ``snapshot_of``.
    """
    snapshot = snapshot_of(state, workspace, limits)
    since = snapshot if state.kept is None else snapshot.since(workspace.seed_of(state.baseline))
    return file_changes(since), since.refused


def landed_changes(events: Iterable[Event], commit: str, durable: str | None) -> list[FileChange] | None:
    """What a promotion's commit changed; None where durable is not on this machine.

    Args:
        events: the session's.
        commit: the commit.
        durable: the path of durable.

    Raises:
        AdapterUnavailable: there is no repository at its path.
        MissingObject: it does not have the commit any more.
    """
    parent = next((one.data["parent"] for one in events if one.type == "promote.intent" and one.data["commit"] == commit), None)
    if parent is None or durable is None:
        return None
    with Repository.open(durable) as repository:
        old, new = repository.entries(parent), repository.entries(commit)
        paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
        return [FileChange(path, side(repository.blob, old.get(path), {}), side(repository.blob, new.get(path), {})) for path in paths]


def side(blob: Callable[[str], bytes], entry: Entry | None, blobs: Mapping[str, bytes]) -> Side | None:
    """One side of a difference, with its bytes from the snapshot, or from the baseline by ``blob``."""
    if entry is None:
        return None
    if entry.mode == SUBMODULE:
        return Side(entry.mode, f"Subproject commit {entry.id}\n".encode(), entry.id)
    data = blobs.get(entry.id)
    return Side(entry.mode, blob(entry.id) if data is None else data, entry.id)


def file_changes(snapshot: Snapshot, paths: Iterable[str] | None = None) -> list[FileChange]:
    """The changed paths of a snapshot (or those of ``paths`` that are) with both sides' bytes."""
    seed = snapshot.seed
    wanted = snapshot.changes if paths is None else [path for path in paths if path in snapshot.changes]
    return [
        FileChange(path, side(seed.blob, seed.entries.get(path), snapshot.blobs), side(seed.blob, snapshot.changes[path], snapshot.blobs))
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
    """A fixed snapshot for a person to review; promoting the review promotes exactly its bytes (rule 12).

    Attributes:
        session_id: the session it is of.
        baseline: the commit that the session started from.
        changes: new entry by path, None for a deletion; the selected ones.
        snapshot: the whole snapshot behind it.
        beside: a line for each piece of work that only the agent's own git has: other branches, stashes, staged contents.
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
        """Findings by path in selected files that look like credentials by their names, or gained lines like a secret."""
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
        """Every path that differs from the baseline, selected or not, sorted; with those of ``refused``."""
        return self.snapshot.touched

    def is_alike_for(self, paths: Collection[str]) -> bool:
        """Whether a review of these paths alone would show them as this one does."""
        return self.snapshot.withheld.keys().isdisjoint(paths) and not depends_on(self.snapshot, paths)

    def without_directories(self, names: Collection[str]) -> Review:
        """The review without directories of these names, at any depth."""
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
                why="A promotion of a review promotes exactly what was reviewed.",
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
