"""The audit of agents' reports, refused ones too, in agent-orchestrator's format.

The log has the reports as ``report.submitted``; the file is a copy of the newest ones, and can be deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.durations import instant_text
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.orchestrator.flat_files import LOCK, check_id
from pytest_gittrix.os_level.atomic_text import check_place, write_whole
from pytest_gittrix.os_level.files import OWNERS, private_directory
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.observations import Observations, observations_of
from pytest_gittrix.views.orchestrator_status import Dialect, status

DIRECTORY: Final = ".agent-report-audit"
MAX_ENTRIES: Final = 200
MAX_BYTES: Final = 256 * 1024

_WAIT: Final = 5.0


def audit_of(events: Sequence[Event], *, dialect: Dialect = "document") -> list[dict[str, Any]]:
    """The entries of a session, newest first, each with the state of the session before and after the report.

    The state after a report is that of the observations: the next poll decides the status that follows.
    """
    observations = Observations()
    found = []
    for event in events:
        before, observations = observations, observations_of([event], observations)
        if event.type == "report.submitted":
            found.append(_entry(event, before, observations, dialect))
    return found[::-1]


def audit_path(directory: str | os.PathLike[str], id: str) -> Path:
    """The file of a session's entries, in the directory of its project's sessions. Raises InvalidInput for a malformed id or path."""
    return check_place(directory) / DIRECTORY / f"{check_id(id)}.ndjson"


def append_audit(directory: str | os.PathLike[str], id: str, entry: Mapping[str, Any]) -> None:
    """Add an entry; beyond 200 entries or 256 KB, the oldest are removed. The newest stays, whatever its size.

    Raises:
        InvalidInput: the entry is not JSON, or the id is malformed.
        EvictionRace: another writer held the lock for 5 seconds.
        AdapterUnavailable: the file cannot be read or written.
    """
    path = audit_path(directory, id)
    try:
        line = json.dumps(entry, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidInput(f"An entry of the audit of {id!r} is not JSON: {problem}.") from None
    try:
        private_directory(path.parent)
    except OSError as problem:
        raise AdapterUnavailable(f"{path.parent} cannot be made: {problem.strerror}.") from problem
    with Lease(path.parent / LOCK, wait=_WAIT):
        lines = [*_lines(path), line][-MAX_ENTRIES:]
        size = sum(_size(one) for one in lines)
        first = 0
        while size > MAX_BYTES and first < len(lines) - 1:
            size -= _size(lines[first])
            first += 1
        write_whole(path, "".join(f"{one}\n" for one in lines[first:]), mode=OWNERS)


def _entry(event: Event, before: Observations, after: Observations, dialect: Dialect) -> dict[str, Any]:
    data = event.data
    known = {"note": data.get("note"), "rejectionReason": data.get("reason")}
    return {
        "timestamp": instant_text(event.ts),
        "actor": event.actor,
        "source": "acknowledge" if data["report"] == "started" else "report",
        "reportState": data["report"],
        **{name: value for name, value in known.items() if value is not None},
        "accepted": data["accepted"],
        "before": _snapshot(before, dialect),
        "after": _snapshot(after, dialect),
    }


def _snapshot(observations: Observations, dialect: Dialect) -> dict[str, Any]:
    changed = observations.session.changed_ns
    return {
        "legacyStatus": status(observations, dialect=dialect),
        "sessionState": observations.session.state,
        "sessionReason": observations.session.reason,
        "lastTransitionAt": None if changed is None else instant_text(changed),
    }


def _lines(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        raise AdapterUnavailable(f"{path} cannot be read: {problem.strerror}.", fix="See that it is a file you may use.") from problem
    return [line for line in raw.decode("utf-8", "surrogateescape").split("\n") if line.strip()]


def _size(line: str) -> int:
    return len(line.encode("utf-8", "surrogateescape")) + 1
