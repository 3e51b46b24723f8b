"""Fixtures of the tests of ``os_level``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gittrix.os_level.safe_dir import SafeDir


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_bytes(b"outside")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def guarded(root: Path) -> Iterator[SafeDir]:
    with SafeDir.open(root) as directory:
        yield directory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the lock file is; none yet."""
    return tmp_path / ".lock"
