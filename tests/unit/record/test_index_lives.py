"""The index and sessions with a life: they are found by state and member, and no log of another session is read for that."""

from __future__ import annotations

from typing import Any

import pytest
from support.life import OPENED

from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store
from tests.unit.record.test_index import NOW, start


def live(store: Store, id: str, *moves: str, member: str = "alice", ts: int = NOW) -> None:
    """A session that went through some states."""
    store.create(id)
    log = store.log(id)
    log.append("session.opened", {**OPENED, "member": member}, ts=ts)
    if moves:
        log.append("workspace.ready", {"path": "/w"}, ts=ts)
    for to in moves:
        log.append("life.moved", {"to": to}, ts=ts)


def tell(store: Store, id: str, type: str, **data: Any) -> None:
    """One more event of a session."""
    store.log(id).append(type, data, ts=NOW)


def test_lives_are_found_by_state_and_member_oldest_first(store: Store, index: Index) -> None:
    start(store, "ordinary")
    live(store, "c", "active", ts=NOW - 1000)
    live(store, "b", "active", "killed", "retained", member="bob")
    live(store, "a", "active")
    index.sync()

    assert index.lives() == ["c", "a", "b"]
    assert index.lives(["active"]) == ["c", "a"]
    assert index.lives(["active", "retained"], member="bob") == ["b"]
    assert index.lives(["creating"]) == []
    assert index.lives(member="nobody") == []


def test_a_state_that_changed_is_the_one_that_is_found(store: Store, index: Index) -> None:
    live(store, "a", "active")
    index.sync()
    tell(store, "a", "life.moved", to="finalizing")
    index.sync()
    assert (index.lives(["active"]), index.lives(["finalizing"])) == ([], ["a"])


def test_a_start_that_never_finished_has_no_life(store: Store, index: Index) -> None:
    live(store, "a")
    index.sync()
    assert index.lives() == ["a"]
    tell(store, "a", "session.ended", state="discarded")
    index.sync()
    assert index.lives() == []


def test_a_start_and_a_removal_that_were_begun_are_unsettled_and_nothing_else_of_a_life(store: Store, index: Index) -> None:
    live(store, "starting")
    live(store, "hydrated")
    tell(store, "hydrated", "workspace.ready", path="/w")
    live(store, "running", "active")
    live(store, "finalizing", "active", "finalizing")
    live(store, "kept", "active", "completed", "retained")
    live(store, "going", "active", "completed", "retained", "removed")
    live(store, "gone", "active", "completed", "retained", "removed")
    tell(store, "gone", "workspace.removed")
    index.sync()
    assert index.unsettled() == ["going", "hydrated", "starting"]


def test_asking_for_lives_reads_no_log(store: Store, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        start(store, f"ordinary-{number}")
    live(store, "a", "active")
    index.sync()
    read: list[str] = []
    reading = EventLog.read

    def note(self: EventLog, *options: Any) -> Any:
        read.append(str(self.path))
        return reading(self, *options)

    monkeypatch.setattr(EventLog, "read", note)
    index.sync()
    assert index.lives(["active"]) == ["a"]
    assert read == []
