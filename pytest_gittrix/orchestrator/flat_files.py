"""The flat ``key=value`` files in which agent-orchestrator's document keeps its sessions, and the ids that name them (session-systems 5.1).

A file is a copy of what the log tells, and the other way in for a session that has no log here. It is read as tolerantly as the
original reads it: what makes no sense is passed over, and never an exception.
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
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.observations import pull_request_at
from pytest_gittrix.record.state.values import IDENTITY
from pytest_gittrix.views.orchestrator import pr_info, record
from pytest_gittrix.views.orchestrator_status import HEAD_STATUSES, STATUSES, Dialect

ARCHIVE: Final = "archive"
"""Where the files of sessions go that are to be forgotten. Their ids stay taken."""
LOCK: Final = ".lock"

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_PROJECT: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}")
_NUMBERED: Final = re.compile(r"(?:.*/)?(.+)-([0-9]{1,18})(?:\.json)?", re.DOTALL)
_TRIES: Final = 10_000
_WAIT: Final = 5.0
_OLD_STATUSES: Final[Mapping[str, str]] = {"starting": "working"}
# What a file has of its own names for; all else in it is the session's metadata.
_KEYS: Final = frozenset(
    {"project", "status", "branch", "issue", "pr", "worktree", "tmuxName", "runtimeHandle", "summary", "agentSessionId"}
    | {"createdAt", "lastActivityAt", "restoredAt"}
)

# What the log may tell of a session beside that.
_METADATA: Final = frozenset({*IDENTITY, "agentReportedState", "agentReportedAt", "agentReportedNote"}) - _KEYS


# The text ----------------------------------------------------------------------------------------------------------------------


def parse(text: str) -> dict[str, str]:
    """What a file says: the first ``=`` of a line ends its key, lines that begin with ``#`` or have no key are passed over.

    Spaces around a key and a value do not count. Of several lines with one key the last counts, and a key without a value is not there.
    """
    found: dict[str, str] = {}
    for line in re.split("[\r\n]", text):
        key, equals, value = (part.strip() for part in line.strip().partition("="))
        if equals and key and not key.startswith("#"):
            found[key] = value
    return {key: value for key, value in found.items() if value}


def render(values: Mapping[str, str]) -> str:
    """The text of a file that says this. A line break in a value becomes a space: a value is one line.

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
    """The status that a file means: ``starting`` is ``working``, and one that there is not is ``spawning``."""
    known = STATUSES if dialect == "document" else HEAD_STATUSES
    status = _OLD_STATUSES.get(text or "", text or "")
    return status if status in known else "spawning"


# The files ---------------------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> dict[str, str] | None:
    """What a session's file says; None if there is none, or an empty one: that is an id that was reserved, and no session.

    Raises:
        InvalidInput: the path has a null byte.
        AdapterUnavailable: the file is there and cannot be read.
    """
    place = check_place(path)
    with typed_file(place, "read"), suppress(FileNotFoundError, NotADirectoryError):
        text = place.read_bytes().decode("utf-8", "surrogateescape")
        return parse(text) if text.strip() else None
    return None


def update(path: str | os.PathLike[str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Change some of what a session's file says, and leave the rest; a value that is empty or None takes its key away.

    What it says already is not written again. One writer of a directory at a time. A file is replaced whole: whoever reads it meanwhile
    reads the old one or the new one.

    Returns:
        What it says now. If that is nothing, the file is empty, and its id is as if reserved.

    Raises:
        InvalidInput: as ``render``, or the path has a null byte.
        EvictionRace: another writer did not let go for 5 seconds.
        AdapterUnavailable: the file cannot be read or written.
    """
    place = check_place(path)
    with typed_file(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with Lease(place.parent / LOCK, wait=_WAIT):
        known = read(place)
        text = render({**(known or {}), **{key: value or "" for key, value in changes.items()}})
        said = parse(text)
        if said != (known or {}) or not place.exists():
            write_whole(place, text)
    return said


def tidy(directory: str | os.PathLike[str]) -> list[str]:
    """Remove what writers of a directory left that were killed while they wrote; gives the names.

    Raises:
        InvalidInput: the path has a null byte.
        EvictionRace, AdapterUnavailable: as ``update``.
    """
    place = check_place(directory)
    left = [name for name in _names(place) if is_unfinished(name)]
    if left:
        with Lease(place / LOCK, wait=_WAIT), typed_file(place):  # nobody writes while it is held
            for name in left:
                (place / name).unlink(missing_ok=True)
    return left


def sessions(directory: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """What the files of a directory say, by id, in order; reservations, the archive and what is no session's are passed over.

    Raises:
        InvalidInput: the path has a null byte.
        AdapterUnavailable: the directory is there and cannot be listed, or a file of it cannot be read.
    """
    place = check_place(directory)
    names = [name for name in _names(place) if _ID.fullmatch(name) and (place / name).is_file()]
    found = {name: read(place / name) for name in names}
    return {name: values for name, values in sorted(found.items()) if values is not None}


# A session and its file --------------------------------------------------------------------------------------------------------


def values_of(events: Sequence[Event], *, dialect: Dialect = "document") -> dict[str, str]:
    """What the file of a session says, by its log. Of a pull request it has the address only, and of costs nothing."""
    told = record(events, dialect=dialect)
    handle, info, pr = told["runtimeHandle"], told["agentInfo"] or {}, told["pr"] or {}
    known = {
        "project": told["projectId"],
        "status": told["status"],
        "branch": told["branch"],
        "issue": told["issueId"],
        "pr": pr.get("url"),
        "worktree": told["workspacePath"],
        "tmuxName": handle["id"] if handle is not None and handle["runtimeName"] == "tmux" else None,
        "runtimeHandle": None if handle is None else json.dumps(handle, separators=(",", ":"), sort_keys=True),
        "summary": None if info.get("summaryIsFallback") else info.get("summary"),
        "agentSessionId": info.get("agentSessionId"),
        "createdAt": told["createdAt"],
        "lastActivityAt": told["lastActivityAt"],
        "restoredAt": told.get("restoredAt"),
    }
    return {**told["metadata"], **{key: value for key, value in known.items() if value}}


def changes_of(events: Sequence[Event], *, dialect: Dialect = "document") -> dict[str, str | None]:
    """What to ``update`` a session's file with, so that it says what the log says; keys that others put there are left alone."""
    known = values_of(events, dialect=dialect)
    return {**known, **dict.fromkeys(sorted((_KEYS | _METADATA) - known.keys()))}


def session_of(id: str, values: Mapping[str, str], *, modified_ns: int, dialect: Dialect = "document") -> dict[str, Any]:
    """The document's Session by its file alone; what cannot be read is as if it were not there.

    Args:
        id: the file's name.
        values: what it says.
        modified_ns: when it was written last, for the times that it does not tell.
        dialect: of the status.
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
    """The id, if it can be one: letters, digits, ``_`` and ``-``. Raises InvalidInput if not."""
    if not _ID.fullmatch(id) or id == ARCHIVE:
        raise InvalidInput(
            f"{id!r} is not the id of a session.",
            why="It is the name of a file, and of a branch.",
            fix="Use letters, digits, _ and -, such as my-app-3.",
        )
    return id


def prefix_of(project: str) -> str:
    """What the ids of a project's sessions begin with: the project's name if it is short, else its capitals, initials or first letters.

    Raises:
        InvalidInput: the project cannot be called so: it begins with a letter or a digit, goes on with those and ``._-``, and has 128 at
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
    words = [word for word in re.split("[-_]", name) if word]
    return "".join(word[0] for word in words).lower() if len(words) > 1 else words[0][:3].lower()


def orchestrator_id(prefix: str) -> str:
    """The id of the one session of a project that leads the others."""
    return check_id(f"{prefix}-orchestrator")


def reserve(directory: str | os.PathLike[str], prefix: str, taken: Iterable[str] = ()) -> str:
    """Take the next id of a project: no two callers ever get the same, whatever processes they are in.

    Args:
        directory: of the project's sessions; made if it is missing. Ids in its archive stay taken.
        prefix: see ``prefix_of``.
        taken: what else has numbers, such as branches ``session/<prefix>-4``; what has another prefix does not count.

    Returns:
        ``<prefix>-<n>``, with an empty file of that name: a reservation, until something is written to it or it is let go (``release``).

    Raises:
        InvalidInput: the prefix cannot be part of an id, or the path has a null byte.
        AdapterUnavailable: the directory cannot be written, or 10,000 numbers were all taken meanwhile.
    """
    check_id(prefix)
    place = check_place(directory)
    with typed_file(place):
        place.mkdir(parents=True, exist_ok=True)
    names = [*_names(place), *_names(place / ARCHIVE), *taken]
    numbers = [int(match[2]) for name in names if (match := _NUMBERED.fullmatch(name)) and match[1] == prefix]
    first = max(numbers, default=0) + 1
    for number in range(first, first + _TRIES):
        id = f"{prefix}-{number}"
        if not _created(place / id):
            continue
        # Whoever had it meanwhile, and went to the archive with it, made room for this file; the id stays taken all the same.
        if not _archived(place, id):
            return id
        with typed_file(place):
            os.unlink(place / id)
    raise AdapterUnavailable(
        f"All of {prefix}-{first} to {prefix}-{first + _TRIES - 1} were taken in {place} meanwhile.",
        fix="Look what makes sessions there without end.",
    )


def release(directory: str | os.PathLike[str], id: str) -> bool:
    """Let a reservation go, after a start that failed. Returns whether it was one; the file of a session stays.

    Raises:
        InvalidInput: there can be no such id or directory.
        EvictionRace, AdapterUnavailable: as ``update``.
    """
    place = check_place(directory) / check_id(id)
    if not place.parent.is_dir():
        return False
    with Lease(place.parent / LOCK, wait=_WAIT):
        if not place.is_file() or read(place) is not None:
            return False
        with typed_file(place):
            os.unlink(place)
    return True


def retire(directory: str | os.PathLike[str], id: str) -> bool:
    """Move a session's file to the archive, so that it is listed no more and its id never used again. Returns whether there was one.

    What is in the archive under its name already stays: the file goes there as ``<id>.2``, and so on.

    Raises:
        InvalidInput: there can be no such id or directory.
        EvictionRace, AdapterUnavailable: as ``update``.
    """
    place = check_place(directory) / check_id(id)
    if not place.parent.is_dir():
        return False
    with Lease(place.parent / LOCK, wait=_WAIT), typed_file(place):
        if not place.is_file():
            return False
        archive = place.parent / ARCHIVE
        archive.mkdir(exist_ok=True)
        names = chain([id], (f"{id}.{number}" for number in count(2)))
        os.replace(place, next(archive / name for name in names if not os.path.lexists(archive / name)))
    return True


def _archived(directory: Path, id: str) -> bool:
    return any(os.path.lexists(directory / ARCHIVE / name) for name in (id, f"{id}.json"))


def _created(path: Path) -> bool:
    # Under .json newer versions keep the session; and whichever kind of file is there, the number is taken.
    if path.with_name(f"{path.name}.json").exists():
        return False
    with typed_file(path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666))
        except FileExistsError:
            return False
    return True


def _names(directory: Path) -> list[str]:
    with typed_file(directory, "read"), suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(directory)
    return []
