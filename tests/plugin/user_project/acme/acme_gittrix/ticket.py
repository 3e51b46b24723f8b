"""A view: a session as a ticket of Acme's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def record(events: Sequence[Any]) -> dict[str, Any]:
    """Return the ticket of a session."""
    return {"ticket": events[0].stream, "state": state_in(events)}


def state_in(events: Sequence[Any]) -> str:
    """Return the state of the ticket."""
    return "closed" if any(event.type == "session.ended" for event in events) else "open"
