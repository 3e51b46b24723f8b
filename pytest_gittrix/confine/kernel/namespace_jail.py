"""Jails a program without bubblewrap: in fresh namespaces, with a root directory that holds nothing but what a layout names.

Two processes build the jail. The outer one leaves the namespaces of the machine. The inner one is process 1 of the new process
namespace: it puts the root together, gives up every capability, and starts the program as its child. When the inner one ends, the kernel
ends every process that is left. Sources: user_namespaces(7), pid_namespaces(7), pivot_root(2) and netdevice(7).
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import stat
import struct
import time
from contextlib import contextmanager, suppress

from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.seccomp import INTO_THE_KERNEL, failing, install

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HOST_NAME = "gittrix"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""What of ``/dev`` is the machine's own."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_AF_VSOCK = 40
# The kernel gives out numbers below the first only once: so many more than there may be processes have to be there.
_RESERVED_NUMBERS, _MOST_NUMBERS = 300, 1 << 22
_BASE = "/tmp"
_OLD, _NEW, _STAGE, _LOWER, _ABOVE = "/old", "/new", "/stage", "/lower", "/above"
_PLACE = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC
# How long a program waits for the last one to let go of an overlay, and how often it looks, in seconds.
_TURN, _NAP = 1.0, 0.01
OVERLAY_BUSY = "another program is at work in this overlay workspace, and only one can be"
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}


def jail_filter() -> bytes:
    """What namespaces leave open: keys, and sockets to whoever runs this machine as a virtual one, which belong to no network."""
    return failing(INTO_THE_KERNEL, families=[_AF_VSOCK])


def leave_namespaces(network: str) -> None:
    """Leave the namespaces of the machine, as the user and group that this process has.

    Args:
        network: ``none`` leaves the machine's network, too; ``all`` stays there.

    Raises:
        OSError: that is not allowed.
    """
    user, group = os.geteuid(), os.getegid()
    # Not the one of mounts: this process goes on with the machine's files, and its number 1 leaves them alone.
    left = linux.NEW_USER | linux.NEW_PID | linux.NEW_IPC | linux.NEW_UTS | linux.NEW_CGROUP
    linux.unshare(left if network == "all" else left | linux.NEW_NET)
    linux.keep_ids(user, group)


def settle(mounts: Iterable[Sequence[str]], network: str, limits: Mapping[str, int]) -> None:
    """Be number 1 of a jail: its root is put together, and nothing leads out of it any more.

    Args:
        mounts: kind, target and source of each; see ``filesystem_layout.Mount``.
        network: as in ``leave_namespaces``.
        limits: those of ``ResourceLimits`` that there are; of processes and of memory are some that the kernel can keep.

    Raises:
        OSError: the kernel refuses something.
    """
    linux.die_with_parent()
    linux.unshare(linux.NEW_NS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", _BASE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV)
    os.mkdir(_BASE + _OLD)
    os.mkdir(_BASE + _NEW)
    linux.mount(_BASE + _NEW, _BASE + _NEW, None, linux.MS_BIND)
    linux.pivot_root(_BASE, _BASE + _OLD)
    os.chdir("/")
    os.makedirs(_STAGE + "/directory")
    os.close(os.open(_STAGE + "/file", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for kind, target, source in mounts:
        _put(kind, _NEW + target, source, limits)
    linux.unmount(_OLD)
    os.chdir(_NEW)
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir("/")
    linux.set_mount("/", linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV, below=False)
    if "processes" in limits and numbers_are_its_own():
        with open("/proc/sys/kernel/pid_max", "wb", buffering=0) as file:
            file.write(b"%d" % min(_RESERVED_NUMBERS + 1 + limits["processes"], _MOST_NUMBERS))
    if limits.keys() & {"memory", "disk"}:
        # In a namespace of its own a program could mount file systems in memory, which cannot be seen from outside.
        with open("/proc/sys/user/max_user_namespaces", "wb", buffering=0) as file:
            file.write(b"0")
    if os.geteuid() == 0 or os.access("/proc/sys/kernel/core_pattern", os.W_OK):
        # Much in it belongs to root, who may have another number here. Some of that asks for no capability: where core dumps go, for one.
        linux.set_mount("/proc", linux.READ_ONLY, below=False)
    if network != "all":
        _raise_loopback()
    linux.set_host_name(HOST_NAME)
    linux.drop_capabilities()
    linux.gain_nothing_by_exec()
    install(jail_filter())
    linux.hide_from_children()


def numbers_are_its_own() -> bool:
    """Whether a namespace of processes has a highest number of its own (Linux 6.14). Before, there is only the machine's."""
    return tuple(int(part) for part in os.uname().release.partition("-")[0].split(".")[:2]) >= (6, 14)


def _put(kind: str, target: str, source: str, limits: Mapping[str, int]) -> None:
    if kind == "link":
        return os.symlink(source, target)
    if kind == "proc":
        os.makedirs(target, exist_ok=True)
        return linux.mount("proc", target, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    if kind == "dev":
        return _put_devices(target, limits.get("memory"))
    if kind == "overlay":
        with _opened(target, make="directory") as point:
            return _put_overlay(point, target, *source.split("\0"))
    if kind == "ro":
        return _bind(_OLD + source, target, linux.NO_SUID | linux.NO_DEV | linux.READ_ONLY)
    with _opened(_OLD + source) as place:
        return _bind(place, target, linux.NO_SUID | linux.NO_DEV)


@contextmanager
def _opened(path: str, make: str = "") -> Iterator[str]:
    """A path that goes on leading to the same place, whatever programs in the same home or temporary directory do meanwhile.

    Args:
        path: what is wanted, by its real path.
        make: ``directory`` or ``file`` makes it if it is missing, with the directories above it.

    Raises:
        OSError: there is a link in the path. A program put it there, and what it leads to is not the program's.
    """
    held = os.open("/", _PLACE | os.O_DIRECTORY)
    *above, last = path.split("/")[1:]
    try:
        for name in above:
            held = _entered(name, held, _PLACE | os.O_DIRECTORY, "directory" if make else "")
        held = _entered(last, held, _PLACE, make)
        if stat.S_ISLNK(os.fstat(held).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        yield f"{_OLD}/proc/self/fd/{held}"
    finally:
        os.close(held)


def _entered(name: str, directory: int, flags: int, make: str) -> int:
    """A name of a directory, opened in exchange for that; made if it is missing and ``make`` says what."""
    try:
        found = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):  # another program's jail has just made it
            if make == "directory":
                os.mkdir(name, 0o755, dir_fd=directory)
            else:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory))
        found = os.open(name, flags, dir_fd=directory)
    os.close(directory)
    return found


def _put_devices(target: str, most_memory: int | None) -> None:
    os.makedirs(target)
    # By default the root of a tmpfs is sticky and everybody's, and there the kernel refuses to open another user's file with O_CREAT.
    linux.mount("tmpfs", target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
    for name in DEVICES:
        if os.path.exists(f"{_OLD}/dev/{name}"):
            _bind(f"{_OLD}/dev/{name}", f"{target}/{name}", linux.NO_SUID)
    for name, leads in _LINKS.items():
        os.symlink(leads, f"{target}/{name}")
    for name in ("shm", "pts"):
        os.mkdir(f"{target}/{name}")
    linux.mount("tmpfs", f"{target}/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "" if most_memory is None else f"size={most_memory}")
    linux.mount("devpts", f"{target}/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    linux.set_mount(target, linux.READ_ONLY | linux.NO_SUID, below=False)


def _bind(source: str, target: str, flags: int) -> None:
    """Show a place at another. It gets its flags where no program sees it, and is then moved to its mount point as it is."""
    directory = os.path.isdir(source)
    stage = _STAGE + "/directory" if directory else _STAGE + "/file"
    with _opened(target, make="directory" if directory else "file") as point:
        linux.mount(source, stage, None, linux.MS_BIND | linux.MS_REC)
        linux.set_mount(stage, flags, below=True)
        linux.mount(stage, point, None, linux.MS_MOVE, shown=target)


def _put_overlay(point: str, target: str, upper: str, work: str, *lowers: str) -> None:
    """Show a directory above others as one. The lock on the work directory lasts as long as this process, and so as long as the mount."""
    _lock(os.open(_OLD + work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    # All get short names for a moment, since the options of a mount have to be short.
    above = os.path.commonpath([upper, work])
    below = {f"{_LOWER}{number}": lower for number, lower in enumerate(lowers)}
    named = {**below, _ABOVE: above}
    for name, directory in named.items():
        os.mkdir(name)
        linux.mount(_OLD + directory, name, None, linux.MS_BIND)
    inside = [os.path.join(_ABOVE, os.path.relpath(path, above)) for path in (upper, work)]
    written = [path.replace("\\", r"\\").replace(",", r"\,") for path in inside]
    options = f"lowerdir={':'.join(below)},upperdir={written[0]},workdir={written[1]},userxattr"
    linux.mount("overlay", point, "overlay", linux.MS_NOSUID | linux.MS_NODEV, options, shown=target)
    os.chmod(os.path.join(inside[1], "work"), 0o700)  # the kernel makes it without any rights, so that it could not be removed
    for name in named:
        linux.unmount(name)


def _lock(directory: int) -> None:
    deadline = time.monotonic() + _TURN
    while True:
        try:
            return fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, OVERLAY_BUSY) from None
            time.sleep(_NAP)


def _raise_loopback() -> None:
    """Let the processes of the jail talk to each other on localhost."""
    lo = struct.Struct("=16sh14x")
    talk = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM, 0)
    try:
        flags = lo.unpack(fcntl.ioctl(talk.fileno(), _SIOCGIFFLAGS, lo.pack(b"lo", 0)))[1]
        fcntl.ioctl(talk.fileno(), _SIOCSIFFLAGS, lo.pack(b"lo", flags | _IFF_UP))
    finally:
        talk.close()
