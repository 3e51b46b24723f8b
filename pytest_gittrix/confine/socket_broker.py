"""Gives a program under guard its only sockets: each is connected to the gateway before the program has it.

A guard has no network of its own in which a gateway could listen, and Landlock's rules know ports, not addresses. So the program's filter
stops each ``socket(2)`` of TCP, and whoever attends the program answers it: one end of a fresh connection goes to the gateway, and the
other is what the program's call returns. ``connect(2)`` then does nothing and succeeds, whatever the address. The program's memory is
never read, so there is nothing to change behind anyone's back.

Sources: seccomp_unotify(2), unix(7), socket(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from pytest_gittrix.confine.gateway.server import CONNECTION, hand_over, handed
from pytest_gittrix.os_level.seccomp import ADD_DESCRIPTOR, RECEIVE, SEND

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    import _socket

_ANSWER_WITH_IT = 1 << 1
_PATIENCE = 1.0  # seconds for a gateway that takes no connections; nothing else is attended meanwhile
_NOTICE = struct.Struct("=Q24xQQ32x")  # its id; of the call, the first two arguments: the family and the type of the socket
_NON_BLOCKING, _CLOSE_ON_EXEC = 0o4000, 0o2000000


class SocketBroker:
    """Answers the calls that the filter of one program stops.

    Args:
        gateway: the line to a gateway, which is given the other ends.
        line: the socket on which the program's process hands over the descriptor of its filter.

    Raises:
        EOFError: the process ended before.
    """

    def __init__(self, gateway: _socket.socket, line: _socket.socket) -> None:
        self._gateway = gateway
        self._gateway.settimeout(_PATIENCE)
        _, self._notices = handed(line)

    def fileno(self) -> int:
        """What can be read as soon as a call waits, and is hung up when no process is left behind the filter."""
        return self._notices

    def answer(self) -> None:
        """Answer the call that has waited longest. A socket that cannot be had is ``ENETUNREACH`` to the program."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._notices, RECEIVE, notice)
            id_, _, kind = _NOTICE.unpack(notice)
            try:
                self._give(id_, kind)
            except OSError:
                fcntl.ioctl(self._notices, SEND, struct.pack("=QqiI", id_, 0, -errno.ENETUNREACH, 0))
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.EINTR):  # whoever called is dead
                raise

    def _give(self, id_: int, kind: int) -> None:
        its, other = _connected_pair()
        with its, other:
            hand_over(self._gateway, CONNECTION, other.fileno())
            if kind & _NON_BLOCKING:
                its.setblocking(False)
            flags = os.O_CLOEXEC if kind & _CLOSE_ON_EXEC else 0
            fcntl.ioctl(self._notices, ADD_DESCRIPTOR, struct.pack("=QIIII", id_, _ANSWER_WITH_IT, its.fileno(), 0, flags))


def _connected_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection on this machine's loopback. Nothing listens there any more when they are returned."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        while True:
            other, peer = listener.accept()
            if peer == one.getsockname():
                return one, other
            other.close()  # another program of this machine was faster
