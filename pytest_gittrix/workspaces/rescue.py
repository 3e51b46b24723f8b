"""What is in a repository that an agent had to itself, read as plain files.

The engine never runs git in an agent's ``.git``, nor reads configuration there: both can start programs of the agent's choosing
(RELIABILITY 3.5). References, reflogs and the index are small files in known formats; objects are another module's (``borrowing``).
It must not know what is to become of what it finds.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.errors import GitFailed, GittrixError, UnsupportedRepository, WriteRejected
from pytest_gittrix.git.environment import run_git
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.os_level.safe_dir import GuardedDir

_LARGEST: Final = 256 << 20
_HEADS: Final = "refs/heads/"
_ORIGIN: Final = "refs/remotes/origin/"
_STASH: Final = "refs/stash"
_FAN: Final = re.compile(r"[0-9a-f]{2}")
LARGE_FILES: Final = "lfs/objects"
"""Where git-lfs keeps contents, of which commits hold the names only."""

_INSIDE: Final = (LARGE_FILES, "modules", "annex/objects")
_BARE: Final = frozenset({"HEAD", "objects", "refs"})


@dataclass(frozen=True, slots=True)
class Found:
    """What an agent's repository says of itself.

    Attributes:
        branch: the branch HEAD is on; None if it is detached.
        commit: where HEAD is; None on a branch that has no commit yet.
        branches: commit of each branch, by its short name.
        remotes: commit of each remote-tracking branch of ``origin``: what the agent's git saw there, or whatever else wrote it down.
        stashes: every stash, newest first.
        objects: ids of all objects in the repository's own store; what it borrows is not among them.
        exclude: what ``info/exclude`` holds.
        shallow: commits whose parents are left out.
        inside: the directories of the git directory that hold work which no commit of this repository leads to: contents of git-lfs
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
    inside: tuple[str, ...]
    problems: tuple[str, ...]
    _index: IndexFile | None

    def may_be_deleted(self, path: str) -> bool:
        """Whether a tracked file that is not there was deleted, as far as one can tell: one that was never checked out was not."""
        return self._index is not None and not any(entry.skip_worktree for entry in self._index.entries(path))


def walk(root: str, *, unread: Callable[[str], object] = lambda _directory: None) -> Iterator[tuple[str, list[str], list[str]]]:
    """What ``os.walk`` gives, however deep it goes: whoever made the tree may have made it deeper than a program can call itself.

    Args:
        root: the directory. Links are not followed below it.
        unread: called with a directory that cannot be listed, but for one that is gone.

    Yields:
        A directory, the names of those in it (to be shortened by who does not want them walked), and the names of all else in it.
    """
    pending = [root]
    while pending:
        parent = pending.pop()
        directories: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(parent) as entries:
                for entry in entries:
                    (directories if _leads_to_directory(entry) else names).append(entry.name)
        except FileNotFoundError:
            continue
        except OSError:
            unread(parent)
            continue
        yield parent, directories, names
        below = (os.path.join(parent, name) for name in reversed(directories))
        pending.extend(path for path in below if not os.path.islink(path))


def files_below(root: str) -> Iterator[str]:
    """The path of everything below a directory that is no directory itself. No link is followed, and what cannot be listed left out."""
    for parent, _, names in walk(root):
        for name in names:
            yield os.path.join(parent, name)


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads round in circles


def repositories_in(root: str) -> list[str]:
    """The places below a directory of all that looks like a repository, bare ones too, relative and sorted. No link is followed.

    A directory outside of them that cannot be listed is among them: nobody can say that there is none in it.
    """
    found: list[str] = []

    def unread(directory: str) -> None:
        here = os.path.relpath(directory, root)
        if here != "." and not any(place == "." or here.startswith(f"{place}/") for place in found):
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


def read(root: str, format_: ObjectFormat, *, timeout: float = 60.0) -> Found:
    """Read the repository whose work tree is ``root``.

    Args:
        root: the work tree.
        format_: how its ids look.
        timeout: seconds that a git program, which lists the ids in a pack, may take.

    Raises:
        UnsupportedRepository: ``.git`` is no plain directory, or keeps its references in another way.
        AdapterUnavailable: an index of a pack cannot be read.
    """
    place = os.path.join(root, ".git")
    if not stat.S_ISDIR(os.lstat(place).st_mode):
        raise _strange(root, "its .git is no directory")
    with GuardedDir.open(place) as git:
        if git.lstat("reftable") is not None:
            raise _strange(root, "it keeps references as a reftable")
        reader = _Reader(git, format_)
        branches = reader.branches()
        branch, commit = reader.head(branches)
        return Found(
            branch,
            commit,
            branches,
            reader.remotes(),
            reader.stashes(),
            frozenset(reader.objects(timeout)),
            reader.bytes("info/exclude") or b"",
            tuple(line for line in reader.text("shallow").split() if reader.is_id(line)),
            tuple(place for place in _INSIDE if reader.holds_files(place)),
            tuple(reader.problems),
            reader.index(),
        )


class _Reader:
    """One reading of one git directory."""

    def __init__(self, git: GuardedDir, format_: ObjectFormat) -> None:
        self._git, self._format = git, format_
        self._id = re.compile(rf"[0-9a-f]{{{format_.hex_size}}}")
        self.problems: list[str] = []

    def is_id(self, text: str) -> bool:
        """Whether it is the id of some object."""
        return self._id.fullmatch(text) is not None and text != self._format.zero

    def bytes(self, path: str) -> bytes | None:
        """A small file, or None if it is not there (or is no file)."""
        try:
            return self._git.read(path, max_bytes=_LARGEST)[0]
        except FileNotFoundError:
            return None
        except WriteRejected as error:
            self.problems.append(f".git/{path} cannot be read: {error.fact}.")
            return None

    def text(self, path: str) -> str:
        """The same as text; empty if it is not there."""
        return os.fsdecode(self.bytes(path) or b"")

    def branches(self) -> dict[str, str]:
        """Every branch with its commit. A loose reference goes before a packed one."""
        refs = self._packed() | dict(self._loose())
        for name, value in refs.items():
            refs[name] = refs.get(value.removeprefix("ref: "), value)  # one that is another name of another branch
        return {name.removeprefix(_HEADS): id_ for name, id_ in sorted(refs.items()) if name.startswith(_HEADS) and self.is_id(id_)}

    def remotes(self) -> dict[str, str]:
        """Every remote-tracking branch of ``origin`` with its commit."""
        refs = self._packed() | {path: self.text(path).strip() for path in self._files(_ORIGIN.rstrip("/"))}
        return {name.removeprefix(_ORIGIN): id_ for name, id_ in sorted(refs.items()) if name.startswith(_ORIGIN) and self.is_id(id_)}

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
        try:
            return [found.path for found in self._git.scan(directory) if not found.is_dir]
        except FileNotFoundError:
            return []
        except GittrixError as error:
            self.problems.append(f".git/{directory} cannot be read: {error.fact}.")
            return []

    def holds_files(self, directory: str) -> bool:
        """Whether there is any file below a directory."""
        return bool(self._files(directory))

    def head(self, branches: Mapping[str, str]) -> tuple[str | None, str | None]:
        """The branch HEAD is on, and its commit; either may be None."""
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
        """The newest stash is a reference, the others are lines of its reflog."""
        newest = self.text(_STASH).strip() or self._packed().get(_STASH, "")
        logged = [line.split(" ", 2)[1] for line in self.text(f"logs/{_STASH}").splitlines() if line.count(" ") >= 2]
        return tuple(dict.fromkeys(id_ for id_ in (newest, *reversed(logged)) if self.is_id(id_)))

    def objects(self, timeout: float) -> Iterator[str]:
        """The ids of the store's loose and packed objects."""
        for path in self._files("objects"):
            parts = path.split("/")
            if len(parts) == 3 and _FAN.fullmatch(parts[1]) and self.is_id(parts[1] + parts[2]):
                yield parts[1] + parts[2]
            elif parts[1] == "pack" and path.endswith(".idx"):
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
        """The index; None if it is of a kind that only git can read."""
        try:
            return IndexFile(self.bytes("index") or b"", self._format)
        except (UnsupportedRepository, ValueError, IndexError, struct.error):
            return None


def _strange(root: str, what: str) -> UnsupportedRepository:
    return UnsupportedRepository(
        f"{root} cannot be read: {what}.",
        why="The engine reads an agent's repository as plain files, since running git in it could start the agent's programs.",
        fix="Look into it by hand; it stays where it is.",
    )
