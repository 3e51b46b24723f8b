"""Earlier names: each still works, and a warning at the caller says what it is called today."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.evals import suite, write

import pytest_gittrix.clock
from pytest_gittrix.clock import CLOCK_START, FrozenClock
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.integrations.eval_environment import EvalEnvironment
from pytest_gittrix.integrations.mini_swe_agent import GittrixEnvironmentConfig
from pytest_gittrix.testing.repos.history import History
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.testing.repos.templates import Templates
from pytest_gittrix.testing.world import World

START = datetime(2040, 5, 6, tzinfo=UTC)
OLD = {"epoch": START}

STARTS: dict[str, Callable[[Path], datetime]] = {
    "FrozenClock": lambda _: FrozenClock(**OLD).now(),
    "World.open": lambda path: World.open(path, files={}, **OLD).clock.now(),
    "Place.open": lambda path: Place.open(path, files={}, **OLD).clock.now(),
    "EvalEnvironment.open": lambda path: EvalEnvironment.open(path=path, confine="off", **OLD).world.clock.now(),
    "GittrixEnvironmentConfig": lambda _: GittrixEnvironmentConfig(**OLD).clock_start,
}


@pytest.mark.parametrize("name", STARTS)
def test_clocks_start_where_the_earlier_name_says(name: str, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"epoch is called clock_start today; the old name goes with version 1\.0\.") as warned:
        assert STARTS[name](tmp_path) == START

    assert len(warned) == 1
    if name.endswith("Config"):  # pydantic calls it
        return
    assert (warned[0].filename, warned[0].lineno) == (__file__, inspect.getsourcelines(STARTS[name])[1])


def test_histories_are_as_old_under_either_name(tmp_path: Path) -> None:
    history = History.of({"a": "1"})
    with pytest.warns(DeprecationWarning, match="epoch"):
        assert history.write(**OLD).commits == history.write(clock_start=START).commits
    with pytest.warns(DeprecationWarning, match="epoch"):
        assert Templates(tmp_path / "one").of(history, **OLD).head == Templates(tmp_path / "two").of(history, clock_start=START).head
    with pytest.warns(DeprecationWarning, match="epoch"):
        old = BareRemote.make(tmp_path / "old", files={}, **OLD)
    assert old.repo.log() == BareRemote.make(tmp_path / "new", files={}, clock_start=START).repo.log()


def test_a_suite_knows_the_earlier_key_and_attribute(tmp_path: Path) -> None:
    place = suite(tmp_path)
    write(place, {"suite.toml": "schema = 1\nepoch = 2040-05-06T00:00:00Z\n"})
    with pytest.warns(DeprecationWarning, match=r"epoch in suite\.toml is called clock_start"):
        found = Suite.load(place)
    with pytest.warns(DeprecationWarning, match=r"Suite\.epoch is called clock_start"):
        assert found.epoch == found.clock_start == START


def test_the_constant_is_found_under_its_earlier_name_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(pytest_gittrix.clock), "EPOCH", raising=False)
    with pytest.warns(DeprecationWarning, match=r"pytest_gittrix\.clock\.EPOCH is called CLOCK_START today") as warned:
        from pytest_gittrix.clock import EPOCH

    assert EPOCH is CLOCK_START
    assert [(one.filename, len(warned)) for one in warned] == [(__file__, 1)]


def test_both_names_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Both clock_start and epoch were given"):
        World.open(tmp_path, clock_start=START, **OLD)
