"""Fixtures of the tests of ``model``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.model_client import PROTOCOLS

from pytest_gittrix.model.server import ModelServer


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as model:
        yield model


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)
