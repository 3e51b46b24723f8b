"""The file by which a daemon is found: ``<home>/daemon.json``, which exists for as long as the daemon listens.

Only its owner can read it, because it holds the key for running commands. A daemon that was killed leaves it behind; a reader checks
whether the process that it names is alive.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import AdapterUnavailable, DaemonRuns, InvalidInput
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.lock_owner import Owner

FILE: Final = "daemon.json"
_GUARD: Final = "daemon.lock"
_PRIVATE: Final = 0o600
_OTHERS: Final = 0o077
_LONGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DaemonFile:
    """The contents of a daemon's file.

    Attributes:
        team: the name of its team.
        host, port: the address it listens at.
        pid, start_time: its process.
        started_at: when it was started, ISO 8601 in UTC.
        store: the directory of the sessions it manages.
        clock: the path of the clock file it uses; None for the machine's time.
        token_file: the path of its token; None if requests need none.
        key: the secret with which its owner can run commands, apart from the token.
        owner: its process as JSON; see ``os_level.lock_owner.Owner``.
    """

    team: str
    host: str
    port: int
    pid: int
    start_time: int | None
    started_at: str
    store: str
    clock: str | None
    token_file: str | None
    key: str
    owner: dict[str, Any]

    def alive(self) -> bool | None:
        """Whether the process still runs; None if that cannot be found out from here."""
        return Owner.from_json(self.owner).alive()


def read(home: Path) -> DaemonFile | None:
    """The daemon file of a home; None if there is no valid file.

    A file of another user, one that others can write, or a link is not valid: it could send commands and their input to an address of
    their choice. The key in one that others can read is known to them.
    """
    try:
        fields = json.loads(_own_bytes(home / FILE))
        found = DaemonFile(**{name: fields[name] for name in DaemonFile.__slots__})
        Owner.from_json(found.owner)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidInput):
        return None
    if type(found.port) is not int or not all(isinstance(text, str) for text in (found.host, found.store, found.key)):
        return None
    return found


def found(home: Path) -> DaemonFile | None:
    """The daemon of a home that is not known to be dead, or None."""
    file = read(home)
    return file if file is not None and file.alive() is not False else None


def require_none(home: Path) -> None:
    """Refuse to start a second daemon.

    Raises:
        DaemonRuns: the home has a daemon that is not known to be dead; the message names its process and its address.
    """
    _require_ours(home / FILE)
    other = found(home)
    if other is not None:
        raise DaemonRuns(
            f"A daemon manages {home} already: process {other.pid}, at http://{at(other.host, other.port)}.",
            why="Two would finalize and clean up the same workspaces.",
            fix=f"Use that one, or end it first (kill {other.pid}); if no such process is left, remove {home / FILE}.",
        )


def _require_ours(file: Path) -> None:
    """Raise DaemonRuns if the file belongs to another user, or others can read or write it."""
    with suppress(OSError):
        found = file.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
            raise DaemonRuns(
                f"{file} can be read or written by others (mode {stat.S_IMODE(found.st_mode):o}).",
                why="The daemon that it names may run, but the file cannot be trusted, and others may have its key.",
                fix="End that daemon if it runs, and remove the file.",
            )
        if (owner := found.st_uid) != os.geteuid():
            raise DaemonRuns(
                f"{file} belongs to another user ({owner}).",
                why="Their daemon may run, and only they can see whether it does.",
                fix="Use a home of your own (GITTRIX_HOME), or have them end it and remove the file.",
            )


def publish(home: Path, daemon: DaemonFile) -> None:
    """Write the file, whole or not at all, in place of one that a dead daemon left. Of several concurrent calls, one succeeds.

    Raises:
        DaemonRuns: see :func:`require_none`.
        AdapterUnavailable: the disk refused.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked_file(home / _GUARD, mode=_PRIVATE):
            require_none(home)
            write_file(str(home / FILE), json.dumps(asdict(daemon), indent=2).encode("ascii") + b"\n", mode=_PRIVATE)
    except OSError as problem:
        raise AdapterUnavailable(
            f"{home / FILE} cannot be written: {problem.strerror}.",
            why="By this file commands find the daemon.",
            fix="Make the directory writable.",
        ) from problem


def withdraw(home: Path, daemon: DaemonFile) -> None:
    """Remove the file, if it is still this daemon's."""
    with suppress(OSError), locked_file(home / _GUARD, mode=_PRIVATE):
        if read(home) == daemon:
            (home / FILE).unlink()


def at(host: str, port: int) -> str:
    """Host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_bytes(file: Path) -> bytes:
    """The contents of a file of this user. Raises OSError if it belongs to another, is open to others, or is a link."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
            raise PermissionError(errno.EPERM, "It is not this user's alone", str(file))
        return stream.read(_LONGEST)
