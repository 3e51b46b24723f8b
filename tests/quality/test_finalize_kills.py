"""Killed anywhere while it makes a workspace, or saves what is in one, and run again: it ends as if nothing had happened.

A normal run plays faults at a sample of the calls; ``PYTEST_GITTRIX_SOAK=1`` at every one. Figures are printed (``pytest -rP``).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.scene import SOAK, scratch

from pytest_gittrix.members.finalize import finalize
from pytest_gittrix.members.finalize_record import Finalized
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.faults import SupervisedRun
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.testing.repos.member_witness import FinalizationWitness, everything_below
from pytest_gittrix.testing.repos.member_workspaces import Member, RepositoryPlan, git
from pytest_gittrix.workspaces.multi_repo import MultiRepoWorkspace, RepositorySpec, checkout_all

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

RICH: Final = (
    RepositoryPlan("org/app", deeds=("branch", "diverged", "dangling", "stash"), end="dirty", extras=("credentials", "packed", "hostile")),
    RepositoryPlan("team", deeds=("reflog",), extras=("knowledge",), team=True),
    RepositoryPlan("web", remote="protected", deeds=("default",), end="dirty-detached"),
)
KINDS: Final = ("kill", "torn") if SOAK else ("kill",)


class Scene:
    """A rich workspace whose remotes can be put back to how they were."""

    def __init__(self, place: Path) -> None:
        self.member = Member(place / "member", RICH)
        self.witness = FinalizationWitness.of(self.member)
        self._remotes, self._kept = self.member.root / "remotes", place / "remotes"
        shutil.copytree(self._remotes, self._kept)
        self.home = Path(f"{self.member.workspace.path}.finalize")
        self.reset()
        self.clean = self.run()
        self.refs = self.member.refs()
        assert self.witness.losses(collected=not self.clean.unsaved) == []
        assert (self.clean.status, self.clean.unsaved) == ("CompletedDegraded", False)

    def reset(self) -> None:
        """Put everything back. An issue is what a directory beside the remotes holds."""
        for gone in (self._remotes, self.home, self.issues):
            shutil.rmtree(gone, ignore_errors=True)
        shutil.copytree(self._kept, self._remotes)
        self.issues.mkdir()

    @property
    def issues(self) -> Path:
        return self.member.root / "issues"

    def run(self) -> Finalized:
        return finalize(self.member.workspace, "s1", forge=self.forge)

    def forge(self, title: str, body: str) -> str:
        number = len(list(self.issues.iterdir()))
        whole = self.member.root / "issue"  # a forge has an issue, or it has not
        whole.write_text(f"{title}\n{body}")
        whole.rename(self.issues / str(number))
        return f"https://forge/issues/{title}"

    def judge(self, _struck: SupervisedRun) -> None:
        """Run it again, and see that it ends as if it had never been killed."""
        for left in self._remotes.rglob("*.lock"):  # a remote that crashed has an owner who tidies up
            left.unlink()
        assert everything_below(self.member.workspace.path) == self.witness.workspace
        assert self.run() == self.clean
        assert self.member.refs() == self.refs
        titles = [path.read_text().split("\n")[0] for path in self.issues.iterdir()]
        # Opening an issue and noting it are two steps: killed between them, it is opened a second time rather than never.
        assert len(set(titles)) == len(RICH)
        assert len(titles) <= len(RICH) + 1
        assert sorted(path.name for path in self.home.iterdir()) == ["notes.json"]


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


@pytest.mark.parametrize("where", ["engine", "remotes"])
def test_killed_while_it_saves_and_run_again_it_ends_as_if_nothing_had_happened(place: Path, where: str) -> None:
    scene = Scene(place)
    within = [scene.home, scene.issues] if where == "engine" else [scene.member.root / "remotes"]
    kinds = KINDS if where == "engine" else ("kill",)  # what a remote's own git writes is its to keep whole
    report = Crash().sweep(scene.run, scene.reset, scene.judge, kinds=kinds, limit=None if SOAK else 8, within=within)
    print(f"saving, struck at calls of the {where}: {report.verify()}")


def test_killed_while_it_makes_a_workspace_and_run_again_it_is_whole(place: Path) -> None:
    remotes = {}
    for name in ("app", "org/lib"):
        bare = place / "remotes" / f"{name.replace('/', '-')}.git"
        bare.mkdir(parents=True)
        git(bare, "init", "-q", "--bare", "--initial-branch=main", ".")
        text = b"commit refs/heads/main\ncommitter A <a@b> 1 +0000\ndata 1\nx\nM 100644 inline a.txt\ndata 2\n1\n\n"
        git(bare, "fast-import", "--quiet", "--date-format=raw", stdin=text)
        remotes[name] = bare
    root = place / "site"

    def run() -> MultiRepoWorkspace:
        return checkout_all(
            [RepositorySpec(name, str(bare)) for name, bare in remotes.items()], root / "w", root / "clones", now=lambda: 1000.0
        )

    def reset() -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()

    def judge(struck: SupervisedRun) -> None:
        if not (root / "w").exists():
            run()
        assert sorted(path.name for path in root.iterdir()) == ["clones", "w"]
        assert not list((root / "clones").glob("*.tmp-*"))
        for name, bare in remotes.items():
            repo = root / "w" / "projects" / name
            assert git(repo, "status", "--porcelain") == ""
            assert git(repo, "rev-parse", "HEAD") == git(bare, "rev-parse", "main")
            git(repo, "fsck", "--strict")

    report = Crash().sweep(run, reset, judge, kinds=KINDS, limit=None if SOAK else 14, within=root)
    print(f"making a workspace: {report.verify()}")
