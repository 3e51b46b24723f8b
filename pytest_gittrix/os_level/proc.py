"""Processes as ``/proc`` shows them. The module loads as little as it can, since small programs of the package use it, too."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

STATE, PARENT, GROUP, SESSION, THREADS, START_TIME, RESIDENT, EXIT_STATUS = 0, 1, 2, 3, 17, 19, 21, 49
OWN_TICKS, CHILDREN_TICKS = slice(11, 13), slice(13, 15)
"""Places of some of the fields that ``stat_fields`` returns; see proc_pid_stat(5)."""
PAGE = os.sysconf("SC_PAGE_SIZE")
"""The bytes of a page, of which ``RESIDENT`` is a number."""

HELPERS: set[int] = set()
"""Children that the package keeps at hand for its own work, and that mostly wait for some."""

_DEAD = (b"Z", b"X")
_LONGEST_WORD = 1 << 12
_CONNECTIONS = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED = "01"
_LOCAL, _REMOTE, _CONNECTED, _INODE = 1, 2, 3, 9


def stat_fields(process: int | str) -> list[bytes]:
    """The fields of a process in its ``/proc/PID/stat``, from its state on.

    Args:
        process: its number; ``self`` for this one; ``PID/task/TID`` for one thread.

    Raises:
        OSError: there is no such process, it cannot be seen, or the system has no ``/proc``.
    """
    with open(f"/proc/{process}/stat", "rb", buffering=0) as file:
        # Before them stand the number and the name of the program, which is in parentheses and may hold any character.
        return file.read().rpartition(b")")[2].split()


def start_time(process: int | str) -> int:
    """When a process started, in clock ticks from boot, which tells it from another one with its number. Raises OSError as above."""
    return int(stat_fields(process)[START_TIME])


def pids() -> list[int]:
    """The numbers of all processes that can be seen; none where the system has no ``/proc``."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def running_in(directory: str) -> list[int]:
    """The processes that work in a directory or below it, as ``working_below`` finds them.

    This one and those it comes from, such as the shell in which a person typed, are left out.
    """
    spared = {os.getpid(), *ancestors(os.getpid())}
    return list(dict.fromkeys(pid for pid, _ in working_below(directory) if pid not in spared))


def working_below(directory: str) -> Iterator[tuple[int, str]]:
    """The other processes that work in a directory or below it, each with the paths at which it does; those of other users are not seen.

    Such a path is its program, its working directory, its root, or a file that it has open. A directory that it only has open is none.

    Args:
        directory: an absolute path without links.
    """
    prefix = f"{directory.rstrip('/')}/"
    for pid in pids():
        if pid == os.getpid():
            continue
        try:
            paths = [os.readlink(f"/proc/{pid}/{name}") for name in ("exe", "cwd", "root")]
        except OSError:
            continue  # it has ended, or is another user's or the kernel's
        yield from ((pid, path) for path in paths if f"{path}/".startswith(prefix))
        yield from ((pid, path) for path in _open_files(pid, prefix))


def _open_files(pid: int, prefix: str) -> Iterator[str]:
    """The paths of the files, not directories, that a process has open and that begin with a prefix."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        file = f"/proc/{pid}/fd/{name}"
        try:
            path = os.readlink(file)
            if path.startswith(prefix) and not stat.S_ISDIR(os.stat(file).st_mode):
                yield path
        except OSError:
            continue


def program_of(pid: int) -> str:
    """The name of the program that a process runs, as its command line has it, or else as the kernel does; empty if it cannot be seen."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
        name = os.path.basename(file.read(_LONGEST_WORD).partition(b"\0")[0])
        if name:
            return os.fsdecode(name)
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
        return os.fsdecode(file.read().rstrip(b"\n"))
    return ""


def environment(pid: int) -> list[bytes]:
    """The variables that a process was started with, as ``NAME=value``. Raises OSError where they cannot be read."""
    with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
        return file.read().split(b"\0")


def pid_namespace(process: int | str = "self") -> int:
    """The inode of a process's namespace of process numbers. Raises OSError where it cannot be seen."""
    return os.stat(f"/proc/{process}/ns/pid").st_ino


def open_descriptors() -> list[int]:
    """The descriptors that this process has open, and the one by which they are listed. Raises OSError without ``/proc``."""
    return [int(name) for name in os.listdir("/proc/self/fd")]


def open_connections() -> list[str]:
    """The pipes, sockets and handles of processes that this process has open, as ``/proc`` names them, sorted."""
    found = []
    for fd in open_descriptors():
        with suppress(OSError):  # that by which they are listed
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(one for one in found if one.startswith(("pipe:", "socket:", "anon_inode:")))


def ancestors(pid: int) -> Iterator[int]:
    """A process's parent, the parent of that, and so on, as far as they can be seen."""
    with suppress(OSError):
        while (pid := int(stat_fields(pid)[PARENT])) > 0:
            yield pid


def children(parent: int) -> set[int]:
    """The processes that a process is the parent of, where ``/proc`` tells."""
    return {pid for pid, its in _parents().items() if its == parent}


def thread_states(pid: int) -> Iterator[tuple[int, bytes]]:
    """The threads of a process and of all its descendants, each with its state (R, S, D, Z and so on)."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        try:
            yield int(task), stat_fields(f"{pid}/task/{task}")[STATE]
            below = children_of_thread(pid, task)
        except OSError:
            continue
        for child in below:
            yield from thread_states(child)


def children_of_thread(pid: int, thread: int | str) -> list[int]:
    """The children that a thread started. Raises OSError where the kernel does not list them."""
    with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
        return [int(child) for child in file.read().split()]


def lists_children() -> bool:
    """Whether the kernel lists the children of a thread."""
    return os.path.exists("/proc/thread-self/children")


def children_at_work() -> set[int]:
    """The children of this process that live, but for its helpers; none where the kernel does not list them."""
    found: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):
                found.update(children_of_thread(os.getpid(), thread))
    return {child for child in found - HELPERS if _lives(child)}


def _lives(pid: int) -> bool:
    try:
        return stat_fields(pid)[STATE] not in _DEAD
    except OSError:
        return False


def descending(root: int, spare: frozenset[int] = frozenset()) -> Iterator[tuple[int, list[bytes]]]:
    """A process and all that descend from it, parents first, each with its ``stat_fields``; one that ends meanwhile is left out.

    Args:
        root: its number.
        spare: those to leave out with what descends from them.
    """
    left = [root]
    while left:
        pid = left.pop()
        if pid in spare:
            continue
        with suppress(OSError):
            yield pid, stat_fields(pid)
            for task in os.listdir(f"/proc/{pid}/task"):
                left += children_of_thread(pid, task)


def memory_of(pid: int) -> tuple[int, int]:
    """The bytes of memory that a process has: its share of what is no file, or one on disk, and of mapped files in memory.

    Where shares cannot be seen, all of its memory is its own; a dead process has nothing.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb", buffering=0) as file:
            lines = dict(line.split(b":") for line in file.read().splitlines()[1:])
        every, in_memory = (int(lines[name].split()[0]) << 10 for name in (b"Pss", b"Pss_Shmem"))
        return every - in_memory, in_memory
    except (OSError, ValueError, KeyError):
        with suppress(OSError):  # asked now, since one that has just ended has no memory any more
            return int(stat_fields(pid)[RESIDENT]) * PAGE, 0
    return 0, 0


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory since it started; 0 if it does not say."""
    with suppress(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        for line in file:
            name, _, number = line.partition(b" ")
            if name == b"oom_kill":
                return int(number)
    return 0


def open_without_name(pid: int) -> Iterator[tuple[str, os.stat_result]]:
    """The regular files without a name that a process has open, as far as that can be seen; each with the name that the system gives it."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                found = os.stat(descriptor.path)
                if found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                    yield os.readlink(descriptor.path), found


def used_at(pid: int, path: str) -> int:
    """The bytes that are used in the file system of a path, as a process sees that; 0 if it cannot be seen."""
    with suppress(OSError):
        found = os.statvfs(f"/proc/{pid}/root{path}")
        return (found.f_blocks - found.f_bfree) * found.f_frsize
    return 0


def with_descendants(roots: Iterable[int], parents: Mapping[int, int]) -> set[int]:
    """Some processes and all that descend from them.

    Args:
        roots: their numbers.
        parents: the parent of each process.
    """
    found = set(roots)
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


def peer_process(own_port: int, peer_port: int) -> int | None:
    """The process that holds the other end of a connection over loopback.

    Args:
        own_port: the port of this end.
        peer_port: the port of the other end.

    Returns:
        The number of the first process that has that end open; None if none can be seen: it is on another machine or in another network
        namespace, it belongs to another user, or this system has no ``/proc``.
    """
    inode = next((found for table in _CONNECTIONS if (found := _socket_inode(table, own_port, peer_port)) is not None), None)
    return None if inode is None else next((pid for pid in pids() if _has_open(pid, f"socket:[{inode}]")), None)


def _socket_inode(table: str, own_port: int, peer_port: int) -> str | None:
    """The inode of the socket at the other end, which is the local end of its own line in the table."""
    try:
        with open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > _INODE and fields[_CONNECTED] == _ESTABLISHED and fields[_INODE] != "0":
                    ports = [int(fields[place].rpartition(":")[2], 16) for place in (_LOCAL, _REMOTE)]
                    if ports == [peer_port, own_port]:
                        return fields[_INODE]
    except (OSError, ValueError):
        return None
    return None


def _has_open(pid: int, socket: str) -> bool:
    """Whether a process has a socket open."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                if os.readlink(descriptor.path) == socket:
                    return True
    return False


def _parents() -> dict[int, int]:
    """Each process's parent, where ``/proc`` tells."""
    found: dict[int, int] = {}
    for pid in pids():
        with suppress(OSError, ValueError, IndexError):
            found[pid] = int(stat_fields(pid)[PARENT])
    return found
