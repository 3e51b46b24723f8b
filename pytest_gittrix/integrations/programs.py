"""Runs programs of an agent in its session's workspace: confined, with a private home directory, on the session's clock.

Frameworks run one command after another, and expect that a command finds what an earlier one left in its home or its temporary directory.
So the home exists as long as a ``Programs`` object, not as long as one command.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from pytest_gittrix.clock.clock import Clock
from pytest_gittrix.confine.choose import Confinement, Finished, Place, confinement, run, toolchain
from pytest_gittrix.engine.agents.agent_session import AgentSession, parts_of
from pytest_gittrix.engine.agents.run import layers_of
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.git.environment import hermetic_env

WORKSPACE: Final = "/workspace"
"""The path of the workspace for programs in a jail; it is the same in every sample of every run."""
MOST_OUTPUT: Final = 10 << 20
"""How many bytes of each output stream of a program are returned, by default."""

_CHANGE_DIRECTORY: Final = 'cd -- "$1" || exit; shift; exec "$@"'

# The caller's variables that a program needs. No other variable, and so no secret, is passed on.
_INHERITED: Final = ("PATH", "LANG", "TERM")

# Files that Python and pytest leave beside the code hold times and paths, so that equal work would become different commits.
_WITHOUT_CACHES: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider", "PYTHONHASHSEED": "0"}


class Programs:
    """Runs programs in the workspace of one session. As a context manager it removes their home directory at the end.

    Attributes:
        session: the session.
        workspace: the absolute path of its workspace, as programs see it.
        confinement: the level of confinement, and why it is no stronger.
    """

    def __init__(
        self,
        session: AgentSession,
        clock: Clock,
        confine: str = "auto",
        *,
        at: str = WORKSPACE,
        beside: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        """Check that programs can be run, choose the confinement, and make the home directory.

        Args:
            session: the session; only its workspace, id and environment are used.
            clock: the engine's clock, from which programs get the time.
            confine: ``auto``, ``off``, ``guard`` or ``jail``.
            at: the path at which a jail shows the workspace.
            beside: absolute paths of further directories in a jail, empty at first; they exist as long as the home.
            directory: the directory in which the home is made; the one for temporary files by default.

        Raises:
            CapabilityMissing: the workspace is no directory (``lazy``), or this machine cannot confine at that level.
            InvalidInput: there is no such level.
        """
        workspace = parts_of(session).workspace
        if not workspace.capabilities.shell:
            raise CapabilityMissing(
                f"No program can run in {session.id}: its workspace is lazy.",
                why="A lazy workspace holds only what was written; a program needs all files in a directory.",
                fix="Start the session with a clone or a copy.",
            )
        self.session = session
        layers = layers_of(workspace)
        self.confinement: Confinement = confinement(confine, layers=layers is not None)
        jailed = self.confinement.level == "jail"
        self.workspace = at if jailed else os.path.realpath(workspace.path)
        self._clock = clock
        self._root = Path(os.path.realpath(tempfile.mkdtemp(prefix="gittrix-home-", dir=directory)))
        self._home = self._root / "home"
        mounts = [(self._root / f"beside-{number}", path) for number, path in enumerate(beside)]
        try:
            for directory in (self._home, *(directory for directory, _ in mounts)):
                directory.mkdir()
            self._layout = Place(
                workspace=Path(workspace.path),
                home=self._home,
                readable=toolchain(),
                at=at if jailed else None,
                beside=tuple(mounts),
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
        """Remove the home directory; no program can run afterwards. Closing twice does nothing."""
        shutil.rmtree(self._root, ignore_errors=True)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        most_output: int = MOST_OUTPUT,
        stop: int | None = None,
    ) -> Finished:
        """Run a program and wait for its end; processes that it started end with it.

        Args:
            argv: the program and its arguments; no shell is involved.
            stdin: the bytes on its standard input.
            cwd: its working directory, relative to the workspace's root or absolute as programs see it. If there is no such directory, the
                result is that of a shell whose ``cd`` failed.
            environment: more environment variables.
            timeout: real seconds after which the program is killed.
            most_output: how many bytes of each output stream are returned.
            stop: a file descriptor; the program is killed as soon as the descriptor is readable.

        Raises:
            InvalidInput: the command is empty or malformed, or the workspace was removed.
            GittrixError: as ``confine.run``.
        """
        return run(
            [*argv] if cwd == "." else ["/bin/sh", "-c", _CHANGE_DIRECTORY, "sh", cwd, *argv],
            self._layout,
            self.confinement,
            environment=self.environment(environment),
            stdin=stdin,
            timeout=timeout,
            most_output=most_output,
            stop=stop,
        )

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment variables of a program: hermetic git, the session's clock and id, no caches of Python's, and ``more``.

        This Python is last in PATH.
        """
        base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        base["PATH"] = os.pathsep.join([base.get("PATH", os.defpath), os.path.join(sys.prefix, "bin")])
        carried = self._clock.environment() if hasattr(self._clock, "environment") else {}
        return {**self.session.environment(hermetic_env(self._home, base=base)), **carried, **_WITHOUT_CACHES, **(more or {})}


def exit_code(done: Finished) -> int | None:
    """The exit status of a program as a shell reports it: 128 plus the signal's number for a signal, None if it took too long."""
    if done.timed_out:
        return None
    return 128 + done.signal if done.signal is not None else done.code
