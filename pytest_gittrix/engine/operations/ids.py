"""Session ids: random ones, a sequence that is the same for the same seed (rule 13), and claiming a new one in a store."""

from __future__ import annotations

import hashlib
import os
import secrets
import string
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.store.store import Store

_ALPHABET: Final = string.ascii_letters + string.digits + "_-"
_LENGTH: Final = 12


def random_id() -> str:
    """A session id as GitTrix makes them: ``sess_`` and twelve random URL-safe characters."""
    return "sess_" + secrets.token_urlsafe(_LENGTH * 3 // 4)


def seeded_ids(seed: int) -> Callable[[], str]:
    """A maker of ids that gives the same sequence for the same seed, drawing on no random state."""
    count = 0

    def make() -> str:
        nonlocal count
        digest = hashlib.sha256(f"{seed}:{count}".encode()).digest()
        count += 1
        return "sess_" + "".join(_ALPHABET[byte % 62] for byte in digest[:_LENGTH])

    return make


def sortable_id(now: datetime) -> str:
    """An id as Pixir makes them: the time in UTC, then six random hex digits; in order of time, and fit for a file's name.

    Args:
        now: aware.
    """
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def claim_id(store: Store, make: Callable[[], str], chosen: str | None = None) -> tuple[str, Lease]:
    """Make the directory of a new session and lease it.

    Args:
        store: the store.
        make: makes ids; those that are taken are passed over.
        chosen: the id, if the caller chose it.

    Returns:
        The id, and the lease, held.

    Raises:
        InvalidInput: ten thousand ids in a row were taken, or the chosen one is, or it is malformed.
        AdapterUnavailable: the disk refused; nothing is left.
    """
    if chosen is not None:
        return chosen, _first_lease(store, chosen)
    for _ in range(10_000):
        id_ = make()
        if not os.path.lexists(store.directory(id_)):
            return id_, _first_lease(store, id_)
    raise InvalidInput("Ten thousand ids in a row were taken.", why="Ids are never used twice.", fix="Pass ids= that makes new ones.")


def _first_lease(store: Store, id_: str) -> Lease:
    """Make and lease a new directory; again if a concurrent recovery took the empty directory for the remains of a kill."""
    while True:
        store.create(id_)
        try:
            return store.lease(id_).acquire()
        except AdapterUnavailable:
            if not _gone(store.directory(id_)):
                raise


def _gone(directory: Path) -> bool:
    """Whether a directory was removed already; if not, it is removed, since it is empty."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
