"""The process-wide freeze. Every freeze runs in a process of its own, so that no other test can meet it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import pytest_gittrix

FROZEN = 1_893_456_000  # 2030-01-01T00:00:00Z
HOUR = 3600
TIMEOUT = 60  # seconds; only a hang takes as long

SETUP = """
import datetime, json, sys, threading, time
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.errors import ClockConflict, GittrixError, InvalidInput
from pytest_gittrix.freeze import process_freeze

def refusal(attempt):
    try:
        attempt()
    except GittrixError as problem:
        return [type(problem).__name__, problem.fact, bool(problem.why), bool(problem.fix)]

clock = FrozenClock(separate_files=False)
"""


def run(script: str, tmp_path: Path, **variables: str) -> Any:
    """Run ``script`` in a fresh interpreter with warnings as errors, and return what it put into ``out``."""
    source = f"{SETUP}\nout = {{}}\n{dedent(script)}\nprint(json.dumps(out))"
    return json.loads(python(["-W", "error", "-c", source], tmp_path, **variables))


def python(arguments: list[str], tmp_path: Path, **variables: str) -> str:
    path = os.pathsep.join([str(tmp_path), str(Path(pytest_gittrix.__file__).parent.parent)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(tmp_path), "TZ": "UTC"} | variables
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
            out["timer"] = fired.wait(30)
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
            from pytest_gittrix.freeze import process_freeze

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


def test_the_same_clock_may_be_frozen_again_inside(tmp_path: Path) -> None:
    out = run(
        """
        with process_freeze(clock):
            with process_freeze(clock):
                clock.advance(hours=1)
            clock.advance(hours=1)
            out["inside"] = time.time()
        with process_freeze(clock):
            out["again"] = time.time()
        out["given back"] = time.time.__module__ == "time" and datetime.datetime.__module__ == "datetime"
        """,
        tmp_path,
    )
    assert out == {"inside": FROZEN + 2 * HOUR, "again": FROZEN + 2 * HOUR, "given back": True}


def test_another_clock_or_mode_is_refused_inside_and_the_first_goes_on(tmp_path: Path) -> None:
    out = run(
        """
        with process_freeze(clock):
            out["clock"] = refusal(lambda: process_freeze(FrozenClock()).__enter__())
            out["mode"] = refusal(lambda: process_freeze(clock, "all").__enter__())
            clock.advance(hours=1)
            out["time"] = time.time()
        """,
        tmp_path,
    )
    assert out["clock"] == ["ClockConflict", "This process already shows another clock (2030-01-01T00:00:00.000Z).", True, True]
    assert out["mode"] == ["ClockConflict", "This process's clock is already frozen in mode 'wall'; mode 'all' was asked for.", True, True]
    assert out["time"] == FROZEN + HOUR


def test_an_unknown_mode_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    out = run('out["refusal"] = refusal(lambda: process_freeze(clock, "some").__enter__())', tmp_path)
    assert out["refusal"][:2] == ["InvalidInput", "freeze='some' is not known."]


def test_a_process_that_freezegun_already_holds_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    out = run(
        """
        from freezegun import freeze_time
        with freeze_time("2020-01-01"):
            out["refusal"] = refusal(lambda: process_freeze(clock).__enter__())
            out["time"] = time.time()
        with process_freeze(clock):
            out["afterwards"] = time.time()
        """,
        tmp_path,
    )
    assert out["refusal"] == ["ClockConflict", "freezegun already holds this process's clock.", True, True]
    assert out["time"] == 1_577_836_800
    assert out["afterwards"] == FROZEN


def test_a_process_that_time_machine_already_holds_is_refused(tmp_path: Path) -> None:
    out = run(
        """
        try:
            import time_machine
            travel = time_machine.travel(0)
        except ImportError:  # what its escape hatch answers while it travels
            from contextlib import nullcontext
            from types import SimpleNamespace
            sys.modules["time_machine"] = SimpleNamespace(escape_hatch=SimpleNamespace(is_travelling=lambda: True))
            travel = nullcontext()
        with travel:
            out["refusal"] = refusal(lambda: process_freeze(clock).__enter__())
        """,
        tmp_path,
    )
    assert out["refusal"] == ["ClockConflict", "time-machine already holds this process's clock.", True, True]


def test_freezegun_alone_works_beside_this_package(tmp_path: Path) -> None:
    """It reads every attribute of every module with the clock already frozen: one of ours that loads a room then would break."""
    out = run(
        """
        from freezegun import freeze_time
        loaded = {name for name in sys.modules if name.startswith("pytest_gittrix")}
        with freeze_time("2020-01-01"):
            out["loaded"] = sorted({name for name in sys.modules if name.startswith("pytest_gittrix")} - loaded)
        """,
        tmp_path,
    )
    assert out == {"loaded": []}


def test_a_freezegun_freeze_inside_wins_until_it_ends(tmp_path: Path) -> None:
    out = run(
        """
        from freezegun import freeze_time
        with process_freeze(clock):
            with freeze_time("2020-01-01"):
                clock.advance(hours=1)
                out["inner"] = time.time()
            out["outer"] = time.time()
        """,
        tmp_path,
    )
    assert out == {"inner": 1_577_836_800, "outer": FROZEN + HOUR}


def test_a_freezegun_freeze_left_running_inside_is_reported_and_the_process_given_back(tmp_path: Path) -> None:
    out = run(
        """
        from freezegun import freeze_time
        def leave_one_running():
            with process_freeze(clock):
                freeze_time("2020-01-01").start()
        out["refusal"] = refusal(leave_one_running)
        out["given back"] = time.time.__module__ == "time" and datetime.datetime.__module__ == "datetime"
        """,
        tmp_path,
    )
    assert out["refusal"] == ["ClockConflict", "A freezegun freeze that was started inside this one is still running.", True, True]
    assert out["given back"] is True


def test_a_freeze_that_does_not_reach_git_modules_is_refused_and_the_process_given_back(tmp_path: Path) -> None:
    out = run(
        """
        import freezegun
        freezegun.configure(extend_ignore_list=["git"])
        out["refusal"] = refusal(lambda: process_freeze(clock).__enter__())
        out["given back"] = time.time.__module__ == "time" and datetime.datetime.__module__ == "datetime"
        freezegun.config.reset_config()
        with process_freeze(clock):
            out["afterwards"] = time.time()
        """,
        tmp_path,
    )
    kind, fact, *_ = out["refusal"]
    assert kind == "ClockConflict"
    assert "time.time() in a module named git_clock_probe in the main thread is off by" in fact
    assert "in a module named gittrix_clock_probe in another thread" in fact
    assert out["given back"] is True
    assert out["afterwards"] == FROZEN


def test_modules_the_user_exempted_keep_real_time(tmp_path: Path) -> None:
    (tmp_path / "spared.py").write_text("import time\ndef read(): return time.time()\n")
    out = run(
        """
        import freezegun, spared
        freezegun.configure(extend_ignore_list=["spared"])
        with process_freeze(clock):
            out["spared"], out["other"] = spared.read(), time.time()
        """,
        tmp_path,
    )
    assert out["other"] == FROZEN
    assert out["spared"] < FROZEN


def test_modules_that_load_lazily_are_loaded_before_the_clock_stands_still(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(
        dedent(
            """
            def __dir__():
                return ["Model"]
            def __getattr__(name):
                if name != "Model":
                    raise AttributeError(name)
                from models import Model
                return Model
            """
        )
    )
    (tmp_path / "models.py").write_text("import datetime, pydantic\nclass Model(pydantic.BaseModel):\n    at: datetime.datetime\n")
    out = run(
        """
        import lazy
        with process_freeze(clock):
            out["model"] = lazy.Model(at=datetime.datetime.now(datetime.timezone.utc)).model_dump_json()
        """,
        tmp_path,
    )
    assert out == {"model": '{"at":"2030-01-01T00:00:00Z"}'}


def test_a_module_that_cannot_be_loaded_does_not_stop_the_freeze(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        dedent(
            """
            def __dir__():
                return ["room"]
            def __getattr__(name):
                raise RuntimeError("this room is broken") if name == "room" else AttributeError(name)
            """
        )
    )
    out = run(
        """
        import broken
        with process_freeze(clock):
            out["time"] = time.time()
        """,
        tmp_path,
    )
    assert out == {"time": FROZEN}


def test_the_clock_itself_gives_ordinary_datetimes_during_the_freeze(tmp_path: Path) -> None:
    out = run(
        """
        from pytest_gittrix.timetext import parse_instant
        ordinary = [datetime.datetime]  # in a list, where the freeze does not replace it
        with process_freeze(clock):
            out["types"] = [type(when) in ordinary for when in (clock.now(), clock.advance(hours=1), parse_instant("2031-01-01T00:00:00Z"))]
            clock.at(datetime.datetime.now(datetime.timezone.utc), lambda: out.update(ran=True))
            clock.advance(seconds=0)
        """,
        tmp_path,
    )
    assert out == {"types": [True, True, True], "ran": True}
