"""Stops every system call that changes a file, and lets another process answer it.

Linux *seccomp user notification*, through ctypes: the filtered process and its descendants stop inside each listed system call until the
holder of the listener answers; on request inside flock too. Needs no privilege, no ptrace and no compiler. It is a testing tool, not a
sandbox: another thread may rewrite a path between the inspection and the call. Sources: flock(2), seccomp(2), seccomp_unotify(2),
``linux/seccomp.h``, and the system call tables of the two architectures.

Not noticed: files changed through ``mmap``, ``io_uring`` or ``ioctl`` (reflink), ``sync`` and ``syncfs``, and 32-bit programs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.file_lock import try_lock
from pytest_gittrix.os_level.seccomp import (
    ALLOW,
    ANY_BIT,
    ARCHITECTURE,
    ARCHITECTURES,
    EQUAL,
    LOAD,
    NOTIFY,
    NUMBER,
    RECEIVE,
    RETURN,
    SEND,
    argument,
    install_notifying,
    instruction,
)

# name: (number on x86_64, on aarch64, arguments). One letter an argument: p path, d directory of the next path, f descriptor, - other.
_TABLE: Mapping[str, tuple[int | None, int | None, str]] = {
    "open": (2, None, "p"),
    "openat": (257, 56, "dp"),
    "openat2": (437, 437, "dp"),
    "creat": (85, None, "p"),
    "write": (1, 64, "f"),
    "pwrite64": (18, 68, "f"),
    "writev": (20, 66, "f"),
    "pwritev": (296, 70, "f"),
    "pwritev2": (328, 287, "f"),
    "copy_file_range": (326, 285, "--f"),
    "sendfile": (40, 71, "f"),
    "splice": (275, 76, "--f"),
    "truncate": (76, 45, "p"),
    "ftruncate": (77, 46, "f"),
    "fallocate": (285, 47, "f"),
    "rename": (82, None, "pp"),
    "renameat": (264, 38, "dpdp"),
    "renameat2": (316, 276, "dpdp"),
    "link": (86, None, "pp"),
    "linkat": (265, 37, "dpdp"),
    "symlink": (88, None, "-p"),
    "symlinkat": (266, 36, "-dp"),
    "unlink": (87, None, "p"),
    "unlinkat": (263, 35, "dp"),
    "rmdir": (84, None, "p"),
    "mkdir": (83, None, "p"),
    "mkdirat": (258, 34, "dp"),
    "mknod": (133, None, "p"),
    "mknodat": (259, 33, "dp"),
    "chmod": (90, None, "p"),
    "fchmod": (91, 52, "f"),
    "fchmodat": (268, 53, "dp"),
    "fchmodat2": (452, 452, "dp"),
    "chown": (92, None, "p"),
    "lchown": (94, None, "p"),
    "fchown": (93, 55, "f"),
    "fchownat": (260, 54, "dp"),
    "utime": (132, None, "p"),
    "utimes": (235, None, "p"),
    "futimesat": (261, None, "dp"),
    "utimensat": (280, 88, "dp"),
    "setxattr": (188, 5, "p"),
    "lsetxattr": (189, 6, "p"),
    "fsetxattr": (190, 7, "f"),
    "setxattrat": (463, 463, "dp"),
    "removexattr": (197, 14, "p"),
    "lremovexattr": (198, 15, "p"),
    "fremovexattr": (199, 16, "f"),
    "removexattrat": (466, 466, "dp"),
    "fsync": (74, 82, "f"),
    "fdatasync": (75, 83, "f"),
    "sync_file_range": (277, 84, "f"),
}
_LOCKS: Mapping[str, tuple[int | None, int | None, str]] = {"flock": (73, 32, "f")}
# For opens the kernel's filter looks at the flags, so that opening to read costs nothing. openat2 keeps them in memory: see Stopped.paths.
_OPEN_FLAGS_ARGUMENT = {"open": 1, "openat": 2}
_OPENS = frozenset({"open", "openat", "openat2", "creat"})
_CREATING = frozenset({"mkdir", "mkdirat", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat"})
_SHARED, _AT_ONCE, _UNLOCK = 1, 4, 8  # LOCK_SH, LOCK_NB and LOCK_UN of flock(2)
_CHANGING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_PIDFD_GETFD = 438  # the same everywhere

_RECEIVE, _SEND, _SET_FLAGS = map(ctypes.c_ulong, (RECEIVE, SEND, 0x40082104))  # ioctl(2) on the listener
_PROCEED = 1
_AT_FDCWD = -100
_PATH_MAX = 4096

Effect = Literal["creates", "opens", "changes"]


class _Data(ctypes.Structure):
    _fields_ = (("nr", ctypes.c_int), ("arch", ctypes.c_uint32), ("ip", ctypes.c_uint64), ("args", ctypes.c_uint64 * 6))


class _Notification(ctypes.Structure):
    # The kernel copies its own size of this structure, which may grow in later versions.
    _fields_ = (
        ("id", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("data", _Data),
        ("room", ctypes.c_char * 176),
    )


class _Response(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint64),
        ("value", ctypes.c_int64),
        ("error", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("room", ctypes.c_char * 40),
    )


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _architecture() -> tuple[int, int]:
    """The column of the table, and what the kernel calls the architecture."""
    machine = os.uname().machine
    bits = 8 * struct.calcsize("P")
    if machine not in ARCHITECTURES or bits != 64:
        raise OSError(errno.ENOSYS, f"no system call table for {bits}-bit {machine}; there is one for 64-bit x86_64 and aarch64")
    return ARCHITECTURES[machine]


@cache
def _numbers() -> Mapping[int, str]:
    column = _architecture()[0]
    return MappingProxyType({number: name for name, row in {**_TABLE, **_LOCKS}.items() if (number := row[:2][column]) is not None})


def _filter(locks: bool) -> bytes:
    """Return the BPF program: notify for each number in the table (an open only when its flags can change something), allow the rest."""
    program = [
        instruction(LOAD, ARCHITECTURE),
        instruction(EQUAL, _architecture()[1], 1),
        instruction(RETURN, ALLOW),
        instruction(LOAD, NUMBER),
    ]
    for number, name in _numbers().items():
        if name in _LOCKS and not locks:
            continue
        if name not in _OPEN_FLAGS_ARGUMENT:
            program += [instruction(EQUAL, number, 0, 1), instruction(RETURN, NOTIFY)]
            continue
        flags = instruction(LOAD, argument(_OPEN_FLAGS_ARGUMENT[name]))
        program += [instruction(EQUAL, number, 0, 4), flags, instruction(ANY_BIT, _CHANGING_FLAGS, 0, 1)]
        program += [instruction(RETURN, NOTIFY), instruction(RETURN, ALLOW)]
    return b"".join([*program, instruction(RETURN, ALLOW)])


def _failure(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def install(*, locks: bool = False) -> int:
    """Install the filter in this thread, and in everything that it starts, for good.

    Args:
        locks: whether flock(2) stops too.

    Returns:
        The listener, a descriptor to be handed to another process, which wraps it in `Gate`.

    Raises:
        OSError: the kernel refuses; EBUSY means that this process already has such a filter.
    """
    linux.gain_nothing_by_exec()
    return install_notifying(_filter(locks))


@dataclass(frozen=True, slots=True)
class StoppedThread:
    """A thread that waits inside a system call.

    Attributes:
        id: the kernel's number for this notification.
        pid: the id of the thread.
        name: the system call, as in the manual.
        args: the six arguments of the call, as unsigned words.
    """

    id: int
    pid: int
    name: str
    args: tuple[int, ...]

    def paths(self) -> list[str]:
        """Return the absolute paths the call would change, the one it creates last; nothing if it changes no file or directory on disk.

        Raises:
            PermissionError: the kernel does not let this process be inspected.
        """
        try:
            if self.name == "openat2" and not struct.unpack("=Q", self._memory(self.args[2], 8))[0] & _CHANGING_FLAGS:
                return []
            found = [path for path in self._arguments() if path.startswith("/") and not path.startswith("/memfd:")]
            return [path for path in found if _is_on_disk(path)] if self.name in _OPENS else found
        except PermissionError:
            raise
        except (OSError, struct.error):
            # A closed descriptor, a bad pointer, a process that has just died: the call will fail or never be made.
            return []

    def size(self) -> int | None:
        """Return how many bytes a plain write asks to write; None for every other call."""
        if self.name in {"write", "pwrite64"}:
            return self.args[2]
        if self.name in {"writev", "pwritev", "pwritev2"}:
            return sum(length for _, length in self._vectors())
        return None

    def effect(self) -> Effect:
        """What the call does if its path exists: "creates" fails, "opens" changes nothing, "changes" is any other effect."""
        if self.name in _CREATING:
            return "creates"
        if self.name not in _OPEN_FLAGS_ARGUMENT:
            return "changes"
        flags = self.args[_OPEN_FLAGS_ARGUMENT[self.name]]
        if flags & os.O_CREAT and flags & os.O_EXCL:
            return "creates"
        return "changes" if flags & os.O_TRUNC else "opens"

    @property
    def asks_for_lock(self) -> bool:
        """Whether the call is an flock(2) that locks."""
        return self.name == "flock" and not self.args[1] & _UNLOCK

    @property
    def would_wait(self) -> bool:
        """Whether such a call would wait for a lock that is taken."""
        return not self.args[1] & _AT_ONCE

    def take_lock(self) -> bool:
        """Take the lock for the waiting thread, whose call is then to be answered with 0. False if the lock is taken.

        Raises:
            OSError: the file has no locks, or the kernel does not let the descriptor be copied.
        """
        descriptor = self._copied_descriptor(_signed(self.args[0]))
        try:
            return try_lock(descriptor, shared=bool(self.args[1] & _SHARED))
        finally:
            os.close(descriptor)

    def lock_is_ours(self) -> bool:
        """Whether the lock is one that this very process took for a waiting thread. Raises OSError."""
        inode = os.stat(f"/proc/{self.pid}/fd/{_signed(self.args[0])}").st_ino
        with open("/proc/locks", "rb") as locks:
            held = [line.split() for line in locks]
        return any(fields[1] == b"FLOCK" and fields[4] == b"%d" % os.getpid() and fields[5].endswith(b":%d" % inode) for fields in held)

    def write_part(self, length: int) -> int:
        """Write the first ``length`` bytes for the waiting thread, at the right position of its file, and return their number.

        Raises:
            OSError: the file cannot take them, or the kernel does not let the descriptor be copied.
        """
        vectors = self._vectors() if self.name not in {"write", "pwrite64"} else [(self.args[1], self.args[2])]
        data = b"".join(self._memory(address, min(size, length)) for address, size in vectors)[:length]
        descriptor = self._copied_descriptor(_signed(self.args[0]))
        # A pwritev2 at -1 writes at the file's own position, as write does.
        positioned = self.name.startswith("pwrite") and not (self.name == "pwritev2" and self.args[3] == 2**64 - 1)
        try:
            done = 0
            while done < len(data):
                rest = data[done:]
                done += os.pwrite(descriptor, rest, self.args[3] + done) if positioned else os.write(descriptor, rest)
            return done
        finally:
            os.close(descriptor)

    def _arguments(self) -> list[str]:
        paths: list[str] = []
        directory = _AT_FDCWD
        for kind, value in zip((_TABLE.get(self.name) or _LOCKS[self.name])[2], self.args, strict=False):
            if kind == "d":
                directory = _signed(value)
            elif kind == "f":
                paths += self._descriptor(_signed(value))
            elif kind == "p" and value:
                paths.append(self._resolve(directory, value))
            elif kind == "p":  # utimensat(fd, NULL): the descriptor itself is meant
                paths += self._descriptor(directory)
        return paths

    def _descriptor(self, number: int) -> list[str]:
        link = f"/proc/{self.pid}/fd/{number}"
        mode = os.stat(link).st_mode
        return [os.readlink(link)] if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else []

    def _resolve(self, directory: int, address: int) -> str:
        name = os.fsdecode(self._memory(address, _PATH_MAX).partition(b"\0")[0])
        if name.startswith("/"):
            return os.path.normpath(name)
        base = os.readlink(f"/proc/{self.pid}/cwd" if directory == _AT_FDCWD else f"/proc/{self.pid}/fd/{directory}")
        return os.path.normpath(os.path.join(base, name))

    def _memory(self, address: int, length: int) -> bytes:
        memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(memory, length, address)
        finally:
            os.close(memory)

    def _vectors(self) -> list[tuple[int, int]]:
        raw = self._memory(self.args[1], 16 * self.args[2])
        return list(struct.iter_unpack("=QQ", raw))

    def _copied_descriptor(self, number: int) -> int:
        """Return a descriptor of this process for the thread's open file; unlike /proc/PID/fd it shares position and append mode."""
        with open(f"/proc/{self.pid}/status", "rb") as status:
            process = next(int(line.split()[1]) for line in status if line.startswith(b"Tgid:"))
        handle = os.pidfd_open(process)
        try:
            return linux.syscall("pidfd_getfd", _PIDFD_GETFD, handle, number, 0)
        finally:
            os.close(handle)


def _signed(word: int) -> int:
    return ctypes.c_int(word & 0xFFFFFFFF).value


def _is_on_disk(path: str) -> bool:
    """Whether opening ``path`` opens or creates a file or directory; a device such as /dev/null is neither."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


class Gate:
    """Answers the calls of an installed filter. Its descriptor is readable when a thread waits, and hung up when none is left."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._notification = _Notification()
        self._response = _Response()
        # Linux 6.6 can wake the waiting thread on our own processor, which halves the cost of a stop; older kernels refuse it.
        _libc().ioctl(listener, _SET_FLAGS, ctypes.c_ulong(1))

    def fileno(self) -> int:
        """Return the listener, for poll."""
        return self._listener

    def receive(self) -> StoppedThread | None:
        """Return the thread that has waited longest, or None if it died or was interrupted meanwhile. Raises OSError."""
        notification = self._notification
        ctypes.memset(ctypes.addressof(notification), 0, ctypes.sizeof(notification))  # the kernel insists
        if _libc().ioctl(self._listener, _RECEIVE, ctypes.byref(notification)) != 0:
            if ctypes.get_errno() in {errno.ENOENT, errno.EINTR}:
                return None
            raise _failure("SECCOMP_IOCTL_NOTIF_RECV")
        data = notification.data
        return StoppedThread(notification.id, notification.pid, _numbers()[data.nr], tuple(data.args))

    def proceed(self, stopped: StoppedThread) -> bool:
        """Let the call happen. Return False if the thread is no longer waiting. Raises OSError."""
        return self._answer(stopped, 0, 0, _PROCEED)

    def answer(self, stopped: StoppedThread, *, value: int = 0, error: int = 0) -> bool:
        """Let the call return ``value``, or fail with errno ``error``, without happening. Returns and raises as `proceed`."""
        return self._answer(stopped, value, -error, 0)

    def _answer(self, stopped: StoppedThread, value: int, error: int, flags: int) -> bool:
        response = self._response
        response.id, response.value, response.error, response.flags = stopped.id, value, error, flags
        if _libc().ioctl(self._listener, _SEND, ctypes.byref(response)) == 0:
            return True
        if ctypes.get_errno() == errno.ENOENT:
            return False
        raise _failure("SECCOMP_IOCTL_NOTIF_SEND")
