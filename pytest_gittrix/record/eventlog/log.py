"""One session's history: an append-only file of events, one a line.

The file is the truth: what is in it happened, in that order, and nothing else did (rule 10, docs/explanation/rules.md). The caller of
``append`` and ``repair`` holds the session's lease; how it got it is not the log's concern. Readers never wait.

No descriptor stays open between calls, so that thousands of open sessions cost none; opening the file takes 3 us.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pytest_gittrix.errors import AdapterUnavailable, Advice, InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.os_level.file_lock import show_at_work
from pytest_gittrix.os_level.files import OWNERS, sync_directory, write_all, write_file
from pytest_gittrix.record.eventlog.change_feed import announce_write
from pytest_gittrix.record.eventlog.events import Actor, Cursor, Damage, Event, Scan, check, decode, encode, scan

Durability = Literal["full", "fast"]
_Draft = tuple[str, Mapping[str, Any], int, str]
"""An event that has no number yet: its type, data, time and actor."""
ReadPolicy = Literal["repair-tail", "strict", "skip"]

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | _FLAGS
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS
# macOS has no fdatasync.
_sync_data = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a log, up to a position.

    Attributes:
        end: the position.
        digest: the SHA-256 of all bytes before it, in hex; of nothing by default.
    """

    end: Cursor = field(default_factory=Cursor)
    digest: str = ""


class _OtherBeginning(Exception):
    """A log does not begin with the bytes that it began with before."""


def _digest(raw: bytes, end: Cursor) -> str:
    return hashlib.sha256(memoryview(raw)[: end.offset]).hexdigest()


class EventLog:
    """The events of one session.

    Args:
        path: the file; made by the first append, in a directory that exists.
        stream: the session's id; a line of another session is damage.
        durability: ``full`` has commit points reach the disk before they return, ``fast`` leaves that to the system.
        changes: the file in which each write is announced to readers of the whole store; see ``change_feed``.
    """

    def __init__(self, path: Path | str, stream: str, *, durability: Durability = "full", changes: str | None = None) -> None:
        if durability not in ("full", "fast"):
            raise InvalidInput(f"{durability!r} is not a durability.", fix="Use full (survives a power cut) or fast (survives a crash).")
        self.stream = stream
        self._file = os.fspath(path)
        self._full = durability == "full"
        self._changes = changes
        self._tail = Cursor()
        self._reader = Cursor()
        self._torn = False
        self._poison: OSError | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._file)

    @property
    def torn(self) -> bool:
        """Whether the last read met a torn end, which only :meth:`repair` can mend."""
        return self._torn or self._poison is not None

    @property
    def behind(self) -> bool:
        """Whether an append met events of another process first: :meth:`refresh` returns them, and the appended one."""
        return self._reader != self._tail

    def twin(self) -> EventLog:
        """The same log as another object, which has read as far as this one."""
        twin = EventLog(self._file, self.stream, durability="full" if self._full else "fast", changes=self._changes)
        twin._tail = twin._reader = self._reader
        return twin

    def append(self, type: str, data: Mapping[str, Any], *, ts: int, actor: Actor = "system", commit_point: bool = False) -> Event:
        """Store an event. The caller holds the session's lease.

        What another process appended since is read first, so ``seq`` is right whoever wrote before; a torn end is repaired.
        Either the whole event is stored, or none of it and an error is raised; only after a failed sync is that unknown.

        Args:
            type: a row of the vocabulary, with its ``data``.
            ts: nanoseconds since 1970 UTC; stored in whole microseconds.
            actor: ``human``, ``agent`` or ``system``.
            commit_point: with full durability, do not return before this event and all before it are on the disk.

        Raises:
            InvalidInput: the vocabulary does not have such an event, or it cannot be written as JSON.
            LogDamaged: the log is damaged before its last line, or a sync failed, now or earlier: the event may or may not be kept.
            AdapterUnavailable: the file cannot be opened or written (no space, no directory); nothing was stored.
        """
        return self._append([(type, data, ts, actor)], ts, commit_point=commit_point)[0]

    def append_all(self, events: Sequence[Event]) -> list[Event]:
        """Store events that another log has, with their times and actors, under this log's name and its next numbers, in one write.

        Either all are stored, or none and an error is raised; after a kill, the first of them may be. The caller holds the session's lease.

        Raises:
            InvalidInput, LogDamaged, AdapterUnavailable: as :meth:`append`.
        """
        if not events:
            return []
        return self._append([(event.type, event.data, event.ts, event.actor) for event in events], events[-1].ts, commit_point=False)

    def _append(self, drafts: Sequence[_Draft], ts: int, *, commit_point: bool) -> list[Event]:
        for type_, data, _ts, actor in drafts:
            check(type_, data, actor)
        self._refuse_poison()
        with self._opened(_APPEND) as fd:
            self._announce(fd)
            self._catch_up(fd, ts)
            return self._store(fd, drafts, commit_point)

    def read(self, policy: ReadPolicy = "repair-tail") -> list[Event]:
        """All events from the first. ``repair-tail`` takes a torn end for absent, ``strict`` for damage.

        ``skip`` gives the whole events past any damage, like :meth:`salvage`; it does not count as read for :meth:`refresh`.

        Raises:
            LogDamaged: a line is damaged; the message names file, line and byte.
            AdapterUnavailable: the file cannot be read. (No file at all means no events.)
            InvalidInput: there is no such policy.
        """
        if policy not in get_args(ReadPolicy):
            raise InvalidInput(f"{policy!r} is not a way to read a log.", fix=f"Use one of: {', '.join(get_args(ReadPolicy))}.")
        if policy == "skip":
            return self.salvage().events
        return self._read_from(Cursor(), strict=policy == "strict")

    def first(self) -> Event | None:
        """The first event, without reading the others; None if the log has no whole line.

        Raises:
            LogDamaged, MetadataVersionUnsupported: the line is damaged, or of a version this engine does not know.
            AdapterUnavailable: the file cannot be read.
        """
        try:
            with open(self._file, "rb") as file:
                line = file.readline()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _unavailable(self._file, problem) from problem
        return decode(line[:-1]) if line.endswith(b"\n") else None

    def read_after(self, prefix: Prefix) -> tuple[list[Event], Callable[[], Prefix]] | None:
        """The events after a beginning that was read before, and a function that gives what was read as a beginning.

        None if the log does not begin with that. Its bytes are compared by their digest, and none of its lines is parsed.

        Raises:
            LogDamaged, AdapterUnavailable: as :meth:`read`.
        """
        if self._size() < prefix.end.offset:
            return None
        raw = b""

        def read() -> bytes:
            nonlocal raw
            raw = self._bytes_from(0)
            if prefix.end.offset and _digest(raw, prefix.end) != prefix.digest:
                raise _OtherBeginning
            return raw[prefix.end.offset :]

        try:
            events = self._read_from(prefix.end, read)
        except _OtherBeginning:
            return None
        end = self._reader
        return events, lambda: Prefix(end, _digest(raw, end))

    def refresh(self) -> list[Event]:
        """The events that neither this method nor :meth:`read` nor :meth:`append` of this object has returned yet.

        When ``append`` met events of another process first, those and its own all come from here, in order. So
        ``fold(log.refresh() or [event], state)`` is right in every case.

        Raises:
            LogDamaged, AdapterUnavailable: as :meth:`read`.
        """
        if self._size() == self._reader.offset:
            self._torn = False
            return []
        return self._read_from(self._reader)

    def salvage(self) -> Scan:
        """The whole events of a damaged log, and what is damaged, for a person who looks at it. Never raises for damage."""
        return scan(self._bytes_from(0), self.stream)

    def repair(self, *, ts: int) -> Event | None:
        """Cut off a torn end and record that as ``log.recovered``; after a failed sync, also rewrite the log. Needs the lease.

        A log of which not one line is whole becomes empty, without an event: what it began never happened.

        Returns:
            The ``log.recovered`` event, or None when there was nothing to cut.

        Raises:
            LogDamaged: a line before the last is damaged (that is never repaired), or the disk still refuses.
            AdapterUnavailable: the file cannot be read or written.
        """
        if self._poison is not None:
            self._rewrite()
        if self._size() == self._tail.offset:
            return None
        with self._opened(_APPEND) as fd:
            self._announce(fd)
            return self._catch_up(fd, ts)

    def _store(self, fd: int, drafts: Sequence[_Draft], commit_point: bool) -> list[Event]:
        before = self._tail
        events = [
            Event(seq, ts - ts % 1000, self.stream, type_, actor, data) for seq, (type_, data, ts, actor) in enumerate(drafts, before.seq)
        ]
        lines = b"".join([encode(event) + b"\n" for event in events])
        try:
            write_all(fd, lines)
        except OSError:
            with suppress(OSError):  # what stays is a torn end, and the next append repairs it
                os.ftruncate(fd, before.offset)
            raise
        if self._full and (commit_point or not before.seq):
            self._sync(fd, new=not before.seq)
        self._tail = Cursor(before.offset + len(lines), before.seq + len(events))
        if self._reader == before:
            self._reader = self._tail
        return events

    def _sync(self, fd: int, *, new: bool) -> None:
        try:
            _sync_data(fd)
            if new:
                sync_directory(os.path.dirname(self._file))
        except OSError as problem:
            # The kernel may have dropped the pages and will call the next sync a success: nothing may be built on this file.
            self._poison = problem
            damaged = self._not_kept(problem)
            damaged.outcome = "unknown"
            raise damaged from problem

    def _refuse_poison(self) -> None:
        if self._poison is not None:
            raise self._not_kept(self._poison) from self._poison

    def _not_kept(self, problem: OSError) -> LogDamaged:
        return LogDamaged(
            f"The disk did not keep the last event of {self._file}: {problem.strerror}.",
            why="A second try could succeed without the event being there after a power cut.",
            fix=Advice(
                "Check the disk, then call repair() or run `gittrix recover`, which rewrites the log.",
                "Check the disk, then run `gittrix recover`, which rewrites the log.",
            ),
        )

    def _announce(self, fd: int) -> None:
        # Without such locks no reader trusts the feed. No small store has one, which is found out in half the time that opening it takes.
        if self._changes is not None and show_at_work(fd) and os.access(self._changes, os.F_OK):
            announce_write(self._changes, self.stream)

    def _catch_up(self, fd: int, ts: int) -> Event | None:
        if os.fstat(fd).st_size == self._tail.offset:
            return None
        found = self._scan(self._tail, lambda: _read_fd(fd, self._tail.offset))
        self._tail = found.end
        if not found.torn:
            return None
        os.ftruncate(fd, found.end.offset)
        if not found.end.seq:
            return None
        reader = self._reader
        (event,) = self._store(fd, [("log.recovered", {"dropped_bytes": found.torn}, ts, "system")], True)
        self._reader = reader  # no caller gets this event, so the next refresh() returns it
        return event

    def _read_from(self, start: Cursor, read: Callable[[], bytes] | None = None, *, strict: bool = False) -> list[Event]:
        found = self._scan(start, read or (lambda: self._bytes_from(start.offset)), strict=strict)
        self._reader, self._torn = found.end, bool(found.torn)
        if found.end.offset > self._tail.offset:
            self._tail = found.end
        return found.events

    def _scan(self, start: Cursor, read: Callable[[], bytes], *, strict: bool = False) -> Scan:
        if start.offset and self._size() < start.offset:
            raise LogDamaged(f"{self._file} lost events: it is shorter than the {start.offset} bytes that were read before.")
        try:
            raw = read()
            found = scan(raw, self.stream, start)
            # A reader that does not hold the lease can meet a repair half way and see a mixture; damage is there twice.
            if (found.damaged or (strict and found.torn)) and (again := read()) != raw:
                found = scan(again, self.stream, start)
        except MetadataVersionUnsupported as problem:
            raise MetadataVersionUnsupported(f"{self._file} cannot be read. {problem.fact}", why=problem.why, fix=problem.fix) from None
        torn = (Damage(found.end.seq + 1, found.end.offset, "It is cut short."),) if strict and found.torn else ()
        for damage in found.damaged + torn:
            raise LogDamaged(
                f"{self._file} is damaged in line {damage.line}, at byte {damage.offset}: {damage.reason}",
                why="A history with a hole cannot be trusted, so nothing is read past it and nothing is skipped.",
                fix="Put the file back from a copy, or read what is left of it with EventLog.salvage().",
            )
        return found

    def _size(self) -> int:
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return 0
        except OSError as problem:
            raise _unavailable(self._file, problem) from problem
        if stat.S_ISDIR(found.st_mode):  # its size says nothing: 4096 bytes on one file system, 40 on another
            raise _unavailable(self._file, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
        return found.st_size

    def _bytes_from(self, offset: int) -> bytes:
        try:
            with self._opened(_READ) as fd:
                return _read_fd(fd, offset)
        except AdapterUnavailable as problem:
            if isinstance(problem.__cause__, FileNotFoundError):
                return b""
            raise

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        try:
            fd = os.open(self._file, flags, OWNERS)
            try:
                yield fd
            finally:
                os.close(fd)
        except OSError as problem:
            raise _unavailable(self._file, problem) from problem

    def _rewrite(self) -> None:
        found = self._scan(Cursor(), lambda: self._bytes_from(0))
        fresh = f"{self._file}.{os.getpid()}.tmp"
        whole = self._bytes_from(0)[: found.end.offset]
        try:
            write_file(self._file, whole, mode=OWNERS, sync=True, temporary=fresh)
            sync_directory(os.path.dirname(self._file))
        except OSError as problem:
            self._poison = problem
            self._refuse_poison()
        self._poison = None


def report_ignored(problem: BaseException) -> None:
    """Report what a listener raised without raising it: ``threading.excepthook`` prints it, and pytest turns it into a warning."""
    threading.excepthook(threading.ExceptHookArgs((type(problem), problem, problem.__traceback__, threading.current_thread())))


def _read_fd(fd: int, offset: int) -> bytes:
    pieces: list[bytes] = []
    while True:
        remaining = os.fstat(fd).st_size - offset
        piece = os.pread(fd, max(remaining, 0) + 1, offset)  # one byte more than the size says: not to get it means the end
        pieces.append(piece)
        offset += len(piece)
        if not piece or len(piece) == remaining:
            return b"".join(pieces)


def _unavailable(path: str, problem: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(
        f"The event log {path} cannot be used: {problem.strerror}.",
        why="What cannot be recorded must not be done.",
        fix="Check that its directory exists, is writable and has space.",
    )
