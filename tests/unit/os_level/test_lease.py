"""One owner at a time: across threads and processes, after a kill, and when the lock file is pulled from under somebody."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, InvalidInput
from pytest_gittrix.os_level import file_lock
from pytest_gittrix.os_level.file_lock import retry
from pytest_gittrix.os_level.lease import Lease, Owner

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to tell processes apart")


HOLDER = """
import sys
from pytest_gittrix.os_level.lease import Lease

with Lease(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read(1)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lease, until it reads something."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_lease_is_held_inside_its_block(path: Path) -> None:
    lease = Lease(path)
    with lease:
        assert lease.held
        with pytest.raises(EvictionRace):
            Lease(path, wait=0).acquire()
    assert not lease.held
    Lease(path, wait=0).acquire().release()


def test_a_lease_is_released_when_its_block_fails(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lease(path):
        1 / 0  # noqa: B018
    Lease(path, wait=0).acquire().release()


def test_releasing_what_is_not_held_does_nothing(path: Path) -> None:
    lease = Lease(path)
    lease.release()
    with lease:
        pass
    lease.release()
    assert not lease.held


def test_the_refusal_names_the_process_that_holds_it(path: Path) -> None:
    child = holder(path)
    with pytest.raises(EvictionRace, match=f"held by process {child.pid} on ") as caught:
        Lease(path, wait=0).acquire()
    assert str(path) in caught.value.fact
    child.communicate("done")


def test_the_refusal_does_without_the_name_when_there_is_none(path: Path) -> None:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(EvictionRace, match="held by another process"):
            Lease(path, wait=0).acquire()


@needs_proc
def test_the_lease_of_a_killed_process_is_free_and_its_owner_known_dead(path: Path) -> None:
    child = holder(path)
    child.kill()
    child.communicate()
    lease = Lease(path, wait=0)
    owner = lease.owner()
    assert owner is not None
    assert owner.pid == child.pid
    assert owner.alive() is False
    with lease:
        assert lease.owner() == Owner.current()


def test_a_lock_file_left_behind_by_another_program_is_free(path: Path) -> None:
    path.write_text("")  # as the TypeScript GitTrix leaves it when it is killed
    with Lease(path, wait=0):
        pass
    path.write_text("12345 is not an owner\n" * 100)
    with Lease(path, wait=0) as lease:
        assert lease.held
    assert path.exists()


def test_while_it_waits_it_passes_a_point_where_the_holder_can_be_let_on(path: Path) -> None:
    first, second = Lease(path).acquire(), Lease(path)
    passed: list[str] = []

    def let_on(name: str) -> None:
        passed.append(name)
        first.release()

    with points.listening(let_on), second:
        assert passed == ["lease:busy"]


def test_threads_exclude_each_other_even_through_one_lease_object(path: Path) -> None:
    lease = Lease(path)
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lease:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, inside) == (1, 0)
    assert not lease.held


def test_a_thread_that_already_holds_it_is_told_instead_of_waiting_for_itself(path: Path) -> None:
    with Lease(path) as lease:
        with pytest.raises(EvictionRace, match="this very thread"):
            lease.acquire()
        assert lease.held


def test_a_lock_file_replaced_between_open_and_lock_is_not_taken_for_the_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_lock = fcntl.flock
    tries = 0

    def evicted_meanwhile(fd: int, how: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            path.unlink()
        if tries == 2:
            os.replace(path.with_name("other"), path)
        really_lock(fd, how)

    path.with_name("other").touch()
    monkeypatch.setattr(fcntl, "flock", evicted_meanwhile)
    lease = Lease(path).acquire()
    monkeypatch.undo()
    assert tries == 3
    with pytest.raises(EvictionRace):
        Lease(path, wait=0).acquire()
    lease.release()


@needs_proc
def test_no_descriptor_is_left_open(path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with Lease(path):
        for _ in range(5):
            with pytest.raises(EvictionRace):
                Lease(path, wait=0).acquire()
    assert os.listdir("/proc/self/fd") == before


def test_a_program_started_while_it_is_held_does_not_keep_it(path: Path) -> None:
    with Lease(path):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    Lease(path, wait=0).acquire().release()
    child.communicate()


FORKED = """
import os, sys
from pytest_gittrix.errors import EvictionRace
from pytest_gittrix.os_level.lease import Lease

lease = Lease(sys.argv[1]).acquire()
if not os.fork():
    lease.release()
    os._exit(0)
os.wait()
try:
    Lease(sys.argv[1], wait=0).acquire()
except EvictionRace:
    print("still held")
"""


def test_a_forked_child_cannot_release_what_its_parent_holds(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "still held\n"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterUnavailable, match="gone"):
        Lease(tmp_path / "gone" / ".lock").acquire()


def test_a_lock_that_cannot_be_opened_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(AdapterUnavailable, match=r"\.lock cannot be used"):
        Lease(path).acquire()


@needs_proc
def test_a_file_system_without_locks_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = {*os.listdir("/proc/self/fd")}
    with pytest.raises(AdapterUnavailable, match="has no file locks"):
        Lease(path).acquire()
    assert {*os.listdir("/proc/self/fd")} <= before


def test_a_full_disk_does_not_keep_anybody_from_the_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Lease(path) as lease:
        assert lease.held


# Owners ---------------------------------------------------------------------------------------------------------------------------


@needs_proc
def test_this_process_is_alive_and_itself() -> None:
    owner = Owner.current()
    assert owner.pid == os.getpid()
    assert owner.alive() is True
    assert Owner.from_json(owner.to_json()) == owner


@needs_proc
def test_another_process_with_the_same_number_is_not_the_owner() -> None:
    here = Owner.current()
    assert here.start_time is not None
    assert dataclasses.replace(here, start_time=here.start_time + 1).alive() is False


@needs_proc
def test_a_process_killed_but_not_yet_waited_for_is_dead() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stat = Path(f"/proc/{child.pid}/stat").read_text()
    owner = dataclasses.replace(Owner.current(), pid=child.pid, start_time=int(stat.rpartition(") ")[2].split()[19]))
    assert owner.alive() is True
    child.kill()
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner.alive() is False
    child.communicate()
    assert owner.alive() is False


@needs_proc
def test_a_process_of_an_earlier_boot_is_dead() -> None:
    assert dataclasses.replace(Owner.current(), boot_id="another").alive() is False


@needs_proc
@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"pid_space": 1}, {"boot_id": None}, {"start_time": None}])
def test_what_cannot_be_told_from_here_is_left_open(change: dict[str, object]) -> None:
    assert dataclasses.replace(Owner.current(), **change).alive() is None  # type: ignore[arg-type]


def test_where_start_times_are_unknown_a_number_nobody_has_is_still_dead() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert dataclasses.replace(Owner.current(), pid=child.pid, start_time=None).alive() is False


def test_an_owner_may_come_with_keys_of_a_later_version() -> None:
    owner = Owner.current()
    assert Owner.from_json({**owner.to_json(), "thread": 3}) == owner


@pytest.mark.parametrize("fields", [None, 3, [], {}, {"pid": 1}, {"pid": "1", "start_time": 1, "boot_id": None, "host": "h"}])
def test_what_is_no_owner_is_refused(fields: object) -> None:
    with pytest.raises(InvalidInput, match="does not name a process"):
        Owner.from_json(fields)


@pytest.mark.parametrize("free_after", [0.0, 0.003, 0.05, 5.0])
def test_nobody_waits_much_longer_than_a_lock_is_held(monkeypatch: pytest.MonkeyPatch, free_after: float) -> None:
    now = 0.0

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

    monkeypatch.setattr(file_lock, "time", Time)

    assert retry(lambda: True if now >= free_after else None, wait=60, refusal=AssertionError)
    assert now <= max(free_after * 1.25, free_after + 0.0005)
    assert now <= free_after + 0.02


def test_a_wait_ends_in_the_refusal_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError, match="enough"):
        retry(lambda: None, wait=0.002, refusal=lambda: TimeoutError("enough"))


def test_who_waits_is_told_once_who_has_the_lease_for_what_and_since_when(path: Path) -> None:
    told: list[str] = []

    def tell(holder: str) -> None:
        told.append(holder)
        first.release()

    first = Lease(path, about="the promotion of session s1").acquire()
    waiter = threading.Thread(target=lambda: Lease(path, waiting=tell, patience=0).acquire().release())
    waiter.start()
    waiter.join()

    (holder,) = told
    assert f"process {os.getpid()} on {os.uname().nodename}, for the promotion of session s1, since 20" in holder
    assert Owner.current() == first.owner()


def test_the_refusal_names_what_the_owner_is_at(path: Path) -> None:
    with Lease(path, about="a" * 500), pytest.raises(EvictionRace, match=f"for {'a' * 100}, since"):
        Lease(path, wait=0, waiting=lambda _holder: None).acquire()
    with Lease(path), pytest.raises(EvictionRace, match=rf"process {os.getpid()} on \S+, since"):
        Lease(path, wait=0).acquire()


@needs_proc
def test_a_stopped_owner_is_named_as_such(path: Path) -> None:
    child = holder(path)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(EvictionRace, match=rf"process {child.pid} on \S+, which is stopped, since[\s\S]*kill -CONT"):
            Lease(path, wait=0).acquire()
    finally:
        child.kill()
        child.communicate()
