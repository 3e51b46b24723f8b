"""The clock the test moves, the real one, and the one a child process reads from a file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FIVE_MINUTES, TIMEOUT

from pytest_gittrix.clock import CLOCK_START, FrozenClock, SystemClock
from pytest_gittrix.clock.clock import Clock
from pytest_gittrix.durations import distance_ns, ns_of
from pytest_gittrix.errors import InvalidInput

MICROSECOND = timedelta(microseconds=1)


def noting(clock: Clock, notes: list[datetime]) -> Callable[[], None]:
    return lambda: notes.append(clock.now())


# --- standing and moving ----------------------------------------------------------------------------------------------


def test_a_frozen_clock_stands_at_its_start_until_it_is_moved(clock: FrozenClock) -> None:
    assert clock.now() == clock.now() == CLOCK_START == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.now_ns() == 1_893_456_000_000_000_000


def test_a_start_in_another_zone_is_shown_in_utc() -> None:
    clock = FrozenClock(datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), separate_files=False)
    assert clock.now() == CLOCK_START
    assert clock.now().tzinfo is UTC


def test_moves_are_exact_and_return_where_they_arrive(clock: FrozenClock) -> None:
    deadline = CLOCK_START + timedelta(hours=4)
    assert clock.advance(hours=1, minutes=30) == CLOCK_START + timedelta(minutes=90) == clock.now()
    assert clock.advance(timedelta(minutes=30)) == CLOCK_START + timedelta(hours=2)
    assert clock.just_before(deadline) == deadline - MICROSECOND == clock.now()
    assert clock.advance_to(deadline) == deadline == clock.now()
    assert clock.just_after(deadline) == deadline + MICROSECOND == clock.now()


@pytest.mark.parametrize(
    "move",
    [
        lambda clock: clock.advance(seconds=-1),
        lambda clock: clock.advance(-MICROSECOND),
        lambda clock: clock.advance_to(CLOCK_START - MICROSECOND),
        lambda clock: clock.just_before(CLOCK_START),
    ],
)
def test_time_cannot_go_backwards(clock: FrozenClock, move: Callable[[FrozenClock], object]) -> None:
    with pytest.raises(InvalidInput, match="Time can't go backwards") as caught:
        move(clock)
    assert "skew" in caught.value.opt_out
    assert clock.now() == CLOCK_START


@pytest.mark.parametrize(
    "use",
    [
        lambda clock: FrozenClock(datetime(2030, 1, 1)),
        lambda clock: clock.advance_to(datetime(2031, 1, 1)),
        lambda clock: clock.just_after(datetime(2031, 1, 1)),
        lambda clock: clock.at(datetime(2031, 1, 1), print),
    ],
)
def test_an_instant_without_a_time_zone_is_refused(clock: FrozenClock, use: Callable[[FrozenClock], object]) -> None:
    with pytest.raises(InvalidInput, match="has no time zone"):
        use(clock)


def test_a_move_beyond_the_calendar_is_refused_and_changes_nothing(clock: FrozenClock) -> None:
    for move in (clock.advance, clock.skew):
        with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
            move(days=365 * 9000)
    assert clock.now() == CLOCK_START


# --- timers -----------------------------------------------------------------------------------------------------------


def test_four_hours_with_a_five_minute_timer_are_48_calls_each_at_its_own_instant(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, seen))
    clock.advance(hours=4)
    assert seen == [CLOCK_START + FIVE_MINUTES * n for n in range(1, 49)]
    assert clock.now() == CLOCK_START + timedelta(hours=4)


def test_timers_run_by_due_time_then_by_registration(clock: FrozenClock) -> None:
    ran: list[str] = []
    clock.at(CLOCK_START + timedelta(minutes=10), lambda: ran.append("at 10, first"))
    clock.every(FIVE_MINUTES, lambda: ran.append("every 5"))
    clock.at(CLOCK_START + timedelta(minutes=10), lambda: ran.append("at 10, last"))
    clock.at(CLOCK_START + timedelta(minutes=1), lambda: ran.append("at 1"))
    clock.advance(minutes=10)
    assert ran == ["at 1", "every 5", "at 10, first", "every 5", "at 10, last"]


@given(
    intervals=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    moves=st.lists(st.integers(0, 60), max_size=6),
)
def test_how_a_distance_is_cut_into_moves_does_not_change_what_runs_when(intervals: list[int], moves: list[int]) -> None:
    def run(steps: list[int]) -> list[tuple[int, int]]:
        clock = FrozenClock(separate_files=False)
        ran: list[tuple[int, int]] = []
        for name, interval in enumerate(intervals):
            clock.every(timedelta(seconds=interval), lambda name=name: ran.append((clock.now_ns(), name)))  # type: ignore[misc]
        for step in steps:
            clock.advance(seconds=step)
        return ran

    in_one_go = run([sum(moves)])
    assert run(moves) == in_one_go
    assert in_one_go == sorted(in_one_go)
    assert len(in_one_go) == sum(sum(moves) // interval for interval in intervals)


def test_a_one_off_runs_once_and_is_then_inactive(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    timer = clock.at(CLOCK_START + FIVE_MINUTES, noting(clock, seen))
    assert timer.active
    clock.advance(hours=1)
    clock.advance(hours=1)
    assert seen == [CLOCK_START + FIVE_MINUTES]
    assert not timer.active


def test_a_one_off_in_the_past_runs_at_the_next_move_without_going_back(clock: FrozenClock) -> None:
    clock.advance(hours=1)
    seen: list[datetime] = []
    clock.at(CLOCK_START, noting(clock, seen))
    assert seen == []
    clock.advance(timedelta())
    assert seen == [CLOCK_START + timedelta(hours=1)]


def test_a_cancelled_timer_never_runs_again(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    timer = clock.every(FIVE_MINUTES, noting(clock, seen))
    clock.advance(minutes=5)
    timer.cancel()
    timer.cancel()
    clock.advance(hours=1)
    assert not timer.active
    assert seen == [CLOCK_START + FIVE_MINUTES]


def test_a_timer_may_add_and_cancel_timers_also_itself(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    never = clock.at(CLOCK_START + FIVE_MINUTES * 3, lambda: pytest.fail("was cancelled"))

    def first() -> None:
        never.cancel()
        itself.cancel()
        clock.every(timedelta(minutes=1), noting(clock, seen))

    itself = clock.every(FIVE_MINUTES, first)
    clock.advance(minutes=7)
    clock.advance(minutes=9)
    assert seen == [CLOCK_START + FIVE_MINUTES + timedelta(minutes=n) for n in range(1, 12)]


def test_a_timer_that_raises_stops_the_clock_there_and_the_rest_run_later(clock: FrozenClock) -> None:
    ran: list[tuple[str, datetime]] = []

    def fail_once() -> None:
        ran.append(("failing", clock.now()))
        if len(ran) == 1:
            raise RuntimeError("boom")

    clock.every(FIVE_MINUTES, fail_once)
    clock.every(FIVE_MINUTES, lambda: ran.append(("other", clock.now())))
    with pytest.raises(RuntimeError, match="boom"):
        clock.advance(hours=1)
    assert clock.now() == CLOCK_START + FIVE_MINUTES
    clock.advance(FIVE_MINUTES)
    assert ran == [
        ("failing", CLOCK_START + FIVE_MINUTES),
        ("other", CLOCK_START + FIVE_MINUTES),
        ("failing", CLOCK_START + FIVE_MINUTES * 2),
        ("other", CLOCK_START + FIVE_MINUTES * 2),
    ]


@pytest.mark.parametrize("move", [lambda clock: clock.advance(hours=1), lambda clock: clock.skew(hours=1)])
def test_the_clock_cannot_be_moved_from_inside_a_move(clock: FrozenClock, move: Callable[[FrozenClock], object]) -> None:
    clock.every(FIVE_MINUTES, lambda: move(clock))
    with pytest.raises(InvalidInput, match="moved from inside a move"):
        clock.advance(minutes=5)
    assert clock.now() == CLOCK_START + FIVE_MINUTES


@pytest.mark.parametrize("interval", [timedelta(), timedelta(seconds=-1)])
def test_an_interval_that_is_not_positive_is_refused(clock: FrozenClock, system_clock: SystemClock, interval: timedelta) -> None:
    for any_clock in (clock, system_clock):
        with pytest.raises(InvalidInput, match="cannot run every"):
            any_clock.every(interval, print)


def test_distances_and_intervals_may_be_texts(clock: FrozenClock) -> None:
    ran: list[int] = []
    clock.every("20m", lambda: ran.append(clock.now_ns()))

    assert clock.advance("1h") == CLOCK_START + timedelta(hours=1)
    assert len(ran) == 3
    assert clock.skew("90s") == CLOCK_START + timedelta(hours=1, seconds=90)
    with pytest.raises(InvalidInput, match="'an hour' is not a duration"):
        clock.advance("an hour")


def test_close_cancels_every_timer(clock: FrozenClock) -> None:
    timers = [clock.every(FIVE_MINUTES, lambda: pytest.fail("was cancelled")), clock.at(CLOCK_START, lambda: pytest.fail("was cancelled"))]
    clock.close()
    clock.advance(hours=1)
    assert not any(timer.active for timer in timers)


# --- missed timers and skew -------------------------------------------------------------------------------------------


def test_after_a_suspension_each_timer_runs_once_at_the_end(clock: FrozenClock) -> None:
    periodic: list[datetime] = []
    one_off: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, periodic))
    clock.at(CLOCK_START + timedelta(minutes=1), noting(clock, one_off))
    woken = clock.advance(hours=4, minutes=2, timers="once")
    assert periodic == one_off == [woken]
    clock.advance(minutes=3)
    assert periodic == [woken, CLOCK_START + timedelta(hours=4, minutes=5)]


def test_while_nobody_runs_timers_they_are_skipped(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, seen))
    missed = clock.at(CLOCK_START + timedelta(minutes=1), lambda: pytest.fail("was missed"))
    clock.advance(hours=4, timers="none")
    assert not missed.active
    assert seen == []
    clock.advance(FIVE_MINUTES)
    assert seen == [CLOCK_START + timedelta(hours=4, minutes=5)]


def test_an_unknown_way_to_run_timers_is_refused_with_the_valid_ones(clock: FrozenClock) -> None:
    with pytest.raises(InvalidInput, match="each, once, none"):
        clock.advance(hours=1, timers="all")  # type: ignore[arg-type]
    assert clock.now() == CLOCK_START


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_skew_sets_the_wall_clock_and_no_time_elapses(clock: FrozenClock, hours: int) -> None:
    seen: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, seen))
    skewed = clock.skew(hours=hours)
    assert clock.now() == skewed == CLOCK_START + timedelta(hours=hours)
    assert seen == []
    assert clock.elapsed_ns == 0
    clock.advance(minutes=5)
    assert seen == [skewed + FIVE_MINUTES]
    assert clock.elapsed_ns == 300_000_000_000


def test_a_one_off_that_a_skew_jumped_over_runs_at_the_next_move(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    clock.every(timedelta(minutes=2), lambda: pytest.fail("no two minutes have elapsed"))
    clock.at(CLOCK_START + FIVE_MINUTES, noting(clock, seen))
    skewed = clock.skew(hours=1)
    assert seen == []
    clock.advance(minutes=1)
    assert seen == [skewed]


# --- threads --------------------------------------------------------------------------------------------


def test_a_move_that_waits_for_another_threads_move_starts_where_that_one_ended(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    second = threading.Thread(target=lambda: clock.advance(seconds=1))

    def distance(*arguments: Any) -> int:
        if threading.current_thread() is second:
            asked.set()
        return distance_ns(*arguments)

    monkeypatch.setattr("pytest_gittrix.clock.clock.distance_ns", distance)
    clock.at(CLOCK_START + timedelta(seconds=1), lambda: (second.start(), asked.wait()))
    clock.advance(seconds=10)
    second.join()

    assert clock.now() == CLOCK_START + timedelta(seconds=11)


def test_moves_from_several_threads_add_up_and_run_each_timer_once(clock: FrozenClock) -> None:
    ran: list[int] = []
    clock.every(timedelta(seconds=1), lambda: ran.append(clock.now_ns()))
    movers = [threading.Thread(target=lambda: [clock.advance(seconds=1) for _ in range(50)]) for _ in range(4)]
    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join()
    assert clock.now() == CLOCK_START + timedelta(seconds=200)
    assert ran == [ns_of(CLOCK_START + timedelta(seconds=n)) for n in range(1, 201)]


def test_the_clock_can_be_read_and_given_timers_from_another_thread_while_it_moves(clock: FrozenClock) -> None:
    seen: list[datetime] = []

    def ask_a_thread() -> None:
        def ask() -> None:
            seen.append(clock.now())
            clock.at(clock.now(), noting(clock, seen))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(TIMEOUT)

    clock.at(CLOCK_START + FIVE_MINUTES, ask_a_thread)
    clock.advance(hours=1)
    assert seen == [CLOCK_START + FIVE_MINUTES] * 2
