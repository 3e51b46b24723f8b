"""The index file: built for a fresh workspace, and changed for a person's checkout.

A change copies every byte that does not concern a changed path (stat data, flags, resolve-undo), so that what the person has staged stays
staged. Version 4 is read into the layout of version 3, and written from it. Split and sparse indexes are refused by name.

Next to it, in the git directory of a checkout, are the files that show which operation is in progress.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gittrix.errors import UnsupportedRepository
from pytest_gittrix.git.tree import SUBMODULE, Entry

if TYPE_CHECKING:
    from pytest_gittrix.git.objects import ObjectFormat

OPERATIONS: Final = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "sequencer": "sequence of picks",
    "BISECT_LOG": "bisect",
}
"""The operations that git can be in the middle of, by the file in a checkout's git directory that shows it."""

_STAT: Final = struct.Struct(">10I")
_HEADER: Final = struct.Struct(">4sII")
_FLAGS: Final = struct.Struct(">H")
_EXTENDED: Final = 0x4000
_SKIP_WORKTREE: Final = 0x4000
_MODE_AT: Final = 24
_ASSUME_UNCHANGED: Final = 0x8000
_STAGES: Final = 0x3000
_NAME_MASK: Final = 0x0FFF
_LOW: Final = 0xFFFFFFFF
# These describe entries that may have changed; git rebuilds them when it needs them.
_DROPPED_EXTENSIONS: Final = (b"TREE", b"EOIE", b"IEOT", b"UNTR", b"FSMN")


def operations_in(git_dir: str) -> list[str]:
    """The operations that a checkout is in the middle of, by its git directory."""
    return [*dict.fromkeys(name for file, name in OPERATIONS.items() if os.path.exists(os.path.join(git_dir, file)))]


class IndexEntry(NamedTuple):
    """One staged path.

    Attributes:
        mode: git mode.
        id: object id in hex.
        stat: ten 32-bit numbers as git keeps them (ctime and mtime in seconds and nanoseconds, dev, ino, mode, uid, gid, size).
        stage: 0, or 1 to 3 while a merge is unresolved.
        skip_worktree: whether the path is to be absent from the work tree.
    """

    mode: int
    id: str
    stat: tuple[int, ...] = (0,) * 10
    stage: int = 0
    skip_worktree: bool = False

    def matches(self, status: os.stat_result) -> bool:
        """Whether a file's current stat equals the recorded one, by git's test for an unchanged file."""
        return self.stat[:6] == stat_numbers(status, self.mode)[:6] and self.stat[9] == status.st_size & _LOW


def stat_numbers(status: os.stat_result, mode: int) -> tuple[int, ...]:
    """A file's stat as an index entry keeps it."""
    return (
        status.st_ctime_ns // 10**9 & _LOW,
        status.st_ctime_ns % 10**9,
        status.st_mtime_ns // 10**9 & _LOW,
        status.st_mtime_ns % 10**9,
        status.st_dev & _LOW,
        status.st_ino & _LOW,
        mode,
        status.st_uid & _LOW,
        status.st_gid & _LOW,
        status.st_size & _LOW,
    )


def _encode(path: bytes, entry: IndexEntry) -> bytes:
    flags = min(len(path), _NAME_MASK) | entry.stage << 12
    numbers = (*entry.stat[:6], entry.mode, *entry.stat[7:])
    body = _STAT.pack(*numbers) + bytes.fromhex(entry.id)
    body += struct.pack(">HH", flags | _EXTENDED, _SKIP_WORKTREE) if entry.skip_worktree else struct.pack(">H", flags)
    return body + path + _padding(len(body) + len(path))


def build_index(entries: Iterable[tuple[bytes, IndexEntry]], format_: ObjectFormat) -> bytes:
    """Build an index (version 2) of entries without conflicts, given in the byte order of their paths."""
    parts = [_encode(path, entry) for path, entry in entries]
    body = _HEADER.pack(b"DIRC", 2, len(parts)) + b"".join(parts)
    return body + format_.digest(body)


class _Layout(NamedTuple):
    """A large index, and what was found by reading all of it.

    Attributes:
        fixed: the size of an entry before its name, which the object format decides.
        data: the index.
        starts: where each entry begins, and the last one ends.
        keys: their paths.
        flagged: the numbers of those that git is set not to look at, or that are not plain.
        tail: the extensions that are kept.
    """

    fixed: int
    data: bytes
    starts: list[int]
    keys: list[bytes]
    flagged: list[int]
    tail: bytes


_RECENT: Final[deque[_Layout]] = deque(maxlen=2)
"""The large indexes that were read or made last. A promotion mostly finds the index that the one before it made."""
_LARGE: Final = 1 << 18
"""From how many bytes on an index takes longer to read through than to compare."""


def _remember(layout: _Layout) -> None:
    if len(layout.data) >= _LARGE:
        _RECENT.append(layout)


class IndexFile:
    """An index that was read from a file; it gives the entries of a path, and its bytes with some paths changed.

    Args:
        data: the file's bytes; empty for a repository that has no index yet.
        format_: the repository's object format.

    Raises:
        UnsupportedRepository: its version or a mandatory extension is one that this module cannot write, or it is damaged.
    """

    def __init__(self, data: bytes, format_: ObjectFormat) -> None:
        self._format = format_
        self._data = data or build_index((), format_)
        self._fixed = _STAT.size + format_.size + 2
        known = next((layout for layout in [*_RECENT] if layout.fixed == self._fixed and layout.data == self._data), None)
        if known is not None:
            self._set(known)
            return
        if not self._data.startswith(b"DIRC") or not self._is_intact():
            raise _damaged()
        _, self._version, self._count = _HEADER.unpack_from(self._data)
        if self._version not in (2, 3, 4):
            raise _unsupported(f"version {self._version}")
        try:
            if self._version == 4:
                self._data = _expanded(self._data, self._count, self._fixed)
            self._scan()
        except (struct.error, IndexError, ValueError):
            raise _damaged() from None
        if self._version != 4:
            _remember(_Layout(self._fixed, self._data, self._starts, self._keys, self._flagged, self._tail))

    def _set(self, layout: _Layout) -> None:
        _, self._data, self._starts, self._keys, self._flagged, self._tail = layout
        _, self._version, self._count = _HEADER.unpack_from(self._data)
        self._end = self._starts[-1]

    def _is_intact(self) -> bool:
        """Whether the file ends in its own hash, or in the zeros of ``index.skipHash``."""
        size = self._format.size
        return len(self._data) >= _HEADER.size + size and self._data[-size:] in (self._format.digest(self._data[:-size]), bytes(size))

    def _scan(self) -> None:
        """Find the offset and the path of each entry; entries are sorted by path, then by stage."""
        data, fixed, flags_of = self._data, self._fixed, _FLAGS.unpack_from
        starts: list[int] = []
        keys: list[bytes] = []
        flagged: list[int] = []
        at = _HEADER.size
        for number in range(self._count):
            name_at = at + fixed
            (length,) = flags_of(data, name_at - 2)
            if length >= _NAME_MASK:  # next to none has a flag, a stage or a long name
                if length & (_EXTENDED | _ASSUME_UNCHANGED):
                    flagged.append(number)
                name_at += 2 if length & _EXTENDED else 0
                length &= _NAME_MASK
                if length == _NAME_MASK:
                    length = data.index(b"\0", name_at) - name_at
            starts.append(at)
            end = name_at + length
            keys.append(data[name_at:end])
            at += end - at + 8 & ~7
        self._starts, self._keys, self._flagged, self._end = [*starts, at], keys, flagged, at
        self._tail = self._extensions(at)

    def _extensions(self, at: int) -> bytes:
        retained: list[bytes] = []
        limit = len(self._data) - self._format.size
        while at < limit:
            name, size = self._data[at : at + 4], int.from_bytes(self._data[at + 4 : at + 8], "big")
            if name[:1].islower():
                raise _unsupported(f"extension {name.decode(errors='replace')!r}")
            if name not in _DROPPED_EXTENSIONS:
                retained.append(self._data[at : at + 8 + size])
            at += 8 + size
        return b"".join(retained)

    def staged(self) -> Iterator[tuple[str, str]]:
        """Every path, with the id of what is staged for it; one in conflict comes several times."""
        data, id_at, id_end = self._data, _STAT.size, self._fixed - 2
        for path, start in zip(self._keys, self._starts, strict=False):  # the last start is the end
            yield os.fsdecode(path), data[start + id_at : start + id_end].hex()

    def listing(self) -> dict[str, Entry]:
        """What is staged by path, in git's order, for an index without conflicts."""
        decoded = map(self._decode, range(self._count))
        return {os.fsdecode(path): Entry(entry.mode, entry.id) for path, entry in zip(self._keys, decoded, strict=True)}

    def hidden(self) -> Iterator[tuple[str, IndexEntry]]:
        """The paths that git is set not to look at in the work tree: those that are assumed to be unchanged, and those that it skips."""
        for number in self._flagged:
            entry = self._decode(number)
            (flags,) = _FLAGS.unpack_from(self._data, self._starts[number] + self._fixed - 2)
            if entry.skip_worktree or flags & _ASSUME_UNCHANGED:
                yield os.fsdecode(self._keys[number]), entry

    def submodules(self) -> Iterator[str]:
        """The paths that are commits of other repositories."""
        mode = SUBMODULE.to_bytes(4, "big")
        if mode not in self._data:
            return
        for number, at in enumerate(self._starts[:-1]):
            if self._data[at + _MODE_AT : at + _MODE_AT + 4] == mode:
                yield os.fsdecode(self._keys[number])

    def _range(self, path: bytes) -> tuple[int, int]:
        first = bisect_left(self._keys, path)
        last = first
        while last < self._count and self._keys[last] == path:
            last += 1
        return first, last

    def entries(self, path: str) -> list[IndexEntry]:
        """The entries of a path: none, one, or several while a merge is unresolved."""
        first, last = self._range(os.fsencode(path))
        return [self._decode(number) for number in range(first, last)]

    def below(self, path: str) -> list[str]:
        """The staged paths below a directory."""
        return [os.fsdecode(self._keys[number]) for number in self._numbers_below(path)]

    def tracks(self, path: str) -> bool:
        """Whether a path, or anything below it, is staged."""
        return bool(self.entries(path)) or next(self._numbers_below(path), None) is not None

    def leaves_out(self, path: str) -> bool:
        """Whether a sparse checkout leaves a directory out: there are staged paths below it, and the work tree is to have none of them."""
        first = next(self._numbers_below(path), None)
        return first is not None and all(self._decode(number).skip_worktree for number in self._numbers_below(path))

    def _numbers_below(self, path: str) -> Iterator[int]:
        prefix = os.fsencode(path) + b"/"
        return takewhile(lambda number: self._keys[number].startswith(prefix), range(bisect_left(self._keys, prefix), self._count))

    def _decode(self, number: int) -> IndexEntry:
        at = self._starts[number]
        stat = _STAT.unpack_from(self._data, at)
        id_ = self._data[at + _STAT.size : at + self._fixed - 2].hex()
        flags = int.from_bytes(self._data[at + self._fixed - 2 : at + self._fixed], "big")
        more = int.from_bytes(self._data[at + self._fixed : at + self._fixed + 2], "big") if flags & _EXTENDED else 0
        return IndexEntry(stat[6], id_, stat, (flags & _STAGES) >> 12, bool(more & _SKIP_WORKTREE))

    def with_changes(self, changes: Mapping[str, IndexEntry | None]) -> bytes:
        """The file's bytes with the entries of some paths replaced (None unstages a path); everything else is copied unchanged."""
        parts: list[bytes] = []
        count, number, is_alike = self._count, 0, True
        for path, entry in sorted((os.fsencode(path), entry) for path, entry in changes.items()):
            first, last = self._range(path)
            before = self._data[self._starts[first] : self._starts[last]]
            after = b"" if entry is None else _encode(path, entry)
            is_alike = is_alike and last == first + 1 and len(before) == len(after) and self._flags(before) == self._flags(after)
            parts += [self._data[self._starts[number] : self._starts[first]], after]
            count += (entry is not None) - (last - first)
            number = last
        parts.append(self._data[self._starts[number] : self._end])
        extended = any(entry is not None and entry.skip_worktree for entry in changes.values())
        version = max(self._version, 3) if extended else self._version
        entries = b"".join(parts)
        body = _HEADER.pack(b"DIRC", version, count) + (_compressed(entries, self._fixed) if version == 4 else entries) + self._tail
        data = body + self._format.digest(body)
        if is_alike and version != 4:
            _remember(_Layout(self._fixed, data, self._starts, self._keys, self._flagged, self._tail))
        return data

    def _flags(self, entry: bytes) -> bytes:
        return entry[self._fixed - 2 : self._fixed]


def _head_size(data: bytes, at: int, fixed: int) -> int:
    """The size of what is before the name in the entry at an offset."""
    return fixed + (2 if data[at + fixed - 2] << 8 & _EXTENDED else 0)


def _padding(size: int) -> bytes:
    return b"\0" * (8 - size % 8)


def _expanded(data: bytes, count: int, fixed: int) -> bytes:
    """An index of version 4 with its entries as version 3 has them: each with its whole name, and padded.

    In version 4 a name is the number of bytes to take off the end of the name before it, and what to append to the rest.
    """
    parts, name, at = [data[: _HEADER.size]], b"", _HEADER.size
    for _ in range(count):
        name_at = at + _head_size(data, at, fixed)
        taken, rest_at = _read_offset(data, name_at)
        end = data.index(b"\0", rest_at)
        name = name[: len(name) - taken] + data[rest_at:end]
        parts += [data[at:name_at], name, _padding(name_at - at + len(name))]
        at = end + 1
    return b"".join(parts) + data[at:]


def _compressed(entries: bytes, fixed: int) -> bytes:
    """The entries of version 3 as version 4 has them."""
    parts, before, at = [], b"", 0
    while at < len(entries):
        name_at = at + _head_size(entries, at, fixed)
        end = entries.index(b"\0", name_at)
        name = entries[name_at:end]
        common = next((number for number, (one, other) in enumerate(zip(before, name, strict=False)) if one != other), len(before))
        parts += [entries[at:name_at], _offset(len(before) - common), name[common:], b"\0"]
        before, at = name, end + len(_padding(end - at))
    return b"".join(parts)


def _read_offset(data: bytes, at: int) -> tuple[int, int]:
    """A number in the encoding of a pack's offsets, and where it ends."""
    number = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        number = (number + 1 << 7) + (data[at] & 0x7F)
    return number, at + 1


def _offset(number: int) -> bytes:
    encoded = [number & 0x7F]
    while number := number >> 7:
        number -= 1
        encoded.append(0x80 | number & 0x7F)
    return bytes(reversed(encoded))


def _damaged() -> UnsupportedRepository:
    return UnsupportedRepository(
        "The work tree's index is damaged: it does not end in its own hash, or has fewer entries than it says.",
        why="Bringing a promoted file forward means writing the index again, and half of one would lose what is staged.",
        fix="See what `git status` says there; `git read-tree HEAD` makes a new index.",
    )


def _unsupported(what: str) -> UnsupportedRepository:
    return UnsupportedRepository(
        f"The work tree's index uses {what}.",
        why="Bringing a promoted file forward means writing the index, and the engine writes only what it fully knows.",
        fix="Run `git update-index --no-split-index` (for a sparse one `git sparse-checkout reapply --no-sparse-index`), "
        "or promote to a branch that is not checked out.",
    )
