"""Put the packs of earlier promotions into one, so that their number does not grow with the number of promotions.

Whoever reads a repository maps the index of each pack. Only packs are taken that this package wrote for this user, and that nothing but
their index refers to. A pack is deleted only once all its objects are in another one that is written through, so any number of writers may
do this at once, and a kill loses nothing (docs/decisions/032).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.pack import ids_in_index, install_pack, join_packed, packed_objects, release_pack
from pytest_gittrix.os_level.files import Permit, is_older, names_in, read_text

MOST_PACKS: Final = 32
"""How many packs of promotions may be in a repository before they become one."""
_LARGEST: Final = 1 << 20
"""Bytes of a pack that is left alone: to copy it again and again would cost more than it saves."""
_GC_SECONDS: Final = 12 * 3600.0
"""The age at which git takes the note of a running ``git gc`` for a dead one."""
_WHOLE: Final = frozenset((".pack", ".idx"))
_WITHOUT_DATA: Final = frozenset((".idx",))


def consolidate(objects_dir: str, landed: str, format_: ObjectFormat, *, permit: Permit | None = None) -> bool:
    """Put the packs of promotions into one, if there are more than ``MOST_PACKS``.

    The new pack is written through to the disk in any case: what the others hold may be there already.

    Args:
        objects_dir: the ``objects`` directory.
        landed: the name of the pack that landed last; the new pack is named after it, so that ``finish`` finds it.
        format_: the object format.
        permit: the repository's rule for modes, if it has one.

    Returns:
        Whether there were as many.

    Raises:
        OSError: the disk refused; no object is lost.
    """
    stems = [stem for stem, suffixes in _files(objects_dir) if suffixes == _WHOLE]
    name = _name(landed, format_)
    if len(stems) <= MOST_PACKS or _is_being_packed(objects_dir) or os.path.exists(_stem(objects_dir, name) + ".idx"):
        return False
    held = {stem: objects for stem in stems if _is_small(stem) and (objects := _objects(stem, format_)) is not None}
    if len(held) <= MOST_PACKS:
        return False
    every = {id_: packed for objects in held.values() for id_, packed in objects.items()}
    install_pack(objects_dir, replace(join_packed(every, format_), name=name), sync=True, mode=0o444, permit=permit)
    points.reached("land:consolidated")
    _delete(held)
    return True


def finish(objects_dir: str, landed: str, format_: ObjectFormat) -> None:
    """Remove what a killed consolidation left; see ``consolidate`` for the arguments."""
    name = _name(landed, format_)
    release_pack(objects_dir, name, killed=True)
    own = _stem(objects_dir, name)
    objects = _objects(own, format_)
    if objects is None:
        return
    for stem, suffixes in _files(objects_dir):
        if stem != own and suffixes in (_WHOLE, _WITHOUT_DATA) and _is_small(stem, ".idx"):
            with suppress(ValueError, FileNotFoundError):
                if objects.keys() >= {*ids_in_index(Path(stem + ".idx").read_bytes(), format_)}:
                    _delete([stem])


def _name(landed: str, format_: ObjectFormat) -> str:
    return format_.digest(f"the packs up to {landed}".encode()).hex()


def _stem(objects_dir: str, name: str) -> str:
    return os.path.join(objects_dir, "pack", f"pack-{name}")


def _files(objects_dir: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Every pack that no list of git's refers to, as its path without suffix, with the suffixes of its files."""
    directory = os.path.join(objects_dir, "pack")
    found: dict[str, set[str]] = {}
    for file in names_in(directory):
        if file.startswith("multi-pack-index"):
            return
        stem, suffix = os.path.splitext(file)
        found.setdefault(stem, set()).add(suffix)
    listed = read_text(os.path.join(objects_dir, "info", "packs")) or ""
    for stem, suffixes in found.items():
        if stem.startswith("pack-") and f"{stem}.pack" not in listed:
            yield os.path.join(directory, stem), frozenset(suffixes)


def _is_small(stem: str, suffix: str = ".pack") -> bool:
    """Whether a file of a pack is small and this user's own; another's could not be deleted everywhere."""
    try:
        status = os.stat(stem + suffix)
    except FileNotFoundError:
        return False
    return status.st_size <= _LARGEST and status.st_uid == os.geteuid()


def _is_being_packed(objects_dir: str) -> bool:
    """Whether a ``git gc`` is at work there."""
    note = os.path.join(os.path.dirname(objects_dir), "gc.pid")
    return os.path.exists(note) and not is_older(note, _GC_SECONDS)


def _objects(stem: str, format_: ObjectFormat) -> dict[str, bytes] | None:
    try:
        return packed_objects(Path(stem + ".pack").read_bytes(), Path(stem + ".idx").read_bytes(), format_)
    except FileNotFoundError:
        return None


def _delete(stems: Iterable[str]) -> None:
    """Delete packs. The index goes last, since it alone tells what a pack that was half deleted had in it."""
    for stem in stems:
        for suffix in (".pack", ".idx"):
            with suppress(FileNotFoundError):
                os.unlink(stem + suffix)
