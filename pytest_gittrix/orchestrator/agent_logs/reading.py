"""Reads an agent's logs and databases in its home: the newest file, and of it only the end.

The files are the agent's. They are read without following a link out of the home, a pipe is not waited for, and a log of any size costs as
little as its last records. A torn last line is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.orchestrator.agent_logs.formats import DATABASES, LOGS, DatabaseFormat, LogFormat
from pytest_gittrix.orchestrator.agent_logs.rules import RecordFormat, values_at
from pytest_gittrix.os_level.safe_dir import Found, SafeDir
from pytest_gittrix.record.state.agent_activity import UNREADABLE, query_rows, unreadable
from pytest_gittrix.record.state.observations import UNKNOWN, Activity

_BLOCK: Final = 1 << 16
_MOST_READ: Final = 4 << 20
_HEAD: Final = 1 << 18
_CANDIDATES: Final = 50
_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class AgentHome:
    """The home directory of an agent.

    Attributes:
        path: the directory.
        private: whether only this session's agents have it. In another one, logs of other conversations are passed over: those whose
            working directory is not the session's workspace.
    """

    path: Path
    private: bool = True


def native_activity(home: AgentHome, workspace: Path, now_ns: int) -> Activity | None:
    """The activity that an agent's own files in its home show; of several agents' files, the newest counts.

    Args:
        home: the agent's home.
        workspace: its working directory.
        now_ns: the time.

    Returns:
        The activity; None if there are no such files, or none that can be understood.
    """
    whose = None if home.private else os.path.realpath(workspace)
    found: list[Activity] = []
    try:
        with SafeDir.open(home.path) as directory:
            for form in LOGS.values():
                found += _logged(directory, form, whose, now_ns)
            for base in DATABASES.values():
                found += _stored(home.path, directory, base, whose, now_ns)
    except GittrixError:
        return None
    return newest(found)


def newest(found: Sequence[Activity]) -> Activity | None:
    """The activity that was observed last: one that failed, or else the one with the latest time; None for none."""
    return max(found, key=lambda one: (one.failed, one.observed_ns or 0), default=None)


def read_log(root: Path, pattern: str, form: RecordFormat, now_ns: int) -> Activity:
    """The activity that the newest log of a pattern shows.

    Args:
        root: the directory that the pattern is relative to.
        pattern: a path; ``*`` is any text without ``/``.
        form: how the records are read.
        now_ns: the time.

    Returns:
        The activity. Unknown from no source if there is no such file, unknown if no rule fits a record, failed if it cannot be read.
    """
    try:
        with SafeDir.open(root) as directory:
            paths = _newest_paths(directory, pattern)
            if not paths:
                return Activity(seen_ns=now_ns)
            return form.read(_records(directory, paths[0]), now_ns) or Activity(source="native", seen_ns=now_ns)
    except GittrixError as problem:
        return unreadable(ValueError(problem.fact), now_ns)


def read_database(path: Path, sql: str, form: RecordFormat, now_ns: int) -> Activity:
    """The activity that the rows of a query show: each has a record as JSON, the newest first; returns as :func:`read_log`."""
    try:
        rows = query_rows(path, sql, most=_ROWS)
        return form.read(_parsed(row[0] for row in rows), now_ns) or Activity(source="native", seen_ns=now_ns)
    except FileNotFoundError:
        return Activity(seen_ns=now_ns)
    except UNREADABLE as problem:
        return unreadable(problem, now_ns)


def says(activity: Activity | None) -> list[Activity]:
    """An activity in a list, unless it says nothing."""
    return [] if activity is None or (activity.state == UNKNOWN and not activity.failed) else [activity]


def _logged(directory: SafeDir, form: LogFormat, whose: str | None, now_ns: int) -> list[Activity]:
    wanted = None if whose is None else form.named(whose)
    mine = (path for path in _newest_paths(directory, *form.places) if wanted is None or _is_of(directory, path, form.whose, wanted))
    path = next(mine, None)
    return [] if path is None else says(form.records.read(_records(directory, path), now_ns))


def _stored(home: Path, directory: SafeDir, form: DatabaseFormat, whose: str | None, now_ns: int) -> list[Activity]:
    try:
        if not directory.exists(form.place) or os.path.islink(home / form.place):
            return []
        rows = query_rows(home / form.place, form.sql, {"directory": whose}, most=_ROWS)
        return says(form.records.read(_parsed(row[0] for row in rows), now_ns))
    except (*UNREADABLE, GittrixError):
        return []


def _newest_paths(directory: SafeDir, *patterns: str) -> list[str]:
    """The files of some patterns, the last changed first."""
    found = [one for pattern in patterns for one in _matches(directory, pattern.split("/"))]
    return [one.path for one in sorted(found, key=lambda one: one.stat.st_mtime_ns, reverse=True)][:_CANDIDATES]


def _matches(directory: SafeDir, parts: Sequence[str]) -> list[Found]:
    """The files whose path fits, name by name."""
    fixed = next((at for at, part in enumerate(parts) if "*" in part), len(parts) - 1)
    start = "/".join(parts[:fixed]) or "."

    def is_elsewhere(path: str) -> bool:
        names = path.split("/")
        return len(names) > len(parts) or not all(map(fnmatchcase, names, parts))

    if start != "." and directory.lstat(start) is None:
        return []
    return [one for one in directory.scan(start, skip=is_elsewhere) if one.path.count("/") == len(parts) - 1 and not one.is_dir]


def _is_of(directory: SafeDir, path: str, key: str, wanted: str) -> bool:
    """Whether the first records of a log name a working directory."""
    head, _ = directory.part(path, _HEAD, end=_HEAD)
    return any(wanted in values_at(record, key) for record in _parsed(head.split(b"\n")))


def _records(directory: SafeDir, path: str) -> Iterator[dict[str, Any]]:
    """The records of a log, the newest first, of its last megabytes."""
    end, begun, size = None, b"", 0
    while end != 0 and size < _MOST_READ:
        block, end = directory.part(path, _BLOCK, end=end)
        size += len(block)
        first, *lines = (block + begun).split(b"\n")
        begun = first
        yield from _parsed(reversed(lines))
    if end == 0:
        yield from _parsed([begun])


def _parsed(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record
