"""What confinement asks of the Linux kernel and Python has no function for, through ctypes.

Each function is one call, and raises OSError with the call's name where the kernel refuses.
Sources: prctl(2), unshare(2), mount(2), mount_setattr(2), pivot_root(2), rename(2), openat2(2), capabilities(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NEW_USER, NEW_NS, NEW_PID, NEW_NET, NEW_IPC, NEW_UTS, NEW_CGROUP = (
    0x10000000,
    0x20000,
    0x20000000,
    0x40000000,
    0x8000000,
    0x4000000,
    0x2000000,
)
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 8192, 16384, 1 << 18
READ_ONLY, NO_SUID, NO_DEV = 1, 2, 4

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_MNT_DETACH = 2
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITY_VERSION, _MOST_CAPABILITIES = 0x20080522, 64
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_OPENAT2, _RESOLVE_NO_XDEV = 437, 1
_RENAMEAT2, _RENAME_EXCHANGE = {"x86_64": 316, "aarch64": 276}, 2


libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def syscall(what: str, number: int, *arguments: int | bytes | ctypes.Array[Any]) -> int:
    """Make a system call that the C library has no function for; gives what it returns. Raises OSError if it fails."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise _failure(what)
    return result


def _prctl(what: str, option: int, *values: int) -> None:
    # prctl is variadic and refuses rubbish in unused arguments: every one is passed as a full word.
    words = [*values, 0, 0, 0, 0][:4]
    if libc.prctl(option, *map(ctypes.c_ulong, words)) != 0:
        raise _failure(f"prctl({what})")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the thread that forked this process ends."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, 9)


def hide_from_children() -> None:
    """Let no process without capabilities look into this one."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def gain_nothing_by_exec() -> None:
    """Have set-user-id bits and file capabilities mean nothing from now on."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability for good, also those that root gets by executing a program."""
    for number in range(_MOST_CAPABILITIES):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, number)
        except OSError:
            break  # there are no more, or there is none to drop
    _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION, 0), struct.pack("=6I", *[0] * 6)
    if libc.capset(header, none) != 0:
        raise _failure("capset")


def allow_inspection() -> None:
    """Let the same user look into this process and its children, which the kernel forbids after a change of user."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 1)


def keep_ids(user: int, group: int) -> None:
    """Go on as a user and a group, which are the only ones, in a user namespace that this process has just entered."""
    for file, text in (("setgroups", b"deny"), ("uid_map", b"%d %d 1" % (user, user)), ("gid_map", b"%d %d 1" % (group, group))):
        with open(f"/proc/self/{file}", "wb", buffering=0) as stream:
            stream.write(text)


def unshare(flags: int) -> None:
    """Leave namespaces for fresh ones."""
    if libc.unshare(flags) != 0:
        raise _failure("unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "", *, shown: str = "") -> None:
    """Mount something, or bind a place to another. ``shown`` is what an error calls a target that is an open descriptor."""
    name = kind.encode() if kind is not None else None
    if libc.mount(os.fsencode(source), os.fsencode(target), name, ctypes.c_ulong(flags), options.encode() or None) != 0:
        raise _failure(f"mount({shown or target})")


def set_mount(target: str, flags: int, *, below: bool) -> None:
    """Make a mount read-only and so on, with those below it if so wanted (Linux 5.12)."""
    attributes = struct.pack("=4Q", flags, 0, 0, 0)
    how = _AT_RECURSIVE if below else 0
    syscall(f"mount_setattr({target})", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), how, attributes, len(attributes))


def _number(name: str, numbers: Mapping[str, int]) -> int:
    """The number of a system call on this machine."""
    machine = os.uname().machine
    if machine not in numbers:
        raise OSError(errno.ENOSYS, f"{name}: its number is not known on {machine}")
    return numbers[machine]


def pivot_root(new: str, old: str) -> None:
    """Make ``new`` the root directory and have the old one at ``old``."""
    syscall("pivot_root", _number("pivot_root", _PIVOT_ROOT), os.fsencode(new), os.fsencode(old))


def exchange(directory: int, one: str, other: str) -> None:
    """Have two names in an open directory change places, in one step."""
    number = _number("renameat2", _RENAMEAT2)
    syscall(f"renameat2({other})", number, directory, os.fsencode(one), directory, os.fsencode(other), _RENAME_EXCHANGE)


def open_in_mount(directory: int, name: str, flags: int) -> int:
    """Open a name in an open directory unless something is mounted on it, which is ``EXDEV`` (Linux 5.6)."""
    how = struct.pack("=3Q", flags, 0, _RESOLVE_NO_XDEV)
    return syscall(f"openat2({name})", _OPENAT2, directory, os.fsencode(name), how, len(how))


def unmount(target: str) -> None:
    """Take a mount out of sight, with those below it; who uses it keeps it."""
    if libc.umount2(os.fsencode(target), _MNT_DETACH) != 0:
        raise _failure(f"umount({target})")


def set_host_name(name: str) -> None:
    """Name the machine in this namespace."""
    if libc.sethostname(name.encode(), len(name)) != 0:
        raise _failure("sethostname")
