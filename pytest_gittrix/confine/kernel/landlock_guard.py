"""Guards a program with Landlock, which limits the files that it and its children may use, and with a filter of system calls for the rest.

A guard needs no namespaces, so it works in containers and where namespaces are forbidden. It is put up in the program's own process,
just before that executes the program. ``docs/reference/confinement.md`` lists what a guard cannot keep in. Sources: landlock(7) and
``linux/landlock.h``.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import suppress

from pytest_gittrix.os_level.linux import drop_capabilities, gain_nothing_by_exec, syscall
from pytest_gittrix.os_level.seccomp import CONNECTED_BEFORE, INTO_THE_KERNEL, failing, install, install_notifying

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Iterable

OLDEST_ABI = 3
"""Before it (Linux 6.2) Landlock lets files outside be cut short."""
SIGNALS_ABI = 6
"""Before it (Linux 6.12) Landlock lets signals and abstract sockets out."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_ALL_OF_ABI_3 = (1 << 15) - 1
_IOCTL_ABI = 5
_SCOPES = 3  # abstract unix sockets, signals
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_AF_INET, _AF_INET6, _AF_NETLINK = 2, 10, 16
NETWORKS: dict[str, tuple[int, ...]] = {"none": (), "all": (_AF_INET, _AF_INET6, _AF_NETLINK)}
"""The families of sockets that a program can make, by its network. A Unix socket would reach the machine's by their paths."""
LISTED = "listed"
"""The network of a program whose sockets come from a ``SocketBroker``."""


def landlock_abi() -> int:
    """Which Landlock the kernel has. Raises OSError if it has none, or has it switched off."""
    return syscall("landlock_create_ruleset", _CREATE_RULESET, 0, 0, _VERSION)


def guard(readable: Iterable[str], writable: Iterable[str], devices: Iterable[str], network: str = "none") -> int | None:
    """Put this process, and all it will start, under guard for good.

    Args:
        readable: files and directories to be read and executed; those that are not there are passed over.
        writable: directories to be written, too.
        devices: files such as ``/dev/null``, to be read and written.
        network: one of ``NETWORKS``, or ``LISTED``: TCP sockets alone, which whoever has the filter's listener makes.

    Returns:
        The listener, for a network that is ``LISTED``.

    Raises:
        OSError: the kernel refuses, or is too old.
    """
    abi = landlock_abi()
    if abi < OLDEST_ABI:
        raise OSError(errno.ENOSYS, f"Landlock of ABI {abi} does not keep files from being cut short; {OLDEST_ABI} does (Linux 6.2)")
    handled = _ALL_OF_ABI_3 | (_IOCTL_DEV if abi >= _IOCTL_ABI else 0)
    attributes = struct.pack("=3Q", handled, 0, _SCOPES) if abi >= SIGNALS_ABI else struct.pack("=Q", handled)
    ruleset = syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ)
        for path in writable:
            _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK))
        for path in devices:
            _allow(ruleset, path, handled & (_WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV))
        gain_nothing_by_exec()
        syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    drop_capabilities()
    if network == LISTED:
        calls = INTO_THE_KERNEL | CONNECTED_BEFORE
        return install_notifying(failing(calls, own_limits_only=True, connected_pairs_only=True, notify_of_tcp=True))
    install(failing(INTO_THE_KERNEL, own_limits_only=True, only_families=NETWORKS[network], connected_pairs_only=True))
    return None


def _allow(ruleset: int, path: str, rights: int) -> None:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
            rule = struct.pack("=Qi", rights if is_directory else rights & _OF_FILES, fd)
            syscall("landlock_add_rule", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)
