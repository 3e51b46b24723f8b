"""A log on a disk that fails, and written by several processes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from support.log import NOW, STREAM, write

from pytest_gittrix.errors import LogDamaged
from pytest_gittrix.record.eventlog import log as log_module
from pytest_gittrix.record.eventlog.log import EventLog


def python(script: str, *args: object) -> subprocess.Popen[str]:
    """A process that runs ``script``."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# A disk that fails ----------------------------------------------------------------------------------------------------------------


FULL_DISK = """
import json, resource, signal, sys
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.record.eventlog.log import EventLog

path, stream, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = EventLog(path, stream, durability="fast")
write = lambda: log.append("session.write", {"path": "a", "op": "write"}, ts=0).seq
write()
size = len(open(path, "rb").read())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
try:
    write()
except AdapterUnavailable as problem:
    refused = problem.__cause__.errno
after = len(open(path, "rb").read())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps([size, refused, after, write()]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
@pytest.mark.parametrize("room", [0, 1, 100])
def test_an_event_that_finds_no_room_is_not_half_there(path: Path, room: int) -> None:
    child = python(FULL_DISK, path, STREAM, room)
    size, refused, after, seq = json.loads(child.communicate()[0])
    assert refused == errno.EFBIG
    assert after == size
    assert seq == 1
    assert len(EventLog(path, STREAM).read("strict")) == 2


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced: ``data`` of the log, or its ``directory``."""
    done: list[str] = []
    monkeypatch.setattr(log_module, "_sync_data", lambda fd: done.append("data"))
    monkeypatch.setattr(log_module, "sync_directory", lambda path: done.append("directory"))
    return done


def test_full_durability_syncs_commit_points_and_the_name_of_a_new_log(path: Path, syncs: list[str]) -> None:
    log = EventLog(path, STREAM)
    write(log)
    assert syncs == ["data", "directory"]
    write(log)
    assert len(syncs) == 2
    log.append("session.ended", {"state": "expired"}, ts=NOW, commit_point=True)
    assert syncs[2:] == ["data"]


def test_fast_durability_syncs_nothing(log: EventLog, syncs: list[str]) -> None:
    log.append("session.ended", {"state": "expired"}, ts=NOW, commit_point=True)
    assert syncs == []


@pytest.fixture
def failing_sync(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on the disk refuses to sync; call it and the disk works again."""

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    works = log_module._sync_data
    monkeypatch.setattr(log_module, "_sync_data", refuse)
    return lambda: monkeypatch.setattr(log_module, "_sync_data", works)


def test_after_a_failed_sync_nothing_is_built_on_it(path: Path, failing_sync: Callable[[], None]) -> None:
    log = EventLog(path, STREAM)
    with pytest.raises(LogDamaged, match="did not keep the last event"):
        write(log)
    failing_sync()
    with pytest.raises(LogDamaged, match="did not keep the last event"):
        write(log)
    assert log.torn


def test_repair_after_a_failed_sync_writes_the_log_anew(path: Path, failing_sync: Callable[[], None]) -> None:
    log = EventLog(path, STREAM)
    with pytest.raises(LogDamaged):
        write(log)
    failing_sync()
    old = path.stat().st_ino
    assert log.repair(ts=NOW) is None
    assert path.stat().st_ino != old
    assert not log.torn
    assert write(log).seq == 1
    assert [event.seq for event in log.read("strict")] == [0, 1]
    assert os.listdir(path.parent) == [path.name]


def test_repair_on_a_disk_that_still_refuses_says_so(path: Path, failing_sync: None, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(path, STREAM)
    with pytest.raises(LogDamaged):
        write(log)

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    before = path.read_bytes()
    with pytest.raises(LogDamaged, match="did not keep"):
        log.repair(ts=NOW)
    assert log.torn
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


# Several processes ------------------------------------------------------------------------------------------------------------------


APPENDER = """
import sys
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.log import EventLog

path, stream, name, count = sys.argv[1:]
log = EventLog(path, stream, durability="fast")
sys.stdin.read(1)
for number in range(int(count)):
    with Lease(path + ".lock"):
        log.append("session.write", {"path": f"{name}/{number}", "op": "write"}, ts=number, actor="agent")
"""


def test_four_processes_under_the_lease_leave_no_gap_and_lose_nothing(path: Path) -> None:
    children = [python(APPENDER, path, STREAM, name, 250) for name in "abcd"]
    for child in children:
        child.communicate("go")
        assert child.returncode == 0
    events = EventLog(path, STREAM).read("strict")
    assert [event.seq for event in events] == list(range(1000))
    for name in "abcd":
        assert [event.data["path"] for event in events if event.data["path"][0] == name] == [f"{name}/{n}" for n in range(250)]


ENDLESS = """
import sys
from pytest_gittrix.record.eventlog.log import EventLog

log = EventLog(sys.argv[1], sys.argv[2], durability="fast")
while True:
    event = log.append("session.commit", {"sha": "0" * 40, "message": "long " * 4000}, ts=0)
    print(event.seq, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_writer_killed_at_any_moment_loses_nothing_it_said_was_stored(path: Path) -> None:
    acknowledged = -1
    for _ in range(4):
        child = python(ENDLESS, path, STREAM)
        assert child.stdout is not None
        for _ in range(10):
            acknowledged = int(child.stdout.readline())
        child.kill()
        for line in child.communicate()[0].splitlines():
            acknowledged = int(line)
        log = EventLog(path, STREAM, durability="fast")
        log.repair(ts=NOW)
        events = log.read("strict")
        assert [event.seq for event in events] == list(range(len(events)))
        assert len(events) > acknowledged
