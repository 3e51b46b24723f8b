"""Starts programs, confined or not, to be waited for or to stay; what they start ends with them.

It needs Linux, because elsewhere it cannot be known which processes a program left behind.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

from pytest_gittrix.confine.command_line import Confinement, Launch, launch, task
from pytest_gittrix.confine.filesystem_layout import Layout, Place, layout
from pytest_gittrix.confine.kernel.meter import Meter
from pytest_gittrix.confine.kernel.namespace_jail import OVERLAY_BUSY, jail_filter
from pytest_gittrix.confine.kernel.set_ids import drop_set_ids
from pytest_gittrix.confine.launcher import NOT_EXECUTABLE, NOT_FOUND, exit_code, is_out_of_sight
from pytest_gittrix.confine.network import Reachable
from pytest_gittrix.confine.program_streams import KeptOutput
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import (
    Finished,
    NeverStarted,
    Opening,
    Spawned,
    Streams,
    check_size,
    signal_child,
    with_terminal,
)
from pytest_gittrix.confine.zygote_client import ZygoteProgram
from pytest_gittrix.errors import AdapterUnavailable, Advice, CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.proc import pid_namespace
from pytest_gittrix.os_level.process_tree import KILL_WAIT
from pytest_gittrix.os_level.remove_tree import scratch_directory

MOST_OUTPUT: Final = 10 << 20
SIZE: Final = (24, 80)
"""The rows and columns of a terminal, by default."""

_BLOCK: Final = 1 << 16
_BWRAP_EXEC: Final = re.compile(rb"^bwrap: execvp .*: (.*)$", re.MULTILINE)


def run(
    argv: Sequence[str],
    place: Place,
    confinement: Confinement,
    *,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    timeout: float | None = None,
    most_output: int = MOST_OUTPUT,
    merged: bool = False,
    cwd: str = ".",
    stop: int | None = None,
    admit: Callable[[Running], object] = lambda _: None,
) -> Finished:
    """Run a program to its end; what it started ends with it, as far as the level can tell what that is.

    Whatever interrupts this call, an exception or Ctrl-C, kills all of it.

    Args:
        argv: the program, looked for in the ``PATH`` of the environment, and its arguments.
        place: where it works.
        confinement: how.
        environment: all its variables; home and temporary directory are set, and paths in the workspace are given as it sees them.
        stdin: what it reads.
        timeout: real seconds it has; None for ever.
        most_output: bytes that are kept, of output and of errors each; what is beyond is read and thrown away.
        merged: whether its errors come on its output, in the order in which both were written.
        cwd: where it starts, in the workspace.
        stop: a descriptor; as soon as it can be read, the program's time is over. By it another thread ends this call.
        admit: called with the program before it is started, so that another thread can kill it; what it raises is raised here.

    Raises:
        InvalidInput: the command is none, the limits are none, a place is not there, or a model's key is not set.
        CapabilityMissing: this system is not Linux, the network is a list and the confinement is neither a guard nor a jail by
            namespaces, or there are limits and it is none.
        AdapterUnavailable: it could not be confined; it was not started.
    """
    running = _running(
        argv, place, confinement, Streams(merged), environment=environment, cwd=cwd,
        stdin=stdin, limit=most_output, keep="first", timeout=timeout, stop=stop,
    )  # fmt: skip
    admit(running)
    return running.attended()


def start(
    argv: Sequence[str],
    place: Place,
    confinement: Confinement,
    *,
    environment: Mapping[str, str],
    stdin: bytes | None = None,
    timeout: float | None = None,
    most_output: int = MOST_OUTPUT,
    keep: KeptOutput = "unread",
    merged: bool = False,
    pty: bool = False,
    size: tuple[int, int] = SIZE,
    cwd: str = ".",
    admit: Callable[[Running], object] = lambda _: None,
) -> Running:
    """Start a program that stays; it ends when it likes, when somebody kills it, or with this process.

    Args:
        argv, place, confinement, environment, timeout, merged, cwd, admit: as for ``run``.
        stdin: all that it reads; None if more is to be written later.
        most_output: bytes of each stream that are kept for who reads them.
        keep: what becomes of more: with ``unread`` the program waits until somebody reads, as on a pipe; ``first`` and ``last`` throw away
            what is behind the first bytes, or before the last.
        pty: whether it has a terminal, from which it hears Ctrl-C (a written ``\\x03``); its errors come on its output then.
        size: rows and columns of the terminal.

    Raises:
        InvalidInput, CapabilityMissing, AdapterUnavailable: as for ``run``; ``Running.wait`` raises what is noticed later.
    """
    if keep not in get_args(KeptOutput):
        raise InvalidInput(f"keep={keep!r} is none.", fix=f"Use one of {', '.join(get_args(KeptOutput))}.")
    check_size(size)
    running = _running(
        argv, place, confinement, Streams(merged, size if pty else None), environment=environment, cwd=cwd,
        stdin=stdin, limit=most_output, keep=keep, timeout=timeout, stop=None,
    )  # fmt: skip
    admit(running)
    return running.begin()


def start_wrapped(launched: Launch) -> Running:
    """Start a program that ``wrapped`` made the command line of, with pipes to it. It stays as one of ``start`` does.

    Raises:
        AdapterUnavailable: it could not be started.
    """

    def opening(_: ExitStack) -> Opening:
        try:
            started = Spawned(launched.argv, launched.environment, launched.directory, streams=Streams())
        except OSError as problem:
            raise AdapterUnavailable(f"{launched.argv[0]} was not started: {problem}.", fix="See that it can be executed.") from problem
        return Opening(started, lambda finished, _: finished)

    return Running(opening, stdin=None, limit=MOST_OUTPUT, keep="unread", timeout=None, stop=None, terminal=False).begin()


def _running(
    argv: Sequence[str],
    place: Place,
    confinement: Confinement,
    streams: Streams,
    *,
    environment: Mapping[str, str],
    cwd: str,
    stdin: bytes | None,
    limit: int,
    keep: KeptOutput,
    timeout: float | None,
    stop: int | None,
) -> Running:
    if not sys.platform.startswith("linux"):
        raise CapabilityMissing(
            "Programs of agents are run on Linux only.", why="Elsewhere what they start could not be ended.", fix="Run them on Linux."
        )
    if limit < 0 or (timeout is not None and not timeout >= 0):
        raise InvalidInput(f"timeout={timeout!r} and most_output={limit!r} are no limits.", fix="Use numbers from 0; timeout may be None.")

    def opening(held: ExitStack) -> Opening:
        return _opened(held, argv, place, confinement, streams, environment=environment, cwd=cwd)

    terminal = streams.terminal is not None
    return Running(opening, stdin=stdin, limit=limit, keep=keep, timeout=timeout, stop=stop, terminal=terminal)


def _opened(
    held: ExitStack,
    argv: Sequence[str],
    place: Place,
    confinement: Confinement,
    streams: Streams,
    *,
    environment: Mapping[str, str],
    cwd: str,
) -> Opening:
    """Start a program; what it needs while it runs is released with the stack."""
    home = place.home if place.home is not None else held.enter_context(_passing_home())
    laid = layout(place, home, jailed=confinement.level == "jail")
    if place.sockets and confinement.level == "guard":
        raise CapabilityMissing(
            "A guard shows no sockets to programs.",
            why="It lets them make none, since one could reach every socket of this machine.",
            fix=Advice("Use confine='jail'.", "Use --confine jail."),
        )
    terminal = streams.terminal is not None
    if confinement.by == "none":
        free = launch(argv, laid, confinement, environment=environment, cwd=cwd)
        if is_out_of_sight(free.argv[0], free.environment.get("PATH", os.defpath), free.directory):
            raise NeverStarted(Finished(NOT_FOUND, None, b"", os.fsencode(f"{free.argv[0]}: {os.strerror(errno.ENOENT)}\n")))
        command = with_terminal(free.argv) if terminal else free.argv
        mark = os.urandom(8).hex()
        try:
            started = Spawned(command, free.environment, free.directory, streams=streams, mark=mark, leads=not terminal)
        except OSError as problem:
            if problem.filename != command[0] and problem.filename is not None:
                raise AdapterUnavailable(f"{command[0]} was not started: {problem}.", fix="Try again.") from problem
            text = os.fsencode(f"{command[0]}: {problem.strerror}\n")
            raise NeverStarted(Finished(exit_code(problem), None, b"", text)) from problem
        return Opening(started, lambda finished, _: finished)
    if confinement.by == "bwrap":
        jailed = _InBubblewrap(held, with_terminal(argv) if terminal else argv, laid, confinement, streams, environment, cwd)
        return Opening(jailed, _harmless(laid, jailed.conclude), _meter(confinement, laid, jailed.pid))
    log = held.enter_context(_passing_home()).with_name("network.jsonl") if isinstance(confinement.network, Reachable) else None
    wanted = task(argv, laid, confinement, environment=environment, cwd=cwd, network_log=log)
    program = ZygoteProgram({**wanted.spec, "terminal": terminal}, wanted.command, wanted.environment, streams)

    def conclude(finished: Finished, _: bytes) -> Finished:
        if not (finished.timed_out or finished.ended) and (why := program.refusal()) is not None:
            raise _not_confined(why)
        if not (finished.timed_out or finished.ended or finished.limit):
            finished = replace(finished, lost=program.lost())
        return finished if log is None or not log.exists() else replace(finished, network=tuple(log.read_text("utf-8").splitlines()))

    return Opening(program, _harmless(laid, conclude), limit=program.limit)


def _harmless(laid: Layout, conclude: Callable[[Finished, bytes], Finished]) -> Callable[[Finished, bytes], Finished]:
    """``conclude``, and where root runs the program, the set-user-id bits are then taken from the files in its workspace."""
    if os.geteuid() != 0:
        return conclude

    def concluded(finished: Finished, errors: bytes) -> Finished:
        try:
            return conclude(finished, errors)
        finally:
            drop_set_ids(laid.workspace)

    return concluded


@contextmanager
def _passing_home() -> Iterator[Path]:
    with scratch_directory("gittrix-home-") as path:
        home = Path(path, "home")
        home.mkdir()
        yield home


class _Pipe:
    """Both ends of a pipe, closed when the stack is."""

    def __init__(self, held: ExitStack) -> None:
        self.read, self.write = os.pipe()
        self._open = {self.read, self.write}
        held.callback(self._close)

    def give(self, end: str) -> int:
        """An end that the caller closes."""
        fd: int = getattr(self, end)
        self._open.discard(fd)
        return fd

    def _close(self) -> None:
        for fd in self._open:
            os.close(fd)


def _meter(confinement: Confinement, laid: Layout, pid: int) -> Meter | None:
    """Who measures what bubblewrap runs, which has no attendant; two of its processes are ours."""
    if confinement.limits is None:
        return None
    return Meter(confinement.limits.given(), laid.writable, pid, ours=2, jailed=True)


class _InBubblewrap(Spawned):
    """A program in a jail by bubblewrap, which reports how it ended."""

    def __init__(
        self,
        held: ExitStack,
        argv: Sequence[str],
        laid: Layout,
        confinement: Confinement,
        streams: Streams,
        environment: Mapping[str, str],
        cwd: str,
    ) -> None:
        status, filters = _Pipe(held), _Pipe(held)
        os.write(filters.write, jail_filter())
        os.close(filters.give("write"))
        inherited = (status.write, filters.read)
        jail = launch(argv, laid, confinement, environment=environment, cwd=cwd, bwrap_pipes=inherited)
        try:
            super().__init__(jail.argv, jail.environment, jail.directory, streams=streams, inherited=inherited)
        except OSError as problem:
            raise _not_confined(str(problem).encode()) from problem
        os.close(status.give("write"))
        os.set_blocking(status.read, False)
        self._status = status.read
        self._lines = b""

    def signal(self, number: int) -> None:
        """Send a signal to the program, the child of the first process of the jail: bubblewrap itself would only die of it."""
        first = self._report().get("child-pid")
        if first is not None:
            signal_child(first, number)

    def conclude(self, finished: Finished, errors: bytes) -> Finished:
        """Translate how bubblewrap ended: with 1 if it cannot execute a program, and for a signal with 128 and its number."""
        if finished.timed_out or finished.limit or finished.ended:
            return finished
        report = self._report()
        _end_first(report.get("child-pid"), report.get("pid-namespace"))
        if finished.signal is not None:
            return replace(finished, lost=f"bubblewrap was ended by signal {finished.signal}")
        if "exit-code" not in report:
            missing = _BWRAP_EXEC.search(errors)
            if missing is None:
                raise _not_confined(errors)
            return replace(finished, code=NOT_FOUND if missing[1] in (b"No such file or directory", b"Not a directory") else NOT_EXECUTABLE)
        code = finished.code or 0
        return replace(finished, code=None, signal=code - 128) if code - 128 in signal.valid_signals() else finished

    def _report(self) -> dict[str, Any]:
        with suppress(BlockingIOError):
            while chunk := os.read(self._status, _BLOCK):
                self._lines += chunk
        report: dict[str, Any] = {}
        for line in self._lines.splitlines():
            with suppress(ValueError):
                report.update(json.loads(line))
        return report


def _end_first(pid: int | None, namespace: int | None) -> None:
    """bubblewrap is gone before number 1 of its jail is, and with that everything in it: have it end, and wait until it has."""
    if pid is None:
        return
    with suppress(OSError):
        first = os.pidfd_open(pid)
        try:
            if pid_namespace(pid) == namespace:
                signal.pidfd_send_signal(first, signal.SIGKILL)
                select.select([first], [], [], KILL_WAIT)
        finally:
            os.close(first)


def _not_confined(said: bytes) -> AdapterUnavailable:
    if said == OVERLAY_BUSY.encode():
        return AdapterUnavailable(
            "The program was not started: another program is at work in this overlay workspace.",
            why="The kernel mounts the layers for one program at a time.",
            fix="Wait until the other program has ended.",
            opt_out="Start the session with the workspace 'clone', where several can work at once.",
        )
    return AdapterUnavailable(
        f"The program could not be confined: {said.decode('utf-8', 'replace').strip() or 'nothing was said about it'}.",
        why="It was not started, since it would have run with less confinement than was asked for.",
        fix=Advice(
            "See whether this machine allows namespaces or Landlock to this user; confinement('auto') takes what there is.",
            "See whether this machine allows namespaces or Landlock to this user; --confine auto takes what there is.",
        ),
        opt_out="Run it at a weaker level.",
    )
