"""Systems that work by running git, raced from outside; and how whatever they started is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from support.blackbox import making
from support.patience import long_enough
from support.supervisor import processes_mentioning

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.testing.faults.supervisor import supervise_function
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.schedules.blackbox import Command, Explored, ProcessInterleaving, explore_processes, interleave, intrude
from pytest_gittrix.testing.world import World

# --- systems over git

PROMOTE = r"""
set -e
head=$(git rev-parse main)
blob=$(echo "$1" | git hash-object -w --stdin)
tree=$( (git ls-tree "$head"; printf '100644 blob %s\t%s\n' "$blob" "$1") | git mktree)
commit=$(git commit-tree "$tree" -p "$head" -m "Add $1")
git update-ref refs/heads/main "$commit" $(test -z "$CAREFUL" || echo "$head")
"""

make_place = partial(Place.open, files={"app.py": "v1\n"}, bare=True)


def by_shell(place: Place, careful: str = "") -> list[Command]:
    """Two promotions by a small system in shell."""
    env = {**place.env, "CAREFUL": careful}
    return [Command(["sh", "-c", PROMOTE, "sh", name], env, place.durable.path) for name in ("a.txt", "b.txt")]


def nothing_lost(place: Place | World, order: ProcessInterleaving) -> None:
    """Who was told that it had promoted has its file on the branch."""
    promoted = {name for name, ended in zip(("a.txt", "b.txt"), order.ended, strict=True) if ended.code is None}
    assert promoted, "NOBODY PROMOTED"
    lost = promoted - set(place.durable.tree())
    assert not lost, f"LOST UPDATE: {lost.pop()} is not on main"


def refs_of(place: Place) -> Path:
    return Path(place.durable.path) / "refs"


def test_a_lost_update_is_found_in_a_system_that_does_not_compare_the_head(disk: Path) -> None:
    found = explore_processes(make_place, by_shell, nothing_lost, within=refs_of)

    assert found.violation is not None
    assert found.violation.finding == "LOST UPDATE: b.txt is not on main"
    assert [ended.code for ended in found.violation.ended] == [None, None]


def test_no_lost_update_is_found_in_one_that_does(disk: Path) -> None:
    found = explore_processes(make_place, partial(by_shell, careful="yes"), nothing_lost, within=refs_of)
    assert found.verify().complete
    assert found.executions >= 8  # each of the two begins, and is cut short at each of its calls on the branch
    assert found.missed == 0


def test_the_same_order_gives_the_same_trace(disk: Path) -> None:
    def play() -> tuple[str, tuple[str, ...]]:
        with make_place() as place:
            order = interleave(by_shell(place), [(9, 1), (15, 0)], within=place.durable.path)
            return order.trace(full=True), order.points

    assert len({play() for _ in range(3)}) == 1


def test_threads_of_one_actor_take_turns_the_same_in_every_run(disk: Path) -> None:
    def act(at: Path) -> None:
        at.mkdir()
        threads = [threading.Thread(target=making(at / f"{name}1", at / f"{name}2")) for name in "xy"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def play(run: str) -> tuple[str, ...]:
        at = disk / run
        at.mkdir()
        return interleave([partial(act, at / "a"), partial(act, at / "b")], [(3, 1)], within=at).points

    assert len({play(run) for run in "12345"}) == 1


@contextmanager
def two_sessions() -> Iterator[tuple[World, UserSession, UserSession]]:
    with World.open(files={"app.py": "v1\n"}, workspace="lazy") as world:
        first, second = world.start(task="a"), world.start(task="b")
        first.write("a.txt", "A\n")
        second.write("b.txt", "B\n")
        yield world, first, second


def test_our_engine_in_forks_loses_nothing(disk: Path) -> None:
    found = explore_processes(
        two_sessions,
        lambda it: [it[1].promote, it[2].promote],
        lambda it, order: nothing_lost(it[0], order),
        within=lambda it: it[0].durable.path / ".git" / "refs",
    )
    assert found.verify().complete
    assert found.executions >= 6


def test_our_engine_by_its_command_line_loses_nothing(disk: Path) -> None:
    with two_sessions() as (world, first, second):
        commands = [
            Command(
                [sys.executable, "-m", "pytest_gittrix.cli", "promote", "--strategy", "commit", session.id], world.env, world.durable.path
            )
            for session in (first, second)
        ]
        intrusion = intrude(commands[0], commands[1], at=4, within=[world.durable.path / ".git" / "refs", world.path / "gittrix" / "locks"])
        assert (intrusion.action.code, intrusion.intruder.code) == (None, None), intrusion
        nothing_lost(world, intrusion.order)


# --- ending


def test_the_caller_keeps_no_children_and_no_descriptors(disk: Path) -> None:
    def held() -> tuple[list[str], str]:
        return sorted(os.listdir("/proc/self/fd")), Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()

    interleave([making(disk / "a"), making(disk / "b")], [(1, 1)], within=disk)
    before = held()
    interleave([making(disk / "c"), making(disk / "d")], [(1, 1)], within=disk)
    assert held() == before


def test_who_runs_out_of_time_is_killed_and_the_others_go_on(disk: Path) -> None:
    def codes(seconds: float) -> list[str | None]:
        actors = [lambda: time.sleep(600), making(disk / str(seconds))]
        return [ended.code for ended in interleave(actors, within=disk, timeout=seconds, patience=0.05).ended]

    assert long_enough(codes, lambda found: found[1] is None) == ["KILLED", None]


def test_a_race_inside_supervision_is_refused_with_the_reason(disk: Path) -> None:
    def work() -> None:
        try:
            interleave([list])
        except CapabilityMissing as error:
            print(error.fact)

    assert b"could not be supervised" in supervise_function(work).stdout


def test_a_caller_that_is_killed_takes_its_trees_along(disk: Path) -> None:
    script = textwrap.dedent("""
        import time
        from pytest_gittrix.testing.schedules.blackbox import interleave
        interleave([["sh", "-c", "mkdir a; mkdir b"], ["sh", "-c", "echo > begun; sleep 600"]], [(1, 1)], within=".")
    """)
    word = f"GITTRIX_TEST_{os.getpid()}_{disk.name}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), word: "1"}
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=disk, env=env, stderr=subprocess.DEVNULL)
    try:
        until((disk / "begun").exists)
        caller.send_signal(signal.SIGKILL)
        assert caller.wait(60) != 0
    finally:
        caller.kill()
        caller.wait()
    until(lambda: not processes_mentioning(word))
    assert processes_mentioning(word) == []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_an_exploration_says_what_it_took() -> None:
    assert str(Explored(20, True, 1.0, 0, None)) == "20 orders in 1.0 s, 50 ms each: nothing wrong"
    assert str(Explored(20, False, 1.0, 2, None)) == "the first 20 orders in 1.0 s, 50 ms each, 2 not as foreseen: nothing wrong"
