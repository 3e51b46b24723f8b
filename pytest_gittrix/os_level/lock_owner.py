"""Tells whether the owner of a lease still works, from its lock file, and keeps evidence when a lease is taken from it.

A heartbeat is the time at which the lock file was last changed (its mtime). The four states and the evidence of a release are those of
Pixir (``docs/explanation/you-know-pixir.md``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pytest_gittrix.durations import format_instant, instant_at
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.file_lock import try_lock, unlock
from pytest_gittrix.os_level.files import OWNERS, sync_directory, write_all
from pytest_gittrix.os_level.proc import START_TIME, STATE, pid_namespace, stat_fields

LeaseState = Literal["available", "active", "stale", "ambiguous"]
OnStale = Literal["block", "break"]

SECOND_NS = 1_000_000_000
AHEAD_NS = 5 * SECOND_NS
"""A heartbeat further in the future than this tells nothing (Pixir)."""

_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_MOST_NOTE = 4096
_NAP = 0.002


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, so that another can later tell whether it is still the same and alive.

    Attributes:
        pid: its number, which the system may give to another process afterwards.
        start_time: clock ticks from boot to its start, which tells the two apart; None where the system does not say.
        boot_id: which boot of the machine; None where the system does not say.
        host: the machine's name.
        pid_space: the inode of its process namespace (two containers can have one host name and one boot); None if unknown.
    """

    pid: int
    start_time: int | None
    boot_id: str | None
    host: str
    pid_space: int | None = None

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return owner_of(os.getpid())

    @classmethod
    def here(cls, pid: int, start_time: int | None) -> Owner:
        """A process of this machine and namespace, by its number and its start."""
        return replace(cls.current(), pid=pid, start_time=start_time)

    def alive(self) -> bool | None:
        """Whether that process still runs; None when that cannot be known from here (another machine or container)."""
        here = Owner.current()
        if self.host != here.host:
            return None
        if self.boot_id != here.boot_id:
            return False if self.boot_id and here.boot_id else None
        if self.pid_space != here.pid_space or sys.platform == "win32":
            return None
        status, start_time = _status(self.pid)
        if start_time is not None and self.start_time is not None:
            return start_time == self.start_time and status not in ("Z", "X")
        # /proc may be absent, or hide the processes of others.
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return None
        return None  # some process has that number; whether it is the same one, nothing here can say

    def stopped(self) -> bool:
        """Whether that process was stopped, by a signal or a debugger, as far as that can be known from here."""
        here = Owner.current()
        if (self.host, self.boot_id, self.pid_space) != (here.host, here.boot_id, here.pid_space):
            return False
        status, start_time = _status(self.pid)
        return start_time == self.start_time and status in ("T", "t")

    def to_json(self) -> dict[str, Any]:
        """The owner as JSON fields, for a lock file or an event."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Any) -> Owner:
        """Read what :meth:`to_json` wrote; keys it does not know are ignored.

        Raises:
            InvalidInput: the fields are not an owner.
        """
        try:
            owner = cls(fields["pid"], fields["start_time"], fields["boot_id"], fields["host"], fields.get("pid_space"))
        except (TypeError, KeyError, AttributeError):
            raise InvalidInput(f"{fields!r} does not name a process.", fix="An owner has pid, start_time, boot_id and host.") from None
        if not isinstance(owner.pid, int) or not isinstance(owner.host, str):
            raise InvalidInput(f"{fields!r} does not name a process.", fix="pid is a whole number and host a text.")
        return owner


@lru_cache(maxsize=1)
def owner_of(pid: int) -> Owner:
    """A process of this machine as an owner; kept for the one that asks about itself."""
    return Owner(pid, _status(pid)[1], _boot_id(), os.uname().nodename, _pid_space())


def named(note: bytes) -> Owner | None:
    """The owner that a lock file names, None where it names none."""
    try:
        return Owner.from_json(json.loads(note))
    except (ValueError, RecursionError, InvalidInput):
        return None


def about_of(note: bytes) -> str:
    """What the owner that a lock file names has it for; empty if it does not say."""
    try:
        about = json.loads(note).get("about", "")
    except (ValueError, RecursionError, AttributeError):
        return ""
    return about if isinstance(about, str) else ""


class LockSnapshot(NamedTuple):
    """What a lock file showed at one moment.

    Attributes:
        held: whether it was locked.
        note: what is written in it, meant to name the owner; an unlocked file keeps the note of the last one.
        beat_ns: the last heartbeat, in nanoseconds since 1970 UTC.
    """

    held: bool = False
    note: bytes = b""
    beat_ns: int = 0

    @property
    def owner(self) -> Owner | None:
        """The owner that the note names, None where it names none."""
        return named(self.note)

    def judged(self, *, now_ns: int, stale_after: float | None) -> LeaseState:
        """What that means for a lease.

        Args:
            now_ns: now, in nanoseconds since 1970 UTC.
            stale_after: seconds without a heartbeat after which an owner counts as gone; None for never.
        """
        if not self.held:
            return "available"
        if self.owner is None or self.beat_ns - now_ns > AHEAD_NS:
            return "ambiguous"
        if stale_after is not None and now_ns - self.beat_ns > stale_after * SECOND_NS:
            return "stale"
        return "active"


def look(path: str, *, met: bool = False) -> LockSnapshot:
    """Look at a lock file; a missing file is not held. Raises OSError when it cannot be read.

    Whether it is held can only be learnt by asking for a lock that others share, for an instant: who asks for the lease in that
    very instant finds it busy.

    Args:
        path: the file.
        met: take it for held, since its owner was just met there; then the lock is not asked for.
    """
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        return LockSnapshot()
    try:
        held = met or not try_lock(fd, shared=True)
        if not held:
            unlock(fd)
        return LockSnapshot(held, os.pread(fd, _MOST_NOTE, 0), os.fstat(fd).st_mtime_ns)
    finally:
        os.close(fd)


@contextmanager
def turnstile(path: str, *, alone: bool, wait: float = 0.0) -> Iterator[bool]:
    """Keep a lease from being taken away while somebody is taking it, and the other way round.

    Without it, who has found an old lock file stale could remove the new one of a rival who was quicker, and both would go on. It is
    a lock on a second file, which stays for ever; a killed process frees it. Of those who meet in it, the last can always go on.

    Args:
        path: the lock file; the second one has ``.turn`` after its name.
        alone: to take the lease away; without it, to take it, which many may try at once.
        wait: real seconds to wait for those who are in it.

    Yields:
        Whether it is ours; if not, nothing may be taken or taken away.
    """
    fd = os.open(f"{path}.turn", _READ | os.O_CREAT, OWNERS)
    ours = False
    try:
        deadline = time.monotonic() + wait
        while not (ours := try_lock(fd, shared=not alone)) and time.monotonic() < deadline:
            time.sleep(_NAP)
        yield ours
    finally:
        if ours:
            unlock(fd)  # by name, since a forked child may have the descriptor too
        os.close(fd)


def write_evidence(directory: Path, path: str, facts: Mapping[str, Any], *, now_ns: int) -> Path:
    """Keep on the disk that a lease was taken away, in a new file of a directory that is made if needed.

    Args:
        directory: where evidence is kept.
        path: the lock file.
        facts: what is to be known, as JSON.
        now_ns: now, in nanoseconds since 1970 UTC.

    Returns:
        The file: ``<UTC YYYYMMDDTHHMMSS>-<16 hex digits of the path's SHA-256>-<6 random hex digits>.json`` (Pixir).

    Raises:
        OSError: it cannot be written; then the lease must not be taken away.
    """
    import hashlib  # dear to load, and hardly ever needed

    directory.mkdir(parents=True, exist_ok=True)
    where = os.path.abspath(path)
    digest = hashlib.sha256(os.fsencode(where)).hexdigest()[:16]
    file = directory / f"{instant_at(now_ns):%Y%m%dT%H%M%S}-{digest}-{os.urandom(3).hex()}.json"
    # A path that is not UTF-8 is written with its escapes, which JSON readers give back as they were.
    text = json.dumps({"version": 1, "purpose": "lease_release", "lease": where, **facts}, indent=2)
    fd = os.open(file, _NEW, OWNERS)
    try:
        write_all(fd, text.encode("ascii") + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(directory)
    return file


def time_text(ns: int) -> str:
    """A time in ISO 8601; of a file dated outside the years 1 to 9999, its nanoseconds."""
    try:
        return format_instant(instant_at(ns))
    except InvalidInput:
        return f"{ns} ns after 1970"


def _status(pid: int) -> tuple[str | None, int | None]:
    """A process's status letter (``Z``: dead, but not yet waited for) and start time, where ``/proc`` tells."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None, None
    return fields[STATE].decode(), int(fields[START_TIME])


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pid_space() -> int | None:
    try:
        return pid_namespace()
    except OSError:
        return None
