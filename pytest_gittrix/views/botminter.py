"""BotMinter: a session is one invocation of a member's agent, in its own workspace, which is kept for a while afterwards.

The field names are the document's (docs/explanation/you-know-botminter.md). A session without a life cycle (every one that is promoted
rather than finalized) reads as a chat: it has no supervised process, and its end follows from the end of its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pytest_gittrix.durations import instant_text
from pytest_gittrix.errors import SessionNotFound
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state import lifecycle as lives
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.lifecycle import FinalizationResult, Life, Pushed

LEGAL: Final[Mapping[str, frozenset[str]]] = {
    old.capitalize(): frozenset(new.capitalize() for new in allowed) for old, allowed in lives.LEGAL.items()
}
"""Which state may follow which. A session without a life cycle can also go from Active to Removed, when it expires."""

LEGAL_AS_CODE: Final[Mapping[str, frozenset[str]]] = {old: allowed - {"Removed"} for old, allowed in LEGAL.items() if old != "Removed"}
"""The same as BotMinter's code has it, where a cleanup erases the record."""

FINALIZATION: Final[Mapping[str | None, str]] = {
    "Completed": "completed",
    "CompletedDegraded": "completed",
    "Failed": "failed",
    "Skipped": "skipped",
    None: "n/a",
}
"""The status of a finalization in a history, by its exit status; ``pending`` while one runs."""

_INTERACTIVE: Final = "Interactive"
_ENDINGS: Final[Mapping[str, str]] = {"done": "Completed", "handoff": "Completed", "crash": "Failed", "killed": "Killed"}
_BEFORE_THE_END: Final = frozenset({"Creating", "Active", "Finalizing"})


def state_of(state: SessionState) -> str:
    """The state, as the document writes it.

    A session without a life cycle is Creating until its workspace is there, then Active; then promoted is Completed, discarded is Killed
    (or the outcome that the caller gave), expired is Removed.
    """
    if state.life is not None:
        return state.life.state.capitalize()
    if not state.ended:
        return "Active" if state.workspace_present else "Creating"
    if state.state == "expired":
        return "Removed"
    return _ENDINGS[state.ending or "killed"]


def record(events: Sequence[Event], *, as_code: bool = False) -> dict[str, Any]:
    """The SessionRecord of the document, with each of its fields; null where nothing is known.

    Args:
        events: all events of the session.
        as_code: as BotMinter's code keeps the record, not as its document says: only killed sessions are retained, and removed ones have no
            record.

    Raises:
        SessionNotFound: it was removed, and ``as_code``.
        InvalidInput: there is no event.
    """
    return _record(events, fold(events), as_code)


def _record(events: Sequence[Event], state: SessionState, as_code: bool) -> dict[str, Any]:
    life = state.life
    if life is None:
        return _ordinary(state, events)
    name, since_ns = _shown(life, as_code)
    return {
        "session_id": life.id,
        "member_name": life.member,
        "session_type": life.kind.capitalize(),
        "current_state": name,
        "created_at": instant_text(life.created_ns),
        "state_transitioned_at": instant_text(since_ns),
        "agent_pid": life.agent.pid if life.agent is not None else None,
        "workspace_path": _workspace(state),
        "finalization_result": _result(life.result),
        "finalization_agent_pid": life.finalizer.pid if life.finalizer is not None else None,
    }


def history_row(events: Sequence[Event], *, as_code: bool = False) -> dict[str, Any]:
    """The row of a session in a history. Arguments and errors as of ``record``.

    Returns:
        ``session_id``, ``member``, ``session_type``, ``state``, ``exit_normal`` (only what completed ended normally),
        ``finalization_status`` (``completed``, ``failed``, ``skipped``, ``n/a`` or ``pending``), ``started_at``, ``ended_at``.
    """
    return _row(events, fold(events), as_code)


def _row(events: Sequence[Event], state: SessionState, as_code: bool) -> dict[str, Any]:
    record, life = _record(events, state, as_code), state.life
    result = record["finalization_result"]
    running = record["current_state"] == "Finalizing"
    ended_ns = (_since(state, events) if state.ended else None) if life is None else life.ended_ns
    return {
        "session_id": record["session_id"],
        "member": record["member_name"],
        "session_type": record["session_type"],
        "state": record["current_state"],
        "exit_normal": record["current_state"] == "Completed" if life is None else life.ended == "completed" and not running,
        "finalization_status": "pending" if running else FINALIZATION[result and result["exit_status"]],
        "started_at": record["created_at"],
        "ended_at": None if ended_ns is None or running else instant_text(ended_ns),
    }


def history(
    sessions: Iterable[Sequence[Event]], *, member: str | None = None, since_ns: int | None = None, as_code: bool = False
) -> list[dict[str, Any]]:
    """The rows of the sessions that have ended, the newest end first, then by id.

    Args:
        sessions: the events of each.
        member: only those of one member.
        since_ns: only those that came into their state then or later, in nanoseconds since 1970 UTC.
        as_code: as in ``record``; removed sessions are left out then.
    """
    rows = []
    for events in sessions:
        state = fold(events)
        life = state.life
        if as_code and life is not None and life.state == "removed":
            continue
        row = _row(events, state, as_code)
        since = _since(state, events) if life is None else _shown(life, as_code)[1]
        if row["state"] in _BEFORE_THE_END or member not in (None, row["member"]) or (since_ns is not None and since < since_ns):
            continue
        rows.append(row)
    return sorted(sorted(rows, key=lambda row: row["session_id"]), key=lambda row: row["ended_at"], reverse=True)


def _shown(life: Life, as_code: bool) -> tuple[str, int]:
    """The name of a life's state, and since when it is in it."""
    if as_code and life.state == "removed":
        raise SessionNotFound(
            f"Session {life.id} has no record any more.",
            why="It was removed, and BotMinter's code erases a record with its workspace.",
            fix="Omit as_code: the document's record stays.",
        )
    if as_code and life.state == "retained" and life.ended in ("completed", "failed"):
        return life.ended.capitalize(), life.ended_ns or life.since_ns
    return life.state.capitalize(), life.since_ns


def _ordinary(state: SessionState, events: Sequence[Event]) -> dict[str, Any]:
    result = None
    if state.result is not None:
        name = (state.durable_path or state.durable_ref).rstrip("/").rpartition("/")[2]
        result = FinalizationResult("Completed", (Pushed(name, state.result.branch),))
    return {
        "session_id": state.id,
        "member_name": state.identity.get("agent", ""),
        "session_type": _INTERACTIVE,
        "current_state": state_of(state),
        "created_at": instant_text(state.created_ns),
        "state_transitioned_at": instant_text(_since(state, events)),
        "agent_pid": None,
        "workspace_path": _workspace(state),
        "finalization_result": _result(result),
        "finalization_agent_pid": None,
    }


def _workspace(state: SessionState) -> str | None:
    """Where it is; null once it is gone."""
    return None if state.ended and not state.workspace_present else state.workspace


def _since(state: SessionState, events: Sequence[Event]) -> int:
    if state.ended:
        return state.updated_ns if state.ended_ns is None else state.ended_ns
    return next((event.ts for event in events if event.type == "workspace.ready"), state.created_ns)


def _result(result: FinalizationResult | None) -> dict[str, Any] | None:
    """The document's FinalizationResult; null until a finalization is over."""
    if result is None or result.exit_status is None:
        return None
    return {
        "exit_status": result.exit_status,
        "committed_repos": [{"repo_name": one.repository, "branch": one.branch} for one in result.committed_repos],
        "pushed_branches": [one.branch for one in result.pushed_branches],
        "recovery_branches": [one.branch for one in result.recovery_branches],
        "github_issue_urls": list(result.github_issue_urls),
    }
