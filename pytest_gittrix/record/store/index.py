"""A derived index over a store, to find sessions, and those that are due, without opening every log.

Nothing reads it as truth. :meth:`Index.sync` folds only the logs whose size, time or inode changed since they were last folded. The
file can be deleted, damaged or of another version at any time, and is then silently rebuilt.

A small store gets its index in memory: opening a file of SQLite's takes longer than folding a few logs. In a large store looking at every
log takes too long, too. There an index does so once, and then looks where writers announced a change (``change_feed``), and at sessions
that other programs may change: those without a log, and those that cannot be read.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

from pytest_gittrix.errors import GittrixError, InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.eventlog.change_feed import LARGEST, ChangeFeed, Mark
from pytest_gittrix.record.state.fold import SessionState, StateName, deadline_ns, metadata_of
from pytest_gittrix.record.state.metadata import document_of
from pytest_gittrix.record.store.index_tables import EVICTABLE, FILE, PROMOTED, WIDTH, earlier, in_memory, on_disk, set_mark
from pytest_gittrix.record.store.listing import Signature, names_of, signatures
from pytest_gittrix.record.store.store import LOG, Problem, Store

SMALL = 64
_PAGE = 500
LARGE = 4096

T = TypeVar("T")

# The signature of a session whose row is always read again.
_NEVER: Signature = (-1, -1, -1)
_LARGEST = 2**63 - 1
_STATES = frozenset(get_args(StateName))

# What comes of a file that is no index of ours, or no more: SQLite's own errors, and values of other kinds than were written.
_DAMAGE = (sqlite3.DatabaseError, ValueError, TypeError, OverflowError)

_DUE = f"SELECT id FROM session WHERE deadline_us < ? AND {EVICTABLE} ORDER BY deadline_us, id"
_AHEAD = "SELECT id FROM session WHERE last_access_us > ? AND state = 'active'"
_FOREIGN = "SELECT id FROM session WHERE legacy OR problem IS NOT NULL"
_UNSETTLED = "SELECT id FROM session WHERE unsettled ORDER BY id"
_ROWS = (
    "SELECT id, state, deadline_us, created_us, updated_us, last_access_us, seq, workspace_present, legacy, size, metadata "
    "FROM session WHERE problem IS NULL"
)
_NEWEST_FIRST = "ORDER BY created_us DESC, id"
_NARROW = {"parent": "session_parent", "chain": "session_chain", "work_unit": "session_unit", "agent": "session_agent"}


class IndexRow(NamedTuple):
    """The entry of one session.

    Attributes:
        id, state, created_ns, updated_ns, last_access_ns, seq, workspace_present, legacy: as in ``SessionState``.
        deadline_ns: the end of its TTL, rounded up to a microsecond; None for no limit.
        log_size: bytes of its log; of its record, when there is no log.
        metadata: the version-1 record: what ``SessionMetadata.wire`` gives.
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
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """A search for sessions; every given criterion must hold (Gas Town's Query).

    Attributes:
        agent, rig, work_unit, chain, outcome, parent: equal to this.
        since_ns: started then or later.
        until_ns: started before.
        limit: the most sessions to find; 0 for all.
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
        store: the sessions. Nothing is opened before the first question.
        persist_from: number of sessions from which the index is a file; below that, without a file yet, it is in memory.
        trust_from: number of sessions from which writers announce their changes.

    Attributes:
        persist_from: as given; an owner may change it.
    """

    def __init__(self, store: Store, *, persist_from: int = SMALL, trust_from: int = LARGE) -> None:
        self.store = store
        self.path = store.root / FILE
        self.persist_from = persist_from
        self._trust_from = trust_from
        self._changes = ChangeFeed(store.root, LOG)
        self._looked = False
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._seen: dict[str, Signature] = {}
        self._seen_version: int | None = None

    def sync(self) -> None:
        """Fold the sessions that changed since the index last saw them, and forget those that are gone.

        In a large store, what another program does to a session with a log (edits it, copies it in, deletes it) is noticed by the next
        index that is opened, or by :meth:`rebuild`.

        Raises:
            AdapterUnavailable: the store cannot be listed.
        """
        self._ask(lambda _database: None, fresh=True)

    def due(self, now_ns: int) -> list[str]:
        """The sessions past their TTL at ``now_ns`` (strictly greater, GitTrix), longest overdue first, then by id.

        These are active ones, and promoted ones that still have their workspace. As of the last :meth:`sync`.
        """
        now_us = -(-now_ns // 1000)
        return self._ask(lambda database: [id for (id,) in database.execute(_DUE, (min(now_us, _LARGEST),))])

    def ahead(self, now_ns: int) -> list[str]:
        """The active sessions that were last used after ``now_ns``, because the clock was set back since; as of the last :meth:`sync`."""
        return self._ask(lambda database: sorted(id for (id,) in database.execute(_AHEAD, (now_ns // 1000,))))

    def unsettled(self) -> list[str]:
        """The sessions with an unfinished operation, in order of id, as of the last :meth:`sync`."""
        return self._ask(lambda database: [id for (id,) in database.execute(_UNSETTLED)])

    def rows(
        self, *, state: StateName | None = None, durable_path: str | None = None, workspace_present: bool | None = None
    ) -> list[IndexRow]:
        """The sessions in a state, of a durable repository, with or without their workspace; oldest first, then by id.

        As of the last :meth:`sync`. Sessions that cannot be read are in :meth:`problems` instead.
        """
        wanted = {"state": state, "durable": _blob(durable_path), "workspace_present": workspace_present}
        terms = {name: value for name, value in wanted.items() if value is not None}
        query = _ROWS + "".join(f" AND {name} = :{name}" for name in terms) + " ORDER BY created_us, id"
        return self._ask(lambda database: [_row(*fields) for fields in database.execute(query, terms)])

    def each(self, *, state: StateName | None = None, promoted: bool = False) -> Iterator[IndexRow]:
        """The same as :meth:`rows`, read a page at a time. A session that goes meanwhile may be missing.

        Args:
            state: as for :meth:`rows`.
            promoted: only sessions that have promoted, also those that went on after it.
        """
        terms = " AND state = :state" * (state is not None) + f" AND {PROMOTED}" * promoted
        query = f"SELECT id FROM session WHERE problem IS NULL{terms} ORDER BY created_us, id"
        ids = self._ask(lambda database: [id for (id,) in database.execute(query, {"state": state})])
        for at in range(0, len(ids), _PAGE):
            page = ids[at : at + _PAGE]
            found = {row.id: row for row in self._rows_of(page)}
            yield from (found[id] for id in page if id in found)

    def _rows_of(self, ids: Sequence[str]) -> list[IndexRow]:
        query = f"{_ROWS} AND id IN ({', '.join('?' * len(ids))})"
        return self._ask(lambda database: [_row(*fields) for fields in database.execute(query, ids)])

    def row(self, id: str) -> IndexRow | None:
        """One session, if it is there and can be read; as of the last :meth:`sync`."""
        return self._ask(lambda database: next((_row(*fields) for fields in database.execute(f"{_ROWS} AND id = ?", (id,))), None))

    def ids_from(self, prefix: str, most: int) -> list[str]:
        """At most ``most`` of the ids with a prefix, in order; as of the last :meth:`sync`."""
        query = "SELECT id FROM session WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        return self._ask(lambda database: [id for (id,) in database.execute(query, (prefix, prefix + "\x7f", most))])

    def query(self, query: Query) -> list[IndexRow]:
        """The sessions that match a query, newest first, then by id; as of the last :meth:`sync`."""
        equal = {name: value for name in Query.EQUAL if (value := getattr(query, name)) is not None}
        terms = ["problem IS NULL", *(f"{name} = :{name}" for name in equal)]
        terms += ["created_us >= :since"] * (query.since_ns is not None) + ["created_us < :until"] * (query.until_ns is not None)
        values = {**equal, "since": _microseconds(query.since_ns), "until": _microseconds(query.until_ns), "most": query.limit or -1}
        # The first of these is the most selective; by itself, SQLite may begin with the rig of half of the sessions.
        narrowest = next((index for name, index in _NARROW.items() if name in equal), "session_facts")
        found = f"SELECT id FROM session INDEXED BY {narrowest} WHERE {' AND '.join(terms)} {_NEWEST_FIRST} LIMIT :most"
        ordered = f"{_ROWS} AND id IN ({found}) {_NEWEST_FIRST}"
        return self._ask(lambda database: [_row(*fields) for fields in database.execute(ordered, values)])

    def lives(self, states: Iterable[str] = (), *, member: str | None = None) -> list[str]:
        """The sessions with a life cycle, oldest first, then by id; only those in the given states and of the given member.

        A session whose start never finished has none. As of the last :meth:`sync`.
        """
        wanted = [*states]
        terms = "life IS NOT NULL" if not wanted else f"life IN ({', '.join('?' * len(wanted))})"
        whose = [] if member is None else [member]
        query = f"SELECT id FROM session WHERE {terms}{' AND member = ?' * len(whose)} ORDER BY created_us, id"
        return self._ask(lambda database: [id for (id,) in database.execute(query, (*wanted, *whose))])

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
        """Close the file; the next question opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None and self._pid == os.getpid():
                connection.close()

    def __del__(self) -> None:
        """Close what the owner left open: Python 3.13 and later warn of a connection that was not closed."""
        with suppress(AttributeError):  # of an index that was never made whole
            self.close()

    def _ask(self, question: Callable[[sqlite3.Connection], T], *, fresh: bool = False) -> T:
        """Run a query; on an error of SQLite, on a rebuilt index, and then in memory.

        Raises:
            InvalidInput: a value of the question has a lone surrogate: no session has such a name, and SQLite takes none.
        """
        try:
            return self._answered(question, fresh=fresh)
        except UnicodeEncodeError as problem:
            raise InvalidInput(
                f"{problem.object!r} has the lone surrogate {problem.object[problem.start]!r} at {problem.start}.",
                why="It is half a character, or a byte that is no UTF-8, and no stored name has one.",
                fix="Write the name in UTF-8.",
            ) from None

    def _answered(self, question: Callable[[sqlite3.Connection], T], *, fresh: bool) -> T:
        with self._lock:
            try:
                if fresh or not self._is_open():
                    self._refresh()
                return question(self._opened())
            except UnicodeEncodeError:  # of a value of the question
                raise
            except _DAMAGE:
                self._discard()
            try:
                self._refresh()
                return question(self._opened())
            except _DAMAGE:
                self.close()
            # A read-only store or a full disk. The answer does not need the file, which only made it faster.
            self._adopt(in_memory())
            self._refresh()
            return question(self._opened())

    def _refresh(self) -> None:
        changed = None
        if self._looked and self._is_open():
            database = self._opened()
            mark = self._mark(database)
            changed = self._changes.since(mark) if mark is not None else None
        if changed is None:
            self._look_at_all()
            return
        foreign = [id for (id,) in database.execute(_FOREIGN)]
        if changed.ids or foreign:
            # A process that is still writing may write more after this look; the next look must return to it.
            end = changed.end if self._changes.quiet(changed.ids) else mark
            names = changed.ids.union(foreign)
            self._update(signatures(self.store.root, names=names), self._recalled(database, names), mark, end)
        if changed.end.offset > LARGEST:
            self._changes.begin()

    def _look_at_all(self) -> None:
        before = self._mark(self._opened()) if self._is_open() or self.path.exists() else None
        changed = self._changes.since(before)
        known = before if changed is not None else None
        if changed is None and before is not None:
            changed = self._changes.since(None)
        # Of a feed that was not followed from its beginning, some writers may have announced their write in the one before, or nowhere.
        quiet = changed is not None and self._changes.quiet(changed.ids if known is not None else names_of(self.store.root))
        found = signatures(self.store.root, self._seen)
        database = self._opened(len(found))
        self._update(found, self._known(database), before, changed.end if changed is not None and quiet else known)
        self._looked = True
        if len(found) >= self._trust_from and (changed is None or changed.end.offset > LARGEST):
            self._changes.begin()

    def _update(self, found: dict[str, Signature], seen: dict[str, Signature], before: Mark | None, end: Mark | None) -> None:
        """Bring the rows from the signatures ``seen`` to ``found``, and the mark from ``before`` to ``end``."""
        if found == seen and before == end:
            return
        database = self._opened(len(found))
        gone = seen.keys() - found.keys()
        rows = [self._read(id, found[id]) for id in sorted(found) if seen.get(id) != found[id]]
        database.execute("BEGIN IMMEDIATE")
        with database:
            now = self._mark(database)
            database.executemany("DELETE FROM session WHERE id = ?", [(id,) for id in gone])
            database.executemany(f"INSERT OR REPLACE INTO session VALUES ({', '.join('?' * WIDTH)})", rows)
            # Another index may have written in between, with rows that are older than ours or newer.
            set_mark(database, end if now == before else earlier(now, end))
        for id in gone:
            self._seen.pop(id, None)
        self._seen.update((row[0], row[1:4]) for row in rows)

    def _mark(self, database: sqlite3.Connection) -> Mark | None:
        found = database.execute("SELECT stamp, offset FROM mark").fetchone()
        return None if found is None else Mark(str(found[0]), int(found[1]))

    def _recalled(self, database: sqlite3.Connection, ids: Iterable[str]) -> dict[str, Signature]:
        """The signatures that the database has of some sessions."""
        query = "SELECT size, mtime_ns, inode FROM session WHERE id = ?"
        rows = ((id, database.execute(query, (id,)).fetchone()) for id in ids)
        return {id: row for id, row in rows if row is not None}

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
            return (id, *(signature if lasting else _NEVER), message, *[None] * (WIDTH - 5))
        if state.legacy and os.path.lexists(self.store.directory(id) / LOG):
            signature = _NEVER  # the log holds nothing yet, so the record counts, but the signature is the log's
        return (id, *signature, None, *_fields(state))

    def _is_open(self) -> bool:
        return self._connection is not None and self._pid == os.getpid()  # a connection does not survive fork()

    def _opened(self, count: int = 0) -> sqlite3.Connection:
        if self._connection is not None and self._is_open():
            return self._connection
        return self._adopt(on_disk(self.path) if count >= self.persist_from or self.path.exists() else in_memory())

    def _adopt(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        self._connection, self._pid = connection, os.getpid()
        self._seen, self._seen_version, self._looked = {}, None, False
        return connection

    def _discard(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{self.path}{suffix}")


def _fields(state: SessionState) -> tuple[Any, ...]:
    """The columns from ``state`` on."""
    deadline, life = deadline_ns(state), state.life
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
        json.dumps(document_of(metadata_of(state))),
        unsettled(state),
        *(state.identity.get(name) for name in ("agent", "rig", "work_unit")),
        state.chain,
        state.ending,
        state.lineage.parent if state.lineage is not None else None,
        None if life is None or (life.state == "creating" and state.ended) else life.state,
        None if life is None else life.member,
        state.turn,
        state.said,
    )


def unsettled(state: SessionState) -> bool:
    """Whether an operation is unfinished: a promotion, a start, a handoff, or the removal of an ended session's workspace."""
    if not state.ended:
        is_starting = (state.life is not None and state.life.state == "creating") or not state.workspace_present
        return state.intent is not None or state.handoff is not None or is_starting
    return state.workspace_present and (state.state != "promoted" or state.policy.until_promote)


def _row(id: str, state: StateName, deadline_us: int | None, created_us: int, updated_us: int, last_access_us: int, *rest: Any) -> IndexRow:
    seq, present, legacy, log_size, metadata = rest
    record = json.loads(metadata)
    numbers = (created_us, updated_us, last_access_us, seq, log_size, 0 if deadline_us is None else deadline_us)
    if state not in _STATES or not isinstance(record, dict) or not all(type(number) is int for number in numbers):
        raise sqlite3.DatabaseError(f"the row of {id!r} was not written by this index")
    deadline = None if deadline_us is None else deadline_us * 1000
    times = (created_us * 1000, updated_us * 1000, last_access_us * 1000)
    return IndexRow(id, state, deadline, *times, seq, bool(present), bool(legacy), log_size, record)


def _microseconds(ns: int | None) -> int | None:
    # Rounded up: an instant that is not on a whole microsecond comes before every start that is not before it.
    return None if ns is None else max(min(-(-ns // 1000), _LARGEST), -_LARGEST)


def _blob(path: str | None) -> bytes | None:
    """A path as bytes, since SQLite's text cannot hold a name that is not UTF-8."""
    return None if path is None else path.encode("utf-8", "surrogatepass")
