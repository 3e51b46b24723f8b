"""Fixtures of the tests of ``commands``."""

from __future__ import annotations

import pytest
from support.cli import Cli


@pytest.fixture
def id_(cli: Cli) -> str:
    return cli.start()
