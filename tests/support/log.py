"""What the tests of the log share."""

from __future__ import annotations

from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.log import EventLog

NOW = 1_893_456_000_000_000_000
STREAM = "sess_a"


def write(log: EventLog, name: str = "a") -> Event:
    """Append the event that ``name`` was written."""
    return log.append("session.write", {"path": name, "op": "write"}, ts=NOW, actor="agent")
