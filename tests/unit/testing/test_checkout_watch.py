"""The watch of a checkout sees what a program changes in it, and nothing of what others do around it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.git import FORMATS, GitRepo, git

from pytest_gittrix.testing.repos.checkout_watch import CheckoutWatch


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    return GitRepo.make(tmp_path / "project", {"app.py": "one\n", "doc.md": "doc\n"})


@pytest.fixture
def watch(repo: GitRepo) -> Iterator[CheckoutWatch]:
    (repo.path / "src").mkdir()
    watch = CheckoutWatch.around(repo.path / "src")
    assert watch is not None
    with watch:
        yield watch


def test_where_nothing_happens_nothing_has_changed(watch: CheckoutWatch, repo: GitRepo) -> None:
    assert watch.root == str(repo.path)
    assert watch.changes() == watch.changes() == []


def test_a_commit_is_seen_once_with_what_the_reflog_says(watch: CheckoutWatch, repo: GitRepo) -> None:
    before = repo.text("rev-parse", "HEAD")
    repo.git("commit", "-q", "--allow-empty", "-m", "agent \x1b[2J")
    after = repo.text("rev-parse", "HEAD")

    assert watch.changes() == [f"HEAD: main at {before[:10]} -> main at {after[:10]} (commit: agent \\x1b[2J)"]
    assert watch.changes() == []


def test_a_commit_of_everything_names_the_paths_of_the_index(watch: CheckoutWatch, repo: GitRepo) -> None:
    for number in range(9):
        (repo.path / f"new{number}").write_text("new")
    (repo.path / "app.py").unlink()
    repo.git("add", "-A")
    repo.git("commit", "-q", "-m", "agent")

    moved, staged = watch.changes()
    assert moved.startswith("HEAD: main at ")
    assert staged == "index: app.py, new0, new1, new2, new3 and 5 more"


CHANGES: dict[str, tuple[Callable[[GitRepo], object], str]] = {
    "another branch": (
        lambda repo: repo.git("switch", "-q", "-c", "other"),
        "HEAD: main at {0} -> other at {0} (checkout: moving from main to other)",
    ),
    "a detached HEAD": (
        lambda repo: repo.git("checkout", "-q", "--detach"),
        "HEAD: main at {0} -> a detached HEAD at {0} (checkout: moving from main to ",
    ),
    "a deleted branch": (lambda repo: repo.git("update-ref", "-d", "refs/heads/main"), "HEAD: main at {0} -> main at no commit"),
    "an orphan": (lambda repo: repo.git("symbolic-ref", "HEAD", "refs/heads/new"), "HEAD: main at {0} -> new at no commit"),
    "a staged file": (lambda repo: ((repo.path / "app.py").write_text("two\n"), repo.git("add", "app.py")), "index: app.py"),
    "an emptied index": (lambda repo: repo.git("rm", "-q", "--cached", "-r", "."), "index: app.py, doc.md"),
    "no index": (lambda repo: (repo.git_dir / "index").unlink(), "index: app.py, doc.md"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_the_checkout_is_seen(change: str, watch: CheckoutWatch, repo: GitRepo) -> None:
    make, line = CHANGES[change]
    head = repo.text("rev-parse", "HEAD")

    make(repo)

    (found,) = watch.changes()
    assert found.startswith(line.format(head[:10]))
    assert watch.changes() == []


def fetched(repo: GitRepo) -> None:
    other = GitRepo.make(repo.path.parent / "other", {"x": "x"})
    other.git("tag", "v1")
    repo.git("fetch", "-q", str(other.path), "+refs/*:refs/remotes/o/*", "refs/tags/*:refs/tags/*")


def committed_beside(repo: GitRepo) -> None:
    repo.git("worktree", "add", "-q", "-b", "w", "../wt")
    git("commit", "-q", "--allow-empty", "-m", "beside", cwd=repo.path.parent / "wt")


def refreshed(repo: GitRepo) -> None:
    before = (repo.git_dir / "index").read_bytes()
    os.utime(repo.path / "app.py", ns=(1, 1))
    repo.git("update-index", "--refresh")
    assert (repo.git_dir / "index").read_bytes() != before


OTHERS: dict[str, Callable[[GitRepo], object]] = {
    "a fetch": fetched,
    "a commit in another work tree": committed_beside,
    "a refreshed index": refreshed,
    "packed references": lambda repo: repo.git("pack-refs", "--all"),
    "an index of another version": lambda repo: repo.git("update-index", "--index-version", "4"),
    "a branch": lambda repo: repo.git("branch", "other"),
    "files": lambda repo: (repo.path / "app.py").write_text("two\n"),
    "gc": lambda repo: repo.git("gc", "-q"),
    "the repository is gone, and back": lambda repo: (repo.git_dir.rename(repo.path / "g"), (repo.path / "g").rename(repo.git_dir)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_others_do_around_it_is_no_change(other: str, watch: CheckoutWatch, repo: GitRepo) -> None:
    OTHERS[other](repo)

    assert watch.changes() == []
    repo.git("commit", "-q", "--allow-empty", "-m", "agent")
    assert len(watch.changes()) == 1


def test_a_linked_work_tree_is_watched_by_itself(repo: GitRepo) -> None:
    repo.git("worktree", "add", "-q", "-b", "w", "../wt")
    linked = repo.path.parent / "wt"
    watch = CheckoutWatch.around(linked)
    assert watch is not None
    with watch:
        repo.git("commit", "-q", "--allow-empty", "-m", "in main")
        assert watch.changes() == []
        git("commit", "-q", "--allow-empty", "-m", "agent", cwd=linked)
        (moved,) = watch.changes()
    assert moved.startswith("HEAD: w at ")
    assert moved.endswith("(commit: agent)")


@pytest.mark.parametrize("object_format", FORMATS)
def test_a_bare_one_and_each_object_format_can_be_watched(object_format: str, tmp_path: Path) -> None:
    for bare in (True, False):
        repo = GitRepo.make(tmp_path / f"{bare}", bare=bare, object_format=object_format)
        watch = CheckoutWatch.around(repo.path)
        assert watch is not None
        with watch:
            first = repo.commit({"app.py": "one\n"})
            lines = watch.changes()
            assert lines[0].startswith(f"HEAD: main at no commit -> main at {first[:10]}")
            assert lines[1:] == ([] if bare else ["index: app.py"])


def test_an_index_that_cannot_be_read_is_not_judged(watch: CheckoutWatch, repo: GitRepo) -> None:
    repo.git("update-index", "--split-index")
    repo.git("commit", "-q", "--allow-empty", "-m", "agent")

    assert [line.partition(":")[0] for line in watch.changes()] == ["HEAD"]


def test_a_directory_in_no_repository_is_not_watched(tmp_path: Path) -> None:
    assert CheckoutWatch.around(tmp_path) is None
    assert CheckoutWatch.around(tmp_path / "absent") is None


def test_a_watch_that_was_closed_holds_nothing(repo: GitRepo) -> None:
    open_before = sorted(os.listdir("/dev/fd"))
    watch = CheckoutWatch.around(repo.path)
    assert watch is not None
    repo.commit({"app.py": "two\n"})
    watch.changes()
    watch.close()
    watch.close()

    assert len(os.listdir("/dev/fd")) == len(open_before)
