"""Fixtures of the tests of ``record``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.log import STREAM

from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is; no file yet."""
    return tmp_path / "events.jsonl"


@pytest.fixture
def log(path: Path) -> EventLog:
    """A log without events."""
    return EventLog(path, STREAM, durability="fast")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store without sessions."""
    return Store(tmp_path / "sessions", durability="fast")


@pytest.fixture
def index(store: Store) -> Index:
    """An index that keeps a file from the first session on."""
    return Index(store, persist_from=0)
