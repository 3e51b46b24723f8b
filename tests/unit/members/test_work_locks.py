"""Locks of work items: one session each, across processes, restarts and kills."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, InvalidInput
from pytest_gittrix.members.work_locks import MOST_CHARACTERS, LockAnswer, WorkLock, WorkLocks
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.testing.faults.fault_sweep import sweep
from pytest_gittrix.testing.faults.faults import Fault, SupervisedRun
from pytest_gittrix.testing.faults.supervisor import supervise_function, supported

LONG = 60.0
SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"

# Each of them asks for each item once all are there, and says which it got; some release at once and count how often they were alone.
WORKER = """
    import os, sys
    from pytest_gittrix.members.work_locks import WorkLocks

    directory, session, mode, items = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    locks = WorkLocks(directory, is_live=lambda id: id != "gone", now_ns=lambda: 1, wait=60)
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    for item in items:
        got = locks.acquire(item, session)
        assert got.acquired == (got.holder == session), got
        if got.acquired:
            won.append(item)
            if mode == "release":
                marker = os.path.join(directory, "at-work")
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                os.unlink(marker)
                assert locks.release(item, session)
    print(*won, flush=True)
"""


def locks_of(directory: Path, *, live: Callable[[str], bool] = lambda id: True, now_ns: int = 7, wait: float = 10.0) -> WorkLocks:
    return WorkLocks(directory, is_live=live, now_ns=lambda: now_ns, wait=wait)


@pytest.fixture
def locks(tmp_path: Path) -> WorkLocks:
    """Those of a directory that is not there yet, with sessions that all live."""
    return locks_of(tmp_path / "locks")


def contend(directory: Path, mode: str, items: list[str], sessions: list[str]) -> list[list[str]]:
    """Have processes ask for items at the same time; what each got."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), str(directory), session, mode, *items],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for session in sessions
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = [worker.communicate(timeout=LONG)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return [text.split() for text in said]


def test_an_item_is_held_by_who_asks_first(locks: WorkLocks) -> None:
    assert locks.holder("acme/app#1") is None
    assert locks.acquire("acme/app#1", "one") == LockAnswer(True, "one")
    assert locks.acquire("acme/app#1", "two") == LockAnswer(False, "one")
    assert locks.acquire("acme/app#2", "two") == LockAnswer(True, "two")

    assert locks.holder("acme/app#1") == "one"
    assert locks.held() == [WorkLock("acme/app#1", "one", 7), WorkLock("acme/app#2", "two", 7)]


def test_who_holds_it_gets_it_again(locks: WorkLocks, tmp_path: Path) -> None:
    locks.acquire("1", "one")

    assert locks_of(tmp_path / "locks", now_ns=99).acquire("1", "one") == LockAnswer(True, "one", already_held=True)
    assert locks.held() == [WorkLock("1", "one", 7)]


def test_only_its_holder_releases_it(locks: WorkLocks) -> None:
    assert locks.release("1", "one") is False
    locks.acquire("1", "one")

    assert locks.release("1", "two") is False
    assert locks.holder("1") == "one"
    assert locks.release("1", "one") is True
    assert locks.release("1", "one") is False
    assert locks.acquire("1", "two").acquired


def test_a_session_releases_all_it_holds(locks: WorkLocks) -> None:
    for item, session in {"b": "one", "a": "one", "c": "two"}.items():
        locks.acquire(item, session)

    assert locks.release_all("one") == ["a", "b"]
    assert locks.release_all("one") == []
    assert [lock.item for lock in locks.held()] == ["c"]


def test_locks_survive_a_restart(locks: WorkLocks, tmp_path: Path) -> None:
    locks.acquire("1", "one")

    assert contend(tmp_path / "locks", "keep", ["1"], ["two"]) == [[]]
    assert contend(tmp_path / "locks", "keep", ["1"], ["one"]) == [["1"]]


def test_a_lock_of_a_session_that_is_over_is_taken_over_and_that_is_told(tmp_path: Path) -> None:
    live = {"one", "two"}
    locks = locks_of(tmp_path, live=live.__contains__)
    locks.acquire("1", "one")
    assert not locks.acquire("1", "two").acquired

    live.remove("one")

    assert locks.holder("1") == "one"  # until somebody asks
    assert locks.acquire("1", "two") == LockAnswer(True, "two", taken_from="one")
    assert locks.acquire("1", "two") == LockAnswer(True, "two", already_held=True)
    assert locks.release("1", "one") is False
    assert locks.holder("1") == "two"


def test_who_is_over_itself_still_has_what_nobody_took(tmp_path: Path) -> None:
    locks = locks_of(tmp_path, live=lambda id: False)
    locks.acquire("1", "one")

    assert locks.acquire("1", "one") == LockAnswer(True, "one", already_held=True)
    assert locks.release("1", "one") is True


def test_a_lock_that_changes_while_its_session_is_asked_for_is_looked_at_again(tmp_path: Path) -> None:
    """A rival takes the dead session's lock first; what was learnt of the dead one says nothing of the rival."""
    asked: list[str] = []

    def live(id: str) -> bool:
        asked.append(id)
        if id == "dead" and len(asked) == 1:
            assert rival.acquire("1", "rival").taken_from == "dead"
        return id != "dead"

    rival, locks = locks_of(tmp_path, live=lambda id: id != "dead"), locks_of(tmp_path, live=live)
    rival.acquire("1", "dead")

    assert locks.acquire("1", "late") == LockAnswer(False, "rival")
    assert asked == ["dead", "rival"]


def test_a_lock_that_another_got_meanwhile_is_not_released(locks: WorkLocks, tmp_path: Path) -> None:
    locks.acquire("1", "one")
    [file] = (tmp_path / "locks").glob("*.item")
    rival = Lease(tmp_path / "locks" / ".lock").acquire()

    def slip_in(point: str) -> None:
        if point == "lease:busy" and rival.held:
            file.write_text('{"version": 1, "item": "1", "session": "two", "since_ns": 8}')
            rival.release()

    with points.listening(slip_in):
        assert locks.release("1", "one") is False
    assert locks.holder("1") == "two"


def test_of_many_processes_exactly_one_gets_each_item(tmp_path: Path) -> None:
    items = [f"acme/app#{number}" for number in range(20)]

    got = contend(tmp_path / "locks", "keep", items, [f"session-{number}" for number in range(6)])

    assert Counter(item for one in got for item in one) == Counter(items)
    holders = {lock.item: lock.session for lock in locks_of(tmp_path / "locks").held()}
    assert holders == {item: f"session-{number}" for number, one in enumerate(got) for item in one}


def test_of_many_processes_exactly_one_takes_a_dead_sessions_item_over(tmp_path: Path) -> None:
    items = [f"acme/app#{number}" for number in range(20)]
    for item in items:
        locks_of(tmp_path).acquire(item, "gone")

    got = contend(tmp_path, "keep", items, [f"session-{number}" for number in range(6)])

    assert Counter(item for one in got for item in one) == Counter(items)


def test_never_two_hold_an_item_at_once(tmp_path: Path) -> None:
    got = contend(tmp_path, "release", ["1"] * 60, [f"session-{number}" for number in range(4)])

    assert sum(map(len, got)) >= 60 / 4
    assert locks_of(tmp_path).held() == []
    assert not (tmp_path / "at-work").exists()


NAMES = [
    "a",
    "A",
    "../../etc/passwd",
    "/",
    "..",
    ".",
    "acme/app#12",
    "Größe",
    "a b",
    "tmp_x",
    ".lock",
    "日本語",
    "-n",
    "*",
    "x" * MOST_CHARACTERS,
]


def test_an_item_can_have_any_name_and_leads_nowhere_else(tmp_path: Path) -> None:
    locks = locks_of(tmp_path / "locks")
    for number, name in enumerate(NAMES):
        assert locks.acquire(name, f"session-{number}").acquired

    assert {lock.item: lock.session for lock in locks.held()} == {name: f"session-{number}" for number, name in enumerate(NAMES)}
    assert os.listdir(tmp_path) == ["locks"]
    assert not [entry for entry in (tmp_path / "locks").iterdir() if entry.is_dir()]


@pytest.mark.parametrize("name", ["", " ", " a", "a\n", "a\0b", "a\tb", "\u2028", "\ud800", "x" * (MOST_CHARACTERS + 1), None, 7])
def test_a_name_that_cannot_be_an_items_is_refused(locks: WorkLocks, tmp_path: Path, name: Any) -> None:
    for call in (lambda: locks.acquire(name, "one"), lambda: locks.release(name, "one"), lambda: locks.holder(name)):
        with pytest.raises(InvalidInput, match="cannot name a work item"):
            call()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("session", ["", "../x", "a b", "x" * 129, None])
def test_what_is_no_session_gets_nothing(locks: WorkLocks, session: Any) -> None:
    for call in (lambda: locks.acquire("1", session), lambda: locks.release("1", session), lambda: locks.release_all(session)):
        with pytest.raises(InvalidInput, match="is not a session id"):
            call()


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=300).filter(lambda t: t == t.strip()))
)
def test_items_with_other_names_are_other_items(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    locks = locks_of(tmp_path_factory.mktemp("locks"))

    won = [locks.acquire(name, f"session-{number}").acquired for number, name in enumerate(names)]

    assert won == [name not in names[:number] for number, name in enumerate(names)]
    assert [lock.item for lock in locks.held()] == sorted({*names})


def test_a_lock_that_cannot_be_read_is_nobodys(locks: WorkLocks, tmp_path: Path) -> None:
    locks.acquire("1", "one")
    [file] = (tmp_path / "locks").glob("*.item")
    for damage in (b"", b"{", b"[]", b"{}", b'{"item": "1", "session": "one", "since_ns": "x"}'):
        file.write_bytes(damage)
        with pytest.raises(AdapterUnavailable, match="is no lock of a work item"):
            locks.acquire("1", "two")
        with pytest.raises(AdapterUnavailable, match="is no lock of a work item"):
            locks.held()
        assert file.read_bytes() == damage
    file.unlink()
    assert locks.acquire("1", "two").acquired


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(AdapterUnavailable, match="cannot be used"):
        locks_of(tmp_path / "file" / "locks").acquire("1", "one")


def test_who_changes_the_locks_for_too_long_is_named(locks: WorkLocks, tmp_path: Path) -> None:
    locks.acquire("1", "one")

    with Lease(tmp_path / "locks" / ".lock"):
        impatient = locks_of(tmp_path / "locks", wait=0)
        with pytest.raises(EvictionRace):
            impatient.acquire("2", "two")
        assert impatient.holder("1") == "one"  # who only looks waits for nobody


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
@pytest.mark.parametrize("kind", ["kill", "torn", "short", "ENOSPC", "sticky EIO"])
@pytest.mark.parametrize("operation", ["first", "acquire", "take over", "release", "release all"])
def test_a_strike_at_any_call_leaves_a_lock_held_or_free(tmp_path: Path, operation: str, kind: str) -> None:
    directories: list[Path] = []

    def locks() -> WorkLocks:
        return locks_of(directories[-1], live=lambda id: id != "gone")

    def act() -> None:
        match operation:
            case "first" | "acquire" | "take over":
                locks().acquire("1", "one")
            case "release":
                locks().release("1", "one")
            case _:
                locks().release_all("one")

    def run(fault: Fault | None) -> SupervisedRun:
        directories.append(tmp_path / f"run-{len(directories)}" / "locks")
        before = {"first": [], "acquire": [("2", "two")], "take over": [("1", "gone")], "release": [("1", "one")]}
        for item, session in before.get(operation, [("1", "one"), ("2", "two"), ("3", "one")]):
            locks().acquire(item, session)
        directories[-1].parent.mkdir(exist_ok=True)
        return supervise_function(act, fault=fault, within=directories[-1].parent, timeout=LONG)

    wanted: set[str | None] = {"gone", "one"} if operation == "take over" else {None, "one"}
    seen = set()
    for fault, struck in sweep(run, kinds=[kind], points=None if SOAK or kind == "kill" else slice(0, None, 3)):
        holder = locks().holder("1")
        seen.add(holder)
        assert holder in wanted, fault
        if kind not in ("kill", "torn"):
            assert struck.exit_code == 0 or b"\npytest_gittrix.errors." in struck.stderr, (fault, struck.stderr)
        if struck.exit_code == 0 and kind != "kill":
            assert holder == (None if operation.startswith("release") else "one"), fault
        # Whatever is left, the next one goes on, and sweeps up.
        assert locks().acquire("1", "one").acquired, fault
        assert locks().acquire("9", "nine").acquired, fault
        assert locks().release("1", "one"), fault
        assert not [name for name in os.listdir(directories[-1]) if name.startswith("tmp_")], fault
    assert seen or kind in ("torn", "short")  # who writes nothing cannot be cut short
