"""The process-wide freeze. Every freeze runs in a process of its own, so that no other test can meet it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from support.freeze import FROZEN, HOUR, TIMEOUT, python, run

# Reads the clock in every way code under test does, by module and by imported name.
SYSTEM_UNDER_TEST = """
import datetime, time
from datetime import date, datetime as imported_datetime
from time import time as imported_time

def readings():
    utc = datetime.timezone.utc
    return {
        "time": time.time(),
        "imported time": imported_time(),
        "time_ns": time.time_ns() / 1e9,
        "now(utc)": datetime.datetime.now(utc).timestamp(),
        "now": datetime.datetime.now().replace(tzinfo=utc).timestamp(),
        "imported now": imported_datetime.now().replace(tzinfo=utc).timestamp(),
        "utcnow": datetime.datetime.utcnow().replace(tzinfo=utc).timestamp(),
        "gmtime": time.mktime(time.gmtime()),
        "localtime": time.mktime(time.localtime()),
        "strftime": float(imported_datetime.strptime(time.strftime("%Y-%m-%dT%H:%M:%S+0000"), "%Y-%m-%dT%H:%M:%S%z").timestamp()),
        "date": datetime.date.today().isoformat(),
        "imported date": date.today().isoformat(),
    }
"""
TODAY = {"date": "2030-01-01", "imported date": "2030-01-01"}


@pytest.fixture
def system_under_test(tmp_path: Path) -> None:
    for name in ("gittrix_sut", "git_sut", "ordinary_sut"):
        (tmp_path / f"{name}.py").write_text(SYSTEM_UNDER_TEST)


@pytest.mark.usefixtures("system_under_test")
@pytest.mark.parametrize("mode", ["wall", "all"])
@pytest.mark.parametrize("module", ["gittrix_sut", "git_sut", "ordinary_sut"])
def test_every_reading_follows_the_clock_whatever_the_module_is_called(tmp_path: Path, module: str, mode: str) -> None:
    out = run(
        f"""
        import warnings
        warnings.filterwarnings("ignore", "datetime.datetime.utcnow")
        from concurrent.futures import ThreadPoolExecutor
        import {module} as sut
        with process_freeze(clock, {mode!r}):
            out["start"] = sut.readings()
            clock.advance(hours=1)
            out["main"] = sut.readings()
            timer = threading.Timer(0, lambda: out.update(timer=sut.readings()))
            timer.start(); timer.join()
            with ThreadPoolExecutor(1) as pool:
                out["pool"] = pool.submit(sut.readings).result()
            clock.at(clock.now() + datetime.timedelta(hours=1), lambda: out.update(due=sut.readings()))
            clock.advance(hours=5)
        out["after"] = sut.readings()
        """,
        tmp_path,
    )
    for where, hours in {"start": 0, "main": 1, "timer": 1, "pool": 1, "due": 2}.items():
        assert out[where] == dict.fromkeys(out[where], FROZEN + hours * HOUR) | TODAY, where
    assert not {name for name, reading in out["after"].items() if reading in ("2030-01-01", FROZEN + 6 * HOUR)}


def test_a_module_loaded_during_the_freeze_follows_and_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "gittrix_late.py").write_text("from time import time, monotonic\n")
    out = run(
        """
        with process_freeze(clock):
            import gittrix_late
            out["frozen"] = gittrix_late.time()
        out["real"] = gittrix_late.time is time.time and gittrix_late.monotonic is time.monotonic
        """,
        tmp_path,
    )
    assert out == {"frozen": FROZEN, "real": True}


def test_time_ns_is_exact_to_the_microsecond(tmp_path: Path) -> None:
    out = run(
        """
        with process_freeze(clock):
            out["pairs"] = []
            for _ in range(50):
                clock.advance(microseconds=7_777_777)
                out["pairs"].append((time.time_ns(), clock.now_ns()))
        """,
        tmp_path,
    )
    assert [read for read, _ in out["pairs"]] == [shown for _, shown in out["pairs"]]


def test_local_time_knows_summer_time(tmp_path: Path) -> None:
    out = run(
        """
        with process_freeze(FrozenClock(datetime.datetime(2030, 7, 1, 12, tzinfo=datetime.timezone.utc))):
            out["hour"] = time.localtime().tm_hour
            out["strftime"] = time.strftime("%H")
            out["round trip"] = time.mktime(time.localtime()) - time.time()
        """,
        tmp_path,
        TZ="CET-1CEST,M3.5.0,M10.5.0/3",
    )
    assert out == {"hour": 14, "strftime": "14", "round trip": 0}


def test_gitpython_commits_at_the_frozen_instant(tmp_path: Path) -> None:
    out = run(
        """
        import git
        with process_freeze(clock):
            clock.advance(hours=1)
            with git.Repo.init("repo") as repo:
                actor = git.Actor("A", "a@example.org")
                commit = repo.index.commit("one", author=actor, committer=actor)
                out.update(authored=commit.authored_date, committed=commit.committed_date)
        """,
        tmp_path,
        GIT_CONFIG_NOSYSTEM="1",
    )
    assert out == {"authored": FROZEN + HOUR, "committed": FROZEN + HOUR}


@pytest.mark.parametrize("mode", ["wall", "all"])
def test_waits_with_a_timeout_still_end(tmp_path: Path, mode: str) -> None:
    out = run(
        f"""
        import asyncio, queue, subprocess
        from concurrent.futures import ThreadPoolExecutor
        from concurrent.futures import TimeoutError as FutureTimeout
        import filelock

        def raises(expected, wait):
            try:
                wait()
            except expected:
                return True

        with process_freeze(clock, {mode!r}), filelock.FileLock("lock"):
            out["filelock"] = raises(filelock.Timeout, lambda: filelock.FileLock("lock", is_singleton=False).acquire(timeout=0.05))
            sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
            out["subprocess"] = raises(subprocess.TimeoutExpired, lambda: subprocess.run(sleeper, timeout=0.05))
            asyncio.run(asyncio.sleep(0.01))
            out["wait_for"] = raises(TimeoutError, lambda: asyncio.run(asyncio.wait_for(asyncio.sleep(600), 0.05)))
            out["queue"] = raises(queue.Empty, lambda: queue.Queue().get(timeout=0.05))
            out["event"] = not threading.Event().wait(0.05)
            fired = threading.Event()
            threading.Timer(0.01, fired.set).start()
            out["timer"] = fired.wait(60)
            gate = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                out["pool"] = raises(FutureTimeout, lambda: pool.submit(gate.wait).result(timeout=0.05))
                gate.set()
            time.sleep(0.001)
        """,
        tmp_path,
    )
    assert out == dict.fromkeys(("filelock", "subprocess", "wait_for", "queue", "event", "timer", "pool"), True)


def test_wall_mode_leaves_the_monotonic_functions_alone(tmp_path: Path) -> None:
    out = run(
        """
        from time import monotonic
        real = [time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns]
        with process_freeze(clock):
            now = [time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns]
            out["same"] = all(a is b for a, b in zip(real, now)) and monotonic is time.monotonic
        """,
        tmp_path,
    )
    assert out == {"same": True}


def test_all_mode_moves_monotonic_time_with_the_clock_but_not_with_a_skew(tmp_path: Path) -> None:
    out = run(
        """
        from time import monotonic
        names = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
        def read():
            return [getattr(time, name)() for name in names] + [monotonic()]
        before = read()
        with process_freeze(clock, "all"):
            start = read()
            out["goes on"] = all(a <= b for a, b in zip(before, start))
            out["stands"] = read() == start
            clock.skew(hours=-3)
            out["ignores a skew"] = read() == start
            clock.advance(hours=1)
            out["moved"] = [round(b - a, 3) for a, b in zip(start, read())]
            origin, start = clock.elapsed_ns, read()
            out["whole seconds"] = []
            for power in range(18, 31):  # a sum just above a power of two has one bit less than the difference
                clock.advance(seconds=2**power - 60 - (clock.elapsed_ns - origin) // 10**9)
                out["whole seconds"].append(time.monotonic() - start[0] + 60)
        out["real again"] = time.monotonic.__module__ == "time" and monotonic is time.monotonic
        """,
        tmp_path,
    )
    hour_ns = HOUR * 10**9
    assert out == {
        "goes on": True,
        "stands": True,
        "ignores a skew": True,
        "moved": [HOUR, hour_ns, HOUR, hour_ns, HOUR],
        "whole seconds": [2**power for power in range(18, 31)],
        "real again": True,
    }


def test_none_mode_freezes_nothing(tmp_path: Path) -> None:
    out = run(
        """
        real = time.time
        with process_freeze(clock, "none"):
            out["same"] = time.time is real
        """,
        tmp_path,
    )
    assert out == {"same": True}


@pytest.mark.parametrize("mode", ["wall", "all"])
def test_pytest_and_hypothesis_measure_real_durations(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_inner.py").write_text(
        dedent(
            f"""
            from datetime import timedelta
            import time
            import pytest
            from hypothesis import given, settings, strategies as st
            from pytest_gittrix.clock import FrozenClock
            from pytest_gittrix.clock.freeze import process_freeze

            @pytest.fixture(scope="module")
            def clock():
                clock = FrozenClock(separate_files=False)
                with process_freeze(clock, {mode!r}):
                    yield clock

            @settings(deadline=timedelta(seconds=20), max_examples=20, database=None)
            @given(hours=st.integers(1, 5))
            def test_moves(clock, hours):
                before = time.time()
                clock.advance(hours=hours)
                assert time.time() - before == hours * 3600
            """
        )
    )
    (tmp_path / "durations.py").write_text(
        dedent(
            """
            import json
            reports = []
            def pytest_runtest_logreport(report):
                reports.append((report.when, report.outcome, report.duration, report.start, report.stop))
            def pytest_unconfigure():
                with open("reports.json", "w") as file:
                    json.dump(reports, file)
            """
        )
    )
    options = ["-q", "-W", "error", "-p", "durations", "-p", "no:gittrix", "-p", "no:cacheprovider", "--durations=1"]
    python(["-m", "pytest", *options, "test_inner.py"], tmp_path)
    reports = json.loads((tmp_path / "reports.json").read_text())
    assert [when for when, *_ in reports] == ["setup", "call", "teardown"]
    assert all(outcome == "passed" and 0 <= duration < TIMEOUT for _, outcome, duration, _, _ in reports)
    assert all(start <= stop < FROZEN for _, _, _, start, stop in reports)
