"""Eviction: unpromoted work is set aside, the session ends, its workspace goes; and the sweep that does so when the TTL has passed.

A session is expired if and only if now is strictly past its deadline (GitTrix). File changes in the workspace count as
use (DESIGN rule 8), so a session that is due by its log
is looked at once more before it goes. Knows no durable repository but where archives may borrow objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, get_args

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, GittrixError, InvalidInput
from pytest_gittrix.git.snapshot import Limits, Snapshot
from pytest_gittrix.git.tree import Changes
from pytest_gittrix.git.workspace import Trash, Workspace
from pytest_gittrix.record.state import SessionState
from pytest_gittrix.session.archive import Archive, unpromoted, write_archive
from pytest_gittrix.session.expiry import is_past
from pytest_gittrix.session.recorder import Recorder

EndState = Literal["expired", "discarded", "promoted"]
_END_STATES = get_args(EndState)

OpenWorkspace = Callable[[SessionState], Workspace]


def check_end(state: str) -> EndState:
    """Validate how an eviction is to end a session. Raises InvalidInput, listing what there is."""
    if state in _END_STATES:
        return state  # type: ignore[return-value]
    raise InvalidInput(f"A session cannot end as {state!r}.", fix=f"Use one of: {', '.join(_END_STATES)}.")


def set_aside(
    recorder: Recorder,
    state: SessionState,
    workspace: Workspace,
    *,
    promoted: Changes | None = None,
    snapshot: Snapshot | None = None,
    limits: Limits | None = None,
    borrow: str | None = None,
) -> Archive | None:
    """Archive what a session holds and did not promote; None if there is nothing.

    Args:
        recorder: the session's record, its lease held.
        state: its state.
        workspace: what it works in.
        promoted: the changes that were promoted, if any were.
        snapshot: the workspace, if it was read under this very lease.
        limits: sizes a snapshot may have.
        borrow: an object directory the archive may borrow the baseline from.

    Raises:
        AdapterUnavailable: the workspace cannot be read.
        OSError: the archive cannot be written.
    """
    if snapshot is None:
        snapshot = workspace.snapshot(limits=limits, named=state.api_touched, deleted=deleted_paths(state))
    left = unpromoted(snapshot, promoted)
    if not left:
        return None
    archive = write_archive(
        str(recorder.store.directory(state.id)),
        state.id,
        state.task,
        snapshot,
        left,
        seconds=recorder.clock.now_ns() // 10**9,
        borrow=borrow,
        sync=recorder.store.durability == "full",
    )
    recorder.append("archive.written", {"touched": len(left), "commit": archive.commit, "patch": archive.patch.name, "ref": archive.ref})
    points.reached("evict:archived")
    return archive


def deleted_paths(state: SessionState) -> list[str]:
    """The paths whose last operation through the session was a deletion."""
    return [path for path, op in state.api_touched.items() if op == "delete"]


def evict(
    recorder: Recorder,
    state: SessionState,
    how: EndState,
    *,
    open_workspace: OpenWorkspace,
    trash: Trash,
    keep: bool = True,
    promoted: Changes | None = None,
    snapshot: Snapshot | None = None,
    limits: Limits | None = None,
    borrow: str | None = None,
) -> None:
    """End a session and take its workspace away; what can be set aside is set aside first.

    Each step may be the last before a kill: ending it again goes on where that stopped. The caller holds the session's lease.

    Args:
        recorder: the session's record.
        state: its state, read under the lease.
        how: the state it ends in; one that has ended already stays as it is.
        open_workspace: finds the workspace.
        trash: where the workspace goes.
        keep: archive unpromoted work first.
        promoted, snapshot, limits, borrow: see ``set_aside``.
    """
    if keep and state.workspace_present:
        try:
            workspace = open_workspace(state)
            set_aside(recorder, state, workspace, promoted=promoted, snapshot=snapshot, limits=limits, borrow=borrow)
        except (GittrixError, OSError) as problem:
            _keep_whole(recorder, state, problem)
    if not state.ended:
        state = recorder.append("session.ended", {"state": how}, commit_point=True)
        points.reached("evict:ended")
    remove_workspace(recorder, state, open_workspace, trash)


def _keep_whole(recorder: Recorder, state: SessionState, problem: Exception) -> None:
    """What cannot be read as a change of the baseline is kept as it is, whole."""
    kept = recorder.store.directory(state.id) / "archive.workspace"
    if state.workspace is None or not os.path.isdir(state.workspace) or kept.exists():
        return
    os.rename(state.workspace, kept)
    recorder.append("archive.written", {"touched": len(state.api_touched), "patch": kept.name})
    points.reached(f"evict:kept-whole:{type(problem).__name__}")


def remove_workspace(recorder: Recorder, state: SessionState, open_workspace: OpenWorkspace, trash: Trash) -> None:
    """Take an ended session's workspace and the engine's notes about it away."""
    if state.workspace_present:
        try:
            open_workspace(state).remove(trash)
        except AdapterUnavailable:
            if state.workspace is not None:
                trash.put(state.workspace)
        points.reached("evict:workspace-gone")
        trash.put(str(recorder.store.directory(state.id) / "engine"))
        recorder.append("workspace.removed", {})
    # Still held: whoever waits for it finds that the name is gone, and looks again.
    with suppress(FileNotFoundError):
        os.unlink(recorder.store.directory(state.id) / ".lock")


def sweep_one(
    recorder: Recorder,
    *,
    open_workspace: OpenWorkspace,
    trash: Trash,
    limits: Limits | None = None,
    borrow: Callable[[SessionState], str | None],
) -> bool:
    """Evict one session if it is past its TTL, judged under its lease; whether it was.

    A session that somebody works on right now is left for the next sweep.
    """
    try:
        with recorder.leased(wait=0) as state:
            if state.ended and not state.workspace_present:
                return False
            if not is_past(state, recorder.clock):
                return False
            points.reached("sweep:past-deadline")
            if not state.ended:
                state = recorder.with_activity(state)
            if not is_past(state, recorder.clock):
                return False
            evict(recorder, state, "expired", open_workspace=open_workspace, trash=trash, limits=limits, borrow=borrow(state))
            return True
    except EvictionRace:
        return False
