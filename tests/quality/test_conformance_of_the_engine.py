"""Our engine keeps every clause of the conformance suite, with workspaces of every kind that stands alone.

``PYTEST_GITTRIX_SOAK=1`` also runs all of them on overlays, of which the clauses of files are run always.
"""

from __future__ import annotations

import pytest
from support.scene import SOAK

from fixtures.broken_systems.judging import clauses, complaint
from pytest_gittrix.confine.levels import missing_layers
from pytest_gittrix.conformance import test_conformance
from pytest_gittrix.conformance.base.catalogue import families
from pytest_gittrix.conformance.families import concurrency
from pytest_gittrix.conformance.test_conformance import *  # noqa: F403  (its test classes are run here, on systems of our own)
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
from pytest_gittrix.testing.systems.protocol import SessionSystem

KINDS = ("clone", "lazy", "copy")
OVERLAY = GitTrixSystem("overlay")
OF_FILES = [
    code for code, (clause, _, _) in clauses().items() if clause.family in ("ISO", "OVL", "NAM") and clause.needs <= OVERLAY.capabilities
]
"""The clauses of what an agent finds and writes, which is where an overlay differs from the other kinds."""


@pytest.fixture(scope="module")
def no_overlays(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Why no overlay can be mounted here; empty if one can."""
    return missing_layers(str(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="class", params=[*KINDS, "overlay"] if SOAK else KINDS)
def gittrix_system(request: pytest.FixtureRequest, no_overlays: str) -> SessionSystem:
    """Our engine, with one kind of workspace."""
    if request.param == "overlay" and no_overlays:
        pytest.skip(no_overlays)
    return GitTrixSystem(request.param)


@pytest.fixture(autouse=True)
def few_points_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold a promotion at four of its calls: sixteen take a quarter of a minute, and PYTEST_GITTRIX_SOAK=1 has them."""
    if not SOAK:
        monkeypatch.setattr(concurrency, "POINTS_OF_AN_UPDATE", concurrency.POINTS)


@pytest.mark.skipif(SOAK, reason="all of its clauses are run")
@pytest.mark.parametrize("code", OF_FILES)
def test_overlays_keep_the_clauses_of_files(code: str, no_overlays: str) -> None:
    if no_overlays:
        pytest.skip(no_overlays)

    assert complaint(OVERLAY, code) is None


def test_every_family_of_clauses_is_run() -> None:
    classes = [one for one in vars(test_conformance).values() if isinstance(one, type) and one.__name__.startswith("Test")]
    assert {base for one in classes for base in one.__bases__} == {*families()}
