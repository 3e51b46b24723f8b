"""Crashes at every call of a program, faults by name, machines that cannot, and disks that are full."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.crash import CRASH, NEW, OLD, needs_supervision, save_in_place
from support.patience import long_enough

from pytest_gittrix.errors import CapabilityMissing, GittrixError, InvalidInput
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.testing.faults import small_disks as disks
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.fault_sweep import (
    CheckFailed,
    check_problem,
    describe_call,
    fault_at,
    kind_of,
    plan,
    require_kind,
    sweep_and_check,
)
from pytest_gittrix.testing.faults.faults import Errno, FileCall, KillAt, ShortWrite, SupervisedRun, TornKill
from pytest_gittrix.testing.faults.small_disks import SmallDisks, byte_count, run_on_small_disk, small_disk


def save_atomically(path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    save_in_place(temporary)
    os.replace(temporary, path)


# --- at all of them


@needs_supervision
def test_a_sweep_finds_the_save_that_loses_the_file_and_tells_how_to_see_it_again(file: Path) -> None:
    def run() -> None:
        save_in_place(file)

    def check(_run: SupervisedRun) -> bool:
        return file.read_text() in (OLD, NEW)

    report = CRASH.sweep(run, lambda: file.write_text(OLD), check, kinds=("kill", "torn"), within=file.parent)

    assert (report.calls, report.tried, report.survived) == (2, 5, 1)
    assert str(report).splitlines()[:3] == [
        "points tried 5, survived 1, failed 4 (2 calls that change something)",
        "  2 kill at write notes.txt (12 bytes): the check says no",
        "      replay: gittrix_crash.at_call(2, run, kind='kill', within=within)",
    ]
    assert [failure.kind for failure in report.failures] == ["kill", "torn:1", "torn:6", "torn:11"]
    CRASH.at_call(2, run, kind="torn:6", within=file.parent)
    assert file.read_text() == NEW[:6]
    with pytest.raises(AssertionError, match="survived 1"):
        report.verify()


@needs_supervision
def test_a_sweep_of_the_save_that_renames_finds_nothing(file: Path) -> None:
    def reset() -> None:
        file.write_text(OLD)
        file.with_suffix(".tmp").unlink(missing_ok=True)

    seen: list[tuple[int, int, int]] = []

    def check(_run: SupervisedRun) -> None:
        assert file.read_text() in (OLD, NEW)

    report = CRASH.sweep(
        lambda: save_atomically(file),
        reset,
        check,
        kinds=("kill", "torn", "short", "EIO"),
        within=file.parent,
        progress=lambda *now: seen.append(now),
    )

    assert report.verify() is report
    assert str(report) == "points tried 10, survived 10, failed 0 (3 calls that change something)"
    assert (seen[0], seen[-1]) == ((1, 10, 0), (10, 10, 0))


@needs_supervision
def test_a_sweep_takes_the_points_and_the_number_it_is_told(file: Path) -> None:
    struck = []

    def check(run: SupervisedRun) -> None:
        struck.extend([run.fired.index] if run.fired else [])

    def make() -> None:
        for name in "abcdefg":
            (file.parent / name).mkdir()

    def reset() -> None:
        for name in "abcdefg":
            if (file.parent / name).exists():
                (file.parent / name).rmdir()

    CRASH.sweep(make, reset, check, within=file.parent, limit=3)
    CRASH.sweep(make, reset, check, within=file.parent, points=[2, 6])
    assert struck == [1, 4, 7, 2, 6]


@needs_supervision
def test_a_sweep_that_would_prove_nothing_is_refused(file: Path) -> None:
    def fail() -> None:
        raise ValueError("wrong argument")

    with pytest.raises(InvalidInput, match="wrong argument"):
        CRASH.sweep(fail, lambda: None, lambda run: None, within=file.parent)
    with pytest.raises(InvalidInput, match="check does not hold after a run without any fault: FileNotFoundError"):
        CRASH.sweep(lambda: save_in_place(file), lambda: None, lambda run: (file.parent / "index").stat(), within=file.parent)
    with pytest.raises(InvalidInput, match="nothing to strike: no call changes a file"):
        CRASH.sweep(lambda: None, lambda: None, lambda run: None, within=file.parent)
    with pytest.raises(InvalidInput, match="There is no point 7: a clean run has 2"):
        CRASH.sweep(lambda: save_in_place(file), lambda: None, lambda run: None, points=[7], within=file.parent)


@needs_supervision
def test_a_program_that_hangs_or_does_not_repeat_itself_has_not_survived(file: Path) -> None:
    def impatient() -> None:
        try:
            os.mkdir(file.parent / "lock")
        except OSError:
            time.sleep(600)

    def moody() -> None:
        if not file.with_suffix(".done").exists():
            os.mkdir(file.parent / "new")
            os.rmdir(file.parent / "new")
            file.with_suffix(".done").touch()

    def reset() -> None:
        if (file.parent / "lock").exists():
            (file.parent / "lock").rmdir()

    def problems(seconds: float) -> list[str]:
        try:
            hung = CRASH.sweep(impatient, reset, lambda run: None, kinds=["EIO"], within=file.parent, timeout=seconds)
        except InvalidInput:  # a clean run did not end in that time
            return []
        return [failure.problem for failure in hung.failures]

    assert long_enough(problems, bool) == ["it hung: its time was up"]
    strange = CRASH.sweep(moody, lambda: None, lambda run: None, within=file.parent)
    assert "does not repeat its calls" in strange.failures[0].problem


# --- faults by name


CALL = FileCall(4, 1, "write", "/d/notes.txt", 10)
MKDIR = FileCall(5, 1, "mkdir", "/d/new", None)


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("kill", [KillAt(4)]),
        ("torn", [TornKill(4, 1), TornKill(4, 5), TornKill(4, 9)]),
        ("torn:0", [TornKill(4, 0)]),
        ("short", [ShortWrite(4, 5)]),
        ("short:7", [ShortWrite(4, 7)]),
        ("EIO", [Errno(4, errno.EIO)]),
        ("sticky-ENOSPC", [Errno(4, errno.ENOSPC, sticky=True)]),
    ],
)
def test_each_fault_is_spelled_so_that_it_can_be_typed_again(kind: str, faults: list[object]) -> None:
    found = require_kind(kind)(CALL)

    assert found == faults
    assert [require_kind(kind_of(fault))(CALL) for fault in found] == [[fault] for fault in found]
    assert kind_of(fault_at(kind, 4)).partition(":")[0] == kind.partition(":")[0]


@pytest.mark.parametrize("kind", ["", "explode", "torn:", "torn:x", "torn:-1", "kill:3", "sticky", "sticky-kill", "errorcode"])
def test_a_kind_there_is_not_is_refused_with_those_there_are(kind: str) -> None:
    with pytest.raises(InvalidInput, match=r"is no kind of fault\.\nUse kill, torn"):
        require_kind(kind)


def test_torn_and_short_pass_over_calls_that_write_no_bytes() -> None:
    assert [kind_of(fault) for fault in plan([CALL, MKDIR], ["short", "kill"])] == ["short:5", "kill", "kill"]
    with pytest.raises(InvalidInput, match="none of the 1 calls takes torn or short:3"):
        plan([MKDIR], ["torn", "short:3"])
    with pytest.raises(InvalidInput, match="limit is 0"):
        plan([MKDIR], ["kill"], limit=0)


@pytest.mark.parametrize(("limit", "chosen"), [(1, [1]), (2, [1, 10]), (4, [1, 4, 7, 10]), (99, list(range(1, 11)))])
def test_a_limit_spreads_over_all_calls(limit: int, chosen: list[int]) -> None:
    calls = [FileCall(index, 1, "mkdir", "/d", None) for index in range(1, 11)]

    assert [fault.at for fault in plan(calls, ["kill"], limit=limit)] == chosen


def test_a_call_is_told_as_a_person_would() -> None:
    assert describe_call(CALL, "/d") == "write notes.txt (10 bytes)"
    assert describe_call(MKDIR) == "mkdir /d/new"


def test_a_check_is_quoted_word_for_word_if_it_wants_to_be() -> None:
    run = SupervisedRun(0, False, [MKDIR], b"", b"", None)

    def check(struck: SupervisedRun) -> None:
        if struck.fired:
            raise CheckFailed("the book is gone")

    report = sweep_and_check(
        lambda fault: run if fault is None else SupervisedRun(None, True, [MKDIR], b"", b"", MKDIR),
        check,
        replay=lambda at, kind: f"rerun {at}",
    )
    assert str(report.failures[0]) == "  5 kill at mkdir /d/new: the book is gone\n      replay: rerun 5"


def test_what_pytest_says_in_a_check_is_a_verdict_and_a_skip_is_not() -> None:
    def never_raises() -> None:
        with pytest.raises(ValueError, match="x"):
            pass

    assert re.fullmatch(r"Failed: DID NOT RAISE .*ValueError.*", check_problem(never_raises) or "")
    assert check_problem(lambda: None) is None
    assert check_problem(list) is None
    assert check_problem(lambda: False) == "the check says no"
    with pytest.raises(pytest.skip.Exception):
        check_problem(lambda: pytest.skip("not here"))
    with pytest.raises(KeyboardInterrupt):
        check_problem(interrupted)


def interrupted() -> None:
    raise KeyboardInterrupt


# --- machines that cannot


def test_a_machine_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gittrix.testing.faults.crash.supported", lambda: "no seccomp here")
    with pytest.raises(CapabilityMissing, match="no seccomp here"):
        CRASH.at_call(1, lambda: None)
    with pytest.raises(CapabilityMissing, match="no seccomp here"):
        CRASH.sweep(lambda: None, lambda: None, lambda run: None)
    with pytest.raises(pytest.skip.Exception, match="no seccomp here"):
        Crash(cannot=pytest.skip).at_call(1, lambda: None)


def test_without_a_fork_a_crash_can_still_be_played(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(CapabilityMissing, match="no fork"):
        CRASH.at("save:begun", lambda: save_in_place(file))
    with CRASH.in_process("save:begun"):
        save_in_place(file)
    assert file.read_text() == OLD


# --- a disk that is full


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk with room for 64 KiB."""
    if reason := disks.mounting_supported():
        pytest.skip(reason)
    with small_disk("64k") as directory:
        yield directory


def fill(directory: Path) -> tuple[int | None, int]:
    """Write more than fits; what the system said, and how much is there."""
    try:
        with open(directory / "x", "wb", buffering=0) as file:
            file.writelines([b"x" * 4096] * 100)
    except OSError as error:
        return error.errno, (directory / "x").stat().st_size
    return None, 0


@pytest.mark.needs_root
def test_a_small_disk_takes_what_fits_and_then_no_more(disk: Path) -> None:
    assert fill(disk) == (errno.ENOSPC, 65536)


def test_a_function_runs_on_a_small_disk_and_says_what_it_found() -> None:
    if reason := disks.supported():
        pytest.skip(reason)
    assert run_on_small_disk(fill, "128k") == (errno.ENOSPC, 131072)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run_on_small_disk(lambda directory: (directory / "nowhere").read_text())
    with pytest.raises(CapabilityMissing, match="signal 9"):
        run_on_small_disk(lambda directory: os.kill(os.getpid(), signal.SIGKILL))
    assert "gittrix-disk" not in Path("/proc/mounts").read_text()


@pytest.mark.needs_root
def test_an_unprivileged_user_has_a_small_disk_in_a_namespace() -> None:
    script = textwrap.dedent("""
        import os, sys, tempfile, traceback
        from pytest_gittrix.testing.faults import small_disks as small_disk
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        tempfile.tempdir = "/tmp"
        reason = small_disk.supported()
        print(reason or len(small_disk.run_on_small_disk(lambda d: (d / "x").write_bytes(b"x" * 4096) and os.listdir(d), 4096)))
        try:
            with small_disk.small_disk(): pass
        except Exception as error:
            print(type(error).__name__)
    """)
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd="/", env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    said = done.stdout.splitlines()
    if said and "namespace" in said[0]:
        pytest.skip(said[0])
    assert said == ["1", "CapabilityMissing"], done.stderr


@pytest.mark.parametrize(("text", "count"), [("64k", 65536), ("2M", 2 << 20), ("1g", 1 << 30), ("4096", 4096), (4096, 4096)])
def test_a_size_is_read_with_its_unit(text: str | int, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "0", "-1", 0, "1.5m", "many", "64 k"])
def test_a_size_that_is_none_is_refused(text: str | int) -> None:
    with pytest.raises(InvalidInput, match="no size of a disk"):
        byte_count(text)


def test_a_test_is_skipped_with_the_reason_where_no_disk_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "mounting_supported", lambda: "not allowed to mount")
    monkeypatch.setattr(disks, "supported", lambda: "no namespaces either")
    small = SmallDisks(lambda manager: manager.__enter__(), cannot=pytest.skip)
    with pytest.raises(pytest.skip.Exception, match="not allowed to mount"):
        small("64k")
    with pytest.raises(pytest.skip.Exception, match="no namespaces either"):
        small.run(fill)
    with pytest.raises(InvalidInput):
        small("none")


def test_a_fork_that_ends_by_itself_is_an_error_that_says_so() -> None:
    ended = in_fork(lambda: os._exit(3))

    assert isinstance(ended.error, GittrixError)
    assert "ended by itself, with status 3" in str(ended.error)
