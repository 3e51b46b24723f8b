"""A human's checkout with work in the way, or in the middle of something: refused by name, and not one byte of it moved."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest
from support.checkout import EDIT, bring, planned
from support.git import Content, GitRepo, link, put, try_git

from pytest_gittrix.errors import WorktreeDirty
from pytest_gittrix.testing.repos.member_witness import everything_below


def dirty(repo: GitRepo) -> None:
    put(repo.path, {"app.py": "mine\n"})


def dirty_with_restored_time(repo: GitRepo) -> None:
    before = (repo.path / "app.py").stat()
    put(repo.path, {"app.py": "value = 9\n"})
    os.utime(repo.path / "app.py", ns=(before.st_atime_ns, before.st_mtime_ns))


def mode_changed(repo: GitRepo) -> None:
    (repo.path / "app.py").chmod(0o755)


def deleted(repo: GitRepo) -> None:
    (repo.path / "app.py").unlink()


def replaced_by_a_link(repo: GitRepo) -> None:
    put(repo.path, {"app.py": link("other.py")})


def replaced_by_a_directory(repo: GitRepo) -> None:
    put(repo.path, {"app.py": None, "app.py/mine": "m\n"})


def staged(repo: GitRepo) -> None:
    dirty(repo)
    repo.git("add", "app.py")


def staged_and_changed_back(repo: GitRepo) -> None:
    staged(repo)
    put(repo.path, {"app.py": "value = 1\n"})


def staged_deletion(repo: GitRepo) -> None:
    repo.git("rm", "-q", "--cached", "app.py")


def in_conflict(repo: GitRepo) -> None:
    blob = repo.text("hash-object", "-w", "--stdin", stdin=b"theirs\n")
    repo.git("update-index", "--index-info", stdin=f"0 {'0' * 40}\tapp.py\n100644 {blob} 1\tapp.py\n100644 {blob} 2\tapp.py\n".encode())


def untracked_in_the_way(repo: GitRepo) -> None:
    put(repo.path, {"new.py": "mine\n"})


def link_in_the_way(repo: GitRepo) -> None:
    put(repo.path, {"new.py": link("/nowhere")})


def directory_in_the_way(repo: GitRepo) -> None:
    put(repo.path, {"new.py/mine": "m\n"})


def file_where_a_directory_must_be(repo: GitRepo) -> None:
    put(repo.path, {"pkg": "mine\n"})


def link_where_a_directory_must_be(repo: GitRepo) -> None:
    put(repo.path, {"pkg": link("src")})


NEW: Mapping[str, Content] = {"new.py": "n\n"}
BELOW: Mapping[str, Content] = {"pkg/new.py": "n\n"}


@pytest.mark.parametrize(
    ("state", "changes", "message"),
    [
        (dirty, EDIT, "'app.py' has changes that are not committed"),
        (dirty, {"app.py": None}, "'app.py' has changes that are not committed"),
        (dirty_with_restored_time, EDIT, "'app.py' has changes"),
        (mode_changed, EDIT, "'app.py' has changes"),
        (deleted, EDIT, "'app.py' has changes"),
        (replaced_by_a_link, EDIT, "'app.py' has changes"),
        (replaced_by_a_directory, EDIT, "'app.py' has changes"),
        (staged, EDIT, "'app.py' has staged changes"),
        (staged_and_changed_back, EDIT, "'app.py' has staged changes"),
        (staged_deletion, EDIT, "'app.py' has staged changes"),
        (in_conflict, EDIT, "'app.py' is in an unresolved merge"),
        (untracked_in_the_way, NEW, "'new.py' is there already, untracked"),
        (link_in_the_way, NEW, "'new.py' is there already, untracked"),
        (directory_in_the_way, NEW, "'new.py' is a directory there, with 'new.py/mine' in it"),
        (file_where_a_directory_must_be, BELOW, "'pkg/new.py' would go below a file"),
        (link_where_a_directory_must_be, BELOW, "'pkg/new.py' would go below a file"),
    ],
)
def test_work_in_the_way_refuses_before_anything_moved(
    repo: GitRepo, state: Callable[[GitRepo], None], changes: Mapping[str, Content], message: str
) -> None:
    state(repo)
    plan = planned(repo, changes)
    before = everything_below(repo.path)

    with pytest.raises(WorktreeDirty) as caught:
        bring(repo, plan)

    assert message in caught.value.fact
    assert caught.value.stage == "staging"
    assert everything_below(repo.path) == before


def merging(repo: GitRepo) -> None:
    try_git("merge", "theirs", cwd=repo.path)


def rebasing(repo: GitRepo) -> None:
    try_git("rebase", "theirs", cwd=repo.path)
    repo.git("symbolic-ref", "HEAD", "refs/heads/main")


def rebasing_by_patches(repo: GitRepo) -> None:
    try_git("rebase", "--apply", "theirs", cwd=repo.path)
    repo.git("symbolic-ref", "HEAD", "refs/heads/main")


def picking(repo: GitRepo) -> None:
    try_git("cherry-pick", "theirs", cwd=repo.path)


def reverting(repo: GitRepo) -> None:
    try_git("revert", "--no-edit", "main~1", cwd=repo.path)


def bisecting(repo: GitRepo) -> None:
    repo.git("bisect", "start", "HEAD", "HEAD~1")
    repo.git("symbolic-ref", "HEAD", "refs/heads/main")


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (merging, "a merge"),
        (rebasing, "a rebase"),
        (rebasing_by_patches, "a rebase"),
        (picking, "a cherry-pick"),
        (reverting, "a revert"),
        (bisecting, "a bisect"),
    ],
)
def test_an_operation_under_way_refuses_and_is_named(repo: GitRepo, begin: Callable[[GitRepo], None], message: str) -> None:
    repo.git("branch", "theirs")
    repo.commit({"other.py": "theirs\n"}, branch="theirs")
    repo.commit({"other.py": "ours\n"})
    repo.commit({"other.py": "ours again\n"})
    begin(repo)
    plan = planned(repo, EDIT)
    before = everything_below(repo.path)

    with pytest.raises(WorktreeDirty, match=f"{message} is in progress"):
        bring(repo, plan)

    assert everything_below(repo.path) == before
