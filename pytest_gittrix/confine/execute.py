"""Runs one program to its end, confined or not, and then ends everything that the program started.

It feeds and reads the program and limits its time. It needs Linux, because elsewhere nobody can tell which processes a program left
behind.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from pytest_gittrix.confine.command import Confinement, Launch, launch, task
from pytest_gittrix.confine.communicate import Attended, Spawned, Started, attend
from pytest_gittrix.confine.filesystem_layout import Layout, Place, layout
from pytest_gittrix.confine.launcher import NOT_EXECUTABLE, NOT_FOUND, exit_code
from pytest_gittrix.confine.limits import Limit
from pytest_gittrix.confine.meter import Meter
from pytest_gittrix.confine.namespace_jail import jail_filter
from pytest_gittrix.confine.network import Reachable
from pytest_gittrix.confine.zygote_client import ZygoteProgram
from pytest_gittrix.errors import AdapterUnavailable, Advice, CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.proc import pid_namespace
from pytest_gittrix.os_level.process_tree import KILL_WAIT

MOST_OUTPUT: Final = 10 << 20

_BLOCK: Final = 1 << 16
_BWRAP_EXEC: Final = re.compile(rb"^bwrap: execvp .*: (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended.

    Attributes:
        code: its status; None if a signal ended it. 127: there is no such program, 126: it cannot be executed.
        signal: the number of the signal that ended it. bubblewrap also reports one for a status of 128 and more, which is what a shell
            gives for a child that a signal ended.
        stdout: its output.
        stderr: its errors.
        timed_out: whether its time was over, and it was killed with everything it started.
        truncated: whether it wrote more than was asked for, and only the first of that is here.
        network: what the gateway decided, a line of JSON each, for a network that is a list.
        limit: the limit that it passed, and was killed for with everything it started; None if it passed none.
    """

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    network: tuple[str, ...] = ()
    limit: Limit | None = None


def run(
    argv: Sequence[str],
    place: Place,
    confinement: Confinement,
    *,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    timeout: float | None = None,
    most_output: int = MOST_OUTPUT,
    cwd: str = ".",
    stop: int | None = None,
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
        cwd: where it starts, in the workspace.
        stop: a descriptor; as soon as it can be read, the program's time is over. By it another thread ends this call.

    Raises:
        InvalidInput: the command is none, the limits are none, a place is not there, or a model's key is not set.
        CapabilityMissing: this system is not Linux, the network is a list and the confinement is neither a guard nor a jail by
            namespaces, or there are limits and it is none.
        AdapterUnavailable: it could not be confined; it was not started.
    """
    if not sys.platform.startswith("linux"):
        raise CapabilityMissing(
            "Programs of agents are run on Linux only.", why="Elsewhere what they start could not be ended.", fix="Run them on Linux."
        )
    if most_output < 0 or (timeout is not None and not timeout >= 0):
        raise InvalidInput(
            f"timeout={timeout!r} and most_output={most_output!r} are no limits.", fix="Use numbers from 0; timeout may be None."
        )
    deadline = None if timeout is None else real_seconds() + timeout
    with ExitStack() as held:
        home = place.home if place.home is not None else held.enter_context(_passing_home())
        laid = layout(place, home, jailed=confinement.level == "jail")
        attended = partial(attend, stdin=stdin, most=most_output, deadline=deadline, stop=stop)
        if confinement.by == "none":
            return _run_free(launch(argv, laid, confinement, environment=environment, cwd=cwd), attended)
        if confinement.by == "bwrap":
            status, filters = _Pipe(held), _Pipe(held)
            os.write(filters.write, jail_filter())
            os.close(filters.give("write"))
            inherited = (status.write, filters.read)
            jail = launch(argv, laid, confinement, environment=environment, cwd=cwd, bwrap_pipes=inherited)
            try:
                started = Spawned(jail.argv, jail.environment, jail.directory, inherited=inherited)
            except OSError as problem:
                raise _not_confined(str(problem).encode()) from problem
            finished = _finished(attended(started, meter=_meter(confinement, laid, started.pid)))
            os.close(status.give("write"))
            return finished if finished.timed_out or finished.limit else _as_bwrap_reports(finished, _all_of(status.read))
        log = held.enter_context(_passing_home()) / "network.jsonl" if isinstance(confinement.network, Reachable) else None
        wanted = task(argv, laid, confinement, environment=environment, cwd=cwd, network_log=log)
        program = ZygoteProgram(wanted.spec, wanted.command, wanted.environment)
        finished = _finished(attended(program), program.limit)
        if not finished.timed_out and (why := program.refusal()) is not None:
            raise _not_confined(why)
        return finished if log is None or not log.exists() else replace(finished, network=tuple(log.read_text("utf-8").splitlines()))


@contextmanager
def _passing_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gittrix-home-", ignore_cleanup_errors=True) as path:
        yield Path(path)


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


def _run_free(wanted: Launch, attended: Callable[[Started], Attended]) -> Finished:
    try:
        started = Spawned(wanted.argv, wanted.environment, wanted.directory, mark=os.urandom(8).hex())
    except OSError as problem:
        if problem.filename != wanted.argv[0] and problem.filename is not None:
            raise AdapterUnavailable(f"{wanted.argv[0]} was not started: {problem}.", fix="Try again.") from problem
        text = os.fsencode(f"{wanted.argv[0]}: {problem.strerror}\n")
        return Finished(exit_code(problem), None, b"", text)
    return _finished(attended(started))


def _meter(confinement: Confinement, laid: Layout, pid: int) -> Meter | None:
    """Who measures what bubblewrap runs, which has no attendant; two of its processes are ours."""
    if confinement.limits is None:
        return None
    return Meter(confinement.limits.given(), laid.writable, pid, ours=2, jailed=True)


def _finished(one: Attended, passed: Callable[[], str | None] = lambda: None) -> Finished:
    code, number = (one.status, None) if one.status >= 0 else (None, -one.status)
    limit = next((name for name in get_args(Limit) if name == (one.limit or passed())), None)
    return Finished(code, number, one.stdout, one.stderr, one.timed_out, one.truncated, limit=limit)


def _all_of(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, _BLOCK):
        data += chunk
    return data


def _as_bwrap_reports(finished: Finished, lines: bytes) -> Finished:
    """Translate how bubblewrap ends: with 1 if it cannot execute a program, and for a signal with 128 and its number."""
    report: dict[str, Any] = {}
    for line in lines.splitlines():
        with suppress(ValueError):
            report.update(json.loads(line))
    _end_first(report.get("child-pid"), report.get("pid-namespace"))
    if finished.signal is not None:
        return finished
    if "exit-code" not in report:
        missing = _BWRAP_EXEC.search(finished.stderr)
        if missing is None:
            raise _not_confined(finished.stderr)
        return replace(finished, code=NOT_FOUND if missing[1] in (b"No such file or directory", b"Not a directory") else NOT_EXECUTABLE)
    code = finished.code or 0
    return replace(finished, code=None, signal=code - 128) if code - 128 in signal.valid_signals() else finished


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
    return AdapterUnavailable(
        f"The program could not be confined: {said.decode('utf-8', 'replace').strip() or 'nothing was said about it'}.",
        why="It was not started, since it would have run with less confinement than was asked for.",
        fix=Advice(
            "See whether this machine allows namespaces or Landlock to this user; confinement('auto') takes what there is.",
            "See whether this machine allows namespaces or Landlock to this user; --confine auto takes what there is.",
        ),
        opt_out="Run it at a weaker level.",
    )
