"""Our engine keeps every clause of the conformance suite, with workspaces of every kind that stands alone."""

from __future__ import annotations

import os

import pytest

from pytest_gittrix.conformance import test_conformance
from pytest_gittrix.conformance.base.catalogue import families
from pytest_gittrix.conformance.families import concurrency
from pytest_gittrix.conformance.test_conformance import *  # noqa: F403  (its test classes are run here, on systems of our own)
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
from pytest_gittrix.testing.systems.protocol import SessionSystem


@pytest.fixture(scope="class", params=["clone", "lazy", "copy"])
def gittrix_system(request: pytest.FixtureRequest) -> SessionSystem:
    """Our engine, with one kind of workspace."""
    return GitTrixSystem(request.param)


@pytest.fixture(autouse=True)
def few_points_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold a promotion at four of its calls: sixteen take a quarter of a minute, and PYTEST_GITTRIX_SOAK=1 has them."""
    if os.environ.get("PYTEST_GITTRIX_SOAK") != "1":
        monkeypatch.setattr(concurrency, "POINTS_OF_AN_UPDATE", concurrency.POINTS)


def test_every_family_of_clauses_is_run() -> None:
    classes = [one for one in vars(test_conformance).values() if isinstance(one, type) and one.__name__.startswith("Test")]
    assert {base for one in classes for base in one.__bases__} == {*families()}
