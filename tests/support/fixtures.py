"""Fixtures that tests of several folders share; a folder's own are in its ``conftest.py``. What one needs is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.acp_editor import Editor
    from support.cli import Cli
    from support.engine import Site
    from support.members import Crew
    from support.orchestrator import Fleet

    from pytest_gittrix.clock import FrozenClock
    from pytest_gittrix.engine.user_session import UserSession


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A repository and an engine. The repository holds the ``FILES`` of the test's module, or those of ``support.engine``."""
    from support import engine

    with engine.open_site(tmp_path, getattr(request.module, "FILES", engine.FILES)) as site:
        yield site


@pytest.fixture
def session(site: Site) -> UserSession:
    """A session of the site that was just started."""
    return site.start()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """A terminal in a repository."""
    from support.cli import Cli

    return Cli(tmp_path, monkeypatch, capsysbinary)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """A team with its repositories, and an engine with members."""
    from support.members import Crew

    with Crew.open(tmp_path) as crew:
        yield crew


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """An orchestrator at work."""
    from support.orchestrator import open_fleet

    with open_fleet(tmp_path) as opened:
        yield opened


@pytest.fixture
def clock() -> FrozenClock:
    """A clock that only the test moves."""
    from pytest_gittrix.clock import FrozenClock

    return FrozenClock(separate_files=False)


@pytest.fixture(scope="module")
def editor_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    """``gittrix acp``, for the editors of a module."""
    from support.acp_editor import editing

    with editing(tmp_path_factory.mktemp("editor") / "store") as editor:
        yield editor


@pytest.fixture
def editor(editor_process: Editor) -> Editor:
    """An editor that has just begun."""
    return editor_process.anew()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the worlds of worktree tools are copied from."""
    from pytest_gittrix.conformance.worktrees.base.world import make_template

    place = tmp_path_factory.mktemp("template") / "world"
    make_template(place)
    return place
