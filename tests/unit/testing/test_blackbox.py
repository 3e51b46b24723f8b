"""Whole programs raced against each other at their system calls, against real processes, real git and real locks."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from support.blackbox import directories_in, making

from pytest_gittrix.errors import InvalidInput, PromoteFailed
from pytest_gittrix.testing.schedules.blackbox import Command, ProcessInterleaving, calls_of, explore_processes, interleave, intrude


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for a lock and holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_by_polling(path: Path) -> Iterator[None]:
    """Opens and tries, until it has the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            os.close(descriptor)
            time.sleep(0.001)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_by_a_directory(path: Path) -> Iterator[None]:
    """The lock is a directory that only one can make."""
    while True:
        try:
            path.mkdir()
            break
        except FileExistsError:
            time.sleep(0.001)
    try:
        yield
    finally:
        path.rmdir()


@contextmanager
def locked_by_record(path: Path) -> Iterator[None]:
    """A record lock (fcntl), which is no call that can be seen."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


WAYS_TO_LOCK = [locked, locked_by_polling, locked_by_a_directory, locked_by_record]


# --- one program slipped into another


def test_the_intruder_runs_while_the_action_is_held_at_a_call(disk: Path) -> None:
    intrusion = intrude(making(disk / "a", disk / "b"), making(disk / "x"), at=2, within=disk)

    assert intrusion.held is not None
    assert (intrusion.held.name, intrusion.held.path) == ("mkdir", str(disk / "b"))
    assert intrusion.intruder.value == ["a", "x"]
    assert intrusion.action.value == ["a", "b", "x"]
    assert not intrusion.waited
    assert [Path(call.path or "").name for call in intrusion.calls] == ["a", "b"]
    assert [Path(call.path or "").name for call in intrusion.intruder_calls] == ["x"]


def test_every_call_of_the_clean_run_is_a_place_to_hold_it(disk: Path) -> None:
    act = making(disk / "a", disk / "b", disk / "c")
    count = calls_of(act, within=disk)
    held = []
    for at in range(1, count + 1):
        for name in directories_in(disk):
            (disk / name).rmdir()
        held.append(intrude(act, partial(directories_in, disk), at=at, within=disk).intruder.value)

    assert held == [[], ["a"], ["a", "b"]]


@pytest.mark.parametrize("lock", WAYS_TO_LOCK)
def test_an_intruder_that_waits_for_a_lock_goes_on_after_the_action(disk: Path, lock: Callable[[Path], Iterator[None]]) -> None:
    def act() -> list[str]:
        with lock(disk / "lock"):  # type: ignore[attr-defined]
            return making(disk / f"{os.getpid()}-1", disk / f"{os.getpid()}-2")()

    last = calls_of(act, within=disk) - (lock is locked_by_a_directory)
    before = len(directories_in(disk))
    intrusion = intrude(act, act, at=last, within=disk, patience=0.05)

    assert intrusion.waited
    assert (intrusion.action.code, intrusion.intruder.code) == (None, None)
    assert len(intrusion.intruder.value) - len(intrusion.action.value) == 2
    assert len(intrusion.action.value) - before == 2 + (lock is locked_by_a_directory)


@pytest.mark.parametrize("lock", [locked, locked_by_polling])
def test_a_lock_outside_the_counted_directory_is_waited_for_all_the_same(disk: Path, lock: Callable[[Path], Iterator[None]]) -> None:
    inside = disk / "inside"
    inside.mkdir()

    def act() -> list[str]:
        with lock(disk / "lock"):  # type: ignore[attr-defined]
            return making(inside / f"{os.getpid()}")()

    intrusion = intrude(act, act, at=1, within=inside)

    assert intrusion.waited
    assert [len(ended.value) for ended in (intrusion.action, intrusion.intruder)] == [1, 2]
    assert (len(intrusion.calls), len(intrusion.intruder_calls)) == (1, 1)


def test_a_program_whose_own_child_has_the_lock_is_not_held_up(disk: Path) -> None:
    def act() -> list[str]:
        ours, theirs = os.pipe()
        if os.fork() == 0:
            with locked(disk / "lock"):
                os.write(theirs, b"!")
                os.mkdir(disk / "by-child")
            os._exit(0)
        os.read(ours, 1)
        with locked(disk / "lock"):
            return directories_in(disk)

    intrusion = intrude(act, lambda: None, at=1, within=disk, timeout=10)
    assert intrusion.action.value == ["by-child"]


def test_an_action_that_ends_before_it_is_held_is_followed_by_the_intruder(disk: Path) -> None:
    intrusion = intrude(making(disk / "a"), partial(directories_in, disk), at=9, within=disk)
    assert (intrusion.held, intrusion.intruder.value) == (None, ["a"])


def test_an_action_may_sleep_before_it_is_held(disk: Path) -> None:
    def act() -> None:
        time.sleep(0.5)
        making(disk / "a")()
        time.sleep(0.5)
        making(disk / "b")()

    intrusion = intrude(act, partial(directories_in, disk), at=2, within=disk, patience=0.15)
    assert intrusion.intruder.value == ["a"]
    assert not intrusion.waited


def refuse() -> None:
    raise PromoteFailed("The branch has moved.", stage="apply")


def fail() -> None:
    raise ZeroDivisionError("by nought")


@pytest.mark.parametrize(
    ("actor", "code", "text"),
    [
        (lambda: None, None, ""),
        (refuse, "PROMOTE_FAILED", "The branch has moved."),
        (fail, "ZeroDivisionError", "by nought"),
        (["sh", "-c", "echo out; echo err >&2; exit 3"], "EXIT_3", "err"),
        (["sh", "-c", "kill -TERM $$"], "SIGTERM", ""),
        (["no-such-program-here"], "EXIT_127", "cannot run 'no-such-program-here'"),
        (
            Command(["sh", "-c", 'test "$A" = 1 && test -d here && test "$(cat)" = in'], {"PATH": os.environ["PATH"], "A": "1"}),
            "EXIT_1",
            "",
        ),
    ],
)
def test_how_an_actor_ended_is_a_value(disk: Path, actor: Callable[[], object] | Command, code: str | None, text: str) -> None:
    [ended] = interleave([actor], within=disk).ended
    assert ended.code == code
    assert ended.text.startswith(text)


def test_a_program_runs_where_and_with_what_it_is_told(disk: Path) -> None:
    (disk / "here").mkdir()
    command = Command(["sh", "-c", 'echo "$A $(ls) $(cat)"'], env={"PATH": os.environ["PATH"], "A": "1"}, cwd=disk, stdin=b"in")
    [ended] = interleave([command], within=disk).ended
    assert (ended.code, ended.stdout) == (None, b"1 here in\n")


def test_a_value_that_cannot_be_carried_says_so(disk: Path) -> None:
    [ended] = interleave([lambda: threading.Lock()], within=disk).ended
    assert (ended.code, ended.value) == (None, None)
    assert "returned a lock, which cannot be carried" in ended.text


def test_what_means_nothing_is_refused(disk: Path) -> None:
    with pytest.raises(InvalidInput, match="counted from 1"):
        intrude(list, list, at=0)
    with pytest.raises(InvalidInput, match="ZeroDivisionError although nothing disturbed it"):
        calls_of(fail)
    with pytest.raises(InvalidInput, match="no actors"):
        interleave([])
    with pytest.raises(InvalidInput, match="no actor 2"):
        interleave([list, list], [(0, 2)])
    with pytest.raises(InvalidInput, match="argv is empty"):
        interleave([[]])
    with pytest.raises(InvalidInput, match="timeout"):
        interleave([list], timeout=0)


# --- orders


def test_actors_run_one_after_the_other_unless_told_otherwise(disk: Path) -> None:
    order = interleave([making(disk / "a"), making(disk / "b"), making(disk / "c")], within=disk)
    assert [ended.value for ended in order.ended] == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert order.preemptions == ()
    assert order.finding is None


def test_a_preemption_says_who_goes_on_at_a_step(disk: Path) -> None:
    def actors(at: Path) -> list[Callable[[], object]]:
        at.mkdir()
        return [making(at / "a1", at / "a2"), making(at / "b1", at / "b2")]

    order = interleave(actors(disk / "first"), [(2, 1), (4, 0)], within=disk)
    assert [ended.value for ended in order.ended] == [["a1", "a2", "b1"], ["a1", "a2", "b1", "b2"]]
    assert order.preemptions == ((2, 1), (4, 0))

    moot = interleave(actors(disk / "second"), [(0, 0), (5, 0), (99, 1)], within=disk)
    assert [ended.value for ended in moot.ended] == [["a1", "a2"], ["a1", "a2", "b1", "b2"]]
    assert (moot.preemptions, moot.missed) == ((), ((5, 0), (99, 1)))


def test_a_trace_has_a_column_for_each_actor_and_the_list_that_plays_it_again(disk: Path) -> None:
    def act(name: str) -> None:
        with locked(disk / "lock"):
            making(disk / name, disk / f"{name}2", disk / f"{name}3")()

    order = interleave([partial(act, "a"), partial(act, "b")], [(4, 1)], within=disk)
    assert str(order).splitlines() == [
        "    A                          B",
        "  1 start .. before mkdir a2   |",
        "  2 |                          start .. waits for lock",
        "  3 mkdir a2 .. done           |",
        "  4 |                          flock lock .. done",
        "    => A done, B done",
        "    preemptions = [(4, 1)]",
    ]
    assert "mkdir a2" in order.trace(full=True)


def test_who_wait_for_each_other_are_a_finding(disk: Path) -> None:
    def act(first: str, second: str) -> None:
        with locked(disk / first), locked(disk / second):
            pass

    actors = [partial(act, "1", "2"), partial(act, "2", "1")]
    found = explore_processes(partial(fresh, disk), lambda _here: actors, lambda _here, _order: None, within=lambda here: here)

    assert found.violation is not None
    assert found.violation.finding == f"DEADLOCK: A waits for {disk / '2'}, B waits for {disk / '1'}"
    assert [ended.code for ended in found.violation.ended] == ["KILLED", "KILLED"]
    assert not found.complete
    with pytest.raises(AssertionError, match=r"DEADLOCK(.|\n)*preemptions = "):
        found.verify()


@contextmanager
def fresh(disk: Path) -> Iterator[Path]:
    for name in directories_in(disk):
        (disk / name).rmdir()
    yield disk


def test_a_check_decides_what_is_wrong_and_the_first_order_found_plays_again(disk: Path) -> None:
    actors = [making(disk / "a1", disk / "a2"), making(disk / "b1", disk / "b2")]

    def nobody_between(_here: Path, order: ProcessInterleaving) -> None:
        assert {"a1", "b1"} - set(order.ended[0].value), "B CAME BETWEEN"

    found = explore_processes(partial(fresh, disk), lambda _here: actors, nobody_between, within=lambda here: here)
    assert found.violation is not None
    assert found.violation.finding == "B CAME BETWEEN"
    with fresh(disk):
        again = interleave(actors, found.violation.preemptions, within=disk)
    assert again.points == found.violation.points


def test_every_order_within_the_bound_is_played_once(disk: Path) -> None:
    actors = [making(disk / "a1", disk / "a2"), making(disk / "b1", disk / "b2")]
    endings = set()

    def note(_here: Path, order: ProcessInterleaving) -> None:
        endings.add(order.points)

    found = explore_processes(partial(fresh, disk), lambda _here: actors, note, within=lambda here: here)
    # Who starts, and one preemption at the first or second call of whoever started.
    assert (found.executions, found.complete, found.missed, len(endings)) == (6, True, 0, 6)
    few = explore_processes(partial(fresh, disk), lambda _here: actors, note, within=lambda here: here, limit=3)
    assert (few.executions, few.complete) == (3, False)


def test_switches_at_what_several_programs_change_come_first(disk: Path) -> None:
    """The fault needs two switches: A is left after its first mark, and B after its answer. Both do much that concerns nobody else."""

    def alone(name: str) -> None:
        for number in range(3):
            (disk / f"{name}{number}").mkdir()

    def first() -> None:
        (disk / "HEAD").write_text("A1")
        alone("a")
        (disk / "HEAD").write_text("A2")

    def second() -> str:
        alone("b")
        if (disk / "HEAD").exists() and (disk / "HEAD").read_text() == "A1":
            (disk / "HEAD").write_text("B1")
            alone("c")
            (disk / "index.lock").touch()
            seen = (disk / "HEAD").read_text()
            (disk / "HEAD").write_text("B2")
            return seen
        return ""

    def check(_here: Path, order: ProcessInterleaving) -> None:
        assert order.ended[1].value != "A2", "A WENT ON"

    @contextmanager
    def empty() -> Iterator[Path]:
        for path in disk.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        yield disk

    found = explore_processes(empty, lambda _here: [first, second], check, bound=2, limit=12, within=lambda here: here)

    assert found.violation is not None, str(found)
    assert len(found.violation.preemptions) == 2
    assert found.left > found.executions
    assert "known and not played" in str(found)


def test_a_check_that_fails_to_run_tells_the_order(disk: Path) -> None:
    with pytest.raises(KeyError) as caught:
        explore_processes(partial(fresh, disk), lambda here: [making(here / "a")], lambda _here, _order: {}["none"])
    assert "start .. done" in caught.value.__notes__[0]
