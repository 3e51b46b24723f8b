"""A seed: a baseline commit with its own copy of everything that a session may see.

A workspace thus shares no objects with durable, and a rewind with ``git gc --prune=now`` there takes nothing from a session (rule 6,
docs/explanation/rules.md).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.commit import Commit, parse_commit
from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.objects import ObjectFormat, Objects, Trees, object_format, open_objects
from pytest_gittrix.git.tree import DIRECTORY, SUBMODULE, Changes, Entry, TreeDirectories, TreeFiles, by_directory, changed_paths, flatten
from pytest_gittrix.workspaces.seeds.on_disk import (
    Replaced,
    ancestry,
    closure,
    commit_of,
    exact_packs,
    has_many_objects,
    listed_files,
    replaced_objects,
    seed_directory,
    template_index,
)

History = Literal["none", "full"] | int
_CACHED_BYTES: Final = 256 << 20
_CACHED_SEEDS: Final = 16


class _Blobs:
    """Contents of files that seeds have read, by id: one cache for all of them, since the next baseline has most files of the last."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self.get = self._data.get  # without a call in between, since a workspace asks for each of its files
        self._size = 0
        self._full_for = ""

    def put(self, id_: str, data: bytes, seed: str) -> None:
        """Keep a file that a seed has read. When there is no room, the next seed drops all, but no seed drops its own files."""
        if id_ in self._data:
            return
        if self._size + len(data) > _CACHED_BYTES:
            if self._full_for == seed:
                return
            self._data.clear()
            self._size, self._full_for = 0, seed
        if len(data) <= _CACHED_BYTES:
            self._data[id_] = data
            self._size += len(data)


blobs = _Blobs()
_roots: dict[str, str] = {}
"""The root trees of the commits that baselines were made from last, by the commit, which never has another one."""
_MOST_ROOTS: Final = 1024


def remember_root(commit: str, tree: str) -> str:
    """Keep the root tree of a commit, and return it."""
    if len(_roots) >= _MOST_ROOTS:
        _roots.clear()
    _roots[commit] = tree
    return tree


@dataclass(frozen=True)
class Seed:
    """A prepared baseline. Made by ``prepare_seed``.

    Attributes:
        directory: its directory; ``objects/`` below it is an object directory.
        commit: the baseline commit.
        format: its object format.
        history: how much history it holds.
        sync: whether what is made of it later is written through to the disk.
    """

    directory: str
    commit: str
    format: ObjectFormat
    history: History
    sync: bool = field(default=True, repr=False, compare=False)

    @cached_property
    def objects(self) -> Objects:
        """Reader of its objects."""
        return open_objects(Path(self.objects_dir), self.format, at_once=False)  # others have read most of what is asked for

    @cached_property
    def trees(self) -> Trees:
        """Its parsed trees."""
        return Trees(self.objects)

    @property
    def objects_dir(self) -> str:
        """Its object directory, which may hold more than the baseline: only what reads by paths of the baseline's tree may use it."""
        return os.path.join(self.directory, "objects")

    @cached_property
    def root(self) -> str:
        """The baseline's root tree."""
        return self.baseline.tree

    @cached_property
    def baseline(self) -> Commit:
        """The baseline commit, parsed."""
        return parse_commit(self.commit, self.objects.read(self.commit)[1])

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Every file, symlink and submodule of the baseline, by path, in git's order; from the seed's index or, without one, its trees."""
        listed = listed_files(self.directory, self.format)
        if listed is not None:
            return listed
        files = TreeFiles(self.trees.read, self.root)
        return files if has_many_objects(self.directory) else files.all()

    @cached_property
    def directories(self) -> Mapping[str, Mapping[str, Entry]]:
        """The baseline's files by directory ('' is the root) and name; parents come before their children."""
        files = self.entries
        return TreeDirectories(self.trees.read, self.root, files) if isinstance(files, TreeFiles) else by_directory(files)

    def read_all(self) -> None:
        """Read the list of all files now, for somebody who looks at each: that takes less time than to look them up one by one."""
        for listing in (self.entries, self.directories):
            if isinstance(listing, (TreeFiles, TreeDirectories)):
                listing.all()

    def files_below(self, directory: str) -> list[str]:
        """Every path of the baseline below a directory; none if it has no such directory. The cost grows with what is below it."""
        tree = self.root
        for name in directory.split("/") if directory else ():
            mode, tree = self.trees.read(tree).get(os.fsencode(name), (0, ""))
            if mode != DIRECTORY:
                return []
        prefix = f"{directory}/" if directory else ""
        return [prefix + path for path in flatten(self.trees.read, tree)]

    def differences(self, newer: Seed) -> dict[str, tuple[Entry | None, Entry | None]]:
        """Every path whose entry differs in another baseline, with its entry here and there. The cost grows with what differs."""
        return changed_paths(self.trees.read, self.root, newer.root, read_new=newer.trees.read)

    @cached_property
    def has_submodules(self) -> bool:
        """Whether the baseline has a submodule."""
        return any(entry.mode == SUBMODULE for entry in self.entries.values())

    @cached_property
    def ignore(self) -> Ignore:
        """The ignore rules of the baseline's own ``.gitignore`` files."""
        if isinstance(self.entries, TreeFiles):
            return Ignore(_IgnoreFiles(self))
        named = (path for path in self.entries if path.rpartition("/")[2] == ".gitignore")
        return Ignore({path.rpartition("/")[0]: data for path in named if (data := self.rules_file(path)) is not None})

    def rules_file(self, path: str) -> bytes | None:
        """The bytes of a ``.gitignore`` or ``.gitattributes``; None if there is none, or a link, which git passes over too."""
        entry = self.entries.get(path)
        return self.blob(entry.id) if entry is not None and entry.kind in ("file", "executable") else None

    def blob(self, id_: str) -> bytes:
        """A file's bytes; the contents of a small repository are cached completely."""
        cached = blobs.get(id_)
        if cached is not None:
            return cached
        data = self.objects.read(id_)[1]
        blobs.put(id_, data, self.directory)
        return data

    @cached_property
    def pack_dir(self) -> str:
        """A directory with one pack of exactly what a workspace may see, and the pack's index."""
        return exact_packs(self.directory, self._closure, self._replaced_since, self._read, self.format, sync=self.sync)

    def _read(self, id_: str) -> tuple[str, bytes]:
        return self.objects.read(id_)  # opened when it is needed, which loads libgit2

    def _closure(self) -> list[str]:
        return closure(self.trees.read, {self.commit: self.root})

    def _replaced_since(self, ancestor: str) -> Replaced | None:
        commit = commit_of(ancestor)
        found = replaced_objects(self.trees.read, self._root_of(commit), self.root, self.entries)
        return None if found is None else Replaced(found.gone | {commit}, found.new | {self.commit})

    @property
    def exact_objects_dir(self) -> str:
        """The object directory that ``pack_dir`` is of, which other repositories may borrow."""
        return os.path.dirname(self.pack_dir)

    @cached_property
    def packs(self) -> tuple[str, ...]:
        """The file names in ``pack_dir``."""
        return tuple(sorted(os.listdir(self.pack_dir)))

    @cached_property
    def small_files(self) -> Mapping[str, bytes] | None:
        """Contents of the files in ``pack_dir`` by name; None if they are large."""
        if sum(os.path.getsize(os.path.join(self.pack_dir, name)) for name in self.packs) > 1 << 20:
            return None
        return {name: Path(self.pack_dir, name).read_bytes() for name in self.packs}

    @cached_property
    def index(self) -> bytes:
        """An index file by which every freshly written file of the baseline is unchanged (``core.checkStat=minimal``)."""
        return template_index(self.directory, self.trees.read, lambda: self.entries, self._root_of, self.objects.size, self.format)

    def _root_of(self, commit: str) -> str:
        known = _roots.get(commit)
        return remember_root(commit, parse_commit(commit, self.objects.read(commit)[1]).tree) if known is None else known

    def nearest_with(self, name: str) -> tuple[str, Changes] | None:
        """The directory of a name in the nearest seed that this one comes from and that has it, and what has changed since that seed."""
        for ancestor in ancestry(self.directory):
            found = os.path.join(os.path.dirname(self.directory), ancestor, name)
            if os.path.isdir(found):
                changed = changed_paths(self.trees.read, self._root_of(commit_of(ancestor)), self.root)
                return found, {path: after for path, (_, after) in changed.items()}
        return None

    def size(self, path: str) -> int:
        """How many bytes a file of the baseline has."""
        return self.objects.size(self.entries[path].id)

    @cached_property
    def shallow(self) -> str:
        """Contents of a ``shallow`` file: the commits whose parents are missing."""
        return Path(self.directory, "shallow").read_text()


class _IgnoreFiles(Mapping[str, bytes]):
    """The ``.gitignore`` files of a large baseline by their directories, each read when it is asked for."""

    def __init__(self, seed: Seed) -> None:
        self._seed = seed

    def __getitem__(self, directory: str) -> bytes:
        data = self._seed.rules_file(f"{directory}/.gitignore" if directory else ".gitignore")
        if data is None:
            raise KeyError(directory)
        return data

    def __iter__(self) -> Iterator[str]:
        named = (path for path in self._seed.entries if path.rpartition("/")[2] == ".gitignore")
        return (path.rpartition("/")[0] for path in named if self._seed.rules_file(path) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # unknown before all are read


def check_history(history: object) -> History:
    """Validate a history policy.

    Raises:
        InvalidInput: it is neither ``"none"`` nor ``"full"`` nor a number of commits.
    """
    if history in ("none", "full") or (isinstance(history, int) and not isinstance(history, bool) and history >= 0):
        return history
    raise InvalidInput(
        f"history={history!r} is not a history policy.",
        why="It decides which past commits the agent can read.",
        fix="Use 'none' (the baseline alone), a number of further commits, or 'full'.",
    )


_recent: OrderedDict[str, tuple[tuple[int, int], Seed]] = OrderedDict()


def open_seed(seeds: str, commit: str, history: History, format_name: str) -> Seed | None:
    """Open the seed of a commit without a repository; None if the seed is not on disk."""
    directory = seed_directory(seeds, commit, history)
    if not os.path.exists(directory):
        return None
    return cached_seed(directory, commit, object_format(format_name), history)


def cached_seed(directory: str, commit: str, format_: ObjectFormat, history: History, sync: bool = True) -> Seed:
    """The seed in a directory; the most recent seeds are kept open. One that was removed and made again since is another one."""
    made, seed = _recent.pop(directory, None) or (None, None)
    now = _identity(directory)
    if seed is None or made != now:
        seed = Seed(directory, commit, format_, history, sync)
    _recent[directory] = now, seed
    while len(_recent) > _CACHED_SEEDS:
        _recent.popitem(last=False)
    return seed


def _identity(directory: str) -> tuple[int, int]:
    """What no other seed in this directory has: the inode and the change time of a file that is written once."""
    try:
        found = os.stat(os.path.join(directory, "shallow"))
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns
