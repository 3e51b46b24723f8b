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
