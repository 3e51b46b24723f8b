"""The launcher is a small program that confines itself or a child, starts a program there, and stays until nothing is left of it.

It passes on the signals that it gets, adopts orphans, and ends as the program ended: with its status or by its signal. It is a program
of its own because what it does to itself cannot be undone, and because a process with threads must not fork and go on. It loads as
little as it can.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import sys
from contextlib import suppress

from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.process_tree import end_descendants

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    import _socket
    import signal
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from pytest_gittrix.confine.kernel.meter import Meter
    from pytest_gittrix.confine.socket_broker import SocketBroker
else:
    import _signal as signal  # the other one makes an enumeration of every number, at every call

COMMAND = """import sys
for name, path in ('pytest_gittrix', sys.argv[1]), ('pytest_gittrix.confine', sys.argv[1] + '/confine'):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
from pytest_gittrix.confine.launcher import main
main()
"""
"""The program of a Python that is a launcher. What the packages themselves load would double what a launch costs, and is passed over."""
MOST_DESCRIPTORS = 4096
"""Open files that a process of a program with limits may have."""
NOT_FOUND, NOT_EXECUTABLE, NOT_CONFINED = 127, 126, 125
"""Exit statuses, as shells and ``env`` have them."""

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GONE = 9
_TIOCSCTTY = 0x540E


def main() -> NoReturn:
    """Run ``sys.argv[3:]`` as ``sys.argv[2]`` says, and end as it ends."""
    spec: dict[str, Any] = read_spec(sys.argv[2])
    os.environ.pop("LC_CTYPE", None)  # Python's own doing, where no locale is given
    launcher = Launcher(spec, sys.argv[3:], {**os.environ, **spec.get("kept_back", {})}, refused=lambda text: os.write(2, text + b"\n"))
    try:
        if spec["by"] == "none":
            launcher.become_program()
        if spec["by"] == "bwrap" and "limits" not in spec and "set_ids" not in spec:
            launcher.become_bwrap()
        status = launcher.run()
        if "set_ids" in spec:
            from pytest_gittrix.confine.kernel.set_ids import drop_set_ids

            drop_set_ids(spec["set_ids"])
        if launcher.limit is not None:
            _tell(launcher.limit, spec["limit_file"])
    except Exception as problem:  # noqa: BLE001  (whoever waits is to hear of it, whatever it is)
        launcher.refuse(problem)
    _end_as(status)


def spec_text(spec: dict[str, Any]) -> str:
    """The argument that the launcher is given; written and read by one Python, and faster to read than JSON is to load."""
    return marshal.dumps(spec).hex()


def read_spec(text: str) -> dict[str, Any]:
    """What ``spec_text`` wrote."""
    spec: dict[str, Any] = marshal.loads(bytes.fromhex(text))
    return spec


class Launcher:
    """Who starts a program in its confinement, and stays until nothing is left of it.

    Args:
        spec: what is to be done: ``by`` what, ``cwd``, and what a guard allows or what a jail's root has; ``set_ids`` is the directory in
            which no file keeps a set-user-id or set-group-id bit.
        command: the program and its arguments.
        environment: all its variables.
        refused: called with the reason why the program was not started.
        lifelines: descriptors that can be read, or whose other end is closed, when the program is of no use any more.

    Attributes:
        limit: the limit that the program passed, and was ended for; None if it passed none.
        lost: the signal that ended number 1 of the jail before the program; None if it stayed. No program of the jail can send it one.
    """

    limit: str | None = None
    lost: int | None = None

    def __init__(
        self,
        spec: dict[str, Any],
        command: list[str],
        environment: dict[str, str],
        *,
        refused: Callable[[bytes], object],
        lifelines: Sequence[int] = (),
    ) -> None:
        self._spec = spec
        self._command = command
        self._environment = environment
        self._refused = refused
        self._lifelines = lifelines

    def run(self) -> int:
        """Run it to its end, and give its status as ``waitpid`` tells it. Raises OSError where the kernel refuses."""
        return self._jailed() if self._spec["by"] == "namespaces" else self._guarded()

    def _guarded(self) -> int:
        """Run it as a child that has put itself under guard."""
        linux.adopt_orphans()
        gateway = self._gateway()
        bwrap = self._spec["by"] == "bwrap"
        attendant = Attendant(self._lifelines, end_descendants, self._meter(ours=3 if bwrap else 1, jailed=bwrap))
        try:
            if gateway is not None:
                return self._guarded_beside(gateway, attendant)
            pid = os.fork()
            if pid == 0:
                self._be_guarded()
            return attendant.attend(pid)
        finally:
            self.limit = attendant.limit
            end_descendants()

    def _meter(self, *, ours: int, jailed: bool) -> Meter | None:
        """Who measures the program that is about to be forked, if it has limits; what this process has as children now is no part of it."""
        if "limits" not in self._spec:
            return None
        from pytest_gittrix.confine.kernel.meter import Meter
        from pytest_gittrix.os_level.proc import children_of_thread

        here = os.getpid()
        siblings = frozenset(children_of_thread(here, here))
        return Meter(self._spec["limits"], self._spec["writable"], here, ours=ours, jailed=jailed, siblings=siblings)

    def _guarded_beside(self, gateway: _socket.socket, attendant: Attendant) -> int:
        """Run it as such a child, whose sockets are connected to a gateway."""
        import _socket

        from pytest_gittrix.confine.socket_broker import SocketBroker

        here, there = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        pid = os.fork()
        if pid == 0:
            here.close()
            gateway.close()
            self._be_guarded(there)
        there.close()
        with suppress(EOFError):  # it says by its status why it was not started
            attendant.broker = SocketBroker(gateway, here)
        return attendant.attend(pid)

    def _be_guarded(self, line: _socket.socket | None = None) -> NoReturn:
        from pytest_gittrix.confine.kernel.landlock_guard import LISTED, guard

        try:
            linux.die_with_parent()
            self._lead()
            if self._spec["by"] == "bwrap":
                self.become_bwrap()
            os.chdir(self._spec["cwd"])
            if line is None:
                guard(**self._spec["allowed"], network=self._spec["network"])
            else:
                from pytest_gittrix.confine.gateway.server import LISTENER, hand_over

                notices = guard(**self._spec["allowed"], network=LISTED)
                assert notices is not None
                hand_over(line, LISTENER, notices)
                os.close(notices)
                line.close()
        except Exception as problem:  # noqa: BLE001  (as above)
            self.refuse(problem)
        self.become_program()

    def become_bwrap(self) -> NoReturn:
        """Be bubblewrap, behind the filter that a jail has."""
        from pytest_gittrix.confine.kernel.namespace_jail import jail_filter
        from pytest_gittrix.os_level.seccomp import install

        _hear_signals()
        linux.gain_nothing_by_exec()
        self._limit_descriptors()
        install(jail_filter())
        os.execve(self._command[0], self._command, self._environment)

    def _jailed(self) -> int:
        """Run it below number 1 of a jail."""
        from pytest_gittrix.confine.kernel.namespace_jail import leave_namespaces

        gateway = self._gateway()
        leave_namespaces(self._spec["network"])
        # Its processes have other numbers than here: number 1 is killed, and the kernel kills the rest.
        attendant = Attendant(self._lifelines, lambda: os.kill(pid, signal.SIGKILL), self._meter(ours=2, jailed=True))
        here, there = os.pipe()
        status, report = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(there)
            os.close(status)
            self._be_first(here, report, gateway)
        os.close(here)
        os.close(report)
        if gateway is not None:
            gateway.close()
        ended = attendant.attend(pid)
        self.limit = attendant.limit
        # Number 1 of a namespace cannot end by a signal of its own: it reports how the program ended.
        with os.fdopen(status, "rb") as lines:
            reported = lines.read()
        if not reported and not attendant.gave_up and os.WIFSIGNALED(ended):
            self.lost = os.WTERMSIG(ended)
        return int(reported or ended)

    def _gateway(self) -> _socket.socket | None:
        """The socket that a gateway waits on for its listener, if the program's network is a list."""
        if "gateway" not in self._spec:
            return None
        import json

        from pytest_gittrix.confine.gateway.server import KEYS, fork_gateway

        return fork_gateway(self._spec["gateway"], json.loads(self._environment.pop(KEYS)), self._spec["network_log"])

    def _be_first(self, lifeline: int, report: int, gateway: _socket.socket | None) -> NoReturn:
        from pytest_gittrix.confine.gateway.server import hand_out_listener
        from pytest_gittrix.confine.kernel.namespace_jail import settle

        try:
            settle(self._spec["mounts"], self._spec["network"], self._spec.get("limits", {}))
            if gateway is not None:
                hand_out_listener(gateway)
            attendant = Attendant([lifeline], lambda: os._exit(_GONE))
            pid = os.fork()
            if pid == 0:
                self._lead()
                os.chdir(self._spec["cwd"])
                self.become_program()
            os.write(report, str(attendant.attend(pid)).encode())
        except Exception as problem:  # noqa: BLE001  (as above)
            self.refuse(problem)
        os._exit(0)

    def _lead(self) -> None:
        """Lead a session, whose terminal is standard input, if that is one that the program is to have."""
        os.setsid()
        if self._spec.get("terminal"):
            import fcntl  # in a jail it is loaded already, as it must be: no module can be found there

            fcntl.ioctl(0, _TIOCSCTTY, 0)

    def _limit_descriptors(self) -> None:
        """See that each look at a program with limits, which goes through its open files, takes a short time."""
        if "limits" in self._spec:
            import resource

            most = min(MOST_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def become_program(self) -> NoReturn:
        """Be the program, which hears every signal; one that is not there ends as in a shell."""
        self._limit_descriptors()
        _hear_signals()
        program = self._command[0]
        # What os.execvp does; but that loads modules, and they may be out of sight by now.
        path = self._environment.get("PATH", os.defpath)
        places = [""] if "/" in program else path.split(os.pathsep)
        problem = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        for place in places:
            try:
                os.execve(os.path.join(place, program), self._command, self._environment)
            except OSError as refused:
                if exit_code(refused) != NOT_FOUND:
                    problem = refused
        if problem.errno == errno.EACCES and is_out_of_sight(program, path):
            problem = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        with suppress(OSError):
            os.write(2, f"{program}: {problem.strerror}\n".encode("utf-8", "surrogateescape"))
        os._exit(exit_code(problem))

    def refuse(self, problem: Exception) -> NoReturn:
        """Say that the program was not started, and end."""
        text = str(problem)
        if isinstance(problem, OSError) and problem.strerror:
            text = f"{problem.strerror}: {problem.filename}" if problem.filename else problem.strerror
        with suppress(OSError):
            self._refused(text.encode("utf-8", "surrogateescape"))
        os._exit(NOT_CONFINED)


class Attendant:
    """Who waits for a child, and for orphans; it listens from when it is made.

    Args:
        lifelines: descriptors that can be read, or whose other end is closed, when the child is of no use any more.
        give_up: called then, and when the child has passed a limit.
        meter: who measures the child; None for no limits.

    Attributes:
        limit: the limit that the child passed.
        gave_up: whether the child was ended because it was of no use any more, or passed a limit.
        broker: who answers the child's calls for sockets; None if nothing stops them.
    """

    limit: str | None = None
    gave_up = False

    def __init__(self, lifelines: Sequence[int], give_up: Callable[[], object], meter: Meter | None = None) -> None:
        self._lifelines = lifelines
        self._give_up = give_up
        self._meter = meter
        self.broker: SocketBroker | None = None
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._child: int | None = None
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: object) -> None:
        if self._child is not None:
            with suppress(OSError):
                os.kill(self._child, number)

    def attend(self, child: int) -> int:
        """How the child ended, as ``waitpid`` tells it; for one of no use any more, or that passed a limit, as if it was killed."""
        self._child = child
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)  # the zygote blocks them until there is somebody to pass them on to
        watch = select.poll()
        watch.register(self._woken, select.POLLIN)
        for lifeline in self._lifelines:
            watch.register(lifeline, select.POLLIN | select.POLLRDHUP)
        if self.broker is not None:
            watch.register(self.broker, select.POLLIN)
        while True:
            ready = dict(watch.poll(None if self._meter is None else self._meter.wait() * 1000))
            if any(lifeline in ready for lifeline in self._lifelines):
                self.gave_up = True
                self._give_up()
                return _GONE
            if self.broker is not None and (event := ready.get(self.broker.fileno())):
                if event & select.POLLIN:
                    self.broker.answer()
                else:  # no process is left behind the filter
                    watch.unregister(self.broker)
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
            status = self._reap(child)
            if status is not None:
                self._child = None
                return status
            self.limit = None if self._meter is None else self._meter.passed()
            if self.limit is not None:
                self.gave_up = True
                self._give_up()
                with suppress(ChildProcessError):
                    os.waitpid(child, 0)
                return _GONE

    @staticmethod
    def _reap(child: int) -> int | None:
        ended = None
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == child:
                    ended = found[1]
        return ended


def _hear_signals() -> None:
    """Let a program hear every signal, whatever the process that started this one ignores."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def is_out_of_sight(program: str, path: str, directory: str | os.PathLike[str] = ".") -> bool:
    """Whether a program is in no directory of a ``PATH``, and one of these may not be searched.

    The kernel refuses to execute such a program; a shell does not find it.

    Args:
        program: what is to be executed; one that is named by a path is not looked for.
        path: the ``PATH``.
        directory: where the program starts.
    """
    refused = False
    for place in () if "/" in program else path.split(os.pathsep):
        try:
            os.stat(os.path.join(directory, place, program))
        except PermissionError:
            refused = True
        except OSError:
            continue
        else:
            return False
    return refused


def exit_code(problem: OSError) -> int:
    """The status that a shell gives for a program that cannot be executed."""
    return NOT_FOUND if problem.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


def _tell(limit: str, file: str | None) -> None:
    """Say that the program was ended because it passed a limit, where its errors go and in a file."""
    with suppress(OSError):
        os.write(2, f"gittrix: ended, because it passed its limit of {limit}\n".encode())
    if file is not None:
        with suppress(OSError), open(file, "wb", buffering=0) as stream:  # it may have filled the disk
            stream.write(limit.encode())


def _end_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
