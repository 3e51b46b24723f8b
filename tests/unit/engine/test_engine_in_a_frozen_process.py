"""An engine that was given no clock, in a process that shows another time than the machine's. Each in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.freeze import run as run_script

PRELUDE = """
import os, pathlib, warnings
import freezegun, time_machine
from pytest_gittrix import GitTrix

def started(engine):
    return engine.start_session("look around").info().created_at

def warned(make):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        engine = make()
    return engine, [[str(one.message), pathlib.Path(one.filename).name] for one in found]
"""


def run(script: str, directory: Path) -> Any:
    return run_script(PRELUDE + dedent(script), directory, GIT_CONFIG_NOSYSTEM="1")


@pytest.fixture
def durable(tmp_path: Path) -> Path:
    git = ["git", "-C", str(tmp_path / "app"), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path / "app")], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    return tmp_path


def test_it_runs_on_the_clock_of_the_test_and_leaves_it_open(durable: Path) -> None:
    out = run(
        """
        clock = FrozenClock()  # unlike that of the other tests here, it tells what was written before a move from what came after it
        with process_freeze(clock):
            with GitTrix("app", home="home", eviction="4h") as engine:
                session = engine.start_session("look around")
                out["created"] = session.info().created_at == clock.now()
                clock.advance(hours=5)
                out["status"] = [one.state for one in engine.list_sessions()]
            ran = []
            clock.every("1h", lambda: ran.append(1))
            clock.advance(hours=2)
            out["open"] = ran
            out["store"] = GitTrix(None, store="elsewhere/sessions").clock is clock
            out["own"] = GitTrix(None, home="home", clock=(own := FrozenClock())).clock is own
        """,
        durable,
    )
    assert out == {"created": True, "status": ["expired"], "open": [1, 1], "store": True, "own": True}


def test_on_the_persons_own_store_it_stays_on_the_machines_time_and_says_so(durable: Path) -> None:
    out = run(
        """
        with process_freeze(clock):
            engine, out["warnings"] = warned(lambda: GitTrix("app"))
            with engine:
                out["year"] = started(engine).year
        """,
        durable,
    )
    assert out["year"] < 2030
    ((message, file),) = out["warnings"]
    assert message.startswith("This engine runs on the machine's time, while the clock of a test holds this process's clock")
    assert "store=" in message
    assert file == "<string>"


@pytest.mark.parametrize(
    ("library", "freeze"),
    [
        ("freezegun", "freezegun.freeze_time('2031-01-01')"),
        ("time-machine", "time_machine.travel('2031-01-01T00:00:00+00:00')"),
    ],
)
def test_under_another_library_it_stays_on_the_machines_time_and_says_so(durable: Path, library: str, freeze: str) -> None:
    out = run(
        f"""
        with {freeze}:
            engine, out["warnings"] = warned(lambda: GitTrix("app", home="home"))
            with engine:
                out["year"] = started(engine).year
                out["process"] = datetime.datetime.now().year
        """,
        durable,
    )
    assert out["year"] < 2030
    assert out["process"] == 2031
    ((message, _),) = out["warnings"]
    assert message.startswith(f"This engine runs on the machine's time, while {library} holds this process's clock")
    assert "gittrix_clock" in message


def test_one_that_was_made_before_keeps_its_clock(durable: Path) -> None:
    out = run(
        """
        with GitTrix("app", home="home") as engine, process_freeze(clock):
            out["year"] = started(engine).year
        """,
        durable,
    )
    assert out["year"] < 2030
