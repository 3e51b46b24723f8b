"""While a world is open, no program of the process inherits git's local variables; afterwards everything is as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.testing.local_variables import withheld
from pytest_gittrix.testing.world import World

LEAD = {
    "GIT_DIR": "/real/.git",
    "GIT_INDEX_FILE": "/real/.git/index",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "a.b",
    "GIT_CONFIG_VALUE_0": "c",
}
COMMIT = "git add -A && git -c user.name=a -c user.email=a@example.com commit -qm agent"
OF_A_PERSON = {"GIT_AUTHOR_NAME": "Ada", "GIT_CONFIG_GLOBAL": "/people/ada", "GIT_CEILING_DIRECTORIES": "/people"}


pytestmark = pytest.mark.usefixtures("from_a_hook")


@pytest.fixture
def from_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**LEAD, **OF_A_PERSON}.items():
        monkeypatch.setenv(name, value)


def here() -> Mapping[str, str]:
    """The variables of git that this process has, and that a program of its own finds."""
    listing = [sys.executable, "-I", "-S", "-c", "import os; print(*(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')"]
    found = dict(line.split("=", 1) for line in subprocess.check_output(listing, text=True).splitlines() if line.startswith("GIT_"))
    assert found == {name: value for name, value in os.environ.items() if name.startswith("GIT_")}
    return found


def test_programs_have_a_persons_variables_and_no_local_ones_until_the_block_ends() -> None:
    with withheld() as names:
        assert here() == OF_A_PERSON
        assert set(names) == set(LEAD)
    assert here() == {**LEAD, **OF_A_PERSON}


def test_they_come_back_although_the_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), withheld():
        raise ZeroDivisionError
    assert here() == {**LEAD, **OF_A_PERSON}


def test_keep_leaves_them_and_tells_their_names() -> None:
    with withheld("keep") as names:
        assert here() == {**LEAD, **OF_A_PERSON}
        assert set(names) == set(LEAD)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"git_variables='hide'.*\n.*\nUse one of drop, keep"), withheld("hide"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_blocks_that_end_in_any_order_restore_what_the_first_one_found(order: tuple[int, ...]) -> None:
    blocks = [ExitStack() for _ in order]
    for block in blocks:
        block.enter_context(withheld())

    for number in order:
        assert here() == OF_A_PERSON
        blocks[number].close()

    assert here() == {**LEAD, **OF_A_PERSON}


@pytest.mark.parametrize("order", [*permutations(range(2))], ids=str)
def test_what_was_set_between_two_blocks_does_not_replace_what_was_there_before(order: tuple[int, ...]) -> None:
    blocks = [ExitStack(), ExitStack()]
    blocks[0].enter_context(withheld())
    os.environ["GIT_DIR"] = "/set/by/the/test"
    blocks[1].enter_context(withheld())
    assert "GIT_DIR" not in os.environ

    blocks[order[0]].close()
    assert os.environ.get("GIT_DIR") == (None if order[0] == 0 else "/set/by/the/test")
    blocks[order[1]].close()

    assert os.environ["GIT_DIR"] == LEAD["GIT_DIR"]


def test_an_open_world_withholds_them_and_a_closed_one_does_not(tmp_path: Path) -> None:
    with World.open(tmp_path / "one"):
        with World.open(tmp_path / "two") as second:
            assert here() == OF_A_PERSON
            second.close()
            assert here() == OF_A_PERSON
        assert here() == OF_A_PERSON
    assert here() == {**LEAD, **OF_A_PERSON}


def test_a_world_that_cannot_be_opened_withholds_nothing(tmp_path: Path) -> None:
    for wrong in ({"branch": "-x"}, {"git_variables": "hide"}, {"files": {"../x": ""}}):
        with pytest.raises(GittrixError):
            World.open(tmp_path / "world", **wrong)  # type: ignore[arg-type]
        assert here() == {**LEAD, **OF_A_PERSON}


def test_a_world_can_be_told_to_keep_them(tmp_path: Path) -> None:
    with World.open(tmp_path / "world", git_variables="keep"):
        assert here() == {**LEAD, **OF_A_PERSON}


def test_an_agent_that_commits_in_its_workspace_commits_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with World.open(tmp_path / "victim") as victim:
        path = victim.durable.path
    monkeypatch.setenv("GIT_DIR", str(path / ".git"))
    monkeypatch.delenv("GIT_INDEX_FILE")
    with World.open(tmp_path / "world") as world, victim.durable.unchanged(elsewhere=False):
        session = world.start()
        assert session.workspace_path is not None
        (session.workspace_path / "app.py").write_text("agent\n")

        subprocess.run(COMMIT, shell=True, cwd=session.workspace_path, check=True)

        assert [entry.message for entry in session.log()] == ["agent"]
    with World.open(tmp_path / "kept", git_variables="keep") as world, pytest.raises(AssertionError, match="refs/heads/main"):
        session = world.start()
        assert session.workspace_path is not None
        (session.workspace_path / "app.py").write_text("agent\n")
        with victim.durable.unchanged(elsewhere=False):
            subprocess.run(COMMIT, shell=True, cwd=session.workspace_path, check=True)
