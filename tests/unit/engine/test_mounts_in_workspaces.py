"""What somebody mounted in a workspace is somebody's: however its session ends, the files are there afterwards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.engine import Site, open_site

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.os_level import linux
from pytest_gittrix.testing.faults.small_disks import run_on_small_disk, supported

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))


def promote(_: Site, session: UserSession) -> None:
    session.promote(files=["app.py"])


def discard(_: Site, session: UserSession) -> None:
    session.discard()


def sweep(site: Site, session: UserSession) -> None:
    site.clock.advance(timedelta(days=30))
    assert [*site.engine.sweep()] == [session.id]


@pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
@pytest.mark.parametrize("end", [promote, discard, sweep])
def test_a_persons_directory_that_is_mounted_in_a_workspace_keeps_its_files(end: Callable[[Site, UserSession], None], kind: str) -> None:
    def use(disk: Path) -> None:
        thesis = disk / "mine" / "thesis.txt"
        thesis.parent.mkdir()
        thesis.write_text("years of work")
        with open_site(disk) as site:
            session = site.start(workspace=kind)
            session.write("app.py", "print('v2')\n")
            place = Path(session.workspace_path, "src", "mounted")
            place.mkdir()
            linux.mount(str(thesis.parent), str(place), None, linux.MS_BIND)

            end(site, session)
            trash = site.engine.services.resources.trash
            trash.wait()
            left = trash.empty()

            assert thesis.read_text() == "years of work"
            assert site.state(session.id).ended
            assert not Path(session.workspace_path).exists()
            (stays,) = (Path(one.filename) for one in left)
            assert (stays.name, stays.parent.name, stays.parents[2].name) == ("mounted", "src", ".trash")
            assert list(stays.parents[1].iterdir()) == [stays.parent]

            linux.unmount(str(stays))
            assert trash.empty() == []
            assert list((site.store / ".trash").iterdir()) == []
            assert thesis.read_text() == "years of work"

    run_on_small_disk(use, "8m")
