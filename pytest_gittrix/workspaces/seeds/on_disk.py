"""What a seed has on disk: made from a repository, or from the seed of another commit by what differs.

A seed is a directory, ``<commit>-<history>``:

- ``objects/pack/``: every object of the baseline. A derived seed has hard links to the packs of the seed that it was derived from, and one
  pack of what is new. So it may hold more than its baseline, and only the engine reads it.
- ``ancestry``: the names of the seeds that a derived seed comes from, the nearest first.
- ``shallow``: the commits whose parents are left out.
- ``index``: the index of a fresh workspace.
- ``lower/``: the lower layer of overlays: every file of the baseline. Files that did not change since an earlier seed are hard links to
  those of its layer. In its stead a seed that differs little from an earlier one has ``layer/``: the name of that seed (``below``), and
  what differs from its lower layer, with whiteouts for what is gone (``files/``).
- ``repository/``: the layer above these that programs see: of a ``.git`` the pack and the index.
- ``exact/pack/``: one pack of exactly the baseline's objects, for what leaves the engine. A seed that was not derived has that in
  ``objects/pack``.

All but the first three are made when they are first needed. No file but a torn index is written again once it has its name, and a
directory that is half made has another name; a process that finds that another one was faster uses what that one made.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.environment import empty_repository, hermetic_env, run_git
from pytest_gittrix.git.index import IndexEntry, IndexFile, build_index
from pytest_gittrix.git.objects import MissingObject, ObjectFormat
from pytest_gittrix.git.pack import build_pack, change_pack, install_pack
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import DIRECTORY, FILE, SUBMODULE, Entry, ReadTree, changed_directories, changed_entries, changed_paths, lookup
from pytest_gittrix.os_level.files import link_files, names_in, read_text, sync_directory, sync_file_system, whole_directory, write_file

BASELINE_MTIME: Final = 1_000_000_000
"""Modification time, in seconds since 1970, of the files of a fresh workspace: old, so that git does not consider its index racy."""

LAYER: Final = "layer"
"""The directory of a seed with what differs from the lower layer of an earlier one."""

REPOSITORY_LAYER: Final = "repository"
"""The directory of a seed with the pack and the index that overlays show to programs."""

MOST_ANCESTORS: Final = 50
"""A seed that has so many is not derived from: each has a pack, and with them all grows what the baseline does not need any more."""

MOST_CHANGES: Final = 2000
"""Paths that may differ from the seed that another one is derived from."""
_INDEX: Final = "index"
_MANY_OBJECTS: Final = 80
_LITTLE_DATA: Final = 64 << 10
"""Bytes that are not worth the time to compress them, since a line of seeds has few of them."""
_SMALL_INDEX: Final = 4 << 10
"""Size in bytes of the index of a pack of about a hundred objects."""
_LARGE_INDEX: Final = 256 << 10
"""Size in bytes of the index of a pack of about nine thousand objects."""


Read = Callable[[str], tuple[str, bytes]]
"""Returns the kind and the data of an object from its id."""


class Derivation(NamedTuple):
    """How a seed differs from the one that it is derived from.

    Attributes:
        directory: the other seed.
        changes: the new entry of each path that differs; None for one that is gone.
        ids: the objects that the other seed may lack.
    """

    directory: str
    changes: Mapping[str, Entry | None]
    ids: Collection[str]


def derivation(directory: str, root: str, read_tree: ReadTree, repository: Repository, commit: str) -> Derivation | None:
    """What differs between a seed and a commit; None where a seed made from nothing costs as little: it is small, or too much differs.

    Args:
        directory: the seed.
        root: its tree.
        read_tree: reads its trees, which the repository may have lost.
        repository: the repository that has the commit.
        commit: the commit.

    Raises:
        MissingObject: the repository or the seed lacks a tree.
        FileNotFoundError: the seed is gone.
    """
    if _has_few_objects(directory):
        return None
    changes: dict[str, Entry | None] = {}
    ids = {commit: None}
    for change in changed_directories(read_tree, root, repository.tree(commit), read_new=repository.trees.read):
        if change.tree is not None:
            ids[change.tree] = None
        ids.update(dict.fromkeys(new[1] for _, _, new in change.lines if new is not None and new[0] not in (DIRECTORY, SUBMODULE)))
        changes.update((path, after) for path, (_, after) in changed_entries(change))
        if len(changes) > MOST_CHANGES:
            return None
    return Derivation(directory, changes, ids)


def derivation_by(landed: BuiltCommit, directory: str) -> Derivation | None:
    """As ``derivation``, of a commit that was built upon the commit of a seed: who built it knows what differs."""
    if _has_few_objects(directory) or len(landed.changes) > MOST_CHANGES:
        return None
    ids = dict.fromkeys(landed.objects)
    ids.update(dict.fromkeys(entry.id for entry in landed.changes.values() if entry is not None and entry.mode != SUBMODULE))
    return Derivation(directory, landed.changes, ids)


def _has_few_objects(directory: str) -> bool:
    return not _indexes_reach(directory, _SMALL_INDEX)


def has_many_objects(directory: str) -> bool:
    """Whether the seed in a directory has so many that to list its files takes longer than to look up a few."""
    return _indexes_reach(directory, _LARGE_INDEX)


def _indexes_reach(directory: str, least: int) -> bool:
    """Whether the indexes of a seed's packs have at least so many bytes."""
    packs, size = os.path.join(directory, "objects", "pack"), 0
    for name in os.listdir(packs):
        if name.endswith(".idx"):
            size += os.path.getsize(os.path.join(packs, name))
            if size >= least:
                return True
    return False


def seed_directory(seeds: str, commit: str, history: object) -> str:
    """The directory of the seed of a commit, with a policy of history."""
    return os.path.join(seeds, f"{commit}-{history}")


def commit_of(directory: str) -> str:
    """The commit of the seed in a directory."""
    return os.path.basename(directory).partition("-")[0]


def seed_below(directory: str) -> str | None:
    """The name of the seed above whose lower layer overlays from the seed in a directory lie; None if they need no other seed."""
    if os.path.isdir(os.path.join(directory, "lower")):
        return None
    return read_text(os.path.join(directory, LAYER, "below"))


def ancestry(directory: str) -> tuple[str, ...]:
    """The names of the seeds that a seed was derived from, the nearest first; none for one that was made from a repository alone."""
    return tuple((read_text(os.path.join(directory, "ancestry")) or "").split())


def build_seed(
    directory: str,
    repository: Repository,
    commits: Sequence[str],
    edge: Iterable[str],
    derived: Derivation | None,
    read: Read,
    *,
    sync: bool,
) -> None:
    """Make a seed, unless another process makes the same one meanwhile.

    Args:
        directory: its directory.
        repository: where to read from.
        commits: the commits that it holds, the baseline first.
        edge: those of them whose parents it leaves out.
        derived: how it differs from a seed to derive it from; None to make it from the repository alone.
        read: reads an object of the repository.
        sync: write it through to the disk.

    Raises:
        MissingObject: the repository lacks an object.
        OSError: the disk refused, or the other seed is gone.
    """
    with built_once(directory, os.path.dirname(directory)) as building:
        objects = os.path.join(building, "objects")
        packs = os.path.join(objects, "pack")
        os.makedirs(packs)
        if derived is None:
            ids: Collection[str] = closure(repository.trees.read, {commit: repository.tree(commit) for commit in commits})
        else:
            source = os.path.join(derived.directory, "objects", "pack")
            link_files(source, packs, os.listdir(source))
            line = [os.path.basename(derived.directory), *ancestry(derived.directory)]
            write_file(os.path.join(building, "ancestry"), "".join(f"{name}\n" for name in line).encode())
            ids = derived.ids
        landed = repository.landed
        if landed is not None and landed.objects.keys() == {*ids}:
            install_pack(objects, landed.pack)
        else:
            _write_pack(objects, ids, read, repository.objects_dir, repository.format, whole=len(commits) == 1)
        write_file(os.path.join(building, "shallow"), "".join(f"{id_}\n" for id_ in sorted(edge)).encode())
        if sync:
            sync_file_system(building)
    if sync:
        sync_directory(os.path.dirname(directory))


def closure(read_tree: ReadTree, roots: Mapping[str, str]) -> list[str]:
    """Every object that some commits need, the commits included, submodules excluded; ``roots`` has the tree of each commit."""
    found: dict[str, None] = dict.fromkeys(roots)
    pending = [*roots.values()]
    while pending:
        tree = pending.pop()
        if tree in found:
            continue
        found[tree] = None
        for mode, id_ in read_tree(tree).values():
            if mode == DIRECTORY:
                pending.append(id_)
            elif mode != SUBMODULE:
                found[id_] = None
    return list(found)


class Replaced(NamedTuple):
    """How the objects of a baseline differ from those of an earlier one.

    Attributes:
        gone: the ids of the objects that the earlier one has alone.
        new: the ids of those that changed places have now; the earlier one may have some of them elsewhere.
    """

    gone: set[str]
    new: set[str]


def replaced_objects(read_tree: ReadTree, old: str, new: str, entries: Mapping[str, Entry]) -> Replaced | None:
    """How the objects of two trees differ. Only directories that differ are read, and all paths of the newer tree are looked through once.

    An object that a changed place has no more may be elsewhere in the newer tree. A file is if any path has it. A directory is if one of
    its files is at the right place in a directory that is the same.

    Args:
        read_tree: reads the trees of both.
        old: the earlier tree.
        new: the newer one.
        entries: every file of the newer one.

    Returns:
        The difference; None where a directory without any file makes it impossible to say.

    Raises:
        MissingObject: a tree is missing.
    """
    if old == new:
        return Replaced(set(), set())
    files, directories, now = set[str](), {old}, {new}
    for change in changed_directories(read_tree, old, new):
        for _, before, after in change.lines:
            if before is not None and before[0] != SUBMODULE:
                (directories if before[0] == DIRECTORY else files).add(before[1])
            if after is not None and after[0] != SUBMODULE:
                now.add(after[1])
    samples = {tree: _first_file(read_tree, tree) for tree in directories - now}
    if not all(below for below, _ in samples.values()):
        return None
    wanted = (files - now).union(id_ for _, id_ in samples.values())
    places: dict[str, list[str]] = {}
    for path, entry in entries.items():
        if entry.id in wanted:
            places.setdefault(entry.id, []).append(path)

    def is_there(tree: str) -> bool:
        below, id_ = samples[tree]
        above = {path[: -len(below)].rstrip("/") for path in places.get(id_, ()) if f"/{path}".endswith(f"/{below}")}
        return any((lookup(read_tree, new, directory) if directory else (DIRECTORY, new)) == (DIRECTORY, tree) for directory in above)

    return Replaced({id_ for id_ in files - now if id_ not in places} | {tree for tree in samples if not is_there(tree)}, now)


def _first_file(read_tree: ReadTree, tree: str) -> tuple[str, str]:
    """The path and the id of the first file below a tree; empty if there is none where it is looked for."""
    path = b""
    while items := read_tree(tree):
        name, (mode, id_) = next(iter(items.items()))
        path += name
        if mode != DIRECTORY:
            return os.fsdecode(path), id_
        path, tree = path + b"/", id_
    return "", ""


def exact_packs(
    directory: str,
    ids: Callable[[], Collection[str]],
    replaced_since: Callable[[str], Replaced | None],
    read: Read,
    format_: ObjectFormat,
    *,
    sync: bool,
) -> str:
    """The directory with one pack of exactly the objects of a seed's baseline, made now if this is the first time.

    Args:
        directory: the seed.
        ids: gives the objects of its baseline.
        replaced_since: gives how they differ from those of the baseline of a seed that it was derived from, by that seed's name.
        read: reads one.
        format_: the object format.
        sync: write what is made through to the disk.
    """
    line = ancestry(directory)
    if not line:
        return os.path.join(directory, "objects", "pack")
    exact = os.path.join(directory, "exact")
    if not os.path.isdir(exact):
        with built_once(exact, os.path.dirname(directory)) as building:
            packs = os.path.join(building, "pack")
            os.makedirs(packs)
            if not _changed_from(directory, line, packs, replaced_since, read, format_):
                _write_pack(building, ids(), read, os.path.join(directory, "objects"), format_, whole=True)
            if sync:
                sync_file_system(building)
    return os.path.join(exact, "pack")


def _changed_from(
    directory: str,
    line: Iterable[str],
    packs: str,
    replaced_since: Callable[[str], Replaced | None],
    read: Read,
    format_: ObjectFormat,
) -> bool:
    """Make the exact pack from that of the nearest ancestor that has one. Returns False, with nothing written, where there is none."""
    for name in line:
        ancestor = os.path.join(os.path.dirname(directory), name)
        exact = _packs_in(os.path.join(ancestor, "exact" if ancestry(ancestor) else "objects", "pack"))
        if len(exact) == 1:
            with suppress(FileNotFoundError, MissingObject):  # the ancestor was removed meanwhile, before anything was written
                replaced = replaced_since(name)
                return replaced is not None and change_pack(exact[0], packs, replaced.gone, replaced.new, read, format_)
    return False


def _packs_in(directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in names_in(directory) if name.endswith(".pack")]


def listed_files(directory: str, format_: ObjectFormat) -> dict[str, Entry] | None:
    """The files of a seed's baseline as its index has them; None if it has none yet, or one that was damaged."""
    data = _intact_index(os.path.join(directory, _INDEX), format_)
    return None if data is None else IndexFile(data, format_).listing()


def template_index(
    directory: str,
    read_tree: ReadTree,
    entries: Callable[[], Mapping[str, Entry]],
    root_of: Callable[[str], str],
    size: Callable[[str], int],
    format_: ObjectFormat,
) -> bytes:
    """An index by which every freshly written file of a seed's baseline is unchanged (``core.checkStat=minimal``).

    It is stored without a sync of its own: one that a power cut left torn does not end in its hash, and is made again.

    Args:
        directory: the seed.
        read_tree: reads its trees, and those of the seeds that it comes from.
        entries: gives its files, in git's order.
        root_of: gives the tree of its commit, or of the commit of a seed that it comes from.
        size: gives the size of a blob.
        format_: the object format.
    """
    path = os.path.join(directory, _INDEX)
    stored = _intact_index(path, format_)
    if stored is not None:
        return stored

    def entry_of(entry: Entry) -> IndexEntry:
        length = 0 if entry.mode == SUBMODULE else size(entry.id)
        return IndexEntry(entry.mode, entry.id, (BASELINE_MTIME, 0, BASELINE_MTIME, 0, 0, 0, FILE, 0, 0, length))

    for name in ancestry(directory):
        ancestor = os.path.join(os.path.dirname(directory), name)
        before = _intact_index(os.path.join(ancestor, _INDEX), format_)
        if before is not None:
            changed = changed_paths(read_tree, root_of(commit_of(ancestor)), root_of(commit_of(directory)))
            entries_of_changed = {path: None if after is None else entry_of(after) for path, (_, after) in changed.items()}
            data = IndexFile(before, format_).with_changes(entries_of_changed)
            break
    else:
        data = build_index(((os.fsencode(path), entry_of(entry)) for path, entry in entries().items()), format_)
    write_file(path, data)
    return data


def _intact_index(path: str, format_: ObjectFormat) -> bytes | None:
    """The index of a seed; None where there is none, or a torn one."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    end = len(data) - format_.size
    return data if data[max(end, 0) :] == format_.digest(data[: max(end, 0)]) else None


@contextmanager
def built_once(directory: str, seeds: str) -> Iterator[str]:
    """A name to make a directory under, which gets its own name at the end, unless somebody else was faster: both are equal."""
    building = os.path.join(seeds, f"tmp_{secrets.token_hex(8)}")
    try:
        with whole_directory(directory, building):
            yield building
    except OSError:
        if not os.path.exists(directory):
            raise


def _write_pack(objects: str, ids: Collection[str], read: Read, source: str, format_: ObjectFormat, *, whole: bool) -> None:
    """Put objects into one pack: a few are packed here, many by git, which reuses what is compressed already.

    Args:
        objects: the object directory to put the pack in.
        ids: the objects.
        read: reads one.
        source: the object directory that git reads them from.
        format_: the object format.
        whole: whether each is stored whole, as ``change_pack`` needs it. Many versions of a file take less space as differences.
    """
    if len(ids) <= _MANY_OBJECTS:
        found = {id_: read(id_) for id_ in ids}
        level = 0 if sum(len(data) for _, data in found.values()) <= _LITTLE_DATA else 1
        install_pack(objects, build_pack(found, format_, level=level))
        return
    # Git makes its temporary files in the object directory that is its own, which is not to be a person's repository.
    environment = hermetic_env() | {
        "GIT_DIR": empty_repository(format_.name),
        "GIT_OBJECT_DIRECTORY": objects,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": '"' + "".join(f"\\{byte:03o}" for byte in os.fsencode(source)) + '"',
    }
    how = ["--no-reuse-delta", "--depth=0"] if whole else []
    command = ["pack-objects", "-q", "--window=0", *how, os.path.join(objects, "pack", "pack")]
    run_git(command, env=environment, stdin="\n".join(ids).encode() + b"\n", timeout=3600)
