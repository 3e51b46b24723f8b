"""The layers below every overlay from a baseline, made when they are first needed. They are part of the seed."""

from __future__ import annotations

import errno
import os
from typing import Final

from pytest_gittrix.git.tree import DIRECTORY, SUBMODULE, Changes, Entry, lookup, parents
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.files import link_files, sync_file_system, write_file, write_new
from pytest_gittrix.workspaces.overlay import make_whiteout
from pytest_gittrix.workspaces.seeds.checkout import link_checkout, write_entry, write_files
from pytest_gittrix.workspaces.seeds.on_disk import LAYER, REPOSITORY_LAYER, built_once, has_many_objects, seed_below
from pytest_gittrix.workspaces.seeds.seed import Seed

MOST_LAYERED: Final = 500
"""Paths that may differ from an earlier checkout for an ``overlay`` to lie above that: each is written again for the next baseline."""
_WORTH_A_LAYER: Final = 4
"""A layer of what differs saves nothing where more than one of so many files does."""
_NO_LAYER: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOENT)
"""What a file system that has no whiteouts answers; the last one says that somebody removed the checkout below meanwhile."""


def lower_layers(seed: Seed) -> tuple[str, ...]:
    """The lower layers of every overlay from a seed's baseline, the uppermost first, made now if this is the first.

    They are a checkout of the baseline; or, above the checkout of an earlier baseline, what differs from that. What differs is part of the
    seed, and keeps the seed of the checkout from being pruned.
    """
    seeds = os.path.dirname(seed.directory)
    if found := _lower_layers_of(seed.directory):
        return found
    with locked_file(seeds, shared=True):  # the earlier seed is not pruned meanwhile
        # Others may hold this lock too, and finish the layer now. So this is read first: then a layer that shows nothing has lost its seed.
        is_left_alone = seed_below(seed.directory) is not None
        if found := _lower_layers_of(seed.directory):
            return found
        earlier = seed.nearest_with("lower")
        if earlier is None or is_left_alone or not _make_layer(seed, *earlier):
            with built_once(os.path.join(seed.directory, "lower"), seeds) as building:
                os.mkdir(building)
                if earlier is None:
                    write_files(building, seed)
                else:
                    link_checkout(building, seed, *earlier)
                if seed.sync:
                    sync_file_system(building)
        return _lower_layers_of(seed.directory)


def _lower_layers_of(seed: str) -> tuple[str, ...]:
    """The lower layers that the seed in a directory has; none if they are not made yet."""
    whole = os.path.join(seed, "lower")
    if os.path.isdir(whole):
        return (whole,)
    earlier = seed_below(seed)
    if earlier is None:
        return ()
    whole = os.path.join(os.path.dirname(seed), earlier, "lower")
    return (os.path.join(seed, LAYER, "files"), whole) if os.path.isdir(whole) else ()


def _make_layer(seed: Seed, lower: str, changes: Changes) -> bool:
    """Make the layer of what differs from a checkout. Returns False where it would save little, or there are no whiteouts."""
    if os.path.isdir(os.path.join(lower, ".git")):
        return False  # an earlier version put the repository of that baseline there, which is not to show
    if len(changes) > MOST_LAYERED:
        return False
    if not has_many_objects(seed.directory) and len(changes) * _WORTH_A_LAYER > len(seed.entries):
        return False
    if any(entry is not None and entry.mode == SUBMODULE for entry in changes.values()):
        return False  # what is below would show in its empty directory
    layer = os.path.join(seed.directory, LAYER)
    try:
        with built_once(layer, os.path.dirname(seed.directory)) as building:
            files = os.path.join(building, "files")
            os.makedirs(files)
            _write_changes(files, seed, changes)
            write_file(os.path.join(building, "below"), os.path.basename(os.path.dirname(lower)).encode())
            if seed.sync:
                sync_file_system(building)
    except OSError as error:
        if error.errno in _NO_LAYER:
            return False
        raise
    return True


def _write_changes(root: str, seed: Seed, changes: Changes) -> None:
    """Write the files of a baseline that differ from another, and whiteouts for what of the other it does not have."""
    names: dict[str, dict[str, Entry | None]] = {}
    for path, entry in changes.items():
        shown = path if entry is not None else _first_missing(seed, path)
        if shown is not None:
            directory, _, name = shown.rpartition("/")
            names.setdefault(directory, {})[name] = entry
    made: set[str] = set()
    for directory, entries in names.items():
        for above in (*parents(directory), directory):
            if above and above not in made:
                os.mkdir(f"{root}/{above}")
                made.add(above)
        descriptor = os.open(os.path.join(root, directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name, entry in entries.items():
                if entry is None:
                    make_whiteout(descriptor, name)
                else:
                    write_entry(descriptor, name, entry, seed)
        finally:
            os.close(descriptor)


def _first_missing(seed: Seed, path: str) -> str | None:
    """The uppermost of a path and the directories above it that a baseline does not have; None where it has something else there."""
    for part in (*parents(path), path):
        item = lookup(seed.trees.read, seed.root, part)
        if item is None or item[0] != DIRECTORY:
            return part if item is None else None
    return None


def make_repository_layer(seed: Seed) -> None:
    """Make the layer with the pack and the index of every overlay from a seed's baseline, unless it is there.

    It is as large as the baseline, whatever changed since an earlier one: a pack has exactly what the agent may see. Only programs see it.
    """
    layer, seeds = os.path.join(seed.directory, REPOSITORY_LAYER), os.path.dirname(seed.directory)
    if os.path.isdir(layer):
        return
    with locked_file(seeds, shared=True), built_once(layer, seeds) as building:  # no seed is pruned meanwhile
        packs = os.path.join(building, ".git", "objects", "pack")
        os.makedirs(packs)
        link_files(seed.pack_dir, packs, seed.packs)
        write_new(os.path.join(building, ".git", "index"), seed.index)
        if seed.sync:
            sync_file_system(building)
