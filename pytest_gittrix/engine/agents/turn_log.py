"""What a session's log and lock say of its turns: that one runs, how it ended, and the files as they were then."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal

from pytest_gittrix.engine.agents.session_parts import SessionObject, parts_of
from pytest_gittrix.engine.operations.checkpoints import save_checkpoint
from pytest_gittrix.engine.operations.conversation import close_orphans
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.review import current_snapshot
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, GittrixError, TurnBusy, WriteRejected
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.log import report_ignored
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store.store import TURN

Status = Literal["running", "done", "failed", "interrupted"]


def claim(recorder: Recorder) -> Lease:
    """Take the right to run a turn of a session; ``release`` gives it back.

    Raises:
        TurnBusy: a turn runs, here or in another process.
        SessionNotFound: there is no such session.
    """
    # A turn that is being killed releases its lock with the last of its threads, a little after it seems to be gone.
    try:
        return Lease(recorder.directory / TURN, wait=0.1).acquire()
    except EvictionRace:
        raise TurnBusy(
            f"Session {recorder.id} has a turn running.",
            why="A session is one conversation: two turns at once would answer each other's calls.",
            fix="Wait for it, or interrupt() it.",
        ) from None
    except GittrixError:
        recorder.read()  # raises SessionNotFound for a session that is not there
        raise


def release(lease: Lease) -> None:
    """Give back the right to run a turn, and leave no file of it."""
    with suppress(OSError):
        os.unlink(lease.path)
    lease.release()


def end_lost(recorder: Recorder, state: SessionState, reason: str) -> SessionState:
    """Store as ``lost`` a turn whose process died, and answer the open calls. The caller holds the lease, and the right to run a turn."""
    if state.turn is not None:
        state = recorder.append("turn.ended", {"turn": state.turn, "status": "lost"})
    return close_orphans(recorder, state, reason)


def record_start(recorder: Recorder, state: SessionState, runs: str) -> str:
    """Store that a turn starts, in which no other one is open; gives its name. The caller holds the lease."""
    turn = f"t{state.seq + 1}"
    recorder.append("turn.started", {"turn": turn, "runs": runs}, actor="agent")
    return turn


def record_end(recorder: Recorder, turn: str, status: Status, error: str | None = None) -> SessionState:
    """Store that the open turn ended, and why if it failed. The caller holds the lease."""
    reason = {"reason": error[:500]} if error and status == "failed" else {}
    return recorder.append("turn.ended", {"turn": turn, "status": status, **reason}, actor="agent")


def checkpoint(recorder: Recorder, state: SessionState, agent: SessionObject) -> SessionState:
    """Save the files for forks. A workspace that cannot be read now prevents no turn from starting or ending."""
    try:
        snapshot = current_snapshot(state, parts_of(agent).workspace, parts_of(agent).limits)
        return save_checkpoint(recorder, recorder.note_touched(state, snapshot.touched), snapshot)
    except (AdapterUnavailable, WriteRejected, OSError) as problem:
        report_ignored(problem)
        return state
