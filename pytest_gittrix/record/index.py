"""A derived index over a store: which sessions there are, and which are due, without opening every log.

Nothing reads it as truth. Before every answer it is brought up to date: a log whose size, time and inode are as they were when it was
folded is not opened again. It can be deleted, cut short or of another version at any time and is then built anew without a word. It must not know what
an answer is used for.

Small stores get an index in memory: opening a file of SQLite's takes longer than folding a few logs.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.record.state import SessionState, deadline_ns, metadata_of
from pytest_gittrix.record.store import LOG, METADATA, Problem, Store, record_text, valid_id

FILE = "index.sqlite"
VERSION = 1
SMALL = 64

Signature = tuple[int, int, int]
T = TypeVar("T")

_LARGEST = 2**63 - 1
_BUSY_SECONDS = 5.0
# Of a session that must be read again next time, whatever its files look like.
_NEVER: Signature = (-1, -1, -1)

# Times are in microseconds, which is all an event's time holds: nanoseconds would end in 2262.
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE session (
    id TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
    problem TEXT,
    state TEXT, deadline_us INTEGER, created_us INTEGER, updated_us INTEGER, last_access_us INTEGER,
    durable BLOB, seq INTEGER, workspace_present INTEGER, legacy INTEGER, metadata TEXT
) WITHOUT ROWID;
CREATE INDEX session_due ON session (deadline_us) WHERE state = 'active' OR (state = 'promoted' AND workspace_present);
PRAGMA user_version = {VERSION};
COMMIT;
"""
_COLUMNS = 15
_DUE = """
SELECT id FROM session WHERE deadline_us < ? AND (state = 'active' OR (state = 'promoted' AND workspace_present))
ORDER BY deadline_us, id
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What the index says about one session.

    Attributes:
        id, state, seq, workspace_present, legacy: as in ``SessionState``.
        created_ns, updated_ns, last_access_ns: likewise. deadline_ns: of its TTL, rounded up to a microsecond; None for no limit.
        log_size: bytes of its log (of its record, when legacy).
        metadata: the version-1 record, as JSON text.
    """

    id: str
    state: str
    deadline_ns: int | None
    created_ns: int
    updated_ns: int
    last_access_ns: int
    seq: int
    workspace_present: bool
    legacy: bool
    log_size: int
    metadata: str


class Index:
    """The index of one store. May be used by several threads; several processes may use the file at once.

    Args:
        store: whose sessions. Nothing is opened until the first question.
        persist_from: how many sessions make the file worth its while; with fewer, and no file there, the index is kept in memory.
    """

    def __init__(self, store: Store, *, persist_from: int = SMALL) -> None:
        self.store = store
        self.path = store.root / FILE
        self._persist_from = persist_from
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._seen: dict[str, Signature] = {}
        self._seen_version = -1

    def sync(self) -> None:
        """Read the sessions that changed since the index last saw them, and forget those that are gone.

        Raises:
            AdapterUnavailable: the store cannot be listed.
        """
        found = _signatures(self.store.root)
        self._with_database(lambda database: self._update(database, found), len(found))

    def due(self, now_ns: int) -> list[str]:
        """The sessions past their TTL at ``now_ns`` (strictly greater, GitTrix), longest overdue first, then by id.

        Those are the active ones, and promoted ones that kept their workspace. As of the last :meth:`sync`.
        """
        now_us = min(-(-now_ns // 1000), _LARGEST)
        return self._with_database(lambda database: [id for (id,) in database.execute(_DUE, (now_us,))])

    def list(self, *, state: str | None = None, durable_path: str | None = None, workspace_present: bool | None = None) -> list[Row]:
        """The sessions of a state, of a durable repository, with or without their workspace; oldest first, then by id.

        As of the last :meth:`sync`. What cannot be read is not here but in :meth:`problems`.
        """
        wanted = {"state": state, "durable": _blob(durable_path), "workspace_present": workspace_present}
        terms = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND {name} = :{name}" for name in terms)
        query = f"SELECT * FROM session WHERE problem IS NULL{where} ORDER BY created_us, id"
        return self._with_database(lambda database: [_row(fields) for fields in database.execute(query, terms)])

    def problems(self) -> list[Problem]:
        """The sessions that cannot be read, in order of id, as of the last :meth:`sync`."""
        query = "SELECT id, problem FROM session WHERE problem IS NOT NULL ORDER BY id"
        return self._with_database(lambda database: [Problem(*fields) for fields in database.execute(query)])

    def rebuild(self) -> None:
        """Forget everything and read every session again. Raises AdapterUnavailable as :meth:`sync`."""
        with self._lock:
            self.close()
            self._delete()
            self.sync()

    def close(self) -> None:
        """Let go of the file. The next question opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            self._seen, self._seen_version = {}, -1
            # A connection that came with fork() is the parent's to close.
            if connection is not None and self._pid == os.getpid():
                connection.close()

    def _update(self, database: sqlite3.Connection, found: Mapping[str, Signature]) -> None:
        seen = self._known(database)
        if found == seen:
            return
        gone = [(id,) for id in seen.keys() - found.keys()]
        rows = [self._read(id, signature) for id, signature in found.items() if seen.get(id) != signature]
        with _transaction(database):
            database.executemany("DELETE FROM session WHERE id = ?", gone)
            database.executemany(f"INSERT OR REPLACE INTO session VALUES ({', '.join('?' * _COLUMNS)})", rows)
        for (id,) in gone:
            del seen[id]
        seen.update({row[0]: row[1:4] for row in rows})

    def _known(self, database: sqlite3.Connection) -> dict[str, Signature]:
        """Signatures as the database has them; read again only when another connection wrote."""
        (version,) = database.execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            rows = database.execute("SELECT id, size, mtime_ns, inode FROM session")
            self._seen = {id: (size, mtime, inode) for id, size, mtime, inode in rows}
            self._seen_version = version
        return self._seen

    def _read(self, id: str, signature: Signature) -> tuple[Any, ...]:
        try:
            state = self.store.load(id)
        except GittrixError as problem:
            return (id, *signature, str(problem).encode("utf-8", "replace").decode(), *[None] * (_COLUMNS - 5))
        if state.legacy and os.path.lexists(self.store.directory(id) / LOG):
            signature = _NEVER  # its log holds nothing yet, so the record counts, and the signature is the log's
        return (id, *signature, None, *_fields(state))

    def _with_database(self, ask: Callable[[sqlite3.Connection], T], count: int = 0) -> T:
        """Ask the database; one that turns out to be damaged is thrown away, and the question asked of a new one."""
        with self._lock:
            try:
                return ask(self._opened(count))
            except sqlite3.DatabaseError:
                self.close()
                self._delete()
            try:
                return ask(self._refilled(count))
            except sqlite3.DatabaseError:
                self.close()
            # The file will not do (a full disk, another process that keeps it locked): the answer is more than the file is.
            self._adopt(_memory())
            return ask(self._refilled(count))

    def _refilled(self, count: int) -> sqlite3.Connection:
        database = self._opened(count)
        self._update(database, _signatures(self.store.root))
        return database

    def _opened(self, count: int) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        return self._adopt(self._file() if count >= self._persist_from or self.path.exists() else _memory())

    def _adopt(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        self._connection, self._pid = connection, os.getpid()
        self._seen, self._seen_version = {}, -1
        return connection

    def _file(self) -> sqlite3.Connection:
        try:
            connection = _connect(str(self.path))
        except sqlite3.OperationalError:
            return _memory()  # a store that cannot be written to, or a file that stays locked
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError("an index of another version")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")
            if version == 0:
                _create(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{self.path}{suffix}")
