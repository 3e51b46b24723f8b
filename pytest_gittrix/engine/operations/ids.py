"""Session ids: random ones, a sequence that is the same for the same seed (rule 13), and claiming a new one in a store."""

from __future__ import annotations

import hashlib
import os
import secrets
import string
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

from pytest_gittrix.durations import ns_of
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.store.store import Store

_ALPHABET: Final = string.ascii_letters + string.digits + "_-"
_LENGTH: Final = 12
_DRAWN: Final = 24


def random_id() -> str:
    """A session id as GitTrix makes them: ``sess_`` and twelve random URL-safe characters."""
    return "sess_" + secrets.token_urlsafe(_LENGTH * 3 // 4)


class SeededIds:
    """Makes ids: the same sequence for the same seed, drawing on no random state."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made = count()
        self._drawn = count()

    def __call__(self) -> str:
        digest = hashlib.sha256(f"{self._seed}:{next(self._made)}".encode()).digest()
        return "sess_" + "".join(_ALPHABET[byte % 62] for byte in digest[:_LENGTH])

    def bits(self, number: int) -> int:
        """So many bits, for ids in order of time; they are a sequence of their own."""
        digest = hashlib.sha256(f"{self._seed}:bits:{next(self._drawn)}".encode()).digest()
        return int.from_bytes(digest) >> (len(digest) * 8 - number)


def seeded_ids(seed: int) -> SeededIds:
    """A maker of ids that gives the same sequence for the same seed, drawing on no random state."""
    return SeededIds(seed)


class SortableIds:
    """Makes ids as Pixir does: the time in UTC, then its microseconds and 24 more bits in hex digits.

    They are in order of time, and fit for a file's name. Those that one object makes at one instant are in the order in which they were
    made. Safe to use from several threads.

    Args:
        bits: draws so many bits.
    """

    def __init__(self, bits: Callable[[int], int] = secrets.randbits) -> None:
        self._bits = bits
        self._last = (0, 0)
        self._lock = threading.Lock()

    def __call__(self, now: datetime) -> str:
        """An id for an aware instant."""
        instant = ns_of(now) // 1000
        with self._lock:
            then, last = self._last
            drawn = self._bits(_DRAWN) >> 1 if instant != then else last + 1  # half of them are left for others of the same instant
            self._last = (instant, drawn)
        return f"{now.astimezone(UTC):%Y%m%dT%H%M%S}-{now.microsecond:05x}{drawn:06x}"


sortable_id: Final = SortableIds()
"""Makes ids as Pixir does from an aware instant; see ``SortableIds``."""


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
