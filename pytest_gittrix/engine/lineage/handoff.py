"""Handoffs and successors: a session hands its workspace on to the next one, or another continues after its crash (Gas Town).

A handoff logs an intent in the parent's log first. Once the child's log has its first event, a recovery rolls the handoff forward; before
that, it rolls it back. The workspace is moved and not copied, so nothing in it changes, including commits of the agent and ignored files.
See docs/explanation/you-know-gas-town.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.engine.operations.attachments import share
from pytest_gittrix.engine.operations.recorder import Recorder, settled_later
from pytest_gittrix.engine.operations.resources import LOCAL, local_ref
from pytest_gittrix.errors import Advice, CapabilityMissing, SessionExpired, SessionNotFound
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Event, path_fields
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.state.values import Lineage
from pytest_gittrix.record.store.store import LOCK, USE
from pytest_gittrix.workspaces.workspace import Workspace

_MOVED: Final = ("engine", "workspace", USE)  # with the last, the programs that run there count for the child
_INHERITED: Final = ("session.write", "touched.seen")
# The keys for the path of a workspace, which the child does not take over.
_PATH_KEYS: Final = frozenset({"workspace", "workspace_b64", "ephemeral_ref"})


def after(parent: SessionState, relation: str) -> Lineage:
    """The lineage of a session that continues another one's work: the same chain, and the same root."""
    return Lineage(parent.id, relation, parent.chain, parent.root)


def require_crashed(parent: SessionState) -> SessionState:
    """Refuse a successor to a session, unless it crashed and has none yet.

    Raises:
        SessionExpired: it did not crash, or has a successor.
    """
    if parent.outcome == "crash" and parent.successor is None:
        return parent
    what = f"has the successor {parent.successor}" if parent.successor else f"is {parent.outcome or parent.state}, not crashed"
    raise SessionExpired(
        f"Session {parent.id} {what}.",
        state=parent.state,
        why="A line of sessions does not fork: each has one that comes after it.",
        fix=Advice(
            "Start a session without a parent, or hand a live one on with handoff().",
            "Start a session without --parent, or hand a live one on with `gittrix session handoff`.",
        ),
    )


@dataclass(frozen=True)
class Succession:
    """The origin of a session that continues one that crashed: it takes the lineage, and nothing else.

    Attributes:
        parent: the record of the crashed session.
    """

    parent: Recorder

    def check(self) -> None:
        """Raises as ``require_crashed``."""
        require_crashed(self.parent.read())

    def lineage(self, _id: str) -> Lineage:
        """The child's lineage; raises as ``require_crashed``."""
        return after(require_crashed(self.parent.read()), "crash")

    def fill(self, child: Recorder, _workspace: Workspace) -> None:
        """Record the child in the parent, before the child can be used: after a kill, a recovery undoes both."""
        with self.parent.leased() as now:
            require_crashed(now)
            self.parent.append("session.succeeded", {"child": child.id}, actor="human", commit_point=True)

    def undo(self, id_: str) -> None:
        """Remove the successor from the parent, since its start never finished."""
        with self.parent.leased() as now:
            if now.successor == id_:
                self.parent.append("succession.aborted", {"child": id_, "reason": "its start never finished"}, commit_point=True)


def _moved_by_promotions(state: SessionState) -> dict[str, Any]:
    """The fields of a first event that promotions changed after which the session went on."""
    if state.kept is None:
        return {}
    names = ("baseline", "durable_branch", "durable_ref", "strategy")
    given = [{**path_fields(path), "resource": name} for path, name in state.seed_files.items()]
    kept = {name: value for name, value in state.kept._asdict().items() if value is not None}
    moved = {"earlier_baselines": [*state.earlier_baselines], "seed_files": given, "kept": kept}
    return {name: getattr(state, name) for name in names} | moved


def _writes(recorder: Recorder) -> list[Event]:
    return [event for event in recorder.log.twin().read() if event.type in _INHERITED]


@dataclass(frozen=True)
class Handoff:
    """Handing sessions on, in one store.

    Attributes:
        recorder_of: makes the recorder of a session.
    """

    recorder_of: Callable[[str], Recorder]

    def run(self, recorder: Recorder, state: SessionState, claim: Callable[[], tuple[str, Lease]], changes: Mapping[str, Any]) -> str:
        """Hand a session on to a new one; returns its id. The caller holds the lease.

        Args:
            recorder: of the parent, which is live.
            state: its state.
            claim: makes and leases the directory of the new session.
            changes: the fields of its first event that differ from the parent's.

        Raises:
            CapabilityMissing: the workspace cannot be moved.
            GittrixError: the system refused something half-way; ``outcome`` is ``unknown``, and ``session`` the new one's id.
        """
        if state.workspace_kind == "worktree":
            raise CapabilityMissing(
                "A 'worktree' cannot be handed on.", why="Durable knows it by its place.", fix="Use 'clone', 'lazy' or 'copy'."
            )
        first = recorder.log.first()
        if first is None or first.type != "session.created":
            raise CapabilityMissing(
                f"Session {state.id} was started by another system, and cannot be handed on.",
                why="What it began with is not known well enough to begin another with it.",
                fix="Promote or discard it, and start a new one.",
            )
        id_, lease = claim()
        try:
            self._begin(recorder, state, self.recorder_of(id_), {**first.data, **_moved_by_promotions(state), **changes})
        finally:
            lease.release()
        return id_

    def _begin(self, recorder: Recorder, state: SessionState, child: Recorder, fields: Mapping[str, Any]) -> None:
        workspace = str(child.directory / "workspace")
        created = {name: value for name, value in fields.items() if name not in _PATH_KEYS}
        created |= {
            "ephemeral_ref": local_ref(workspace) if fields["ephemeral_ref"].startswith(LOCAL) else fields["ephemeral_ref"],
            **path_fields(workspace, "workspace"),
            "lineage": after(state, "handoff").to_data(),
        }
        recorder.append("handoff.intent", {"child": child.id}, actor="human", commit_point=True)
        points.reached("handoff:intent-logged")
        with settled_later(f"The handoff of session {recorder.id}", session=child.id):
            child.append("session.created", created, actor="human", commit_point=True)
            points.reached("handoff:child-created")
            self._move_on(recorder, child)

    def finish(self, recorder: Recorder, state: SessionState) -> SessionState:
        """End a handoff that a kill left open. The caller holds the parent's lease.

        Raises:
            EvictionRace: an operation on the child is running.
        """
        assert state.handoff is not None
        child = self.recorder_of(state.handoff)
        try:
            child.read()
        except SessionNotFound:
            return recorder.append("handoff.aborted", {"child": child.id, "reason": "found unfinished after a crash"}, commit_point=True)
        with child.leased(wait=0):
            return self._move_on(recorder, child)

    def _move_on(self, recorder: Recorder, child: Recorder) -> SessionState:
        """Do the rest once the child's log has begun; a second call does what is left."""
        for name in _MOVED:
            if os.path.lexists(recorder.directory / name):
                os.rename(recorder.directory / name, child.directory / name)
        points.reached("handoff:moved")
        child_state = child.read()
        if child_state.seed_files:  # a fork of the child begins with them
            share(recorder.directory, child.directory, sync=child.store.durability == "full")
        if not child_state.ended and not child_state.workspace_present:
            # Nobody but a handoff writes to a child without a workspace, so a killed one has inherited as many as there are.
            inherited = len(_writes(child))
            for event in child.take_over([replace(event, ts=child.clock.now_ns()) for event in _writes(recorder)[inherited:]]):
                child.emit(event)
            child.append("workspace.ready", path_fields(str(child.directory / "workspace")), commit_point=True)
            child.derive()
        points.reached("handoff:child-ready")
        ended = {"state": "discarded", "outcome": "handoff", "successor": child.id, "reason": "handed on"}
        recorder.append("session.ended", ended, actor="human", commit_point=True)
        state = recorder.append("workspace.removed", {})
        with suppress(FileNotFoundError):
            os.unlink(recorder.directory / LOCK)
        return state
