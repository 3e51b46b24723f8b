"""Read the repository that an agent worked in as plain files, to find the work in it.

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

from pytest_gittrix.errors import AdapterUnavailable, GittrixError, UnsupportedRepository, WriteRejected
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.pack import ids_in_index
from pytest_gittrix.os_level.files import names_in
from pytest_gittrix.os_level.safe_dir import SafeDir

_LARGEST: Final = 256 << 20
_HEADS: Final = "refs/heads/"
_ORIGIN: Final = "refs/remotes/origin/"
_STASH: Final = "refs/stash"
_WORK_TREES: Final = "worktrees"
_FAN: Final = re.compile(r"[0-9a-f]{2}")
_PSEUDO: Final = re.compile(r"[A-Z][A-Z_]*")
_MOST_LOGGED: Final = 1000
LFS_OBJECTS: Final = "lfs/objects"
"""Where git-lfs keeps file contents, which commits hold only the names of."""

_OTHER_STORES: Final = (LFS_OBJECTS, "modules", "annex/objects")


@dataclass(frozen=True, slots=True)
class LinkedWorkTree:
    """What an agent's repository knows of a work tree that was added to it.

    Attributes:
        name: its name.
        heads: ids by the names that only it has, such as ``HEAD`` and ``refs/bisect/bad``.
        logged: every id that the log of its HEAD names, newest first.
        index: its index; None if only git can read it.
    """

    name: str
    heads: Mapping[str, str]
    logged: tuple[str, ...]
    index: IndexFile | None


@dataclass(frozen=True, slots=True)
class AgentRepository:
    """The contents of an agent's repository, as its own files describe it.

    Attributes:
        branch: the branch that HEAD is on; None if HEAD is detached.
        commit: the commit that HEAD is at; None on a branch without a commit.
        references: the object of every reference, by full name.
        heads: ids by the names of what is no reference, such as ``ORIG_HEAD`` and ``FETCH_HEAD``.
        stashes: every stash, newest first.
        logged: every id that a reflog names, newest first in each, at most a thousand of each.
        work_trees: the work trees that were added to it.
        objects: ids of all objects in the repository's own store, without those of its alternates.
        packed: whether some of these are in packs.
        exclude: contents of ``info/exclude``.
        shallow: commits whose parents are missing.
        other_stores: directories of the git directory that hold work which no commit of this repository reaches: contents of git-lfs
            or git-annex, repositories of submodules.
        problems: what could not be read, each as a sentence.
        index: the index, empty if there is none; None if only git can read its format.
    """

    branch: str | None
    commit: str | None
    references: Mapping[str, str]
    heads: Mapping[str, str]
    stashes: tuple[str, ...]
    logged: tuple[str, ...]
    work_trees: tuple[LinkedWorkTree, ...]
    objects: frozenset[str]
    packed: bool
    exclude: bytes
    shallow: tuple[str, ...]
    other_stores: tuple[str, ...]
    problems: tuple[str, ...]
    index: IndexFile | None

    @property
    def branches(self) -> dict[str, str]:
        """The commit of each branch, by short name."""
        return self._below(_HEADS)

    @property
    def remotes(self) -> dict[str, str]:
        """The commit of each remote-tracking branch of ``origin``, by short name. The agent can have written anything there."""
        return self._below(_ORIGIN)

    def _below(self, prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): id_ for name, id_ in self.references.items() if name.startswith(prefix)}

    def may_be_deleted(self, path: str) -> bool:
        """Whether a missing tracked file can have been deleted: one that git does not check out was not."""
        return self.index is not None and not any(entry.skip_worktree for entry in self.index.entries(path))


def read_repository(
    root: str,
    format_: ObjectFormat,
    *,
    known_packs: Collection[str] = (),
    on_step: Callable[[], object] = lambda: None,
) -> AgentRepository:
    """Read the repository whose work tree is ``root``.

    Args:
        root: the work tree.
        format_: its object format.
        known_packs: names of packs whose objects are left out of ``objects``.
        on_step: called for each file that is found; may raise to end the reading.

    Raises:
        UnsupportedRepository: ``.git`` is not a plain directory, or references are not kept as files.
    """
    git_dir = os.path.join(root, ".git")
    if not stat.S_ISDIR(os.lstat(git_dir).st_mode):
        raise _unsupported(root, "its .git is no directory")
    with SafeDir.open(git_dir) as git:
        if git.lstat("reftable") is not None:
            raise _unsupported(root, "it keeps references as a reftable")
        reader = _Reader(git_dir, git, format_, on_step)
        references = reader.references()
        branch, commit = reader.head(references)
        index = reader.index("index")
        loose, packed = [*reader.loose_objects()], [*reader.packed_objects(known_packs)]
        return AgentRepository(
            branch,
            commit,
            references,
            reader.heads("", references),
            reader.stashes(references),
            reader.logged(),
            reader.work_trees(references),
            frozenset([*loose, *packed]),
            bool(packed),
            reader.bytes("info/exclude") or b"",
            tuple(line for line in reader.text("shallow").split() if reader.is_id(line)),
            tuple(directory for directory in _OTHER_STORES if reader.holds_files(directory)),
            tuple(reader.problems),
            index,
        )


def read_linked(git_dir: str, format_: ObjectFormat, *, unchanged_index: bytes = b"") -> LinkedWorkTree:
    """Read the git directory of a linked work tree, in the repository that it belongs to.

    Args:
        git_dir: the directory.
        format_: the object format.
        unchanged_index: the index in which nothing is staged; one with the same bytes is read as an empty one.

    Raises:
        FileNotFoundError: it is gone.
        AdapterUnavailable: a file in it cannot be read.
    """
    with SafeDir.open(git_dir) as git:
        reader = _Reader(git_dir, git, format_, lambda: None, unchanged_index)
        found = reader.work_tree(os.path.basename(git_dir), "", {})
        if reader.problems:
            raise AdapterUnavailable(
                reader.problems[0], why="It may lead to work that is in no file.", fix="Look into it by hand: it is kept."
            )
        return found


class _Reader:
    """Reads the files of one git directory, and notes the problems it meets."""

    def __init__(self, path: str, git: SafeDir, format_: ObjectFormat, on_step: Callable[[], object], unchanged_index: bytes = b"") -> None:
        self._path, self._git, self._format, self._on_step, self._unchanged_index = path, git, format_, on_step, unchanged_index
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

    def references(self) -> dict[str, str]:
        """Every reference with its object, sorted. A loose reference takes precedence over a packed one."""
        refs = self._packed() | dict(self._loose("refs"))
        for name, value in refs.items():
            refs[name] = refs.get(value.removeprefix("ref: "), value)  # a symbolic reference to another one
        return {name: id_ for name, id_ in sorted(refs.items()) if self.is_id(id_)}

    def _packed(self) -> dict[str, str]:
        lines = (line.split(" ", 1) for line in self.text("packed-refs").splitlines() if line[:1] not in ("#", "^", ""))
        return {parts[1]: parts[0] for parts in lines if len(parts) == 2}

    def _loose(self, directory: str) -> Iterator[tuple[str, str]]:
        for path in self._files(directory):
            if path.endswith(".lock"):
                continue
            text = self.text(path).strip()
            if self.is_id(text) or text.startswith("ref: refs/"):
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

    def head(self, references: Mapping[str, str]) -> tuple[str | None, str | None]:
        """The branch that HEAD is on, and the commit; either may be None."""
        text = self.text("HEAD").strip()
        if self.is_id(text):
            return None, text
        ref = text.removeprefix("ref:").strip()
        if not text.startswith("ref:") or not ref.startswith(_HEADS):
            self.problems.append(f"HEAD holds {text[:80]!r}, which is neither a commit nor a branch.")
            return None, None
        return ref.removeprefix(_HEADS), references.get(ref)

    def heads(self, prefix: str, references: Mapping[str, str]) -> dict[str, str]:
        """The ids in files such as ``ORIG_HEAD`` below a prefix; several of one file are numbered."""
        found: dict[str, str] = {}
        for name in sorted(filter(_PSEUDO.fullmatch, names_in(os.path.join(self._path, prefix)))):
            text = self.text(prefix + name)
            text = references.get(text.removeprefix("ref:").strip(), text)
            ids = [line.split()[0] for line in text.splitlines() if line.split() and self.is_id(line.split()[0])]
            found |= {name if not number else f"{name}-{number}": id_ for number, id_ in enumerate(dict.fromkeys(ids))}
        return found

    def stashes(self, references: Mapping[str, str]) -> tuple[str, ...]:
        """Every stash, newest first: the newest is a reference, the others are lines of its reflog."""
        return tuple(dict.fromkeys(id_ for id_ in (references.get(_STASH, ""), *self._log(f"logs/{_STASH}")) if self.is_id(id_)))

    def logged(self) -> tuple[str, ...]:
        """Every id that a reflog of the repository names, newest first in each."""
        return tuple(dict.fromkeys(id_ for path in self._files("logs") for id_ in self._log(path)))

    def _log(self, path: str) -> list[str]:
        """The ids that one reflog names, newest first."""
        lines = (line.split(" ", 2)[:2] for line in reversed(self.text(path).splitlines()))
        return [*dict.fromkeys(id_ for line in lines for id_ in reversed(line) if self.is_id(id_))][:_MOST_LOGGED]

    def work_trees(self, references: Mapping[str, str]) -> tuple[LinkedWorkTree, ...]:
        """The work trees that were added to the repository, also those that are gone."""
        names = dict.fromkeys(path.split("/")[1] for path in self._files(_WORK_TREES) if path.count("/") > 1)
        return tuple(self.work_tree(name, f"{_WORK_TREES}/{name}/", references) for name in names)

    def work_tree(self, name: str, prefix: str, references: Mapping[str, str]) -> LinkedWorkTree:
        """What the files below a prefix say of an added work tree."""
        heads = self.heads(prefix, references)
        own = {ref.removeprefix(prefix): id_ for ref, id_ in self._loose(f"{prefix}refs") if self.is_id(id_)}
        return LinkedWorkTree(name, {**heads, **own}, tuple(self._log(f"{prefix}logs/HEAD")), self.index(f"{prefix}index"))

    def loose_objects(self) -> Iterator[str]:
        """The ids of the store's loose objects."""
        for path in self._files("objects"):
            parts = path.split("/")
            if len(parts) == 3 and _FAN.fullmatch(parts[1]) and self.is_id(parts[1] + parts[2]):
                yield parts[1] + parts[2]

    def packed_objects(self, known_packs: Collection[str]) -> Iterator[str]:
        """The ids of the store's packed objects, but for those of known packs."""
        for path in self._files("objects/pack"):
            if path.endswith(".idx") and f"{path.rpartition('/')[2].removesuffix('.idx')}.pack" not in known_packs:
                data = self.bytes(path)
                try:
                    yield from ids_in_index(data, self._format) if data is not None else ()
                except ValueError as error:
                    self.problems.append(f".git/{path} cannot be read: {error}.")

    def index(self, path: str) -> IndexFile | None:
        """An index; None if only git can read its format."""
        data = self.bytes(path) or b""
        try:
            return IndexFile(b"" if data == self._unchanged_index else data, self._format)
        except (UnsupportedRepository, ValueError, IndexError, struct.error):
            return None


def _unsupported(root: str, what: str) -> UnsupportedRepository:
    return UnsupportedRepository(
        f"{root} cannot be read: {what}.",
        why="The engine reads an agent's repository as plain files, since running git in it could start the agent's programs.",
        fix="Look into it by hand; it stays where it is.",
    )
