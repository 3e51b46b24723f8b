"""Gas Town: a session is one life of an agent between spawn and handoff; many of them, linked, do one piece of work (session-systems 2.1).

The document's field names. A session that is not told who works in it has no agent, and none is made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_gittrix.record.events import Event
from pytest_gittrix.record.state import SessionState, fold
from pytest_gittrix.timetext import format_instant, instant_at

LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "spawn": frozenset({"active"}),
    "active": frozenset({"handoff", "done", "crash", "killed"}),
    "handoff": frozenset(),
    "done": frozenset(),
    "crash": frozenset(),
    "killed": frozenset(),
}
"""Which state may follow which. What comes after an end is always another session."""

_OUTCOMES: Final[Mapping[str, str]] = {"promoted": "done", "discarded": "killed", "expired": "killed"}


def outcome_of(state: SessionState) -> str | None:
    """How the session ended: as somebody said, or as it follows from what became of its work; None while it lives."""
    if not state.ended:
        return None
    return state.outcome or _OUTCOMES[state.state]


def state_of(state: SessionState) -> str:
    """``spawn`` until its workspace is there, then ``active``, then its outcome."""
    return outcome_of(state) or ("active" if state.workspace_present else "spawn")


def record(events: Sequence[Event]) -> dict[str, Any]:
    """The Session of the document; what is not known is left out, but for the facts that every session has."""
    state = fold(events)
    known = {
        "ended_at": _time(state.ended_ns),
        "outcome": outcome_of(state),
        **{name: state.identity.get(name) for name in ("work_unit", "molecule_id", "step_ref")},
        "parent_id": state.lineage.parent if state.lineage is not None else None,
        "child_id": state.successor,
        "chain_id": state.chain,
        "cwd": state.identity.get("cwd", state.workspace),
        "branch": state.identity.get("branch", state.durable_branch),
        "commits": list(state.commits) or None,
    }
    return {
        "id": state.id,
        **{name: state.identity.get(name, "") for name in ("tmux_session", "agent", "rig", "role")},
        "started_at": _time(state.created_ns),
        **{name: value for name, value in known.items() if value is not None},
    }


def index_line(events: Sequence[Event]) -> dict[str, Any]:
    """The line of ``index.jsonl``: the few fields that lists are made from."""
    wanted = ("id", "agent", "started_at", "work_unit", "parent_id", "chain_id")
    return {name: value for name, value in record(events).items() if name in wanted}


def _time(ns: int | None) -> str | None:
    """Whole seconds, as the document's events have them."""
    return None if ns is None else format_instant(instant_at(ns - ns % 1_000_000_000)).replace(".000", "")
