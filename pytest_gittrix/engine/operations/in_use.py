"""Who works in a session's workspace: the programs that the engine runs there, and any other process.

The process that supervises a program of a session holds a shared lock on a file next to the workspace. So each process of this machine
sees that the program runs, wherever it is confined, and the system drops the lock of a supervisor that is killed. The file's change time
says when the last program ended. Other processes are found in ``/proc``, by their working directories and open files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self
from weakref import WeakKeyDictionary

from pytest_gittrix.engine.operations.requester import requesting_process
from pytest_gittrix.errors import Advice, SessionInUse
from pytest_gittrix.os_level.file_lock import retry, try_lock, unlock
from pytest_gittrix.os_level.files import OWNERS
from pytest_gittrix.os_level.lock_owner import look
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.proc import ancestors, program_of, working_below
from pytest_gittrix.os_level.proc import pids as all_pids
from pytest_gittrix.os_level.process_tree import marked
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store.store import TURN, USE
from pytest_gittrix.safe_text import visible_line

SESSION_VARIABLE: Final = "GITTRIX_SESSION_ID"
"""The environment variable in which programs of an agent find their session's id."""
GRACE: Final = 5.0
"""Real seconds that a program has after the SIGTERM that it gets when its session ends."""
PROGRAM_END_WAIT: Final = GRACE + 3.0
"""Real seconds after which no supervisor should hold its lock: it may notice the end of the session a second later."""

_OPEN: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_FRESH: Final = 0.1
_NAMED: Final = 5
_LONGEST_NAME: Final = 100
_FORCE: Final = Advice(
    "Discard or evict it with force=True: programs of the engine are ended, and the workspace is removed under all others.",
    "Discard or evict it with --force: programs of the engine are ended, and the workspace is removed under all others.",
)


class WorkspaceProcess(NamedTuple):
    """A process that works in a workspace."""

    pid: int
    program: str

    def __str__(self) -> str:
        return f"{visible_line(self.program)[:_LONGEST_NAME]} ({self.pid})"


class Users(NamedTuple):
    """The processes that work in a workspace; true if there are any.

    Attributes:
        engine: whether a program of the engine is among them, or a turn of its agent.
        processes: those that are known by their number.
    """

    engine: bool = False
    processes: tuple[WorkspaceProcess, ...] = ()

    def __bool__(self) -> bool:
        return self.engine or bool(self.processes)

    def __str__(self) -> str:
        named = [*map(str, self.processes[:_NAMED])] or ["a program or a turn that the engine runs"]
        more = len(self.processes) - _NAMED
        return ", ".join([*named, *([f"and {more} more"] if more > 0 else [])])


NO_USERS: Final = Users()


class InUse(NamedTuple):
    """A session whose workspace stays because processes work there.

    Attributes:
        id: its id.
        users: which.
    """

    id: str
    users: Users


class RunningProgram(Protocol):
    """A program of a session that this process supervises."""

    def end(self, reason: str, grace: float) -> None:
        """Tell it to end because its session did, as ``reason`` says, and kill it with all it started after ``grace`` seconds."""
        ...


class ProgramLock:
    """The lock that says that a program runs in a session, until it is closed.

    Args:
        directory: the session's directory.
        program: the program, if this process can tell it to end.

    Attributes:
        descriptor: the open file that has the lock; below 0 once this is closed.
        place: the session's directory.

    Raises:
        OSError: the disk refused.
    """

    def __init__(self, directory: Path, program: RunningProgram | None = None) -> None:
        self.descriptor = os.open(directory / USE, _OPEN, OWNERS)
        self._pid = os.getpid()
        # A look at the lock takes it alone for an instant.
        retry(lambda: try_lock(self.descriptor, shared=True) or None, wait=float("inf"), refusal=AssertionError)
        self.place = os.fspath(directory)
        if program is not None:
            _PROGRAMS[program] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Note that the program has ended; the session's idle time counts from here. Closing twice does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0 or self._pid != os.getpid():  # a fork must not drop what its parent holds
            return
        with suppress(OSError):  # the disk may be full, and the program has ended all the same
            os.utime(descriptor)
        unlock(descriptor)  # by name, since a forked child may have the descriptor too
        os.close(descriptor)

    def hand_over(self) -> None:
        """Leave the lock to a process that has inherited the descriptor."""
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)


_PROGRAMS: Final[WeakKeyDictionary[RunningProgram, ProgramLock]] = WeakKeyDictionary()


def last_program_ns(directory: Path) -> int:
    """When a program of the engine last began or ended in a session, as the kernel's change time of a file; 0 if none ever did."""
    try:
        return os.stat(directory / USE).st_ctime_ns
    except OSError:
        return 0


def runs_program(directory: Path, *, wait: float = 0) -> bool:
    """Whether a program of the engine runs in a session, in whichever process.

    Args:
        directory: the session's directory.
        wait: real seconds to wait for its end.

    Raises:
        OSError: that cannot be known.
    """
    try:
        descriptor = os.open(directory / USE, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return False
    try:
        return not retry(lambda: try_lock(descriptor) or None, wait=wait, refusal=TimeoutError)
    except TimeoutError:
        return True
    finally:
        os.close(descriptor)


class ProcessFinder:
    """Finds the processes that work below a directory, for many workspaces at once; a look is good for a tenth of a second.

    Args:
        root: the directory; a workspace that is elsewhere is looked at by itself.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.realpath(root)
        self._seen: list[tuple[int, str]] = []
        self._until = 0.0

    def working_in(self, workspace: str) -> Iterator[int]:
        """The processes that work in a workspace, perhaps more than once."""
        path = os.path.realpath(workspace)
        if not path.startswith(f"{self._root}/"):
            return (pid for pid, _ in working_below(path))
        if real_seconds() >= self._until:
            self._seen, self._until = [*working_below(self._root)], real_seconds() + _FRESH
        return (pid for pid, where in self._seen if f"{where}/".startswith(f"{path}/"))


def users_of(
    state: SessionState, directory: Path, *, finder: ProcessFinder | None = None, spare: Collection[int] = (), turns: bool = False
) -> Users:
    """The processes that work in a session's workspace, without this one.

    Args:
        state: of the session.
        directory: its directory.
        finder: knows where processes work; by default they are looked up now.
        spare: further processes to leave out.
        turns: count a turn of its agent, too.

    Raises:
        OSError: the system does not say.
    """
    engine = runs_program(directory)
    found: list[int] = []
    if state.workspace is not None:
        found = [*(finder or ProcessFinder(state.workspace)).working_in(state.workspace)]
    if engine and not found:
        found = sorted(marked(all_pids(), state.id, SESSION_VARIABLE))
    pids = dict.fromkeys(pid for pid in found if pid != os.getpid() and pid not in spare)
    engine = engine or (turns and look(os.fspath(directory / TURN)).held)
    return Users(engine, tuple(WorkspaceProcess(pid, program_of(pid)) for pid in pids))


def require_unused(state: SessionState, directory: Path, verb: str, *, removes: bool = True, forcible: bool = True) -> None:
    """Refuse to remove a workspace, or to change its files, while processes work in it, other than the requester and its ancestors.

    Args:
        state: of the session.
        directory: its directory.
        verb: what was asked for, such as ``discard``.
        removes: whether that removes the workspace; else it changes files there.
        forcible: whether it can be forced.

    Raises:
        SessionInUse: there are some.
    """
    asking = requesting_process()
    users = users_of(state, directory, spare={asking, *ancestors(asking)})
    if not users:
        return
    raise SessionInUse(
        f"Session {state.id} is in use: {users}.",
        processes=users.processes,
        why=f"To {verb} it would remove its workspace under them, and what they write then would be lost."
        if removes
        else f"To {verb} it changes files under them, and what they write meanwhile could be mixed up with that.",
        fix="End them, or wait until they have ended.",
        opt_out=_FORCE if forcible else "",
    )


def tell_programs(directory: Path, reason: str) -> None:
    """Tell the programs that this process supervises to end, because their session did; other supervisors notice it themselves."""
    place = os.fspath(directory)
    for program in [program for program, one in [*_PROGRAMS.items()] if one.descriptor >= 0 and one.place == place]:
        program.end(reason, GRACE)
