"""Fixtures of the tests of ``server``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.daemon import DaemonClient, Staff, serving


@pytest.fixture
def daemon(staff: Staff) -> Iterator[DaemonClient]:
    with serving(staff.settings) as asked:
        yield asked
