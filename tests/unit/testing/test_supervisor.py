"""The crash machine, against real processes, real git and real files."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from support.supervisor import NEW, OLD, git, names, write_file

from pytest_gittrix.testing.faults.fault_sweep import sweep
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
def target(disk: Path) -> Path:
    """A file with old content."""
    path = disk / "target"
    path.write_bytes(OLD)
    return path


def replace_atomically(path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    write_file(temporary, NEW)
    os.rename(temporary, path)


# --- counting


def test_every_changing_call_is_counted_in_order_with_its_path_and_size(disk: Path) -> None:
    def work() -> None:
        replace_atomically(disk / "a")
        os.mkdir(disk / "d")
        os.symlink("a", disk / "d" / "l")
        os.link(disk / "a", disk / "b")
        os.truncate(disk / "b", 3)
        os.chmod(disk / "b", 0o600)
        os.unlink(disk / "b")

    run = supervise_function(work, within=disk)
    assert run.exit_code == 0
    seen = [(call.name.removesuffix("at"), Path(call.path or "").relative_to(disk).as_posix(), call.size) for call in run.calls]
    assert seen == [
        ("open", "a.tmp", None),
        ("write", "a.tmp", len(NEW)),
        ("fsync", "a.tmp", None),
        ("rename", "a", None),
        ("mkdir", "d", None),
        ("symlink", "d/l", None),
        ("link", "b", None),
        ("truncate", "b", None),
        ("chmod", "b", None),
        ("unlink", "b", None),
    ]
    assert [call.index for call in run.calls] == list(range(1, 11))


def test_reading_and_writing_to_pipes_and_devices_does_not_count(target: Path) -> None:
    def work() -> None:
        target.read_bytes()
        Path(os.devnull).write_bytes(b"x")
        reader, writer = os.pipe()
        os.write(writer, b"x")
        os.read(reader, 1)
        print("out", flush=True)
        print("err", file=sys.stderr, flush=True)

    run = supervise_function(work)
    assert run.calls == []
    assert (run.stdout, run.stderr, run.exit_code) == (b"out\n", b"err\n", 0)


def test_only_calls_below_the_roots_count_whichever_way_they_are_named(disk: Path) -> None:
    inside, outside = disk / "inside", disk / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "way").symlink_to(inside)

    def work() -> None:
        write_file(outside / "x", b"1")
        os.chdir(inside)
        os.mkdir("relative")
        directory = os.open(inside, os.O_RDONLY)
        os.mkdir("by-descriptor", dir_fd=directory)
        os.mkdir(outside / "way" / "by-symlink")
        os.rename(outside / "x", inside / "moved-in")
        os.rename(inside / "moved-in", outside / "moved-out")
        os.mkdir(f"{inside}-sibling")

    run = supervise_function(work, within=[inside])
    assert run.exit_code == 0, run.stderr
    assert [Path(call.path or "").name for call in run.calls] == ["relative", "by-descriptor", "by-symlink", "moved-in", "moved-out"]


def test_vectored_and_positioned_writes_are_sized(disk: Path) -> None:
    def work() -> None:
        descriptor = os.open(disk / "x", os.O_RDWR | os.O_CREAT)
        os.writev(descriptor, [b"ab", b"cde"])
        os.pwrite(descriptor, b"XY", 1)
        os.pwritev(descriptor, [b"1", b"23"], 4)

    run = supervise_function(work, within=disk)
    assert [call.size for call in run.calls[1:]] == [5, 2, 3]
    assert (disk / "x").read_bytes() == b"aXYd123"


def test_rarer_changes_are_counted_whether_or_not_the_kernel_then_allows_them(target: Path) -> None:
    def work() -> None:
        copy = os.open(target.with_name("copy"), os.O_RDWR | os.O_CREAT)
        source = os.open(target, os.O_RDONLY)
        directory = os.open(target.parent, os.O_RDONLY)
        os.copy_file_range(source, copy, 3)
        os.sendfile(copy, source, 0, 3)
        os.posix_fallocate(copy, 0, 10)
        os.fdatasync(copy)
        os.fsync(directory)
        os.utime(copy)
        os.utime(target)
        os.fchown(copy, -1, -1)
        os.mkfifo("fifo", dir_fd=directory)
        try:
            os.setxattr(target, "user.word", b"1")
        except OSError:
            print("refused")

    run = supervise_function(work, within=target.parent)
    assert run.exit_code == 0, run.stderr
    seen = [(call.name.removesuffix("at"), Path(call.path or "").name) for call in run.calls]
    assert seen == [
        ("open", "copy"),
        ("copy_file_range", "copy"),
        ("sendfile", "copy"),
        ("fallocate", "copy"),
        ("fdatasync", "copy"),
        ("fsync", target.parent.name),
        ("utimens", "copy"),
        ("utimens", "target"),
        ("fchown", "copy"),
        ("mknod", "fifo"),
        ("setxattr", "target"),
    ]


def test_signals_do_not_make_a_call_count_twice(disk: Path) -> None:
    def work() -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        descriptor = os.open(disk / "x", os.O_WRONLY | os.O_CREAT)
        for _ in range(1000):
            os.write(descriptor, b"x")
        signal.setitimer(signal.ITIMER_REAL, 0)

    run = supervise_function(work, within=disk)
    assert (len(run.calls), (disk / "x").stat().st_size) == (1001, 1000)


def test_a_shell_with_git_children_repeats_its_calls_in_one_order(disk: Path) -> None:
    script = "git init -q --template= r && cd r && echo hello > f && git add f && git -c gc.auto=0 commit -q -m first && git rev-parse HEAD"
    runs = []
    for name in ("one", "two"):
        (disk / name).mkdir()
        runs.append(supervise(["sh", "-c", script], within=disk / name, cwd=disk / name, env=git(disk)))
    first, second = runs
    assert (first.exit_code, first.killed) == (0, False), first.stderr
    assert names(first) == names(second)
    assert len({call.pid for call in first.calls}) >= 4
    assert any(str(call.path).endswith("r/.git/index.lock") for call in first.calls)
    assert len(first.stdout.strip()) == 40


def test_a_command_gets_its_input_environment_and_directory(disk: Path) -> None:
    payload = b"x" * 300_000
    run = supervise(["sh", "-c", "echo $WORD; pwd; wc -c; exit 7"], env={**os.environ, "WORD": "w"}, cwd=disk, stdin=payload)
    assert run.stdout.split() == [b"w", os.fsencode(os.path.realpath(disk)), b"300000"]
    assert (run.exit_code, run.calls) == (7, [])


def test_large_output_on_both_streams_is_kept_whole(disk: Path) -> None:
    run = supervise(["sh", "-c", "head -c 400000 /dev/zero; head -c 300000 /dev/zero >&2"])
    assert (len(run.stdout), len(run.stderr), run.exit_code) == (400_000, 300_000, 0)


def test_a_command_that_does_not_exist_exits_127_and_says_why(disk: Path) -> None:
    run = supervise([disk / "absent"])
    assert run.exit_code == 127
    assert b"absent" in run.stderr


def test_a_function_that_raises_exits_1_with_its_traceback(disk: Path) -> None:
    def work() -> None:
        raise ValueError("very wrong")

    run = supervise_function(work)
    assert run.exit_code == 1
    assert b"ValueError: very wrong" in run.stderr


def test_a_signal_of_its_own_is_not_a_kill_by_the_supervisor(disk: Path) -> None:
    run = supervise_function(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert (run.exit_code, run.killed) == (-signal.SIGTERM, False)


# --- faults


def test_a_kill_at_every_point_of_an_atomic_replace_leaves_old_or_new(target: Path) -> None:
    def run(fault: Fault | None) -> SupervisedRun:
        target.write_bytes(OLD)
        return supervise_function(lambda: replace_atomically(target), fault=fault, within=target.parent)

    left = {}
    for fault, struck in sweep(run):
        assert (struck.killed, struck.exit_code, struck.timed_out) == (True, None, False)
        assert struck.fired == struck.calls[-1]
        left[fault.at] = target.read_bytes()
    assert left == {1: OLD, 2: OLD, 3: OLD, 4: OLD}
    assert run(KillAt(5)).fired is None
    assert target.read_bytes() == NEW


def test_a_sweep_catches_a_replace_that_is_not_atomic(target: Path) -> None:
    def run(fault: Fault | None) -> SupervisedRun:
        target.write_bytes(OLD)
        return supervise_function(lambda: write_file(target, NEW), fault=fault, within=target.parent)

    left = {target.read_bytes() for _ in sweep(run, kinds=("kill", "torn"))}
    assert left - {OLD, NEW} == {b"", NEW[:1], NEW[: len(NEW) // 2], NEW[:-1]}


def test_a_kill_takes_the_shell_and_its_children_before_the_call(disk: Path) -> None:
    run = supervise(["sh", "-c", "mkdir a; mkdir b; mkdir c"], fault=KillAt(2), within=disk, cwd=disk)
    assert run.fired is not None
    assert (run.fired.name, run.fired.path) == ("mkdir", str(disk / "b"))
    assert sorted(os.listdir(disk)) == ["a"]


def test_an_errno_strikes_once(disk: Path) -> None:
    def work() -> None:
        for name in "abc":
            try:
                os.mkdir(disk / name)
            except OSError as error:
                print(name, errno.errorcode[error.errno or 0])

    once = supervise_function(work, fault=Errno(2, errno.ENOSPC), within=disk)
    assert (once.stdout, sorted(os.listdir(disk))) == (b"b ENOSPC\n", ["a", "c"])
    assert once.fired == once.calls[1]


def test_a_sticky_errno_strikes_from_then_on(disk: Path) -> None:
    def work() -> None:
        for name in "abc":
            try:
                os.mkdir(disk / name)
            except OSError as error:
                print(name, errno.errorcode[error.errno or 0])

    run = supervise_function(work, fault=Errno(2, errno.EIO, sticky=True), within=disk)
    assert (run.stdout, sorted(os.listdir(disk))) == (b"b EIO\nc EIO\n", ["a"])
    assert run.fired == run.calls[1]


def test_git_reports_the_errno_it_was_given(disk: Path) -> None:
    run = supervise(["git", "init", "-q", "r"], fault=Errno(1, errno.ENOSPC, sticky=True), within=disk, cwd=disk, env=git(disk))
    assert run.exit_code == 128
    assert b"No space left on device" in run.stderr


def test_a_short_write_is_finished_by_a_program_that_loops(disk: Path) -> None:
    run = supervise_function(lambda: write_file(disk / "x", NEW), fault=ShortWrite(2, 5), within=disk)
    assert (run.exit_code, (disk / "x").read_bytes()) == (0, NEW)
    assert [call.size for call in run.calls if call.name == "write"] == [len(NEW), len(NEW) - 5]


def test_a_short_write_tears_the_file_of_a_program_that_does_not_loop(disk: Path) -> None:
    def work() -> None:
        os.write(os.open(disk / "x", os.O_WRONLY | os.O_CREAT), NEW)

    run = supervise_function(work, fault=ShortWrite(2, 5), within=disk)
    assert (run.exit_code, (disk / "x").read_bytes()) == (0, NEW[:5])


@pytest.mark.parametrize("length", [0, 1, 7, len(NEW) - 1, len(NEW)])
def test_a_torn_write_leaves_exactly_its_first_bytes(disk: Path, length: int) -> None:
    run = supervise_function(lambda: write_file(disk / "x", NEW), fault=TornKill(2, length), within=disk)
    assert (run.killed, run.exit_code) == (True, None)
    assert (disk / "x").read_bytes() == NEW[:length]


def test_torn_writes_keep_their_place_in_the_file(disk: Path) -> None:
    def appended() -> None:
        os.write(os.open(disk / "log", os.O_WRONLY | os.O_APPEND), b"second")

    def positioned() -> None:
        os.pwrite(os.open(disk / "at", os.O_WRONLY), b"second", 2)

    def vectored() -> None:
        descriptor = os.open(disk / "vector", os.O_WRONLY)
        os.lseek(descriptor, 5, os.SEEK_SET)
        os.writev(descriptor, [b"se", b"cond"])

    for name, work in (("log", appended), ("at", positioned), ("vector", vectored)):
        (disk / name).write_bytes(b"first")
        assert supervise_function(work, fault=TornKill(2, 3), within=disk).killed
        assert (disk / name).read_bytes() == {"log": b"firstsec", "at": b"fisec", "vector": b"firstsec"}[name]


def test_torn_and_short_faults_pass_over_calls_that_write_no_bytes(disk: Path) -> None:
    run = supervise_function(lambda: os.mkdir(disk / "d"), fault=TornKill(1, 1), within=disk)
    assert (run.fired, run.exit_code) == (None, 0)


def test_threads_of_the_target_are_counted_too(disk: Path) -> None:
    def work() -> None:
        thread = threading.Thread(target=os.mkdir, args=(disk / "d",))
        thread.start()
        thread.join()

    run = supervise_function(work, fault=KillAt(1), within=disk)
    assert run.killed
    assert os.listdir(disk) == []
