"""Sessions that come from sessions: one ends and hands its workspace on to the next, as one step (Gas Town, session-systems 2.2, 2.3).

An intent in the parent's log comes first. Once the child's log has its first event the handoff is rolled forward, whoever is killed; before
that it is rolled back. The workspace is moved and not copied, so nothing in it changes, commits of the agent and ignored files included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.engine.operations.operation import Recorder
from pytest_gittrix.engine.operations.resources import local_ref
from pytest_gittrix.errors import CapabilityMissing, SessionExpired, SessionNotFound
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import path_fields, path_of
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.state.values import Lineage
from pytest_gittrix.record.store.store import LOCK
from pytest_gittrix.workspaces.workspace import Workspace

_MOVED: Final = ("engine", "workspace")
# Where a session's workspace is, which its child does not begin with.
_PLACE: Final = frozenset({"workspace", "workspace_b64", "ephemeral_ref"})


def after(parent: SessionState, relation: str) -> Lineage:
    """The lineage of a session that goes on with another one's work: of the same line, and of the same root."""
    return Lineage(parent.id, relation, parent.chain, parent.root)


def require_crashed(parent: SessionState) -> SessionState:
    """See that a session may have a successor although it was not handed on: it crashed, and has none yet.

    Raises:
        SessionExpired: otherwise.
    """
    if parent.outcome == "crash" and parent.successor is None:
        return parent
    what = f"has the successor {parent.successor}" if parent.successor else f"is {parent.outcome or parent.state}, not crashed"
    raise SessionExpired(
        f"Session {parent.id} {what}.",
        state=parent.state,
        why="A line of sessions does not fork: each has one that comes after it.",
        fix="Start a session without a parent, or hand a live one on with handoff().",
    )


@dataclass(frozen=True)
class Succession:
    """What a session begins with that goes on with one that crashed: its place in the line, and nothing else.

    Attributes:
        parent: the record of that one.
    """

    parent: Recorder

    def check(self) -> None:
        """Raises as ``require_crashed``."""
        require_crashed(self.parent.read())

    def lineage(self, _id: str) -> Lineage:
        """The child's; raises as ``require_crashed``."""
        return after(require_crashed(self.parent.read()), "crash")

    def fill(self, child: Recorder, _workspace: Workspace) -> None:
        """Tell the parent, while nobody knows of the child yet: what a kill leaves then is taken back with the child."""
        with self.parent.leased() as now:
            require_crashed(now)
            self.parent.append("session.succeeded", {"child": child.id}, actor="human", commit_point=True)

    def undo(self, id_: str) -> None:
        """Free the parent from a child that never came to be."""
        with self.parent.leased() as now:
            if now.successor == id_:
                self.parent.append("succession.aborted", {"child": id_, "reason": "its start never finished"}, commit_point=True)


@dataclass(frozen=True)
class Handoff:
    """Handing sessions on, in one store.

    Attributes:
        recorder_of: makes the recorder of a session.
    """

    recorder_of: Callable[[str], Recorder]

    def run(self, recorder: Recorder, state: SessionState, claimed: Callable[[], tuple[str, Lease]], changes: Mapping[str, Any]) -> str:
        """Hand a session on to a new one; gives its id. The caller holds the lease.

        Args:
            recorder: of the parent, which is live.
            state: its state.
            claimed: makes the directory of the session to be, and leases it.
            changes: what its first event says that is not as in the parent's.

        Raises:
            CapabilityMissing: the workspace cannot be moved.
        """
        if state.workspace_kind == "worktree":
            raise CapabilityMissing(
                "A 'worktree' cannot be handed on.", why="Durable knows it by its place.", fix="Use 'clone', 'lazy' or 'copy'."
            )
        first = recorder.log.twin().read()[0]
        if first.type != "session.created":
            raise CapabilityMissing(
                f"Session {state.id} was started by another system, and cannot be handed on.",
                why="What it began with is not known well enough to begin another with it.",
                fix="Promote or discard it, and start a new one.",
            )
        id_, lease = claimed()
        try:
            self._begin(recorder, state, self.recorder_of(id_), {**first.data, **changes})
        finally:
            lease.release()
        return id_

    def _begin(self, recorder: Recorder, state: SessionState, child: Recorder, meant: Mapping[str, Any]) -> None:
        space = str(child.directory / "workspace")
        created = {name: value for name, value in meant.items() if name not in _PLACE}
        created |= {"ephemeral_ref": local_ref(space), **path_fields(space, "workspace"), "lineage": after(state, "handoff").to_data()}
        recorder.append("handoff.intent", {"child": child.id}, actor="human", commit_point=True)
        points.reached("handoff:intent-logged")
        child.append("session.created", created, actor="human", commit_point=True)
        points.reached("handoff:child-created")
        self._move_on(recorder, child)

    def finish(self, recorder: Recorder, state: SessionState) -> SessionState:
        """End a handoff that a kill left open. The caller holds the parent's lease.

        Raises:
            EvictionRace: somebody works on the child.
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
        """What follows once the child is born; done again, it does what is left."""
        for name in _MOVED:
            if os.path.lexists(recorder.directory / name):
                os.rename(recorder.directory / name, child.directory / name)
        points.reached("handoff:moved")
        born = child.read()
        if not born.ended and not born.workspace_present:
            for event in recorder.log.twin().read():
                if event.type == "session.write":
                    child.append("session.write", {**path_fields(path_of(event.data)), "op": event.data["op"]}, actor="agent")
            child.append("workspace.ready", path_fields(str(child.directory / "workspace")), commit_point=True)
            child.derive()
        points.reached("handoff:child-ready")
        ended = {"state": "discarded", "outcome": "handoff", "successor": child.id, "reason": "handed on"}
        recorder.append("session.ended", ended, actor="human", commit_point=True)
        state = recorder.append("workspace.removed", {})
        with suppress(FileNotFoundError):
            os.unlink(recorder.directory / LOCK)
        return state
