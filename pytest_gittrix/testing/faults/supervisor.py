"""A crash machine: run a program, count every call of its whole process tree that changes a file, and strike at the N-th.

The N-th such call, in one order over the command and all its descendants, can be the last thing that never happened (`Kill`), fail
(`Errno`), or write only a part (`ShortWrite`, `TornKill`). `sweep` does so at every point. Linux on x86_64 and aarch64, without
privilege; `supported` says why not elsewhere. Knows processes and files, but neither git, sessions nor pytest.

How it holds together: the caller forks a *warden*, the warden forks the target. The target puts itself behind the gate of `seccomp`
and hands the listener to the warden, which answers one call at a time. A kill therefore needs no haste: once the warden stops
answering, no file changes any more. The warden adopts every orphan of the tree and ends only when none is left; it also strikes when
its caller goes away. A call already let through on another processor may still be under way when the next one is met.
"""

from __future__ import annotations

import errno as errnos
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.testing.faults.faults import Call, Errno, Fault, Kill, Run, ShortWrite, TornKill
from pytest_gittrix.testing.faults.tracer import Failure, Warden

__all__ = [
    "Call",
    "Errno",
    "Fault",
    "Kill",
    "Run",
    "ShortWrite",
    "TornKill",
    "supervise",
    "supervise_function",
    "supported",
    "sweep",
]

StrPath = str | os.PathLike[str]


def supervise(
    argv: Sequence[StrPath],
    *,
    fault: Fault | None = None,
    within: StrPath | Iterable[StrPath] = (),
    env: Mapping[str, str] | None = None,
    cwd: StrPath | None = None,
    timeout: float = 60.0,
    stdin: bytes | None = None,
) -> Run:
    """Run a command under supervision, until its last descendant has ended.

    Args:
        argv: the command; looked for in PATH. One that cannot be started exits with 127, with the reason on its stderr.
        fault: what shall go wrong; nothing if None.
        within: count only calls that concern a path below one of these; everywhere on disk if empty. Symlinks are followed as far as
            the parent directory of the path.
        env: the whole environment; that of this process if None.
        cwd: where to start.
        timeout: seconds after which the tree is killed.
        stdin: what the command can read; nothing if None.

    Raises:
        InvalidInput: ``argv`` is empty, or ``timeout`` not positive.
        CapabilityMissing: supervision does not work here (see `supported`), or a descendant may not be looked into.
    """
    return _run(exec_of(argv, env, cwd), fault, within, timeout, stdin)


def supervise_function(
    fn: Callable[[], object],
    *,
    fault: Fault | None = None,
    within: StrPath | Iterable[StrPath] = (),
    timeout: float = 60.0,
) -> Run:
    """Run ``fn()`` under supervision in a fork of this process: far cheaper than starting an interpreter, hence the one for sweeps.

    The fork exits with 0 when ``fn`` returns and 1 when it raises, and runs no cleanup of this process (no atexit, no finalizers). It
    shares the open descriptors, and so the flock locks, of this process. What ``fn`` computes is lost; files and output remain.

    Args:
        fn: what to run.
        fault, within, timeout: as for `supervise`.

    Raises:
        InvalidInput: ``timeout`` is not positive.
        CapabilityMissing: as for `supervise`.
    """

    return _run(call_of(fn), fault, within, timeout, None)


def sweep(
    run: Callable[[Fault | None], Run],
    *,
    kinds: Sequence[str] = ("kill",),
    points: slice | Iterable[int] | None = None,
) -> Iterator[tuple[Fault, Run]]:
    """Strike a program at every point, one run each.

    Args:
        run: puts the world into its first state and runs the program with the fault given, through `supervise` or `supervise_function`.
        kinds: any of "kill"; "torn" (1, half and all but one byte of each write, then killed); "short" (half of each write); an errno name
            ("EIO"); an errno name that sticks ("sticky ENOSPC").
        points: which calls of the clean run: a slice of their list, or indexes from 1; all if None.

    Yields:
        each fault and what came of it, kind by kind in the order of calls. What must hold now is for the caller to check.

    Raises:
        InvalidInput: a kind is unknown, the clean run fails, or the program does not repeat its calls, so that a fault met nothing.
    """
    makers = [_faults_of(kind) for kind in kinds]
    clean = run(None)
    if clean.killed or clean.exit_code != 0:
        end = "ran out of time" if clean.timed_out else f"exited with {clean.exit_code}"
        raise InvalidInput(
            f"the program {end} without any fault, after {len(clean.calls)} counted calls",
            why="A sweep over a program that does not work would prove nothing.",
            fix=f"Its stderr was: {os.fsdecode(clean.stderr).strip()[-2000:]}",
        )
    chosen = _chosen(clean.calls, points)
    for fault in (fault for make in makers for call in chosen for fault in make(call)):
        struck = run(fault)
        if struck.fired is None:
            raise InvalidInput(
                f"{fault} met nothing: {len(struck.calls)} counted calls, {len(clean.calls)} in the clean run",
                why="The program does not repeat its calls, so the points of this sweep are not the points it has.",
                fix="Reset the world before each run, narrow `within`, and see that nothing runs in parallel.",
            )
        yield fault, struck


@cache
def supported() -> str | None:
    """Return None if supervision works here, tried once in a child, or else the reason why not."""
    if sys.platform != "linux":
        return f"supervision needs Linux seccomp; this is {sys.platform}"
    with tempfile.TemporaryDirectory() as scratch:
        probe = os.path.join(scratch, "probe")

        def write() -> None:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, b"whole")

        try:
            run = supervise_function(write, fault=ShortWrite(2, 3), within=scratch, timeout=10)
        except (CapabilityMissing, OSError) as error:
            return f"supervision does not work here: {error}"
        if run.exit_code == 0 and len(run.calls) == 2 and os.path.getsize(probe) == 3:
            return None
    return f"supervision does not work here: a probe of two calls gave {run}"


def exec_of(argv: Sequence[StrPath], env: Mapping[str, str] | None = None, cwd: StrPath | None = None) -> Callable[[], None]:
    """What a target does to become a command; the arguments and errors are those of `supervise`."""
    if not argv:
        raise InvalidInput("argv is empty", fix="Name a command, such as ['git', 'status'].")
    command = [os.fspath(part) for part in argv]
    environment = dict(os.environ if env is None else env)

    def start() -> None:
        # Python ignores these two; the command must meet them as a shell would have set them.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            if cwd is not None:
                os.chdir(cwd)
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(2, f"cannot run {command[0]!r}: {error}\n".encode())
            os._exit(127)

    return start


def call_of(fn: Callable[[], object]) -> Callable[[], None]:
    """What a target does to call a function of the process it was forked from."""

    def start() -> None:
        # Imports made by fn on its first run only must not be counted.
        sys.dont_write_bytecode = True
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        fn()
        sys.stdout.flush()

    return start


def _faults_of(kind: str) -> Callable[[Call], list[Fault]]:
    def torn(call: Call) -> list[Fault]:
        size = call.size or 0
        return [TornKill(call.index, cut) for cut in sorted({1, size // 2, size - 1}) if 0 < cut < size]

    def short(call: Call) -> list[Fault]:
        return [ShortWrite(call.index, call.size // 2)] if call.size and call.size > 1 else []

    plain: Mapping[str, Callable[[Call], list[Fault]]] = {"kill": lambda call: [Kill(call.index)], "torn": torn, "short": short}
    if kind in plain:
        return plain[kind]
    name = kind.removeprefix("sticky ")
    number = getattr(errnos, name, None)
    if not isinstance(number, int):
        raise InvalidInput(
            f"{kind!r} is no kind of fault", fix="Use 'kill', 'torn', 'short', an errno name such as 'ENOSPC', or 'sticky ENOSPC'."
        )
    return lambda call: [Errno(call.index, number, sticky=name != kind)]


def _chosen(calls: list[Call], points: slice | Iterable[int] | None) -> list[Call]:
    if points is None or isinstance(points, slice):
        return calls[points or slice(None)]
    wanted = set(points)
    return [call for call in calls if call.index in wanted]


def _run(start: Callable[[], None], fault: Fault | None, within: StrPath | Iterable[StrPath], timeout: float, stdin: bytes | None) -> Run:
    if timeout <= 0:
        raise InvalidInput(f"timeout is {timeout}; it must be more than 0 seconds")
    roots = [within] if isinstance(within, str | os.PathLike) else within
    if sys.platform == "linux":
        outcome = Warden(start, fault, tuple(os.path.realpath(root) for root in roots), timeout, stdin).outcome()
    else:
        outcome = Failure(str(supported()))
    if isinstance(outcome, Run):
        return outcome
    raise CapabilityMissing(
        f"the program could not be supervised: {outcome.reason}",
        fix="supported() tells whether this machine can; skip with what it returns.",
    )
