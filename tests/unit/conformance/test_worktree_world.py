"""The world of a worktree tool: what its scripts say, and what is left of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_gittrix.conformance import WorktreeTool
from pytest_gittrix.conformance.worktrees.base.world import MOST_LINES, NoVerdict, PromiseBroken, make_template, opened_world
from pytest_gittrix.os_level.proc import running_in

TOOL = WorktreeTool(
    create='git worktree add -q -b {name} "$PLACE/{name}" && echo "$ODD"; sleep 300 &',
    env={"PLACE": "{world}/trees", "ODD": 'a "quoted" $word'},
    timeout=5,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("template") / "world"
    make_template(place)
    return place


def test_variables_of_the_description_are_the_same_in_the_world_and_in_a_script(template: Path, tmp_path: Path) -> None:
    with opened_world(TOOL, template, tmp_path) as world:
        path = world.create()
        assert path == world.root / "trees/demo"
        world.sh("echo work > new.txt", path)
        with pytest.raises(PromiseBroken, match="there is a file"):
            world.check('test ! -e "$R/trees/demo/new.txt"', "there is a file")
        script = world.script("a title")

    done = subprocess.run(
        ["sh", "-c", script.replace("sleep 300 &", "true")],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(script.splitlines()) <= MOST_LINES
    assert done.stdout.splitlines() == ['a "quoted" $word', "exit status 0", "LOST: there is a file"]


def test_nothing_of_a_world_is_left(template: Path, tmp_path: Path) -> None:
    with opened_world(TOOL, template, tmp_path) as world:
        world.create()
        root = world.root
        assert running_in(str(root))

    assert not running_in(str(root))
    assert not root.exists()


def test_a_command_that_waits_for_ever_is_ended_and_gives_no_verdict(template: Path, tmp_path: Path) -> None:
    waiting = WorktreeTool(create="cat - >/dev/null; sleep 300", timeout=0.2)

    with pytest.raises(NoVerdict, match=r"did not end within 0\.2 seconds"), opened_world(waiting, template, tmp_path) as world:
        world.create()


def test_answers_stand_on_the_standard_input(template: Path, tmp_path: Path) -> None:
    asking = WorktreeTool(create='read -r answer; [ "$answer" = y ] && git worktree add -q -b {name} ../{name}', answers=("y",))

    with opened_world(asking, template, tmp_path) as world:
        assert world.branch_of(world.create()) == "demo"
