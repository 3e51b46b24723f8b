"""The power goes at any moment, on a real file system: with durability ``full``, what was reported is there afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.git import git

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.testing.faults.powercut import Cut, power_cuts, supported
from pytest_gittrix.testing.repos.history import SMALL_PROJECT, History
from pytest_gittrix.testing.repos.templates import shared_templates
from pytest_gittrix.workspaces.seed import _recent as remembered_seeds

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

SESSION = "session-0"
WORK = {"app.py": b"by the agent\n", "new/deep.py": b"x = 1\n" * 50}


@contextmanager
def engine(place: Path) -> Iterator[GitTrix]:
    """An engine that knows nothing from before, as after a boot."""
    remembered_seeds.clear()
    with GitTrix(
        place / "durable", home=place / "home", clock=FrozenClock(), sweep_interval=None, strategy="commit", ids=lambda: SESSION
    ) as opened:
        yield opened


def repository(place: Path, *, bare: bool) -> None:
    """A durable repository, and an engine's home beside it."""
    shared_templates().of(History.of(SMALL_PROJECT)).materialise(place / "durable", bare=bare)
    with engine(place):
        pass


def work(place: Path, *, bare: bool) -> None:
    """The same, and a session with work in it."""
    repository(place, bare=bare)
    with engine(place) as opened:
        session = opened.start_session("do it")
        for path, data in WORK.items():
            session.write(path, data)


def require_work(session: UserSession) -> None:
    """A session has all that its agent wrote, and nothing else."""
    assert set(session.touched_files()) == set(WORK)
    assert {path: session.read(path) for path in WORK} == WORK


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "checked-out"])
def test_a_promotion_is_there_whole_or_can_be_made_again(bare: bool) -> None:
    def promote(place: Path) -> None:
        with engine(place) as opened:
            opened.get_session(SESSION).promote()

    def check(place: Path, cut: Cut) -> None:
        with engine(place) as opened:
            state = opened.info(SESSION).state
            assert state == "promoted" or not cut.finished
            if state == "active":
                session = opened.get_session(SESSION)
                require_work(session)
                assert session.promote().warnings == ()
            assert opened.recover().problems == []
        durable = place / "durable"
        git("fsck", "--strict", "--full", cwd=durable)
        assert {path: git("show", f"main:{path}", cwd=durable) for path in WORK} == WORK
        assert bare or git("status", "--porcelain", cwd=durable) == b""
        assert [*(place / "durable").rglob("*.lock")] == []

    report = power_cuts(promote, check, prepare=lambda place: work(place, bare=bare))

    print(report)
    assert report.failures == ()
    assert report.tried > 5


def test_discarded_work_is_in_its_archive_or_still_there() -> None:
    def discard(place: Path) -> None:
        with engine(place) as opened:
            opened.get_session(SESSION).discard()

    def check(place: Path, cut: Cut) -> None:
        with engine(place) as opened:
            if opened.info(SESSION).state == "active":
                assert not cut.finished
                require_work(opened.get_session(SESSION))
                return
        record = place / "home/sessions" / SESSION
        archive, kept = record / "archive.git", f"refs/gittrix/archive/{SESSION}"
        git("fsck", "--strict", "--full", cwd=archive)
        assert {path: git("show", f"{kept}:{path}", cwd=archive) for path in WORK} == WORK
        assert "+by the agent" in (record / "archive.patch").read_text()

    report = power_cuts(discard, check, prepare=lambda place: work(place, bare=True))

    print(report)
    assert report.failures == ()
    assert report.tried > 5


def test_a_session_that_was_started_is_untouched_and_one_that_was_not_is_gone() -> None:
    def start(place: Path) -> None:
        with engine(place) as opened:
            opened.start_session("do it")

    def check(place: Path, cut: Cut) -> None:
        with engine(place) as opened:
            states = {record.id: record.state for record in opened.list_sessions()}
            assert opened.problems() == []
            assert states.get(SESSION) == "active" or not cut.finished
            if states.get(SESSION) == "active":
                assert opened.get_session(SESSION).touched_files() == []

    report = power_cuts(start, check, prepare=lambda place: repository(place, bare=True))

    print(report)
    assert report.failures == ()
    assert report.tried > 5
