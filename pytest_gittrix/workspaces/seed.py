"""Seeds: what workspaces start from, prepared once per baseline commit.

A seed holds its own copy of everything that a session may see (one pack, and an index that fits freshly written files). A workspace thus
shares no objects with durable, and a rewind with ``git gc --prune=now`` there takes nothing from a session (rule 6,
docs/explanation/rules.md).
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.commit import Commit, parse_commit
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.index import IndexEntry, build_index
from pytest_gittrix.git.objects import ObjectFormat, Objects, Trees, object_format, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import DIRECTORY, FILE, SUBMODULE, Entry, flatten, parents
from pytest_gittrix.os_level.files import names_in, sync_directory, whole_directory, write_file

History = Literal["none", "full"] | int

BASELINE_MTIME: Final = 1_000_000_000
"""Modification time, in seconds since 1970, of the files of a fresh workspace: old, so that git does not consider its index racy."""

_MANY_OBJECTS: Final = 2000
_CACHED_BYTES: Final = 256 << 20
_CACHED_SEEDS: Final = 16


@dataclass(frozen=True)
class Seed:
    """A prepared baseline. Made by ``prepare_seed``.

    Attributes:
        directory: its directory; ``objects/`` below it is an object directory.
        commit: the baseline commit.
        format: its object format.
        history: how much history it holds.
    """

    directory: str
    commit: str
    format: ObjectFormat
    history: History
    _contents: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def objects(self) -> Objects:
        """Reader of its objects."""
        return open_objects(Path(self.objects_dir), self.format)

    @cached_property
    def trees(self) -> Trees:
        """Its parsed trees."""
        return Trees(self.objects)

    @property
    def objects_dir(self) -> str:
        """Its object directory."""
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
        """Every file, symlink and submodule of the baseline, by path, in git's order."""
        return flatten(self.trees.read, self.root)

    @cached_property
    def directories(self) -> Mapping[str, Mapping[str, Entry]]:
        """The baseline's files by directory ('' is the root) and name; parents come before their children."""
        found: dict[str, dict[str, Entry]] = {"": {}}
        for path, entry in self.entries.items():
            directory, _, name = path.rpartition("/")
            if directory not in found:
                for parent in parents(path):
                    found.setdefault(parent, {})
            found[directory][name] = entry
        return found

    @cached_property
    def has_submodules(self) -> bool:
        """Whether the baseline has a submodule."""
        return any(entry.mode == SUBMODULE for entry in self.entries.values())

    @cached_property
    def ignore(self) -> Ignore:
        """The ignore rules of the baseline's own ``.gitignore`` files."""
        # Git also ignores a .gitignore that is a link.
        sources = {
            path.rpartition("/")[0]: self.blob(entry.id)
            for path, entry in self.entries.items()
            if path.rpartition("/")[2] == ".gitignore" and entry.kind in ("file", "executable")
        }
        return Ignore(sources)

    def blob(self, id_: str) -> bytes:
        """A file's bytes; the contents of a small repository are cached completely."""
        cached = self._contents.get(id_)
        if cached is not None:
            return cached
        data = self.objects.read(id_)[1]
        if self._cached_bytes + len(data) <= _CACHED_BYTES:
            self._contents[id_] = data
            object.__setattr__(self, "_size", self._cached_bytes + len(data))
        return data

    @property
    def _cached_bytes(self) -> int:
        return getattr(self, "_size", 0)

    @cached_property
    def packs(self) -> tuple[str, ...]:
        """The file names of its pack and the pack's index."""
        return tuple(sorted(os.listdir(os.path.join(self.objects_dir, "pack"))))

    @cached_property
    def small_files(self) -> Mapping[str, bytes] | None:
        """Contents of the pack's files by name; None if they are large."""
        base = os.path.join(self.objects_dir, "pack")
        if sum(os.path.getsize(os.path.join(base, name)) for name in self.packs) > 1 << 20:
            return None
        return {name: Path(base, name).read_bytes() for name in self.packs}

    @cached_property
    def index(self) -> bytes:
        """An index file by which every freshly written file of the baseline is unchanged (``core.checkStat=minimal``)."""
        return Path(self.directory, "index").read_bytes()

    @cached_property
    def shallow(self) -> str:
        """Contents of a ``shallow`` file: the commits whose parents are missing."""
        return Path(self.directory, "shallow").read_text()


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


_recent: OrderedDict[str, Seed] = OrderedDict()


def prepare_seed(seeds: str, repository: Repository, commit: str, history: History = "none", *, sync: bool = False) -> Seed:
    """Open the seed of a commit, or make it if this is the first session from the commit.

    Args:
        seeds: directory of seeds; shared by processes.
        repository: the repository to read the commit from.
        commit: the baseline.
        history: how much history a workspace contains.
        sync: write through to the disk.

    Returns:
        The seed, complete on disk.

    Raises:
        MissingObject: the repository lacks an object of the commit.
    """
    check_history(history)
    directory = _seed_directory(seeds, commit, history)
    if not os.path.exists(directory):
        _recent.pop(directory, None)  # its objects were deleted with the directory
        _build(seeds, directory, repository, commit, history, sync)
    return _cached(directory, commit, repository.format, history)


def open_seed(seeds: str, commit: str, history: History, format_name: str) -> Seed | None:
    """Open the seed of a commit without a repository; None if the seed is not on disk."""
    directory = _seed_directory(seeds, commit, history)
    if not os.path.exists(directory):
        return None
    return _cached(directory, commit, object_format(format_name), history)


def _seed_directory(seeds: str, commit: str, history: History) -> str:
    return os.path.join(seeds, f"{commit}-{history}")


def _cached(directory: str, commit: str, format_: ObjectFormat, history: History) -> Seed:
    """The seed in a directory; the most recent seeds are kept open."""
    seed = _recent.pop(directory, None) or Seed(directory, commit, format_, history)
    _recent[directory] = seed
    while len(_recent) > _CACHED_SEEDS:
        _recent.popitem(last=False)
    return seed


def _history_of(repository: Repository, commit: str, history: History) -> tuple[list[str], list[str]]:
    """The commits that a workspace contains, and those of them whose parents it lacks."""
    depth = history if isinstance(history, int) else {"none": 0, "full": -1}[history]
    included: dict[str, None] = {commit: None}
    edge: list[str] = []
    level = [commit]
    while level:
        if depth == 0:
            edge = [id_ for id_ in level if repository.commit(id_).parents]
            break
        parents = [parent for id_ in level for parent in repository.commit(id_).parents]
        level = [parent for parent in dict.fromkeys(parents) if parent not in included]
        included.update(dict.fromkeys(level))
        depth -= 1
    return list(included), sorted(edge)


def _objects_of(repository: Repository, commits: Iterable[str]) -> list[str]:
    """Every object that some commits need, the commits included, submodules excluded."""
    found: dict[str, None] = {}
    pending: list[str] = []
    for commit in commits:
        found[commit] = None
        pending.append(repository.tree(commit))
    while pending:
        tree = pending.pop()
        if tree in found:
            continue
        found[tree] = None
        for mode, id_ in repository.trees.read(tree).values():
            if mode == DIRECTORY:
                pending.append(id_)
            elif mode != SUBMODULE:
                found[id_] = None
    return list(found)


def _build(seeds: str, directory: str, repository: Repository, commit: str, history: History, sync: bool) -> None:
    building = os.path.join(seeds, f"tmp_{secrets.token_hex(8)}")
    try:
        with whole_directory(directory, building):
            os.makedirs(os.path.join(building, "objects", "pack"))
            commits, edge = _history_of(repository, commit, history)
            ids = _objects_of(repository, commits)
            if len(ids) > _MANY_OBJECTS:
                _pack_by_git(repository, ids, os.path.join(building, "objects", "pack"))
            else:
                pack = build_pack({id_: repository.objects.read(id_) for id_ in ids}, repository.format)
                install_pack(os.path.join(building, "objects"), pack, sync=sync)
            write_file(os.path.join(building, "shallow"), "".join(f"{id_}\n" for id_ in edge).encode(), sync=sync)
            write_file(os.path.join(building, "index"), _template_index(repository, commit), sync=sync)
    except OSError:
        # Another process has made the same seed meanwhile; both are equal.
        if not os.path.exists(directory):
            raise
    if sync:
        sync_directory(seeds)


def _pack_by_git(repository: Repository, ids: list[str], directory: str) -> None:
    """Pack a large seed by git, which reuses what durable has compressed already."""
    environment = hermetic_env() | {"GIT_DIR": repository.common_dir}
    prefix = os.path.join(directory, "pack")
    run_git(["pack-objects", "-q", "--window=0", prefix], env=environment, stdin="\n".join(ids).encode() + b"\n", timeout=3600)


def _template_index(repository: Repository, commit: str) -> bytes:
    entries = repository.entries(commit)
    sizes: dict[str, int] = {}

    def size(entry: Entry) -> int:
        if entry.mode == SUBMODULE:
            return 0
        if entry.id not in sizes:
            sizes[entry.id] = len(repository.blob(entry.id))
        return sizes[entry.id]

    return build_index(
        (
            (os.fsencode(path), IndexEntry(entry.mode, entry.id, (BASELINE_MTIME, 0, BASELINE_MTIME, 0, 0, 0, FILE, 0, 0, size(entry))))
            for path, entry in entries.items()
        ),
        repository.format,
    )


def prune_seeds(seeds: str, wanted: Callable[[], Iterable[str]], *, older_than: float = 86400.0) -> list[str]:
    """Remove seeds that no live session needs, and unfinished seeds of killed processes, once they are ``older_than`` seconds old.

    Args:
        seeds: the directory of seeds.
        wanted: returns the baseline commits that live sessions need; called only if a seed is old enough.
        older_than: seconds since the seed was made.

    Returns:
        The names of the removed directories.
    """
    limit = time.clock_gettime(time.CLOCK_REALTIME) - older_than
    old = [name for name in names_in(seeds) if _made_at(os.path.join(seeds, name)) < limit]
    if not old:
        return []
    keep = set(wanted())
    removed = [name for name in old if name.partition("-")[0] not in keep]
    for name in removed:
        shutil.rmtree(os.path.join(seeds, name), ignore_errors=True)
    return removed


def _made_at(path: str) -> float:
    """When a seed was made; never, if it is gone. One that is being made gets another name, or goes, at any time."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return math.inf
