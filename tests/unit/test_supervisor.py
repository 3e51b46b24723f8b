"""The crash machine, against real processes, real git and real files."""

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

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.harness.disk import small_tmpfs, small_tmpfs_supported
from pytest_gittrix.harness.supervisor import (
    Errno,
    Fault,
    Kill,
    Run,
    ShortWrite,
    TornKill,
    supervise,
    supervise_function,
    supported,
    sweep,
)

OLD, NEW = b"old content", b"NEW CONTENT, LONGER"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory to work in, where supervision works."""
    if reason := supported():
        pytest.skip(reason)
    return tmp_path


@pytest.fixture
def target(disk: Path) -> Path:
    """A file with old content."""
    path = disk / "target"
    path.write_bytes(OLD)
    return path


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """A disk with room for 64 KiB."""
    if reason := small_tmpfs_supported():
        pytest.skip(reason)
    with small_tmpfs(65536) as directory:
        yield directory


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def write_file(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_atomically(path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    write_file(temporary, NEW)
    os.rename(temporary, path)


def names(run: Run) -> list[str]:
    return [call.name for call in run.calls]


def processes_mentioning(word: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def git(disk: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(disk),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }


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
    def run(fault: Fault | None) -> Run:
        target.write_bytes(OLD)
        return supervise_function(lambda: replace_atomically(target), fault=fault, within=target.parent)

    left = {}
    for fault, struck in sweep(run):
        assert (struck.killed, struck.exit_code, struck.timed_out) == (True, None, False)
        assert struck.fired == struck.calls[-1]
        left[fault.at] = target.read_bytes()
    assert left == {1: OLD, 2: OLD, 3: OLD, 4: OLD}
    assert run(Kill(5)).fired is None
    assert target.read_bytes() == NEW


def test_a_sweep_catches_a_replace_that_is_not_atomic(target: Path) -> None:
    def run(fault: Fault | None) -> Run:
        target.write_bytes(OLD)
        return supervise_function(lambda: write_file(target, NEW), fault=fault, within=target.parent)

    left = {target.read_bytes() for _ in sweep(run, kinds=("kill", "torn"))}
    assert left - {OLD, NEW} == {b"", NEW[:1], NEW[: len(NEW) // 2], NEW[:-1]}


def test_a_kill_takes_the_shell_and_its_children_before_the_call(disk: Path) -> None:
    run = supervise(["sh", "-c", "mkdir a; mkdir b; mkdir c"], fault=Kill(2), within=disk, cwd=disk)
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

    run = supervise_function(work, fault=Kill(1), within=disk)
    assert run.killed
    assert os.listdir(disk) == []


# --- sweeps


def test_a_sweep_visits_the_points_and_kinds_it_is_told(disk: Path) -> None:
    def run(fault: Fault | None) -> Run:
        return supervise_function(lambda: write_file(disk / "x", NEW), fault=fault, within=disk)

    half = len(NEW) // 2
    assert [fault for fault, _ in sweep(run, points=slice(1, None))] == [Kill(2), Kill(3)]
    assert [fault for fault, _ in sweep(run, kinds=("kill", "short"), points=iter([2]))] == [Kill(2), ShortWrite(2, half)]
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


@pytest.mark.parametrize("make", [lambda: Kill(0), lambda: Errno(1, 0), lambda: ShortWrite(1, -1), lambda: TornKill(0, 1)])
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
    run = supervise([sys.executable, "-c", script], fault=Kill(1), within=disk, cwd=disk, env={**os.environ, word: "1"})
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
    run = supervise(["sh", "-c", "echo begun; sleep 600 & sleep 600"], timeout=0.3, env={**os.environ, word: "1"})
    assert (run.killed, run.timed_out, run.exit_code, run.fired) == (True, True, None, None)
    assert run.stdout == b"begun\n"
    assert processes_mentioning(word) == []


def test_a_daemon_that_outlives_the_time_limit_leaves_the_exit_code_of_the_command(disk: Path) -> None:
    run = supervise_function(lambda: daemonise(lambda: time.sleep(600)), timeout=0.5)
    assert (run.exit_code, run.killed, run.timed_out) == (0, True, True)


def test_a_program_that_signals_its_own_group_does_not_hit_the_supervisor(disk: Path) -> None:
    run = supervise(["sh", "-c", "echo bye; kill -9 0"])
    assert (run.exit_code, run.killed, run.stdout) == (-9, False, b"bye\n")


def test_the_caller_keeps_no_children_and_no_descriptors(disk: Path) -> None:
    def run() -> None:
        supervise_function(lambda: write_file(disk / "x", NEW), fault=Kill(2), within=disk)
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
    script = "from pytest_gittrix.harness.supervisor import supervise; supervise(['sh', '-c', 'sleep 600 & echo > begun; sleep 600'])"
    path = os.pathsep.join(filter(None, sys.path))
    caller = subprocess.Popen(
        [sys.executable, "-c", script], cwd=disk, env={**os.environ, "PYTHONPATH": path, word: "1"}, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: (disk / "begun").exists())
        caller.send_signal(number)
        assert caller.wait(20) != 0
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: not processes_mentioning(word))
    assert processes_mentioning(word) == []


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 20
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
    runs: list[Run] = []
    threads = [
        threading.Thread(target=lambda n=name: runs.append(supervise_function(lambda: os.mkdir(disk / n), fault=Kill(1), within=disk)))
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.killed for run in runs] == [True] * 4
    assert os.listdir(disk) == []


# --- where it works


def test_an_unprivileged_user_needs_nothing_more(disk: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("this test changes its user, which only root can; every other test here already ran without privilege")
    home = tempfile.mkdtemp()  # the directories above tmp_path are closed to other users
    script = textwrap.dedent("""
        import os, sys
        from pytest_gittrix.harness import supervisor
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        os.chdir(sys.argv[1])
        def work():
            os.write(os.open("x", os.O_WRONLY | os.O_CREAT), b"12345")
        print(supervisor.supported())
        print(supervisor.supervise_function(work, fault=supervisor.TornKill(2, 3), within=sys.argv[1]).killed, open("x").read())
        run = supervisor.supervise(["sh", "-c", "mkdir a; mkdir b"], fault=supervisor.Kill(2), within=sys.argv[1])
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


def test_a_small_tmpfs_takes_what_fits_and_then_no_more(tmpfs: Path) -> None:
    (tmpfs / "x").write_bytes(b"x" * 65536)
    with pytest.raises(OSError) as caught:
        (tmpfs / "y").write_bytes(b"y")
    assert caught.value.errno == errno.ENOSPC
    assert (tmpfs / "x").stat().st_size == 65536


def test_git_meets_a_really_full_disk(tmpfs: Path) -> None:
    (tmpfs / "ballast").write_bytes(b"x" * 60000)
    done = subprocess.run(["git", "init", "-q", "--template=", "r"], cwd=tmpfs, env=git(tmpfs), capture_output=True, check=False)
    assert done.returncode == 128
    assert b"failed to write" in done.stderr
    assert os.statvfs(tmpfs).f_bavail == 0


def test_a_small_tmpfs_is_gone_afterwards_even_while_in_use() -> None:
    if reason := small_tmpfs_supported():
        pytest.skip(reason)
    with small_tmpfs(8192) as directory, open(directory / "held", "w") as held:
        assert str(directory) in Path("/proc/mounts").read_text()
    assert held.closed
    with open(os.devnull) as held, small_tmpfs(8192) as again:
        descriptor = os.open(again / "open", os.O_WRONLY | os.O_CREAT)
    os.close(descriptor)
    mounts = Path("/proc/mounts").read_text()
    assert str(directory) not in mounts
    assert str(again) not in mounts
    assert not directory.exists()
    assert not again.exists()


def test_a_disk_of_no_size_is_refused() -> None:
    with pytest.raises(InvalidInput, match="size_bytes"):
        with small_tmpfs(0):
            pass
