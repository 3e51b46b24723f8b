"""Which sessions of a store were written to, told by those who write, so that an index of thousands need not look at each log.

The file is made by an index, once its store is large; writers then put a line into it for each event. Before that they only pay for
looking whether it is there. Two things make an answer from it right, whoever is killed when:

* A writer tells *before* it writes, so a change without a line cannot be.
* From before it tells until after it has written, it holds a lock on its log that the system frees with it. While one of the sessions
  that were told of is locked so, whoever reads goes on from the same place next time.

It must not know what an event is, nor what an index keeps. Where the system has no such locks (they are Linux's), nothing is trusted.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

if sys.platform != "win32":
    import fcntl

FILE = ".changes"
LARGEST = 8 * 1024 * 1024
"""In bytes; a file that has more is begun anew."""

SUPPORTED = sys.platform == "linux" and sys.maxsize > 2**32
_STAMP_SIZE = 32
_TELL = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid. A length of 0 is all of the file.
_FLOCK = "hhqqi4x"
if sys.platform == "linux":
    _SHARED = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    _ALONE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the file up to which everything is known: which file (its stamp), and the byte."""

    stamp: str
    offset: int


@dataclass(frozen=True, slots=True)
class Told:
    """What was told since a mark: the ids of sessions, and the place the telling came to."""

    ids: frozenset[str]
    end: Mark


def tell(log: int, path: str, id: str) -> None:
    """Say that a session is about to be written to; until ``log`` is closed, it may be at any moment.

    Args:
        log: the open descriptor of the session's log.
        path: of the file.
        id: of the session.

    Raises:
        OSError: it could not be said (a full disk), so nothing may be written.
    """
    if sys.platform != "linux" or not SUPPORTED:
        return
    try:
        fcntl.fcntl(log, fcntl.F_OFD_SETLK, _SHARED)
    except OSError:
        return  # a file system without such locks, where nobody trusts the file
    if not os.access(path, os.F_OK):
        return  # as in every small store, and found out in half the time that a refusal to open it takes
    try:
        fd = os.open(path, _TELL)
    except FileNotFoundError:
        return
    try:
        # With a line end before it, too: the line of somebody who was killed in the middle of it ends there.
        line = f"\n{id}\n".encode()
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


class Changes:
    """The file of one store, for whoever reads it.

    Args:
        root: the store's directory.
        log: the name of a session's log in its directory.
    """

    def __init__(self, root: Path, log: str) -> None:
        self.path = root / FILE
        self._root = os.fspath(root)
        self._log = log

    def begin(self) -> None:
        """Begin a new file. What anybody knew from the one before is of no use any more."""
        if not SUPPORTED:
            return
        fresh = f"{self.path}.{os.getpid()}-{token_hex(4)}.tmp"
        with suppress(OSError):  # a store that cannot be written; its index has to look for itself
            try:
                fd = os.open(fresh, _NEW, 0o666)
                try:
                    os.write(fd, token_hex(_STAMP_SIZE // 2).encode())
                finally:
                    os.close(fd)
                os.replace(fresh, self.path)
            except OSError:
                os.unlink(fresh)
                raise

    def since(self, mark: Mark | None) -> Told | None:
        """What was told since ``mark``, or since the beginning; None where nobody can know: no file, or another one than the mark's."""
        try:
            fd = os.open(self.path, _READ)
            try:
                stamp = os.pread(fd, _STAMP_SIZE, 0).decode("ascii", "replace")
                offset = _STAMP_SIZE if mark is None else mark.offset
                raw = b""
                while piece := os.pread(fd, 1 << 20, offset + len(raw)):
                    raw += piece
            finally:
                os.close(fd)
        except OSError:
            return None
        if len(stamp) != _STAMP_SIZE or (mark is not None and mark.stamp != stamp):
            return None
        whole = raw[: raw.rfind(b"\n") + 1]  # the rest is being written
        return Told(frozenset(whole.decode("ascii", "replace").split()), Mark(stamp, offset + len(whole)))

    def quiet(self, ids: Iterable[str]) -> bool:
        """Whether nobody is writing to any of these sessions who began to before this was asked."""
        return SUPPORTED and all(self._is_quiet(id) for id in ids)

    def _is_quiet(self, id: str) -> bool:
        if sys.platform != "linux":
            return False
        try:
            fd = os.open(os.path.join(self._root, id, self._log), _READ)
        except (FileNotFoundError, NotADirectoryError):
            return True  # a writer has its log open, and nobody removes that
        except OSError:
            return False
        try:
            (kind, *_) = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _ALONE))
        except OSError:
            return False
        finally:
            os.close(fd)
        return bool(kind == fcntl.F_UNLCK)
