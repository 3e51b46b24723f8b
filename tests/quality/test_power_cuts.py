"""The power goes at any moment, on a real file system: with durability ``full``, what was reported is there afterwards.

The store and the person's repository are on one disk or on two. Of two disks each loses what was not synced there, or one of them has
received everything. A normal run plays the hardest of these; ``PYTEST_GITTRIX_SOAK=1`` plays all, on every file system that is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest
from support.engine import passed
from support.git import git
from support.scene import SOAK

from fixtures.broken_systems.plain import PlainSystem
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.git.consolidation import MOST_PACKS
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.powercut import Cut, power_cuts, supported
from pytest_gittrix.testing.repos.history import SMALL_PROJECT, History
from pytest_gittrix.testing.repos.templates import shared_templates
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.workspaces.seeds.seed import _recent as remembered_seeds

pytestmark = [pytest.mark.needs_root, pytest.mark.skipif(supported() is not None, reason=str(supported()))]

Durability = Literal["full", "fast"]
SESSION = "session-0"
WORK = {"app.py": b"by the agent\n", "new/deep.py": b"x = 1\n" * 50, "new/deeper.py": b"y = 2\n" * 50, "added.py": b"z = 3\n"}

ONE_DISK: Mapping[str, Any] = {}
TWO_DISKS: Mapping[str, Any] = {"apart": "work"}
DISKS: Mapping[str, Mapping[str, Any]] = {
    "one": ONE_DISK,
    "two": TWO_DISKS,
    "two, the store written back": {**TWO_DISKS, "written_back": "."},
    "two, the repository written back": {**TWO_DISKS, "written_back": "work"},
    **({f"two, {name}": {**TWO_DISKS, "filesystem": name} for name in ("xfs", "btrfs") if supported(name) is None} if SOAK else {}),
}


def durable_in(place: Path) -> Path:
    """Where the person's repository is: on the second disk, if there is one."""
    return place / "work/durable" if (place / "work").is_dir() else place / "durable"


@contextmanager
def engine(place: Path, durability: Durability = "full") -> Iterator[GitTrix]:
    """An engine that knows nothing from before, as after a boot."""
    remembered_seeds.clear()
    with GitTrix(
        durable_in(place),
        home=place / "home",
        clock=FrozenClock(),
        sweep_interval=None,
        strategy="commit",
        ids=lambda: SESSION,
        durability=durability,
    ) as opened:
        yield opened


def leftovers(durable: Path) -> list[Path]:
    """What a landing makes and takes away again."""
    return [path for path in durable.rglob("*") if path.suffix in (".lock", ".keep") or "gittrix-" in path.name]


def repository(place: Path, *, bare: bool) -> None:
    """A durable repository, and an engine's home beside it."""
    shared_templates().of(History.of(SMALL_PROJECT)).materialise(durable_in(place), bare=bare)
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


@pytest.mark.parametrize(
    ("bare", "disks"),
    [(bare, disks) for bare in (True, False) for disks in DISKS]
    if SOAK
    else [(True, "one"), (False, "one"), (True, "two"), (False, "two")],
)
def test_a_promotion_is_there_whole_or_can_be_made_again(bare: bool, disks: str) -> None:
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
        durable = durable_in(place)
        git("fsck", "--strict", "--full", cwd=durable)
        assert {path: git("show", f"main:{path}", cwd=durable) for path in WORK} == WORK
        assert bare or git("status", "--porcelain", cwd=durable) == b""
        assert leftovers(durable) == []

    report = power_cuts(promote, check, prepare=lambda place: work(place, bare=bare), **DISKS[disks])

    print(report)
    assert report.failures == ()
    assert report.tried > 5


@pytest.mark.parametrize("durability", ["full", "fast"])
def test_packs_that_become_one_lose_nothing(durability: Durability) -> None:
    earlier = [b"%d\n" % number for number in range(MOST_PACKS)]

    def prepare(place: Path) -> None:
        work(place, bare=True)
        for data in earlier:
            pack = build_pack({SHA1.hash_object("blob", data): ("blob", data)}, SHA1)
            install_pack(str(durable_in(place) / "objects"), pack, mode=0o444)

    def promote(place: Path) -> None:
        with engine(place, durability) as opened:
            assert "land:consolidated" in passed(opened.get_session(SESSION).promote)

    def check(place: Path, _cut: Cut) -> None:
        for data in earlier:
            assert git("cat-file", "blob", SHA1.hash_object("blob", data), cwd=durable_in(place)) == data

    report = power_cuts(promote, check, prepare=prepare)

    print(report)
    assert report.failures == ()
    assert report.tried > 2


def test_a_promotion_whose_record_was_not_synced_is_lost() -> None:
    """An engine that forgets only to sync its log: the commit survives, and the session does not know of it."""

    def promote(place: Path) -> None:
        with patch.object(EventLog, "_sync", lambda *_arguments, **_options: None), engine(place) as opened:
            opened.get_session(SESSION).promote()

    def check(place: Path, cut: Cut) -> None:
        if cut.finished:
            with engine(place) as opened:
                assert opened.info(SESSION).state == "promoted"

    report = power_cuts(promote, check, prepare=lambda place: work(place, bare=True))

    assert [failure.call for failure in report.failures] == ["the end"]


def test_a_session_system_that_syncs_nothing_loses_a_promotion_that_it_reported() -> None:
    """Its stage stays open over the cuts; each check asks an engine that is opened after one."""
    states = []
    with ExitStack() as closing:
        stages: list[Stage] = []

        def prepare(place: Path) -> None:
            stages.append(closing.enter_context(Stage.open(PlainSystem(), place / "stage")))
            session = stages[0].start()
            session.write("app.py", WORK["app.py"])
            stages[0].gittrix.close()

        def promote(_place: Path) -> None:
            engine = stages[0].reopen()
            [session] = engine.states()
            engine.get_session(session).promote()

        def check(_place: Path, cut: Cut) -> None:
            if cut.finished:
                states.extend(stages[0].reopen().states().values())

        power_cuts(promote, check, prepare=prepare)

    assert states == ["active"]


@pytest.mark.parametrize("at", ["land:moved", "worktree:files-written", "promote:swapped"] if SOAK else ["worktree:files-written"])
def test_a_recovery_that_a_power_cut_ends_is_finished_by_the_next_one(at: str) -> None:
    def killed(place: Path) -> None:
        work(place, bare=False)

        def promote() -> None:
            with engine(place) as opened:
                opened.get_session(SESSION).promote()

        Crash().at(at, promote)

    def recover(place: Path) -> None:
        with engine(place):
            pass

    def check(place: Path, cut: Cut) -> None:
        with engine(place) as opened:
            assert opened.info(SESSION).state == "promoted" or not cut.finished
            assert opened.recover().problems == []
            if opened.info(SESSION).state == "active":
                opened.get_session(SESSION).promote()
        durable = durable_in(place)
        assert git("status", "--porcelain", cwd=durable) == b""
        assert leftovers(durable) == []

    report = power_cuts(recover, check, prepare=killed, **TWO_DISKS)

    print(report)
    assert report.failures == ()
    assert report.tried > 3


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
