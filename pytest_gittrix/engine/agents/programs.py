"""Runs programs of an agent in its session's workspace: confined, with a private home directory, on the session's clock.

Agents run one command after another, and expect that a command finds what an earlier one left in its home or its temporary directory.
So the home exists as long as a ``Programs`` object, or as long as the session; not as long as one command.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypedDict
from weakref import WeakSet

from pytest_gittrix.clock.clock import Clock
from pytest_gittrix.clock.propagation import CLOCK_VARIABLE, FOR_PYTHON
from pytest_gittrix.clock.shown import for_programs
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Layers, Place, directory_beside, toolchain
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.confine.network import for_session
from pytest_gittrix.confine.program_streams import KeptOutput
from pytest_gittrix.confine.runner import MOST_OUTPUT as MOST_OUTPUT
from pytest_gittrix.confine.runner import SIZE, run, start
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.session_parts import RanProgram, SessionObject, parts_of
from pytest_gittrix.engine.operations.in_use import GRACE, ProgramLock, RunningProgram
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import Advice, CapabilityMissing, GittrixError, InvalidInput
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.os_level.command import check_command
from pytest_gittrix.os_level.remove_tree import remove_tree
from pytest_gittrix.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint

WORKSPACE: Final = "/workspace"
"""The path of the workspace for programs in a jail; it is the same in every sample of every run."""

_TIMED_OUT: Final = 124
"""The exit status of the program ``timeout`` for a command whose time was over."""

_CHANGE_DIRECTORY: Final = 'cd -- "$1" || exit; shift; exec "$@"'

# The caller's variables that a program needs. No other variable, and so no secret, is passed on.
_INHERITED: Final = ("PATH", "LANG", "TERM")

# Files that Python and pytest leave next to the code hold times and paths, so that equal work would become different commits.
_WITHOUT_CACHES: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider", "PYTHONHASHSEED": "0"}


class ProgramSettings(TypedDict, total=False):
    """How programs are confined: those arguments of ``AgentSession.programs`` that a person gives to an adapter of a framework."""

    confine: str | None
    network: str | ModelEndpoint | Iterable[str | ModelEndpoint]
    limits: ResourceLimits | Mapping[str, int | float | str] | None
    readable: Iterable[Path | str]


class Programs:
    """Runs programs in the workspace of one session. As a context manager it ends them and removes their home directory at the end.

    Programs also end with the session, if that ends in this process: those that were started, and those that a thread waits for.

    ``AgentSession.programs`` makes one with the session's own level and clock.

    Attributes:
        session: the session.
        workspace: the absolute path of its workspace, as programs see it.
        confinement: the level of confinement, and why it is no stronger.
        place: where programs run: the directories that they find, and where.
        home: their home directory, on this machine.
    """

    def __init__(
        self,
        session: SessionObject,
        clock: Clock,
        confine: str = "auto",
        *,
        network: object = "none",
        limits: object = None,
        at: str | None = WORKSPACE,
        readable: Iterable[Path | str] = (),
        beside: Sequence[str] = (),
        sockets: Mapping[str, Path | str] | None = None,
        directory: Path | None = None,
        home: Path | None = None,
    ) -> None:
        """Check that programs can be run, choose the confinement, and make the home directory.

        Args:
            session: the session, as ``for_agent()`` gives it.
            clock: the engine's clock, from which programs get the time.
            confine: ``auto``, ``off``, ``guard`` or ``jail``.
            network: which network programs have; see ``confinement``.
            limits: what each program may use; see ``confinement``.
            at: the path at which a jail shows the workspace; None for its own.
            readable: files and directories that programs may read and execute, in addition to the system's and this Python's.
            beside: absolute paths of further directories in a jail, empty at first; they exist as long as the home.
            sockets: Unix sockets of this machine that programs in a jail reach, by the absolute paths at which the jail shows them.
            directory: the directory in which the home is made; the one for temporary files by default.
            home: the home itself, made if it is missing, and kept when this is closed, with the directories next to it.

        Raises:
            CapabilityMissing: the workspace is no directory (``lazy``), or this machine cannot confine at that level or with that network,
                with those limits or sockets.
            InvalidInput: there is no such level, network or limit, or a path is not absolute.
        """
        self._parts = parts_of(session)
        made = self._parts.workspace
        if not made.capabilities.shell:
            raise CapabilityMissing(
                f"No program can work in {session.id}: no directory of this machine has all its files.",
                why="A lazy workspace holds only what was written, and the files of a remote one are elsewhere.",
                fix=Advice(
                    "Start the session with workspace='clone' or 'copy'.", "Start the session with --workspace clone or --workspace copy."
                ),
            )
        self.session = session
        workspace, layers = Path(os.path.abspath(made.path)), layers_of(made)
        self.confinement: Confinement = confinement(confine, for_session(network, session.id), limits, layers=layers is not None)
        jailed = self.confinement.level == "jail"
        self.workspace = (at or str(workspace)) if jailed else os.path.realpath(workspace)
        self._clock = clock
        self._running: WeakSet[Running] = WeakSet()
        self._passing: Path | None = None
        if home is None:
            self._passing = Path(os.path.realpath(tempfile.mkdtemp(prefix="gittrix-home-", dir=directory)))
            home = self._passing / "home"
        self.home = Path(os.path.abspath(home))
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            mounts = [(directory_beside(self.home, f"beside-{number}"), path) for number, path in enumerate(beside)]
            self.place = Place(
                workspace=workspace,
                home=self.home,
                readable=(*toolchain(), *map(_absolute, readable), *self._clock_file()),
                at=at if jailed else None,
                beside=tuple(mounts),
                sockets=tuple((_absolute(path), shown) for shown, path in (sockets or {}).items()),
                layers=layers,
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the programs that run, and remove the home directory, unless it was given. Closing twice does nothing."""
        for running in [*self._running]:
            running.kill()
        if self._passing is not None:
            remove_tree(self._passing)

    def require_live(self) -> None:
        """See that the session has not ended; this counts as a use of it, as each program does.

        Raises:
            SessionExpired: it has ended.
        """
        with self._parts.recorder.working("run", self._parts.actor):
            pass

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        most_output: int = MOST_OUTPUT,
        merged: bool = False,
        stop: int | None = None,
    ) -> Finished:
        """Run a program and wait for its end; processes that it started end with it. Meanwhile no sweep finds the session idle.

        If the session ends all the same, it gets SIGTERM, is killed five seconds later, and ``Finished.ended`` says how the session ended.

        Args:
            argv: the program and its arguments; no shell is involved.
            stdin: the bytes on its standard input.
            cwd: its working directory, relative to the workspace's root or absolute as programs see it. If there is no such directory, the
                result is that of a shell whose ``cd`` failed.
            environment: more environment variables.
            timeout: real seconds after which the program is killed, above 0; None for none.
            most_output: how many bytes of each output stream are returned.
            merged: whether its errors come on its output, in the order in which both were written.
            stop: a file descriptor; the program is killed as soon as the descriptor is readable.

        Raises:
            SessionExpired: the session has ended.
            InvalidInput: the command is empty or malformed.
            GittrixError: as ``confine.run``.
        """
        asked = self._asked(argv, cwd, environment, timeout, most_output=most_output, merged=merged)
        ended = run(**asked, stdin=stdin, stop=stop)
        self._parts.ran.append(RanProgram(tuple(argv), ended.code, ended.signal))
        return ended

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        most_output: int = MOST_OUTPUT,
        keep: KeptOutput = "unread",
        merged: bool = False,
        pty: bool = False,
        size: tuple[int, int] = SIZE,
    ) -> Running:
        """Start a program that stays: its output as it comes, its input when it is there, and its end with all that it started.

        Args:
            argv, cwd, environment, timeout, merged: as for ``run``.
            stdin: all that it reads; None if more is to be written later.
            most_output: bytes of each stream that are kept until they are read.
            keep: what becomes of more: with ``unread`` the program waits until somebody reads, as on a pipe; ``first`` and ``last`` throw
                away what is behind the first bytes, or before the last.
            pty: whether it has a terminal, from which it hears Ctrl-C (write ``b"\\x03"``).
            size: rows and columns of the terminal.

        Raises:
            SessionExpired, InvalidInput, GittrixError: as for ``run``. ``Running.wait`` raises what is noticed later.
        """
        asked = self._asked(argv, cwd, environment, timeout, most_output=most_output, merged=merged)
        return start(**asked, stdin=stdin, keep=keep, pty=pty, size=size)

    def _asked(
        self, argv: Sequence[str], cwd: str, environment: Mapping[str, str] | None, timeout: float | None, **options: Any
    ) -> dict[str, Any]:
        """The arguments that ``confine.run`` and ``confine.start`` share."""
        where = {"place": self.place, "confinement": self.confinement, "environment": self.environment(environment)}
        return {"argv": self._command(argv, cwd, timeout), **where, "timeout": timeout, "admit": self._admit, **options}

    def _admit(self, running: Running) -> None:
        """Have a program count as use of the session, and end with it."""
        self._running.add(running)
        running.hold(*attend(self, running), GRACE)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment variables of a program: hermetic git, the session's clock and id, no caches of Python's, and ``more``.

        This Python is last in PATH.
        """
        base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        base["PATH"] = os.pathsep.join([base.get("PATH", os.defpath), os.path.join(sys.prefix, "bin")])
        variables = {**self.session.environment(hermetic_env(self.home, base=base)), **self._time(), **_WITHOUT_CACHES}
        return {**for_programs(self._clock, variables), **(more or {})}

    def _time(self) -> dict[str, str]:
        return self._clock.environment() if hasattr(self._clock, "environment") else {}

    def _clock_file(self) -> tuple[Path, ...]:
        variables = for_programs(self._clock, self._time())
        paths = (variables.get(CLOCK_VARIABLE, ""), FOR_PYTHON if "PYTHONPATH" in variables else "")
        return tuple(Path(path) for path in paths if os.path.isabs(path))

    @staticmethod
    def _command(argv: Sequence[str], cwd: str, timeout: float | None) -> list[str]:
        check_command(argv, {})
        if timeout is not None and not timeout > 0:
            raise InvalidInput(
                f"timeout={timeout!r} is no time that a program could run.",
                why="0 means none to some callers, and at once to others.",
                fix="Use seconds above 0, or None for none.",
            )
        return [*argv] if cwd == "." else ["/bin/sh", "-c", _CHANGE_DIRECTORY, "sh", cwd, *argv]


def attend(programs: Programs, program: RunningProgram) -> tuple[ProgramLock, SessionEnd]:
    """Count a program as one of a session's, until the attendance is closed; ``run`` and ``start`` do so for theirs.

    Args:
        programs: the session's.
        program: the program, which ends with the session.

    Returns:
        The attendance, and what says that the session has ended. This is no method, so that an agent is not offered it.

    Raises:
        SessionExpired: it has ended.
    """
    parts = programs._parts
    # Under the lease, where no end of the session can come in between.
    with parts.recorder.working("run", parts.actor):
        return ProgramLock(parts.recorder.directory, program), SessionEnd(parts.recorder.twin())


class SessionEnd:
    """How a session ended under a program; None while it goes on, or its workspace stays after a promotion. A handoff takes programs along.

    Args:
        recorder: of the session; used by this alone.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self) -> str | None:
        with suppress(GittrixError, OSError):  # a log that cannot be read now says nothing of an end
            state = self._recorder.read()
            while state.outcome == "handoff" and state.successor is not None:
                self._recorder = self._recorder.of_session(state.successor)
                state = self._recorder.read()
            if state.ended and not (state.state == "promoted" and state.workspace_present):
                return state.state
        return None


def layers_of(workspace: Workspace) -> Layers | None:
    """What a workspace lies above, for a jail; None for one that is a directory by itself."""
    layers = workspace.layers_for_programs()
    if layers is None:
        return None
    lower, work, below = layers
    return Layers(Path(lower), Path(work), tuple(map(Path, below)))


def exit_code(done: Finished) -> int | None:
    """The exit status of a program as a shell reports it: 128 plus the signal's number for a signal, None if it took too long."""
    if done.timed_out:
        return None
    return 128 + done.signal if done.signal is not None else done.code


def timeout_code(done: Finished) -> int:
    """The exit status as the program ``timeout`` reports it: 124 if the time or a limit ended the program, else as ``exit_code``."""
    code = exit_code(done)
    return _TIMED_OUT if code is None or done.limit is not None else code


def run_while_live(programs: Programs, argv: Sequence[str], **options: Any) -> Finished:
    """As ``Programs.run``, but the end of the session is an error also for a program that it ended.

    Such a program looks as if it had failed. A framework would report that, and its agent would try again.

    Raises:
        SessionExpired: the session ended, before the program or while it ran.
        GittrixError: as ``Programs.run``.
    """
    done = programs.run(argv, **options)
    if done.ended is not None:
        programs.require_live()
    return done


def _absolute(path: Path | str) -> Path:
    return Path(path).expanduser().absolute()
