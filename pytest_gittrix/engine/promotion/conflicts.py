"""Find conflicts between a selection and durable's changes since the session's baseline, and merge where that is allowed.

Pure functions from a selection and durable's drift to the entries of one commit, or to ``BASELINE_CONFLICT`` (rule 4,
docs/explanation/rules.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

from pytest_gittrix.backends.protocol import Drift, Durable
from pytest_gittrix.engine.promotion.selection import SelectedChanges
from pytest_gittrix.errors import Advice, BaselineConflict, ConflictKind, GittrixError, InvalidInput, PromoteFailed
from pytest_gittrix.git.hunks import merge_text
from pytest_gittrix.git.tree import Entry, overlap
from pytest_gittrix.workspaces.seeds.seed import Seed

OnOverlap = Literal["refuse", "allow-identical", "merge"]
_ON_OVERLAP = get_args(OnOverlap)
_SHOWN = 8


class Reconciled(NamedTuple):
    """A selection as it goes onto a head.

    Attributes:
        selection: what differs from the head then; it may be empty.
        conflicts: the kind of each overlap that is not allowed, by path.
        overlaps: the kind of each overlap, allowed or not.
        merges: the paths at which both sides' texts were merged, or would merge.
    """

    selection: SelectedChanges
    conflicts: Mapping[str, ConflictKind]
    overlaps: Mapping[str, ConflictKind]
    merges: tuple[str, ...]


def check_on_overlap(value: str) -> OnOverlap:
    """Validate how overlap with drift is treated. Raises InvalidInput, which lists the ways."""
    if value in _ON_OVERLAP:
        return value  # type: ignore[return-value]
    raise InvalidInput(f"on_overlap={value!r} is not a way to treat overlap.", fix=f"Use one of: {', '.join(_ON_OVERLAP)}.")


def reconcile(
    selection: SelectedChanges,
    drift: Drift,
    seed: Seed,
    read_blob: Callable[[str], bytes],
    *,
    on_overlap: OnOverlap,
    head: str,
) -> SelectedChanges:
    """The part of a selection that is committed on a head, which may have drifted from the baseline.

    Args:
        selection: the changes to promote.
        drift: what differs between baseline and head, as ``from_bases`` sees it.
        seed: the baseline.
        read_blob: bytes by id, of the baseline or of durable.
        on_overlap: ``refuse`` any overlap (GitTrix), ``allow-identical`` bytes, or ``merge`` what merges as text.
        head: the head's id, for the error.

    Raises:
        BaselineConflict: drift overlaps the selection in a way that is not allowed; it names every such path and its kind.
        PromoteFailed: durable already has everything that was selected.
    """
    fitted, conflicts, _, _ = find_conflicts(selection, drift, seed, read_blob, on_overlap=on_overlap)
    if conflicts:
        raise _conflict(conflicts, seed.commit, head)
    if not fitted.changes and selection.changes:
        raise PromoteFailed("Durable already has everything that was selected.", stage="staging", fix="Discard the session.")
    return fitted


def find_conflicts(
    selection: SelectedChanges, drift: Drift, seed: Seed, read_blob: Callable[[str], bytes], *, on_overlap: OnOverlap
) -> Reconciled:
    """As ``reconcile``, but conflicts are returned, and durable may have everything already."""
    changes, blobs = dict(selection.changes), dict(selection.blobs)
    conflicts: dict[str, ConflictKind] = {}
    overlaps: dict[str, ConflictKind] = {}
    merges: list[str] = []
    for path in sorted(overlap(selection.changes, drift)):
        kind, merged = _merge_at(path, selection, drift, read_blob)
        overlaps[path] = kind
        theirs = drift[path][1] if path in drift else None
        if kind == "path" and changes[path] != theirs:
            merges.append(path)
        if on_overlap == "merge" and merged is not None:
            mode, data = merged
            changes[path] = Entry(mode, seed.format.hash_object("blob", data))
            blobs[changes[path].id] = data  # type: ignore[union-attr]
        if on_overlap != "refuse" and path in drift and theirs == changes[path]:
            del changes[path]
        elif on_overlap != "merge" or merged is None:
            conflicts[path] = kind
    return Reconciled(SelectedChanges(changes, blobs), conflicts, overlaps, tuple(merges))


def reader_of(seed: Seed, durable: Durable) -> Callable[[str], bytes]:
    """A reader of bytes by id, of the baseline or of durable."""

    def read(id_: str) -> bytes:
        try:
            return seed.blob(id_)
        except GittrixError:
            return durable.blob(id_)

    return read


def _merge_at(
    path: str, selection: SelectedChanges, drift: Drift, read_blob: Callable[[str], bytes]
) -> tuple[ConflictKind, tuple[int, bytes] | None]:
    """The kind of conflict that two sides have at a path, and the mode and bytes that they merge to, if they do."""
    ours = selection.changes[path]
    base, theirs = drift.get(path, (None, None))
    if base is None or ours is None or theirs is None:
        return "tree", None
    if {base.kind, ours.kind, theirs.kind} & {"symlink", "submodule"}:
        return "tree", None
    mode = ours.mode if theirs.mode == base.mode else theirs.mode
    merged = merge_text(read_blob(base.id), selection.blobs[ours.id], read_blob(theirs.id))
    return ("text", None) if merged is None else ("path", (mode, merged))


def listed(kinds: Mapping[str, ConflictKind]) -> str:
    """The first conflicts of some, each with its reason, for a message."""
    reasons = {"path": "would merge as text", "text": "would not merge as text", "tree": "moved, deleted or of another kind"}
    more = f" (and {len(kinds) - _SHOWN} more)" if len(kinds) > _SHOWN else ""
    return "; ".join(f"{path!r} {reasons[kind]}" for path, kind in [*kinds.items()][:_SHOWN]) + more


def _conflict(kinds: Mapping[str, ConflictKind], baseline: str, head: str) -> BaselineConflict:
    mergeable = all(kind == "path" for kind in kinds.values())
    return BaselineConflict(
        f"Durable changed since the session started, at {len(kinds)} selected path{'s' if len(kinds) > 1 else ''}: {listed(kinds)}.",
        conflicting_files=sorted(kinds),
        durable_sha=head,
        baseline_sha=baseline,
        kinds=kinds,
        why=f"Promoting would undo what happened between baseline {baseline[:12]} and head {head[:12]}.",
        fix="Promote the other files, or start a new session from the new head and apply the change there.",
        opt_out=Advice(
            "Or promote with on_overlap='merge', which merges them as text.",
            "Or promote with --on-overlap merge, which merges them as text.",
        )
        if mergeable
        else "",
    )
