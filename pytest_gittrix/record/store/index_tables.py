"""The tables of an index, and how they are opened: in a file, or in memory.

A file of another version or a damaged one is an error here, which the index handles.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from functools import cache
from typing import TYPE_CHECKING, Final

from pytest_gittrix.os_level.files import OWNERS

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gittrix.record.eventlog.change_feed import Mark

FILE: Final = "index.sqlite"
"""The name of an index in the directory of its store."""
VERSION: Final = 10
"""Of the tables; a file of another version is rebuilt."""

# Times are in microseconds, all that an event's time holds; in nanoseconds SQLite's integers would end in the year 2262.
COLUMNS: Final = (
    "id TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, inode INTEGER, problem TEXT, "
    "state TEXT, deadline_us INTEGER, created_us INTEGER, updated_us INTEGER, last_access_us INTEGER, "
    "seq INTEGER, workspace_present INTEGER, legacy INTEGER, durable BLOB, metadata TEXT, unsettled INTEGER, "
    "agent TEXT, rig TEXT, work_unit TEXT, chain TEXT, outcome TEXT, parent TEXT, life TEXT, member TEXT, turn TEXT, said INTEGER"
)
WIDTH: Final = COLUMNS.count(",") + 1
"""The number of values of a row."""

# The columns that a query needs: reading these of every session takes a twentieth of the time that reading the rows takes.
_FACTS: Final = "created_us DESC, id, problem, rig, outcome, agent, work_unit"
EVICTABLE: Final = "(state = 'active' OR (state = 'promoted' AND workspace_present))"
"""Which sessions a sweep may end."""
OPEN: Final = "(state = 'active' OR workspace_present OR unsettled OR legacy OR problem IS NOT NULL OR life IS NOT NULL)"
"""Which sessions a recovery or a sweep may have to look at. All others have ended for good."""
PROMOTED: Final = """(state = 'promoted' OR instr(metadata, '"earlierBaselines"'))"""
"""Which sessions have promoted, also if they went on; those that were only rebased are among them."""

_SCHEMA: Final = (
    f"CREATE TABLE session ({COLUMNS})",
    f"CREATE INDEX session_due ON session (deadline_us, id) WHERE {EVICTABLE}",
    "CREATE INDEX session_chain ON session (chain)",
    "CREATE INDEX session_parent ON session (parent) WHERE parent IS NOT NULL",
    "CREATE INDEX session_unit ON session (work_unit, created_us) WHERE work_unit IS NOT NULL",
    f"CREATE INDEX session_agent ON session (agent, {_FACTS}) WHERE agent IS NOT NULL",
    f"CREATE INDEX session_facts ON session ({_FACTS})",
    "CREATE INDEX session_used ON session (last_access_us) WHERE state = 'active'",
    "CREATE INDEX session_foreign ON session (id) WHERE legacy OR problem IS NOT NULL",
    "CREATE INDEX session_life ON session (life, member, created_us) WHERE life IS NOT NULL",
    f"CREATE INDEX session_open ON session (id) WHERE {OPEN}",
    f"CREATE INDEX session_promoted ON session (id) WHERE {PROMOTED}",
    "CREATE INDEX session_unsettled ON session (id) WHERE unsettled",
    "CREATE TABLE mark (stamp TEXT, offset INTEGER)",
    f"PRAGMA user_version = {VERSION}",
)


def on_disk(path: Path) -> sqlite3.Connection:
    """The index in a file, made if need be. Raises sqlite3.DatabaseError if it is damaged, or of another version."""
    with suppress(OSError):  # then SQLite says what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNERS))  # SQLite's further files get the mode of this one
    connection = _connect(str(path))
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN IMMEDIATE")  # two processes may meet here; the second finds the tables made
    with connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            _make_tables(connection)
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"an index of version {version}")


def in_memory() -> sqlite3.Connection:
    """An index that is gone when it is closed."""
    connection = _connect(":memory:")
    connection.deserialize(_empty())
    return connection


@cache
def _empty() -> bytes:
    """An index without sessions, since its tables take four times as long to make as to copy."""
    with closing(_connect(":memory:")) as connection:
        _make_tables(connection)
        return connection.serialize()


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=5.0, isolation_level=None, check_same_thread=False)


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)


def set_mark(database: sqlite3.Connection, mark: Mark | None) -> None:
    """Store up to where the change feed was read; None if it was not."""
    database.execute("DELETE FROM mark")
    if mark is not None:
        database.execute("INSERT INTO mark VALUES (?, ?)", (mark.stamp, mark.offset))


def earlier(one: Mark | None, other: Mark | None) -> Mark | None:
    """The earlier of two marks of one file; None if they are of different files."""
    if one is None or other is None or one.stamp != other.stamp:
        return None
    return min(one, other, key=lambda mark: mark.offset)
