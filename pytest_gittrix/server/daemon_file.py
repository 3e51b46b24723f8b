"""The file by which a daemon is found: ``<home>/daemon.json``, there for as long as the daemon listens.

Only its owner can read it, because it holds the key with which commands may be run. A daemon that was killed leaves it; whoever reads it
asks whether the process that it names is alive. It must not know HTTP.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import AdapterUnavailable, DaemonRuns, InvalidInput
from pytest_gittrix.os_level.lock_owner import Owner

FILE: Final = "daemon.json"
_GUARD: Final = "daemon.lock"
_PRIVATE: Final = 0o600
_LONGEST: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class DaemonFile:
    """What a daemon tells of itself.

    Attributes:
        team: the name of its team.
        host, port: where it listens.
        pid, start_time: which process it is; see ``heartbeat.Owner``, which ``owner`` is whole.
        started_at: when it was started, ISO 8601 in UTC.
        store: the directory of the sessions it manages.
        clock: the clock file it lives by; None for the time of the machine.
        token_file: where its token is; None if it asks for none.
        key: what lets its owner run commands, besides the token.
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
        """Whether the process still runs; None when that cannot be told from here."""
        return Owner.from_json(self.owner).alive()


def read(home: Path) -> DaemonFile | None:
    """What the daemon of a home tells; None if there is no file, or none that can be understood: then nobody listens by it.

    One that belongs to somebody else, or is a link, is none either: it would have us send commands and contents wherever they like.
    """
    try:
        told = json.loads(_own_bytes(home / FILE))
        found = DaemonFile(**{name: told[name] for name in DaemonFile.__slots__})
        Owner.from_json(found.owner)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidInput):
        return None
    if type(found.port) is not int or not all(isinstance(text, str) for text in (found.host, found.store, found.key)):
        return None
    return found


def found(home: Path) -> DaemonFile | None:
    """The daemon of a home that is not known to be dead, or None."""
    told = read(home)
    return told if told is not None and told.alive() is not False else None


def require_none(home: Path) -> None:
    """Refuse to start a second daemon.

    Raises:
        DaemonRuns: one that is not known to be dead is there; the message says which, and where it listens.
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
    """Refuse a home in which somebody else's daemon is. Raises DaemonRuns."""
    with suppress(OSError):
        if (owner := file.lstat().st_uid) != os.geteuid():
            raise DaemonRuns(
                f"{file} belongs to another user ({owner}).",
                why="Their daemon may run, and nobody else can see whether it does.",
                fix="Use a home of your own (GITTRIX_HOME), or have them end it and remove the file.",
            )


def publish(home: Path, told: DaemonFile) -> None:
    """Write the file, whole or not at all, in place of one that a dead daemon left. Of several who do so at once, one succeeds.

    Raises:
        DaemonRuns: see :func:`require_none`.
        AdapterUnavailable: the disk refused.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _alone(home):
            require_none(home)
            _write(home / FILE, told)
    except OSError as problem:
        raise AdapterUnavailable(
            f"{home / FILE} cannot be written: {problem.strerror}.",
            why="By this file commands find the daemon.",
            fix="Make the directory writable.",
        ) from problem


def withdraw(home: Path, told: DaemonFile) -> None:
    """Remove the file, if it is still the one that ``told`` was written to."""
    with suppress(OSError), _alone(home):
        if read(home) == told:
            (home / FILE).unlink()


def at(host: str, port: int) -> str:
    """Host and port as addresses have them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_bytes(file: Path) -> bytes:
    """The contents of a file that we wrote. Raises OSError if it is not."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "It belongs to somebody else", str(file))
        return stream.read(_LONGEST)


def _write(file: Path, told: DaemonFile) -> None:
    fresh = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, _NEW, _PRIVATE)
    try:
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(json.dumps(asdict(told), indent=2) + "\n")
        os.replace(fresh, file)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the right to change the file; the system gives it back for whoever dies."""
    descriptor = os.open(home / _GUARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
