"""The git repository of a run: every base, final and promoted tree, each object once, with references to them.

Objects are named by their content, so equal samples share objects, a kill leaves whole objects or none, and ``git diff`` works between
any two. Objects are written without git, because one call of ``git`` takes longer than writing all objects of a sample.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, PathNotFound
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import DIRECTORY, SUBMODULE, Entry, Item, flatten, parse_tree
from pytest_gittrix.os_level.files import PUBLIC, write_file

REFS: Final = "refs/gx"
_CONFIG: Final = (
    "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
)

Read = Callable[[str], tuple[str, bytes]]
"""Returns kind and data of an object."""


class ObjectStore:
    """A bare repository that objects are put into one by one.

    Args:
        path: the repository, which ``create`` makes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._objects = str(path / "objects")
        self._repository: libgit2.Repository | None = None

    @classmethod
    def create(cls, path: Path) -> ObjectStore:
        """Make the repository, or complete one that a kill left half made."""
        for name in ("objects/pack", "objects/info", "refs/heads", "refs/tags"):
            (path / name).mkdir(parents=True, exist_ok=True)
        for name, text in (("config", _CONFIG), ("HEAD", "ref: refs/heads/main\n")):
            if not (path / name).exists():
                write_file(str(path / name), text.encode(), mode=PUBLIC)
        return cls(path)

    def add(self, objects: Mapping[str, tuple[str, bytes]]) -> None:
        """Add objects, given as kind and data by id; existing objects stay as they are."""
        for id_, (kind, data) in objects.items():
            directory, path = f"{self._objects}/{id_[:2]}", f"{self._objects}/{id_[:2]}/{id_[2:]}"
            if os.path.exists(path):
                continue
            os.makedirs(directory, exist_ok=True)
            write_file(path, zlib.compress(b"%s %d\0%b" % (kind.encode(), len(data), data), 1), mode=0o444)

    def add_packs(self, packs: Iterable[str]) -> None:
        """Copy packs of another repository, given as paths without suffix; existing packs stay as they are."""
        for stem in packs:
            target = f"{self._objects}/pack/{os.path.basename(stem)}"
            if os.path.exists(f"{target}.idx"):
                continue
            for end in (".pack", ".idx"):  # the index last: git reads only packs with an index
                with open(stem + end, "rb") as file:
                    write_file(target + end, file.read(), mode=0o444)

    def point(self, name: str, references: Mapping[str, str]) -> None:
        """Make references to objects.

        Args:
            name: the directory of the references, below ``refs/gx``.
            references: ids of commits or trees by the last part of the reference's name.
        """
        directory = f"{self.path}/{REFS}/{name}"
        os.makedirs(directory, exist_ok=True)
        for last, id_ in references.items():
            write_file(f"{directory}/{last}", f"{id_}\n".encode(), mode=PUBLIC)

    def read(self, id_: str) -> tuple[str, bytes]:
        """Kind and data of an object.

        Raises:
            AdapterUnavailable: the object is missing, or the repository is damaged.
        """
        kinds = {libgit2.ObjectType.COMMIT: "commit", libgit2.ObjectType.TREE: "tree", libgit2.ObjectType.BLOB: "blob"}
        try:
            kind, data = self._opened().odb.read(id_)
        except (libgit2.GitError, KeyError, ValueError) as problem:
            raise AdapterUnavailable(f"{self.path} does not hold {id_}: {problem}.", fix="Restore the run's objects.git.") from None
        return kinds.get(kind, "tag"), bytes(data)

    def has(self, id_: str) -> bool:
        """Whether there is an object of that id. Raises AdapterUnavailable if the repository cannot be read."""
        return id_ in self._opened().odb

    def tree(self, id_: str) -> dict[str, Entry]:
        """Every entry of a tree, or of a commit's tree, by path. Raises AdapterUnavailable as ``read`` does."""
        return flatten(self._items, self._tree_of(id_))

    def file(self, id_: str, path: str) -> bytes:
        """The bytes of a file of a tree or commit.

        Raises:
            PathNotFound: there is no such file.
        """
        entry = self.tree(id_).get(path)
        if entry is None or entry.mode == SUBMODULE:
            raise PathNotFound(f"There is no file {path!r} in {id_}.", fix="Look at tree() for those there are.")
        return self.read(entry.id)[1]

    def _opened(self) -> libgit2.Repository:
        if self._repository is None:
            try:
                self._repository = libgit2.Repository(str(self.path))
            except libgit2.GitError as problem:
                raise AdapterUnavailable(f"{self.path} cannot be read: {problem}.", fix="Restore the run's objects.git.") from None
        return self._repository

    def _tree_of(self, id_: str) -> str:
        kind, data = self.read(id_)
        if kind == "commit":
            return parse_commit(id_, data).tree
        if kind != "tree":
            raise InvalidInput(f"{id_} is a {kind}.", fix="Give the id of a commit or a tree.")
        return id_

    def _items(self, id_: str) -> dict[bytes, Item]:
        return parse_tree(self.read(id_)[1], SHA1.size)


def new_objects(read: Read, tip: str, known: str) -> dict[str, tuple[str, bytes]]:
    """The objects that a commit reaches and one of its ancestors does not; the cost is proportional to the difference.

    Args:
        read: reads objects of the repository that has them all.
        tip: the commit.
        known: its ancestor along first parents.
    """
    found: dict[str, tuple[str, bytes]] = {}
    base = parse_commit(known, read(known)[1]).tree
    while tip != known:
        found[tip] = read(tip)
        commit = parse_commit(tip, found[tip][1])
        _collect(read, commit.tree, base, found)
        if not commit.parents:
            break
        tip = commit.parents[0]
    return found


def _collect(read: Read, tree: str, base: str | None, found: dict[str, tuple[str, bytes]]) -> None:
    if tree == base or tree in found:
        return
    found[tree] = read(tree)
    before = parse_tree(read(base)[1], SHA1.size) if base is not None else {}
    for name, (mode, id_) in parse_tree(found[tree][1], SHA1.size).items():
        old = before.get(name)
        if mode == DIRECTORY:
            _collect(read, id_, old[1] if old is not None and old[0] == DIRECTORY else None, found)
        elif mode != SUBMODULE and (old is None or old[1] != id_):
            found[id_] = read(id_)


def packs_of(repository: Repository) -> tuple[str, ...]:
    """The packs of a new repository, which hold its base, by their paths without suffix."""
    directory = os.path.join(repository.objects_dir, "pack")
    return tuple(os.path.join(directory, name.removesuffix(".idx")) for name in sorted(os.listdir(directory)) if name.endswith(".idx"))
