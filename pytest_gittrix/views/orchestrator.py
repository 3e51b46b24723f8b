"""agent-orchestrator: a session is one agent process at work on one issue, observed from outside.

The record has the document's fields. Notifications are derived from the log, too: which one a change of status makes, and what the reaction
to it is. See docs/explanation/you-know-agent-orchestrator.md.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_gittrix.durations import instant_text
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.agent_activity import AHEAD_NS, aged
from pytest_gittrix.record.state.fold import RULES, SessionState, fold
from pytest_gittrix.record.state.observations import (
    UNKNOWN,
    Activity,
    AgentReport,
    Observations,
    ObservedPullRequest,
    observations_of,
)
from pytest_gittrix.views.orchestrator_status import LEGAL, Dialect, status

__all__ = [
    "EVENTS",
    "LEGAL",
    "POLL",
    "PRIORITIES",
    "REACTIONS",
    "Notice",
    "Reaction",
    "activity_at",
    "event_of",
    "notifications",
    "priority_of",
    "reaction_of",
    "record",
    "state_in",
]

POLL: Final = "poll"
"""The ``op`` of ``session.accessed`` where a poll found that the agent runs."""
# Identity that the record has a field for; the rest is its metadata.
_FIELDS: Final = frozenset({"project", "issue", "topic_branch", "runtime", "agent_session"})
_COST: Final[Mapping[str, tuple[str, ...]]] = {
    "inputTokens": ("input_tokens", "inputTokens", "prompt_tokens"),
    "outputTokens": ("output_tokens", "outputTokens", "completion_tokens"),
    "estimatedCostUsd": ("estimated_cost_usd", "estimatedCostUsd", "cost_usd"),
}
_LONGEST_SUMMARY: Final = 120


# The record --------------------------------------------------------------------------------------------------------------------


def state_in(events: Sequence[Event], *, dialect: Dialect = "document") -> str:
    """The status, one of those that ``orchestrator_status`` lists for the dialect."""
    return status(observations_of(events), dialect=dialect)


def activity_at(activity: Activity, now_ns: int | None) -> str | None:
    """What the agent does now, as the document names it; None if it is not known.

    Args:
        activity: the last one observed.
        now_ns: the time; an agent that was active or ready more than 5 minutes ago is idle. None gives the activity as it was.
    """
    if now_ns is None:
        return None if activity.state == UNKNOWN else activity.state
    return aged(activity, now_ns)


def record(events: Sequence[Event], *, now_ns: int | None = None, dialect: Dialect = "document") -> dict[str, Any]:
    """The Session of the document: each field it documents, null where nothing is known; ``restoredAt`` only if it was restored.

    Args:
        events: all events of the session.
        now_ns: for the activity; see ``activity_at``.
        dialect: of the status.
    """
    state, observations = fold(events), observations_of(events)
    facts = state.identity
    found = {
        "id": state.id,
        "projectId": facts.get("project", ""),
        "status": status(observations, dialect=dialect),
        "activity": activity_at(observations.activity, now_ns),
        "branch": facts.get("topic_branch", observations.pr.branch),
        "issueId": facts.get("issue", facts.get("work_unit")),
        "pr": pr_info(observations.pr),
        "workspacePath": state.workspace if state.workspace_present and not state.ended else None,
        "runtimeHandle": _handle(facts, observations),
        "agentInfo": _agent_info(facts, events),
        "createdAt": instant_text(state.created_ns),
        "lastActivityAt": instant_text(_last_activity(events, state, observations)),
    }
    if observations.session.restored_ns is not None:
        found["restoredAt"] = instant_text(observations.session.restored_ns)
    return {**found, "metadata": _metadata(facts, observations.report)}


def pr_info(pr: ObservedPullRequest) -> dict[str, Any] | None:
    """The document's PRInfo; None if there is no pull request. A text that is not known is empty, an unknown number is 0."""
    if pr.state == "none":
        return None
    return {
        "number": pr.number or 0,
        "url": pr.url or "",
        "title": pr.title or "",
        "owner": pr.owner or "",
        "repo": pr.repo or "",
        "branch": pr.branch or "",
        "baseBranch": pr.base_branch or "",
        "isDraft": pr.draft,
    }


def _handle(facts: Mapping[str, str], observations: Observations) -> dict[str, Any] | None:
    runtime = observations.runtime
    id = facts.get("tmux_session") or (None if runtime.pid is None else str(runtime.pid))
    if id is None:
        return None
    name = facts.get("runtime") or ("tmux" if "tmux_session" in facts else "process")
    data = {"pid": runtime.pid, "startTime": runtime.start_time, "confinement": runtime.confinement}
    return {"id": id, "runtimeName": name, "data": {key: value for key, value in data.items() if value is not None}}


def _agent_info(facts: Mapping[str, str], events: Sequence[Event]) -> dict[str, Any] | None:
    """The document's AgentSessionInfo; without a summary, the first message of the user, marked as a fallback."""
    summary, is_real = _summary(events)
    cost = _cost(events)
    if summary is None and "agent_session" not in facts and cost is None:
        return None
    info: dict[str, Any] = {"summary": summary, "agentSessionId": facts.get("agent_session")}
    if summary is not None and not is_real:
        info["summaryIsFallback"] = True
    return info if cost is None else {**info, "cost": cost}


def _summary(events: Sequence[Event]) -> tuple[str | None, bool]:
    """The latest summary, or the first message of the user; and whether it is a summary."""
    first: str | None = None
    for event in reversed(events):
        summary = event.data.get("summary") if event.type == "history_compaction" else None
        if isinstance(summary, str):
            return summary, True
        if event.type == "user_message":
            first = str(event.data["text"])[:_LONGEST_SUMMARY]
    return first, False


def _cost(events: Sequence[Event]) -> dict[str, float] | None:
    usage = [event.data for event in events if event.type == "provider_usage"]
    found = {name: sum(_amount(data, keys) for data in usage) for name, keys in _COST.items()}
    return found if any(found.values()) else None


def _amount(data: Mapping[str, Any], keys: tuple[str, ...]) -> float:
    values = (data.get(key) for key in keys)
    return next((value for value in values if isinstance(value, int | float) and not isinstance(value, bool)), 0)


def _last_activity(events: Sequence[Event], state: SessionState, observations: Observations) -> int:
    activity, used = observations.activity, _last_use(events, state)
    if activity.observed_ns is None or activity.seen_ns is None:
        return used
    # A time in the future counts only as far as clocks may differ.
    return max(used, min(activity.observed_ns, activity.seen_ns + AHEAD_NS))


def _last_use(events: Sequence[Event], state: SessionState) -> int:
    """When the session was last used. A poll that found its agent running extends its life, and is no use."""
    if not any(_is_poll(event) for event in events):
        return state.last_access_ns
    used = fold(events[:1]).last_access_ns
    for event in events[1:]:
        rule = RULES.get(event.type)
        if event.type == "session.activity":
            used = max(used, min(event.data["observed_ns"], event.ts))
        elif rule is not None and rule.use and not _is_poll(event):
            used = event.ts
    return used


def _is_poll(event: Event) -> bool:
    return event.type == "session.accessed" and event.data.get("op") == POLL


def _metadata(facts: Mapping[str, str], report: AgentReport | None) -> dict[str, str]:
    """Identity without a field of its own, and the agent's last report under the names that its tools use."""
    metadata = {name: value for name, value in facts.items() if name not in _FIELDS}
    if report is None:
        return metadata
    reported = {"agentReportedState": report.name, "agentReportedAt": instant_text(report.at_ns)}
    return {**metadata, **reported, **({} if report.note is None else {"agentReportedNote": report.note})}


# Notifications -----------------------------------------------------------------------------------------------------------------


EVENTS: Final[Mapping[str, str]] = {
    "working": "session.working",
    "pr_open": "pr.created",
    "ci_failed": "ci.failing",
    "review_pending": "review.pending",
    "changes_requested": "review.changes_requested",
    "approved": "review.approved",
    "mergeable": "merge.ready",
    "merged": "merge.completed",
    **{name: f"session.{name}" for name in ("needs_input", "stuck", "errored", "killed")},
}
"""The notification that a session gets a status. Other statuses make none."""

PRIORITIES: Final = ("urgent", "action", "warning", "info")

_URGENT: Final = re.compile("stuck|needs_input|errored")
_ACTION: Final = re.compile("approved|ready|merged|completed")
_WARNING: Final = re.compile("fail|changes_requested|conflicts")


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification: its type and one of ``PRIORITIES``."""

    type: str
    priority: str


@dataclass(frozen=True, slots=True)
class Reaction:
    """The default reaction to a notification.

    Attributes:
        key: its name in a configuration.
        action: ``send-to-agent`` or ``notify``.
        auto: whether it happens by itself.
        retries: how many messages the agent gets before a person is notified; None for no limit.
        after_ns: nanoseconds until a person is notified; for ``agent-stuck``, how long the state must last. None for at once.
    """

    key: str
    action: str
    auto: bool = True
    retries: int | None = None
    after_ns: int | None = None


_MINUTE: Final = 60_000_000_000
REACTIONS: Final[Mapping[str, Reaction]] = {
    "ci.failing": Reaction("ci-failed", "send-to-agent", retries=2),
    "review.changes_requested": Reaction("changes-requested", "send-to-agent", after_ns=30 * _MINUTE),
    "automated_review.found": Reaction("bugbot-comments", "send-to-agent", after_ns=30 * _MINUTE),
    "merge.conflicts": Reaction("merge-conflicts", "send-to-agent", after_ns=15 * _MINUTE),
    "merge.ready": Reaction("approved-and-green", "notify", auto=False),
    "pr.closed": Reaction("pr-closed", "notify"),
    "session.stuck": Reaction("agent-stuck", "notify", after_ns=10 * _MINUTE),
    "session.needs_input": Reaction("agent-needs-input", "notify"),
    "session.killed": Reaction("agent-exited", "notify"),
    "summary.all_complete": Reaction("all-complete", "notify"),
}
"""The default reactions by notification. In the original, ``agent-idle`` has a reaction too, and nothing that leads to it."""


def priority_of(type: str) -> str:
    """How much a notification matters: one of ``PRIORITIES``, by the words in its type."""
    if _URGENT.search(type):
        return "urgent"
    if type.startswith("summary."):
        return "info"
    if _ACTION.search(type):
        return "action"
    return "warning" if _WARNING.search(type) else "info"


def event_of(before: Observations, after: Observations, *, dialect: Dialect = "document") -> Notice | None:
    """The notification of a change: of a new status, or else of a pull request that was closed unmerged; None for neither."""
    old, new = (status(observations, dialect=dialect) for observations in (before, after))
    type = EVENTS.get(new) if new != old else None
    closed = after.pr.state == "closed" != before.pr.state
    # In the document, a session whose pull request was closed works again; its closing is what is notified.
    if closed and type in (None, "session.working"):
        type = "pr.closed"
    return None if type is None else Notice(type, priority_of(type))


def reaction_of(notice: Notice) -> Reaction | None:
    """The default reaction to a notification; None without one."""
    return REACTIONS.get(notice.type)


def notifications(events: Sequence[Event], *, dialect: Dialect = "document") -> Iterator[dict[str, Any]]:
    """All notifications of a session, oldest first, as the document's OrchestratorEvent.

    Ids follow from the sequence number in the log: a process that starts again recognises the notifications it has sent before.
    """
    observations, project = Observations(), ""
    for event in events:
        facts = event.data.get("identity") if event.type in ("session.created", "session.identified") else None
        project = project if facts is None else facts.get("project") or project
        before, observations = observations, observations_of([event], observations)
        notice = event_of(before, observations, dialect=dialect)
        if notice is not None:
            yield _notification(event, notice, project, status(before, dialect=dialect), status(observations, dialect=dialect))


def _notification(event: Event, notice: Notice, project: str, old: str, new: str) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{event.stream}:{event.seq}")),
        "type": notice.type,
        "priority": notice.priority,
        "sessionId": event.stream,
        "projectId": project,
        "timestamp": instant_text(event.ts),
        "message": f"{event.stream}: {old} -> {new}",
        "data": {"oldStatus": old, "newStatus": new},
    }
