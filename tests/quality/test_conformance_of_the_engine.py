"""Our engine keeps every clause of the conformance suite, with workspaces of every kind that stands alone."""

from __future__ import annotations

import pytest

from pytest_gittrix.conformance import test_conformance
from pytest_gittrix.conformance.base.catalogue import families
from pytest_gittrix.conformance.test_conformance import *  # noqa: F403  (its test classes are run here, on systems of our own)
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
from pytest_gittrix.testing.systems.protocol import SessionSystem


@pytest.fixture(scope="class", params=["clone", "lazy", "copy"])
def gittrix_system(request: pytest.FixtureRequest) -> SessionSystem:
    """Our engine, with one kind of workspace."""
    return GitTrixSystem(request.param)


def test_every_family_of_clauses_is_run() -> None:
    classes = [one for one in vars(test_conformance).values() if isinstance(one, type) and one.__name__.startswith("Test")]
    assert {base for one in classes for base in one.__bases__} == {*families()}
