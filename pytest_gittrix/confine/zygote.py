"""The zygote is a process that has loaded what a launcher needs and forks one launcher for each command that it is sent.

A fresh launcher costs the start of a Python; a fork of one costs next to nothing. The zygote has a single thread, so that its forks may
do anything, and never confines itself. Each fork attends one command and talks with the client on a socket of its own, so that neither
other commands nor the end of the zygote matter to it. The zygote ends when its client closes the connection. When the client's process
dies, all of it ends. It loads as little as it can. ``zygote_client`` is the other side.
"""

from __future__ import annotations

import _socket
import gc
import marshal
import os
import select
import signal
import struct
from contextlib import suppress

# What the forks need is loaded once, here.
from pytest_gittrix.confine.launcher import COMMAND as LAUNCHER
from pytest_gittrix.confine.launcher import PASSED_ON, Launcher
from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.proc import children, open_descriptors, start_time
from pytest_gittrix.os_level.process_tree import end_below, end_descendants

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from typing import Any, NoReturn

COMMAND = LAUNCHER.replace("confine.launcher", "confine.zygote")
"""The program of a Python that is a zygote. Descriptor 0 is a socket for requests, 1 a pidfd of the process it works for."""
HELLO, REFUSED, LIMIT, LOST, ENDED = b"+", b"!", b"<", b"~", b"="
"""What lines of an attendant begin with: its number and start time, why there is no program, the limit that the program passed, the
signal that ended number 1 of its jail, the program's status by ``waitpid``."""
LENGTH = struct.Struct("=Q")
"""What a request begins with: how long it is."""

_CONTROL, _OWNER = 0, 1
_DESCRIPTORS = 4  # the line, and standard input, output and errors
_LAST_OF_ITS_OWN = 2
_BLOCK = 1 << 16


def request(spec: dict[str, Any], command: list[str], environment: dict[str, str]) -> bytes:
    """What is sent to an attendant; written and read by one Python."""
    text = marshal.dumps((spec, command, environment))
    return LENGTH.pack(len(text)) + text


def main() -> NoReturn:
    """Serve until no process can ask any more, and leave nothing behind."""
    for fd in open_descriptors():
        if fd > _LAST_OF_ITS_OWN:
            with suppress(OSError):
                os.close(fd)
    os.chdir("/")
    zygote = _Zygote()
    # Forks share what is never collected.
    gc.disable()
    gc.freeze()
    zygote.serve()
    zygote.finish()
    os._exit(0)


class _Zygote:
    def __init__(self) -> None:
        self._control = _socket.socket(fileno=os.dup(_CONTROL))
        self._owner = os.dup(_OWNER)
        for fd in (_CONTROL, _OWNER):
            os.dup2(2, fd)
        self._attendants: set[int] = set()
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        linux.adopt_orphans()

    def serve(self) -> None:
        """Fork an attendant for whoever asks, until the process it works for is gone or lets go."""
        watch = select.poll()
        for fd in (self._control.fileno(), self._owner, self._woken):
            watch.register(fd, select.POLLIN)
        while True:
            ready = dict(watch.poll())
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, _BLOCK)
                self._bury()
            if self._owner in ready:
                return
            if self._control.fileno() in ready:
                given = self._asked()
                if given is None:
                    return
                self._fork(given)

    def _asked(self) -> list[int] | None:
        """Descriptors of a command; None if no process can ask any more."""
        space = _socket.CMSG_SPACE(_DESCRIPTORS * 4)
        data, ancillary, _, _ = self._control.recvmsg(1, space, _socket.MSG_CMSG_CLOEXEC)
        given = [fd for _, _, numbers in ancillary for (fd,) in struct.iter_unpack("=i", numbers)]
        return given if data else None

    def _fork(self, given: list[int]) -> None:
        # Who cannot be forked, for want of processes or of descriptors, says nothing on its line, and that says it all.
        with suppress(OSError):
            if len(given) == _DESCRIPTORS:
                pid = os.fork()
                if pid == 0:
                    self._attend(*given)
                self._attendants.add(pid)
        for fd in given:
            os.close(fd)

    def _attend(self, line: int, *streams: int) -> NoReturn:
        status = 1
        try:
            self._control.close()
            os.setsid()
            signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
            for fd, stream in enumerate(streams):
                os.dup2(stream, fd)
                os.close(stream)
            os.write(line, b"%s%d %d\n" % (HELLO, os.getpid(), start_time("self")))
            spec, command, environment = _request(line)
            refused = lambda text: os.write(line, b"%s%s\n" % (REFUSED, text.replace(b"\n", b" ")))  # noqa: E731
            launcher = Launcher(spec, command, environment, refused=refused, lifelines=[line, self._owner])
            try:
                ended = launcher.run()
            except Exception as problem:  # noqa: BLE001  (whoever waits is to hear of it, whatever it is)
                launcher.refuse(problem)
            if launcher.limit is not None:
                os.write(line, b"%s%s\n" % (LIMIT, launcher.limit.encode()))
            if launcher.lost is not None:
                os.write(line, b"%s%d\n" % (LOST, launcher.lost))
            os.write(line, b"%s%d\n" % (ENDED, ended))
            status = 0
        finally:
            os._exit(status)

    def _bury(self) -> None:
        """See who has ended. What an attendant leaves behind that was killed is the zygote's, and ends."""
        orphaned = False
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                orphaned = orphaned or found[1] != 0
                self._attendants.discard(found[0])
        if orphaned:
            self._end_orphans()

    def _end_orphans(self) -> None:
        while orphans := children(os.getpid()) - self._attendants:
            for pid in orphans:
                end_below(pid, spare=frozenset(self._attendants))
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def finish(self) -> None:
        """Let the commands that run come to their end; those of a dead process are ended by their attendants."""
        self._control.close()
        while self._attendants:
            pid, _ = os.waitpid(-1, 0)
            self._attendants.discard(pid)
        end_descendants()


def _request(line: int) -> Any:
    data = b""
    while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
        more = os.read(line, _BLOCK)
        if not more:
            os._exit(1)  # whoever asked has gone
        data += more
    return marshal.loads(data[LENGTH.size :])
