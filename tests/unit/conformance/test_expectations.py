"""What a system may change in durable for itself, and what is a person's."""

from __future__ import annotations

import pytest

from pytest_gittrix.conformance.base.expect import personal_things_unchanged
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem


def test_a_work_tree_of_the_system_comes_and_goes_and_one_of_a_person_must_stay() -> None:
    with Stage.open(GitTrixSystem("worktree"), files={"a.txt": "a\n"}) as stage:
        with personal_things_unchanged(stage):
            stage.start().evict()

        stage.durable.git("worktree", "add", "-q", "--detach", str(stage.path / "mine"))
        with pytest.raises(AssertionError, match="config: worktrees/mine/gitdir"), personal_things_unchanged(stage):
            stage.durable.git("worktree", "remove", str(stage.path / "mine"))


def test_a_file_of_a_person_is_not_taken_for_the_entry_of_a_work_tree_of_the_system() -> None:
    with Stage.open(GitTrixSystem("worktree"), files={"a.txt": "a\n"}) as stage:
        stage.start()
        (entry,) = (stage.durable.path / ".git/worktrees").iterdir()
        notes = f"worktrees/{entry.name}/notes.txt"
        with pytest.raises(AssertionError, match=f"index: {notes}, work tree: .*, work tree: {notes}"), personal_things_unchanged(stage):
            stage.durable.stage({notes: "notes\n"})


def test_in_a_bare_repository_too_the_entry_of_a_work_tree_of_the_system_is_its_own() -> None:
    with Stage.open(GitTrixSystem("worktree"), files={"a.txt": "a\n"}, bare=True) as stage:
        session = stage.start()
        assert [*(stage.durable.path / "worktrees").iterdir()]

        with personal_things_unchanged(stage):
            session.evict()
