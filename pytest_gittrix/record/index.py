"""A derived index over a store: which sessions there are and which are due, without opening every log.

Nothing reads it as truth. :meth:`Index.sync` folds only the logs whose size, time or inode changed since they were last folded. The
file can be deleted, damaged or of another version at any time, and is then built anew without a word. It must not know what an answer
is used for.

A small store gets its index in memory: opening a file of SQLite's takes longer than folding a few logs.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.state import SessionState, StateName, deadline_ns, metadata_of
from pytest_gittrix.record.store import ID, LOG, METADATA, Problem, Store

FILE = "index.sqlite"
VERSION = 4
SMALL = 64

T = TypeVar("T")
Signature = tuple[int, int, int]

# Of a session whose row must be made again next time, whatever its files look like.
_NEVER: Signature = (-1, -1, -1)
_LARGEST = 2**63 - 1

# Times are in microseconds, all that an event's time holds; in nanoseconds SQLite's integers would end in the year 2262.
_COLUMNS = (
    "id TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, inode INTEGER, problem TEXT, "
    "state TEXT, deadline_us INTEGER, created_us INTEGER, updated_us INTEGER, last_access_us INTEGER, "
    "seq INTEGER, workspace_present INTEGER, legacy INTEGER, durable BLOB, metadata TEXT, unsettled INTEGER, "
    "agent TEXT, rig TEXT, work_unit TEXT, chain TEXT, outcome TEXT, parent TEXT"
)
_WIDTH = _COLUMNS.count(",") + 1
_EVICTABLE = "(state = 'active' OR (state = 'promoted' AND workspace_present))"
_SCHEMA = (
    f"CREATE TABLE session ({_COLUMNS})",
    f"CREATE INDEX session_due ON session (deadline_us, id) WHERE {_EVICTABLE}",
    "CREATE INDEX session_chain ON session (chain)",
    "CREATE INDEX session_parent ON session (parent) WHERE parent IS NOT NULL",
    "CREATE INDEX session_unit ON session (work_unit) WHERE work_unit IS NOT NULL",
    "CREATE INDEX session_agent ON session (agent, created_us) WHERE agent IS NOT NULL",
    "CREATE INDEX session_created ON session (created_us)",
    "CREATE INDEX session_used ON session (last_access_us) WHERE state = 'active'",
    f"PRAGMA user_version = {VERSION}",
)
_DUE = f"SELECT id FROM session WHERE deadline_us < ? AND {_EVICTABLE} ORDER BY deadline_us, id"
_AHEAD = "SELECT id FROM session WHERE last_access_us > ? AND state = 'active'"
_UNSETTLED = "SELECT id FROM session WHERE unsettled ORDER BY id"
_ROWS = (
    "SELECT id, state, deadline_us, created_us, updated_us, last_access_us, seq, workspace_present, legacy, size, metadata "
    "FROM session WHERE problem IS NULL"
)


@dataclass(frozen=True, slots=True)
class Row:
    """What the index says about one session.

    Attributes:
        id, state, created_ns, updated_ns, last_access_ns, seq, workspace_present, legacy: as in ``SessionState``.
        deadline_ns: the end of its TTL, rounded up to a microsecond; None for no limit.
        log_size: bytes of its log; of its record, when there is no log.
        metadata: the version-1 record, as JSON text (``SessionMetadata.model_validate_json`` reads it).
    """

    id: str
    state: StateName
    deadline_ns: int | None
    created_ns: int
    updated_ns: int
    last_access_ns: int
    seq: int
    workspace_present: bool
    legacy: bool
    log_size: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for; everything that is given must hold (Gas Town, session-systems 2.3).

    Attributes:
        agent, rig, work_unit, chain, outcome, parent: equal to this.
        since_ns: started then or later.
        until_ns: started before.
        limit: how many at most; 0 for all.
    """

    EQUAL: ClassVar = ("agent", "rig", "work_unit", "chain", "outcome", "parent")

    agent: str | None = None
    rig: str | None = None
    work_unit: str | None = None
    chain: str | None = None
    outcome: str | None = None
    parent: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    limit: int = 0


class Index:
    """The index of one store. Several threads may share it, and several processes may have one each.

    Args:
        store: whose sessions. Nothing is opened before the first question.
        persist_from: how many sessions make a file worth while; below that, if there is none yet, the index is kept in memory.
    """

    def __init__(self, store: Store, *, persist_from: int = SMALL) -> None:
        self.store = store
        self.path = store.root / FILE
        self._persist_from = persist_from
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._seen: dict[str, Signature] = {}
        self._seen_version: int | None = None

    def sync(self) -> None:
        """Fold the sessions that changed since the index last saw them, and forget those that are gone.

        Raises:
            AdapterUnavailable: the store cannot be listed.
        """
        self._ask(lambda _database: None, fresh=True)

    def due(self, now_ns: int) -> list[str]:
        """The sessions past their TTL at ``now_ns`` (strictly greater, GitTrix), longest overdue first, then by id.

        Those are the active ones, and promoted ones that kept their workspace. As of the last :meth:`sync`.
        """
        now_us = -(-now_ns // 1000)
        return self._ask(lambda database: [id for (id,) in database.execute(_DUE, (min(now_us, _LARGEST),))])

    def ahead(self, now_ns: int) -> list[str]:
        """The active sessions that were last used after ``now_ns``, because the clock was set back since; as of the last :meth:`sync`."""
        return self._ask(lambda database: sorted(id for (id,) in database.execute(_AHEAD, (now_ns // 1000,))))

    def unsettled(self) -> list[str]:
        """The sessions in which something was begun and not finished, in order of id, as of the last :meth:`sync`."""
        return self._ask(lambda database: [id for (id,) in database.execute(_UNSETTLED)])

    def rows(self, *, state: StateName | None = None, durable_path: str | None = None, workspace_present: bool | None = None) -> list[Row]:
        """The sessions in a state, of a durable repository, with or without their workspace; oldest first, then by id.

        As of the last :meth:`sync`. What cannot be read is not here but in :meth:`problems`.
        """
        wanted = {"state": state, "durable": _blob(durable_path), "workspace_present": workspace_present}
        terms = {name: value for name, value in wanted.items() if value is not None}
        query = _ROWS + "".join(f" AND {name} = :{name}" for name in terms) + " ORDER BY created_us, id"
        return self._ask(lambda database: [_row(*fields) for fields in database.execute(query, terms)])

    def row(self, id: str) -> Row | None:
        """One session, if it is there and can be read; as of the last :meth:`sync`."""
        found = self._ask(lambda database: database.execute(f"{_ROWS} AND id = ?", (id,)).fetchone())
        return None if found is None else _row(*found)

    def ids_from(self, prefix: str, most: int) -> list[str]:
        """The ids that begin so, in order, at most so many; as of the last :meth:`sync`."""
        query = "SELECT id FROM session WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        return self._ask(lambda database: [id for (id,) in database.execute(query, (prefix, prefix + "\x7f", most))])

    def query(self, query: Query) -> list[Row]:
        """The sessions that fit a query, newest first, then by id; as of the last :meth:`sync`."""
        equal = {name: value for name in Query.EQUAL if (value := getattr(query, name)) is not None}
        terms = [f"{name} = :{name}" for name in equal]
        terms += ["created_us >= :since"] * (query.since_ns is not None) + ["created_us < :until"] * (query.until_ns is not None)
        values = {**equal, "since": _microseconds(query.since_ns), "until": _microseconds(query.until_ns), "most": query.limit or -1}
        found = "".join(f" AND {term}" for term in terms)
        ordered = f"{_ROWS}{found} ORDER BY created_us DESC, id LIMIT :most"
        return self._ask(lambda database: [_row(*fields) for fields in database.execute(ordered, values)])

    def problems(self) -> list[Problem]:
        """The sessions that cannot be read, in order of id, as of the last :meth:`sync`."""
        query = "SELECT id, problem FROM session WHERE problem IS NOT NULL ORDER BY id"
        return self._ask(lambda database: [Problem(*fields) for fields in database.execute(query)])

    def rebuild(self) -> None:
        """Forget everything and fold every session again. Raises AdapterUnavailable as :meth:`sync`."""
        with self._lock:
            self._discard()
            self.sync()

    def close(self) -> None:
        """Let go of the file; the next question opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None and self._pid == os.getpid():
                connection.close()

    def _ask(self, question: Callable[[sqlite3.Connection], T], *, fresh: bool = False) -> T:
        """Put a question to the database; if SQLite fails, to one made anew; if that fails too, to one in memory."""
        with self._lock:
            try:
                if fresh or not self._is_open():
                    self._update(_signatures(self.store.root, self._seen))
                return question(self._opened())
            except sqlite3.DatabaseError:
                self._discard()
            try:
                self._update(_signatures(self.store.root, self._seen))
                return question(self._opened())
            except sqlite3.DatabaseError:
                self.close()
            # A read-only store or a full disk. The answer is what matters, the file only made it faster.
            self._adopt(_in_memory())
            self._update(_signatures(self.store.root, self._seen))
            return question(self._opened())

    def _update(self, found: dict[str, Signature]) -> None:
        database = self._opened(len(found))
        seen = self._known(database)
        if found == seen:
            return
        gone = seen.keys() - found.keys()
        rows = [self._read(id, signature) for id, signature in found.items() if seen.get(id) != signature]
        database.execute("BEGIN IMMEDIATE")
        with database:
            database.executemany("DELETE FROM session WHERE id = ?", [(id,) for id in gone])
            database.executemany(f"INSERT OR REPLACE INTO session VALUES ({', '.join('?' * _WIDTH)})", rows)
        for id in gone:
            del seen[id]
        seen.update((row[0], row[1:4]) for row in rows)

    def _known(self, database: sqlite3.Connection) -> dict[str, Signature]:
        """The signatures in the database, read again only when another connection has written to it."""
        (version,) = database.execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            rows = database.execute("SELECT id, size, mtime_ns, inode FROM session")
            self._seen = {id: (size, mtime_ns, inode) for id, size, mtime_ns, inode in rows}
            self._seen_version = version
        return self._seen

    def _read(self, id: str, signature: Signature) -> tuple[Any, ...]:
        try:
            state = self.store.load(id)
        except GittrixError as problem:
            lasting = isinstance(problem, (LogDamaged, MetadataVersionUnsupported, InvalidInput))
            message = str(problem).encode("utf-8", "backslashreplace").decode()
            return (id, *(signature if lasting else _NEVER), message, *[None] * (_WIDTH - 5))
        if state.legacy and os.path.lexists(self.store.directory(id) / LOG):
            signature = _NEVER  # the log holds nothing yet, so the record counts, but the signature is the log's
        return (id, *signature, None, *_fields(state))

    def _is_open(self) -> bool:
        return self._connection is not None and self._pid == os.getpid()  # a connection does not survive fork()

    def _opened(self, count: int = 0) -> sqlite3.Connection:
        if self._connection is not None and self._is_open():
            return self._connection
        return self._adopt(_on_disk(self.path) if count >= self._persist_from or self.path.exists() else _in_memory())

    def _adopt(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        self._connection, self._pid = connection, os.getpid()
        self._seen, self._seen_version = {}, None
        return connection

    def _discard(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{self.path}{suffix}")


def _on_disk(path: Path) -> sqlite3.Connection:
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


def _in_memory() -> sqlite3.Connection:
    connection = _connect(":memory:")
    _make_tables(connection)
    return connection


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=5.0, isolation_level=None, check_same_thread=False)


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)


def _signatures(root: Path, known: Container[str] = ()) -> dict[str, Signature]:
    """Size, time and inode of each session's log (of its record, when it has no log) under its id."""
    try:
        directory = os.open(root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise AdapterUnavailable(f"The store {root} cannot be listed: {problem.strerror}.") from problem
    try:
        found = {}
        for name in os.listdir(directory):
            if name not in known and not ID.fullmatch(name):
                continue
            # In line, because this loop is nearly the whole cost of an index with nothing to do.
            try:
                stat = os.stat(f"{name}/{LOG}", dir_fd=directory)
            except OSError:
                stat = None
            if stat is None or not stat.st_size:
                try:
                    stat = os.stat(f"{name}/{METADATA}", dir_fd=directory)
                except OSError:
                    continue
            found[name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return found
    finally:
        os.close(directory)


def _fields(state: SessionState) -> tuple[Any, ...]:
    """The columns from ``state`` on."""
    deadline = deadline_ns(state)
    return (
        state.state,
        None if deadline is None else min(-(-deadline // 1000), _LARGEST),
        state.created_ns // 1000,
        state.updated_ns // 1000,
        state.last_access_ns // 1000,
        state.seq,
        state.workspace_present,
        state.legacy,
        _blob(state.durable_path),
        json.dumps(metadata_of(state)),
        unsettled(state),
        *(state.identity.get(name) for name in ("agent", "rig", "work_unit")),
        state.chain,
        state.outcome,
        state.lineage.parent if state.lineage is not None else None,
    )


def unsettled(state: SessionState) -> bool:
    """Whether something was begun and not finished: a promotion, a start, or the removal of an ended session's workspace."""
    if not state.ended:
        return state.intent is not None or state.handoff is not None or not state.workspace_present
    return state.workspace_present and (state.state != "promoted" or state.policy.until_promote)


def _row(id: str, state: StateName, deadline_us: int | None, created_us: int, updated_us: int, last_access_us: int, *rest: Any) -> Row:
    seq, present, legacy, log_size, metadata = rest
    deadline = None if deadline_us is None else deadline_us * 1000
    times = (created_us * 1000, updated_us * 1000, last_access_us * 1000)
    return Row(id, state, deadline, *times, seq, bool(present), bool(legacy), log_size, metadata)


def _microseconds(ns: int | None) -> int | None:
    # Rounded up: an instant that is not on a whole microsecond comes before every start that is not before it.
    return None if ns is None else max(min(-(-ns // 1000), _LARGEST), -_LARGEST)


def _blob(path: str | None) -> bytes | None:
    """A path as bytes, since SQLite's text cannot hold a name that is not UTF-8."""
    return None if path is None else path.encode("utf-8", "surrogatepass")
