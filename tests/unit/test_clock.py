"""The clock the test moves, the real one, and the one a child process reads from a file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix import clock_carriers
from pytest_gittrix.clock import EPOCH, Clock, FrozenClock, SystemClock
from pytest_gittrix.clock_files import FileClock, clock_from_environment
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.timetext import instant_at, ns_of

MICROSECOND = timedelta(microseconds=1)
FIVE_MINUTES = timedelta(minutes=5)
TIMEOUT = 30  # seconds; only a hang takes as long


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(separate_files=False)


@pytest.fixture
def system_clock() -> Iterator[SystemClock]:
    clock = SystemClock()
    yield clock
    clock.close()


def noting(clock: Clock, notes: list[datetime]) -> Callable[[], None]:
    return lambda: notes.append(clock.now())


# --- standing and moving ----------------------------------------------------------------------------------------------


def test_a_frozen_clock_stands_at_the_epoch_until_it_is_moved(clock: FrozenClock) -> None:
    assert clock.now() == clock.now() == EPOCH == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.now_ns() == 1_893_456_000_000_000_000


def test_an_epoch_in_another_zone_is_shown_in_utc() -> None:
    clock = FrozenClock(datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), separate_files=False)
    assert clock.now() == EPOCH
    assert clock.now().tzinfo is UTC


def test_moves_are_exact_and_return_where_they_arrive(clock: FrozenClock) -> None:
    deadline = EPOCH + timedelta(hours=4)
    assert clock.advance(hours=1, minutes=30) == EPOCH + timedelta(minutes=90) == clock.now()
    assert clock.advance(timedelta(minutes=30)) == EPOCH + timedelta(hours=2)
    assert clock.just_before(deadline) == deadline - MICROSECOND == clock.now()
    assert clock.advance_to(deadline) == deadline == clock.now()
    assert clock.just_after(deadline) == deadline + MICROSECOND == clock.now()


@pytest.mark.parametrize(
    "move",
    [
        lambda clock: clock.advance(seconds=-1),
        lambda clock: clock.advance(-MICROSECOND),
        lambda clock: clock.advance_to(EPOCH - MICROSECOND),
        lambda clock: clock.just_before(EPOCH),
    ],
)
def test_time_cannot_go_backwards(clock: FrozenClock, move: Callable[[FrozenClock], object]) -> None:
    with pytest.raises(InvalidInput, match="Time can't go backwards") as caught:
        move(clock)
    assert "skew" in caught.value.opt_out
    assert clock.now() == EPOCH


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
    assert clock.now() == EPOCH


# --- timers -----------------------------------------------------------------------------------------------------------


def test_four_hours_with_a_five_minute_timer_are_48_calls_each_at_its_own_instant(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, seen))
    clock.advance(hours=4)
    assert seen == [EPOCH + FIVE_MINUTES * n for n in range(1, 49)]
    assert clock.now() == EPOCH + timedelta(hours=4)


def test_timers_run_by_due_time_then_by_registration(clock: FrozenClock) -> None:
    ran: list[str] = []
    clock.at(EPOCH + timedelta(minutes=10), lambda: ran.append("at 10, first"))
    clock.every(FIVE_MINUTES, lambda: ran.append("every 5"))
    clock.at(EPOCH + timedelta(minutes=10), lambda: ran.append("at 10, last"))
    clock.at(EPOCH + timedelta(minutes=1), lambda: ran.append("at 1"))
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
    timer = clock.at(EPOCH + FIVE_MINUTES, noting(clock, seen))
    assert timer.active
    clock.advance(hours=1)
    clock.advance(hours=1)
    assert seen == [EPOCH + FIVE_MINUTES]
    assert not timer.active


def test_a_one_off_in_the_past_runs_at_the_next_move_without_going_back(clock: FrozenClock) -> None:
    clock.advance(hours=1)
    seen: list[datetime] = []
    clock.at(EPOCH, noting(clock, seen))
    assert seen == []
    clock.advance(timedelta())
    assert seen == [EPOCH + timedelta(hours=1)]


def test_a_cancelled_timer_never_runs_again(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    timer = clock.every(FIVE_MINUTES, noting(clock, seen))
    clock.advance(minutes=5)
    timer.cancel()
    timer.cancel()
    clock.advance(hours=1)
    assert not timer.active
    assert seen == [EPOCH + FIVE_MINUTES]


def test_a_timer_may_add_and_cancel_timers_also_itself(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    never = clock.at(EPOCH + FIVE_MINUTES * 3, lambda: pytest.fail("was cancelled"))

    def first() -> None:
        never.cancel()
        itself.cancel()
        clock.every(timedelta(minutes=1), noting(clock, seen))

    itself = clock.every(FIVE_MINUTES, first)
    clock.advance(minutes=7)
    clock.advance(minutes=9)
    assert seen == [EPOCH + FIVE_MINUTES + timedelta(minutes=n) for n in range(1, 12)]


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
    assert clock.now() == EPOCH + FIVE_MINUTES
    clock.advance(FIVE_MINUTES)
    assert ran == [
        ("failing", EPOCH + FIVE_MINUTES),
        ("other", EPOCH + FIVE_MINUTES),
        ("failing", EPOCH + FIVE_MINUTES * 2),
        ("other", EPOCH + FIVE_MINUTES * 2),
    ]


@pytest.mark.parametrize("move", [lambda clock: clock.advance(hours=1), lambda clock: clock.skew(hours=1)])
@pytest.mark.parametrize("register", [lambda clock, fn: clock.every(FIVE_MINUTES, fn), lambda clock, fn: clock.on_move(fn)])
def test_the_clock_cannot_be_moved_from_inside_a_move(
    clock: FrozenClock, move: Callable[[FrozenClock], object], register: Callable[[FrozenClock, Callable[[], object]], object]
) -> None:
    register(clock, lambda: move(clock))
    with pytest.raises(InvalidInput, match="moved from inside a move"):
        clock.advance(minutes=5)
    assert clock.now() == EPOCH + FIVE_MINUTES


@pytest.mark.parametrize("interval", [timedelta(), timedelta(seconds=-1)])
def test_an_interval_that_is_not_positive_is_refused(clock: FrozenClock, system_clock: SystemClock, interval: timedelta) -> None:
    for any_clock in (clock, system_clock):
        with pytest.raises(InvalidInput, match="cannot run every"):
            any_clock.every(interval, print)


def test_close_cancels_every_timer(clock: FrozenClock) -> None:
    timers = [clock.every(FIVE_MINUTES, lambda: pytest.fail("was cancelled")), clock.at(EPOCH, lambda: pytest.fail("was cancelled"))]
    clock.close()
    clock.advance(hours=1)
    assert not any(timer.active for timer in timers)


# --- missed timers and skew -------------------------------------------------------------------------------------------


def test_after_a_suspension_each_timer_runs_once_at_the_end(clock: FrozenClock) -> None:
    periodic: list[datetime] = []
    one_off: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, periodic))
    clock.at(EPOCH + timedelta(minutes=1), noting(clock, one_off))
    woken = clock.advance(hours=4, minutes=2, timers="once")
    assert periodic == one_off == [woken]
    clock.advance(minutes=3)
    assert periodic == [woken, EPOCH + timedelta(hours=4, minutes=5)]


def test_while_nobody_runs_timers_they_are_skipped(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, seen))
    missed = clock.at(EPOCH + timedelta(minutes=1), lambda: pytest.fail("was missed"))
    clock.advance(hours=4, timers="none")
    assert not missed.active
    assert seen == []
    clock.advance(FIVE_MINUTES)
    assert seen == [EPOCH + timedelta(hours=4, minutes=5)]


def test_an_unknown_way_to_run_timers_is_refused_with_the_valid_ones(clock: FrozenClock) -> None:
    with pytest.raises(InvalidInput, match="each, once, none"):
        clock.advance(hours=1, timers="all")  # type: ignore[arg-type]
    assert clock.now() == EPOCH


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_skew_sets_the_wall_clock_and_no_time_elapses(clock: FrozenClock, hours: int) -> None:
    seen: list[datetime] = []
    clock.every(FIVE_MINUTES, noting(clock, seen))
    skewed = clock.skew(hours=hours)
    assert clock.now() == skewed == EPOCH + timedelta(hours=hours)
    assert seen == []
    assert clock.elapsed_ns == 0
    clock.advance(minutes=5)
    assert seen == [skewed + FIVE_MINUTES]
    assert clock.elapsed_ns == 300_000_000_000


def test_a_one_off_that_a_skew_jumped_over_runs_at_the_next_move(clock: FrozenClock) -> None:
    seen: list[datetime] = []
    clock.every(timedelta(minutes=2), lambda: pytest.fail("no two minutes have elapsed"))
    clock.at(EPOCH + FIVE_MINUTES, noting(clock, seen))
    skewed = clock.skew(hours=1)
    assert seen == []
    clock.advance(minutes=1)
    assert seen == [skewed]


# --- listeners and threads --------------------------------------------------------------------------------------------


def test_listeners_hear_of_each_instant_before_its_timer_runs(clock: FrozenClock) -> None:
    heard: list[str] = []
    clock.on_move(lambda: heard.append(f"moved {clock.now():%M}"))
    clock.every(FIVE_MINUTES, lambda: heard.append(f"ran {clock.now():%M}"))
    clock.advance(minutes=12)
    clock.skew(minutes=-2)
    clock.advance(timedelta())
    assert heard == ["moved 05", "ran 05", "moved 10", "ran 10", "moved 12", "moved 10"]


def test_a_removed_listener_hears_nothing(clock: FrozenClock) -> None:
    remove = clock.on_move(lambda: pytest.fail("was removed"))
    remove()
    remove()
    assert clock.advance(hours=1) == clock.now()


def test_moves_from_several_threads_add_up_and_run_each_timer_once(clock: FrozenClock) -> None:
    ran: list[int] = []
    clock.every(timedelta(seconds=1), lambda: ran.append(clock.now_ns()))
    movers = [threading.Thread(target=lambda: [clock.advance(seconds=1) for _ in range(50)]) for _ in range(4)]
    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join()
    assert clock.now() == EPOCH + timedelta(seconds=200)
    assert ran == [ns_of(EPOCH + timedelta(seconds=n)) for n in range(1, 201)]


def test_the_clock_can_be_read_and_given_timers_from_another_thread_while_it_moves(clock: FrozenClock) -> None:
    seen: list[datetime] = []

    def ask_a_thread() -> None:
        def ask() -> None:
            seen.append(clock.now())
            clock.at(clock.now(), noting(clock, seen))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(TIMEOUT)

    clock.at(EPOCH + FIVE_MINUTES, ask_a_thread)
    clock.advance(hours=1)
    assert seen == [EPOCH + FIVE_MINUTES] * 2


# --- file stamps ------------------------------------------------------------------------------------------------------


def create(path: Path) -> int:
    path.touch()
    return path.stat().st_ctime_ns


def change(path: Path) -> int:
    # Recent kernels stamp a change more finely where the stamp before it has been looked at, as it is here and is not in create().
    create(path)
    path.write_text("changed")
    return path.stat().st_ctime_ns


either_stamp = pytest.mark.parametrize("change", [create, change])


@either_stamp
def test_a_file_changed_between_moves_maps_to_exactly_that_instant(tmp_path: Path, change: Callable[[Path], int]) -> None:
    clock = FrozenClock()
    expected, mapped = [], []
    for n in range(20):
        expected.append(clock.now_ns())
        first, last = change(tmp_path / f"{n}-first"), change(tmp_path / f"{n}-last")
        clock.advance(microseconds=1)
        mapped.append((clock.instant_of(first), clock.instant_of(last)))
    assert mapped == [(instant, instant) for instant in expected]


def test_a_file_changed_after_a_skew_back_maps_to_the_earlier_instant(tmp_path: Path) -> None:
    clock = FrozenClock()
    before = change(tmp_path / "before")
    clock.skew(hours=-1)
    after = change(tmp_path / "after")
    clock.advance(hours=3)
    assert clock.instant_of(before) == ns_of(EPOCH)
    assert clock.instant_of(after) == ns_of(EPOCH - timedelta(hours=1))


def test_a_file_older_than_the_clock_maps_to_its_epoch(tmp_path: Path) -> None:
    stamp = change(tmp_path / "old")
    clock = FrozenClock()
    clock.advance(hours=1)
    assert clock.instant_of(stamp) == clock.instant_of(0) == ns_of(EPOCH)


@either_stamp
def test_a_file_changed_by_a_timer_never_maps_to_before_that_timer(tmp_path: Path, change: Callable[[Path], int]) -> None:
    clock = FrozenClock()
    stamps: list[tuple[int, int]] = []
    clock.every(FIVE_MINUTES, lambda: stamps.append((clock.now_ns(), change(tmp_path / f"{len(stamps)}"))))
    end = ns_of(clock.advance(hours=4))
    assert len(stamps) == 48
    assert all(instant <= clock.instant_of(stamp) <= end for instant, stamp in stamps)


def test_the_real_clock_agrees_with_the_kernel(system_clock: SystemClock, tmp_path: Path) -> None:
    stamp = change(tmp_path / "file")
    assert system_clock.instant_of(stamp) == stamp


def test_touch_sets_the_times_that_programs_judge_by(clock: FrozenClock, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    clock.advance(hours=1)
    clock.touch(path)
    assert path.stat().st_mtime_ns == path.stat().st_atime_ns == clock.now_ns()


# --- other processes --------------------------------------------------------------------------------------------------


def run_git(directory: Path, variables: dict[str, str], *args: str) -> str:
    identity = {f"GIT_{who}_{what}": f"{who}@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    hermetic = {"HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    environment = hermetic | identity | variables | {"PATH": os.environ["PATH"]}
    done = subprocess.run(["git", *args], cwd=directory, env=environment, check=True, capture_output=True, text=True, timeout=TIMEOUT)
    return done.stdout.strip()


def test_git_commits_at_the_clocks_instant(clock: FrozenClock, tmp_path: Path) -> None:
    run_git(tmp_path, {}, "init", "-q")
    clock.advance(hours=1)
    run_git(tmp_path, clock.environment(), "commit", "-q", "--allow-empty", "-m", "one")
    assert run_git(tmp_path, {}, "log", "-1", "--format=%aI %cI") == "2030-01-01T01:00:00+00:00 2030-01-01T01:00:00+00:00"
    clock.advance(days=14)
    assert run_git(tmp_path, clock.environment(), "log", "-1", "--format=%ar") == "2 weeks ago"


def test_git_commits_at_an_instant_of_few_digits(tmp_path: Path) -> None:
    clock = FrozenClock(datetime(1970, 1, 2, tzinfo=UTC), separate_files=False)
    assert run_git(tmp_path, clock.environment(), "var", "GIT_AUTHOR_IDENT").endswith(" 86400 +0000")


def test_a_clock_file_follows_each_move(clock: FrozenClock, tmp_path: Path) -> None:
    path = clock.attach_file(tmp_path / "clock")
    assert path.read_text() == "2030-01-01T00:00:00.000000Z\n"
    seen: list[str] = []
    clock.at(EPOCH + FIVE_MINUTES, lambda: seen.append(path.read_text()))
    clock.just_after(EPOCH + timedelta(hours=1))
    assert seen == ["2030-01-01T00:05:00.000000Z\n"]
    assert path.read_text() == "2030-01-01T01:00:00.000001Z\n"
    assert clock.environment()["PYTEST_GITTRIX_CLOCK"] == str(path)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


def test_without_a_clock_file_children_are_pointed_at_none(clock: FrozenClock) -> None:
    assert "PYTEST_GITTRIX_CLOCK" not in clock.environment()
    with pytest.raises(InvalidInput, match="has no file"):
        clock.faketime_environment()


def test_a_file_clock_shows_what_the_test_set(clock: FrozenClock, tmp_path: Path) -> None:
    reader = FileClock(clock.attach_file(tmp_path / "clock"))
    assert reader.now() == EPOCH
    clock.just_before(EPOCH + timedelta(hours=4))
    assert reader.now() == clock.now()
    assert reader.now_ns() == clock.now_ns()


def test_a_file_clock_places_file_changes_as_the_tests_clock_does(tmp_path: Path) -> None:
    clock = FrozenClock()
    early, late = tmp_path / "early", tmp_path / "late"
    early.touch()
    clock.advance(hours=1)
    reader = FileClock(clock.attach_file(tmp_path / "clock"))
    late.touch()
    clock.advance(hours=4)
    stamps = [path.stat().st_ctime_ns for path in (early, late)]
    assert [instant_at(reader.instant_of(stamp)) for stamp in stamps] == [EPOCH, EPOCH + timedelta(hours=1)]


def test_a_file_clock_without_moves_takes_every_file_for_changed_just_now(tmp_path: Path) -> None:
    (tmp_path / "clock").write_text("2030-01-01T04:00:00Z\n")
    reader = FileClock(tmp_path / "clock")
    assert reader.instant_of(0) == reader.now_ns()


def test_a_file_clock_runs_what_is_due_when_polled_once_each(clock: FrozenClock, tmp_path: Path) -> None:
    reader = FileClock(clock.attach_file(tmp_path / "clock"))
    ran: list[str] = []
    reader.every(FIVE_MINUTES, lambda: ran.append("every"))
    reader.at(EPOCH + timedelta(minutes=1), lambda: ran.append("at"))
    reader.poll()
    assert ran == []
    clock.advance(hours=1)
    reader.poll()
    assert ran == ["at", "every"]
    reader.close()
    clock.advance(hours=1)
    reader.poll()
    assert ran == ["at", "every"]


@pytest.mark.parametrize("content", [None, b"", b"garbage\n", b"2030-01-01T00:00:00\n", b"\xff\xfe"])
def test_a_clock_file_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    path = tmp_path / "clock"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("PYTEST_GITTRIX_CLOCK", str(path))
    with pytest.raises(InvalidInput) as caught:
        clock_from_environment()
    assert str(path) in caught.value.fact
    assert "PYTEST_GITTRIX_CLOCK" in caught.value.fix


def test_a_child_process_finds_the_clock_in_its_environment(clock: FrozenClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_GITTRIX_CLOCK", raising=False)
    assert isinstance(clock_from_environment(), SystemClock)
    clock.attach_file(tmp_path / "clock")
    monkeypatch.setenv("PYTEST_GITTRIX_CLOCK", clock.environment()["PYTEST_GITTRIX_CLOCK"])
    assert clock_from_environment().now() == EPOCH


def test_where_libfaketime_is_missing_wrap_says_what_to_install(
    clock: FrozenClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_carriers, "FAKETIME_LIBRARIES", (str(tmp_path / "*.so"),))
    clock.attach_file(tmp_path / "clock")
    assert clock.faketime_environment() is None
    with pytest.raises(CapabilityMissing, match="libfaketime is not installed"):
        clock.wrap(["date"])


@pytest.mark.skipif(clock_carriers.faketime_library() is None, reason="libfaketime is not installed")
def test_a_program_under_libfaketime_follows_the_clock_and_keeps_real_monotonic_time(clock: FrozenClock, tmp_path: Path) -> None:
    clock.attach_file(tmp_path / "clock")
    program = "import sys, time\nfor _ in sys.stdin: print(round(time.time()), time.monotonic() < 1.8e9, flush=True)"
    with subprocess.Popen(clock.wrap([sys.executable, "-c", program]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(2):
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == f"{clock.now_ns() // 10**9} True\n"
            clock.advance(hours=1)


# --- the real clock ---------------------------------------------------------------------------------------------------


def test_the_real_clock_shows_real_time_in_utc(system_clock: SystemClock) -> None:
    before, shown, after = datetime.now(UTC), system_clock.now(), datetime.now(UTC)
    assert before <= shown <= after
    assert shown.tzinfo is UTC


def test_the_real_clock_runs_timers_on_one_daemon_thread(system_clock: SystemClock) -> None:
    threads: list[threading.Thread] = []
    done = threading.Semaphore(0)

    def note() -> None:
        threads.append(threading.current_thread())
        done.release()

    timer = system_clock.every(timedelta(milliseconds=1), note)
    one_off = system_clock.at(system_clock.now(), note)
    for _ in range(3):
        assert done.acquire(timeout=TIMEOUT)
    system_clock.close()
    assert not timer.active
    assert not one_off.active
    assert len(set(threads)) == 1
    assert threads[0].daemon
    assert not threads[0].is_alive()
    assert threads[0] is not threading.main_thread()


def test_a_timer_that_raises_is_reported_and_goes_on(system_clock: SystemClock, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[BaseException | None] = []
    done = threading.Semaphore(0)

    def report(args: threading.ExceptHookArgs) -> None:
        reported.append(args.exc_value)
        done.release()

    def fail() -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(threading, "excepthook", report)
    system_clock.every(timedelta(milliseconds=1), fail)
    for _ in range(2):
        assert done.acquire(timeout=TIMEOUT)
    system_clock.close()
    assert all(str(error) == "boom" for error in reported)
    assert len(reported) >= 2


def test_close_waits_for_the_timer_that_is_running_and_may_be_called_by_it(system_clock: SystemClock) -> None:
    started, finished = threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        system_clock.close()
        finished.set()

    system_clock.at(system_clock.now(), run)
    assert started.wait(TIMEOUT)
    system_clock.close()
    assert finished.is_set()


def test_a_closed_real_clock_takes_no_timers(system_clock: SystemClock) -> None:
    system_clock.close()
    with pytest.raises(InvalidInput, match="clock is closed"):
        system_clock.every(FIVE_MINUTES, print)


def test_the_clocks_say_how_finely_they_record(clock: FrozenClock, system_clock: SystemClock) -> None:
    assert (clock.resolution, system_clock.resolution) == (timedelta(0), timedelta(seconds=1))
