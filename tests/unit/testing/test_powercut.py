"""Power cuts on a real file system: what was not synced is gone, what was is there; and our own promotion is either done or not."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.testing.faults import powercut
from pytest_gittrix.testing.faults.powercut import Cut, PowerCuts, power_cuts, supported
from pytest_gittrix.testing.repos.history import SMALL_PROJECT, History
from pytest_gittrix.testing.repos.templates import shared_templates
from pytest_gittrix.workspaces.seeds.seed import _recent as remembered_seeds

OLD, NEW = b"old contents\n" * 100, b"new contents\n" * 200
WORK = {"app.py": b"print('by the agent')\n", "new/deep.py": b"x = 1\n" * 50}

needs_power = pytest.mark.skipif(supported() is not None, reason=str(supported()))


def prepare(disk: Path) -> None:
    (disk / "notes.txt").write_bytes(OLD)


def write(path: Path, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, data)
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def save(disk: Path, *, sync_file: bool = True, sync_directory: bool = True) -> None:
    """Replace the notes by renaming, with the syncs that are asked for."""
    write(disk / "notes.tmp", NEW, sync=sync_file)
    os.rename(disk / "notes.tmp", disk / "notes.txt")
    if sync_directory:
        descriptor = os.open(disk, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def whole(disk: Path, cut: Cut) -> None:
    """The notes are the old or the new ones; the new ones once the program has ended."""
    assert (disk / "notes.txt").read_bytes() in ([NEW] if cut.finished else [OLD, NEW])


@pytest.mark.needs_root
@needs_power
def test_a_save_that_syncs_file_and_directory_survives_every_cut() -> None:
    report = power_cuts(save, whole, prepare=prepare)

    assert report.verify() is report
    assert (report.what, report.calls) == ("images", 5)
    assert report.tried >= 3


@pytest.mark.needs_root
@needs_power
def test_a_save_that_never_syncs_is_lost_although_it_had_ended() -> None:
    report = power_cuts(lambda disk: save(disk, sync_file=False, sync_directory=False), whole, prepare=prepare)

    assert [(failure.at, failure.call) for failure in report.failures] == [(4, "the end")]
    assert report.failures[0].replay == "power_cuts(run, check, prepare=prepare, filesystem='ext4', points=[4])"


@pytest.mark.needs_root
@needs_power
def test_a_rename_that_is_synced_before_its_contents_leaves_an_empty_file() -> None:
    sizes = set()

    def look(disk: Path, cut: Cut) -> None:
        sizes.add((disk / "notes.txt").stat().st_size)

    def run(disk: Path) -> None:
        save(disk, sync_file=False)

    power_cuts(run, look, prepare=prepare, options="noauto_da_alloc")
    assert sizes == {len(OLD), 0}


@pytest.mark.needs_root
@needs_power
def test_a_check_says_where_the_power_went_and_what_the_program_did(capfd: pytest.CaptureFixture[str]) -> None:
    cuts: list[Cut] = []

    def look(disk: Path, cut: Cut) -> None:
        cuts.append(cut)
        (disk / "mine.txt").write_text("a check may write")

    report = power_cuts(["sh", "-c", "echo begun; echo new > notes.txt; sync notes.txt; mkdir d"], look, prepare=prepare)

    assert report.verify()
    assert [cut.finished for cut in cuts] == [False] * (len(cuts) - 1) + [True]
    assert (cuts[-1].at, cuts[-1].call, cuts[-1].run.stdout) == (report.calls + 1, None, b"begun\n")
    assert cuts[0].call is not None
    assert cuts[0].call.path is not None


@pytest.mark.needs_root
@needs_power
def test_images_that_equal_the_one_before_are_checked_once() -> None:
    def run(disk: Path) -> None:
        for name in "abcdef":
            (disk / name).mkdir()

    assert power_cuts(run, lambda disk, cut: not (disk / "a").exists()).verify().tried == 2


@pytest.mark.needs_root
@needs_power
def test_of_two_disks_each_loses_for_itself_what_was_not_synced_there() -> None:
    def run(disk: Path) -> None:
        write(disk / "here.txt", NEW, sync=True)
        write(disk / "there/apart.txt", NEW, sync=False)

    def left(written_back: str | None) -> list[str]:
        found: list[list[str]] = []

        def look(disk: Path, cut: Cut) -> None:
            found.append([name for name in ("here.txt", "there/apart.txt") if (disk / name).exists()])

        power_cuts(run, look, apart="there", written_back=written_back).verify()
        return found[-1]

    assert left(None) == left(".") == ["here.txt"]
    assert left("there") == ["here.txt", "there/apart.txt"]


@pytest.mark.needs_root
@needs_power
def test_a_failure_on_two_disks_names_both_in_its_replay() -> None:
    report = power_cuts(save, lambda disk, cut: not cut.finished, prepare=prepare, apart="there", written_back="there")

    assert [failure.replay for failure in report.failures] == [
        "power_cuts(run, check, prepare=prepare, apart='there', written_back='there', filesystem='ext4', points=[6])"
    ]


def test_a_disk_that_there_is_not_is_not_written_back() -> None:
    with pytest.raises(InvalidInput, match="'there' is neither disk"):
        power_cuts(save, whole, written_back="there")


@pytest.mark.needs_root
@needs_power
def test_only_the_points_asked_for_are_checked() -> None:
    seen = []
    progress = []

    def look(disk: Path, cut: Cut) -> None:
        seen.append(cut.at)
        whole(disk, cut)

    power_cuts(save, look, prepare=prepare, points=[6, 1], progress=lambda *now: progress.append(now)).verify()
    assert seen == [1, 6]
    assert progress == [(1, 2, 0), (2, 2, 0)]
    with pytest.raises(InvalidInput, match="There is no point 9"):
        power_cuts(save, whole, prepare=prepare, points=[9])


@pytest.mark.needs_root
@needs_power
def test_a_program_that_fails_by_itself_is_refused() -> None:
    with pytest.raises(InvalidInput, match="exited with 7 without any fault"):
        power_cuts(["sh", "-c", "exit 7"], whole)


@pytest.mark.needs_root
@needs_power
def test_nothing_stays_mounted_however_it_ends() -> None:
    def hold(disk: Path, cut: Cut) -> None:
        held.append((str(disk), os.open(disk / "notes.txt", os.O_RDONLY)))
        raise KeyboardInterrupt

    held: list[tuple[str, int]] = []
    with pytest.raises(KeyboardInterrupt):
        power_cuts(save, hold, prepare=prepare)
    where, descriptor = held[0]
    assert where not in Path("/proc/self/mounts").read_text()
    assert not os.path.exists(where)
    os.close(descriptor)


@pytest.mark.needs_root
@needs_power
def test_a_file_that_a_check_leaves_open_does_not_change_what_the_next_one_sees() -> None:
    held: list[int] = []

    def hold(disk: Path, cut: Cut) -> None:
        held.append(os.open(disk / "notes.txt", os.O_RDWR))
        whole(disk, cut)
        (disk / "notes.txt").write_bytes(b"seen")

    try:
        assert power_cuts(save, hold, prepare=prepare).verify().tried == len(held)
    finally:
        for descriptor in held:
            os.close(descriptor)


def engine(disk: Path) -> GitTrix:
    remembered_seeds.clear()
    return GitTrix(
        disk / "durable",
        home=disk / "home",
        clock=CLOCK,
        sweep_interval=None,
        durability="full",
        strategy="commit",
        ids=lambda: "session-0",
    )


CLOCK = FrozenClock()


def git(disk: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=disk / "durable", env=hermetic_env(disk / "person"), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def a_session(disk: Path, *, bare: bool) -> None:
    """A durable repository and a session with some work in it."""
    shared_templates().of(History.of(SMALL_PROJECT)).materialise(disk / "durable", bare=bare)
    with engine(disk) as gittrix:
        session = gittrix.start_session("do it")
        for path, data in WORK.items():
            session.write(path, data)


def promote(disk: Path) -> None:
    gittrix = engine(disk)
    gittrix.get_session("session-0").promote()
    gittrix.close()


def promoted(disk: Path) -> bool:
    """Whether the branch of a whole repository has the work, in one commit."""
    commits = len(git(disk, "log", "--format=%H", "main").split())
    assert commits in (1, 2)
    if commits == 2:
        assert {path: git(disk, "show", f"main:{path}") for path in WORK} == WORK
    assert [line for line in git(disk, "fsck", "--strict", "--full").splitlines() if not line.startswith(b"dangling")] == []
    return commits == 2


@pytest.mark.needs_root
@needs_power
def test_a_promotion_is_done_or_not_and_the_next_engine_goes_on_from_there() -> None:
    found: Counter[str] = Counter()

    def check(disk: Path, cut: Cut) -> None:
        with engine(disk) as gittrix:
            state = gittrix.info("session-0").state
            found[state] += 1
            assert promoted(disk) == (state == "promoted")
            assert cut.finished <= promoted(disk)
            if state == "active":
                session = gittrix.get_session("session-0")
                assert {path: session.read(path) for path in session.touched_files()} == WORK
                assert session.promote().warnings == ()
            assert gittrix.recover().problems == []
        assert promoted(disk)

    report = power_cuts(promote, check, prepare=lambda disk: a_session(disk, bare=True))

    print(report, dict(found))
    report.verify()
    assert set(found) == {"active", "promoted"}


@pytest.mark.needs_root
@needs_power
def test_a_promotion_to_a_branch_that_is_checked_out_is_not_lost_once_it_was_told() -> None:
    """The branch is judged, and not the checkout: like git, the engine does not sync the files of a work tree."""
    ends = set()

    def check(disk: Path, cut: Cut) -> None:
        ends.add(promoted(disk))
        assert cut.finished <= promoted(disk)

    power_cuts(promote, check, prepare=lambda disk: a_session(disk, bare=False)).verify()
    assert ends == {False, True}


# --- where it works


def test_a_file_system_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"'fat' is no file system that can be played\.\nUse one of ext4, xfs, btrfs\."):
        power_cuts(save, whole, filesystem="fat")
    with pytest.raises(InvalidInput, match="'fat'"):
        supported("fat")


def test_a_machine_without_the_programs_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(powercut, "_path", lambda: str(tmp_path))

    assert supported.__wrapped__("xfs") == "power cuts on xfs need mkfs.xfs, mount, umount, which is not installed"


def test_without_root_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(powercut.shutil, "which", lambda *_, **__: "/found")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert supported.__wrapped__() == "power cuts need root, to mount an image"


def test_where_it_cannot_be_done_it_is_an_error_and_in_a_test_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(powercut, "supported", lambda filesystem: f"no {filesystem} here")

    with pytest.raises(CapabilityMissing, match="no ext4 here"):
        power_cuts(save, whole)
    with pytest.raises(pytest.skip.Exception, match="no btrfs here"):
        PowerCuts(cannot=pytest.skip)(save, whole, filesystem="btrfs")
