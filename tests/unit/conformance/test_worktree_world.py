"""The world of a worktree tool: what its scripts say, and what is left of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool
from pytest_gittrix.conformance.worktrees.base.world import MOST_LINES, NoVerdict, PromiseBroken, opened_world, token
from pytest_gittrix.os_level.proc import running_in

TOOL = WorktreeTool(
    create='git worktree add -q -b {name} "$PLACE/{name}" && echo "$ODD"; sleep 300 &',
    env={"PLACE": "{world}/trees", "ODD": 'a "quoted" $word'},
    timeout=5,
)


def test_variables_of_the_description_are_the_same_in_the_world_and_in_a_script(template: Path, tmp_path: Path) -> None:
    with opened_world(TOOL, template, tmp_path) as world:
        path = world.create()
        assert path == world.root / "trees/demo"
        world.sh("echo work > new.txt", path)
        with pytest.raises(PromiseBroken, match=r"there is \$\(echo no\) file"):
            world.check('test ! -e "$R/trees/demo/new.txt"', "there is $(echo no) file")
        script = world.script("a title\nof two lines \x1b[31m")
    (tmp_path / "xdg/git").mkdir(parents=True)
    (tmp_path / "xdg/git/config").write_text("no configuration", encoding="utf-8")

    done = subprocess.run(
        ["sh", "-c", script.replace("sleep 300 &", "true")],
        env=os.environ | {"TMPDIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(script.splitlines()) <= MOST_LINES
    assert done.stdout.splitlines() == ['a "quoted" $word', "exit status 0", "WRONG: there is $(echo no) file"]
    assert script.splitlines()[1] == r"# a title of two lines \x1b[31m"


def test_a_script_finds_a_path_that_a_tool_made_of_the_name_of_the_world(template: Path, tmp_path: Path) -> None:
    tool = WorktreeTool(create='git worktree add -q -b {name} "$HOME/$(basename "$R")/{name}"')

    with opened_world(tool, template, tmp_path) as world:
        world.sh("echo work > new.txt", world.create())
        with pytest.raises(PromiseBroken):
            world.check('test ! -e "$W/new.txt"', "there is a file")
        script = world.script("a title")
        assert world.root.name not in script
    with opened_world(tool, template, tmp_path) as other:
        assert "WRONG: there is a file" in other.replay(script)


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


ASKS = "read -r answer; [ $answer = y ] && {condition}git worktree add -q -b {{name}} {{repo}}-{{name}}"
TERMINAL = pytest.param(True, marks=pytest.mark.skipif(shutil.which("script") is None, reason="there is no script command"))


@pytest.mark.parametrize("pty", [False, TERMINAL])
def test_answers_stand_on_the_standard_input_in_the_world_and_in_a_script(template: Path, tmp_path: Path, pty: bool) -> None:
    asking = WorktreeTool(create=ASKS.format(condition="test -t 0 && " if pty else ""), answers=("y",), pty=pty)

    with opened_world(asking, template, tmp_path) as world:
        assert world.branch_of(world.create()) == "demo"
        with pytest.raises(PromiseBroken):
            world.check('test ! -e "$R/app-demo/file.txt"', "there is a file")
        script = world.script("a title")
    with opened_world(asking, template, tmp_path) as other:
        assert "WRONG: there is a file" in other.replay(script)


def test_a_script_leaves_the_terminal_that_it_is_pasted_into_alone(template: Path, tmp_path: Path) -> None:
    with opened_world(WorktreeTool(create="true"), template, tmp_path) as world:
        world.command("create")

        assert "; (true) </dev/null; " in world.lines[-1]


def test_work_is_found_however_much_else_git_stores(template: Path, tmp_path: Path) -> None:
    with opened_world(TOOL, template, tmp_path) as world:
        world.sh(f"git checkout -q -b side; echo {token('stored')} > new.txt; git add .; git commit -qm work; git rm -q new.txt")
        world.sh("head -c 1500000 /dev/urandom | base64 > big.txt; git add .; git commit -qm big; git checkout -q main")

        world.findable(token("stored"), "the work is gone")
        with pytest.raises(PromiseBroken) as broken:
            world.findable(token("other"), "other work is gone")
        assert broken.value.lost


def test_what_could_not_be_searched_is_not_called_lost(template: Path, tmp_path: Path) -> None:
    for program in ("sh", "git"):
        (tmp_path / program).symlink_to(shutil.which(program) or program)

    without_grep = WorktreeTool(create="true", env={"PATH": str(tmp_path)})
    with pytest.raises(NoVerdict, match="could not be searched"), opened_world(without_grep, template, tmp_path) as world:
        world.findable(token("stored"), "the work is gone")


def test_the_repository_of_a_world_begins_on_the_base_of_the_description(template: Path, tmp_path: Path) -> None:
    tool = WorktreeTool(create="git worktree add -q -b {name} ../{name} {base}", base="develop", origin="bare")

    with opened_world(tool, template, tmp_path) as world:
        world.create()
        assert world.look("git for-each-ref --format='%(refname)'").split() == [
            *("refs/heads/demo", "refs/heads/develop", "refs/remotes/origin/develop")
        ]
