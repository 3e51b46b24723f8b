"""Seeds: what workspaces start from, prepared once per baseline commit.

A seed holds its own copy of everything that a session may see. A workspace thus shares no objects with durable, and a rewind with ``git gc
--prune=now`` there takes nothing from a session (rule 6, docs/explanation/rules.md). Where the seed of an earlier baseline is there, the
next one is derived from it, so that it costs what changed in between. Only the pack that a ``clone`` gets is as large as the baseline.
"""

from __future__ import annotations

import math
import os
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal

from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.git.commit import Commit, parse_commit
from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.objects import MissingObject, ObjectFormat, Objects, Trees, object_format, open_objects
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import (
    DIRECTORY,
    SUBMODULE,
    Changes,
    Entry,
    TreeDirectories,
    TreeFiles,
    by_directory,
    changed_paths,
    flatten,
    parents,
)
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.files import UNNEEDED_FOR, names_in
from pytest_gittrix.os_level.monotonic import real_wall_seconds
from pytest_gittrix.workspaces.seed_files import (
    MOST_ANCESTORS,
    Replaced,
    ancestry,
    build_seed,
    closure,
    commit_of,
    derivation,
    derivation_by,
    exact_packs,
    has_many_objects,
    listed_files,
    replaced_objects,
    seed_below,
    seed_directory,
    template_index,
)

History = Literal["none", "full"] | int

_CACHED_BYTES: Final = 256 << 20
_CACHED_SEEDS: Final = 16
SPARE_SEEDS: Final = 8
"""How many seeds stay that no session needs."""
_NEAREST: Final = 64
_YOUNGEST: Final = 3


class _Blobs:
    """Contents of files that seeds have read, by id: one cache for all of them, since the next baseline has most files of the last."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}
        self.get = self._data.get  # without a call in between, since a workspace asks for each of its files
        self._size = 0
        self._full_for = ""

    def put(self, id_: str, data: bytes, seed: str) -> None:
        """Keep a file that a seed has read. When there is no room, the next seed drops all, but no seed drops what it has read itself."""
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


_blobs = _Blobs()

_roots: dict[str, str] = {}
"""The root trees of the commits that baselines were made from last, by the commit, which never has another one."""
_MOST_ROOTS: Final = 1024


def _remember_root(commit: str, tree: str) -> str:
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
        """Every path of the baseline below a directory; none if it has no such directory. Costs what is below, not what is beside."""
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
        cached = _blobs.get(id_)
        if cached is not None:
            return cached
        data = self.objects.read(id_)[1]
        _blobs.put(id_, data, self.directory)
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
        return _remember_root(commit, parse_commit(commit, self.objects.read(commit)[1]).tree) if known is None else known

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
        return True  # nobody knows before all are read


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
    os.makedirs(seeds, exist_ok=True)
    with locked_file(seeds, shared=True):  # nothing is pruned meanwhile
        return _prepare(seeds, repository, commit, history, sync)


def _prepare(seeds: str, repository: Repository, commit: str, history: History, sync: bool) -> Seed:
    directory = seed_directory(seeds, commit, history)
    if os.path.exists(directory):
        return _cached(directory, commit, repository.format, history, sync)
    commits, edge = _history_of(repository, commit, history)
    landed = repository.landed
    if landed is not None and landed.id == commit:
        for id_, (kind, data) in landed.objects.items():
            if kind == "blob":
                _blobs.put(id_, data, directory)
    read = partial(_read_and_remember, repository.objects, directory)
    nearest = derived = None
    if history == "none":
        with suppress(GittrixError, OSError):  # durable, or that seed, is damaged: what this baseline needs may be whole
            nearest = _nearest(seeds, repository, commit, sync)
            if nearest is not None and landed is not None and (landed.id, landed.parent) == (commit, nearest.commit):
                derived = derivation_by(landed, nearest.directory)
            elif nearest is not None:
                derived = derivation(nearest.directory, nearest.root, nearest.trees.read, repository, commit)
    build_seed(directory, repository, commits, edge, derived, read, sync=sync)
    seed = _cached(directory, commit, repository.format, history, sync)
    vars(seed)["baseline"] = baseline = repository.commit(commit)
    _remember_root(commit, baseline.tree)
    vars(seed)["trees"] = Trees(seed.objects, parsed=repository.trees.parsed)
    if nearest is not None and derived is not None:
        _inherit(seed, nearest, derived.changes)
    return seed


def _read_and_remember(objects: Objects, seed: str, id_: str) -> tuple[str, bytes]:
    kind, data = objects.read(id_)
    if kind == "blob":
        _blobs.put(id_, data, seed)
    return kind, data


def open_seed(seeds: str, commit: str, history: History, format_name: str) -> Seed | None:
    """Open the seed of a commit without a repository; None if the seed is not on disk."""
    directory = seed_directory(seeds, commit, history)
    if not os.path.exists(directory):
        return None
    return _cached(directory, commit, object_format(format_name), history)


def _cached(directory: str, commit: str, format_: ObjectFormat, history: History, sync: bool = True) -> Seed:
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


def _nearest(seeds: str, repository: Repository, commit: str, sync: bool) -> Seed | None:
    """The seed to derive the seed of a commit from: that of its nearest ancestor, else the youngest one; None if there is no such seed."""
    there = {name for name in names_in(seeds) if name.endswith("-none")}
    if not there:
        return None
    found = _ancestor_among(there, repository, commit) or _youngest_among(there, seeds, repository)
    if found is None:
        return None
    directory = os.path.join(seeds, found)
    if len(ancestry(directory)) >= MOST_ANCESTORS:
        return None
    return _cached(directory, found.partition("-")[0], repository.format, "none", sync)


def _ancestor_among(names: Collection[str], repository: Repository, commit: str) -> str | None:
    for _ in range(_NEAREST):
        above = repository.commit(commit).parents
        if not above:
            return None
        commit = above[0]
        if f"{commit}-none" in names:
            return f"{commit}-none"
    return None


def _youngest_among(names: Collection[str], seeds: str, repository: Repository) -> str | None:
    """The youngest seed of this repository: several can have their seeds in one store."""
    for name in sorted(names, key=lambda name: _made_at(os.path.join(seeds, name)), reverse=True)[:_YOUNGEST]:
        with suppress(MissingObject):
            repository.commit(name.partition("-")[0])
            return name
    return None


def _inherit(seed: Seed, before: Seed, changes: Changes) -> None:
    """Give a seed what the seed that it was derived from has read already, brought forward by what differs."""
    known = vars(before)
    entries, directories = (_whole(known.get(name)) for name in ("entries", "directories"))
    if entries is not None:
        changes = {path: entry for path, entry in changes.items() if entries.get(path) != entry}
        vars(seed)["entries"] = _entries_with(entries, changes)
    if directories is not None:
        vars(seed)["directories"] = _directories_with(directories, changes)
    if known.get("has_submodules") is False:
        vars(seed)["has_submodules"] = any(entry is not None and entry.mode == SUBMODULE for entry in changes.values())
    # Rules that are read when they are asked for come from the other seed, which may be removed.
    is_read = isinstance(known.get("entries"), dict)
    if is_read and "ignore" in known and not any(path.rpartition("/")[2] == ".gitignore" for path in changes):
        vars(seed)["ignore"] = before.ignore


def _whole(listing: Any) -> Any:
    """A listing that was read whole; None if it was not read, or only where somebody asked."""
    return listing.whole if isinstance(listing, (TreeFiles, TreeDirectories)) else listing


def _entries_with(entries: Mapping[str, Entry], changes: Changes) -> dict[str, Entry]:
    changed = dict(entries)
    for path, entry in changes.items():
        if entry is None:
            del changed[path]
        else:
            changed[path] = entry
    added = [path for path in changes if path in changed and path not in entries]
    if not added:
        return changed
    order = [path for path in changed if path in entries]
    for path in added:
        insort(order, path, key=os.fsencode)
    return {path: changed[path] for path in order}


def _directories_with(directories: Mapping[str, Mapping[str, Entry]], changes: Changes) -> dict[str, Mapping[str, Entry]]:
    changed: dict[str, Mapping[str, Entry]] = dict(directories)
    copied: dict[str, dict[str, Entry]] = {}

    def own(directory: str) -> dict[str, Entry]:
        if directory not in copied:
            copied[directory] = changed[directory] = dict(changed.get(directory, {}))
        return copied[directory]

    for path, entry in changes.items():
        directory, _, name = path.rpartition("/")
        if entry is None:
            own(directory).pop(name, None)
    for path, entry in changes.items():
        directory, _, name = path.rpartition("/")
        if entry is not None:
            for parent in parents(path):
                changed.setdefault(parent, {})
            own(directory)[name] = entry
    _remove_empty(changed, [directory for directory, files in copied.items() if not files])
    return changed


def _remove_empty(directories: dict[str, Mapping[str, Entry]], emptied: Iterable[str]) -> None:
    """Remove the directories among some in which and below which there is no file, and those above them that thus have none either."""
    waiting = {directory for directory in emptied if directory}
    if not waiting:
        return
    children = Counter(directory.rpartition("/")[0] for directory in directories if directory)
    while waiting:
        directory = waiting.pop()
        if directory and directory in directories and not directories[directory] and not children[directory]:
            del directories[directory]
            above = directory.rpartition("/")[0]
            children[above] -= 1
            waiting.add(above)


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


def prune_seeds(
    seeds: str,
    wanted: Callable[[], Iterable[str] | None],
    *,
    remove: Callable[[str], object],
    spare: int = SPARE_SEEDS,
    older_than: float = UNNEEDED_FOR,
) -> list[str]:
    """Remove seeds that no live session needs: those that are old, and all but the youngest. Also what killed processes left half made.

    Args:
        seeds: the directory of seeds.
        wanted: returns the baseline commits that live sessions need, or None if nobody can know them all. Called only if there may be
            something to remove, and when no session can be about to start from what is there.
        remove: removes a directory by its path.
        spare: how many seeds that nobody needs stay, since the next one may be derived from them.
        older_than: seconds since a seed was made, after which it is no spare any more.

    Returns:
        The names of the removed directories; none if somebody is making a seed just now.
    """
    limit = real_wall_seconds() - older_than
    made = {name: _made_at(os.path.join(seeds, name)) for name in names_in(seeds)}
    whole = sorted((name for name in made if not name.startswith("tmp_")), key=lambda name: made[name], reverse=True)
    old = [name for name in made if made[name] < limit]
    if not old and len(whole) <= spare:
        return []
    with suppress(_BeingMade), locked_file(seeds, wait=0, refusal=_BeingMade):
        asked = wanted()
        if asked is None:
            return []
        needed = set(asked)
        unneeded = [name for name in whole if name.partition("-")[0] not in needed]
        expired = [name for name in made if name in unneeded[spare:] or (name in old and name.partition("-")[0] not in needed)]
        below = {seed_below(os.path.join(seeds, name)) for name in whole if name not in expired}
        removed = [name for name in expired if name not in below]
        for name in removed:
            remove(os.path.join(seeds, name))
        return removed
    return []


class _BeingMade(Exception):
    """Somebody is making a seed."""


def _made_at(path: str) -> float:
    """When a seed was made; never, if it is gone. One that is being made gets another name, or goes, at any time."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return math.inf
