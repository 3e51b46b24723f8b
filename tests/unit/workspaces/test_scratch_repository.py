"""The engine's own repository over others' objects: questions to git, and commits replayed as ``git rebase`` replays them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.git import GitRepo, try_git

from pytest_gittrix.errors import GitFailed
from pytest_gittrix.git.objects import SHA1, object_format
from pytest_gittrix.workspaces.repositories.scratch_repository import ScratchRepository

LINES = "".join(f"line {number}\n" for number in range(12))


def over(repo: GitRepo, root: Path, name: str = "sha1") -> ScratchRepository:
    return ScratchRepository.make(str(root / "scratch.git"), object_format(name), [str(repo.git_dir / "objects")], time_left=lambda: 60.0)


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    return GitRepo.make(tmp_path / "repo", {"a.txt": LINES, "b.txt": "b\n"})


def test_it_answers_from_objects_that_it_borrows(repo: GitRepo, tmp_path: Path) -> None:
    base, tip = repo.head(), repo.commit({"a.txt": "x\n", "new.txt": "n\n", "b.txt": None})
    side = repo.commit({"side.txt": "s\n"}, branch="side")
    scratch = over(repo, tmp_path)
    assert scratch.object_kinds([tip, "1" * 40, repo.text("rev-parse", "main^{tree}")]) == {
        tip: "commit",
        repo.text("rev-parse", "main^{tree}"): "tree",
    }
    assert scratch.new_commits([tip], [base]) == {tip: (base,)}
    assert scratch.new_commits([tip], [tip]) == {}
    assert (scratch.leads_to(tip, base), scratch.leads_to(base, tip), scratch.leads_to(tip, side)) == (True, False, False)
    assert {one.path for one in scratch.touched([tip])} == {"a.txt", "new.txt"}
    scratch.close()


def test_what_is_written_is_its_own_and_the_lender_has_nothing_of_it(repo: GitRepo, tmp_path: Path) -> None:
    scratch = over(repo, tmp_path)
    id_ = SHA1.hash_object("blob", b"mine")
    scratch.write({id_: ("blob", b"mine")})
    assert scratch.objects.read(id_) == ("blob", b"mine")
    assert try_git("cat-file", "-e", id_, cwd=repo.path).returncode == 1


def test_git_never_runs_in_a_repository_that_it_borrows_from(repo: GitRepo, tmp_path: Path) -> None:
    (repo.git_dir / "config").write_text("[broken")
    other = GitRepo.make(tmp_path / "other.git", {"x": "x"}, bare=True)
    scratch = over(repo, tmp_path)
    scratch.declare_complete([])
    # A fetch would list the references of every lender, by a git that runs there.
    scratch.git("fetch", "-q", str(other.path), "refs/heads/main:refs/fetched/main")
    assert scratch.object_kinds([other.head()]) == {other.head(): "commit"}


def test_no_time_left_ends_a_question() -> None:
    def late() -> float:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        ScratchRepository("/nowhere", SHA1, late).object_kinds(["1" * 40])


def test_a_git_that_fails_is_an_error(repo: GitRepo, tmp_path: Path) -> None:
    with pytest.raises(GitFailed):
        over(repo, tmp_path).new_commits(["1" * 40], [])


# Replaying -----------------------------------------------------------------------------------------------------------------------


def edited(chance: random.Random, word: str) -> str:
    lines = LINES.splitlines(keepends=True)
    lines[chance.randrange(12)] = f"{word}\n"
    return "".join(lines)


@pytest.mark.parametrize("seed", range(12))
def test_a_replay_is_what_git_rebase_makes_of_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    name = "sha256" if seed % 4 == 0 else "sha1"
    repo = GitRepo.make(tmp_path / "repo", {"a.txt": LINES, "b.txt": "b\n"}, object_format=name)
    repo.git("branch", "mine")
    for number in range(chance.randint(1, 2)):
        repo.commit({chance.choice(("a.txt", f"theirs-{number}.txt")): edited(chance, f"theirs {number}")}, branch="main")
    for number in range(chance.randint(1, 3)):
        text = edited(chance, f"mine {number}")
        repo.commit({chance.choice(("a.txt", "b.txt", f"mine-{number}.txt")): text}, f"mine {number}", branch="mine")
    tip = repo.head("mine")

    replayed = over(repo, tmp_path, name).replay(tip, repo.head())

    rebased = try_git("rebase", "-q", "main", "mine", cwd=repo.path)
    assert (replayed is not None) == (rebased.returncode == 0)
    if replayed is not None:
        shown = ("--format=%T %an %ae %at %B",)
        env = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(tmp_path / "scratch.git" / "objects")}
        assert repo.git("log", *shown, replayed, "^main", env=env) == repo.git("log", *shown, "mine", "^main")


def test_a_replay_is_the_same_every_time_and_keeps_the_committer(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("branch", "mine")
    repo.commit({"theirs.txt": "t\n"})
    tip = repo.commit({"mine.txt": "m\n"}, branch="mine")
    scratch = over(repo, tmp_path)
    first = scratch.replay(tip, repo.head())
    (tmp_path / "again").mkdir()
    assert over(repo, tmp_path / "again").replay(tip, repo.head()) == first != tip
    assert first is not None
    assert scratch.commit(first).committer == scratch.commit(tip).committer


def test_a_replay_of_what_is_there_already_is_what_is_there(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("branch", "mine")
    repo.commit({"theirs.txt": "t\n"})
    tip = repo.commit({"mine.txt": "m\n"}, branch="mine")
    scratch = over(repo, tmp_path)
    there = scratch.replay(tip, repo.head())
    assert there is not None
    assert scratch.replay(tip, there) == there


@pytest.mark.parametrize("why", ["merge", "conflict", "same change by somebody else", "nothing in common"])
def test_what_would_lose_something_is_not_replayed(repo: GitRepo, tmp_path: Path, why: str) -> None:
    repo.git("branch", "mine")
    repo.git("branch", "side")
    onto = repo.commit({"a.txt": "theirs\n", "same.txt": "same\n"}, "theirs")
    if why == "merge":
        repo.commit({"side.txt": "s\n"}, branch="side")
        repo.git("checkout", "-q", "mine")
        repo.commit({"mine.txt": "m\n"}, branch="mine")
        repo.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    elif why == "conflict":
        repo.commit({"a.txt": "mine\n"}, branch="mine")
    elif why == "same change by somebody else":
        repo.commit({"a.txt": "theirs\n", "same.txt": "same\n"}, "by me, and this message is nowhere else", branch="mine")
    else:
        repo.git("checkout", "-q", "--orphan", "new")
        repo.git("commit", "-q", "-m", "another root")
        repo.git("branch", "-f", "mine", "new")
    assert over(repo, tmp_path).replay(repo.head("mine"), onto) is None


def test_an_empty_commit_stays_one(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("branch", "mine")
    onto = repo.commit({"theirs.txt": "t\n"})
    repo.git("checkout", "-q", "mine")
    repo.git("commit", "-q", "--allow-empty", "-m", "only words")
    scratch = over(repo, tmp_path)
    replayed = scratch.replay(repo.head("mine"), onto)
    assert replayed is not None
    assert (scratch.commit(replayed).message, scratch.commit(replayed).parents) == ("only words\n", (onto,))


def test_a_signature_that_no_longer_fits_is_left_out(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("branch", "mine")
    onto = repo.commit({"theirs.txt": "t\n"})
    tip = repo.commit({"mine.txt": "m\n"}, branch="mine")
    raw = repo.git("cat-file", "commit", tip).replace(b"\n\n", b"\ngpgsig -----BEGIN-----\n line\n -----END-----\nencoding latin-1\n\n", 1)
    signed = repo.text("hash-object", "-t", "commit", "-w", "--stdin", stdin=raw)
    scratch = over(repo, tmp_path)
    replayed = scratch.replay(signed, onto)
    assert replayed is not None
    data = scratch.objects.read(replayed)[1]
    assert b"gpgsig" not in data
    assert b"-----END" not in data
    assert b"\nencoding latin-1\n" in data
