"""Handoffs and successors: a session hands its workspace on to the next one, or another continues after its crash (Gas Town).

A handoff logs an intent in the parent's log first. Once the child's log has its first event, a recovery rolls the handoff forward; before
that, it rolls it back. The workspace is moved and not copied, so nothing in it changes, including commits of the agent and ignored files.
See docs/explanation/you-know-gas-town.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.engine.lineage.start import check_identity, require_created, with_values
from pytest_gittrix.engine.operations.attachments import share
from pytest_gittrix.engine.operations.recorder import Recorder, settled_later
from pytest_gittrix.engine.operations.resources import LOCAL, Resources, local_ref
from pytest_gittrix.engine.operations.review import catch_up
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import Advice, CapabilityMissing, SessionExpired, SessionNotFound
from pytest_gittrix.record.eventlog.events import Event, path_fields
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.state.values import Lineage, Policy
from pytest_gittrix.record.store.store import LOCK, USE
from pytest_gittrix.workspaces.workspace import Workspace

_MOVED: Final = ("engine", "workspace", USE)  # with the last, the programs that run there count for the child
_INHERITED: Final = ("session.write", "touched.seen")
# The keys for the path of a workspace, which the child does not take over.
_PATH_KEYS: Final = frozenset({"workspace", "workspace_b64", "ephemeral_ref"})
_OF_AN_AGENT: Final = ("tmux_session", "cwd")
"""What of an identity is where its agent works, and not what it works on."""


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
        why="A chain of sessions does not branch: each session has one successor.",
        fix=Advice(
            "Start a session without a parent, or hand a live one on with handoff().",
            "Start a session without --parent, or hand a live one on with `gittrix session handoff`.",
        ),
    )


@dataclass(frozen=True)
class Succession:
    """The origin of a session that continues a crashed one: it gets the lineage only."""

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
    given = [{**path_fields(path), "resource": name} for path, name in state.initial_files.items()]
    kept = {name: value for name, value in state.kept._asdict().items() if value is not None}
    moved = {"earlier_baselines": [*state.earlier_baselines], "seed_files": given, "kept": kept}
    return {name: getattr(state, name) for name in names} | moved


def _writes(recorder: Recorder) -> list[Event]:
    return [event for event in recorder.log.twin().read() if event.type in _INHERITED]


def _handed_on(identity: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The facts that a handoff keeps: a step belongs to the session that began it, terminal and directory to the agent."""
    other = changes.get("agent") not in (None, identity.get("agent"))
    return {name: value for name, value in identity.items() if name != "step_ref" and not (other and name in _OF_AN_AGENT)}


def _created(state: SessionState, child: Recorder, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The data of the child's first event, from what its parent began with and what has changed since."""
    workspace = str(child.directory / "workspace")
    return {name: value for name, value in fields.items() if name not in _PATH_KEYS} | {
        "ephemeral_ref": local_ref(workspace) if fields["ephemeral_ref"].startswith(LOCAL) else fields["ephemeral_ref"],
        **path_fields(workspace, "workspace"),
        "lineage": after(state, "handoff").to_data(),
    }


@dataclass(frozen=True)
class Handoff:
    """The handoff of one session to a new one: its arguments, ``run``, which does it, and ``finish``, which a recovery calls.

    Attributes:
        resources: of the engine.
        recorder: of the session.
        task: of the new session; the old one's by default.
        policy: when the new one is evicted; as the old one by default.
        identity: who works in it, and on what, where that differs.
        id: its id, if the caller chose it.
    """

    resources: Resources
    recorder: Recorder
    task: str | None = None
    policy: Policy | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None

    def run(self) -> str:
        """Hand the session on; returns the id of the new one. ``UserSession.handoff`` says how and what is raised."""
        changes: dict[str, Any] = {} if self.task is None else {"task": check_text(self.task, "task")}
        identity = check_identity(self.identity)
        with self.recorder.working("handoff", "human") as state:
            if state.kept is not None:
                catch_up(self.resources.open_workspace(state), state)
            first = self._first_event(state)
            changes["policy"] = (self.policy or state.policy).to_data()
            changes["identity"] = with_values({**_handed_on(state.identity, identity), **identity})
            child, lease = self.resources.claim(self.id)
            try:
                created = _created(state, child, {**first.data, **_moved_by_promotions(state), **changes})
                self.recorder.append("handoff.intent", {"child": child.id}, actor="human", commit_point=True)
                points.reached("handoff:intent-logged")
                with settled_later(f"The handoff of session {state.id}", session=child.id):
                    child.append("session.created", created, actor="human", commit_point=True)
                    points.reached("handoff:child-created")
                    self._move_on(child)
            finally:
                lease.release()
        return child.id

    def _first_event(self, state: SessionState) -> Event:
        """The event that the session began with. Raises CapabilityMissing if it cannot be handed on."""
        if state.workspace_kind == "worktree":
            raise CapabilityMissing(
                "A 'worktree' cannot be handed on.",
                why="The durable repository refers to it by its path.",
                fix="Use 'clone', 'lazy' or 'copy'.",
            )
        return require_created(state, self.recorder.log.first(), "handed on")

    def finish(self, child_id: str) -> SessionState:
        """End a handoff that a kill left open. The caller holds the parent's lease.

        Raises:
            EvictionRace: an operation on the child is running.
        """
        child = self.resources.recorder(child_id)
        try:
            child.read()
        except SessionNotFound:
            reason = "found unfinished after a crash"
            return self.recorder.append("handoff.aborted", {"child": child_id, "reason": reason}, commit_point=True)
        with child.leased(wait=0):
            return self._move_on(child)

    def _move_on(self, child: Recorder) -> SessionState:
        """Move the workspace to the child, make the child ready and end the parent; a second call goes on where the first one stopped."""
        recorder = self.recorder
        for name in _MOVED:
            if os.path.lexists(recorder.directory / name):
                os.rename(recorder.directory / name, child.directory / name)
        points.reached("handoff:moved")
        child_state = child.read()
        if child_state.initial_files:  # a fork of the child begins with them
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
