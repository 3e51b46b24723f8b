"""What a frozen clock reaches beside the engine: times of files, git, other programs; and the real clock, which promises the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.clock import FIVE_MINUTES, TIMEOUT

from pytest_gittrix.clock import CLOCK_START, FrozenClock, SystemClock, propagation
from pytest_gittrix.clock.file_clock import FileClock, clock_from_environment
from pytest_gittrix.durations import instant_at, ns_of
from pytest_gittrix.errors import CapabilityMissing, InvalidInput

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
    assert clock.instant_of(before) == ns_of(CLOCK_START)
    assert clock.instant_of(after) == ns_of(CLOCK_START - timedelta(hours=1))


def test_a_file_older_than_the_clock_maps_to_its_start(tmp_path: Path) -> None:
    stamp = change(tmp_path / "old")
    clock = FrozenClock()
    clock.advance(hours=1)
    assert clock.instant_of(stamp) == clock.instant_of(0) == ns_of(CLOCK_START)


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
    clock.at(CLOCK_START + FIVE_MINUTES, lambda: seen.append(path.read_text()))
    clock.just_after(CLOCK_START + timedelta(hours=1))
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
    assert reader.now() == CLOCK_START
    clock.just_before(CLOCK_START + timedelta(hours=4))
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
    assert [instant_at(reader.instant_of(stamp)) for stamp in stamps] == [CLOCK_START, CLOCK_START + timedelta(hours=1)]


def test_a_file_clock_without_moves_takes_every_file_for_changed_just_now(tmp_path: Path) -> None:
    (tmp_path / "clock").write_text("2030-01-01T04:00:00Z\n")
    reader = FileClock(tmp_path / "clock")
    assert reader.instant_of(0) == reader.now_ns()


def test_a_file_clock_runs_what_is_due_when_polled_once_each(clock: FrozenClock, tmp_path: Path) -> None:
    reader = FileClock(clock.attach_file(tmp_path / "clock"))
    ran: list[str] = []
    reader.every(FIVE_MINUTES, lambda: ran.append("every"))
    reader.at(CLOCK_START + timedelta(minutes=1), lambda: ran.append("at"))
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
    assert clock_from_environment().now() == CLOCK_START


def test_where_libfaketime_is_missing_wrap_says_what_to_install(
    clock: FrozenClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagation, "FAKETIME_LIBRARIES", (str(tmp_path / "*.so"),))
    clock.attach_file(tmp_path / "clock")
    assert clock.faketime_environment() is None
    with pytest.raises(CapabilityMissing, match="libfaketime is not installed"):
        clock.wrap(["date"])


@pytest.mark.skipif(propagation.faketime_library() is None, reason="libfaketime is not installed")
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
