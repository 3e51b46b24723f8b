"""Sweeps over all calls of a program, how everything it started is ended, where it works, and disks that are full."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patience import long_enough
from support.supervisor import NEW, git, names, processes_mentioning, write_file

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.testing.faults.fault_sweep import sweep
from pytest_gittrix.testing.faults.small_disks import mounting_supported, small_disk
from pytest_gittrix.testing.faults.supervisor import (
    Errno,
    Fault,
    KillAt,
    ShortWrite,
    SupervisedRun,
    TornKill,
    supervise,
    supervise_function,
)


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """A disk with room for 64 KiB."""
    if reason := mounting_supported():
        pytest.skip(reason)
    with small_disk(65536) as directory:
        yield directory


# --- sweeps


def test_a_sweep_visits_the_points_and_kinds_it_is_told(disk: Path) -> None:
    def run(fault: Fault | None) -> SupervisedRun:
        return supervise_function(lambda: write_file(disk / "x", NEW), fault=fault, within=disk)

    half = len(NEW) // 2
    assert [fault for fault, _ in sweep(run, points=slice(1, None))] == [KillAt(2), KillAt(3)]
    assert [fault for fault, _ in sweep(run, kinds=("kill", "short"), points=iter([2]))] == [KillAt(2), ShortWrite(2, half)]
    assert [fault for fault, _ in sweep(run, kinds=["torn"])] == [TornKill(2, 1), TornKill(2, half), TornKill(2, len(NEW) - 1)]
    kinds = ("EIO", "sticky ENOSPC")
    assert [fault for fault, _ in sweep(run, kinds=kinds, points=[1])] == [Errno(1, errno.EIO), Errno(1, errno.ENOSPC, sticky=True)]


def test_a_sweep_refuses_a_program_that_fails_by_itself(disk: Path) -> None:
    def work() -> None:
        raise ValueError("wrong argument")

    with pytest.raises(InvalidInput, match="wrong argument"):
        list(sweep(lambda fault: supervise_function(work, fault=fault, within=disk)))


def test_a_sweep_refuses_a_program_that_does_not_repeat_itself(disk: Path) -> None:
    def work() -> None:
        if not (disk / "x").exists():
            write_file(disk / "x", NEW)

    with pytest.raises(InvalidInput, match="met nothing"):
        list(sweep(lambda fault: supervise_function(work, fault=fault, within=disk)))


def test_an_unknown_kind_of_fault_is_refused_by_name(disk: Path) -> None:
    with pytest.raises(InvalidInput, match="'explode' is no kind"):
        list(sweep(lambda fault: supervise_function(lambda: None, fault=fault), kinds=["explode"]))


@pytest.mark.parametrize("make", [lambda: KillAt(0), lambda: Errno(1, 0), lambda: ShortWrite(1, -1), lambda: TornKill(0, 1)])
def test_faults_that_mean_nothing_are_refused(make: object) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        make()  # type: ignore[operator]


def test_an_empty_command_and_no_time_are_refused() -> None:
    with pytest.raises(InvalidInput, match="argv"):
        supervise([])
    with pytest.raises(InvalidInput, match="timeout"):
        supervise_function(lambda: None, timeout=0)


# --- ending


def daemonise(then: object) -> None:
    """A child of a child, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            then()  # type: ignore[operator]
        os._exit(0)
    os.wait()


def test_daemons_die_with_the_tree(disk: Path) -> None:
    word = f"GITTRIX_TEST_{os.getpid()}_{disk.name}"
    script = textwrap.dedent("""
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        os.wait()
        os.mkdir("d")
    """)
    run = supervise([sys.executable, "-c", script], fault=KillAt(1), within=disk, cwd=disk, env={**os.environ, word: "1"})
    assert run.killed
    assert processes_mentioning(word) == []
    assert not (disk / "d").exists()


def test_a_run_lasts_until_the_last_daemon_has_ended_and_counts_its_calls(disk: Path) -> None:
    def late() -> None:
        time.sleep(0.1)
        os.mkdir(disk / "late")

    run = supervise_function(lambda: daemonise(late), within=disk)
    assert (names(run), run.exit_code, run.killed) == (["mkdir"], 0, False)
    assert (disk / "late").is_dir()


def test_the_time_limit_kills_the_tree_and_says_so(disk: Path) -> None:
    word = f"GITTRIX_TEST_{os.getpid()}_{disk.name}"
    argv, env = ["sh", "-c", "echo begun; sleep 600 & sleep 600"], {**os.environ, word: "1"}
    run = long_enough(lambda seconds: supervise(argv, timeout=seconds, env=env), lambda run: run.stdout)
    assert (run.killed, run.timed_out, run.exit_code, run.fired) == (True, True, None, None)
    assert run.stdout == b"begun\n"
    assert processes_mentioning(word) == []


def test_a_daemon_that_outlives_the_time_limit_leaves_the_exit_code_of_the_command(disk: Path) -> None:
    def run_for(seconds: float) -> SupervisedRun:
        return supervise_function(lambda: daemonise(lambda: time.sleep(600)), timeout=seconds)

    run = long_enough(run_for, lambda run: run.exit_code is not None)
    assert (run.exit_code, run.killed, run.timed_out) == (0, True, True)


def test_a_program_that_signals_its_own_group_does_not_hit_the_supervisor(disk: Path) -> None:
    run = supervise(["sh", "-c", "echo bye; kill -9 0"])
    assert (run.exit_code, run.killed, run.stdout) == (-9, False, b"bye\n")


def test_the_caller_keeps_no_children_and_no_descriptors(disk: Path) -> None:
    def run() -> None:
        supervise_function(lambda: write_file(disk / "x", NEW), fault=KillAt(2), within=disk)
        supervise(["true"])

    def held() -> tuple[list[str], str]:
        return sorted(os.listdir("/proc/self/fd")), Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()

    run()
    before = held()
    run()
    assert held() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_caller_that_is_killed_or_interrupted_takes_its_tree_along(disk: Path, number: signal.Signals) -> None:
    word = f"GITTRIX_TEST_{os.getpid()}_{disk.name}"
    script = (
        "from pytest_gittrix.testing.faults.supervisor import supervise; supervise(['sh', '-c', 'sleep 600 & echo > begun; sleep 600'])"
    )
    path = os.pathsep.join(filter(None, sys.path))
    caller = subprocess.Popen(
        [sys.executable, "-c", script], cwd=disk, env={**os.environ, "PYTHONPATH": path, word: "1"}, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: (disk / "begun").exists())
        caller.send_signal(number)
        assert caller.wait(60) != 0
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: not processes_mentioning(word))
    assert processes_mentioning(word) == []


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.01)


def test_finalizers_of_the_caller_do_not_run_in_the_target(disk: Path) -> None:
    class Loud:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            (disk / f"finalized-in-{os.getpid()}").touch()

    gc.disable()
    try:
        Loud()
        run = supervise_function(gc.collect, within=disk)
    finally:
        gc.enable()
    gc.collect()
    assert (run.exit_code, run.calls) == (0, [])
    assert os.listdir(disk) == [f"finalized-in-{os.getpid()}"]


def test_it_works_from_any_thread(disk: Path) -> None:
    runs: list[SupervisedRun] = []
    threads = [
        threading.Thread(target=lambda n=name: runs.append(supervise_function(lambda: os.mkdir(disk / n), fault=KillAt(1), within=disk)))
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.killed for run in runs] == [True] * 4
    assert os.listdir(disk) == []


# --- where it works


@pytest.mark.needs_root
def test_an_unprivileged_user_needs_nothing_more(disk: Path) -> None:
    home = tempfile.mkdtemp()  # the directories above tmp_path are closed to other users
    script = textwrap.dedent("""
        import os, sys
        from pytest_gittrix.testing.faults import supervisor
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        os.chdir(sys.argv[1])
        def work():
            os.write(os.open("x", os.O_WRONLY | os.O_CREAT), b"12345")
        print(supervisor.supported())
        print(supervisor.supervise_function(work, fault=supervisor.TornKill(2, 3), within=sys.argv[1]).killed, open("x").read())
        run = supervisor.supervise(["sh", "-c", "mkdir a; mkdir b"], fault=supervisor.KillAt(2), within=sys.argv[1])
        print(len(run.calls), os.path.exists("a"), os.path.exists("b"))
    """)
    try:
        os.chmod(home, 0o777)
        path = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", script, home]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(home)
    assert done.stdout.split() == ["None", "True", "123", "2", "True", "False"], done.stderr


def test_supervision_inside_supervision_is_refused_with_the_reason(disk: Path) -> None:
    def work() -> None:
        try:
            supervise_function(lambda: None)
        except CapabilityMissing as error:
            print(error.fact)

    run = supervise_function(work)
    assert b"Device or resource busy" in run.stdout


# --- a disk that is full


@pytest.mark.needs_root
def test_a_small_disk_takes_what_fits_and_then_no_more(tmpfs: Path) -> None:
    (tmpfs / "x").write_bytes(b"x" * 65536)
    with pytest.raises(OSError) as caught:
        (tmpfs / "y").write_bytes(b"y")
    assert caught.value.errno == errno.ENOSPC
    assert (tmpfs / "x").stat().st_size == 65536


@pytest.mark.needs_root
def test_git_meets_a_really_full_disk(tmpfs: Path) -> None:
    (tmpfs / "ballast").write_bytes(b"x" * 60000)
    done = subprocess.run(["git", "init", "-q", "--template=", "r"], cwd=tmpfs, env=git(tmpfs), capture_output=True, check=False)
    assert done.returncode == 128
    assert b"failed to write" in done.stderr
    assert os.statvfs(tmpfs).f_bavail == 0


def test_a_small_disk_is_gone_afterwards_even_while_in_use() -> None:
    if reason := mounting_supported():
        pytest.skip(reason)
    with small_disk(8192) as directory, open(directory / "held", "w") as held:
        assert str(directory) in Path("/proc/mounts").read_text()
    assert held.closed
    with open(os.devnull) as held, small_disk(8192) as second:
        descriptor = os.open(second / "open", os.O_WRONLY | os.O_CREAT)
    os.close(descriptor)
    mounts = Path("/proc/mounts").read_text()
    assert str(directory) not in mounts
    assert str(second) not in mounts
    assert not directory.exists()
    assert not second.exists()


def test_a_disk_of_no_size_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no size of a disk"):
        with small_disk(0):
            pass
