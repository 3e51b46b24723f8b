"""The activity of an agent, from the files that it writes itself: a JSONL log of its states, or its own SQLite database.

Reading never raises: that a source cannot be read is an observation, too (``Activity.failed``). See
docs/explanation/you-know-agent-orchestrator.md.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.durations import instant_at, ns_of, parse_instant
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.observations import ACTIVITIES, SOURCES, UNKNOWN, Activity

_SECOND: Final = 1_000_000_000
ACTIVE_NS: Final = 30 * _SECOND
"""An agent that did something within half a minute is active."""
IDLE_NS: Final = 300 * _SECOND
"""An agent that did nothing for longer than 5 minutes is idle. A question, or a block, counts for as long."""
AHEAD_NS: Final = 5 * _SECOND
"""How far a source's clock may be ahead of ours."""
TAIL: Final = 4096
"""Bytes at the end of a log that are read."""

_SHOWN: Final = 200
_MOST_STEPS: Final = 20_000_000
_STRIDE: Final = 10_000
_MOST_BYTES: Final = 16 << 20
UNREADABLE: Final = (sqlite3.Error, sqlite3.Warning, OSError, ValueError)
"""What reading an agent's files may raise."""
_COMPANIONS: Final = ("-journal", "-wal", "-shm")
_SAFE: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
# Numbers of a database count seconds, milliseconds or nanoseconds since 1970.
UNITS: Final = {"s": _SECOND, "ms": 1_000_000, "ns": 1}


@dataclass(frozen=True, slots=True)
class SqliteQuery:
    """A query of an agent's database.

    Attributes:
        sql: gives one row of two columns: a state, or NULL if the database knows none; and when the agent last did something, as a
            number or as an ISO 8601 text, or NULL.
        unit: of that number, one of ``UNITS``.
    """

    sql: str
    unit: str = "ms"

    def __post_init__(self) -> None:
        """Raises InvalidInput for an unknown unit."""
        if self.unit not in UNITS:
            raise InvalidInput(f"{self.unit!r} is not a unit of time here.", fix=f"Use one of: {', '.join(UNITS)}.")


def read_jsonl(path: str | os.PathLike[str], now_ns: int) -> Activity:
    """The last state in a log of states: lines of JSON with ``state``, ``ts``, and perhaps ``source`` and ``trigger``.

    Only the last 4 KB are read; invalid lines at the end, as a kill in the middle of a write leaves them, are passed over.
    Without a time a state stays as it is, and is stale.

    Returns:
        The activity. Unknown from no source if there is no file, unknown if the file has no valid line, failed if it cannot be read.
    """
    try:
        entry = next(_entries(path), None)
    except FileNotFoundError:
        return Activity(seen_ns=now_ns)
    except OSError as problem:
        return unreadable(problem, now_ns)
    if entry is None:
        return Activity(source="native", seen_ns=now_ns)
    source = entry.get("source")
    detail = entry.get("trigger")
    when = time_of(entry.get("ts"))
    return Activity(
        state_at(entry["state"], when, now_ns),
        source if source in SOURCES else "native",
        when,
        _plain(detail) if isinstance(detail, str) else None,
        now_ns,
    )


def read_sqlite(path: str | os.PathLike[str], query: SqliteQuery, now_ns: int) -> Activity:
    """The activity in an agent's own database. It is opened for reading only; a locked database is not waited for.

    The agent makes the database, and so decides how expensive a query is: one that takes more than some million steps, or more than
    some megabytes for a value, is given up.

    Returns:
        The activity. Unknown from no source if there is no database, unknown if it has no row; failed if it is busy, damaged, of
        another shape, takes too long, or answers with anything but a state and a time.
    """
    try:
        rows = query_rows(path, query.sql, most=1)
    except FileNotFoundError:
        return Activity(seen_ns=now_ns)
    except UNREADABLE as problem:
        return unreadable(problem, now_ns)
    if not rows or rows[0] == (None, None):
        return Activity(source="native", seen_ns=now_ns)
    row = rows[0]
    if len(row) != 2 or (row[0] is not None and row[0] not in ACTIVITIES):
        return unreadable(ValueError(f"it answers {_short(row)}"), now_ns)
    state, when = row[0], time_of(row[1], query.unit)
    if when is None and row[1] is not None:
        return unreadable(ValueError(f"{_short(row[1])} is no time"), now_ns)
    return Activity(state_at(state or "active", when, now_ns), "native", when, None, now_ns)


def query_rows(
    path: str | os.PathLike[str], sql: str, values: Mapping[str, str | None] | None = None, *, most: int
) -> list[tuple[Any, ...]]:
    """The first rows that a query gives of an agent's database, under the limits of :func:`read_sqlite`.

    Args:
        path: the database.
        sql: the query.
        values: for its named parameters.
        most: how many rows at most.

    Raises:
        FileNotFoundError: there is none.
        Exception: one of ``UNREADABLE``: it cannot be read.
    """
    _only_files(os.stat(path).st_mode, path)
    for companion in (f"{os.fspath(path)}{suffix}" for suffix in _COMPANIONS):
        if os.path.lexists(companion):
            _only_files(os.stat(companion).st_mode, companion)
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as database:
        steps = count(1)
        database.set_progress_handler(lambda: next(steps) * _STRIDE >= _MOST_STEPS, _STRIDE)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        database.execute("PRAGMA trusted_schema = OFF")
        return [tuple(row) for row in database.execute(sql, values or {}).fetchmany(most)]


def state_at(state: str, observed_ns: int | None, now_ns: int) -> str:
    """What a state has become since it was observed.

    An active agent is ready after 30 seconds, and idle after 5 minutes; a ready one is idle after 5 minutes. A question and a block count
    for 5 minutes; after that the agent is idle. An exited agent stays so.
    """
    if observed_ns is None or state in ("exited", "idle"):
        return state
    age = now_ns - observed_ns
    if age > IDLE_NS:
        return "idle"
    return "ready" if state == "active" and age > ACTIVE_NS else state


def aged(activity: Activity, now_ns: int) -> str | None:
    """What a recorded activity has become since (``state_at``), to show it; None if it is not known.

    A recorded question or block counts until the next poll, which alone finds out whether it was answered.
    """
    if activity.state == UNKNOWN:
        return None
    now = state_at(activity.state, activity.observed_ns, now_ns)
    return now if now == "idle" and activity.state in ("active", "ready") else activity.state


def _entries(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The entries at the end of a log, the last one first."""
    # The file is the agent's: it may have put a pipe there, whose reader would wait for ever.
    fd = os.open(path, os.O_RDONLY | _SAFE)
    try:
        found = os.fstat(fd)
        _only_files(found.st_mode, path)
        size = found.st_size
        # One byte more shows whether the tail begins with a line.
        tail = os.pread(fd, TAIL + 1, max(0, size - TAIL - 1))
    finally:
        os.close(fd)
    lines = tail.split(b"\n")
    for raw in reversed(lines if size <= TAIL else lines[1:]):
        try:
            entry = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and entry.get("state") in ACTIVITIES:
            yield entry


def _only_files(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "It is not a file", os.fspath(path))


def time_of(value: object, unit: str = "ms") -> int | None:
    """Nanoseconds since 1970, of an instant in text or of a number of ``UNITS``; None if it is neither, or outside the years there are."""
    try:
        if isinstance(value, str):
            return ns_of(parse_instant(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            ns = int(value * UNITS[unit])
            instant_at(ns)
            return ns
    except (InvalidInput, ValueError, OverflowError):
        return None
    return None


def _plain(text: str) -> str:
    """A text as a log can hold it: JSON can have half a character, and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def unreadable(problem: Exception, now_ns: int) -> Activity:
    """The observation that a source cannot be read."""
    return Activity(source="native", detail=f"probe_failure: {problem}", seen_ns=now_ns, failed=True)
