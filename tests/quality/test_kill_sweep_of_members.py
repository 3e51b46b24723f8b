"""Killed at any call that changes a file while a member's session starts, ends or is cleaned up: the next engine finds what somebody meant.

No commit and no file is lost, no directory is left of which nobody knows, and nothing is held by a session that is over. The normal run
strikes a sample of the calls; ``PYTEST_GITTRIX_SOAK=1`` strikes every one. Figures are printed (``pytest -rP``).
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from support.git import GitRepo
from support.scene import SOAK, scratch

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.eviction.archive import WHOLE
from pytest_gittrix.members.members import Members
from pytest_gittrix.record.eventlog.log import Durability
from pytest_gittrix.record.state.lifecycle import LEGAL, Life
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.faults import SupervisedRun
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.testing.repos.member_witness import Everything, everything_below
from pytest_gittrix.testing.repos.member_workspaces import git
from pytest_gittrix.workspaces.multi_repo import RepositorySpec

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

ID: Final = "struck"
ITEM: Final = "app#1"
LEFT: Final = "projects/app/left.txt"
AGENT: Final = ["/bin/sh", "-c", f"echo left >{LEFT}"]
KINDS: Final = ("kill", "torn") if SOAK else ("kill",)
SAMPLE: Final = None if SOAK else 16
RECORD: Final = {"events.jsonl"}


class Scene:
    """A team with two repositories, and a store that can be put back to how it was.

    Attributes:
        found: how often sessions were found in which state.
    """

    def __init__(self, place: Path, durability: Durability = "fast") -> None:
        self.home, self._kept, self._durability = place / "home", place / "kept", durability
        self.app = GitRepo.make(place / "remotes" / "app.git", {"a.txt": "one\n"}, bare=True)
        self.team = GitRepo.make(place / "remotes" / "team.git", {"README.md": "the team\n"}, bare=True)
        self.found: Counter[str] = Counter()
        with self.members() as members:  # the clones are made once, and not struck
            members.stop(members.start("alice", "interactive", id="before").id)
            members.cleanup(Selector(id="before"))

    @contextmanager
    def members(self) -> Iterator[Members]:
        """A manager on a new engine."""
        with GitTrix(None, home=self.home, clock=FrozenClock(), durability=self._durability, sweep_interval=None) as engine:
            specs = [RepositorySpec("app", str(self.app.path)), RepositorySpec("crew", str(self.team.path), team=True)]
            yield Members(engine, specs, team="crew", grace=5.0, deadline=40.0, confine="off")

    def keep(self) -> None:
        """Remember how everything is now.

        Neither a pipe that nobody reads any more, nor what was thrown away: a thread deletes that, in no order.
        """
        shutil.rmtree(self.home / "sessions" / ".trash", ignore_errors=True)
        for pipe in self.home.glob("sessions/*/agent/input"):
            pipe.unlink()
        shutil.copytree(self.home, self._kept / "home", symlinks=True)
        shutil.copytree(self.app.path, self._kept / "app.git")

    def reset(self) -> None:
        """Put everything back."""
        for at, kept in ((self.home, "home"), (self.app.path, "app.git")):
            shutil.rmtree(at)
            shutil.copytree(self._kept / kept, at, symlinks=True)

    @property
    def within(self) -> list[Path]:
        """Where calls count: all that the engine keeps, but for the clones."""
        return [self.home / "sessions", self.home / "work-locks"]

    def directory(self) -> Path:
        return self.home / "sessions" / ID

    def workspace(self) -> Path:
        return self.directory() / "workspace"

    def sweep(self, run: Callable[[], object], judge: Callable[[SupervisedRun], object], what: str, kinds: Sequence[str] = KINDS) -> None:
        """Strike a sample of the calls, or all."""
        report = Crash().sweep(run, self.reset, judge, kinds=kinds, limit=SAMPLE, within=self.within)
        print(f"{what}: {report.verify()}; found {dict(self.found)}")

    def recovered(self) -> Life | None:
        """Recover, twice, and see what must hold whatever was struck; gives the session, if there is one."""
        for left in self.app.path.rglob("*.lock"):  # a remote that crashed has an owner who tidies up
            left.unlink()
        with self.members() as members:
            members.recover()
            assert members.recover() == []
            assert members.exited() == []
            lives = [life for life in members.list() if life.id == ID]
            assert members._team.locks.held() == []
            self._judge_directories(members)
            life = lives[0] if lives else None
            if life is not None:
                self._judge_life(members, life)
        self.found[life.state if life is not None else "nothing"] += 1
        return life

    def _judge_directories(self, members: Members) -> None:
        store = members._engine.store
        for path in store.root.iterdir():
            if path.name.startswith((".", "index.sqlite")):
                continue
            state = store.load(path.name)
            assert state.life is not None
            if state.ended:
                assert left_in(path) - {WHOLE} == RECORD
        assert members._engine.problems() == []

    def _judge_life(self, members: Members, life: Life) -> None:
        assert life.state in ("retained", "removed")
        assert life.locks == ()
        names = {path.name for path in self.directory().iterdir()}
        assert not [name for name in names if "hydrating" in name or name == "leaving"]
        events = members._engine.history(ID)
        moves = ["creating", *(event.data["to"] for event in events if event.type == "life.moved")]
        assert all(after in LEGAL[before] for before, after in pairwise(moves))
        if life.agent is not None:
            assert life.agent.exited_ns is not None

    def at_remote(self, path: str) -> bool:
        """Whether a file of the agent's is in some commit of the remote."""
        return path in self.app.text("log", "--all", "--name-only", "--format=").splitlines()


def left_in(directory: Path) -> set[str]:
    """What there is of a session, but for a lock that nobody holds and what is derived."""
    return {path.name for path in directory.iterdir() if not path.name.startswith((".lock", ".metadata.json.", "metadata.json"))}


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


@pytest.mark.parametrize("kind", ["loop", "interactive"])
def test_killed_while_it_starts_there_is_a_session_or_there_is_none(place: Path, kind: str) -> None:
    scene = Scene(place)
    scene.keep()

    def start() -> None:
        with scene.members() as members:
            members.start("alice", kind, command=AGENT if kind == "loop" else None, id=ID, work_item=ITEM)

    def judge(_struck: SupervisedRun) -> None:
        _end_agents(scene)
        wrote = (scene.workspace() / LEFT).exists()
        life = scene.recovered()
        if wrote:
            assert life is not None
            assert scene.at_remote("left.txt")
        with scene.members() as members:
            assert members.start("bob", "interactive", work_item=ITEM, id="after").state == "active"

    # What an agent does beside the engine comes at any time, so no call of these has a number of its own.
    scene.sweep(start, judge, f"start, {kind}", KINDS if kind == "interactive" else ("kill",))


def _end_agents(scene: Scene) -> None:
    """What outlived its start comes to its end."""
    with scene.members() as members:
        for life in members.list(states=["active"]):
            process = members.process(life.id)
            if process is not None:
                assert process.wait(60).state != "alive"
            elif life.kind == "interactive":
                members.stop(life.id)


def dirty(scene: Scene) -> dict[str, str]:
    """A session whose agent is gone, with work of several kinds; gives the commits that must not be lost."""
    with scene.members() as members:
        members.start("alice", command=AGENT, id=ID, work_item=ITEM)
        process = members.process(ID)
        assert process is not None
        assert process.wait(60).state == "exited"
    commits = {}
    repo = scene.workspace() / "projects" / "app"
    for number, branch in enumerate(("feature", None)):
        git(repo, "checkout", "-q", *(["-b", branch] if branch else ["--detach", "origin/main"]))
        (repo / f"{number}.txt").write_text(f"{number}\n")
        git(repo, "add", f"{number}.txt")
        git(repo, "commit", "-q", "-m", f"work {number}", at=1_893_456_000)
        commits[branch or "HEAD"] = git(repo, "rev-parse", "HEAD")
    return commits


def test_killed_while_it_is_finished_everything_gets_saved(place: Path) -> None:
    scene = Scene(place)
    commits = dirty(scene)
    files = everything_below(scene.workspace())
    scene.keep()

    def finish() -> None:
        with scene.members() as members:
            assert [life.id for life in members.observe()] == [ID]

    def judge(_struck: SupervisedRun) -> None:
        life = scene.recovered()
        assert life is not None
        assert (life.state, life.ended, life.unsaved) == ("retained", "completed", False)
        assert everything_below(scene.workspace()) == files
        there = scene.app.text("rev-list", "--all").split()
        assert [name for name, id_ in commits.items() if id_ not in there] == []
        assert scene.at_remote("left.txt")
        assert life.result is not None
        assert {one.branch for one in life.result.pushed_branches} == {"feature"}

    scene.sweep(finish, judge, "finish")


@pytest.mark.parametrize("durability", ["fast", "full"])
def test_killed_while_it_is_cleaned_up_it_is_all_there_or_gone(place: Path, durability: Durability) -> None:
    scene = Scene(place, durability)
    dirty(scene)
    with scene.members() as members:
        members.stop(ID, force=True)
    files = everything_below(scene.workspace())
    scene.keep()

    def clean() -> None:
        with scene.members() as members:
            assert members.cleanup(Selector(id=ID)).removed == (ID,)
            assert _emptied(members)

    def judge(struck: SupervisedRun) -> None:
        life = scene.recovered()
        assert life is not None
        assert (life.state == "removed") or struck.killed
        _judge_retained(scene, life, files)
        with scene.members() as members:
            if life.state == "retained":
                assert members.cleanup(Selector(all=True)).spared == (ID,)
                assert members.finalize(ID).ended == "completed"
                assert scene.at_remote("left.txt")
                assert members.cleanup(Selector(all=True)).removed == (ID,)
                assert left_in(scene.directory()) == RECORD
            else:
                assert left_in(scene.directory()) == RECORD | {WHOLE}
                assert everything_below(scene.directory() / WHOLE) == files
            assert members.get(ID).state == "removed"

    scene.sweep(clean, judge, f"cleanup, {durability}")


def _emptied(members: Members) -> bool:
    """Whether what was thrown away is gone, so that every run makes the same calls."""
    members._engine.services.resources.trash.wait()
    return True


def _judge_retained(scene: Scene, life: Life, files: Everything) -> None:
    if life.state == "retained":
        assert everything_below(scene.workspace()) == files


def test_killed_while_it_is_killed_it_is_retained_with_all_that_is_in_it(place: Path) -> None:
    scene = Scene(place)
    with scene.members() as members:
        members.start("alice", "interactive", id=ID, work_item=ITEM)
    (scene.workspace() / LEFT).write_text("left\n")
    files = everything_below(scene.workspace())
    scene.keep()

    def kill() -> None:
        with scene.members() as members:
            assert members.stop(ID, force=True).state == "retained"

    def judge(_struck: SupervisedRun) -> None:
        with scene.members() as members:
            if members.get(ID).state == "active":  # nobody has heard of it, or it was asked for and not done
                scene.found["active"] += 1
                assert {lock.item for lock in members._team.locks.held()} == {ITEM}
                members.stop(ID, force=True)
        life = scene.recovered()
        assert life is not None
        assert (life.state, life.ended) == ("retained", "killed")
        assert everything_below(scene.workspace()) == files
        assert os.path.isdir(scene.workspace())

    scene.sweep(kill, judge, "a forced stop")
