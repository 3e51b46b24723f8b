"""Fixtures of the tests of ``quality``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scene import scratch


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory / "scene"
