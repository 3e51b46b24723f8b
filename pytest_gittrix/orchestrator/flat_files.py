"""The flat ``key=value`` files in which agent-orchestrator documents its sessions, and the ids that name them.

A file is a copy of the log, or the only source for a session of another program. It is read as tolerantly as the original reads it: what
cannot be understood is skipped, and raises no exception.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.durations import format_instant, instant_text, parse_instant
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.os_level.atomic_text import check_place, is_unfinished, typed_file, write_whole
from pytest_gittrix.os_level.files import OWNERS, private_directory
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.observations import pull_request_at
from pytest_gittrix.record.state.values import IDENTITY
from pytest_gittrix.views.orchestrator import pr_info, record
from pytest_gittrix.views.orchestrator_status import HEAD_STATUSES, STATUSES, Dialect

ARCHIVE: Final = "archive"
"""The directory for the files of sessions that are no longer listed. Their ids stay taken."""
LOCK: Final = ".lock"

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_PROJECT: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}")
_NUMBERED: Final = re.compile(r"(?:.*/)?(.+)-([0-9]{1,18})(?:\.json)?", re.DOTALL)
_TRIES: Final = 10_000
_WAIT: Final = 5.0
_OLD_STATUSES: Final[Mapping[str, str]] = {"starting": "working"}
# The documented keys of a file; all others are the session's metadata.
_KEYS: Final = frozenset(
    {"project", "status", "branch", "issue", "pr", "worktree", "tmuxName", "runtimeHandle", "summary", "agentSessionId"}
    | {"createdAt", "lastActivityAt", "restoredAt"}
)

# The further keys that a log can give.
_METADATA: Final = frozenset({*IDENTITY, "agentReportedState", "agentReportedAt", "agentReportedNote"}) - _KEYS


# The text ----------------------------------------------------------------------------------------------------------------------


def parse(text: str) -> dict[str, str]:
    """The values of a file: the first ``=`` of a line ends its key; lines that begin with ``#`` or have no key are skipped.

    Spaces around a key and a value are removed. Of several lines with one key the last counts, and a key without a value is left out.
    """
    found: dict[str, str] = {}
    for line in re.split("[\r\n]", text):
        key, equals, value = (part.strip() for part in line.strip().partition("="))
        if equals and key and not key.startswith("#"):
            found[key] = value
    return {key: value for key, value in found.items() if value}


def render(values: Mapping[str, str]) -> str:
    """The text of a file with these values. A line break in a value becomes a space: a value is one line.

    Raises:
        InvalidInput: a key could not be read back: it is empty, begins with ``#``, or holds ``=``, a line break or spaces at its ends.
    """
    lines = []
    for key, value in values.items():
        if not key or key != key.strip() or key.startswith("#") or re.search("[=\r\n]", key):
            raise InvalidInput(
                f"{key!r} cannot be a key of a session's file.",
                why="It would be read back as another, or not at all.",
                fix="Use a name without = and line breaks, without spaces at its ends, that does not begin with #.",
            )
        flat = re.sub("[\r\n]+", " ", value).strip()
        if flat:
            lines.append(f"{key}={flat}\n")
    return "".join(lines)


def raw_status(text: str | None, *, dialect: Dialect = "document") -> str:
    """The status of a file: ``starting`` means ``working``, and an unknown one means ``spawning``."""
    known = STATUSES if dialect == "document" else HEAD_STATUSES
    status = _OLD_STATUSES.get(text or "", text or "")
    return status if status in known else "spawning"


# The files ---------------------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> dict[str, str] | None:
    """The values of a session's file; None if it is missing, or empty: an empty one reserves an id and is no session.

    Raises:
        InvalidInput: the path has a null byte.
        AdapterUnavailable: the file exists and cannot be read.
    """
    file = check_place(path)
    with typed_file(file, "read"), suppress(FileNotFoundError, NotADirectoryError):
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        return parse(text) if text.strip() else None
    return None


def update(path: str | os.PathLike[str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Change some values of a session's file, and leave the others; an empty value or None removes its key.

    A file that would not change is not written. A directory has one writer at a time. A file is replaced whole: a concurrent reader reads
    the old file or the new one.

    Returns:
        Its values now. If there are none, the file is empty, and only reserves its id.

    Raises:
        InvalidInput: as ``render``, or the path has a null byte.
        EvictionRace: another writer held the lock for 5 seconds.
        AdapterUnavailable: the file cannot be read or written.
    """
    file = check_place(path)
    with typed_file(file):
        private_directory(file.parent)
    with Lease(file.parent / LOCK, wait=_WAIT):
        known = read(file)
        text = render({**(known or {}), **{key: value or "" for key, value in changes.items()}})
        values = parse(text)
        if values != (known or {}) or not file.exists():
            write_whole(file, text, mode=OWNERS)
    return values


def tidy(directory: str | os.PathLike[str]) -> list[str]:
    """Remove the temporary files of a directory whose writers were killed; return their names.

    Raises:
        InvalidInput: the path has a null byte.
        EvictionRace, AdapterUnavailable: as ``update``.
    """
    root = check_place(directory)
    left = [name for name in _names(root) if is_unfinished(name)]
    if left:
        with Lease(root / LOCK, wait=_WAIT), typed_file(root):  # under the lock, no other process writes
            for name in left:
                (root / name).unlink(missing_ok=True)
    return left


def sessions(directory: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """The values of all session files of a directory, by id, in order; without reservations, the archive, and other files.

    Raises:
        InvalidInput: the path has a null byte.
        AdapterUnavailable: the directory exists and cannot be listed, or a file of it cannot be read.
    """
    root = check_place(directory)
    names = [name for name in _names(root) if _ID.fullmatch(name) and (root / name).is_file()]
    found = {name: read(root / name) for name in names}
    return {name: values for name, values in sorted(found.items()) if values is not None}


# A session and its file --------------------------------------------------------------------------------------------------------


def values_of(events: Sequence[Event], *, dialect: Dialect = "document") -> dict[str, str]:
    """The values of a session's file, by its log. Of a pull request it has only the address, and it has no costs."""
    session = record(events, dialect=dialect)
    handle, info, pr = session["runtimeHandle"], session["agentInfo"] or {}, session["pr"] or {}
    known = {
        "project": session["projectId"],
        "status": session["status"],
        "branch": session["branch"],
        "issue": session["issueId"],
        "pr": pr.get("url"),
        "worktree": session["workspacePath"],
        "tmuxName": handle["id"] if handle is not None and handle["runtimeName"] == "tmux" else None,
        "runtimeHandle": None if handle is None else json.dumps(handle, separators=(",", ":"), sort_keys=True),
        "summary": None if info.get("summaryIsFallback") else info.get("summary"),
        "agentSessionId": info.get("agentSessionId"),
        "createdAt": session["createdAt"],
        "lastActivityAt": session["lastActivityAt"],
        "restoredAt": session.get("restoredAt"),
    }
    return {**session["metadata"], **{key: value for key, value in known.items() if value}}


def changes_of(events: Sequence[Event], *, dialect: Dialect = "document") -> dict[str, str | None]:
    """The changes with which ``update`` makes a session's file equal to its log; keys of other programs stay."""
    known = values_of(events, dialect=dialect)
    return {**known, **dict.fromkeys(sorted((_KEYS | _METADATA) - known.keys()))}


def session_of(id: str, values: Mapping[str, str], *, modified_ns: int, dialect: Dialect = "document") -> dict[str, Any]:
    """agent-orchestrator's Session by its file alone; a value that cannot be understood counts as missing.

    Args:
        id: the file's name.
        values: its values.
        modified_ns: when it was last written, in place of missing times.
        dialect: the dialect of the status.
    """
    url, summary, agent = (values.get(key) for key in ("pr", "summary", "agentSessionId"))
    pr = None if url is None else pr_info(pull_request_at(url))
    found = {
        "id": id,
        "projectId": values.get("project", ""),
        "status": raw_status(values.get("status"), dialect=dialect),
        "activity": None,
        "branch": values.get("branch"),
        "issueId": values.get("issue"),
        "pr": None if pr is None else {**pr, "branch": values.get("branch", "")},
        "workspacePath": values.get("worktree"),
        "runtimeHandle": _handle(values),
        "agentInfo": None if summary is None and agent is None else {"summary": summary, "agentSessionId": agent},
        "createdAt": _instant(values.get("createdAt")) or instant_text(modified_ns),
        "lastActivityAt": _instant(values.get("lastActivityAt")) or instant_text(modified_ns),
    }
    restored = _instant(values.get("restoredAt"))
    if restored is not None:
        found["restoredAt"] = restored
    return {**found, "metadata": {key: value for key, value in values.items() if key not in _KEYS}}


def _handle(values: Mapping[str, str]) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        handle = json.loads(values.get("runtimeHandle", ""))
        if isinstance(handle, dict) and isinstance(handle.get("id"), str) and isinstance(handle.get("runtimeName"), str):
            return {"data": {}, **handle}
    name = values.get("tmuxName")
    return None if name is None else {"id": name, "runtimeName": "tmux", "data": {}}


def _instant(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return format_instant(parse_instant(text))
    except InvalidInput:
        return None


# Ids ---------------------------------------------------------------------------------------------------------------------------


def check_id(id: str) -> str:
    """Return a well-formed id: letters, digits, ``_`` and ``-``. Raises InvalidInput for another."""
    if not _ID.fullmatch(id) or id == ARCHIVE:
        raise InvalidInput(
            f"{id!r} is not the id of a session.",
            why="It is the name of a file, and of a branch.",
            fix="Use letters, digits, _ and -, such as my-app-3.",
        )
    return id


def prefix_of(project: str) -> str:
    """The beginning of the ids of a project's sessions: the project's name if it is short, else its capitals, initials or first letters.

    Raises:
        InvalidInput: the name is malformed: it begins with a letter or a digit, goes on with those and ``._-``, and has 128 characters at
            most.
    """
    if not _PROJECT.fullmatch(project):
        raise InvalidInput(
            f"{project!r} is not the id of a project.",
            why="Directories and the ids of its sessions are named after it.",
            fix="Begin with a letter or a digit, go on with those or with . _ -, up to 128 characters.",
        )
    name = project.replace(".", "-")
    capitals = "".join(letter for letter in name if letter.isupper())
    if len(name) <= 4:
        return name.strip("-").lower()
    if len(capitals) > 1:
        return capitals.lower()
    parts = [part for part in re.split("[-_]", name) if part]
    return "".join(part[0] for part in parts).lower() if len(parts) > 1 else parts[0][:3].lower()


def orchestrator_id(prefix: str) -> str:
    """The id of the one session of a project that leads the others."""
    return check_id(f"{prefix}-orchestrator")


def reserve(directory: str | os.PathLike[str], prefix: str, taken: Iterable[str] = ()) -> str:
    """Reserve the next id of a project: no two callers get the same, in any processes.

    Args:
        directory: the directory of the project's sessions; made if it is missing. Ids in its archive stay taken.
        prefix: see ``prefix_of``.
        taken: further names with numbers, such as branches ``session/<prefix>-4``; those with another prefix do not count.

    Returns:
        ``<prefix>-<n>``, with an empty file of that name: a reservation, until the file is written or released (``release``).

    Raises:
        InvalidInput: the prefix cannot be part of an id, or the path has a null byte.
        AdapterUnavailable: the directory cannot be written, or 10,000 numbers were all taken meanwhile.
    """
    check_id(prefix)
    root = check_place(directory)
    with typed_file(root):
        private_directory(root)
    names = [*_names(root), *_names(root / ARCHIVE), *taken]
    numbers = [int(match[2]) for name in names if (match := _NUMBERED.fullmatch(name)) and match[1] == prefix]
    first = max(numbers, default=0) + 1
    for number in range(first, first + _TRIES):
        id = f"{prefix}-{number}"
        if not _created(root / id):
            continue
        # Another process may have used the id and archived its file meanwhile; the id stays taken all the same.
        if not _archived(root, id):
            return id
        with typed_file(root):
            os.unlink(root / id)
    raise AdapterUnavailable(
        f"All of {prefix}-{first} to {prefix}-{first + _TRIES - 1} were taken in {root} meanwhile.",
        fix="Look what makes sessions there without end.",
    )


def release(directory: str | os.PathLike[str], id: str) -> bool:
    """Release a reservation, after a start that failed. Returns whether it was one; the file of a session stays.

    Raises:
        InvalidInput: the id or the path is malformed.
        EvictionRace, AdapterUnavailable: as ``update``.
    """
    file = check_place(directory) / check_id(id)
    if not file.parent.is_dir():
        return False
    with Lease(file.parent / LOCK, wait=_WAIT):
        if not file.is_file() or read(file) is not None:
            return False
        with typed_file(file):
            os.unlink(file)
    return True


def retire(directory: str | os.PathLike[str], id: str) -> bool:
    """Move a session's file to the archive, so that it is no longer listed and its id never used again. Returns whether there was one.

    An older file of that name in the archive stays: the new one is named ``<id>.2``, and so on.

    Raises:
        InvalidInput: the id or the path is malformed.
        EvictionRace, AdapterUnavailable: as ``update``.
    """
    file = check_place(directory) / check_id(id)
    if not file.parent.is_dir():
        return False
    with Lease(file.parent / LOCK, wait=_WAIT), typed_file(file):
        if not file.is_file():
            return False
        archive = file.parent / ARCHIVE
        private_directory(archive)
        names = chain([id], (f"{id}.{number}" for number in count(2)))
        os.replace(file, next(archive / name for name in names if not os.path.lexists(archive / name)))
    return True


def _archived(directory: Path, id: str) -> bool:
    return any(os.path.lexists(directory / ARCHIVE / name) for name in (id, f"{id}.json"))


def _created(path: Path) -> bool:
    # Newer versions name the file <id>.json; with either file, the number is taken.
    if path.with_name(f"{path.name}.json").exists():
        return False
    with typed_file(path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), OWNERS))
        except FileExistsError:
            return False
    return True


def _names(directory: Path) -> list[str]:
    with typed_file(directory, "read"), suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(directory)
    return []
