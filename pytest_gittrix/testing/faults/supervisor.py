"""Runs a program, counts every call of its process tree that changes a file, and plays a fault at the N-th of them.

The N-th such call, in one order over the command and all its descendants, can be preceded by a kill (`KillAt`), fail (`Errno`), or write
a part (`ShortWrite`, `TornKill`). `fault_sweep` does so at every call. Needs Linux on x86_64 or aarch64 and no privilege; `supported` gives
the reason where it does not work.

How it works: the caller forks a *tracer*, and the tracer forks the target. The target installs the filter of `seccomp_notify` and
hands its listener to the tracer, which answers one call at a time. A kill needs no haste: once the tracer stops answering, no file
changes any more. The tracer adopts every orphan of the process tree and ends only when none is left; it also kills the tree when its caller
dies. A call that was already let through on another processor may still be under way when the next one is received.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.testing.faults.faults import Errno, Fault, FileCall, KillAt, ShortWrite, SupervisedRun, TornKill
from pytest_gittrix.testing.faults.tracer import Tracer, TracerFailure

__all__ = [
    "Errno",
    "Fault",
    "FileCall",
    "KillAt",
    "ShortWrite",
    "SupervisedRun",
    "TornKill",
    "supervise",
    "supervise_function",
    "supported",
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
) -> SupervisedRun:
    """Run a command under supervision until its last descendant has ended.

    Args:
        argv: the command; looked for in PATH. One that cannot be started exits with 127, with the reason on its stderr.
        fault: the fault to play; none if None.
        within: count only calls that concern a path below one of these; everywhere on disk if empty. Symlinks are followed as far as
            the parent directory of the path.
        env: the whole environment; that of this process if None.
        cwd: the directory to start in; that of this process if None.
        timeout: seconds after which the process tree is killed.
        stdin: what the command can read; nothing if None.

    Raises:
        InvalidInput: ``argv`` is empty, or ``timeout`` is not positive.
        CapabilityMissing: supervision does not work here (see `supported`), or the kernel does not let a descendant be inspected.
    """
    return trace(exec_of(argv, env, cwd), fault, within, timeout, stdin)


def supervise_function(
    fn: Callable[[], object],
    *,
    fault: Fault | None = None,
    within: StrPath | Iterable[StrPath] = (),
    timeout: float = 60.0,
) -> SupervisedRun:
    """Run ``fn()`` under supervision in a fork of this process. It costs far less than starting an interpreter, so use it for sweeps.

    The fork exits with 0 when ``fn`` returns and 1 when it raises, and runs no cleanup of this process (no atexit, no finalizers). It
    shares the open descriptors, and so the flock locks, of this process. What ``fn`` computes is lost; files and output remain.

    Args:
        fn: the function to run.
        fault, within, timeout: as for `supervise`.

    Raises:
        InvalidInput: ``timeout`` is not positive.
        CapabilityMissing: as for `supervise`.
    """

    return trace(call_of(fn), fault, within, timeout)


@cache
def supported() -> str | None:
    """Return None if supervision works on this machine, or else the reason why not. It is tried once, in a child."""
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
    """Return what a forked target runs to become a command; arguments and errors as for `supervise`."""
    if not argv:
        raise InvalidInput("argv is empty", fix="Name a command, such as ['git', 'status'].")
    command = [os.fspath(part) for part in argv]
    environment = dict(os.environ if env is None else env)

    def start() -> None:
        # Python ignores these two signals; the command expects the default that a shell would have set.
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
    """Return what a forked target runs to call a function of the process that forked it."""

    def start() -> None:
        # Byte code that the first run of fn would write must not be counted.
        sys.dont_write_bytecode = True
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        fn()
        sys.stdout.flush()

    return start


def trace(
    start: Callable[[], None],
    fault: Fault | None,
    within: StrPath | Iterable[StrPath],
    timeout: float,
    stdin: bytes | None = None,
    before: Callable[[FileCall], object] | None = None,
) -> SupervisedRun:
    """Run what ``start`` does in a traced fork; see ``Tracer`` for ``start`` and ``before``, and `supervise` for the rest."""
    if timeout <= 0:
        raise InvalidInput(f"timeout is {timeout}; it must be more than 0 seconds")
    roots = [within] if isinstance(within, str | os.PathLike) else within
    if sys.platform == "linux":
        outcome = Tracer(start, fault, tuple(os.path.realpath(root) for root in roots), timeout, stdin, before=before).outcome()
    else:
        outcome = TracerFailure(str(supported()))
    if isinstance(outcome, SupervisedRun):
        return outcome
    raise CapabilityMissing(
        f"the program could not be supervised: {outcome.reason}",
        fix="supported() tells whether this machine can; skip with what it returns.",
    )
