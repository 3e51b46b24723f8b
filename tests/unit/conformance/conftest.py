"""Fixtures of the tests of ``conformance``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_system import Program

from pytest_gittrix.testing.repos.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place.open(tmp_path / "place", files={"app.py": "one\n"}) as opened:
        yield opened


@pytest.fixture
def program(tmp_path: Path, place: Place) -> Program:
    return Program(tmp_path, place)
