"""Gas Town: a session is one life of an agent between spawn and handoff; many of them, linked, do one piece of work.

The field names are the document's (docs/explanation/you-know-gas-town.md). A session whose identity names no agent has none here. A
member's session (BotMinter) ends when its agent's run does, however long its workspace is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pytest_gittrix.durations import instant_text
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, fold

LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "spawn": frozenset({"active"}),
    "active": frozenset({"handoff", "done", "crash", "killed"}),
    "handoff": frozenset(),
    "done": frozenset(),
    "crash": frozenset(),
    "killed": frozenset(),
}
"""Which state may follow which. What comes after an end is always another session."""

INDEX_FIELDS: Final = ("id", "agent", "started_at", "work_unit", "parent_id", "chain_id")
"""The fields of a record that lists are made from: those of a line of ``index.jsonl``."""

TOWN_SOURCES: Final[frozenset[str]] = frozenset(
    {"workspace.ready", "session.imported", "step.started", "step.completed", "promote.done", "session.ended", "life.moved"}
)
"""The stored events that make events of a town's log. Nothing else that happens in a session does."""

TOWN_TYPES: Final[Mapping[str, str]] = {
    "session_start": "feed",
    "handoff": "feed",
    "session_end": "feed",
    "session_death": "feed",
    "session_step_started": "audit",
    "session_step_completed": "audit",
}
"""The events of a town's log, each with its visibility: ``feed`` (for those who follow the town) or ``audit`` (only in the file)."""

_MINUTE: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """One step of a workflow that an agent went through, or began to.

    Attributes:
        step: its name.
        molecule_id: the workflow it belongs to, by the last event before it that named one; None without one.
        outcome: how it went, if the agent said.
        started_ns, ended_ns: when, in nanoseconds since 1970 UTC; no end if it was never completed.
        first_seq, last_seq: its first and last event. The last event of a step that was not completed is the one before it was started
            again, or the last of the log.
    """

    step: str
    molecule_id: str | None
    outcome: str | None
    started_ns: int
    ended_ns: int | None
    first_seq: int
    last_seq: int


def activity(last_ns: int | None, now_ns: int) -> str:
    """The colour for the time since an agent was last active.

    Args:
        last_ns: when it was, in nanoseconds since 1970 UTC. A time in the future counts as now.
        now_ns: what time it is.

    Returns:
        ``green`` for less than 5 minutes, ``yellow`` for less than 10, ``red`` for more, ``unknown`` if there is no time.
    """
    if last_ns is None:
        return "unknown"
    age = now_ns - last_ns
    return "green" if age < 5 * _MINUTE else "yellow" if age < 10 * _MINUTE else "red"


def state_of(state: SessionState) -> str:
    """``spawn`` until its workspace is there, then ``active``, then its outcome."""
    return state.ending or ("active" if state.workspace_present else "spawn")


def record(events: Sequence[Event]) -> dict[str, Any]:
    """The Session of the document; unknown fields are left out, except those that every session has."""
    return record_of(fold(events))


def record_of(state: SessionState) -> dict[str, Any]:
    """The same from a folded state, for a session of another system's store, which has no events."""
    known = {
        "ended_at": time_text(state.ending_ns),
        "outcome": state.ending,
        **{name: state.identity.get(name) for name in ("work_unit", "molecule_id", "step_ref")},
        "parent_id": state.lineage.parent if state.lineage is not None and state.lineage.relation != "fork" else None,
        "child_id": state.successor,
        "chain_id": state.chain,
        "cwd": state.identity.get("cwd", state.workspace),
        "branch": state.identity.get("topic_branch", state.durable_branch),
        "commits": list(state.commits) or None,
    }
    return {
        "id": state.id,
        **{name: state.identity.get(name, "") for name in ("tmux_session", "agent", "rig", "role")},
        "started_at": time_text(state.created_ns),
        **{name: value for name, value in known.items() if value is not None},
    }


def time_text(ns: int | None) -> str | None:
    """An instant in whole seconds, as the document's events have it; None for no time."""
    return None if ns is None else instant_text(ns - ns % 1_000_000_000).replace(".000", "")


def steps(events: Sequence[Event]) -> list[WorkflowStep]:
    """The steps of a session, in the order they were started (the document's phase 2).

    A step that is started again is a new row, and its completion completes the newest row. The completion of a step that was not started
    is passed over.

    Args:
        events: of one session, in order.
    """
    rows: list[WorkflowStep] = []
    running: dict[str, int] = {}
    molecule: str | None = None
    for event in events:
        match event.type:
            case "session.created" | "session.identified":
                molecule = event.data.get("identity", {}).get("molecule_id", molecule)
            case "step.started":
                name = event.data["step"]
                molecule = event.data.get("molecule_id", molecule)
                if name in running:
                    rows[running[name]] = replace(rows[running[name]], last_seq=event.seq - 1)
                running[name] = len(rows)
                rows.append(WorkflowStep(name, molecule, None, event.ts, None, event.seq, event.seq))
            case "step.completed" if event.data["step"] in running:
                row = running.pop(event.data["step"])
                rows[row] = replace(rows[row], outcome=event.data.get("outcome"), ended_ns=event.ts, last_seq=event.seq)
    for row in running.values():
        rows[row] = replace(rows[row], last_seq=events[-1].seq)
    return rows


def step_events(events: Sequence[Event], step: WorkflowStep) -> list[Event]:
    """The events of a session while a step ran, including its start and end: those that a replay of the step goes through."""
    return [event for event in events if step.first_seq <= event.seq <= step.last_seq]


def town_event(event: Event, state: SessionState) -> list[dict[str, Any]]:
    """The lines of a town's ``.events.jsonl`` for one event: none for most, two for a handoff.

    A session without an agent has an empty ``actor``. The process of ``actor_pid`` is not known and left out.

    Args:
        event: a stored event of a session.
        state: the session's state after it.
    """
    return [
        {
            "ts": time_text(event.ts),
            "source": "gt",
            "type": type,
            "actor": state.identity.get("agent", ""),
            "payload": {name: value for name, value in payload.items() if value is not None},
            "visibility": TOWN_TYPES[type],
        }
        for type, payload in _lines_of(event, state)
    ]


def _lines_of(event: Event, state: SessionState) -> list[tuple[str, dict[str, Any]]]:
    match event.type:
        case "workspace.ready" | "session.imported" if not state.ended:
            where = state.identity.get("cwd", state.workspace)
            who = {"session_id": state.id, "role": state.identity.get("role", "")}
            what = {"topic": state.task or None, "work_unit": state.identity.get("work_unit")}
            return [("session_start", {**who, **what, "cwd": where})]
        case "step.started":
            return [("session_step_started", _step_payload(event, state))]
        case "step.completed":
            return [("session_step_completed", {**_step_payload(event, state), "outcome": event.data.get("outcome")})]
        # A promotion is an end by itself; the end of the session after it is no second one.
        case "promote.done":
            return _end_lines(event, state)
        case "session.ended" if state.result is None:
            return _end_lines(event, state)
        case "life.moved" if state.run is not None and state.run.seq == event.seq:
            return _end_lines(event, state)
    return []


def _step_payload(event: Event, state: SessionState) -> dict[str, Any]:
    return {"session_id": state.id, "step": event.data["step"], "molecule_id": state.identity.get("molecule_id")}


def _end_lines(event: Event, state: SessionState) -> list[tuple[str, dict[str, Any]]]:
    outcome = state.ending
    if outcome == "crash":
        # The town knows a dead agent by the name of its terminal; one without a terminal has only the id of its session.
        name = state.identity.get("tmux_session") or state.id
        death = {"session": name, "agent": state.identity.get("agent", ""), "reason": event.data.get("reason", "crash")}
        return [("session_death", death)]
    end = ("session_end", {"session_id": state.id, "outcome": outcome})
    if outcome != "handoff":
        return [end]
    return [("handoff", {"to_session": True, "subject": state.task or None}), end]
