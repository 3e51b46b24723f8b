"""Who may write: one owner at a time, across threads and processes, released by the system when the owner dies.

A lease is a ``flock`` on a file. The file itself means nothing: one left behind by a killed process, by eviction or by the
TypeScript GitTrix (which creates ``.lock`` and can leave it for ever) is free as soon as nobody has it locked. It must not know what
it protects.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, InvalidInput

if sys.platform != "win32":
    import fcntl

_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_FIRST_NAP, _LONGEST_NAP = 0.0005, 0.02
_NOTE_SIZE = 512  # always overwritten whole, so the note of a longer-named owner never shows through


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
        return _owner(os.getpid())

    def alive(self) -> bool | None:
        """Whether that process still runs; None when it cannot be told from here (another machine or container)."""
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


class Lease:
    """The right to change one thing, held by one owner at a time.

    Every acquisition locks a descriptor of its own, so threads exclude each other as processes do, whether they share this object
    or not. Not re-entrant: a thread that asks twice is told at once.

    Args:
        path: the lock file; made when needed, never removed by a lease.
        wait: real seconds to wait for another owner; 0 tries once.
    """

    def __init__(self, path: Path | str, *, wait: float = 10.0) -> None:
        self.wait = wait
        self._file = os.fspath(path)
        self._fd: int | None = None
        self._holder: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        """The lock file."""
        return Path(self._file)

    @property
    def held(self) -> bool:
        """Whether this object holds the lease (in whichever thread)."""
        return self._fd is not None

    def acquire(self) -> Self:
        """Wait for the lease and take it.

        Between tries the point ``lease:busy`` is passed, where a test's scheduler can let the holder go on.

        Raises:
            EvictionRace: another owner did not let go in time, or this thread already holds it; the message names the owner if known.
            AdapterUnavailable: the directory is missing or read-only, or the file system has no locks.
        """
        here = (os.getpid(), threading.get_ident())
        if self._holder == here:
            raise EvictionRace(
                f"{self._file} is already held by this very thread.", why="It would wait for itself.", fix="Release the lease first."
            )
        deadline, nap = time.monotonic() + self.wait, _FIRST_NAP
        while (fd := self._try()) is None:
            points.reached("lease:busy")
            if time.monotonic() >= deadline:
                raise self._refused()
            time.sleep(nap)
            nap = min(nap * 2, _LONGEST_NAP)
        self._fd, self._holder = fd, here
        return self

    def release(self) -> None:
        """Give the lease back; does nothing when it is not held."""
        fd, holder = self._fd, self._holder
        self._fd = self._holder = None
        if fd is None or holder is None:
            return
        try:
            # Unlocked by name: a forked child may have the descriptor too, and closing ours alone would leave it locked. For the same
            # reason such a child must not unlock what its parent holds.
            if sys.platform != "win32" and holder[0] == os.getpid():
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def owner(self) -> Owner | None:
        """Who wrote its name into the file last: for messages only, since a holder may have died or not have written yet."""
        try:
            return Owner.from_json(json.loads(self.path.read_bytes()))
        except (OSError, ValueError, InvalidInput):
            return None

    def _try(self) -> int | None:
        """A locked descriptor of the file the path names, or None when another owner has it."""
        if sys.platform == "win32":
            raise AdapterUnavailable("Leases need flock, which Windows does not have.", fix="Use Linux, macOS or WSL.")
        while True:
            fd = None
            try:
                fd = os.open(self._file, _OPEN, 0o666)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(fd, self._file):
                    with suppress(OSError):  # a full disk must not keep anybody from making room on it
                        os.pwrite(fd, _note(os.getpid()), 0)
                    return fd
            except BlockingIOError:
                assert fd is not None
                os.close(fd)
                return None
            except OSError as problem:
                if fd is not None:
                    os.close(fd)
                raise self._unavailable(problem) from problem
            # Eviction removed the file between our open and our lock: what we locked is nobody's meeting place any more.
            os.close(fd)

    def _refused(self) -> EvictionRace:
        owner = self.owner()
        holder = f"process {owner.pid} on {owner.host}" if owner else "another process"
        return EvictionRace(
            f"{self._file} is held by {holder}, which did not let go within {self.wait:g} s.",
            why="Two owners at once would lose one's work.",
            fix="Let it finish and try again; if that process is dead, a child of it still holds the lock.",
        )

    def _unavailable(self, problem: OSError) -> AdapterUnavailable:
        if problem.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            return AdapterUnavailable(
                f"The file system of {self._file} has no file locks: {problem.strerror}.",
                why="Without them two processes could write one session.",
                fix="Keep the store on a local file system (GITTRIX_HOME).",
            )
        return AdapterUnavailable(
            f"The lock file {self._file} cannot be used: {problem.strerror}.",
            why="Nothing is changed without the lease.",
            fix="See that its directory exists and is writable.",
        )


def _same_file(fd: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


@lru_cache(maxsize=1)
def _note(pid: int) -> bytes:
    return json.dumps(_owner(pid).to_json()).encode().ljust(_NOTE_SIZE - 1) + b"\n"


@lru_cache(maxsize=1)
def _owner(pid: int) -> Owner:
    return Owner(pid, _status(pid)[1], _boot_id(), platform.node(), _pid_space())


def _status(pid: int) -> tuple[str | None, int | None]:
    """A process's status letter (``Z``: dead, but not yet waited for) and start time, where ``/proc`` tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None, None
    # The second field is the program's name, in parentheses and of its own choosing; status is the 3rd, start time the 22nd.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[19])


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pid_space() -> int | None:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
