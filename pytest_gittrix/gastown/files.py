"""Gas Town's files of sessions: written from a store, and read as tolerantly as Gas Town does (docs/explanation/you-know-gas-town.md).

The files are derived: they can be deleted and written again, and nothing in this package reads them as truth.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.durations import ns_of
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.os_level.atomic_text import typed_file, write_whole
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.store.store import Problem, Store
from pytest_gittrix.views.gastown import INDEX_FIELDS, TOWN_SOURCES, TOWN_TYPES, WorkflowStep, record_of, steps, time_text, town_event

EVENTS: Final = ".events.jsonl"
SESSIONS: Final = ".sessions"
INDEX: Final = "index.jsonl"
ARCHIVE: Final = "archive"
MARK: Final = ".gittrix-export"
"""The file that marks a directory as made by an export, so that a town's own files are never taken for an export's."""

_MARK_TEXT: Final = "An export of gittrix made .events.jsonl and .sessions here; the next one adds to the first and replaces the second.\n"

_LONGEST: Final = 1 << 20
"""Bytes of the longest line. A reader of Gas Town gives up at a longer one; ours passes over it."""
_NEVER: Final = "0001-01-01T00:00:00Z"
"""What Go writes for a time that was never set."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export.

    Attributes:
        sessions: number of sessions.
        archived: number of them in the archive.
        events: number of lines of ``.events.jsonl``.
        problems: the sessions that could not be read; no files of theirs were written, and earlier ones stay.
    """

    sessions: int
    archived: int
    events: int
    problems: tuple[Problem, ...]


def export(store: Store, directory: str | os.PathLike[str], *, archive_before: datetime | None = None) -> Exported:
    """Write the sessions of a store as the document lays them out.

    ``.events.jsonl`` has the events of all of them, and is only ever appended to; ``.sessions/index.jsonl`` has a line for each, oldest
    first, and ``.sessions/<id>.json`` its record with its steps. These are written whole or not at all, the index last.

    Args:
        store: the sessions; it is only read.
        directory: the target; made if it is missing. A town's own directory is refused.
        archive_before: sessions that ended before this go to ``.sessions/archive`` instead of ``.sessions``.

    Raises:
        InvalidInput: there are an event log or sessions that no export wrote, or ``archive_before`` has no time zone.
        AdapterUnavailable: the store cannot be listed, or a file cannot be written.
    """
    before = None if archive_before is None else ns_of(archive_before)
    root = Path(directory)
    _require_mark(root)
    _refuse_a_town(root / EVENTS)
    write_whole(root / MARK, _MARK_TEXT)
    town_lines: list[tuple[int, str, int, str]] = []
    index: list[tuple[int, str, str]] = []
    problems: list[Problem] = []
    archived = 0
    for id in store.ids():
        try:
            state, events, lines = _read(store, id)
        except GittrixError as problem:
            problems.append(Problem(id, str(problem)))
            continue
        record = record_of(state)
        old = before is not None and state.ending_ns is not None and state.ending_ns < before
        archived += old
        _write_session(root / SESSIONS, id, {**record, "steps": [_step_data(step) for step in steps(events)]}, archived=old)
        index.append((state.created_ns, id, _line({name: record[name] for name in INDEX_FIELDS if name in record})))
        town_lines += lines
    # By time, session and sequence number, not by text: two lines of one event keep their order.
    town_lines.sort(key=lambda line: line[:3])
    _append(root / EVENTS, [text.encode() for *_, text in town_lines])
    write_whole(root / SESSIONS / INDEX, "".join(text for *_, text in sorted(index)))
    return Exported(len(index), archived, len(town_lines), tuple(problems))


def read_index(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of an ``index.jsonl``, one a session, in the order of their first lines. Of several lines the last counts.

    A missing file has no lines. A line that is no JSON object with an ``id``, or longer than 1 MiB, is passed over. An ``ended_at`` that
    was never set is left out.

    Raises:
        AdapterUnavailable: the file is there and cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in _objects(path):
        if isinstance(id := line.get("id"), str):
            found[id] = {name: value for name, value in line.items() if (name, value) != ("ended_at", _NEVER)}
    return list(found.values())


def read_town_events(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of an ``.events.jsonl``, in the order of the file, of whatever type.

    As tolerant as ``read_index``: a line needs a ``type``. Raises as that does.
    """
    return [line for line in _objects(path) if isinstance(line.get("type"), str)]


def _read(store: Store, id: str) -> tuple[SessionState, Sequence[Event], list[tuple[int, str, int, str]]]:
    """A session's state, its events, and their lines in a town's log, each with time, session and sequence number to sort by."""
    events = store.log(id).read()
    if not events:
        return store.load(id), (), []
    state: SessionState | None = None
    done = 0
    lines: list[tuple[int, str, int, str]] = []
    for number, event in enumerate(events, 1):
        if event.type in TOWN_SOURCES:
            state, done = fold(events[done:number], state), number
            lines += [(event.ts, id, event.seq, _line(line)) for line in town_event(event, state)]
    return fold(events[done:], state), events, lines


def _step_data(step: WorkflowStep) -> dict[str, Any]:
    data = {
        "step": step.step,
        "molecule_id": step.molecule_id,
        "outcome": step.outcome,
        "started_at": time_text(step.started_ns),
        "ended_at": time_text(step.ended_ns),
        "first_seq": step.first_seq,
        "last_seq": step.last_seq,
    }
    return {name: value for name, value in data.items() if value is not None}


def _write_session(directory: Path, id: str, record: Mapping[str, Any], *, archived: bool) -> None:
    """Write a session's file into the directory or its archive, and only then remove an older one from the other."""
    current, archive = directory / f"{id}.json", directory / ARCHIVE / f"{id}.json"
    path, stale = (archive, current) if archived else (current, archive)
    write_whole(path, json.dumps(record, indent=2) + "\n")
    with typed_file(stale), suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(stale)


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"


def _append(path: Path, lines: Sequence[bytes]) -> None:
    """Add to a file the lines that it does not have. A line that a killed export left torn stays, and is passed over by readers."""
    with typed_file(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(file, "rb+", buffering=0) as log:
            known = Counter(log.read().splitlines(keepends=True))
            torn = next((line for line in known if not line.endswith(b"\n")), b"")
            new = []
            for line in lines:
                if known[line]:
                    known[line] -= 1
                else:
                    new.append(line)
            if new:
                log.write((b"\n" if torn else b"") + b"".join(new))
                os.fsync(file)


def _require_mark(root: Path) -> None:
    """Refuse a directory with files of the same names that no export made there."""
    if os.path.lexists(root / MARK):
        return
    taken = next((root / name for name in (EVENTS, SESSIONS) if os.path.lexists(root / name)), None)
    if taken is not None:
        raise InvalidInput(
            f"{taken} exists without a {MARK} next to it: no export made it.",
            why="It can be a town's own, an export would mix with what is in it, and there is no other copy.",
            fix="Export to a directory of its own. What an earlier version exported can be removed first.",
        )


def _refuse_a_town(path: Path) -> None:
    """Refuse to write to a log to which a town has written since the last export."""
    foreign = next((line for line in read_town_events(path) if _is_foreign(line)), None)
    if foreign is not None:
        raise InvalidInput(
            f"{path} holds an event {foreign['type']!r} that no export wrote.",
            why="It is the log of a town, and an export would mix with it.",
            fix="Export to a directory of its own.",
        )


def _is_foreign(line: Mapping[str, Any]) -> bool:
    payload = line.get("payload")
    known = payload.keys() if isinstance(payload, dict) else ()
    # Gas Town itself records the process of each start, and the caller of each death.
    return line["type"] not in TOWN_TYPES or "actor_pid" in known or "caller" in known


def _objects(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    for raw in _lines(path):
        try:
            line = json.loads(raw.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def _lines(path: str | os.PathLike[str]) -> Iterable[bytes]:
    """The lines of a file that are not too long, without ever holding one that is."""
    with typed_file(path, "read"), suppress(FileNotFoundError, NotADirectoryError), open(path, "rb") as file:
        whole = True
        while piece := file.readline(_LONGEST + 1):
            ends = piece.endswith(b"\n")
            if whole and (ends or len(piece) <= _LONGEST):
                yield piece
            whole = ends
