"""What exactly is promoted: selected paths and hunks of a snapshot, reconciled with durable's drift.

Pure functions from a snapshot and two trees to the entries of one commit, or to the conflict that forbids it (rules 1, 4 and 7,
docs/explanation/rules.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_gittrix.backends.protocol import Drift
from pytest_gittrix.engine.operations.validation import check_paths
from pytest_gittrix.errors import BaselineConflict, ConflictKind, InvalidInput, PromoteFailed, WriteRejected
from pytest_gittrix.git.hunks import choose, merge_text
from pytest_gittrix.git.tree import SUBMODULE, SYMLINK, Changes, Entry, overlap
from pytest_gittrix.workspaces.seed import Seed
from pytest_gittrix.workspaces.snapshot import Snapshot

OnOverlap = Literal["refuse", "allow-identical", "merge"]
_ON_OVERLAP = get_args(OnOverlap)
_SHOWN = 8


@dataclass(frozen=True)
class Selection:
    """The changes that are promoted.

    Attributes:
        changes: new entry by path, None for a deletion.
        blobs: bytes of the new entries by id.
    """

    changes: Changes
    blobs: Mapping[str, bytes]


def select(snapshot: Snapshot, files: Iterable[str] | None, hunks: Mapping[str, Collection[int]] | None) -> Selection:
    """Choose from a snapshot: everything, some files, some hunks, or files and hunks together.

    Args:
        snapshot: the workspace.
        files: touched paths to take whole; None takes all, unless ``hunks`` says otherwise.
        hunks: for a path, the numbers (from 1) of the hunks to take; the rest of that file stays as the baseline has it.

    Raises:
        PromoteFailed: nothing is selected, or a path was not touched; the message names it and lists those that were.
        WriteRejected: a selected path can never be promoted.
        InvalidInput: there is no such hunk.
    """
    chosen_hunks = dict(hunks or {})
    wanted = _wanted(snapshot, files, chosen_hunks)
    unknown = [path for path in wanted if path not in snapshot.changes]
    refused = [path for path in unknown if path in snapshot.refused] or ([*snapshot.refused] if files is None and not chosen_hunks else [])
    if refused:
        raise WriteRejected(
            f"{refused[0]!r} cannot be promoted: {snapshot.refused[refused[0]]}.",
            why="A promotion takes what it can keep exactly, or says so before anything moves.",
            fix="Rename or remove it, or select the other files by name.",
        )
    if unknown:
        raise PromoteFailed(
            f"{', '.join(map(repr, unknown[:_SHOWN]))} {'was' if len(unknown) == 1 else 'were'} not touched in this session.",
            stage="staging",
            why="A selection that quietly left something out would promote less than was meant.",
            fix=f"Touched: {', '.join([*snapshot.changes][:_SHOWN]) or 'nothing'}{' ...' if len(snapshot.changes) > _SHOWN else ''}.",
        )
    if not wanted and snapshot.changes:
        raise PromoteFailed(
            "No file was selected.",
            stage="staging",
            why="An empty list promotes nothing; only a list that is left out stands for everything touched.",
            fix="Name the files to promote, or leave files= out.",
        )
    if not wanted:
        raise PromoteFailed("There is nothing to promote: no file differs from the baseline.", stage="staging", fix="Discard the session.")
    changes: dict[str, Entry | None] = {path: snapshot.changes[path] for path in wanted}
    blobs = {entry.id: snapshot.blobs[entry.id] for entry in changes.values() if entry is not None}
    for path, numbers in chosen_hunks.items():
        data = _with_hunks(snapshot, path, numbers)
        entry = snapshot.changes[path]
        assert entry is not None
        changes[path] = Entry(entry.mode, snapshot.seed.format.hash_object("blob", data))
        blobs[changes[path].id] = data  # type: ignore[union-attr]
    return Selection(changes, blobs)


def _wanted(snapshot: Snapshot, files: Iterable[str] | None, hunks: Mapping[str, Collection[int]]) -> list[str]:
    if files is None:
        return [*hunks] if hunks else [*snapshot.changes]
    return list(dict.fromkeys([*check_paths(files, "files"), *hunks]))


def _with_hunks(snapshot: Snapshot, path: str, numbers: Collection[int]) -> bytes:
    """The bytes of a file with only some of its hunks applied."""
    old, new = snapshot.seed.entries.get(path), snapshot.changes[path]
    if old is None or new is None or {old.mode, new.mode} & {SYMLINK, SUBMODULE}:
        raise InvalidInput(
            f"{path!r} has no hunks to choose from.",
            why="Hunks are parts of a text file that both sides have.",
            fix="Select the whole file with files=[...].",
        )
    if not numbers:
        raise InvalidInput(f"No hunk of {path!r} was chosen.", fix="Leave the path out, or name hunks by number from 1.")
    return choose(snapshot.seed.blob(old.id), snapshot.blobs[new.id], numbers)


def check_on_overlap(value: str) -> OnOverlap:
    """Validate how overlap with drift is treated. Raises InvalidInput, which lists the ways."""
    if value in _ON_OVERLAP:
        return value  # type: ignore[return-value]
    raise InvalidInput(f"on_overlap={value!r} is not a way to treat overlap.", fix=f"Use one of: {', '.join(_ON_OVERLAP)}.")


def reconcile(
    selection: Selection,
    drift: Drift,
    seed: Seed,
    read_blob: Callable[[str], bytes],
    *,
    on_overlap: OnOverlap,
    head: str,
) -> Selection:
    """The part of a selection that goes onto a head, which may have drifted from the baseline.

    Args:
        selection: the changes to promote.
        drift: what differs between baseline and head.
        seed: the baseline.
        read_blob: bytes by id, of the baseline or of durable.
        on_overlap: ``refuse`` any overlap (GitTrix), ``allow-identical`` bytes, or ``merge`` what merges as text.
        head: the head's id, for the error.

    Raises:
        BaselineConflict: drift overlaps the selection in a way that is not allowed; it names every such path and its kind.
        PromoteFailed: durable already has everything that was selected.
    """
    touched = overlap(selection.changes, drift)
    if not touched:
        return selection
    changes, blobs = dict(selection.changes), dict(selection.blobs)
    conflicts: dict[str, ConflictKind] = {}
    for path in sorted(touched):
        kind, merged = _merge_at(path, selection, drift, seed, read_blob)
        theirs = drift[path][1] if path in drift else None
        if on_overlap == "merge" and merged is not None:
            mode, data = merged
            changes[path] = Entry(mode, seed.format.hash_object("blob", data))
            blobs[changes[path].id] = data  # type: ignore[union-attr]
        if on_overlap != "refuse" and path in drift and theirs == changes[path]:
            del changes[path]
        elif on_overlap != "merge" or merged is None:
            conflicts[path] = kind
    if conflicts:
        raise _conflict(conflicts, seed.commit, head)
    if not changes:
        raise PromoteFailed("Durable already holds everything that was selected.", stage="staging", fix="Discard the session.")
    return Selection(changes, blobs)


def _merge_at(
    path: str, selection: Selection, drift: Drift, seed: Seed, read_blob: Callable[[str], bytes]
) -> tuple[ConflictKind, tuple[int, bytes] | None]:
    """The kind of conflict that two sides have at a path, and the mode and bytes that they merge to, if they do."""
    base, ours = seed.entries.get(path), selection.changes[path]
    theirs = drift[path][1] if path in drift else None
    if path not in drift or base is None or ours is None or theirs is None:
        return "tree", None
    if {base.kind, ours.kind, theirs.kind} & {"symlink", "submodule"}:
        return "tree", None
    mode = ours.mode if theirs.mode == base.mode else theirs.mode
    merged = merge_text(read_blob(base.id), selection.blobs[ours.id], read_blob(theirs.id))
    return ("text", None) if merged is None else ("path", (mode, merged))


def _conflict(kinds: Mapping[str, ConflictKind], baseline: str, head: str) -> BaselineConflict:
    reasons = {"path": "would merge as text", "text": "would not merge as text", "tree": "moved, deleted or of another kind"}
    listed = "; ".join(f"{path!r} {reasons[kind]}" for path, kind in [*kinds.items()][:_SHOWN])
    more = f" (and {len(kinds) - _SHOWN} more)" if len(kinds) > _SHOWN else ""
    mergeable = all(kind == "path" for kind in kinds.values())
    return BaselineConflict(
        f"Durable changed since the session started, at {len(kinds)} selected path{'s' if len(kinds) > 1 else ''}: {listed}{more}.",
        conflicting_files=sorted(kinds),
        durable_sha=head,
        baseline_sha=baseline,
        kinds=kinds,
        why=f"Promoting would undo what happened between baseline {baseline[:12]} and head {head[:12]}.",
        fix="Promote the other files, or start a new session from the new head and apply the change there.",
        opt_out="Or promote with on_overlap='merge', which merges them as text." if mergeable else "",
    )
