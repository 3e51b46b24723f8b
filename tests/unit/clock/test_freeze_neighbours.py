"""A freeze of the process inside another one, beside other libraries that freeze clocks, and around modules that load late."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from support.freeze import FROZEN, HOUR, run


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
        import time_machine
        with time_machine.travel(0):
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


@pytest.mark.parametrize("mode", ["wall", "all"])
def test_another_library_is_refused_inside_however_it_is_started_and_the_first_goes_on(tmp_path: Path, mode: str) -> None:
    out = run(
        f"""
        import freezegun, time_machine
        frozen = freezegun.freeze_time("2020-01-01")
        travel = time_machine.travel("2020-01-01T00:00:00+00:00")
        with process_freeze(clock, {mode!r}):
            for library, freeze in (("freezegun", frozen), ("time-machine", travel)):
                out[library] = [refusal(freeze.__enter__), refusal(freeze.start), refusal(freeze(lambda: None))]
            clock.advance(hours=1)
            out["time"] = time.time()
        with frozen:
            out["afterwards"] = time.time()
        """,
        tmp_path,
    )
    for library in ("freezegun", "time-machine"):
        fact = f"{library} cannot freeze this process: it shows the clock of a test (2030-01-01T00:00:00.000Z)."
        assert out[library] == [["ClockConflict", fact, True, True]] * 3
    assert out["time"] == FROZEN + HOUR
    assert out["afterwards"] == 1_577_836_800


def test_freezegun_that_is_first_loaded_inside_is_refused_too(tmp_path: Path) -> None:
    out = run(
        """
        with process_freeze(clock):
            from freezegun import freeze_time
            out["refusal"] = refusal(freeze_time("2020-01-01").start)
        """,
        tmp_path,
    )
    assert out["refusal"][0] == "ClockConflict"


@pytest.mark.parametrize(
    ("patch", "reading"),
    [
        ("time.time = lambda: 5.0", "time.time() is off by -1893455995 s"),
        ("time.monotonic = lambda: 5.0", "time.monotonic does not advance"),
    ],
)
def test_a_process_that_something_else_holds_in_part_is_refused_and_given_back(tmp_path: Path, patch: str, reading: str) -> None:
    out = run(
        f"""
        from time import time as captured
        {patch}
        out["refusal"] = refusal(lambda: process_freeze(clock).__enter__())
        out["given back"] = captured()
        """,
        tmp_path,
    )
    kind, fact, *_ = out["refusal"]
    assert kind == "ClockConflict"
    assert reading in fact
    assert out["given back"] < FROZEN


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


@pytest.mark.parametrize("mode", ["wall", "all"])
def test_a_module_that_cannot_be_loaded_does_not_stop_the_freeze(tmp_path: Path, mode: str) -> None:
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
        with process_freeze(clock, MODE):
            out["time"] = time.time()
        """.replace("MODE", repr(mode)),
        tmp_path,
    )
    assert out == {"time": FROZEN}


@pytest.mark.parametrize(
    "frozen",
    [
        "process_freeze(clock)",
        "time_machine.travel('2040-01-01T00:00:00+00:00', tick=False)",
        "freezegun.freeze_time('2040-01-01')",
    ],
)
def test_what_the_engine_judges_by_times_of_files_is_judged_by_the_machines_time(tmp_path: Path, frozen: str) -> None:
    """Otherwise files that another process is writing would count as left over, and owners of locks as gone."""
    out = run(
        f"""
        import freezegun, time_machine
        from pytest_gittrix.clock import SystemClock
        from pytest_gittrix.os_level.files import is_older
        from pytest_gittrix.os_level.lease import Lease
        from pytest_gittrix.os_level.monotonic import real_wall_ns, real_wall_seconds
        from pytest_gittrix.workspaces.creation_note import boot_offset
        before, booted = real_wall_ns(), boot_offset()
        open("left", "w").close()
        with {frozen}, Lease("lock", stale_after=600) as lease:
            out["went on"] = [abs(now - before) < 600e9 for now in (real_wall_ns(), real_wall_seconds() * 1e9, SystemClock().now_ns())]
            out["fine"] = len({{real_wall_ns() for _ in range(1000)}}) > 100
            out["older"] = is_older("left", 600)
            out["stepped"] = abs(boot_offset() - booted) > 600e9
            out["owner"] = Lease("lock", stale_after=600).state()
        """,
        tmp_path,
    )
    assert out == {"went on": [True] * 3, "fine": True, "older": False, "stepped": False, "owner": "active"}
