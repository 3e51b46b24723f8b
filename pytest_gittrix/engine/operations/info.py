"""The state of a session at one moment, as people and programs are shown it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pytest_gittrix.durations import format_instant, instant_at
from pytest_gittrix.record.eventlog.vocabulary import ROLE
from pytest_gittrix.record.state.fold import SessionState, deadline_ns
from pytest_gittrix.workspaces.workspace import Workspace


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session at one moment. Field names follow GitTrix's SessionInfo; ``to_wire`` gives its camelCase JSON.

    Attributes:
        deadline: when it expires unless it is used before; None for never.
        capabilities: ``filesystem``, ``git``, ``shell``, ``isolated``, ``promote``, ``apiReadWrite`` and so on.
        next_seq: the number of the next event of its conversation, as ``views.pixir.history`` counts them (Pixir).
        next_event: the number of the next event of its log.
        turn: the turn that runs, or that a killed process left open.
        role: the role of its agent: that of its identity, or ``build`` (Pixir).
        identity: who works in it, and on what (Gas Town); see ``values.IDENTITY``.
        chain: the id that all sessions of its chain of handoffs share.
        parent, relation: the session it came from, and how: ``handoff``, ``crash`` or ``fork``.
        fork_root: its first ancestor by forks; itself if it was not forked.
        successor: the session that continues it.
        outcome: how its agent did, if the caller that ended it said.
        beside: work that only the agent's own git has; see ``Review``. Empty once the session has ended.
    """

    session_id: str
    task: str
    state: str
    durable_ref: str
    durable_path: str | None
    durable_branch: str | None
    ephemeral_ref: str
    workspace_path: str | None
    workspace_kind: str | None
    baseline_sha: str
    touched_files: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    last_access_at: datetime
    deadline: datetime | None
    capabilities: Mapping[str, bool]
    next_seq: int = 0
    turn: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    chain: str = ""
    parent: str | None = None
    relation: str | None = None
    fork_root: str = ""
    successor: str | None = None
    outcome: str | None = None
    beside: tuple[str, ...] = ()
    role: str = ROLE
    next_event: int = 0

    def to_wire(self) -> dict[str, Any]:
        """The same as JSON: camelCase keys, ISO-8601 times; keys without a value are left out."""

        def wire(value: object) -> object:
            if isinstance(value, datetime):
                return format_instant(value)
            return list(value) if isinstance(value, tuple) else value

        fields = asdict(self)
        return {_camel(name): wire(value) for name, value in fields.items() if value is not None}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def info_of(state: SessionState, workspace: Workspace | None, touched: Iterable[str], beside: tuple[str, ...] = ()) -> SessionInfo:
    """A state as people see it; ``workspace`` is None when it is gone, and for a member's session, whose files only its agent uses."""
    deadline = None if state.ended else deadline_ns(state)
    capabilities = workspace.capabilities if workspace is not None else None
    retained = state.workspace if state.life is not None and state.workspace_present else state.kept_workspace
    return SessionInfo(
        session_id=state.id,
        task=state.task,
        state=state.state,
        durable_ref=state.durable_ref,
        durable_path=state.durable_path,
        durable_branch=state.durable_branch,
        ephemeral_ref=state.ephemeral_ref,
        workspace_path=workspace.path if workspace is not None else retained,
        workspace_kind=state.workspace_kind,
        baseline_sha=state.baseline,
        touched_files=tuple(touched),
        created_at=instant_at(state.created_ns),
        updated_at=instant_at(state.updated_ns),
        last_access_at=instant_at(state.last_access_ns),
        deadline=instant_at(deadline) if deadline is not None else None,
        capabilities={
            "filesystem": workspace is not None,
            "apiReadWrite": workspace is not None,
            "git": capabilities is not None and capabilities.git,
            "shell": capabilities is not None and capabilities.shell,
            "isolated": capabilities is None or capabilities.isolated,
            "patchImport": False,
            "patchExport": True,
            "promote": not state.ended and state.life is None,
        },
        next_seq=state.said,
        turn=state.turn,
        identity=dict(state.identity),
        chain=state.chain,
        parent=state.lineage.parent if state.lineage is not None else None,
        relation=state.lineage.relation if state.lineage is not None else None,
        fork_root=state.root,
        successor=state.successor,
        outcome=state.outcome,
        beside=beside,
        role=state.identity.get("role", ROLE),
        next_event=state.seq + 1,
    )
