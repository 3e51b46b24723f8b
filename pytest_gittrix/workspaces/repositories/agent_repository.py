"""Read the repository that an agent worked in as plain files, to find what has to be rescued from it.

The engine never runs git in an agent's ``.git`` and reads no configuration there: both can start programs of the agent's choosing
(rule 6, docs/explanation/rules.md). References, reflogs and the index are small files in known formats; ``alternates`` reads the objects.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.errors import GitFailed, GittrixError, UnsupportedRepository, WriteRejected
from pytest_gittrix.git.environment import run_git
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.os_level.safe_dir import SafeDir

_LARGEST: Final = 256 << 20
_HEADS: Final = "refs/heads/"
_ORIGIN: Final = "refs/remotes/origin/"
_STASH: Final = "refs/stash"
_FAN: Final = re.compile(r"[0-9a-f]{2}")
LFS_OBJECTS: Final = "lfs/objects"
"""Where git-lfs keeps file contents, which commits hold only the names of."""

_OTHER_STORES: Final = (LFS_OBJECTS, "modules", "annex/objects")
_BARE: Final = frozenset({"HEAD", "objects", "refs"})


@dataclass(frozen=True, slots=True)
class AgentRepository:
    """The contents of an agent's repository, as its own files describe it.

    Attributes:
        branch: the branch that HEAD is on; None if HEAD is detached.
        commit: the commit that HEAD is at; None on a branch without a commit.
        branches: the commit of each branch, by short name.
        remotes: the commit of each remote-tracking branch of ``origin``. The agent can have written anything there.
        stashes: every stash, newest first.
        objects: ids of all objects in the repository's own store, without those of its alternates.
        exclude: contents of ``info/exclude``.
        shallow: commits whose parents are missing.
        other_stores: directories of the git directory that hold work which no commit of this repository reaches: contents of git-lfs
            or git-annex, repositories of submodules.
        problems: what could not be read, each as a sentence.
    """

    branch: str | None
    commit: str | None
    branches: Mapping[str, str]
    remotes: Mapping[str, str]
    stashes: tuple[str, ...]
    objects: frozenset[str]
    exclude: bytes
    shallow: tuple[str, ...]
    other_stores: tuple[str, ...]
    problems: tuple[str, ...]
    _index: IndexFile | None

    def may_be_deleted(self, path: str) -> bool:
        """Whether a missing tracked file can have been deleted: one that git was told not to check out was not."""
        return self._index is not None and not any(entry.skip_worktree for entry in self._index.entries(path))

    @property
    def has_known_index(self) -> bool:
        """Whether there is no index, or one that can be read here."""
        return self._index is not None

    def staged(self) -> Iterator[tuple[str, str]]:
        """Every path of the index, with the id of what is staged for it."""
        if self._index is not None:
            yield from self._index.staged()


def walk(root: str, *, unread: Callable[[str], object] = lambda _directory: None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a directory tree as ``os.walk`` does, without recursion: an agent may have made it deeper than Python's recursion limit.

    Args:
        root: the directory. Links below it are not followed.
        unread: called with a directory that cannot be listed. One that has vanished is skipped silently.

    Yields:
        A directory, the names of its subdirectories (remove a name from the list to skip it), and the names of everything else in it.
    """
    pending = [root]
    while pending:
        parent = pending.pop()
        directories: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(parent) as entries:
                for entry in entries:
                    (directories if _is_directory(entry) else names).append(entry.name)
        except FileNotFoundError:
            continue
        except OSError:
            unread(parent)
            continue
        yield parent, directories, names
        below = (os.path.join(parent, name) for name in reversed(directories))
        pending.extend(path for path in below if not os.path.islink(path))


def files_below(root: str) -> Iterator[str]:
    """The path of everything below a directory except directories. No link is followed; a directory that cannot be listed is skipped."""
    for parent, _, names in walk(root):
        for name in names:
            yield os.path.join(parent, name)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a loop of links


def find_repositories(root: str) -> list[str]:
    """The paths below a directory of everything that looks like a repository, bare ones too, relative and sorted.

    Links are not followed. A directory outside these repositories that cannot be listed counts as one, since it may contain one.
    """
    found: list[str] = []

    def unread(directory: str) -> None:
        here = os.path.relpath(directory, root)
        if here != "." and not any(path == "." or here.startswith(f"{path}/") for path in found):
            found.append(here)

    for parent, directories, names in walk(root, unread=unread):
        here = os.path.relpath(parent, root)
        if ".git" in directories or ".git" in names:
            found.append(here)
        if ".git" in directories:
            directories.remove(".git")
        elif {*directories, *names} >= _BARE:
            found.append(here)
            directories.clear()
    return sorted(found)


def read_repository(
    root: str,
    format_: ObjectFormat,
    *,
    known_packs: Collection[str] = (),
    timeout: float = 60.0,
    on_step: Callable[[], object] = lambda: None,
) -> AgentRepository:
    """Read the repository whose work tree is ``root``.

    Args:
        root: the work tree.
        format_: its object format.
        known_packs: names of packs whose objects are left out of ``objects``.
        timeout: seconds that one git program, which lists the ids in a pack, may take.
        on_step: called for each file that is found; may raise to end the reading.

    Raises:
        UnsupportedRepository: ``.git`` is not a plain directory, or references are not kept as files.
        AdapterUnavailable: the index of a pack cannot be read.
    """
    git_dir = os.path.join(root, ".git")
    if not stat.S_ISDIR(os.lstat(git_dir).st_mode):
        raise _unsupported(root, "its .git is no directory")
    with SafeDir.open(git_dir) as git:
        if git.lstat("reftable") is not None:
            raise _unsupported(root, "it keeps references as a reftable")
        reader = _Reader(git, format_, on_step)
        branches = reader.branches()
        branch, commit = reader.head(branches)
        index = reader.index()  # before the problems are counted, of which it can be one
        return AgentRepository(
            branch,
            commit,
            branches,
            reader.remotes(),
            reader.stashes(),
            frozenset(reader.objects(timeout, known_packs)),
            reader.bytes("info/exclude") or b"",
            tuple(line for line in reader.text("shallow").split() if reader.is_id(line)),
            tuple(directory for directory in _OTHER_STORES if reader.holds_files(directory)),
            tuple(reader.problems),
            index,
        )


class _Reader:
    """Reads the files of one git directory, and notes the problems it meets."""

    def __init__(self, git: SafeDir, format_: ObjectFormat, on_step: Callable[[], object]) -> None:
        self._git, self._format, self._on_step = git, format_, on_step
        self._id = re.compile(rf"[0-9a-f]{{{format_.hex_size}}}")
        self.problems: list[str] = []

    def is_id(self, text: str) -> bool:
        """Whether a text is the id of an object."""
        return self._id.fullmatch(text) is not None and text != self._format.zero

    def bytes(self, path: str) -> bytes | None:
        """The bytes of a small file; None if there is no such file."""
        try:
            return self._git.read(path, max_bytes=_LARGEST)[0]
        except FileNotFoundError:
            return None
        except WriteRejected as error:
            self.problems.append(f".git/{path} cannot be read: {error.fact}.")
            return None

    def text(self, path: str) -> str:
        """The text of a small file; empty if there is no such file."""
        return os.fsdecode(self.bytes(path) or b"")

    def branches(self) -> dict[str, str]:
        """Every branch with its commit. A loose reference takes precedence over a packed one."""
        refs = self._packed() | dict(self._loose())
        for name, value in refs.items():
            refs[name] = refs.get(value.removeprefix("ref: "), value)  # a symbolic reference to another branch
        return self._commits_below(_HEADS, refs)

    def remotes(self) -> dict[str, str]:
        """Every remote-tracking branch of ``origin`` with its commit."""
        refs = self._packed() | {path: self.text(path).strip() for path in self._files(_ORIGIN.rstrip("/"))}
        return self._commits_below(_ORIGIN, refs)

    def _commits_below(self, prefix: str, refs: Mapping[str, str]) -> dict[str, str]:
        return {name.removeprefix(prefix): id_ for name, id_ in sorted(refs.items()) if name.startswith(prefix) and self.is_id(id_)}

    def _packed(self) -> dict[str, str]:
        lines = (line.split(" ", 1) for line in self.text("packed-refs").splitlines() if line[:1] not in ("#", "^", ""))
        return {parts[1]: parts[0] for parts in lines if len(parts) == 2}

    def _loose(self) -> Iterator[tuple[str, str]]:
        for path in self._files("refs/heads"):
            if path.endswith(".lock"):
                continue
            text = self.text(path).strip()
            if self.is_id(text) or text.startswith(f"ref: {_HEADS}"):
                yield path, text
            else:
                self.problems.append(f"{path} holds {text[:80]!r}, which is no commit.")

    def _files(self, directory: str) -> list[str]:
        paths: list[str] = []
        try:
            for found in self._git.scan(directory):
                self._on_step()
                if not found.is_dir:
                    paths.append(found.path)
            return paths
        except FileNotFoundError:
            return []
        except GittrixError as error:
            self.problems.append(f".git/{directory} cannot be read: {error.fact}.")
            return []

    def holds_files(self, directory: str) -> bool:
        """Whether a directory has a file anywhere below it."""
        return bool(self._files(directory))

    def head(self, branches: Mapping[str, str]) -> tuple[str | None, str | None]:
        """The branch that HEAD is on, and the commit; either may be None."""
        text = self.text("HEAD").strip()
        if self.is_id(text):
            return None, text
        ref = text.removeprefix("ref:").strip()
        if not text.startswith("ref:") or not ref.startswith(_HEADS):
            self.problems.append(f"HEAD holds {text[:80]!r}, which is neither a commit nor a branch.")
            return None, None
        name = ref.removeprefix(_HEADS)
        return name, branches.get(name)

    def stashes(self) -> tuple[str, ...]:
        """Every stash, newest first: the newest is a reference, the others are lines of its reflog."""
        newest = self.text(_STASH).strip() or self._packed().get(_STASH, "")
        logged = [line.split(" ", 2)[1] for line in self.text(f"logs/{_STASH}").splitlines() if line.count(" ") >= 2]
        return tuple(dict.fromkeys(id_ for id_ in (newest, *reversed(logged)) if self.is_id(id_)))

    def objects(self, timeout: float, known_packs: Collection[str]) -> Iterator[str]:
        """The ids of the store's loose and packed objects, but for those of known packs."""
        for path in self._files("objects"):
            parts = path.split("/")
            if len(parts) == 3 and _FAN.fullmatch(parts[1]) and self.is_id(parts[1] + parts[2]):
                yield parts[1] + parts[2]
            elif parts[1] == "pack" and path.endswith(".idx") and f"{parts[-1].removesuffix('.idx')}.pack" not in known_packs:
                yield from self._packed_ids(path, timeout)

    def _packed_ids(self, path: str, timeout: float) -> Iterator[str]:
        data = self.bytes(path)
        if data is None:
            return
        try:
            listed = run_git(["show-index", f"--object-format={self._format.name}"], stdin=data, timeout=timeout)
        except GitFailed as error:
            self.problems.append(f".git/{path} cannot be read: {error.fact}")
            return
        yield from (line.split(b" ", 2)[1].decode() for line in listed.splitlines())

    def index(self) -> IndexFile | None:
        """The index; None if only git can read its format."""
        try:
            return IndexFile(self.bytes("index") or b"", self._format)
        except (UnsupportedRepository, ValueError, IndexError, struct.error):
            return None


def _unsupported(root: str, what: str) -> UnsupportedRepository:
    return UnsupportedRepository(
        f"{root} cannot be read: {what}.",
        why="The engine reads an agent's repository as plain files, since running git in it could start the agent's programs.",
        fix="Look into it by hand; it stays where it is.",
    )
