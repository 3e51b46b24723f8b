"""A person's checkout, and landings that bring it forward as a promotion does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from support.git import Content, GitRepo, executable, link, stream

from pytest_gittrix.git.repository import Checkout, Repository
from pytest_gittrix.git.tree import changed_paths
from pytest_gittrix.git.worktree.checkout_update import Sides, lock_checkout

FILES: Mapping[str, Content] = {
    "app.py": "value = 1\n",
    "other.py": "other = 1\n",
    "run.sh": executable("#!/bin/sh\n"),
    "link": link("app.py"),
    "src/util.py": "x = 1\n",
    "src/deep/er.txt": "deeper\n",
}
EDIT: Mapping[str, Content] = {"app.py": "value = 2\n"}


Plan = tuple[str, Sides]
"""A commit that no checked-out branch leads to yet, and both sides of each path it changes."""


def copied(template: GitRepo, path: Path) -> GitRepo:
    """A copy of the template repository, with an index that is fresh for its files."""
    shutil.copytree(template.path, path, symlinks=True)
    repo = GitRepo(path)
    repo.git("update-index", "-q", "--refresh")
    return repo


def planned(repo: GitRepo, changes: Mapping[str, Content]) -> Plan:
    """A commit with these changes, on a branch of its own."""
    repo.git("fast-import", "--quiet", "--force", stdin=stream("refs/heads/next", changes, parent="refs/heads/main^0"))
    commit = repo.head("next")
    with Repository.open(repo.path) as opened:
        return commit, changed_paths(opened.trees.read, opened.tree(repo.head()), opened.tree(commit))


def bring(repo: GitRepo, plan: Plan, *, at: Path | None = None, resumed: bool = False) -> str:
    """Land a plan as a promotion does: lock the checkout, move the branch, bring the checkout forward."""
    commit, sides = plan
    with Repository.open(repo.path) as opened:
        with lock_checkout(
            checkout_at(opened, at or repo.path), opened.format, sides, opened.blob, token=commit, resumed=resumed
        ) as locked:
            repo.git("update-ref", "refs/heads/main", commit)
            locked.update()
    return commit


def checkout_at(opened: Repository, path: Path) -> Checkout:
    """The checkout whose work tree is at a path."""
    (found,) = [checkout for checkout in opened.checkouts() if checkout.path == str(path)]
    return found
