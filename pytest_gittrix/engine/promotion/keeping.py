"""Promotions after which the session stays active, with the promoted commit as its baseline (docs/explanation/promotion.md).

The new baseline includes durable's changes, so a later promotion of a path that durable changed could no longer be seen to conflict. Such a
promotion is refused unless it promotes that path, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pytest_gittrix.backends.protocol import Drift
from pytest_gittrix.engine.promotion.selection import SelectedChanges
from pytest_gittrix.errors import Advice, BaselineConflict, CapabilityMissing
from pytest_gittrix.git.tree import overlap
from pytest_gittrix.record.eventlog.events import path_fields
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.rebase import differing
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace

_SHOWN = 8


@dataclass(frozen=True)
class Keeping:
    """A session that stays active after its promotion.

    Attributes:
        state: its state, read under the lease.
        workspace: its workspace, which is at its baseline.
    """

    state: SessionState
    workspace: Workspace

    def __post_init__(self) -> None:
        if self.workspace.state_dir is None:
            raise CapabilityMissing(
                f"Session {self.state.id} was started by another system, and cannot go on from another baseline.",
                why="It is unknown how its workspace was made, so it cannot get another baseline.",
                fix=Advice("Promote it without keep=True.", "Promote it without --keep."),
            )

    def require_no_loss(self, snapshot: Snapshot, selected: SelectedChanges, fitted: SelectedChanges, drift: Drift, head: str) -> None:
        """Refuse the promotion if unpromoted work is at a path that durable changed.

        Args:
            snapshot: what is promoted of.
            selected: the selection.
            fitted: the same as it goes onto durable's head.
            drift: what durable changed since the session's baseline.
            head: the head.

        Raises:
            BaselineConflict: it would lose a conflict; the error names every such path.
            WriteRejected: a program has the layers of an ``overlay`` mounted, so that what durable changed cannot be brought there.
        """
        lost = self.lost(snapshot, selected, fitted, drift)
        if lost:
            raise _conflict(lost, self.state.baseline, head)

    def lost(self, snapshot: Snapshot, selected: SelectedChanges, fitted: SelectedChanges, drift: Drift) -> list[str]:
        """The paths at which work that is not selected would lose its conflict, sorted. Arguments and errors as for ``require_no_loss``."""
        between = {path: (old, fitted.changes.get(path, new)) for path, (old, new) in drift.items()}
        with self.workspace.operation():
            ours, state = merged_changes(selected, fitted), self.state
            found = [*differing(self.workspace, between, ours, state.api_deleted, state.durable_path)]
            unselected = [path for path in snapshot.touched if path not in selected.changes]
            near = {path for path in overlap(unselected, drift) if path not in drift}
            lost = sorted(near | {one.path for one in found if one.is_own})
            if not lost and found:
                with self.workspace.unmounted():
                    pass
        return lost

    def data(self, selected: SelectedChanges, fitted: SelectedChanges, drift: Drift) -> dict[str, Any]:
        """What ``promote.kept`` has in addition to ``promote.done``; ``drift`` is what durable changed since the baseline."""
        merged = merged_changes(selected, fitted)
        known = self.known_to_durable(selected.changes, drift)
        lists = {
            "merged": [{**path_fields(path), "mode": entry.mode, "id": entry.id} for path, entry in merged.items() if entry is not None],
            "in_durable": [path_fields(path) for path in known],
        }
        promoted = {"promoted": [path_fields(path) for path in selected.changes if path not in merged]} if drift else {}
        return {"before": self.state.baseline, **{name: found for name, found in lists.items() if found}, **promoted}

    def known_to_durable(self, paths: Iterable[str], drift: Drift) -> list[str]:
        """Which paths were given to the session or deleted through it, and are durable's from the next baseline on.

        Args:
            paths: those that the next baseline has as the session has them.
            drift: what durable changed since the baseline.
        """
        known = [path for path in paths if path in self.state.api_deleted or path in self.state.initial_files]
        added = {path for path, (old, _) in drift.items() if old is None}
        return known + sorted((added & self.state.api_deleted).difference(known))  # what the agent deleted there was its own


def merged_changes(selected: SelectedChanges, fitted: SelectedChanges) -> dict[str, Any]:
    """The selected entries at whose paths the commit has something else, or what durable had already: by path, as they were selected."""
    return {path: entry for path, entry in selected.changes.items() if path not in fitted.changes or fitted.changes[path] != entry}


def _conflict(paths: list[str], baseline: str, head: str) -> BaselineConflict:
    more = f" (and {len(paths) - _SHOWN} more)" if len(paths) > _SHOWN else ""
    return BaselineConflict(
        f"Durable changed since the session's baseline, at {len(paths)} path{'s' if len(paths) > 1 else ''} where work stays behind: "
        f"{', '.join(map(repr, paths[:_SHOWN]))}{more}.",
        conflicting_files=paths,
        durable_sha=head,
        baseline_sha=baseline,
        kinds=dict.fromkeys(paths, "tree"),
        why="The session would go on from durable's head, and its next promotion would undo durable's change without a conflict.",
        fix=Advice(
            "Promote these paths too, with on_overlap='merge', or promote without keep=True.",
            "Promote these paths too, with --on-overlap merge, or promote without --keep.",
        ),
    )
