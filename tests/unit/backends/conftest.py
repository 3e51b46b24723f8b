"""A remote with an engine on it, for the tests of every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.remote import WIRES, Far, Wire, open_far


@pytest.fixture(params=WIRES)
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Far]:
    """A remote behind ``file://`` and behind HTTP, in turn."""
    wire: Wire = request.param
    with open_far(tmp_path, wire) as opened:
        yield opened


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Far]:
    """A remote behind ``file://``."""
    with open_far(tmp_path) as opened:
        yield opened


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Far]:
    """A remote behind HTTP, which requires a token."""
    with open_far(tmp_path, "http") as opened:
        yield opened
