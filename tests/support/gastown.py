"""Sessions of Gas Town as their logs have them: written event by event, with times of the test's choosing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from support.events import CREATED

from pytest_gittrix.durations import ns_of
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.store.store import Store

START = datetime(2030, 1, 1, tzinfo=UTC)
TOAST = {"agent": "gastown/polecats/Toast", "rig": "gastown", "role": "polecat", "tmux_session": "gt-Toast"}


def ns_at(minute: float) -> int:
    """So many minutes after ``START``."""
    return ns_of(START + timedelta(minutes=minute))


def add(store: Store, id: str, minute: float, type: str, **data: Any) -> Event:
    """Append an event to a session's log."""
    return store.log(id).append(type, data, ts=ns_at(minute))


def born(store: Store, id: str, minute: float = 0, *, ready: bool = True, **created: Any) -> str:
    """A session of Toast, if nobody else is told, with its workspace."""
    store.create(id)
    store.log(id).append("session.created", {**CREATED, "identity": TOAST, **created}, ts=ns_at(minute))
    if ready:
        add(store, id, minute, "workspace.ready", path="/w")
    return id


def events_of(store: Store, id: str) -> list[Event]:
    """A session's events."""
    return store.log(id).read()
