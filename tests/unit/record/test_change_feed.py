"""What an index of a large store is told of instead of looking: nothing that this engine writes is missed, whoever is killed when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.os_level.file_lock import RECORD_LOCKS, show_at_work
from pytest_gittrix.record.eventlog.change_feed import FILE, ChangeFeed, Mark, announce_write
from pytest_gittrix.record.eventlog.log import ReadPolicy
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store import index as index_module
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store
from tests.unit.record.test_index import append, start

pytestmark = pytest.mark.skipif(not RECORD_LOCKS, reason="elsewhere an index looks at every session, each time")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of two sessions."""
    store = Store(tmp_path / "sessions", durability="fast")
    start(store, "a")
    start(store, "b")
    return store


def trusting(store: Store) -> Index:
    """An index that takes any store for a large one, and has begun to believe what it is told."""
    index = Index(store, persist_from=0, trust_from=0)
    index.sync()
    index.sync()
    return index


def change_unseen(store: Store, id: str) -> None:
    """Add an event to a session's log as somebody would who tells nobody."""
    path = store.directory(id) / "events.jsonl"
    path.write_bytes(path.read_bytes() + _line(store, id))


def _line(store: Store, id: str) -> bytes:
    """The line of an event that comes next in the log of a session."""
    log = store.log(id)
    copy = Store(store.root.parent / "copies", durability="fast")
    copied = copy.create(id) / "events.jsonl"
    before = log.path.read_bytes()
    copied.write_bytes(before)
    copy.log(id).append("session.ended", {"state": "discarded"}, ts=log.read()[-1].ts)
    return copied.read_bytes()[len(before) :]


def states(index: Index) -> dict[str, str]:
    """The state of each session, as the rows have it."""
    return {row.id: row.state for row in index.rows()}


def end(store: Store, id: str) -> None:
    """End a session, and tell."""
    append(store, id, "session.ended", {"state": "expired"})


def test_an_index_looks_only_where_it_is_told_to(store: Store) -> None:
    index = trusting(store)
    change_unseen(store, "a")
    end(store, "b")
    index.sync()
    assert states(index) == {"a": "active", "b": "expired"}
    index.rebuild()
    assert states(index) == {"a": "discarded", "b": "expired"}


def test_each_new_index_looks_at_everything_first(store: Store) -> None:
    trusting(store).close()
    change_unseen(store, "a")
    index = Index(store, trust_from=0)
    index.sync()
    assert states(index) == {"a": "discarded", "b": "active"}


def test_in_a_small_store_nobody_is_told_and_everything_is_looked_at(store: Store) -> None:
    index = Index(store, persist_from=0)
    for _ in range(3):
        index.sync()
    change_unseen(store, "a")
    index.sync()
    assert states(index)["a"] == "discarded"
    assert not (store.root / FILE).exists()


def test_a_session_that_is_new_is_told_of(store: Store) -> None:
    index = trusting(store)
    start(store, "c")
    index.sync()
    assert states(index) == dict.fromkeys("abc", "active")


def test_a_repaired_log_is_told_of(store: Store) -> None:
    index = trusting(store)
    log = store.log("a")
    path = log.path
    path.write_bytes(path.read_bytes()[:-3])  # the workspace is not ready any more
    assert log.repair(ts=log.read()[-1].ts) is not None
    index.sync()
    assert index.row("a") == Index(store, persist_from=99).row("a")


def test_a_writer_that_has_told_and_not_yet_written_is_waited_for(store: Store) -> None:
    index, line = trusting(store), _line(store, "a")
    fd = os.open(store.log("a").path, os.O_RDWR | os.O_APPEND)
    show_at_work(fd)
    announce_write(str(store.root / FILE), "a")
    index.sync()
    assert states(index)["a"] == "active"
    os.write(fd, line)
    os.close(fd)
    index.sync()
    assert states(index)["a"] == "discarded"


def test_a_writer_that_told_in_a_file_that_was_replaced_since_is_waited_for(store: Store) -> None:
    index, line = trusting(store), _line(store, "a")
    fd = os.open(store.log("a").path, os.O_RDWR | os.O_APPEND)
    show_at_work(fd)
    announce_write(str(store.root / FILE), "a")
    ChangeFeed(store.root, "events.jsonl").begin()
    for _ in range(3):
        index.sync()
    os.write(fd, line)
    os.close(fd)
    index.sync()
    assert states(index)["a"] == "discarded"


def test_a_writer_that_began_before_there_was_a_file_is_waited_for(store: Store) -> None:
    line = _line(store, "a")
    fd = os.open(store.log("a").path, os.O_RDWR | os.O_APPEND)
    show_at_work(fd)
    announce_write(str(store.root / FILE), "a")  # there is nothing to tell it in
    index = trusting(store)
    index.sync()
    os.write(fd, line)
    os.close(fd)
    index.sync()
    assert states(index)["a"] == "discarded"


WRITER = """
import os, sys
from pytest_gittrix.record.eventlog.change_feed import announce_write
from pytest_gittrix.os_level.file_lock import show_at_work

log, changes, line = sys.argv[1:]
fd = os.open(log, os.O_RDWR | os.O_APPEND)
show_at_work(fd)
announce_write(changes, "a")
print("told", flush=True)
sys.stdin.read(1)
os.write(fd, bytes.fromhex(line))
print("written", flush=True)
sys.stdin.read()
"""


def test_a_writer_that_was_killed_before_it_let_go_is_not_missed(store: Store) -> None:
    index, line = trusting(store), _line(store, "a")
    command = [sys.executable, "-c", WRITER, str(store.log("a").path), str(store.root / FILE), line.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "told\n"
        index.sync()
        child.stdin.write("g")
        child.stdin.flush()
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
    index.sync()
    assert states(index)["a"] == "discarded"


def test_a_line_that_was_cut_short_by_a_kill_does_not_spoil_the_next(store: Store) -> None:
    index = trusting(store)
    with open(store.root / FILE, "a") as changes:
        changes.write("\nsess_tor")
    index.sync()
    end(store, "b")
    index.sync()
    assert states(index)["b"] == "expired"


def test_what_is_told_is_taken_for_a_name_and_not_for_a_path(store: Store, tmp_path: Path) -> None:
    index = trusting(store)
    (tmp_path / "events.jsonl").write_bytes(store.log("a").path.read_bytes())
    with open(store.root / FILE, "a") as changes:
        changes.write("\n..\n/etc\nnobody\n")
    index.sync()
    assert (states(index), index.problems()) == ({"a": "active", "b": "active"}, [])


@pytest.mark.parametrize("how", ["removed", "emptied", "garbage", "another", "a directory"])
def test_a_spoilt_file_is_not_believed(store: Store, how: str) -> None:
    index = trusting(store)
    path = store.root / FILE
    path.unlink()
    if how == "emptied":
        path.touch()
    elif how == "garbage":
        path.write_bytes(b"\xff" * 100)
    elif how == "another":
        ChangeFeed(store.root, "events.jsonl").begin()
    elif how == "a directory":
        path.mkdir()
    change_unseen(store, "a")
    index.sync()
    assert states(index)["a"] == "discarded"


def test_a_file_that_has_grown_is_begun_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LARGEST", 200)
    index = trusting(store)
    for number in range(40):
        append(store, "a", "session.accessed")
        if number % 3 == 0:
            index.sync()
            assert index.rows()[0].seq == 2 + number
    assert (store.root / FILE).stat().st_size < 500


def test_an_event_that_cannot_be_told_is_not_stored(store: Store) -> None:
    index = trusting(store)
    (store.root / FILE).unlink()
    (store.root / FILE).mkdir()
    before = store.log("a").read()
    with pytest.raises(Exception, match="cannot be used"):
        end(store, "a")
    assert store.log("a").read() == before
    (store.root / FILE).rmdir()
    end(store, "a")
    index.sync()
    assert states(index)["a"] == "expired"


def test_a_session_that_could_not_be_read_is_looked_at_each_time(store: Store) -> None:
    path = store.log("a").path
    whole = path.read_bytes()
    path.write_bytes(b"garbage\n" + whole)
    index = trusting(store)
    assert [problem.id for problem in index.problems()] == ["a"]
    path.write_bytes(whole)
    index.sync()
    assert states(index) == {"a": "active", "b": "active"}


class Interrupted(Store):
    """A store in which something else happens just after a session was read."""

    then: Callable[[], Any] = staticmethod(lambda: None)

    def load(self, id: str, *, policy: ReadPolicy = "repair-tail") -> SessionState:
        state = super().load(id, policy=policy)
        happens, self.then = self.then, lambda: None
        happens()
        return state


@pytest.mark.parametrize("slow_looks_at_all", [False, True])
def test_an_index_that_writes_late_does_not_hide_what_another_saw(store: Store, slow_looks_at_all: bool) -> None:
    slow_store = Interrupted(store.root, durability="fast")
    slow, fast = trusting(slow_store), trusting(store)

    def meanwhile() -> None:
        end(store, "a")
        fast.sync()
        assert states(fast)["a"] == "expired"

    append(store, "a", "session.accessed")
    slow_store.then = meanwhile
    if slow_looks_at_all:
        slow = Index(slow_store, trust_from=0)
    slow.sync()  # has read a session that was active, and says so after the other index has said that it is over
    for index in (fast, slow):
        index.sync()
        assert states(index)["a"] == "expired"


def test_an_index_that_writes_late_while_another_looks_does_not_hide_what_was_seen_before(store: Store) -> None:
    slow_store, fast_store = Interrupted(store.root, durability="fast"), Interrupted(store.root, durability="fast")
    slow, fast = trusting(slow_store), trusting(fast_store)
    has_read, may_write = threading.Event(), threading.Event()

    def wait() -> None:
        has_read.set()
        assert may_write.wait(60)

    def let_the_slow_one_write() -> None:
        may_write.set()
        late.join()

    append(store, "a", "session.accessed")
    slow_store.then = wait
    late = threading.Thread(target=slow.sync)
    late.start()
    assert has_read.wait(60)
    end(store, "a")
    fast.sync()
    append(store, "b", "session.accessed")
    fast_store.then = let_the_slow_one_write
    fast.sync()  # has nothing to say of the one session, of which the other index has just written back an older state
    fast.sync()
    assert states(fast)["a"] == "expired"


def test_a_place_that_nobody_knows_is_none(tmp_path: Path) -> None:
    changes = ChangeFeed(tmp_path, "events.jsonl")
    assert changes.since(None) is None
    changes.begin()
    changed = changes.since(None)
    assert changed is not None
    assert changed.ids == frozenset()
    assert changes.since(Mark("0" * 32, changed.end.offset)) is None
    assert changes.since(changed.end) == changed


SYNCER = """
import sys
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store

store, name = Store(sys.argv[1], durability="fast"), sys.argv[2]
index = Index(store, persist_from=0, trust_from=0)
sys.stdin.read(1)
for round in range(60):
    event = store.log(name).append("session.accessed", {}, ts=10**18 + round)
    index.sync()
    seq = index.row(name).seq
    assert seq == event.seq, (round, seq, event.seq)
print("fine")
"""


def test_processes_see_each_change_of_their_own_at_once(store: Store) -> None:
    names = ["a", "b", "c"]
    start(store, "c")
    command = [sys.executable, "-c", SYNCER, str(store.root)]
    children = [subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in names]
    assert [child.communicate("g")[0] for child in children] == ["fine\n"] * 3
    index = trusting(store)
    assert [(row.id, row.seq) for row in index.rows()] == [(name, 61) for name in names]
