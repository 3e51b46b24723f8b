"""Prepares the seed of a baseline, and removes those that no session needs.

Where there is the seed of an earlier baseline, the next one is derived from it, so that it costs what changed in between. Only the pack
that a ``clone`` gets is as large as the baseline.
"""

from __future__ import annotations

import math
import os
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.objects import MissingObject, Objects, Trees
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import SUBMODULE, Changes, Entry, TreeDirectories, TreeFiles, parents
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.files import UNNEEDED_FOR, names_in
from pytest_gittrix.os_level.monotonic import real_wall_seconds
from pytest_gittrix.workspaces.seeds.on_disk import (
    MOST_ANCESTORS,
    ancestry,
    build_seed,
    derivation,
    derivation_by,
    seed_below,
    seed_directory,
)
from pytest_gittrix.workspaces.seeds.seed import History, Seed, blobs, cached_seed, check_history, remember_root

SPARE_SEEDS: Final = 8
"""How many seeds stay that no session needs."""
_NEAREST: Final = 64
_YOUNGEST: Final = 3


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
        return cached_seed(directory, commit, repository.format, history, sync)
    commits, edge = _history_of(repository, commit, history)
    landed = repository.landed
    if landed is not None and landed.id == commit:
        for id_, (kind, data) in landed.objects.items():
            if kind == "blob":
                blobs.put(id_, data, directory)
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
    seed = cached_seed(directory, commit, repository.format, history, sync)
    vars(seed)["baseline"] = baseline = repository.commit(commit)
    remember_root(commit, baseline.tree)
    vars(seed)["trees"] = Trees(seed.objects, parsed=repository.trees.parsed)
    if nearest is not None and derived is not None:
        _inherit(seed, nearest, derived.changes)
    return seed


def _read_and_remember(objects: Objects, seed: str, id_: str) -> tuple[str, bytes]:
    kind, data = objects.read(id_)
    if kind == "blob":
        blobs.put(id_, data, seed)
    return kind, data


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
    return cached_seed(directory, found.partition("-")[0], repository.format, "none", sync)


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
        wanted: returns the baseline commits that live sessions need, or None if they cannot all be known. Called only if there may be
            something to remove, and when no session can be about to start from a seed.
        remove: removes a directory by its path.
        spare: how many seeds that no session needs stay, since the next one may be derived from them.
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
