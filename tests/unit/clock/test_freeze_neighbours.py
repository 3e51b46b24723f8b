"""A freeze of the process inside another one, beside other libraries that freeze clocks, and around modules that load late."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

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
        from pytest_gittrix.durations import parse_instant
        ordinary = [datetime.datetime]  # in a list, where the freeze does not replace it
        with process_freeze(clock):
            out["types"] = [type(when) in ordinary for when in (clock.now(), clock.advance(hours=1), parse_instant("2031-01-01T00:00:00Z"))]
            clock.at(datetime.datetime.now(datetime.timezone.utc), lambda: out.update(ran=True))
            clock.advance(seconds=0)
        """,
        tmp_path,
    )
    assert out == {"types": [True, True, True], "ran": True}
