"""Repositories that git itself makes and judges, for the tests of the git room.

Each call is hermetic: git sees no configuration, hook or variable of the person who runs the tests.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry
from pytest_gittrix.workspaces.kinds import WorkspaceKind
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed
from pytest_gittrix.workspaces.seeds.seed import History
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace, create

Content = str | bytes | tuple[int, bytes] | None
"""The content of a path: bytes of a file, (mode, bytes) of anything else, None for nothing."""

Found = dict[str, tuple[int, bytes] | None]
"""What a snapshot changes: mode and bytes by path, None where something is gone."""

WHEN = datetime(2030, 1, 1, tzinfo=UTC)
FORMATS = ("sha1", "sha256")


def executable(data: str) -> Content:
    """A file that may be run."""
    return EXECUTABLE, data.encode()


def link(target: str) -> Content:
    """A symbolic link."""
    return SYMLINK, os.fsencode(target)


def submodule(commit: str) -> Content:
    """A pointer to a commit of another repository."""
    return SUBMODULE, commit.encode()


def moded(content: Content) -> tuple[int, bytes]:
    """Content in its long form: mode and bytes."""
    assert content is not None
    if isinstance(content, tuple):
        return content
    return FILE, content.encode() if isinstance(content, str) else content


def put(root: Path, files: Mapping[str, Content]) -> None:
    """Give paths below a directory their content, replacing whatever exists; deletions come first."""
    for path, content in sorted(files.items(), key=lambda item: item[1] is not None):
        at = root / path
        if content is None:
            clear(at)
            continue
        mode, data = moded(content)
        if not os.path.lexists(at) or at.is_symlink() or (mode == SYMLINK) or at.is_dir():
            clear(at)
            at.parent.mkdir(parents=True, exist_ok=True)
        if mode == SYMLINK:
            at.symlink_to(os.fsdecode(data))
        elif mode == SUBMODULE:
            at.mkdir()
        else:
            at.write_bytes(data)
            at.chmod(0o755 if mode == EXECUTABLE else 0o644)


def clear(path: Path) -> None:
    """Delete whatever is at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def stream(
    ref: str,
    files: Mapping[str, Content],
    *,
    parent: str | None = None,
    message: str = "a change",
    mark: int = 1,
    author: str = "A Person <person@example.com>",
) -> bytes:
    """A commit for ``git fast-import``, which accepts every name that git can store."""
    lines = [f"commit {ref}\nmark :{mark}\ncommitter {author} 1893456000 +0000\n".encode()]
    lines.append(b"data %d\n%s\n" % (len(message.encode()), message.encode()))
    lines += [b"from " + parent.encode() + b"\n"] if parent else []
    for path, content in sorted(files.items(), key=lambda item: item[1] is not None):
        quoted = b'"' + b"".join(b"\\%03o" % byte for byte in os.fsencode(path)) + b'"'
        if content is None:
            lines.append(b"D " + quoted + b"\n")
            continue
        mode, data = moded(content)
        if mode == SUBMODULE:
            lines.append(b"M %o %s %s\n" % (mode, data, quoted))
        else:
            lines.append(b"M %o inline %s\ndata %d\n%s\n" % (mode, quoted, len(data), data))
    return b"".join(lines)


@dataclass(frozen=True)
class GitRepo:
    """A repository as a person has it: the work tree, or the git directory of a bare one."""

    path: Path
    bare: bool = False

    @classmethod
    def make(cls, path: Path, files: Mapping[str, Content] | None = None, *, bare: bool = False, object_format: str = "sha1") -> GitRepo:
        """A repository with one commit of ``files`` on ``main``; with no commit if there are none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(_empty(bare, object_format), path, dirs_exist_ok=True)
        made = cls(path, bare)
        if files is not None:
            made.commit(files, "first")
        return made

    @property
    def git_dir(self) -> Path:
        """Its git directory."""
        return self.path if self.bare else self.path / ".git"

    def git(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        """Run git in this repository and return its standard output. A failure fails the test."""
        return git(*arguments, cwd=self.path, stdin=stdin, env=env)

    def text(self, *arguments: str, stdin: bytes = b"") -> str:
        """The same as text, without the final newline."""
        return os.fsdecode(self.git(*arguments, stdin=stdin)).removesuffix("\n")

    def commit(self, files: Mapping[str, Content], message: str = "a change", *, branch: str = "main") -> str:
        """Commit changes on a branch; a clean checkout of it follows. Gives the commit."""
        ref = f"refs/heads/{branch}"
        here = loose_ref(self.git_dir, ref) or self.text("for-each-ref", "--format=%(objectname)", ref)
        self.git("fast-import", "--quiet", "--force", "--date-format=raw", stdin=stream(ref, files, parent=here or None, message=message))
        if not self.bare and (loose_ref(self.git_dir, "HEAD") or self.text("symbolic-ref", "-q", "HEAD")) == ref:
            self.git("reset", "-q", "--hard")
        return self.head(branch)

    def head(self, branch: str = "main") -> str:
        """The commit a branch is at."""
        ref = f"refs/heads/{branch}"
        return loose_ref(self.git_dir, ref) or self.text("rev-parse", "--verify", ref)

    def tree(self, at: str = "main") -> dict[str, Entry]:
        """Everything in a commit or tree, by path, as ``git ls-tree`` lists it."""
        found: dict[str, Entry] = {}
        for line in filter(None, self.git("ls-tree", "-r", "-z", at).split(b"\0")):
            what, _, path = line.partition(b"\t")
            mode, _, id_ = what.decode().split()
            found[os.fsdecode(path)] = Entry(int(mode, 8), id_)
        return found

    def status(self) -> list[str]:
        """What ``git status`` lists; empty for a clean checkout."""
        return [os.fsdecode(line) for line in self.git("status", "--porcelain", "-z", "--ignore-submodules=none").split(b"\0") if line]

    def fsck(self) -> None:
        """Fail unless git finds the whole repository sound."""
        self.git("fsck", "--strict", "--full", "--no-dangling")


def loose_ref(git_dir: Path, ref: str) -> str:
    """What a ref holds, read from its own file: a commit, or the name of the branch that ``HEAD`` is on.

    A process of git takes a hundred times as long, and tests look thousands of times.

    Args:
        git_dir: the directory that holds the refs.
        ref: the whole name of the ref.

    Returns:
        The commit or the name; empty if the ref has no file of its own, and git must be asked.
    """
    try:
        return (git_dir / ref).read_text().removeprefix("ref: ").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


@lru_cache(maxsize=4)
def _empty(bare: bool, object_format: str) -> Path:
    """A repository without a commit, to copy."""
    home = tempfile.mkdtemp(prefix="gittrix-empty-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    options = ["--bare"] if bare else []
    git("init", "-q", *options, f"--object-format={object_format}", "--initial-branch=main", str(Path(home, "repository")))
    return Path(home, "repository")


def git(*arguments: str, cwd: Path | None = None, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    """Run git hermetically at a fixed date and return its standard output. A failure fails the test with git's message."""
    done = try_git(*arguments, cwd=cwd, stdin=stdin, env=env)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr.decode(errors='replace')}"
    return done.stdout


def try_git(
    *arguments: str, cwd: Path | None = None, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git like ``git``, but return its result even if it fails."""
    environment = hermetic_env(when=WHEN) | dict(env or {})
    return subprocess.run([git_binary(), *arguments], cwd=cwd or "/", input=stdin, env=environment, capture_output=True, timeout=60)


def make_workspace(
    repo: GitRepo,
    root: Path,
    kind: WorkspaceKind = "clone",
    *,
    history: History = "none",
    commit: str | None = None,
    name: str = "workspace",
) -> Workspace:
    """A workspace of a repository's ``main`` (or of another commit) at ``root/name``; its seed and state stand beside it."""
    with Repository.open(repo.path) as durable:
        seed = prepare_seed(str(root / "seeds"), durable, commit or repo.head(), history)
        return create(kind, str(root / name), str(root / f"{name}-state"), seed, durable_common_dir=durable.common_dir, name=name)


def found(snapshot: Snapshot) -> Found:
    """What a snapshot changes, with the bytes instead of ids."""
    return {path: (entry.mode, snapshot.blobs[entry.id]) if entry else None for path, entry in snapshot.changes.items()}


def intent_to_add(repo: GitRepo) -> None:
    """Add a file to the index by name only."""
    put(repo.path, {"soon": "s\n"})
    repo.git("add", "--intent-to-add", "soon")
