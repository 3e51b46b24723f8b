"""Orders of actors: played from a list, tried exhaustively, drawn and shrunk; and what is told when one goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, permutations
from pathlib import Path

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from support.patience import long_enough

from pytest_gittrix import points
from pytest_gittrix.errors import InvalidInput, SessionNotFound
from pytest_gittrix.testing.schedules import explorer as schedule_module
from pytest_gittrix.testing.schedules.explorer import Run, explore, replay, schedules
from pytest_gittrix.testing.world import World


@dataclass
class Shelf:
    """A world of two numbers and two locks that are waited for at points."""

    total: int = 0
    trace: list[str] = field(default_factory=list)
    one: threading.Lock = field(default_factory=threading.Lock)
    two: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def shelf() -> Iterator[Shelf]:
    """A fresh one."""
    yield Shelf()


@contextmanager
def holding(lock: threading.Lock) -> Iterator[None]:
    while not lock.acquire(blocking=False):
        points.reached("lock:busy")
    try:
        yield
    finally:
        lock.release()


def walk(name: str, steps: int = 2) -> Callable[[Shelf], str]:
    """An actor that does nothing but pass points."""

    def act(world: Shelf) -> str:
        for step in range(steps):
            points.reached(f"{name}:{step}")
        return name

    return act


def add_one(world: Shelf) -> None:
    """The classic lost update."""
    seen = world.total
    points.reached("add:seen")
    world.total = seen + 1


def add_one_alone(world: Shelf) -> None:
    """The same under a lock."""
    points.reached("add:begun")
    with holding(world.one):
        add_one(world)


def both_counted(world: Shelf, run: Run) -> None:
    assert world.total == 2, f"LOST UPDATE: two additions made {world.total}"


ADDERS = {"A": add_one, "B": add_one}


def order_of(run: Run) -> str:
    """Who went on at each step."""
    return "".join(step.actor for step in run.steps)


def preemptions(order: Sequence[str], steps: int) -> int:
    """How often somebody was cut short in an order of actors of so many steps each."""
    turns = ["".join(turn) for _, turn in groupby(order)]
    return sum(1 for n, turn in enumerate(turns[:-1]) if "".join(turns[: n + 1]).count(turn[0]) < steps)


def test_whoever_runs_goes_on_until_it_ends() -> None:
    assert order_of(replay([], shelf, actors={"A": walk("A"), "B": walk("B")})) == "AAABBB"


def test_a_schedule_says_where_another_goes_on() -> None:
    actors = {"A": walk("A"), "B": walk("B"), "C": walk("C")}

    assert order_of(replay([(1, "C"), (3, "B")], shelf, actors=actors)) == "ACCBBBCAA"


@pytest.mark.parametrize("schedule", [[(0, "A")], [(99, "B")], [(4, "A")], [(0, "A"), (2, "A")]])
def test_what_makes_no_difference_is_not_in_the_schedule_of_the_run(schedule: list[tuple[int, str]]) -> None:
    run = replay(schedule, shelf, actors={"A": walk("A"), "B": walk("B")})

    assert order_of(run) == "AAABBB"
    assert run.schedule == ()


def test_each_order_has_a_world_of_its_own_and_points_of_the_world_are_nobodys() -> None:
    opened: list[Shelf] = []
    closed: list[Shelf] = []

    @contextmanager
    def make() -> Iterator[Shelf]:
        points.reached("world:opens")
        opened.append(Shelf())
        yield opened[-1]
        points.reached("world:closes")
        closed.append(opened[-1])

    found = explore(make, actors=ADDERS, bound=1)

    assert opened == closed
    assert len({id(world) for world in opened}) == len(opened) >= len(found.runs)
    assert {step.point for run in found.runs for step in run.steps} == {"add:seen", None}


@pytest.mark.parametrize(
    ("names", "steps", "bound"), [("AB", 3, 0), ("AB", 3, 1), ("AB", 4, 2), ("AB", 4, 99), ("ABC", 2, 1), ("ABC", 2, 99)]
)
def test_every_order_within_the_bound_is_played_once(names: str, steps: int, bound: int) -> None:
    wanted = {"".join(order) for order in permutations(names * steps)} if len(names) * steps <= 8 else set()
    wanted = {order for order in wanted if preemptions(order, steps) <= bound}

    found = explore(shelf, actors={name: walk(name, steps - 1) for name in names}, bound=bound)

    assert found.complete
    assert sorted(map(order_of, found.runs)) == sorted(wanted)


def test_the_simplest_orders_come_first() -> None:
    runs = explore(shelf, actors={"A": walk("A", 3), "B": walk("B", 3)}).runs

    assert [len(run.schedule) for run in runs] == sorted(len(run.schedule) for run in runs)


def test_every_run_can_be_played_again() -> None:
    actors = {"A": add_one_alone, "B": add_one_alone, "C": walk("C")}

    for run in explore(shelf, actors=actors, bound=1).runs:
        assert replay(list(run.schedule), shelf, actors=actors).steps == run.steps


def test_it_stops_where_it_is_told_to() -> None:
    found = explore(shelf, actors={"A": walk("A"), "B": walk("B")}, most=3)

    assert len(found.runs) == 3
    assert not found.complete
    assert str(found).startswith("the first 3 orders")


def test_outcomes_are_collected_and_counted() -> None:
    def refuse(world: Shelf) -> None:
        raise SessionNotFound("gone")

    found = explore(shelf, actors={"A": walk("A"), "B": refuse}, bound=0)

    assert [run.outcomes["A"].value for run in found.runs] == ["A", "A"]
    assert [run.finding for run in found.runs] == [None, None]
    assert dict(found.endings) == {"A done, B SESSION_NOT_FOUND": 2}


def test_a_lost_update_is_found_and_drawn() -> None:
    found = explore(shelf, actors=ADDERS, check=both_counted)

    with pytest.raises(AssertionError) as caught:
        found.verify()

    assert str(caught.value) == (
        "LOST UPDATE: two additions made 1 (so in 4 of 6 orders)\n"
        "\n"
        "    A                 B\n"
        "  1 start, add:seen   |\n"
        "  2 |                 start .. done\n"
        "  3 done              |\n"
        "    => LOST UPDATE: two additions made 1\n"
        "    schedule = [(1, 'B')]\n"
    )


def test_a_full_trace_has_a_line_for_each_point() -> None:
    run = replay([(1, "B")], shelf, actors=ADDERS, check=both_counted)

    assert run.trace(full=True) == (
        "    A          B\n"
        "  1 start      |\n"
        "  2 add:seen   |\n"
        "  3 |          start\n"
        "  4 |          add:seen\n"
        "  5 |          done\n"
        "  6 done       |\n"
        "    => LOST UPDATE: two additions made 1"
    )


def test_a_run_without_a_finding_ends_with_how_everybody_ended() -> None:
    run = replay([], shelf, actors=ADDERS, check=both_counted)

    assert run.verify() is run
    assert run.trace().endswith("=> A done, B done")


def test_a_trace_has_a_column_for_each_actor() -> None:
    drawn = replay([(1, "C")], shelf, actors={"A": walk("A"), "B": walk("B"), "C": walk("C")}).trace()

    assert drawn.splitlines()[:3] == [
        "    A            B               C",
        "  1 start, A:0   |               |",
        "  2 |            |               start .. done",
    ]


def test_who_waits_for_a_lock_lets_the_holder_go_on() -> None:
    found = explore(shelf, actors={"A": add_one_alone, "B": add_one_alone}, check=both_counted).verify()

    assert any(step.waits for run in found.runs for step in run.steps)
    assert set(found.endings) == {"A done, B done"}


def test_a_deadlock_is_a_finding_among_orders_that_are_fine() -> None:
    def take(outer: str, inner: str) -> Callable[[Shelf], None]:
        def act(world: Shelf) -> None:
            with holding(getattr(world, outer)):
                points.reached("take:one")
                with holding(getattr(world, inner)):
                    points.reached("take:both")

        return act

    found = explore(shelf, actors={"A": take("one", "two"), "B": take("two", "one")}, bound=1)

    assert 0 < len(found.findings) < len(found.runs)
    assert found.findings[0].finding == "DEADLOCK: A waits at lock:busy, B waits at lock:busy"
    assert found.findings[0].ending == "A stuck, B stuck"
    assert "take:one" in found.findings[0].trace()


def test_who_waits_where_no_point_is_passed_is_a_finding_too() -> None:
    def take(world: Shelf) -> None:
        with world.one:
            points.reached("take:one")

    def finding(seconds: float) -> tuple[str, str]:
        run = replay([(1, "B")], shelf, actors={"A": take, "B": take}, timeout=seconds)
        return f"DEADLOCK: B did not go on within {seconds:g} s: A is at 'take:one'", str(run.finding)

    wanted, found = long_enough(finding, lambda pair: pair[1].startswith(pair[0]))
    assert found.startswith(wanted)


def test_who_waits_for_something_outside_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "_PATIENCE", 5.0)
    given_away = threading.Event()

    def wait(world: Shelf) -> None:
        timer = threading.Timer(0.05, given_away.set)
        timer.start()
        while not given_away.is_set():
            points.reached("wait:busy")
        timer.join()

    assert replay([], shelf, actors={"A": wait}).ending == "A done"


def test_an_actor_that_breaks_is_a_finding_with_its_trace() -> None:
    def divide(world: Shelf) -> None:
        points.reached("divide:begun")
        raise ZeroDivisionError("by nothing")

    run = replay([], shelf, actors={"A": walk("A"), "B": divide})

    assert run.finding == "BROKEN: B raised ZeroDivisionError: by nothing"
    assert "divide:begun" in run.trace(full=True)
    assert run.ending == "A done, B ZeroDivisionError"


def test_an_actor_that_never_ends_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "_MOST_STEPS", 50)

    def turn(world: Shelf) -> None:
        while True:
            points.reached("turn:again")

    assert replay([], shelf, actors={"A": turn}).finding == "ENDLESS: 50 steps, and A still under way"


def test_a_check_that_breaks_is_raised_and_says_where() -> None:
    def check(world: Shelf, run: Run) -> None:
        raise KeyError("typo")

    with pytest.raises(KeyError) as caught:
        explore(shelf, actors=ADDERS, check=check)

    assert "start .. done" in caught.value.__notes__[0]


def test_a_check_without_a_message_is_told_by_what_it_asserts() -> None:
    def check(world: Shelf, run: Run) -> None:
        assert world.total == 2

    assert replay([(1, "B")], shelf, actors=ADDERS, check=check).finding == "assert 1 == 2"


def test_actors_that_are_not_there_are_named() -> None:
    with pytest.raises(InvalidInput, match="no actor 'C'") as caught:
        replay([(1, "C")], shelf, actors=ADDERS)

    assert "A, B" in str(caught.value)
    with pytest.raises(InvalidInput, match="no actors"):
        explore(shelf, actors={})
    with pytest.raises(InvalidInput, match="no actors"):
        schedules([])


def test_durable_is_kept_as_it_was_at_the_end(tmp_path: Path) -> None:
    def make() -> World:
        return World.open(tmp_path / "world", files={"app.py": "one\n"}, bare=True, keep=False)

    run = replay([], make, actors={"A": lambda world: world.rival.commit({"new.txt": "x\n"}, "Add it")})

    assert run.log[0].message.strip() == "Add it"
    assert set(run.tree) == {"app.py", "new.txt"}
    assert not (tmp_path / "world").exists()


@given(schedules("AB", steps=9, most=3))
def test_a_drawn_schedule_is_short_in_order_and_within_its_steps(schedule: list[tuple[int, str]]) -> None:
    steps = [step for step, _ in schedule]

    assert steps == sorted(set(steps))
    assert len(schedule) <= 3
    assert all(0 <= step < 9 and name in "AB" for step, name in schedule)


@given(schedule=schedules("AB"), steps=st.integers(1, 6))
def test_any_drawn_schedule_can_be_played(schedule: list[tuple[int, str]], steps: int) -> None:
    run = replay(schedule, shelf, actors={"A": walk("A", steps), "B": walk("B", steps)})

    assert sorted(order_of(run)) == sorted("AB" * (steps + 1))
    assert set(run.schedule) <= set(schedule)


def test_hypothesis_shrinks_to_the_one_preemption_that_matters() -> None:
    def fails(schedule: list[tuple[int, str]]) -> bool:
        return replay(schedule, shelf, actors={"A": add_one, "B": add_one}, check=both_counted).finding is not None

    found = find(schedules("AB"), fails, settings=settings(database=None, max_examples=200))

    assert found == [(1, "B")]
