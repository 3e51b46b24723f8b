"""Whether a store is up to date: its index has every event, and a recovery or a sweep would find nothing to do.

A recovery looks into the directory of every session, which takes seconds where there are thousands. Here the index is asked for the open
sessions, the few that anything can happen to, and only those are looked at.
The module loads as little as it can: a command that only shows something needs nothing else.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Final

from pytest_gittrix.os_level.files import UNNEEDED_FOR, is_older, names_in
from pytest_gittrix.record.store.index_tables import FILE, OPEN, VERSION
from pytest_gittrix.record.store.listing import ID, is_temporary, signatures

_TRASH: Final = ".trash"
_SEEDS: Final = ".seeds"
_SPARES: Final = ".spares"
_RESOURCES: Final = "resources"

# Nothing can be said of a session that is unfinished, unreadable, of another system, or managed for a member.
_UNCLEAR: Final = "unsettled OR legacy OR problem IS NOT NULL OR life IS NOT NULL"
_OPEN_ROWS: Final = (
    f"SELECT id, size, mtime_ns, inode, deadline_us, last_access_us, ({_UNCLEAR}), metadata FROM session WHERE {OPEN} ORDER BY id"
)


@contextmanager
def up_to_date_index(root: str, now_ns: int) -> Iterator[sqlite3.Connection | None]:
    """Give the index of a store that is up to date, to be read; None if it is not, or has no index file.

    A session that has ended for good is not looked at: the caller checks by its signature whether its row is up to date.

    Args:
        root: the directory of sessions.
        now_ns: the time, in nanoseconds since 1970 UTC.
    """
    path = os.path.join(root, FILE)
    if not os.path.exists(path):
        yield None
        return
    with ExitStack() as stack:
        try:
            database = stack.enter_context(closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)))
            is_up_to_date = _is_up_to_date(root, database, now_ns // 1000)
        except (sqlite3.DatabaseError, ValueError, LookupError, TypeError, OSError):  # a damaged file, or a row that is no record
            is_up_to_date = False
        yield database if is_up_to_date else None


def is_up_to_date(root: str, now_ns: int) -> bool:
    """Whether a store is up to date; one without sessions needs no index for that."""
    if not any(map(ID.fullmatch, names_in(root))):
        return not _has_unneeded(root, ())
    with up_to_date_index(root, now_ns) as index:
        return index is not None


def _is_up_to_date(root: str, database: sqlite3.Connection, now_us: int) -> bool:
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
        and not _has_unneeded(root, baselines)
    )


def _has_temporaries(directory: str) -> bool:
    return any(is_temporary(name) for part in ("", _RESOURCES) for name in names_in(os.path.join(directory, part)))


def _has_unneeded(root: str, baselines: Collection[str]) -> bool:
    """Whether a recovery would remove anything but sessions: trash, old seeds and old spares."""
    return bool(names_in(os.path.join(root, _TRASH))) or any(
        is_older(os.path.join(root, directory, name), UNNEEDED_FOR)
        for directory in (_SEEDS, _SPARES)
        for name in names_in(os.path.join(root, directory))
        if name.partition("-")[0] not in baselines
    )
