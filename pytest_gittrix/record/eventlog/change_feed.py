"""The sessions of a store that were written to, announced by the writers, so that an index of thousands need not look at each log.

An index creates the file once its store is large; then writers add a line to it for each event. Until then they only look whether it is
there. Two things make the file right, whichever process is killed when:

* A writer announces a write *before* it writes, so no change is without a line.
* From before the announcement until after the write, the writer holds a lock on its log, which the system frees with the process. While a
  session that was announced is locked, a reader starts at the same position next time.

Where the system has no such locks (they are Linux's), the file is not trusted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from pytest_gittrix.os_level.file_lock import RECORD_LOCKS, nobody_at_work
from pytest_gittrix.os_level.files import write_file

FILE = ".changes"
LARGEST = 8 * 1024 * 1024
"""In bytes; a larger file is replaced by a new one."""

_STAMP_SIZE = 32
_ANNOUNCE = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)


class Mark(NamedTuple):
    """A position in the file up to which a reader knows everything: the file (its stamp), and the byte."""

    stamp: str
    offset: int


class ChangedSessions(NamedTuple):
    """The sessions that were announced since a mark, and the mark at the end of the announcements."""

    ids: frozenset[str]
    end: Mark


def announce_write(path: str, id: str) -> None:
    """Announce that a session is about to be written to, if there is a change feed. The caller holds the lock that shows it at work.

    Args:
        path: of the change feed.
        id: of the session.

    Raises:
        OSError: the announcement could not be written (a full disk), so nothing else may be.
    """
    try:
        fd = os.open(path, _ANNOUNCE)
    except FileNotFoundError:
        return
    try:
        # With a line end before it, too: it ends the line of a writer that was killed in the middle of it.
        line = f"\n{id}\n".encode()
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


class ChangeFeed:
    """The change feed of one store, for its readers.

    Args:
        root: the store's directory.
        log: the name of a session's log in its directory.
    """

    def __init__(self, root: Path, log: str) -> None:
        self.path = root / FILE
        self._root = os.fspath(root)
        self._log = log

    def begin(self) -> None:
        """Begin a new file, which makes all marks of the one before useless."""
        if not RECORD_LOCKS:
            return
        fresh = f"{self.path}.{os.getpid()}-{token_hex(4)}.tmp"
        with suppress(OSError):  # a store that cannot be written; its index has to look for itself
            write_file(self.path, token_hex(_STAMP_SIZE // 2).encode(), temporary=fresh)

    def since(self, mark: Mark | None) -> ChangedSessions | None:
        """What was announced since ``mark``, or since the beginning; None if there is no file, or another one than the mark's."""
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
        return ChangedSessions(frozenset(whole.decode("ascii", "replace").split()), Mark(stamp, offset + len(whole)))

    def quiet(self, ids: Iterable[str]) -> bool:
        """Whether no write to any of these sessions is running that began before this call."""
        return RECORD_LOCKS and all(self._is_quiet(id) for id in ids)

    def _is_quiet(self, id: str) -> bool:
        try:
            fd = os.open(os.path.join(self._root, id, self._log), _READ)
        except (FileNotFoundError, NotADirectoryError):
            return True  # a writer has its log open, and no process removes a log
        except OSError:
            return False
        try:
            return nobody_at_work(fd)
        finally:
            os.close(fd)
