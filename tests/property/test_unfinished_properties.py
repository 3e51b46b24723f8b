"""``gittrix unfinished`` on random repositories, judged by what is really gone once the worktree, its branch and all reflogs are.

Every piece of work has bytes of its own. A look that says that nothing would be lost is right if each of them is still in a file, or in an
object that a reference of the repository or of its remote leads to. What git itself shows of unsaved work is compared as well.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from support.git import WHEN, git, try_git

from pytest_gittrix import unfinished_work
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.workspaces.finder.worktree import UnfinishedWork

DEEDS: Mapping[str, str] = {
    "edit": "echo WORK > tracked.txt",
    "stage": "echo WORK > tracked.txt; git add tracked.txt",
    "stage and go back": "echo WORK > tracked.txt; git add tracked.txt; git restore -q --worktree --source=HEAD tracked.txt",
    "add": "echo WORK > new-N.txt",
    "add below": "mkdir -p deep/N; echo WORK > deep/N/x",
    "ignored": "mkdir -p build; echo WORK > build/N",
    "cache": "mkdir -p node_modules/N; echo WORK > node_modules/N/x.js",
    "commit": "echo WORK > c-N.txt; git add c-N.txt; git commit -qm N",
    "commit and push": "echo WORK > p-N.txt; git add p-N.txt; git commit -qm N; git push -q origin HEAD:refs/heads/pushed-N",
    "push": "git push -q origin HEAD:refs/heads/pushed",
    "tag": "git tag t-N",
    "branch": "git branch b-N",
    "private reference": "git update-ref refs/checkpoints/N HEAD",
    "worktree reference": "echo WORK > w-N.txt; git add .; git commit -qm N; git update-ref refs/worktree/N @; git reset -q --hard @~1",
    "stash": "echo WORK > tracked.txt; git stash -q",
    "stash new": "echo WORK > s-N.txt; git stash -qu",
    "detach": "git checkout -q --detach",
    "other branch": "git checkout -q -b other-N",
    "hide": "git update-index --assume-unchanged tracked.txt; echo WORK > tracked.txt",
    "skip": "git update-index --skip-worktree tracked.txt; echo WORK > tracked.txt",
    "sparse": "git sparse-checkout set --no-cone --no-sparse-index '/*' '!/dir'",
    "nested": "mkdir -p in-N; git init -q in-N; cd in-N; echo WORK > x; git add x; git commit -qm x; git rm -q x; git commit -qm y",
    "squash": "cd ../repo; git merge -q --squash work; git commit -qm squash",
    "merge": "cd ../repo; git merge -q work",
    "merge at the remote": "git push -q origin HEAD:main; git fetch -q",
    "link": "ln -s /etc/hosts l-N",
}
AGAIN = ("cache",)
SETUP = """
git init -q --bare origin.git; git init -q -b main repo; cd repo; git remote add origin ../origin.git
printf 'build/\\nnode_modules/\\n' > .gitignore; echo one > tracked.txt; mkdir dir; echo two > dir/two.txt
git add .; git commit -qm first; git push -q origin main; git fetch -q; git worktree add -q ../wt -b work
"""
IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


@dataclass
class Place:
    """A repository with a linked worktree and a remote; the work that was made in it, by its bytes."""

    root: Path
    made: dict[bytes, str] = field(default_factory=dict)

    def sh(self, script: str, cwd: Path) -> None:
        """Run a script; what git refuses is no deed."""
        environment = hermetic_env(when=WHEN) | IDENTITY
        subprocess.run(["sh", "-ec", script], cwd=cwd, env=environment, capture_output=True, timeout=60, check=False)

    def do(self, name: str, number: int, *, inside: Path) -> None:
        """Do one deed, with bytes of its own."""
        work = f"work-{number:04}-{name.replace(' ', '-')}"
        script = DEEDS[name].replace("WORK", work).replace("-N", f"-{number}").replace("/N", f"/{number}").replace(" N", f" n{number}")
        self.sh(script, inside)
        if "WORK" in DEEDS[name] and name not in AGAIN:
            self.made[work.encode()] = name


def in_files(directory: Path, work: bytes) -> bool:
    """Whether a file has some bytes, one of a git directory left aside."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink() and ".git" not in path.parts)
    return any(work in path.read_bytes() for path in files if "origin.git" not in path.parts)


def in_objects(directory: Path, work: bytes, *revisions: str) -> bool:
    """Whether an object that some revisions lead to has the bytes."""
    listed = try_git("rev-list", "--objects", *revisions, cwd=directory).stdout.split(b"\n")
    ids = b"".join(line.split()[0] + b"\n" for line in listed if line)
    return work in git("cat-file", "--batch", cwd=directory, stdin=ids)


def stays(place: Place, work: bytes) -> bool:
    """Whether bytes are in a file, or in an object that a reference of the repository or of its remote leads to."""
    repositories = (place.root / "repo", place.root / "origin.git")
    return in_files(place.root, work) or any(in_objects(one, work, "--all") for one in repositories)


def is_there(place: Place, work: bytes) -> bool:
    """Whether bytes can be found before the removal without a look into a reflog: in a commit that was reset they cannot."""
    worktree = place.root / "wt"
    inner = (path.parent for path in worktree.rglob(".git") if path.is_dir())
    return (
        stays(place, work)
        or in_objects(worktree, work, "HEAD", "--all", "--indexed-objects")
        or any(in_objects(one, work, "--all", "HEAD") for one in inner)
    )


def stashes(place: Place) -> list[str]:
    """Every stash: the older ones are named by a reflog alone."""
    log = place.root / "repo" / ".git" / "logs" / "refs" / "stash"
    return [line.split()[1] for line in log.read_text().splitlines()] if log.exists() else []


def remove(place: Place) -> None:
    """Remove the worktree and its branch, as tools do; a stash stays."""
    repo = place.root / "repo"
    for number, id_ in enumerate(stashes(place)):
        git("update-ref", f"refs/judge/{number}", id_, cwd=repo)
    branch = try_git("symbolic-ref", "-q", "--short", "HEAD", cwd=place.root / "wt").stdout.decode().strip()
    shutil.rmtree(place.root / "wt")
    git("worktree", "prune", cwd=repo)
    if branch:
        git("branch", "-q", "-D", branch, cwd=repo)


deeds = st.lists(st.sampled_from(sorted(DEEDS)), min_size=1, max_size=6)


@dataclass(frozen=True)
class Outcome:
    """What a look said, and what was gone then.

    Attributes:
        work: what the look found.
        gone: the deeds whose bytes are nowhere any more.
        git_is_clean: whether git shows no changed or untracked file, no stash, and no commit that no remote has.
    """

    work: UnfinishedWork
    gone: tuple[str, ...]
    git_is_clean: bool


def outcome(names: Sequence[str]) -> Outcome:
    """Do some deeds in a fresh worktree, look, remove it, and see what is gone."""
    with TemporaryDirectory() as directory:
        place = Place(Path(directory))
        place.sh(SETUP, place.root)
        worktree = place.root / "wt"
        for number, name in enumerate(names):
            place.do(name, number, inside=worktree)
        there = {made: name for made, name in place.made.items() if is_there(place, made)}
        work = unfinished_work(worktree)
        shown = (("status", "--porcelain"), ("stash", "list"), ("log", "--oneline", "HEAD", "--not", "--remotes"))
        is_clean = not any(git(*command, cwd=worktree) for command in shown)

        remove(place)

        return Outcome(work, tuple(name for made, name in there.items() if not stays(place, made)), is_clean)


@given(deeds)
def test_nothing_is_lost_where_the_look_says_that_nothing_would_be(names: list[str]) -> None:
    found = outcome(names)

    event(f"work: {bool(found.work)}, lost: {bool(found.gone)}, git is clean: {found.git_is_clean}")
    if found.work and not found.gone:
        event(f"a false alarm: {', '.join(form for form, _ in found.work.forms())}, git is clean: {found.git_is_clean}")
    assert found.work or not found.gone, found.gone


@pytest.mark.parametrize(
    ("form", "deed"),
    [
        ("modified", "edit"),
        ("staged", "stage and go back"),
        ("untracked", "add"),
        ("ignored", "ignored"),
        ("hidden", "hide"),
        ("unmerged", "commit"),
        ("detached", "worktree reference"),
        ("nested", "nested"),
    ],
)
def test_a_look_that_forgets_a_form_of_work_would_be_found(form: str, deed: str) -> None:
    found = outcome([deed])

    assert form in dict(found.work.forms())
    assert found.gone == (deed,)
