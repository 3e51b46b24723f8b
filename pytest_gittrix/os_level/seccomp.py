"""Filters of system calls for programs that are to do less than their user may: which calls fail, and how.

Classic BPF, put together here and installed through ctypes; what is not named stays allowed.
Sources: seccomp(2), ``linux/seccomp.h``, ``linux/filter.h``, and the system call tables of the two architectures.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from pytest_gittrix.os_level.linux import syscall

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN, AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
"""Instructions: load a word; skip some if the word is equal, at least as large, or has any of the bits; return; keep some bits only."""
ALLOW, FAIL, NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
RECEIVE, SEND, ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103
"""Requests of ioctl(2) on a listener: learn of a call that waits, answer it, answer it with an open file."""
NUMBER, ARCHITECTURE = 0, 4
"""Where a filter finds the number of the call, and the architecture that the number is of; for the rest see ``argument``."""
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables below, and what the kernel calls the architecture."""

_NUMBERS = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "listen": (50, 201),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "unshare": (272, 97),
    "clone3": (435, 435),
    "landlock_create_ruleset": (444, 444),
    "prlimit64": (302, 261),
    "seccomp": (317, 277),
}
INTO_THE_KERNEL = {
    "add_key": errno.EPERM,
    "request_key": errno.EPERM,
    "keyctl": errno.EPERM,
    "bpf": errno.EPERM,
    "perf_event_open": errno.EPERM,
    "userfaultfd": errno.EPERM,
    "io_uring_setup": errno.ENOSYS,
    "io_uring_enter": errno.ENOSYS,
    "io_uring_register": errno.ENOSYS,
}
"""Calls that reach into the kernel or into keys, or make others behind a filter's back, with the errno that programs can live with."""

CONNECTED_BEFORE = {"connect": 0, "bind": errno.EACCES, "listen": errno.EACCES, "accept": errno.EACCES, "accept4": errno.EACCES}
"""Calls of programs whose sockets are connected before they have them: ``connect`` succeeds, and does nothing."""

_X32_BIT = 0x40000000
_INET, _INET6, _TCP = 2, 10, 6
_FLAGS_OF_SENDING = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
_FAST_OPEN = 0x20000000  # MSG_FASTOPEN connects
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_SOCKET_TYPE, _STREAM, _SEQPACKET = 0xF, 1, 5
_SET_MODE_FILTER = 1


class Filter(ctypes.Structure):
    """A filter as the kernel takes it."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    @classmethod
    def of(cls, code: bytes) -> Filter:
        """The program of some instructions."""
        return cls(len(code) // 8, code)


def argument(position: int) -> int:
    """Where a filter finds the lower half of an argument of the call; ``position`` counts from 0."""
    return 16 + 8 * position


def instruction(code: int, value: int, skip_if: int = 0, skip_else: int = 0) -> bytes:
    """One BPF instruction."""
    return struct.pack("=HBBI", code, skip_if, skip_else, value)


def failing(
    calls: Mapping[str, int],
    *,
    own_limits_only: bool = False,
    families: Iterable[int] = (),
    only_families: Iterable[int] | None = None,
    connected_pairs_only: bool = False,
    notify_of_tcp: bool = False,
) -> bytes:
    """A filter by which some calls fail, also through the machine's other ways to make calls.

    Args:
        calls: the errno for each name; ``_NUMBERS`` has those that there are.
        own_limits_only: whether prlimit(2) of another process fails, too: a limit of processor time would end that.
        families: families of sockets that cannot be made.
        only_families: the only families of sockets that can be made; None for all but ``families``.
        connected_pairs_only: whether socketpair(2) makes stream and seqpacket sockets only. One end of a pair of another type can be
            connected to the path of any socket of the machine.
        notify_of_tcp: whether a listener answers calls of socket(2) for TCP by IPv4; all other calls of it fail, and so does what
            connects while it sends.

    Raises:
        OSError: the calls of this machine are not known.
        KeyError: a name is not.
    """
    column, architecture = _of_this_machine()
    program = [
        instruction(LOAD, ARCHITECTURE),
        instruction(EQUAL, architecture, 1),
        instruction(RETURN, FAIL | errno.ENOSYS),
        instruction(LOAD, NUMBER),
    ]
    program += [instruction(AT_LEAST, _X32_BIT, 0, 1), instruction(RETURN, FAIL | errno.ENOSYS)]
    for name, number in calls.items():
        program += [instruction(EQUAL, _NUMBERS[name][column], 0, 1), instruction(RETURN, FAIL | number)]
    refused = b"".join(instruction(EQUAL, one, 0, 1) + instruction(RETURN, FAIL | errno.EAFNOSUPPORT) for one in families)
    if refused:
        program += [instruction(EQUAL, _NUMBERS["socket"][column], 0, len(refused) // 8 + 2), instruction(LOAD, argument(0))]
        program += [refused, instruction(RETURN, ALLOW)]
    if only_families is not None:
        allowed = b"".join(instruction(EQUAL, one, 0, 1) + instruction(RETURN, ALLOW) for one in only_families)
        program += [instruction(EQUAL, _NUMBERS["socket"][column], 0, len(allowed) // 8 + 2), instruction(LOAD, argument(0))]
        program += [allowed, instruction(RETURN, FAIL | errno.EACCES)]
    if notify_of_tcp:
        program += [instruction(EQUAL, _NUMBERS["socket"][column], 0, 12), instruction(LOAD, argument(0))]
        # Who gets no socket of IPv6 takes IPv4. Java sets options of IPv6 on the other, which a connected one refuses.
        program += [instruction(EQUAL, _INET6, 0, 1), instruction(RETURN, FAIL | errno.EAFNOSUPPORT), instruction(EQUAL, _INET, 0, 7)]
        program += [instruction(LOAD, argument(1)), instruction(AND, _SOCKET_TYPE), instruction(EQUAL, _STREAM, 0, 4)]
        program += [instruction(LOAD, argument(2)), instruction(EQUAL, 0, 1), instruction(EQUAL, _TCP, 0, 1)]
        program += [instruction(RETURN, NOTIFY), instruction(RETURN, FAIL | errno.EACCES)]
        for name, position in _FLAGS_OF_SENDING.items():
            program += [instruction(EQUAL, _NUMBERS[name][column], 0, 4), instruction(LOAD, argument(position))]
            program += [instruction(ANY_BIT, _FAST_OPEN, 0, 1), instruction(RETURN, FAIL | errno.EACCES), instruction(RETURN, ALLOW)]
    if connected_pairs_only:
        program += [instruction(EQUAL, _NUMBERS["socketpair"][column], 0, 6), instruction(LOAD, argument(1))]
        program += [instruction(AND, _SOCKET_TYPE), instruction(EQUAL, _STREAM, 1), instruction(EQUAL, _SEQPACKET, 0, 1)]
        program += [instruction(RETURN, ALLOW), instruction(RETURN, FAIL | errno.EACCES)]
    if own_limits_only:
        program += [instruction(EQUAL, _NUMBERS["prlimit64"][column], 0, 4), instruction(LOAD, argument(0))]
        program += [instruction(EQUAL, 0, 0, 1), instruction(RETURN, ALLOW), instruction(RETURN, FAIL | errno.EPERM)]
    return b"".join([*program, instruction(RETURN, ALLOW)])


def install(code: bytes) -> None:
    """Put this thread, and all it will start, behind a filter for good. It must have given up gaining privileges before.

    Raises:
        OSError: the kernel refuses.
    """
    set_filter(Filter.of(code))


def install_notifying(code: bytes) -> int:
    """As ``install``, and return the listener: a descriptor by which another process answers the calls that wait.

    Raises:
        OSError: the kernel refuses; EBUSY means that this process already has such a filter.
    """
    # Without WAIT_KILLABLE (Linux 5.19) a signal restarts the waiting call, which is then met twice; the first answer says so.
    try:
        return set_filter(Filter.of(code), _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
    return set_filter(Filter.of(code), _NEW_LISTENER)


def set_filter(program: Filter, flags: int = 0) -> int:
    """Install a filter with some flags, and return what seccomp(2) returns: with a flag for a listener, its descriptor.

    Raises:
        OSError: the kernel refuses, or the calls of this machine are not known.
    """
    column, _ = _of_this_machine()
    return syscall("seccomp(SECCOMP_SET_MODE_FILTER)", _NUMBERS["seccomp"][column], _SET_MODE_FILTER, flags, ctypes.addressof(program))


def _of_this_machine() -> tuple[int, int]:
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call table for {machine}")
    return ARCHITECTURES[machine]
