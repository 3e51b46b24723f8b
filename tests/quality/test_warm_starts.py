"""A session of a store that has followed a moving baseline has the files of a session of a new store, byte by byte.

Its seeds are derived from earlier ones, its spares were brought forward, and its overlays lie above earlier checkouts. Meanwhile the branch
is rewound, durable and the store are pruned, and processes that start sessions are killed. A normal run starts a few sessions;
``PYTEST_GITTRIX_SESSIONS=10000`` says how many, and ``PYTEST_GITTRIX_DRAW=1`` draws others.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from support.git import GitRepo, git
from support.moving import contents, edit

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.confine.levels import missing_layers
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.workspaces import layers
from pytest_gittrix.workspaces.kinds import WITH_OWN_GIT, WorkspaceKind
from pytest_gittrix.workspaces.seeds import on_disk
from pytest_gittrix.workspaces.seeds import seed as seeds_module
from pytest_gittrix.workspaces.seeds.on_disk import ancestry

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="makers are killed in forks")

SESSIONS: Final = int(os.environ.get("PYTEST_GITTRIX_SESSIONS", "12"))
DRAW: Final = os.environ.get("PYTEST_GITTRIX_DRAW", "0")
KINDS: Final[tuple[WorkspaceKind, ...]] = ("clone", "clone", "copy", "lazy", "overlay")
LONGEST_LIFE: Final = 0.06
"""The most seconds that a maker works before it is killed."""
FILES: Final = {"a": "1\n", "d/a": "2\n", "d/e/f": "3\n", "twin/e/f": "3\n"}
EVERY_OBJECT: Final = ("cat-file", "--batch-all-objects", "--batch-check")


@dataclass
class Store:
    """The store of one engine on a repository.

    Attributes:
        root: its directory, which nothing else is in.
        repo: the repository.
        spares: how many spares the engine makes.
        engine: the engine.
    """

    root: Path
    repo: GitRepo
    spares: int = 0
    engine: GitTrix = field(init=False)

    def __post_init__(self) -> None:
        self.engine = self.another()

    def another(self) -> GitTrix:
        """One more engine on this store, as another process has it."""
        durable = LocalDurable(self.repo.path, sync=False)
        ephemeral = LocalEphemeral(spares=self.spares)
        return GitTrix(durable, ephemeral, store=self.root, clock=FrozenClock(), sweep_interval=None, durability="fast")

    def start(self, id_: str, kind: WorkspaceKind) -> UserSession:
        """Start a session."""
        return self.engine.start_session("work", id=id_, workspace=kind)

    def found(self, session: UserSession) -> dict[str, object]:
        """What a session has: its files, those of its git directory and its objects, with this store's path left out."""
        workspace = parts_of(session.for_agent()).workspace
        found: dict[str, object] = {
            path: (mode, time, data.replace(os.fsencode(self.root), b"STORE"))
            for path, (mode, time, data) in contents(Path(workspace.path)).items()
        }
        for one in workspace.files.scan() if workspace.kind == "overlay" else ():
            is_link = stat.S_ISLNK(one.stat.st_mode)
            data = b"" if one.is_dir else workspace.files.read_link(one.path) if is_link else workspace.files.read(one.path)[0]
            found[f"merged {one.path}"] = one.stat.st_mode, 0 if one.is_dir else one.stat.st_mtime_ns, data
        found |= {f"read {one.path}": session.read(one.path) for one in session.list() if one.type == "file"}
        if workspace.kind in WITH_OWN_GIT:
            found["objects"] = git(*EVERY_OBJECT, cwd=Path(workspace.path))
        return found

    def spare_inodes(self) -> set[int]:
        """The inodes of the workspaces that are spares."""
        found = set()
        for path in (self.root / ".spares").glob("[!t]*/workspace"):
            with suppress(FileNotFoundError):  # a thread of the engine brings it forward just now
                found.add(path.stat().st_ino)
        return found

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def forget(self) -> None:
        """Have an engine as another process has it, which knows of earlier seeds and spares only what is on the disk."""
        self.close()
        seeds_module._recent.clear()
        self.engine = self.another()

    def kill_a_maker(self, kind: WorkspaceKind, life: float) -> bool:
        """Start and end sessions in a process that is killed after some seconds; whether it was still at work."""
        self.engine.services.resources.spares.wait()

        def make() -> None:
            with closing(self.another()) as engine:
                while True:
                    engine.start_session("killed", workspace=kind).discard()
                    engine.services.resources.spares.wait()

        return in_fork(make, timeout=life).timed_out

    def prune(self) -> None:
        """Remove what no session needs, as if all of it was old."""
        seeds = self.engine.services.resources.seeds_path
        for path in seeds.iterdir() if seeds.is_dir() else ():
            os.utime(path, (0, 0))
        self.engine.services.prune_seeds()
        self.engine.services.resources.spares.prune()


@pytest.fixture(autouse=True)
def small_repositories_are_treated_as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "_SMALL_INDEX", 0)
    monkeypatch.setattr(on_disk, "_MANY_OBJECTS", 5)
    monkeypatch.setattr(layers, "_WORTH_A_LAYER", 0)


def test_a_session_of_a_used_store_is_the_one_of_a_new_store(tmp_path: Path) -> None:
    draw, counts = random.Random(f"sessions {DRAW}"), Counter[str]()
    repo = GitRepo.make(tmp_path / "durable", dict(FILES), bare=True)
    kinds = [kind for kind in KINDS if kind != "overlay" or not missing_layers(str(tmp_path))]
    used = Store(tmp_path / "used", repo, spares=1)
    with closing(used):
        for number in range(SESSIONS):
            kind = draw.choice(kinds)
            if draw.random() < 0.25:
                edit(draw, repo)
            if draw.random() < 0.1:
                counts["killed"] += used.kill_a_maker(kind, draw.uniform(0, LONGEST_LIFE))
            if draw.random() < 0.1:
                used.forget()
            if draw.random() < 0.05:
                used.prune()
            new = Store(tmp_path / f"new{number}", repo)
            with closing(new):
                spares = used.spare_inodes()
                warm, cold = used.start(f"session-{number}", kind), new.start(f"session-{number}", kind)
                there, wanted = used.found(warm), new.found(cold)
            assert there == wanted, f"session {number} of draw {DRAW}, {kind}, at {repo.head()}"
            assert warm.touched_files() == []
            workspace = parts_of(warm.for_agent()).workspace
            if kind == "clone":
                git("fsck", "--strict", "--full", "--no-dangling", cwd=Path(workspace.path))
                assert git("status", "--porcelain", cwd=Path(workspace.path)) == b""
            counts += Counter(
                {kind: 1, "derived": bool(ancestry(workspace.seed.directory)), "spare": os.stat(workspace.path).st_ino in spares}
            )
            if draw.random() < 0.4:
                edit(draw, repo)
            if draw.random() < 0.3:
                warm.write("of an agent", f"{number}\n")
                warm.promote()
            else:
                warm.discard()
            if draw.random() < 0.7:
                used.engine.services.resources.spares.wait()
            shutil.rmtree(new.root)
    sys.stdout.write(f"{dict(counts)}\n")
    assert counts["derived"] > SESSIONS // 4
    assert counts["spare"]
