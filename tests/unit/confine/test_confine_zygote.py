"""The process that starts confined programs: whose it is, what it leaves, and that neither programs nor accidents get the better of it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.confined import LONG, PATH, Confined, available

from pytest_gittrix.confine.levels import lets_signals_out
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.proc import children
from pytest_gittrix.os_level.process_tree import Process, process

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")

ROOT = Path(__file__).resolve().parents[3]
BY_ZYGOTE = ["guard by landlock", "jail by namespaces"]
# It writes a line to a fifo when it runs, and then stays for as long as somebody has another one open.
STAYS = "echo up > up; exec 9< stay; read line <&9"
# With a daemon that has left session, group and environment.
WITH_DAEMON = f"env -i PATH=$PATH setsid sh -c 'setsid sh -c \"exec 9<> two; : > daemon; read line <&9\" &' & {STAYS}"
PROGRAM = """
import os, sys
from pathlib import Path
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.runner import run
root, level, by, script = sys.argv[1:5]
place = Place(Path(root, "w"), Path(root, "h"))
def go(script=script):
    return run(["sh", "-c", script], place, Confinement(level, by), environment={"PATH": os.environ["PATH"]})
"""


@pytest.fixture(params=BY_ZYGOTE)
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Confined:
    return Confined.make(tmp_path, available(request.param))


@pytest.fixture
def guarded(tmp_path: Path) -> Confined:
    return Confined.make(tmp_path, available("guard by landlock"))


def zygote_of(pid: int) -> Process:
    """The one zygote of a process; two of the same are equal."""
    found = [process(one) for one in children(pid) if b"confine.zygote" in Path(f"/proc/{one}/cmdline").read_bytes()]
    (only,) = [one for one in found if one is not None and one.alive]
    return only


def descriptors(pid: int) -> list[str]:
    return sorted(os.listdir(f"/proc/{pid}/fd"))


def gone(which: Process) -> bool:
    """Whether a process is no more, or dead."""
    now = process(which.pid)
    return now is None or now.start_time != which.start_time or not now.alive


def wait_until(true: Callable[[], bool]) -> None:
    deadline = real_seconds() + LONG
    while not true():
        assert real_seconds() < deadline, "it does not come to that"
        pause(0.005)


def somebody_reads(fifo: Path) -> bool:
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@contextmanager
def staying(confined: Confined, script: str = STAYS, more: str = "go()") -> Iterator[subprocess.Popen[bytes]]:
    """Another process that runs a confined program, which has started and stays."""
    for name in ("up", "stay", "two"):
        os.mkfifo(confined.workspace / name)
    how = confined.confinement
    argv = [sys.executable, "-c", PROGRAM + more, str(confined.root), how.level, how.by, script]
    with subprocess.Popen(argv, cwd=ROOT, env={"PATH": PATH, "A_SECRET": "of the engine"}, stdout=subprocess.PIPE) as owner:
        try:
            assert (confined.workspace / "up").read_text() == "up\n"
            yield owner
        finally:
            owner.kill()


# Whose it is -------------------------------------------------------------------------------------------------------------------


def test_all_commands_of_a_process_have_one_zygote(confined: Confined) -> None:
    confined.output("true")
    before = zygote_of(os.getpid())

    with ThreadPoolExecutor(8) as pool:
        outputs = [*pool.map(lambda number: confined.output(f"echo {number}; exit 0"), range(24))]

    assert outputs == [f"{number}\n" for number in range(24)]
    assert zygote_of(os.getpid()) == before


def test_a_fork_has_a_zygote_of_its_own_and_takes_it_along(confined: Confined) -> None:
    confined.output("true")
    parents = zygote_of(os.getpid())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            output = confined.output("echo by a fork")
            own = zygote_of(os.getpid())
            os.write(writing, f"{own.pid} {own.start_time} {output}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        pid, start_time, output = lines.read().split(" ", 2)
    os.waitpid(child, 0)

    assert output == "by a fork\n"
    assert int(pid) != parents.pid
    own = Process(int(pid), int(start_time), 0, 0, 0, "R")
    wait_until(lambda: gone(own))
    assert confined.output("echo on") == "on\n"
    assert zygote_of(os.getpid()) == parents


def test_a_fork_does_not_keep_its_parent_s_zygote_alive(confined: Confined) -> None:
    more = "go('true'); pid = os.fork(); pid or os.read(0, 1); go()"
    with staying(confined, more=more.replace("os.read(0, 1)", "(open(os.path.join(root, 'w', 'two')).read(), os._exit(0))")) as owner:
        zygote = zygote_of(owner.pid)
        owner.kill()
        owner.wait(LONG)

        wait_until(lambda: gone(zygote))
        assert somebody_reads(confined.workspace / "two")  # the fork is there yet, and ends now


# What it leaves ----------------------------------------------------------------------------------------------------------------


def test_it_is_gone_when_its_process_has_ended(confined: Confined) -> None:
    with staying(confined) as owner:
        zygote = zygote_of(owner.pid)
        (confined.workspace / "stay").write_text("end\n")

        assert owner.wait(LONG) == 0
        # Not only soon: the process sees it off.
        assert gone(zygote)


@pytest.mark.parametrize("script", [STAYS, WITH_DAEMON])
def test_it_and_all_it_started_are_gone_when_its_process_was_killed(confined: Confined, script: str) -> None:
    with staying(confined, script) as owner:
        zygote = zygote_of(owner.pid)
        attendants = [one for one in map(process, children(zygote.pid)) if one is not None]
        assert attendants
        owner.kill()
        owner.wait(LONG)

        wait_until(lambda: gone(zygote) and all(map(gone, attendants)))
        assert not somebody_reads(confined.workspace / "stay")
        assert not somebody_reads(confined.workspace / "two")


def test_commands_leave_no_descriptor_open_and_no_process(confined: Confined) -> None:
    confined.output("true")
    zygote = zygote_of(os.getpid())
    before = [descriptors(pid) for pid in (os.getpid(), zygote.pid)]

    for script in ("true", "exit 3", "kill -9 $$", "cat", "no-such-program"):
        confined.shell(script)
    confined.run("no-such-program")
    confined.shell("sleep 600", timeout=0.5)

    wait_until(lambda: not children(zygote.pid) and descriptors(zygote.pid) == before[1])
    assert descriptors(os.getpid()) == before[0]


def test_commands_that_are_ended_at_any_moment_of_their_start_leave_nothing(confined: Confined) -> None:
    os.mkfifo(confined.workspace / "two")
    script = WITH_DAEMON.replace("echo up > up; exec 9< stay; read line <&9", "exec sleep 600")
    limits = [0, 0.001, 0.003, 0.01, 0.03, 0.1] * 4

    with ThreadPoolExecutor(4) as pool:
        ended = [*pool.map(lambda limit: confined.shell(script, timeout=limit), limits)]

    assert all(one.timed_out for one in ended)
    assert not somebody_reads(confined.workspace / "two")
    wait_until(lambda: not children(zygote_of(os.getpid()).pid))


def test_it_has_nothing_of_its_process_s_environment_nor_of_its_files(confined: Confined, tmp_path: Path) -> None:
    more = "fd = os.open(os.path.join(root, 'w'), os.O_RDONLY); os.set_inheritable(fd, True); go()"
    with staying(confined, more=more) as owner:
        zygote = zygote_of(owner.pid)

        assert b"A_SECRET" not in Path(f"/proc/{zygote.pid}/environ").read_bytes()
        links = [os.readlink(f"/proc/{zygote.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{zygote.pid}/fd")]
        assert not [link for link in links if link.startswith(str(tmp_path))]
        assert os.readlink(f"/proc/{zygote.pid}/cwd") == "/"
        assert os.readlink(f"/proc/{zygote.pid}/exe") == os.path.realpath(sys.executable)


# Accidents, and programs that would do it harm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["$PPID", "-- -$PPID", "$(cut -d' ' -f4 /proc/$PPID/stat)", "-- -1", "0"])
def test_a_command_cannot_kill_who_started_it(guarded: Confined, whom: str) -> None:
    if lets_signals_out():
        pytest.skip("this kernel's Landlock lets signals out")
    guarded.output("true")
    before = zygote_of(os.getpid())

    # By number 0 it kills its own group: that is its right.
    ended = guarded.shell(f"kill -9 {whom} 2> /dev/null; exit 5")

    assert (ended.code, ended.signal) in ((5, None), (None, signal.SIGKILL))
    assert ended.code == 5 or whom in ("0", "-- -1")
    assert guarded.output("echo on") == "on\n"
    assert zygote_of(os.getpid()) == before


def test_one_that_was_killed_is_replaced_and_what_runs_goes_on(confined: Confined) -> None:
    for name in ("up", "stay"):
        os.mkfifo(confined.workspace / name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(confined.shell, f"{STAYS}; echo $line; exit 4")
        assert (confined.workspace / "up").read_text() == "up\n"
        killed = zygote_of(os.getpid())
        os.kill(killed.pid, signal.SIGKILL)

        assert confined.output("echo by another") == "by another\n"
        (confined.workspace / "stay").write_text("said\n")
        ended = running.result()

    assert (ended.code, ended.stdout) == (4, b"said\n")
    assert zygote_of(os.getpid()).pid != killed.pid
    assert gone(killed)


def test_what_an_attendant_that_was_killed_leaves_behind_ends_too(confined: Confined) -> None:
    for name in ("up", "stay", "two"):
        os.mkfifo(confined.workspace / name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(confined.shell, WITH_DAEMON)
        assert (confined.workspace / "up").read_text() == "up\n"
        wait_until((confined.workspace / "daemon").exists)
        (attendant,) = children(zygote_of(os.getpid()).pid)
        os.kill(attendant, signal.SIGKILL)
        ended = running.result()

    assert (ended.code, ended.signal) == (None, signal.SIGKILL)
    assert ended.lost == "the process that attends it was killed"
    wait_until(lambda: not somebody_reads(confined.workspace / "two"))


def test_a_jail_whose_first_process_was_killed_is_not_an_end_of_the_program(tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, available("jail by namespaces"))
    for name in ("up", "stay"):
        os.mkfifo(confined.workspace / name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(confined.shell, STAYS)
        assert (confined.workspace / "up").read_text() == "up\n"
        (attendant,) = children(zygote_of(os.getpid()).pid)
        (first,) = children(attendant)
        os.kill(first, signal.SIGKILL)
        ended = running.result()

    assert (ended.code, ended.signal) == (None, signal.SIGKILL)
    assert ended.lost == "the first process of its jail was ended by signal 9"


@pytest.mark.parametrize("script", ["kill -9 $$", "kill -9 0", "sh -c 'kill -9 -1'; exit 3", "kill -9 1; kill -9 $$"])
def test_a_program_that_kills_its_own_processes_has_not_lost_its_confinement(tmp_path: Path, script: str) -> None:
    ended = Confined.make(tmp_path, available("jail by namespaces")).shell(script)

    assert (ended.code, ended.signal, ended.lost) == (None, signal.SIGKILL, None)


def test_a_process_that_has_other_limits_by_now_passes_them_on(confined: Confined) -> None:
    script = "umask; ulimit -S -c; : > made; stat -c %a made; rm made"
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    mask = os.umask(0o022)
    try:
        first = confined.output(script)
        os.umask(0o077)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        second = confined.output(script)
    finally:
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))

    assert first.split()[0::2] == ["0022", "644"]
    assert second.split() == ["0077", "0", "600"]


def test_a_thread_that_may_do_less_cannot_do_more_through_the_zygote(confined: Confined) -> None:
    from pytest_gittrix.os_level.linux import gain_nothing_by_exec
    from pytest_gittrix.os_level.seccomp import failing, install

    confined.output("true")
    raised: list[Exception] = []

    def restricted() -> None:
        gain_nothing_by_exec()
        install(failing({"unshare": 1, "landlock_create_ruleset": 38}))
        try:
            confined.shell(": > made")
        except AdapterUnavailable as problem:
            raised.append(problem)

    thread = threading.Thread(target=restricted)
    thread.start()
    thread.join()

    assert "could not be confined" in str(raised)
    assert not (confined.workspace / "made").exists()
    assert confined.output("echo on") == "on\n"
