"""Measures what a confined program and everything it started use, again and again, and says which of its limits they passed.

Whoever attends the program asks between other things, so a limit costs neither a process nor a thread. Looks are at least ``_PAUSE`` apart,
and take no more than a tenth of a processor. It loads as little as it can, since the zygote loads it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress

from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.proc import (
    CHILDREN_TICKS,
    OWN_TICKS,
    PAGE,
    RESIDENT,
    START_TIME,
    THREADS,
    descending,
    memory_of,
    open_without_name,
    used_at,
)

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SHARED_MEMORY = "/dev/shm"
"""Where a jail has files in memory; as many bytes as the limit of memory."""

_PAUSE, _SHARE = 0.05, 10  # seconds between looks, and by how much a pause is longer than a look
_STEP = 0.01  # seconds of a walk through directories in one look
_WALK_PAUSE, _WALK_SHARE = 0.25, 20  # the same of walks; but the next one begins at once
_PART = 16  # if the disk has less room by this part of the limit
_ENTRIES = 1000  # of a directory between two looks at the time
_BLOCK = 512  # bytes of what stat(2) calls a block
_IN_MEMORY = "/memfd:"
_TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """Measures one program and all that it starts.

    Args:
        limits: the limits, by the names that ``ResourceLimits`` gives them.
        directories: those that the program may write.
        root: the process that the program and all it starts descend from.
        ours: how many processes are ours, from that one on in a line.
        jailed: whether the program has files in memory of its own.
        siblings: children of the root that are neither.
    """

    def __init__(
        self,
        limits: Mapping[str, float],
        directories: Sequence[str],
        root: int,
        *,
        ours: int,
        jailed: bool,
        siblings: frozenset[int] = frozenset(),
    ) -> None:
        self._limits = limits
        self._root = root
        self._ours = ours
        self._jailed = jailed
        self._siblings = siblings
        self._due = 0.0
        self._alive: dict[tuple[int, bytes], int] = {}
        self._dead = 0
        self._disk = _Disk(directories, limits["disk"]) if "disk" in limits else None

    def wait(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._due - real_seconds())

    def passed(self) -> str | None:
        """Look, if it is time to; the limit that the program passed, if it did."""
        began = real_seconds()
        if began < self._due:
            return None
        found = self._look()
        self._due = began + max(_PAUSE, _SHARE * (real_seconds() - began))
        return found

    def _look(self) -> str | None:
        everything = [*descending(self._root, self._siblings)]
        program = everything[self._ours :]
        if "processes" in self._limits and sum(int(fields[THREADS]) for _, fields in program) > self._limits["processes"]:
            return "processes"
        if "cpu_seconds" in self._limits and self._seconds(everything) > self._limits["cpu_seconds"]:
            return "cpu"
        if "memory" in self._limits and self._memory_is_passed(program):
            return "memory"
        return "disk" if self._disk is not None and self._disk.is_passed([pid for pid, _ in program]) else None

    def _seconds(self, everything: list[tuple[int, list[bytes]]]) -> float:
        """The processor time of those that live, and of the dead. A dead one that was not waited for counts with its last value."""
        now = {(pid, fields[START_TIME]): sum(map(int, fields[OWN_TICKS])) for pid, fields in everything[self._ours :]}
        self._dead += sum(ticks for process, ticks in self._alive.items() if process not in now)
        self._alive = now
        waited_for = sum(sum(map(int, fields[CHILDREN_TICKS])) for _, fields in everything)
        return (sum(now.values()) + max(waited_for, self._dead)) / _TICKS

    def _memory_is_passed(self, program: list[tuple[int, list[bytes]]]) -> bool:
        """Whether it uses more than it may. What processes share counts once; that is looked at only if it can matter."""
        most = self._limits["memory"]
        resident = sum(int(fields[RESIDENT]) for _, fields in program) * PAGE
        if resident + self._files_in_memory([pid for pid, _ in program]) <= most:
            return False
        # While some of them end, the shares of the others grow: what is summed up then may be more than there ever was.
        return self._exact_memory() > most and self._exact_memory() > most

    def _exact_memory(self) -> int:
        pids = [pid for pid, _ in descending(self._root, self._siblings)][self._ours :]
        each = [memory_of(pid) for pid in pids]
        return sum(own for own, _ in each) + max(sum(mapped for _, mapped in each), self._files_in_memory(pids))

    def _files_in_memory(self, pids: Sequence[int]) -> int:
        files = {
            _identity(one): one.st_blocks * _BLOCK for pid in pids for name, one in open_without_name(pid) if name.startswith(_IN_MEMORY)
        }
        shared = used_at(pids[0], SHARED_MEMORY) if self._jailed and pids else 0
        return sum(files.values()) + shared


class _Disk:
    """Sums up what directories hold: in steps, since there may be much, and again when the disk got fuller or time has passed."""

    def __init__(self, directories: Sequence[str], most: float) -> None:
        self._directories = directories
        self._most = most
        self._devices = {os.stat(path).st_dev for path in directories}
        self._walk: Iterator[int] | None = None
        self._worked = self._next = 0.0
        self._free = self._held = self._walked = 0

    def is_passed(self, pids: Iterable[int]) -> bool:
        """Whether the directories, and the files without a name that processes have open, hold more than they may."""
        self._go_on()
        files = {_identity(one): one.st_blocks * _BLOCK for pid in pids for _, one in open_without_name(pid) if one.st_dev in self._devices}
        return self._held + sum(files.values()) > self._most

    def _go_on(self) -> None:
        began = real_seconds()
        if self._walk is None:
            free = sum(_free(path) for path in self._directories)
            if began < self._next and self._free - free < self._most / _PART:
                return
            self._walk, self._free, self._worked = _sums(self._directories), free, 0.0
        for walked in self._walk:
            self._walked = walked
            self._held = max(self._held, walked)
            if real_seconds() > began + _STEP:
                self._worked += _STEP
                return
        self._held = self._walked
        self._walk = None
        now = real_seconds()
        self._next = now + max(_WALK_PAUSE, _WALK_SHARE * (self._worked + now - began))


def _sums(directories: Sequence[str]) -> Iterator[int]:
    """The bytes on disk of what is in some directories, those of each directory added to all before. Of several links one counts."""
    seen: set[tuple[int, int]] = set()
    held, left = 0, [*directories]
    looked_at = 0
    while left:
        with suppress(OSError), _listing(left.pop()) as (directory, entries):
            for entry in entries:
                looked_at += 1
                if looked_at % _ENTRIES == 0:
                    yield held
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(f"{directory}/{entry.name}")
                    elif found.st_nlink > 1:
                        if _identity(found) in seen:
                            continue
                        seen.add(_identity(found))
                    held += found.st_blocks * _BLOCK
        yield held


@contextmanager
def _listing(directory: str) -> Iterator[tuple[str, Iterator[os.DirEntry[str]]]]:
    """A directory and its entries; OSError if the program put a link in its place."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as entries:
            yield directory, entries
    finally:
        os.close(descriptor)


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def _free(path: str) -> int:
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_bfree * found.f_frsize
    return 0
