"""Killed, or refused by the disk, at any call that changes a file while it promotes to a remote: promoted once, or active (rule 9).

The tree that is struck holds the engine, its git, and the git of the remote with it, as when a machine goes down. A sample of the calls
is struck; ``PYTEST_GITTRIX_SOAK=1`` strikes every one.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.engine import DurableGit
from support.remote import AUTHOR

from pytest_gittrix.backends.remote import RemoteDurable
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import DurableLocked, GittrixError
from pytest_gittrix.testing.faults.fault_sweep import sweep
from pytest_gittrix.testing.faults.supervisor import Fault, SupervisedRun, supervise_function, supported
from pytest_gittrix.workspaces.seeds.seed import _recent as remembered_seeds

SOAK = bool(os.environ.get("PYTEST_GITTRIX_SOAK"))
SESSION = "session-0"

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))


@dataclass
class Scene:
    """A remote, its mirror and a session with something to promote, put back before each strike."""

    root: Path
    saved: Path
    clock: FrozenClock

    @property
    def remote(self) -> DurableGit:
        """The remote."""
        return DurableGit(self.root / "remote.git", bare=True)

    def engine(self) -> GitTrix:
        """An engine as a process would have it that has just begun."""
        durable = RemoteDurable(self.remote.path, mirror=self.root / "mirror", author=AUTHOR, timeout=30.0, grace=0.0, sync=False)
        store = self.root / "sessions"
        ids = seeded_ids(0)
        return GitTrix(durable, store=store, clock=self.clock, durability="fast", strategy="commit", sweep_interval=None, ids=ids)

    def put_back(self) -> None:
        """Make everything as it was."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.saved, self.root, symlinks=True)
        remembered_seeds.clear()

    def promote(self) -> None:
        """Promote the session, and print what came of it."""
        (session,) = self.sessions()
        with self.engine() as engine:
            try:
                print(f"promoted {engine.get_session(session).promote().sha}")
            except GittrixError as refusal:
                print(f"refused {refusal.code}")

    def promote_at_last(self, session: UserSession) -> None:
        """Promote a session. A lock that the remote's own git left when it was struck is for the remote's people to remove."""
        try:
            session.promote()
        except DurableLocked:
            for lock in self.remote.path.rglob("*.lock"):
                lock.unlink()
            session.promote()

    def sessions(self) -> list[str]:
        """The ids of the sessions."""
        return sorted(path.name for path in (self.root / "sessions").iterdir() if path.is_dir() and not path.name.startswith("."))

    def landed(self) -> int:
        """How many promotions are on the branch."""
        return int(self.remote.git("rev-list", "--count", "main")) - 1


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path / "scene", tmp_path / "saved", FrozenClock())
    made.root.mkdir()
    DurableGit.make(made.root / "remote.git", bare=True)
    with made.engine() as engine:
        session = engine.start_session("fix the bug")
        session.write("app.py", "print('v2')\n")
        session.delete("README.md")
    shutil.copytree(made.root, made.saved, symlinks=True)
    return made


def judge(scene: Scene, run: SupervisedRun) -> str:
    """What must hold after a strike; gives a word for what was found."""
    printed = run.stdout.decode().split()
    landed = scene.landed()
    assert landed <= 1
    if not run.killed:
        assert printed, run.stderr.decode()[-2000:]
        assert printed[0] != "promoted" or landed == 1
        assert printed[0] != "refused" or landed == 0 or _open(scene), f"printed {printed}, but it is in"
    with scene.engine() as engine:
        assert engine.recover().problems == []
        if not scene.landed():
            scene.promote_at_last(engine.get_session(scene.sessions()[0]))
        assert [one.state for one in engine.list_sessions()] == ["promoted"]
        assert scene.landed() == 1
        assert scene.remote.read("app.py") == b"print('v2')\n"
        another = engine.start_session("go on")
        another.write("app.py", "print('v3')\n")
        scene.promote_at_last(another)
    assert scene.landed() == 2
    assert scene.remote.git("fsck", "--strict", "--no-dangling", "--no-progress") == ""
    assert [*(scene.root / "mirror").rglob("gittrix-*-push"), *(scene.root / "mirror").rglob("tmp_*")] == []
    return "landed" if landed else "active"


def _open(scene: Scene) -> bool:
    """Whether the promotion is open still, so that a recovery tells how it ended."""
    with scene.engine() as engine:
        return engine.store.load(scene.sessions()[0]).state == "promoted"


@pytest.mark.parametrize("kind", ["kill", "ENOSPC", "EIO"])
def test_a_promotion_to_a_remote_that_is_struck_ends_once_or_can_be_made_again(scene: Scene, kind: str) -> None:
    def run(fault: Fault | None) -> SupervisedRun:
        scene.put_back()
        return supervise_function(scene.promote, fault=fault, within=scene.root)

    found = [judge(scene, struck) for _, struck in sweep(run, kinds=[kind], points=None if SOAK else slice(3, None, 17))]

    assert {"landed", "active"} <= set(found)
    print(f"{kind}: {len(found)} calls struck, {found.count('landed')} had landed")
