"""A durable repository that only real git touches, an engine on it under a frozen clock, and kills at named points.

What is judged here is judged by git itself: nothing in this module reads or writes durable through the engine.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from support.git import loose_ref, stream

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.testing.repos.member_witness import everything_below

KINDS = ("clone", "lazy", "copy", "worktree")
FILE, EXECUTABLE, SYMLINK, SUBMODULE = "100644", "100755", "120000", "160000"

Content = str | bytes | tuple[str, str | bytes] | None
"""What to put at a path: bytes of a file, (mode, bytes) of anything else, or None to delete it."""

LINES = "".join(f"line {number}\n" for number in range(1, 41))
FILES: Mapping[str, Content] = {
    "app.py": "print('v1')\n",
    "README.md": "# A project\n",
    "src/util.py": LINES,
    "src/deep/er.txt": "deeper\n",
    "run.sh": (EXECUTABLE, "#!/bin/sh\n"),
    "link": (SYMLINK, "app.py"),
}


def edited(*numbers: int, text: str = "changed") -> str:
    """``src/util.py`` with some of its lines changed."""
    return "".join(f"{text} {number}\n" if number in numbers else f"line {number}\n" for number in range(1, 41))


@dataclass(frozen=True)
class DurableGit:
    """A durable repository as a person has it.

    Attributes:
        path: the work tree, or the git directory of a bare one.
        bare: whether it has no work tree.
    """

    path: Path
    bare: bool = False

    @classmethod
    def make(cls, path: Path, files: Mapping[str, Content] = FILES, *, bare: bool = False, object_format: str = "sha1") -> DurableGit:
        """A repository with one commit on ``main``, checked out unless it is bare."""
        shutil.copytree(_template(tuple(files.items()), bare, object_format), path, symlinks=True)
        return cls(path, bare)

    @property
    def git_dir(self) -> Path:
        """Its git directory."""
        return self.path if self.bare else self.path / ".git"

    def git(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run git in it; gives standard output without the final newline."""
        return os.fsdecode(run_git(["-c", "core.fsync=none", *arguments], cwd=self.path, stdin=stdin)).removesuffix("\n")

    def head(self, branch: str = "main") -> str:
        """The commit a branch is at."""
        ref = f"refs/heads/{branch}"
        return loose_ref(self.git_dir, ref) or self.git("rev-parse", "--verify", ref)

    def branches(self) -> list[str]:
        """The names of all branches."""
        return self.git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/").split()

    def commit(
        self,
        changes: Mapping[str, Content],
        message: str = "rival",
        *,
        branch: str = "main",
        onto: str | None = None,
        author: str = "Rival <rival@example.com>",
    ) -> str:
        """Commit changes on a branch as somebody else would, and check it out if it is the current one.

        Args:
            changes: contents by path.
            message: the message.
            branch: which branch.
            onto: the parent, if it is not the branch's head (history is rewritten then).
            author: name and address.
        """
        ref = f"refs/heads/{branch}"
        exists = loose_ref(self.git_dir, ref) or branch in self.branches()
        parent = onto or (f"{ref}^0" if exists else None)
        made = stream(ref, {path: _moded(content) for path, content in changes.items()}, parent=parent, message=message, author=author)
        self.git("fast-import", "--quiet", "--force", "--date-format=raw", stdin=made)
        if not self.bare and (loose_ref(self.git_dir, "HEAD") or self.git("symbolic-ref", "-q", "HEAD")) == ref:
            self.git("reset", "-q", "--hard")
        return self.head(branch)

    def tree(self, at: str = "main") -> dict[str, tuple[str, str]]:
        """Mode and id of everything in a commit, by path."""
        lines = self.git("ls-tree", "-r", "-z", at).split("\0")
        fields = (line.split("\t", 1) for line in lines if line)
        return {path: (what.split()[0], what.split()[2]) for what, path in fields}

    def read(self, path: str, at: str = "main") -> bytes:
        """The bytes at a path of a commit."""
        return run_git(["cat-file", "blob", f"{at}:{path}"], cwd=self.path)

    def changed(self, commit: str) -> dict[str, tuple[str, str] | None]:
        """What a commit changed of its first parent: mode and id by path, None for what it deleted."""
        before, after = self.tree(f"{commit}^"), self.tree(commit)
        return {path: after.get(path) for path in sorted(before | after) if before.get(path) != after.get(path)}

    def parents(self, commit: str) -> list[str]:
        """The parents of a commit."""
        return self.git("rev-list", "--parents", "-1", commit).split()[1:]

    def status(self) -> list[str]:
        """What ``git status`` lists; empty for a clean checkout."""
        return self.git("status", "--porcelain").splitlines()

    def contains(self, commit: str, branch: str = "main") -> bool:
        """Whether a commit is on a branch."""
        return commit in self.git("rev-list", f"refs/heads/{branch}").split()

    def leftovers(self) -> list[str]:
        """Locks, shields and temporary files below the git directory."""
        found = [
            path for path in self.git_dir.rglob("*") if path.suffix in (".lock", ".keep") or path.name.startswith(("gittrix-", "tmp_"))
        ]
        return sorted(str(path.relative_to(self.git_dir)) for path in found if "worktrees" not in path.parts)

    def fingerprint(self) -> dict[str, tuple[int, bytes]]:
        """Mode and bytes of every file in it, its git directory and everything untracked included."""
        return everything_below(self.path)


@lru_cache(maxsize=32)
def _template(files: tuple[tuple[str, Content], ...], bare: bool, object_format: str) -> Path:
    """A repository to copy: git takes many times as long to make it."""
    home = tempfile.mkdtemp(prefix="gittrix-durable-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    made = DurableGit(Path(home, "durable"), bare)
    options = ["--bare"] if bare else []
    run_git(["init", "-q", *options, f"--object-format={object_format}", "--initial-branch=main", str(made.path)])
    made.commit(dict(files), "first")
    return made.path


def _moded(content: Content) -> tuple[int, bytes] | None:
    if content is None:
        return None
    mode, data = content if isinstance(content, tuple) else (FILE, content)
    return int(mode, 8), data.encode() if isinstance(data, str) else data


@dataclass
class Site:
    """A durable repository, a clock, and engines on them, below one directory.

    Attributes:
        root: that directory; the store is ``sessions`` in it.
        durable: the repository.
        clock: the time of every engine.
        options: arguments of every engine.
    """

    root: Path
    durable: DurableGit
    clock: FrozenClock
    options: dict[str, Any] = field(default_factory=dict)
    _engines: list[GitTrix] = field(default_factory=list)

    @property
    def store(self) -> Path:
        """The directory of sessions."""
        return self.root / "sessions"

    @property
    def engine(self) -> GitTrix:
        """The first engine, made when it is asked for."""
        return self._engines[0] if self._engines else self.another()

    def another(self, **options: Any) -> GitTrix:
        """One more engine on the same store, as another process would have; not initialised."""
        given: dict[str, Any] = {"ephemeral": LocalEphemeral(), "durability": "fast", "strategy": "commit", "sweep_interval": None}
        given |= {"ids": seeded_ids(len(self._engines))} | self.options | options
        durable = given.pop("durable", None) or LocalDurable(self.durable.path, author=("Human", "human@example.com"), sync=False)
        engine = GitTrix(durable, store=self.store, clock=self.clock, **given)
        self._engines.append(engine)
        return engine

    def start(self, task: str = "fix the bug", **options: Any) -> UserSession:
        """A session of the first engine."""
        return self.engine.start_session(task, **options)

    def state(self, id_: str) -> SessionState:
        """A session's state as its log has it."""
        return self.engine.store.load(id_)

    def events(self, id_: str) -> list[Event]:
        """A session's events."""
        return self.engine.store.log(id_).read()

    def types(self, id_: str) -> list[str]:
        """The types of a session's events."""
        return [event.type for event in self.events(id_)]

    def directory(self, session: UserSession | str) -> Path:
        """A session's directory."""
        return self.store / (session if isinstance(session, str) else session.id)

    def close(self) -> None:
        """Close every engine."""
        for engine in self._engines:
            engine.close()


@contextmanager
def open_site(
    root: Path, files: Mapping[str, Content] = FILES, *, bare: bool = False, object_format: str = "sha1", **options: Any
) -> Iterator[Site]:
    """A site below an existing directory; its engines are closed at the end."""
    site = Site(root, DurableGit.make(root / "durable", files, bare=bare, object_format=object_format), FrozenClock(), options)
    try:
        yield site
    finally:
        site.close()


def shell(session: UserSession, script: str) -> str:
    """What an agent's shell prints for a script, run in the workspace; it must succeed."""
    done = subprocess.run(
        ["/bin/sh", "-ec", script], cwd=session.workspace_path, env=hermetic_env(), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="surrogateescape")


def archived(site: Site, session: UserSession) -> dict[str, bytes]:
    """The files that the archive's commit adds to the baseline, or changes."""
    repository, ref = str(site.directory(session) / "archive.git"), f"refs/gittrix/archive/{session.id}"
    listed = run_git(["--git-dir", repository, "diff-tree", "-r", "-z", "--name-only", "--no-commit-id", ref])
    paths = [os.fsdecode(path) for path in listed.split(b"\0") if path]
    return {path: run_git(["--git-dir", repository, "cat-file", "blob", f"{ref}:{path}"]) for path in paths}


def passed(action: Callable[[], object]) -> list[str]:
    """The points an action passes, in order."""
    names: list[str] = []
    with points.listening(names.append):
        action()
    return names


@contextmanager
def at_point(point: str, action: Callable[[], object]) -> Iterator[None]:
    """Run an action the first time a point is passed, with nothing listening meanwhile."""
    pending = [action]

    def listen(name: str) -> None:
        if name == point and pending:
            first = pending.pop()
            with points.listening(lambda _name: None):
                first()

    with points.listening(listen):
        yield
    assert not pending, f"{point} was never passed"


def in_child(action: Callable[[], object]) -> int:
    """Run an action in a forked process; gives its exit status, negative for the signal that killed it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks beside other threads; this child uses none
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


NOBODY = 65534
"""The user that stands for an ordinary one where the tests run as root."""


def as_ordinary_user(action: Callable[[], object], directory: Path) -> int:
    """As ``in_child``, by a user whom permissions bind and who owns a directory, which is the current one."""

    def run() -> None:
        os.chdir(directory)
        if os.geteuid() == 0:
            os.chown(".", NOBODY, NOBODY)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        tempfile.tempdir = os.getcwd()  # the one of the tests may be closed to that user
        action()

    return in_child(run)


def kill_at(point: str, action: Callable[[], object], *, nth: int = 1) -> None:
    """Run an action in a forked process that is killed when it passes a point for the nth time."""
    seen: list[str] = []

    def listen(name: str) -> None:
        seen.append(name)
        if name == point and seen.count(point) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        with points.listening(listen):
            action()

    assert in_child(run) == -signal.SIGKILL, f"{point} was not passed {nth} time(s)"


def work(session: UserSession) -> None:
    """An edit, a new file, a new executable, a deletion."""
    session.write("src/util.py", edited(3))
    session.write("new/file.txt", b"\0binary\xff")
    session.write("run.sh", "#!/bin/sh\nexit 1\n")
    session.delete("README.md")


def types(session: UserSession) -> list[str]:
    """What happened, from the first turn on."""
    names = [event.type for event in session.history()]
    return names[names.index("turn.started") :]
