"""Detect branches and tags of durable that moved without a promotion (rule 6)."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.git.refs import BRANCHES_AND_TAGS, PackedReferences
from pytest_gittrix.os_level.files import link_or_copy, names_in, private_directory, write_file, write_new
from pytest_gittrix.workspaces.creation_note import json_name

_FOLLOWED = 1000
REFERENCES: Final = ".references"
"""The directory of a store that has the packed references which sessions share."""
_NOTES: Final = "refs.json"
_PACKED: Final = "refs.packed"
_SHARED_FROM: Final = 1 << 14
"""The size of ``packed-refs`` in bytes from which a link to a shared copy costs less than one of a session's own."""
_RETRIES: Final = 10


@dataclass(frozen=True, slots=True)
class MovedRef:
    """A branch or tag of durable that moved without a promotion.

    Attributes:
        ref: its full name.
        old: where it was when the session started; None if it is new.
        new: where it is now; None if it is gone.
    """

    ref: str
    old: str | None
    new: str | None


def note_references(directory: Path, shared: Path, durable: Durable, *, sync: bool = False) -> None:
    """Store the present values of durable's references in the engine's notes of a session.

    Many packed references are stored once for all sessions that begin while durable has them: each session gets a hard link.

    Args:
        directory: the notes of the session.
        shared: the directory of packed references, made when the first ones are stored.
        durable: its repository.
        sync: write the shared file through to the disk.
    """
    loose, packed = durable.stored_references()
    if len(packed.data) < _SHARED_FROM:
        loose, packed = {**packed.below(*BRANCHES_AND_TAGS), **loose}, PackedReferences()
    write_new(os.path.join(directory, _NOTES), json.dumps({json_name(ref): sha for ref, sha in loose.items()}).encode())
    if packed.data:
        _link(packed, shared, os.path.join(directory, _PACKED), sync=sync)


def _link(packed: PackedReferences, shared: Path, path: str, *, sync: bool) -> None:
    source = shared / packed.digest
    for _ in range(_RETRIES):
        with suppress(FileNotFoundError):  # it had no link yet when another session's start looked for what has none
            if not source.exists():
                private_directory(shared)
                for name in names_in(shared):
                    _remove_unlinked(shared / name)
                write_file(source, packed.data, sync=sync)
            link_or_copy(source, path)
            return
    write_file(path, packed.data, sync=sync)


def _remove_unlinked(path: Path) -> None:
    """Remove packed references without a link from a session, and temporary files of a killed writer."""
    with suppress(OSError):
        if path.stat().st_nlink == 1:
            path.unlink()


def moved_references(directory: Path, durable: Durable, promoted: Collection[str]) -> list[MovedRef]:
    """The references that moved since ``note_references`` and that no promotion explains.

    A person's own commits are among them: only a person can say whether a move was intended.

    Raises:
        AdapterUnavailable: the notes cannot be read.
    """
    try:
        loose = {os.fsdecode(ref.encode("latin-1")): sha for ref, sha in json.loads((directory / _NOTES).read_bytes()).items()}
        shared = directory / _PACKED
        packed = PackedReferences(shared.read_bytes() if shared.exists() else b"")
    except (OSError, ValueError) as problem:
        raise AdapterUnavailable(
            f"The engine's notes of durable's references cannot be read: {problem}.", fix="Ask while the session lives."
        ) from problem
    loose_now, packed_now = durable.stored_references()
    shared_then = packed.below(*BRANCHES_AND_TAGS)
    shared_now = shared_then if packed_now == packed else packed_now.below(*BRANCHES_AND_TAGS)
    then, now = shared_then | loose, shared_now | dict(loose_now)
    moved = [MovedRef(ref, then.get(ref), now.get(ref)) for ref in sorted(then.keys() | now.keys()) if then.get(ref) != now.get(ref)]
    return [move for move in moved if not _explained(durable, move, promoted)]


def _explained(durable: Durable, move: MovedRef, promoted: Collection[str]) -> bool:
    """Whether every commit between a reference's old and new place is a promotion."""
    here = move.new
    for _ in range(_FOLLOWED):
        if here is None or here == move.old:
            return here is not None
        if here not in promoted:
            return False
        if move.old is None:
            return True
        parents = durable.commit(here).parents
        here = parents[0] if parents else None
    return False
