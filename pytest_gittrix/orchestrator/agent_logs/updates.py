"""The activity of an agent that speaks the Agent Client Protocol, from its updates in the session's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pytest_gittrix.orchestrator.agent_logs.rules import ActivityRule, RecordFormat
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.observations import Activity

_UPDATES: Final = RecordFormat(
    (
        ActivityRule({"type": "turn.ended", "status": ("failed", "lost")}, "blocked"),
        ActivityRule({"type": "turn.ended"}, "ready"),
        ActivityRule({"type": "tool_call"}, "active", calls="call_id"),
        ActivityRule({"type": "tool_result"}, "active", answers="call_id"),
        ActivityRule({"type": ("turn.started", "user_message", "assistant_message", "provider_usage", "permission_decision")}, "active"),
    ),
    unit="ns",
    time="ts",
    asks=False,  # a policy decides what its agent may do
)


def acp_activity(events: Sequence[Event], now_ns: int) -> Activity | None:
    """The activity that the updates in a session's log show; None if there are none."""
    return _UPDATES.read(_newest_first(events), now_ns)


def _newest_first(events: Sequence[Event]) -> Iterator[Mapping[str, Any]]:
    for event in reversed(events):
        yield {**event.data, "type": event.type, "ts": event.ts}
