"""Fixtures of the tests of ``testing``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.crash import OLD
from support.durable_repo import make

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.world import World


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory to work in, where supervision works."""
    if reason := supported():
        pytest.skip(reason)
    return tmp_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with old contents."""
    path = tmp_path / "notes.txt"
    path.write_text(OLD)
    return path


@pytest.fixture
def durable(tmp_path: Path, clock: FrozenClock) -> Iterator[DurableRepo]:
    with DurableRepo(make(tmp_path), when=clock.now, home=tmp_path / "home") as repo:
        yield repo


@pytest.fixture
def bare(tmp_path: Path, clock: FrozenClock) -> Iterator[DurableRepo]:
    with DurableRepo(make(tmp_path, "bare", bare=True), when=clock.now, home=tmp_path / "home") as repo:
        yield repo


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world with the ``FILES`` of the test's module."""
    with World.open(tmp_path / "world", files=request.module.FILES) as world:
        yield world
