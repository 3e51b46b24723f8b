"""What would be lost with a worktree is named by form, and work that is on the base in another shape is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gittrix import unfinished_work
from pytest_gittrix.cli.main import main
from pytest_gittrix.conformance.worktrees.base.forms import FORMS, finish_by_hand, plant
from pytest_gittrix.conformance.worktrees.base.plain_git import PLAIN_GIT
from pytest_gittrix.conformance.worktrees.base.world import ToolWorld, make_template, opened_world
from pytest_gittrix.errors import InvalidInput

NAMED = {
    "modified": ("modified", "file.txt"),
    "staged": ("staged", "new.txt"),
    "untracked": ("untracked", "notes.txt"),
    "untracked-setting": ("untracked", "notes.txt"),
    "ignored": ("ignored", (".env", 22)),
    "assume-unchanged": ("hidden", "file.txt"),
    "skip-worktree": ("hidden", "file.txt"),
    "nested": ("nested", "nested"),
    "nested-ignored": ("nested", "build/tool"),
    "submodule": ("submodules", "lib"),
    "detached": ("detached", ""),
    "unmerged": ("unmerged", ""),
    "other-branch": ("unmerged", ""),
    "rebase": ("operations", "rebase"),
    "merge": ("operations", "merge"),
    "bisect": ("operations", "bisect"),
    "stash": ("stashes", "stash@{0}"),
    "locked": ("locked", "keep this"),
    "live": ("processes", ""),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("template") / "world"
    make_template(place)
    return place


@pytest.fixture
def world(template: Path, tmp_path: Path) -> Iterator[ToolWorld]:
    with opened_world(PLAIN_GIT, template, tmp_path) as made:
        yield made


def test_every_form_that_the_clauses_know_is_named_somewhere() -> None:
    assert {*NAMED} == {*FORMS}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_named(world: ToolWorld, name: str) -> None:
    plant(world, FORMS[name], name)
    form, expected = NAMED[name]

    found = dict(unfinished_work(world.path_of()).forms())

    assert form in found
    assert expected in ("", *found[form])


def test_every_form_at_once_is_named_by_the_command(world: ToolWorld, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.create()
    for name in ("unmerged", "stash", "modified", "staged", "untracked", "ignored", "nested", "nested-ignored", "locked", "live"):
        world.sh(FORMS[name].plant.replace("@", name), path)
    world.sh("git update-index --skip-worktree other.txt; echo hidden >> other.txt; touch $(git rev-parse --git-dir)/MERGE_HEAD", path)

    assert main(["unfinished", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["data"]

    assert [form for form in (*(form for form, _ in NAMED.values()), "unfinished") if not found[form]] == ["submodules", "detached"]
    assert main(["unfinished", str(path)]) == 1
    assert "ignored     .env (8 bytes), build/ (" in capsys.readouterr().out


def test_finished_work_is_not_named(world: ToolWorld, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.create()
    finish_by_hand(world)

    assert not unfinished_work(path)
    assert main(["unfinished", str(path)]) == 0
    assert capsys.readouterr().out == "nothing would be lost\n"


def commits(world: ToolWorld, count: int = 2) -> Path:
    path = world.create()
    for number in range(count):
        world.sh(f"echo {number} > {number}.txt; git add .; git commit -qm {number}", path)
    return path


@pytest.mark.parametrize(
    "landing",
    [
        "git merge -q --squash demo >/dev/null; git commit -qm all",
        "echo x > x.txt; git add .; git commit -qm x; git cherry-pick main..demo",
    ],
    ids=["squash", "rebase"],
)
def test_what_the_base_has_in_another_shape_is_merged(world: ToolWorld, landing: str) -> None:
    path = commits(world)
    assert len(unfinished_work(path).unmerged) == 2

    world.sh(f"{{ {landing}; }} >/dev/null")
    assert unfinished_work(path).unmerged == ()

    world.sh("echo later > later.txt; git add .; git commit -qm later", path)
    assert len(unfinished_work(path).unmerged) == 3


def test_work_that_was_reverted_on_its_own_branch_is_not_merged(world: ToolWorld) -> None:
    path = commits(world, 1)
    world.sh("git revert --no-edit HEAD >/dev/null", path)
    world.sh("echo x > x.txt; git add .; git commit -qm x")

    assert len(unfinished_work(path).unmerged) == 2


def test_the_base_can_be_named(world: ToolWorld) -> None:
    path = commits(world, 1)
    world.sh("git branch develop demo")

    assert unfinished_work(path, "develop").unmerged == ()
    with pytest.raises(InvalidInput, match="no branch 'nowhere'"):
        unfinished_work(path, "nowhere")


def test_a_place_without_a_worktree_is_refused(tmp_path: Path, world: ToolWorld) -> None:
    with pytest.raises(InvalidInput, match="is in no git repository"):
        unfinished_work(tmp_path / "nothing")
    world.sh('git clone -q --bare . "$R/bare"')
    with pytest.raises(InvalidInput, match="is a bare repository"):
        unfinished_work(world.root / "bare")
