"""A local repository as durable: the branch that sessions start from, where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.git import git

from pytest_gittrix.backends import LocalDurable
from pytest_gittrix.errors import InvalidInput


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git("init", "-q", "--initial-branch=trunk", cwd=tmp_path)
    git("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "--allow-empty", "--message=first", cwd=tmp_path)
    git("branch", "other", cwd=tmp_path)
    return tmp_path


def test_the_branch_is_the_one_that_head_is_on_unless_one_is_named(repository: Path) -> None:
    assert LocalDurable(repository).branch == "trunk"
    assert LocalDurable(repository, "other").branch == "other"
    git("checkout", "-q", "other", cwd=repository)
    assert LocalDurable(repository).branch == "other"
    git("checkout", "-q", "--detach", cwd=repository)
    assert LocalDurable(repository).branch == "main"
    with pytest.raises(InvalidInput, match="branch"):
        LocalDurable(repository, "no..branch")
