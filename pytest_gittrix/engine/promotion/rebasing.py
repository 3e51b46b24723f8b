"""Rebasing a session: its baseline moves to durable's head, and what the agent did stays, on top of it (docs/explanation/promotion.md).

Everything that can refuse it comes first: durable's changes are merged with the agent's in memory, and the files of before are kept as a
checkpoint. Then one event moves the baseline, and the workspace follows, as it does after a promotion that keeps its session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Drift, Durable
from pytest_gittrix.engine.operations.checkpoints import save_blobs, save_checkpoint
from pytest_gittrix.engine.operations.in_use import require_unused
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.operations.review import catch_up, snapshot_of
from pytest_gittrix.engine.promotion.conflicts import Reconciled, find_conflicts, listed, reader_of
from pytest_gittrix.engine.promotion.keeping import Keeping, merged_changes
from pytest_gittrix.engine.promotion.plan import digest_of, where_to
from pytest_gittrix.engine.promotion.selection import SelectedChanges
from pytest_gittrix.errors import BaselineConflict, ConflictKind, GittrixError
from pytest_gittrix.record.eventlog.events import path_fields
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.rebase import from_bases
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace

_FOLLOWS: Final = "the workspace is not brought forward yet, and the next operation on the session does it: {}"


@dataclass(frozen=True, slots=True)
class RebaseResult:
    """How a rebase ended.

    Attributes:
        baseline: the session's baseline now: the head of its branch in durable.
        before: its baseline before; the same one if durable had not changed.
        changed: the paths that durable had changed, sorted.
        merged: those of them at which the agent's edits and durable's were merged.
        checkpoint: the event after which the files were as before, and with which ``fork(checkpoint)`` starts; None if nothing was done.
        warnings: files that the checkpoint does not have, and are as they were; and a workspace that could not follow yet.
    """

    baseline: str
    before: str
    changed: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    checkpoint: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outlook:
    """How work would fit on a head of durable.

    Attributes:
        snapshot: the workspace.
        drift: what durable changed between the base of the work and the head.
        work: everything that the agent changed.
        fitted: the same on top of the head, with the conflicts.
    """

    snapshot: Snapshot
    drift: Drift
    work: SelectedChanges
    fitted: Reconciled

    @property
    def merged_texts(self) -> dict[str, bytes]:
        """The bytes of the merged texts by id."""
        changes, blobs = self.fitted.selection
        merged = (changes.get(path) for path in self.fitted.merges)
        return {entry.id: blobs[entry.id] for entry in merged if entry is not None}


def outlook(snapshot: Snapshot, durable: Durable, head: str) -> Outlook:
    """Merge everything that an agent changed with what durable changed, in memory; conflicts are part of the result."""
    seed = snapshot.seed
    drift = from_bases(durable.drift(seed.commit, head, seed), snapshot.bases, seed)
    work = SelectedChanges(snapshot.changes, snapshot.blobs)
    return Outlook(snapshot, drift, work, find_conflicts(work, drift, seed, reader_of(seed, durable), on_overlap="merge"))


@dataclass(frozen=True)
class Rebase:
    """One rebase of one session, in which no turn runs.

    Attributes:
        resources: durable repositories, and where seeds are.
        recorder: the session's record.
        workspace: its workspace.
    """

    resources: Resources
    recorder: Recorder
    workspace: Workspace

    def run(self) -> RebaseResult:
        """Rebase; ``UserSession.rebase`` says what is raised."""
        with self.recorder.working("rebase", "human") as state:
            keeping = Keeping(state, self.workspace)
            require_unused(state, self.recorder.directory, "rebase", removes=False, forcible=False)
            catch_up(self.workspace, state)
            durable = self.resources.durable_of(state)
            head = durable.head(where_to(state, durable)[0])
            snapshot = snapshot_of(state, self.workspace, self.resources.ephemeral.limits)
            seen = outlook(snapshot, durable, head)
            points.reached("rebase:judged")
            if head == state.baseline and not seen.drift:
                return RebaseResult(head, head)
            self._require_no_conflict(keeping, seen, head)
            self.resources.prepare_baseline(state, durable, head)
            save_blobs(self.recorder, snapshot.seed, seen.merged_texts)
            kept = save_checkpoint(self.recorder, state, snapshot, always=True)
            points.reached("rebase:checkpoint-kept")
            moved = self.recorder.append("session.rebased", _moved(keeping, seen, head), actor="human", commit_point=True)
            points.reached("rebase:recorded")
            missing = tuple(f"not in the checkpoint, and as it was: {line}" for line in snapshot.left_out)
            changed = tuple(sorted(seen.drift))
            return RebaseResult(head, state.baseline, changed, seen.fitted.merges, kept.seq, (*missing, *self._follow(moved)))

    def _require_no_conflict(self, keeping: Keeping, seen: Outlook, head: str) -> None:
        kinds: dict[str, ConflictKind] = dict(seen.fitted.conflicts)
        if not kinds:
            kinds = dict.fromkeys(keeping.lost(seen.snapshot, seen.work, seen.fitted.selection, seen.drift), "tree")
        if not kinds:
            return
        baseline = seen.snapshot.seed.commit
        self.recorder.append("promote.conflict", {"paths_digest": digest_of(kinds), "count": len(kinds), "head": head}, actor="human")
        at = "1 path" if len(kinds) == 1 else f"{len(kinds)} paths"
        raise BaselineConflict(
            f"Durable changed since the session's baseline, at {at} of its work: {listed(kinds)}.",
            conflicting_files=sorted(kinds),
            durable_sha=head,
            baseline_sha=baseline,
            kinds=kinds,
            why=f"One of the two changes between baseline {baseline[:12]} and head {head[:12]} would be lost. Nothing was changed.",
            fix="Change these files in the workspace so that they merge, or start a new session from the new head and do the work there.",
        )

    def _follow(self, state: SessionState) -> Iterator[str]:
        """Give the workspace the baseline; yields a warning if it cannot have it yet."""
        try:
            catch_up(self.workspace, state)
            self.recorder.note_touched(state, snapshot_of(state, self.workspace, self.resources.ephemeral.limits).touched)
        except (GittrixError, OSError) as problem:
            yield _FOLLOWS.format(problem)


def _moved(keeping: Keeping, seen: Outlook, head: str) -> dict[str, Any]:
    """The data of ``session.rebased``."""
    fitted = seen.fitted.selection
    merged = []
    for path, entry in merged_changes(seen.work, fitted).items():
        if entry is not None:
            text = fitted.changes.get(path)
            becomes = {"becomes": {"mode": text.mode, "id": text.id}} if text is not None else {}
            merged.append({**path_fields(path), "mode": entry.mode, "id": entry.id, **becomes})
    known = keeping.known_to_durable([path for path in seen.work.changes if path not in fitted.changes], seen.drift)
    lists = {"merged": merged, "in_durable": [path_fields(path) for path in known]}
    return {"commit": head, "before": keeping.state.baseline, **{name: found for name, found in lists.items() if found}}
