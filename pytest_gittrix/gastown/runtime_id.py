"""Which session a process belongs to, resolved as Gas Town's tools do (docs/explanation/you-know-gas-town.md).

An id comes from an environment variable, from the runtime of an agent that calls a hook with JSON on standard input, from a file in the
work directory, or is generated. Whether there is such a session is for the caller to check.
"""

from __future__ import annotations

import json
import os
import select
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, Final
from uuid import uuid4

from pytest_gittrix.durations import instant_at, ns_of, parse_instant
from pytest_gittrix.errors import GittrixError, InvalidInput, WriteRejected
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.record.store.store import ID

RUNTIME_VARIABLE: Final = "CLAUDE_SESSION_ID"
"""The environment variable in which an agent's runtime gives the id of its conversation."""
VARIABLES: Final = ("GITTRIX_SESSION_ID", "GT_SESSION_UUID", "GT_SESSION_ID", RUNTIME_VARIABLE)
"""The environment variables that can have an id; the first that is not empty counts."""
STARTS: Final = ("startup", "resume", "clear", "compact")
"""Why a runtime began, or began again."""
FILE: Final = ".runtime/session_id"
"""The file of an id below the work directory: its first line is the id, its second the time."""

_DIRECTORY: Final = ".runtime"
_LARGEST_FILE: Final = 4096
_LONGEST: Final = 1 << 20
_CHUNK: Final = 1 << 16
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Hook:
    """The input of a hook that a runtime calls.

    Attributes:
        session_id: the runtime's id of the conversation.
        transcript_path: the file of its transcript; None if it gave none.
        source: one of ``STARTS``; None if it gave none of them.
    """

    session_id: str
    transcript_path: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class RuntimeId:
    """The id of the session a process belongs to.

    Attributes:
        id: the id.
        source: where it came from: the name of a variable, ``stdin``, ``file`` or ``generated``.
        hook: the input of the hook, if it came from there.
    """

    id: str
    source: str
    hook: Hook | None = None


def _random() -> str:
    return str(uuid4())


def resolve(
    environ: Mapping[str, str],
    *,
    stdin: IO[Any] | int | None = None,
    directory: str | os.PathLike[str] | None = None,
    wait: float = 0.5,
    generate: Callable[[], str] = _random,
) -> RuntimeId:
    """Find the id of the session this process belongs to. The first source that has one counts; those after it are not read.

    The sources are ``VARIABLES``, standard input, the file that ``persist`` writes, and a generated id. An empty value counts as none.

    Args:
        environ: the environment.
        stdin: a descriptor, or a file that nothing was read from yet, for a runtime's JSON object. A terminal is not read. Input that is no
            object with a ``session_id`` is read and passed over.
        directory: the work directory. A file in it that is damaged, or reached by a link, counts as none.
        wait: the most real seconds to wait for standard input.
        generate: generates an id; a random UUID by default.

    Raises:
        InvalidInput: the value is no id; the message names its source.
    """
    for name in VARIABLES:
        if value := environ.get(name, "").strip():
            return RuntimeId(_checked(value, name), name)
    if stdin is not None and (hook := _hook(stdin, wait)) is not None:
        return RuntimeId(_checked(hook.session_id, "standard input"), "stdin", hook)
    if directory is not None and (persisted := _persisted(directory)) is not None:
        return RuntimeId(persisted, "file")
    return RuntimeId(_checked(generate(), "generate()"), "generated")


def persist(directory: str | os.PathLike[str], id: str, now: datetime) -> None:
    """Store in a work directory which session works there, for ``resolve``. The file is written whole or not at all.

    Args:
        directory: the work directory; ``.runtime`` in it is made if it is missing.
        id: the session.
        now: the time, with a time zone; it is stored in whole seconds.

    Raises:
        InvalidInput: the id is none, or ``now`` has no time zone.
        PathNotFound: there is no such directory.
        WriteRejected: ``.runtime`` or the file is a symbolic link, a directory is where the file belongs, or the system refused.
    """
    ns = ns_of(now)
    text = instant_at(ns - ns % _SECOND).isoformat().replace("+00:00", "Z")
    data = f"{_checked(id, 'The caller')}\n{text}\n".encode("ascii")
    with _opened(directory) as files:
        for name in (_DIRECTORY, FILE):
            status = files.lstat(name)
            if status is not None and stat.S_ISLNK(status.st_mode):
                raise WriteRejected(
                    f"{os.path.join(directory, name)} is a symbolic link.",
                    why="Who can write in the work directory could have another file replaced by it.",
                    fix="Delete the link.",
                )
        files.write(FILE, data)


def _opened(directory: str | os.PathLike[str]) -> SafeDir:
    # The work directory itself is the caller's, and may be named by a link.
    return SafeDir.open(os.path.realpath(directory))


def _persisted(directory: str | os.PathLike[str]) -> str | None:
    """The id in the file of a work directory, or None if it is not there or not as ``persist`` leaves it."""
    with suppress(GittrixError, UnicodeDecodeError), _opened(directory) as files:
        id, _, rest = files.read(FILE, max_bytes=_LARGEST_FILE)[0].decode("ascii").partition("\n")
        parse_instant(rest.partition("\n")[0].strip())  # without its time, the id before it may be cut short too
        if ID.fullmatch(id.strip()):
            return id.strip()
    return None


def _hook(stdin: IO[Any] | int, wait: float) -> Hook | None:
    """A runtime's input on standard input, if it has an id and comes within ``wait`` seconds."""
    try:
        fd = stdin if isinstance(stdin, int) else stdin.fileno()
        fields = {} if os.isatty(fd) else _first_object(fd, wait)
    except (OSError, ValueError):  # closed, or nothing that can be waited for
        return None
    id, path, source = (fields.get(name) for name in ("session_id", "transcript_path", "source"))
    if not isinstance(id, str) or not id.strip():
        return None
    return Hook(id.strip(), path if isinstance(path, str) and path else None, source if source in STARTS else None)


def _first_object(fd: int, wait: float) -> dict[str, Any]:
    """The JSON object at the start of the input; empty if there is none, or if it is not whole in time.

    This does not wait for the end of the input: a runtime may leave the pipe open.
    """
    deadline = time.monotonic() + wait
    raw = b""
    while len(raw) <= _LONGEST:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(fd, _CHUNK) if ready else b""
        if not chunk:
            break
        raw += chunk
        text = raw.decode("utf-8", "surrogateescape").lstrip()
        if text and not text.startswith("{"):
            break
        if b"}" in chunk:
            with suppress(ValueError, RecursionError):
                found: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
                return found
    return {}


def _checked(id: str, where: str) -> str:
    if ID.fullmatch(id):
        return id
    raise InvalidInput(
        f"{where} gives {id[:80]!r}, which is not a session id.",
        why="An id is the name of a directory, and must not lead anywhere else.",
        fix="An id is 1 to 128 letters, digits, _ and -.",
    )
