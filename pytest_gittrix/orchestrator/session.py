"""A session as agent-orchestrator documents it, the further values that an orchestrator returns, and when a session is over.

A session is made from the record that ``views.orchestrator`` derives from a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pytest_gittrix.durations import format_instant, parse_instant
from pytest_gittrix.views.orchestrator_status import Dialect, is_terminal
from pytest_gittrix.views.orchestrator_status import is_restorable as can_come_back


@dataclass(frozen=True, slots=True)
class PRInfo:
    """A pull request; an unknown text is empty, an unknown number is 0."""

    number: int
    url: str
    title: str
    owner: str
    repo: str
    branch: str
    base_branch: str
    is_draft: bool


@dataclass(frozen=True, slots=True)
class RuntimeHandle:
    """The agent's runtime: ``id`` is its pid as text, ``runtime_name`` is ``process``; ``data`` has further fields."""

    id: str
    runtime_name: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentSessionInfo:
    """The agent's information about its conversation; ``summary_is_fallback`` if the summary is its first words instead."""

    summary: str | None
    agent_session_id: str | None
    summary_is_fallback: bool = False
    cost: Mapping[str, float] | None = None


_WIRE: Final[Mapping[str, str]] = {
    "id": "id",
    "project_id": "projectId",
    "status": "status",
    "activity": "activity",
    "branch": "branch",
    "issue_id": "issueId",
    "workspace_path": "workspacePath",
}
_PR: Final = ("number", "url", "title", "owner", "repo", "branch")


@dataclass(frozen=True, slots=True)
class Session:
    """agent-orchestrator's Session.

    Attributes:
        id, project_id: ``<prefix>-<n>``, and the project.
        status: one of the documented statuses; two more in the dialect ``head``.
        activity: what the agent does; None if unknown.
        branch, issue_id, pr, workspace_path, runtime_handle, agent_info: None if there is none, or none yet.
        created_at, last_activity_at: aware.
        restored_at: when it was last restored; None if never.
        metadata: further fields, as texts.
    """

    id: str
    project_id: str
    status: str
    activity: str | None
    branch: str | None
    issue_id: str | None
    pr: PRInfo | None
    workspace_path: str | None
    runtime_handle: RuntimeHandle | None
    agent_info: AgentSessionInfo | None
    created_at: datetime
    last_activity_at: datetime
    restored_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The session as JSON, in agent-orchestrator's spelling; ``restoredAt`` only if it was restored."""
        found: dict[str, Any] = {wire: getattr(self, name) for name, wire in _WIRE.items()}
        found["pr"] = None if self.pr is None else _pr_to_wire(self.pr)
        found["runtimeHandle"] = None if self.runtime_handle is None else _handle_to_wire(self.runtime_handle)
        found["agentInfo"] = None if self.agent_info is None else _info_to_wire(self.agent_info)
        found["createdAt"] = format_instant(self.created_at)
        found["lastActivityAt"] = format_instant(self.last_activity_at)
        if self.restored_at is not None:
            found["restoredAt"] = format_instant(self.restored_at)
        return {**found, "metadata": dict(self.metadata)}


@dataclass(frozen=True, slots=True)
class Killed:
    """The outcome of a kill.

    Attributes:
        cleaned: whether it ended or removed anything.
        already_terminated: whether the session was over before.
        archives: the paths of what a purge archived of its work.
    """

    cleaned: bool
    already_terminated: bool
    archives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reported:
    """The outcome of an agent's report; ``reason`` says why it was refused."""

    accepted: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The outcome of a cleanup: the ids that it killed (or would have), those that it left, the errors by id, and archives by id."""

    killed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    archives: dict[str, tuple[str, ...]] = field(default_factory=dict)


def session_from(wire: Mapping[str, Any]) -> Session:
    """The session of a record (``views.orchestrator.record``) or of a flat file (``flat_files.session_of``)."""
    pr, handle, info, restored = (wire.get(name) for name in ("pr", "runtimeHandle", "agentInfo", "restoredAt"))
    return Session(
        **{name: wire[key] for name, key in _WIRE.items()},
        pr=None if pr is None else _pr_from_wire(pr),
        runtime_handle=None if handle is None else _handle_from_wire(handle),
        agent_info=None if info is None else _info_from_wire(info),
        created_at=parse_instant(wire["createdAt"]),
        last_activity_at=parse_instant(wire["lastActivityAt"]),
        restored_at=None if restored is None else parse_instant(restored),
        metadata=dict(wire["metadata"]),
    )


def is_terminal_session(session: Session) -> bool:
    """Whether a session has finished, by its status or because its agent exited: agent-orchestrator's ``isTerminalSession``."""
    return is_terminal(session.status, session.activity)


def is_restorable(session: Session, *, dialect: Dialect = "document") -> bool:
    """Whether a finished session can be restored: agent-orchestrator's ``isRestorable``, and its workspace exists."""
    return session.workspace_path is not None and can_come_back(session.status, session.activity, dialect=dialect)


def _pr_to_wire(pr: PRInfo) -> dict[str, Any]:
    return {**{name: getattr(pr, name) for name in _PR}, "baseBranch": pr.base_branch, "isDraft": pr.is_draft}


def _pr_from_wire(wire: Mapping[str, Any]) -> PRInfo:
    return PRInfo(**{name: wire[name] for name in _PR}, base_branch=wire["baseBranch"], is_draft=wire["isDraft"])


def _handle_to_wire(handle: RuntimeHandle) -> dict[str, Any]:
    return {"id": handle.id, "runtimeName": handle.runtime_name, "data": dict(handle.data)}


def _handle_from_wire(wire: Mapping[str, Any]) -> RuntimeHandle:
    data = wire.get("data")
    return RuntimeHandle(wire["id"], wire["runtimeName"], data if isinstance(data, dict) else {})


def _info_to_wire(info: AgentSessionInfo) -> dict[str, Any]:
    wire: dict[str, Any] = {"summary": info.summary, "agentSessionId": info.agent_session_id}
    if info.summary_is_fallback:
        wire["summaryIsFallback"] = True
    return wire if info.cost is None else {**wire, "cost": dict(info.cost)}


def _info_from_wire(wire: Mapping[str, Any]) -> AgentSessionInfo:
    return AgentSessionInfo(wire["summary"], wire["agentSessionId"], wire.get("summaryIsFallback", False), wire.get("cost"))
