"""An agent's repository is read as plain files: its branches, stashes and objects, and the files that differ; and odd ones are told."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.git import GitRepo

from pytest_gittrix.errors import UnsupportedRepository
from pytest_gittrix.git.objects import SHA1, SHA256, object_format
from pytest_gittrix.git.tree import FILE, Entry
from pytest_gittrix.workspaces.repositories.agent_repository import AgentRepository, read_repository
from pytest_gittrix.workspaces.repositories.uncommitted import Uncommitted, find_uncommitted
from pytest_gittrix.workspaces.repositories.walk import find_repositories

FILES = {"a.txt": "one\n", "src/b.txt": "two\n", ".gitignore": "*.o\nbuild/\n!keep.o\n"}


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    return GitRepo.make(tmp_path / "repo", FILES)


def found_in(repo: GitRepo) -> AgentRepository:
    return read_repository(str(repo.path), SHA1)


def differing(repo: GitRepo, *, max_file: int = 1 << 20, max_total: int = 1 << 20) -> Uncommitted:
    there, entries = found_in(repo), repo.tree("HEAD")
    deleted, exclude = there.may_be_deleted, there.exclude
    return find_uncommitted(str(repo.path), entries, SHA1, may_be_deleted=deleted, exclude=exclude, max_file=max_file, max_total=max_total)


# What the git directory says -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sha1", "sha256"])
@pytest.mark.parametrize("packed", [False, True])
def test_it_is_read_as_git_reads_it(tmp_path: Path, name: str, packed: bool) -> None:
    repo = GitRepo.make(tmp_path / "repo", FILES, object_format=name)
    repo.git("branch", "deep/er/x")
    repo.commit({"a.txt": "two\n"}, branch="other")
    for word in ("older", "newer"):
        (repo.path / "a.txt").write_text(word)
        repo.git("stash", "-q")
    if packed:
        repo.git("pack-refs", "--all")
        repo.git("repack", "-q", "-a", "-d", "-k")
        repo.commit({"a.txt": "three\n"}, branch="other")  # loose, over the packed one

    found = read_repository(str(repo.path), object_format(name))

    assert (found.branch, found.commit) == ("main", repo.head())
    assert found.branches == {branch: repo.head(branch) for branch in ("main", "deep/er/x", "other")}
    assert found.stashes == tuple(repo.text("log", "-g", "--format=%H", "stash").split())
    assert found.objects == set(repo.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())
    assert found.problems == ()


def test_what_is_borrowed_is_not_its_own(tmp_path: Path, repo: GitRepo) -> None:
    repo.git("clone", "-q", "--shared", str(repo.path), str(tmp_path / "borrower"))
    assert found_in(GitRepo(tmp_path / "borrower")).objects == frozenset()


@pytest.mark.parametrize("packed", [False, True])
def test_what_git_saw_at_the_origin_is_read_too(tmp_path: Path, repo: GitRepo, packed: bool) -> None:
    repo.git("branch", "deep/er/x")
    repo.git("clone", "-q", str(repo.path), str(tmp_path / "clone"))
    clone = GitRepo(tmp_path / "clone")
    if packed:
        clone.git("pack-refs", "--all")
    later = repo.commit({"a.txt": "later\n"})
    clone.git("fetch", "-q")
    found = found_in(clone)
    assert found.remotes == {"HEAD": later, "deep/er/x": repo.head("deep/er/x"), "main": later}
    assert found.references["refs/remotes/origin/main"] == later
    assert later in found.logged


def test_a_detached_head_is_on_no_branch(repo: GitRepo) -> None:
    repo.git("checkout", "-q", "--detach")
    assert (found_in(repo).branch, found_in(repo).commit) == (None, repo.head())


def test_a_branch_without_a_commit_has_none(tmp_path: Path) -> None:
    found = found_in(GitRepo.make(tmp_path / "empty"))
    assert (found.branch, found.commit, found.branches) == ("main", None, {})


@pytest.mark.parametrize("head", ["", "garbage", "ref: refs/remotes/origin/main", "ref: ../../etc/passwd"])
def test_a_head_that_is_neither_a_commit_nor_a_branch_is_told(repo: GitRepo, head: str) -> None:
    (repo.git_dir / "HEAD").write_text(f"{head}\n")
    found = found_in(repo)
    assert (found.branch, found.commit) == (None, None)
    assert len(found.problems) == 1


def test_a_damaged_reference_is_told_and_the_others_are_read(repo: GitRepo) -> None:
    (repo.git_dir / "refs" / "heads" / "broken").write_text("not an id\n")
    found = found_in(repo)
    assert found.branches == {"main": repo.head()}
    assert [problem for problem in found.problems if "refs/heads/broken" in problem]


def test_a_branch_that_is_another_name_of_a_branch_is_where_that_one_is(repo: GitRepo) -> None:
    repo.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    repo.git("symbolic-ref", "refs/heads/dangling", "refs/heads/nowhere")
    found = found_in(repo)
    assert found.branches == {"main": repo.head(), "alias": repo.head()}
    assert found.problems == ()


def test_neither_a_pipe_nor_a_link_in_a_references_place_is_opened(repo: GitRepo) -> None:
    os.mkfifo(repo.git_dir / "refs" / "heads" / "pipe")
    (repo.git_dir / "refs" / "heads" / "link").symlink_to("/etc/passwd")
    found = found_in(repo)
    assert found.branches == {"main": repo.head()}
    assert len(found.problems) == 4  # each cannot be read, and so holds no commit


def test_a_pack_whose_index_is_damaged_is_told(repo: GitRepo) -> None:
    repo.git("repack", "-q", "-a", "-d")
    index = next((repo.git_dir / "objects" / "pack").glob("*.idx"))
    index.chmod(0o644)
    index.write_bytes(b"damaged")
    assert [problem for problem in found_in(repo).problems if index.name in problem]


@pytest.mark.parametrize("kind", ["file", "link", "reftable"])
def test_a_repository_of_another_kind_is_refused(tmp_path: Path, repo: GitRepo, kind: str) -> None:
    if kind == "reftable":
        (repo.git_dir / "reftable").mkdir()
    else:
        repo.git_dir.rename(tmp_path / "moved")
    if kind == "file":
        repo.git_dir.write_text(f"gitdir: {tmp_path / 'moved'}\n")
    if kind == "link":
        repo.git_dir.symlink_to(tmp_path / "moved")
    with pytest.raises(UnsupportedRepository, match="cannot be read"):
        found_in(repo)


def test_every_repository_below_a_directory_is_found_however_it_is_hidden(tmp_path: Path, repo: GitRepo) -> None:
    GitRepo.make(repo.path / "build" / "hidden", {"x": "x"})
    GitRepo.make(repo.path / "bare.git", {"x": "x"}, bare=True)
    repo.git("worktree", "add", "-q", "--detach", str(repo.path / "linked"))
    (repo.path / "elsewhere").symlink_to(tmp_path)
    assert find_repositories(str(tmp_path)) == ["repo", "repo/bare.git", "repo/build/hidden", "repo/linked"]


# Files that differ ---------------------------------------------------------------------------------------------------------------


def test_a_clean_checkout_differs_in_nothing(repo: GitRepo) -> None:
    assert differing(repo) == Uncommitted()


def test_what_differs_is_what_git_status_lists(repo: GitRepo) -> None:
    for path, text in {
        "a.txt": "changed",
        "new/x": "x",
        "y.o": "y",
        "build/z": "z",
        "keep.o": "k",
        "sub/.gitignore": "*.tmp\n",
        "sub/t.tmp": "t",
    }.items():
        (repo.path / path).parent.mkdir(exist_ok=True)
        (repo.path / path).write_text(text)
    (repo.path / "src" / "b.txt").unlink()
    (repo.path / "link").symlink_to("nowhere")
    (repo.path / "private").write_text("x")
    (repo.git_dir / "info").mkdir(exist_ok=True)
    (repo.git_dir / "info" / "exclude").write_text("private\n")
    os.mkfifo(repo.path / "pipe")

    found = differing(repo)

    listed = repo.git("status", "--porcelain", "-z", "-uall").decode().split("\0")
    assert sorted(found.changes) == sorted(line[3:] for line in listed if line)
    assert [path for path, entry in found.changes.items() if entry is None] == ["src/b.txt"]
    assert found.blobs[SHA1.hash_object("blob", b"nowhere")] == b"nowhere"
    assert set(found.times) == set(found.changes) - {"src/b.txt"}


def test_a_file_with_old_times_is_compared_all_the_same(repo: GitRepo) -> None:
    status = (repo.path / "a.txt").stat()
    (repo.path / "a.txt").write_text("two\n")
    os.utime(repo.path / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(differing(repo).changes) == ["a.txt"]


def test_a_tracked_file_counts_even_where_it_is_ignored(repo: GitRepo) -> None:
    repo.commit({"build/kept.txt": "kept\n"})
    (repo.path / "build" / "kept.txt").write_text("changed\n")
    (repo.path / "build" / "other.txt").write_text("ignored\n")
    assert list(differing(repo).changes) == ["build/kept.txt"]


@pytest.mark.parametrize("how", ["skip-worktree", "split"])
def test_a_missing_file_is_no_deletion_if_nobody_can_tell(repo: GitRepo, how: str) -> None:
    if how == "split":
        repo.git("update-index", "--split-index")
    else:
        repo.git("update-index", "--skip-worktree", "a.txt")
    (repo.path / "a.txt").unlink()
    assert differing(repo).changes == {}


def test_what_is_too_large_is_refused_and_the_rest_is_taken(repo: GitRepo) -> None:
    (repo.path / "a-large").write_bytes(b"x" * 11)
    (repo.path / "b-fits").write_bytes(b"x" * 10)
    (repo.path / "c-over").write_bytes(b"y" * 10)
    (repo.path / "d-fits").write_bytes(b"z" * 5)
    (repo.path / "src" / "b.txt").write_bytes(b"w" * 11)
    found = differing(repo, max_file=10, max_total=15)
    assert list(found.changes) == ["b-fits", "d-fits"]
    assert sorted(found.refused) == ["a-large", "c-over", "src/b.txt"]


def test_a_large_file_that_is_as_the_commit_has_it_is_nothing_new(repo: GitRepo) -> None:
    assert differing(repo, max_file=1) == Uncommitted()


def test_a_name_that_could_be_a_git_directory_somewhere_is_refused(repo: GitRepo) -> None:
    (repo.path / "x" / ".GIT").mkdir(parents=True)
    (repo.path / "x" / ".GIT" / "config").write_text("x")
    found = differing(repo)
    assert (found.changes, list(found.refused)) == ({}, ["x/.GIT/config"])


def test_nothing_inside_a_submodule_or_another_repository_is_committed(repo: GitRepo) -> None:
    (repo.path / "inner").mkdir()
    (repo.path / "inner" / "x").write_text("x")
    (repo.path / "sub").mkdir()
    (repo.path / "sub" / "y").write_text("y")
    entries = {**repo.tree(), "sub": Entry(0o160000, "1" * 40)}
    found = find_uncommitted(str(repo.path), entries, SHA1, may_be_deleted=lambda path: True, nested=("inner",))
    assert (found.changes, list(found.refused)) == ({}, ["sub/y"])


def test_with_no_commit_every_file_is_new(repo: GitRepo) -> None:
    found = find_uncommitted(str(repo.path), {}, SHA256, may_be_deleted=lambda path: True)
    assert list(found.changes) == [".gitignore", "a.txt", "src/b.txt"]
    assert found.changes["a.txt"] == Entry(FILE, SHA256.hash_object("blob", b"one\n"))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_ignored_and_changed_it_is_what_git_status_lists(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = ["a", "b.o", "keep.o", "build", "src"]
    directories = ["/".join(chance.choice(names) for _ in range(chance.randint(1, 3))) for _ in range(12)]
    paths = [f"{directory}/{chance.choice('xyz')}.{chance.choice('oct')}" for directory in directories]
    rules = ["*.o", "!keep.o", "build/", "/src/a", "b.o/*", "!x.o", "src/**/y.c", "z.*", "# nothing", "a/"]
    for directory in ("", *{path.rpartition("/")[0] for path in paths}):
        if chance.random() < 0.3 or not directory:
            paths.append(f"{directory}/.gitignore".lstrip("/"))
    repo = GitRepo.make(tmp_path / "repo", {})
    for path in paths:
        text = "".join(f"{rule}\n" for rule in chance.sample(rules, 3)) if path.endswith(".gitignore") else f"{path}\n"
        (repo.path / path).parent.mkdir(parents=True, exist_ok=True)
        (repo.path / path).write_text(text)
    tracked = [path for path in paths if chance.random() < 0.4]
    if tracked:
        repo.git("add", "-f", "--", *tracked)
    repo.git("commit", "-q", "--allow-empty", "-m", "some of them")
    for path in paths:
        if chance.random() < 0.3:
            (repo.path / path).write_text("changed\n")
        elif chance.random() < 0.1:
            (repo.path / path).unlink(missing_ok=True)

    listed = repo.git("status", "--porcelain", "-z", "-uall", "--no-renames").decode().split("\0")
    assert sorted(differing(repo).changes) == sorted(line[3:] for line in listed if line)
