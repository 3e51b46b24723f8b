"""The detector of moves without a promote: branches and tags of durable that no promotion explains (rule 6)."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.files import write_new
from pytest_gittrix.workspaces.workspace import json_name

_FOLLOWED = 1000
_NOTES = "refs.json"


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


def note_references(directory: Path, references: Mapping[str, str]) -> None:
    """Store where durable's references are, in the engine's notes of a session."""
    write_new(os.path.join(directory, _NOTES), json.dumps({json_name(ref): sha for ref, sha in references.items()}).encode())


def moved_references(directory: Path, durable: Durable, promoted: Collection[str]) -> list[MovedRef]:
    """The references that moved since ``note_references`` and that no promotion explains.

    A person's own commits are among them: only a person can say whether a move was intended.

    Args:
        directory: the engine's notes of a session.
        durable: its repository.
        promoted: commits that promotions made.

    Raises:
        AdapterUnavailable: the notes cannot be read.
    """
    try:
        then = {os.fsdecode(ref.encode("latin-1")): sha for ref, sha in json.loads((directory / _NOTES).read_bytes()).items()}
    except (OSError, ValueError) as problem:
        raise AdapterUnavailable(
            f"Where durable's references were is not known any more: {problem}.", fix="Ask while the session lives."
        ) from problem
    now = durable.references()
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
