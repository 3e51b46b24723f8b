"""A person's repository with a store beside it, made anew in milliseconds, and what must hold of both after any fault.

The checks use the engine's public interface and the person's own git, nothing of the engine's insides.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import PathNotFound, SessionExpired
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.oracle import Judge
from pytest_gittrix.testing.repos.history import SMALL_PROJECT, Executable, History, Step
from pytest_gittrix.testing.repos.templates import shared_templates

SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"
"""Whether to run everything, which takes minutes, instead of a sample."""

FIRST = "session-0"
"""The id of the first session of a scene."""
HISTORY = History.of(
    history=[Step(SMALL_PROJECT), Step({"src/a/one.txt": "one\n", "src/b/two.txt": "two\n", "run.sh": Executable("#!/bin/sh\n")})]
)

WORK: Mapping[str, bytes | None] = {"app.py": b"print('by the agent')\n", "new/deep.py": b"x = 1\n", "src/b/two.txt": None}
"""What an agent does in a session: a change, a new file in a new directory, a deletion that empties a directory."""

TTL = timedelta(hours=4)

Where = Literal["clean", "elsewhere", "bare"]
"""Where the person is: on the branch with nothing changed, on another branch, or in a bare repository."""


@dataclass
class Scene:
    """One durable repository and one store.

    Attributes:
        root: holds both and nothing else.
        where: where the person is.
        durability: the engine's.
        baseline: the commit that sessions start from.
        clock: shared by every engine of the scene, in forks too.
    """

    root: Path
    where: Where = "clean"
    durability: Literal["full", "fast"] = "fast"
    clock: FrozenClock = field(default_factory=FrozenClock)

    def __post_init__(self) -> None:
        template = shared_templates().of(HISTORY)
        self.baseline = template.head
        self._ids = count()
        template.materialise(self.durable, bare=self.where == "bare")
        (self.root / "person").mkdir()
        if self.where == "elsewhere":
            self.git("checkout", "-q", "-b", "elsewhere")

    @property
    def durable(self) -> Path:
        """The person's repository."""
        return self.root / "durable"

    @property
    def git_dir(self) -> Path:
        """Its git directory."""
        return self.durable if self.where == "bare" else self.durable / ".git"

    @property
    def home(self) -> Path:
        """The engine's home."""
        return self.root / "home"

    def git(self, *arguments: str, fails: bool = False, **env: str) -> str:
        """Run the person's git in the repository; its output, without the final newline."""
        environment = person(self.root / "person") | env
        done = subprocess.run(["git", *arguments], cwd=self.durable, env=environment, capture_output=True, timeout=60, check=False)
        assert fails or done.returncode == 0, (arguments, os.fsdecode(done.stderr + done.stdout))
        return os.fsdecode(done.stdout).rstrip("\n")

    @contextmanager
    def engine(self, *, init: bool = True, budget: timedelta | None = None, spares: int = 0) -> Iterator[GitTrix]:
        """A new engine, as a new process would have one; ``budget`` is what one session may take in a sweep."""
        engine = GitTrix(
            self.durable,
            LocalEphemeral(spares=spares),
            home=self.home,
            clock=self.clock,
            eviction=EvictionPolicy(ttl_idle=TTL),
            sweep_interval=None,
            sweep_budget=budget,
            durability=self.durability,
            strategy="commit",
            ids=lambda: f"session-{next(self._ids)}",
        )
        try:
            yield engine.init() if init else engine
        finally:
            engine.close()

    def session(self, work: Mapping[str, bytes | None] = WORK) -> str:
        """Start a session and do some work in it; return its id."""
        with self.engine() as engine:
            session = engine.start_session("do it")
            do(session, work)
            return session.id

    def promoted(self) -> int:
        """Return how many commits of promotions the branch has."""
        with Judge(self.durable) as judge:
            return _promotions(judge)

    def leftovers(self) -> list[str]:
        """List locks, ``.keep`` files and files of the engine in the person's directories; a recovered engine leaves none."""
        found = [path for path in self.git_dir.rglob("*") if path.suffix in (".lock", ".keep") or path.name.startswith("tmp_")]
        found += [path for path in self.durable.rglob("*gittrix-*") if path.name.startswith((".gittrix-", "gittrix-"))]
        return sorted(str(path.relative_to(self.durable)) for path in found)

    def judge_repository(self) -> None:
        """Check that the person finds a whole repository with nothing else in it, and can go on working."""
        assert not self.leftovers(), self.leftovers()
        broken = [line for line in self.git("fsck", "--strict", "--no-progress").splitlines() if not line.startswith("dangling")]
        assert not broken, broken
        if self.where == "bare":
            tip = self.git("commit-tree", "-p", "main", "-m", "by hand", "main^{tree}")
            self.git("update-ref", "refs/heads/main", tip)
        else:
            status = self.git("status", "--porcelain", "--untracked-files=all")
            assert not status, status
            self.git("commit", "-q", "--allow-empty", "-m", "by hand")

    def judge_session(self, session: str, work: Mapping[str, bytes | None] = WORK) -> str:
        """Check rule 9: the session is active with its whole workspace, or promoted with one commit; the next promotion needs no repair.

        Returns:
            The state the session was found in.
        """
        # One process of git reads the repository before and after.
        with Judge(self.durable) as judge:
            before = _promotions(judge)
            with self.engine() as engine:
                state = engine.info(session).state
                if state == "active":
                    assert did(engine.get_session(session)) == work
                    result = engine.get_session(session).promote(files=[*work])
                    assert judge.head() == result.sha
                    assert [line for line in result.warnings if not line.startswith("not promoted, but archived: ")] == []
                else:
                    assert state == "promoted"
                    with pytest.raises(SessionExpired, match="was promoted"):
                        engine.get_session(session)
                assert not (engine.store.directory(session) / "workspace").exists()
                assert engine.recover().problems == []
            assert _promotions(judge) == before + (state == "active")
            committed = judge.tree(judge.head())
            assert {path: committed.get(path) for path in work} == work
        self.judge_repository()
        return state


def _promotions(judge: Judge) -> int:
    """Return how many commits of promotions the branch of a judge's repository has."""
    return sum(judge.commit(id_).message.startswith("gittrix: ") for id_ in judge.history(judge.head()))


def person(home: Path) -> dict[str, str]:
    """The environment of a person with nothing configured."""
    names = {"NAME": "Human", "EMAIL": "human@example.com"}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
        **{f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in names.items()},
    }


def do(session: UserSession, work: Mapping[str, bytes | None] = WORK) -> None:
    """Do the work in a session."""
    for path, data in work.items():
        if data is None:
            session.delete(path)
        else:
            session.write(path, data)


def did(session: UserSession) -> dict[str, bytes | None]:
    """Return the work in a session."""

    def contents(path: str) -> bytes | None:
        try:
            return session.read(path)
        except PathNotFound:
            return None

    return {path: contents(path) for path in session.touched_files()}


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a directory that is removed after the block; in memory if possible."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gittrix-quality-", dir=parent, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


class Scenes:
    """Makes one scene after another at the same path, so that every run of a program makes the same calls."""

    def __init__(self, root: Path, make: Callable[[Path], Scene]) -> None:
        self._root = root
        self._make = make

    def next(self) -> Scene:
        """Return a new scene in place of the previous one."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        return self._make(self._root)


def one_session(scene: Scene) -> None:
    """Start the first session of a scene."""
    assert scene.session() == FIRST
