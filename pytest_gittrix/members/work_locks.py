"""Locks of work items: on disk, so that they survive restarts, and held by one session at a time.

A lock is held by a session, not by a process, until it is released or the session is over.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.os_level.files import private_directory, sync_directory, write_file
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.store.store import ID

MOST_CHARACTERS: Final = 1024
_SUFFIX: Final = ".item"
_UNDER_WAY: Final = "tmp_"
_GUARD: Final = ".lock"


@dataclass(frozen=True, slots=True)
class WorkLock:
    """A lock as it is on the disk.

    Attributes:
        item: the work item.
        session: the id of the session that holds it.
        since_ns: when the session got it, in nanoseconds since 1970 UTC.
    """

    item: str
    session: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """The outcome of a request for a lock.

    Attributes:
        acquired: whether the session has the lock now.
        holder: the id of the session that has it now.
        already_held: whether the session had it before.
        taken_from: the id of the session that had it until now and is over.
    """

    acquired: bool
    holder: str
    already_held: bool = False
    taken_from: str | None = None


class WorkLocks:
    """The locks of a directory.

    Args:
        directory: the directory of the locks; made by the first :meth:`acquire`.
        is_live: whether the session of an id still works; one that is over or unknown loses its locks to any other that asks.
        now_ns: the time for ``since_ns``, in nanoseconds since 1970 UTC.
        wait: real seconds to wait for other processes that are changing the locks.
    """

    def __init__(self, directory: Path | str, *, is_live: Callable[[str], bool], now_ns: Callable[[], int], wait: float = 10.0) -> None:
        self.directory = Path(directory)
        self._is_live = is_live
        self._now_ns = now_ns
        self._wait = wait

    def acquire(self, item: str, session: str) -> LockAnswer:
        """Get an item's lock for a session, without waiting for its holder. Of several concurrent calls, exactly one gets it.

        Raises:
            InvalidInput: the item or the id is malformed.
            AdapterUnavailable: the disk refused, or the lock on the disk cannot be read; nothing was changed.
            EvictionRace: others were changing the locks for longer than ``wait``.
        """
        file = self._file(item)
        _check_session(session)
        while True:
            known = _read(file)
            # Checked outside the guard, since it takes long; the result is valid as long as the lock is the same.
            dead = known is not None and known.session != session and not self._is_live(known.session)
            with self._guarded():
                held = _read(file)
                if held != known:
                    continue
                if held is not None and not dead:
                    return LockAnswer(held.session == session, held.session, already_held=held.session == session)
                self._write(file, WorkLock(item, session, self._now_ns()))
                return LockAnswer(True, session, taken_from=held.session if held else None)

    def release(self, item: str, session: str) -> bool:
        """Release an item's lock, if the session holds it; return whether it did.

        Raises:
            InvalidInput, AdapterUnavailable, EvictionRace: as :meth:`acquire`.
        """
        file = self._file(item)
        _check_session(session)
        if not self._holds(file, session):
            return False
        with self._guarded():
            return self._remove(file, session)

    def release_all(self, session: str) -> list[str]:
        """Release all locks of a session; return their items, sorted.

        Raises:
            InvalidInput, AdapterUnavailable, EvictionRace: as :meth:`acquire`.
        """
        _check_session(session)
        items = [lock.item for lock in self.held() if lock.session == session]
        if not items:
            return []
        with self._guarded():
            return [item for item in items if self._remove(self._file(item), session)]

    def holder(self, item: str) -> str | None:
        """The id of the session that holds an item's lock, which may be over; None if it is free.

        Raises:
            InvalidInput, AdapterUnavailable: as :meth:`acquire`.
        """
        lock = _read(self._file(item))
        return lock.session if lock else None

    def held(self) -> list[WorkLock]:
        """All locks, sorted by item, with those of sessions that are over.

        Raises:
            AdapterUnavailable: the directory or a lock cannot be read.
        """
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise _unavailable(self.directory, problem) from problem
        found = [_read(self.directory / name) for name in names if name.endswith(_SUFFIX) and not name.startswith(_UNDER_WAY)]
        return sorted((lock for lock in found if lock is not None), key=lambda lock: lock.item)

    def _file(self, item: str) -> Path:
        """The file of an item's lock. Its name is a hash: an item can be long, and two items must not be one name to a file system."""
        _check_item(item)
        return self.directory / (hashlib.sha256(item.encode()).hexdigest() + _SUFFIX)

    def _holds(self, file: Path, session: str) -> bool:
        lock = _read(file)
        return lock is not None and lock.session == session

    def _remove(self, file: Path, session: str) -> bool:
        if not self._holds(file, session):
            return False
        os.unlink(file)
        sync_directory(str(self.directory))
        return True

    def _write(self, file: Path, lock: WorkLock) -> None:
        # A process that was killed in here has left a temporary file; no other process is in here.
        for name in os.listdir(self.directory):
            if name.startswith(_UNDER_WAY):
                with suppress(FileNotFoundError):
                    os.unlink(self.directory / name)
        fields = {"version": 1, "item": lock.item, "session": lock.session, "since_ns": lock.since_ns}
        write_file(str(file), json.dumps(fields).encode() + b"\n", sync=True, prefix=_UNDER_WAY)
        sync_directory(str(self.directory))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Exclude all other processes; a kill releases the guard."""
        try:
            private_directory(self.directory, close=True)
            with Lease(self.directory / _GUARD, wait=self._wait):
                yield
        except OSError as problem:
            raise _unavailable(self.directory, problem) from problem


def _check_item(item: str) -> None:
    fix = f"Use 1 to {MOST_CHARACTERS} characters without control characters, such as acme/app#12."
    if not isinstance(item, str) or not item or item != item.strip() or len(item) > MOST_CHARACTERS:
        raise InvalidInput(f"{str(item)[:80]!r} cannot name a work item.", why="Two spellings of one item would be two locks.", fix=fix)
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in item):
        raise InvalidInput(f"{item[:80]!r} cannot name a work item.", why="It could not be printed on one line.", fix=fix)


def _check_session(session: str) -> None:
    if not isinstance(session, str) or not ID.fullmatch(session):
        raise InvalidInput(f"{session!r} is not a session id.", fix="An id is 1 to 128 letters, digits, _ and -.")


def _read(file: Path) -> WorkLock | None:
    try:
        fields = json.loads(file.read_bytes())
        return WorkLock(str(fields["item"]), str(fields["session"]), int(fields["since_ns"]))
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _unavailable(file, problem) from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise AdapterUnavailable(
            f"{file} is no lock of a work item.",
            why="The lock does not name its session, so no session can take it.",
            fix="Remove it, if no session works on that item.",
        ) from problem


def _unavailable(path: Path, problem: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(f"{path} cannot be used: {problem.strerror}.", fix="See that the directory is writable, with space.")
