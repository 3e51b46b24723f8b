"""Pixir: a session is one conversation; its log is the truth and it never ends (docs/explanation/you-know-pixir.md).

Files, promotions and ends are left out, and the other events are numbered from 0, as in a log of Pixir.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_gittrix.durations import instant_text
from pytest_gittrix.record.eventlog.events import Event, path_of
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION, ROLE
from pytest_gittrix.record.state.fold import SessionState, fold

LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "idle": frozenset({"turn running"}),
    "turn running": frozenset({"idle"}),
}
"""Which state may follow which: the only state of a session is whether a turn runs, and no state is the last one."""


def state_of(state: SessionState) -> str:
    """``idle``, or ``turn running``."""
    return "idle" if state.turn is None else "turn running"


def history(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The canonical events in Pixir's envelope, in order; ids follow from the sequence numbers, so that the same log gives the same ids."""
    canonical = [event for event in events if event.type in CONVERSATION or is_fork(event)]
    return [
        {
            "id": hashlib.sha256(f"{event.stream}:{event.seq}".encode()).hexdigest()[:16],
            "session_id": event.stream,
            "seq": seq,
            "ts": instant_text(event.ts),
            "type": event.type if event.type in CONVERSATION else "session_fork",
            "data": dict(event.data) if event.type in CONVERSATION else _fork(event, events),
        }
        for seq, event in enumerate(canonical)
    ]


def is_fork(event: Event) -> bool:
    """Whether an event is the beginning of a session that was forked from another."""
    return event.type == "session.created" and event.data.get("lineage", {}).get("relation") == "fork"


def _fork(event: Event, events: Sequence[Event]) -> dict[str, Any]:
    """The data of a child's first event. The parent's workspace is left out, since only the parent's log has it."""
    lineage = event.data["lineage"]
    ready = next((later.seq for later in events if later.type == "workspace.ready"), len(events))
    taken = [later for later in events if later.seq < ready and later.type in CONVERSATION and later.type != "branch_summary"]
    return {
        "parent_session_id": lineage["parent"],
        "fork_root_session_id": lineage["root"],
        "forked_to_seq": lineage["said"] - 1,
        "from_seq": 0,
        "replay_event_count": len(taken),
        "child_workspace": path_of(event.data, "workspace"),
        "strategy": "replay_v1",
    }


def record(events: Sequence[Event]) -> dict[str, Any]:
    """The fields of ``info``: id, workspace, role, the next seq, the root of its forks, and whether a turn runs."""
    state = fold(events)
    return {
        "id": state.id,
        "workspace": state.workspace,
        "role": state.identity.get("role", ROLE),
        "seq": state.said,
        "fork_root_session_id": state.root,
        "turn_running?": state.turn is not None,
    }
