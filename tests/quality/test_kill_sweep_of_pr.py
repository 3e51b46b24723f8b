"""Killed, or refused by the disk, at any call that changes a file while it promotes with a pull request: one of each, or neither (rule 9).

The forge is another machine and is not struck; a remote behind ``file://`` is. After the recovery the session is promoted, with its
commit on a branch and one pull request of it, or it is active, with no branch and no request of ours. The normal run strikes a sample of
the calls; ``PYTEST_GITTRIX_SOAK=1`` strikes every one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from support.engine import DurableGit
from support.remote import AUTHOR
from support.scene import SOAK

from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.backends.remote import RemoteDurable
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.errors import DurableLocked, GittrixError
from pytest_gittrix.testing.faults.fault_sweep import sweep
from pytest_gittrix.testing.faults.supervisor import Fault, SupervisedRun, supervise_function, supported
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.workspaces.seeds.seed import _recent as remembered_seeds

Where = Literal["local", "remote"]

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))


@dataclass
class Scene:
    """A repository that a forge serves, and a session with something to promote; put back before each strike."""

    root: Path
    saved: Path
    where: Where
    clock: FrozenClock = field(default_factory=FrozenClock)
    session: str = ""
    forge: GitHubForge | None = None
    server: ForgeServer | None = None
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def git(self) -> DurableGit:
        """The repository, as git has it."""
        return DurableGit(self.root / "app.git", bare=True)

    @contextmanager
    def engine(self) -> Iterator[GitTrix]:
        """An engine as a process would have it that has just begun."""
        place = self.git.path
        remote = self.where == "remote"
        with GitTrix(
            RemoteDurable(place, mirror=self.root / "mirror", author=AUTHOR, timeout=30.0, grace=0.0, sync=False)
            if remote
            else LocalDurable(place, author=AUTHOR, sync=False),
            store=self.root / "sessions",
            clock=self.clock,
            durability="fast",
            sweep_interval=None,
            ids=seeded_ids(0),
            forge=self.forge,
        ) as engine:
            yield engine

    def make(self) -> None:
        """The first state of all."""
        self.root.mkdir()
        DurableGit.make(self.git.path, bare=True)
        with self.engine() as engine:
            session = engine.start_session("fix the bug")
            session.write("app.py", "print('v2')\n")
            session.delete("README.md")
            self.session = session.id
        shutil.copytree(self.root, self.saved, symlinks=True)

    def put_back(self) -> None:
        """Make everything as it was, with a forge that knows of nothing."""
        self.held.close()
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.saved, self.root, symlinks=True)
        remembered_seeds.clear()
        self.server = self.held.enter_context(ForgeServer(self.held.enter_context(BareRemote(self.git.path))))
        self.forge = self.held.enter_context(GitHubForge("acme/app", base_url=self.server.url))

    def promote(self) -> None:
        """Promote the session, and print what came of it."""
        with self.engine() as engine:
            try:
                result = engine.get_session(self.session).promote(strategy="pr", title="Fix the bug", draft=True)
                print(f"promoted {result.sha} {result.pr_url}")
            except GittrixError as refusal:
                print(f"refused {refusal.code}")

    def promote_at_last(self, engine: GitTrix) -> None:
        """Promote it after all. A lock that a remote's git left when it was struck is for the remote's people to remove."""
        session = engine.get_session(self.session)
        try:
            session.promote(strategy="pr", title="Fix the bug", draft=True)
        except DurableLocked:
            for lock in self.git.path.rglob("*.lock"):
                lock.unlink()
            session.promote(strategy="pr", title="Fix the bug", draft=True)


@pytest.fixture(params=["local", "remote"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "scene", tmp_path / "saved", request.param)
    made.make()
    with made.held:
        yield made


def judge_promoted(scene: Scene, engine: GitTrix) -> None:
    """One commit, on one branch, with one pull request, and the record tells of all three."""
    assert scene.server is not None
    (branch,) = set(scene.git.branches()) - {"main"}
    (pull,) = scene.server.state.pulls.values()
    result = engine.store.load(scene.session).result
    assert result is not None
    assert (result.sha, result.branch) == (scene.git.head(branch), branch)
    assert result.pr_url == f"{scene.server.web}/acme/app/pull/1"
    assert (pull.head, pull.base, pull.head_sha, pull.title, pull.draft) == (branch, "main", result.sha, "Fix the bug", True)
    assert scene.git.parents(result.sha) == [scene.git.head()]
    assert set(scene.git.changed(result.sha)) == {"app.py", "README.md"}


def judge(scene: Scene, run: SupervisedRun) -> str:
    """What must hold after a strike; gives a word for what was found."""
    assert scene.server is not None
    printed = run.stdout.decode().split()
    assert run.killed or printed, run.stderr.decode()[-2000:]
    with scene.engine() as engine:  # which recovers
        state = engine.info(scene.session).state
        assert engine.recover().problems == []
        assert not printed or (printed[0] == "promoted") <= (state == "promoted"), f"told {printed}, and it is {state}"
        if state == "active":
            assert scene.git.branches() == ["main"]
            assert scene.server.state.pulls == {}
            scene.promote_at_last(engine)
        judge_promoted(scene, engine)
    assert engine.store.load(scene.session).state == "promoted"
    assert scene.git.git("fsck", "--strict", "--no-dangling", "--no-progress") == ""
    return state


@pytest.mark.parametrize("kind", ["kill", "ENOSPC", "EIO"])
def test_a_promotion_with_a_pull_request_that_is_struck_ends_once_or_can_be_made_again(scene: Scene, kind: str) -> None:
    def run(fault: Fault | None) -> SupervisedRun:
        scene.put_back()
        return supervise_function(scene.promote, fault=fault, within=scene.root)

    found = [judge(scene, struck) for _, struck in sweep(run, kinds=[kind], points=None if SOAK else slice(2, None, 7))]

    assert {"promoted", "active"} <= set(found)
    print(f"{scene.where}, {kind}: {len(found)} calls struck, {found.count('promoted')} were promoted")
