"""The repository that everything is measured on: small files, twenty to a directory, in one pack made by git itself."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.git.environment import hermetic_env, run_git

BRANCH: Final = "refs/heads/main"
_FILE_SIZE: Final = 2000
_PER_DIRECTORY: Final = 20
_TEXT: Final = """
self return value path name index for in if not None entry state tree commit read write open close list items keys data size offset
length match found result error raise import from class def lambda yield with as assert while break continue
"""
_WORDS: Final = tuple(_TEXT.split())
_CONFIG: Final = """\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
[gc]
	auto = 0
[maintenance]
	auto = false
"""


@dataclass(frozen=True)
class Sample:
    """A history of one commit, kept where copies of it are cheap.

    Attributes:
        directory: a bare repository that nobody writes to.
        commit: the baseline.
        files: its contents by path.
    """

    directory: Path
    commit: str
    files: Mapping[str, bytes]

    @classmethod
    def make(cls, directory: Path, size: int) -> Sample:
        """Make the repository of ``size`` files of about 2 kB, the same each time."""
        files = {_path(number): _contents(number) for number in range(size)}
        env = hermetic_env()
        run_git(["init", "-q", "--bare", "-b", "main", str(directory)], env=env)
        (directory / "config").write_text(_CONFIG)
        run_git(["fast-import", "--quiet", "--done"], env=env | {"GIT_DIR": str(directory)}, stdin=_stream(files), timeout=600)
        run_git(["repack", "-adqn", "--window=0"], env=env | {"GIT_DIR": str(directory)}, timeout=600)
        commit = run_git(["rev-parse", BRANCH], env=env | {"GIT_DIR": str(directory)}).decode().strip()
        return cls(directory, commit, files)

    def writes(self, turn: int, count: int = 20) -> dict[str, bytes]:
        """The agent's work of one turn: edits of ``count`` files, as far apart as they can be (the worst case for trees)."""
        paths = [*self.files]
        step = max(1, len(paths) // count)
        return {path: _edited(self.files[path], turn) for path in paths[::step][:count]}

    def copy(self, directory: Path) -> Copy:
        """A repository of its own with the same objects."""
        shutil.copytree(self.directory, directory, copy_function=os.link)
        for name in ("config", "HEAD"):  # the only files that anyone writes to in place
            os.unlink(directory / name)
        (directory / "HEAD").write_text(f"ref: {BRANCH}\n")
        (directory / "config").write_text(_CONFIG)
        copy = Copy(directory, self.commit, frozenset(os.listdir(directory / "objects" / "pack")))
        copy.reset()
        return copy


@dataclass(frozen=True)
class Copy:
    """A durable repository of one variant.

    Attributes:
        directory: it, bare.
        commit: the baseline that ``reset`` puts it back to.
        packs: the files of its packs when it was made.
    """

    directory: Path
    commit: str
    packs: frozenset[str]

    def reset(self) -> None:
        """Put the branch back and take away every object that came since."""
        refs = self.directory / "refs" / "heads"
        refs.mkdir(parents=True, exist_ok=True)
        (refs / "main").write_text(f"{self.commit}\n")
        (self.directory / "packed-refs").unlink(missing_ok=True)
        objects = self.directory / "objects"
        for name in set(os.listdir(objects / "pack")) - self.packs:
            os.unlink(objects / "pack" / name)
        for name in os.listdir(objects):
            if len(name) == 2:
                shutil.rmtree(objects / name)
        shutil.rmtree(self.directory / "worktrees", ignore_errors=True)


def _path(number: int) -> str:
    directory = number // _PER_DIRECTORY
    return f"part{directory // _PER_DIRECTORY:03}/module{directory:04}/file{number:05}.py"


def _contents(number: int) -> bytes:
    draw = random.Random(number)
    lines: list[str] = []
    size = 0
    while size < _FILE_SIZE:
        line = " " * draw.choice((0, 4, 8)) + " ".join(draw.choices(_WORDS, k=draw.randint(3, 9)))
        lines.append(line)
        size += len(line) + 1
    return ("\n".join(lines) + "\n").encode()


def _edited(data: bytes, turn: int) -> bytes:
    lines = data.split(b"\n")
    middle = len(lines) // 2
    return b"\n".join([*lines[:middle], b"# edited in turn %d" % turn, *lines[middle + 2 :]])


def _stream(files: Mapping[str, bytes]) -> bytes:
    parts = [b"commit %s\ncommitter Sample <sample@example.com> 1700000000 +0000\ndata 7\nsample\n\n" % BRANCH.encode()]
    for path, data in files.items():
        parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(data), data))
    parts.append(b"done\n")
    return b"".join(parts)
