"""Whether a store is at rest: its index is up to date, and a recovery or a sweep would find nothing to do.

A recovery looks into the directory of every session, which takes seconds where there are thousands. Here the index is asked for the open
sessions, the few that anything can happen to, and only those are looked at. A store of which the index does not know everything is not at
rest. The module loads as little as it can: a command that only shows something needs nothing else.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from pytest_gittrix.os_level.files import names_in
from pytest_gittrix.record.store.index_tables import FILE, OPEN, VERSION
from pytest_gittrix.record.store.listing import ID, is_temporary, signatures

_TRASH: Final = ".trash"
_SEEDS: Final = ".seeds"
_RESOURCES: Final = "resources"
_SEED_LASTS: Final = 86400.0
"""Seconds for which a seed stays that no session needs."""

# Nothing can be said of a session that is unfinished, unreadable, of another system, or managed for a member.
_UNCLEAR: Final = "unsettled OR legacy OR problem IS NOT NULL OR life IS NOT NULL"
_OPEN_ROWS: Final = (
    f"SELECT id, size, mtime_ns, inode, deadline_us, last_access_us, ({_UNCLEAR}), metadata FROM session WHERE {OPEN} ORDER BY id"
)


@contextmanager
def store_at_rest(root: str, now_ns: int) -> Iterator[sqlite3.Connection | None]:
    """Give the index of a store that is at rest, to be read; None if it is not at rest, or has no index file.

    A session that has ended for good is not looked at: whether its row is up to date is for the caller to see, by its signature.

    Args:
        root: the directory of sessions.
        now_ns: the time, in nanoseconds since 1970 UTC.
    """
    path = os.path.join(root, FILE)
    if not os.path.exists(path):
        yield None
        return
    with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as database:
        try:
            rests = _is_at_rest(root, database, now_ns // 1000)
        except (sqlite3.DatabaseError, OSError):
            rests = False
        yield database if rests else None


def is_at_rest(root: str, now_ns: int) -> bool:
    """Whether a store is at rest, as one without sessions is that needs no index."""
    if not any(map(ID.fullmatch, names_in(root))):
        return not names_in(os.path.join(root, _TRASH)) and not _has_old_seeds(os.path.join(root, _SEEDS), set())
    with store_at_rest(root, now_ns) as index:
        return index is not None


def _is_at_rest(root: str, database: sqlite3.Connection, now_us: int) -> bool:
    if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
        return False
    known, baselines = {}, set()
    for id, size, mtime_ns, inode, deadline_us, last_access_us, unclear, metadata in database.execute(_OPEN_ROWS):
        if unclear or last_access_us > now_us or (deadline_us is not None and deadline_us < now_us):
            return False
        known[id] = (size, mtime_ns, inode)
        baselines.add(json.loads(metadata)["baselineSha"])
    # One text, since a row for each of thousands takes twice the time.
    (joined,) = database.execute("SELECT group_concat(id, '/') FROM session").fetchone()
    ids = set(joined.split("/")) if joined else set()
    names = set(os.listdir(root))
    return (
        ids <= names
        and not any(ID.fullmatch(name) for name in names - ids)
        and signatures(root, names=known) == known
        and not any(_has_temporaries(os.path.join(root, id)) for id in known)
        and not names_in(os.path.join(root, _TRASH))
        and not _has_old_seeds(os.path.join(root, _SEEDS), baselines)
    )


def _has_temporaries(directory: str) -> bool:
    return any(is_temporary(name) for part in ("", _RESOURCES) for name in names_in(os.path.join(directory, part)))


def _has_old_seeds(seeds: str, baselines: set[str]) -> bool:
    """Whether there is a seed that a recovery would remove."""
    unneeded = (name for name in names_in(seeds) if name.partition("-")[0] not in baselines)
    made_before = time.clock_gettime(time.CLOCK_REALTIME) - _SEED_LASTS
    return any(os.stat(os.path.join(seeds, name)).st_mtime < made_before for name in unneeded)
