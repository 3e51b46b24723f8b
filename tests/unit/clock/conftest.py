"""Fixtures of the tests of ``clock``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gittrix.clock import SystemClock


@pytest.fixture
def system_clock() -> Iterator[SystemClock]:
    clock = SystemClock()
    yield clock
    clock.close()
