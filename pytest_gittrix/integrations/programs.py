"""Programs of an agent in its session's workspace: confined, in one private home, by the session's clock.

Frameworks run one command after another and expect that what one leaves in its home or its temporary directory the next one finds. So the
home lives as long as this object does, not as long as a command. It must not know which framework asks.
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
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.git.environment import hermetic_env

WORKSPACE: Final = "/workspace"
"""Where the workspace is for programs in a jail: the same place in every sample of every run."""
MOST_OUTPUT: Final = 10 << 20
"""Bytes of output that are kept of a program, by default."""

_THERE: Final = 'cd -- "$1" || exit; shift; exec "$@"'

# What a program needs of the caller's environment. Everything else, and so every secret in it, stays outside.
_INHERITED: Final = ("PATH", "LANG", "TERM")


class Programs:
    """Runs programs in the workspace of one session. A context manager; closing it removes their home.

    Attributes:
        session: whose workspace it is.
        workspace: where programs find it, an absolute path.
        confinement: the level that is in force, and why it is no stronger.
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
        """Look whether programs can be run, and how confined.

        Args:
            session: the agent's, or the person's; nothing but its workspace and its id is used.
            clock: the engine's, whose time programs are told.
            confine: ``auto``, ``off``, ``guard`` or ``jail``.
            at: where a jail shows the workspace.
            beside: absolute paths of empty directories that a jail has besides, for as long as the home lives.
            directory: where the home is made; among temporary files by default.

        Raises:
            CapabilityMissing: the workspace is no directory (``lazy``), or the level cannot be had here.
            InvalidInput: there is no such level.
        """
        if session.workspace_path is None:
            raise CapabilityMissing(
                f"No program can run in {session.id}: its workspace is lazy.",
                why="A lazy workspace holds only what was written; a program needs all files in a directory.",
                fix="Start the session with a clone or a copy.",
            )
        self.session = session
        self.confinement: Confinement = confinement(confine)
        jailed = self.confinement.level == "jail"
        self.workspace = at if jailed else os.path.realpath(session.workspace_path)
        self._clock = clock
        self._root = Path(os.path.realpath(tempfile.mkdtemp(prefix="gittrix-home-", dir=directory)))
        self._home = self._root / "home"
        places = [(self._root / f"beside-{number}", path) for number, path in enumerate(beside)]
        try:
            for directory in (self._home, *(directory for directory, _ in places)):
                directory.mkdir()
            self._place = Place(
                workspace=Path(session.workspace_path),
                home=self._home,
                readable=toolchain(),
                at=at if jailed else None,
                beside=tuple(places),
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the home. Closing again does nothing; no program can run any more."""
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
        """Run a program to its end, with all that it starts.

        Args:
            argv: the program and its words; no shell is involved.
            stdin: what it reads.
            cwd: where it starts, from the workspace's root; or an absolute path as programs see it. Where that is no directory, the
                result is that of a shell which cannot go there.
            environment: more variables.
            timeout: seconds after which it is ended.
            most_output: bytes of each stream that are kept.
            stop: a descriptor; as soon as it can be read, the program's time is over.

        Raises:
            InvalidInput: the command is none, or the workspace is gone.
            GittrixError: as ``confine.run``.
        """
        return run(
            [*argv] if cwd == "." else ["/bin/sh", "-c", _THERE, "sh", cwd, *argv],
            self._place,
            self.confinement,
            environment=self.environment(environment),
            stdin=stdin,
            timeout=timeout,
            most_output=most_output,
            stop=stop,
        )

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables that a program gets: hermetic git, the session's clock and id, and ``more``; this Python is last in its PATH."""
        base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        base["PATH"] = os.pathsep.join([base.get("PATH", os.defpath), os.path.join(sys.prefix, "bin")])
        carried = self._clock.environment() if hasattr(self._clock, "environment") else {}
        return {**self.session.environment(hermetic_env(self._home, base=base)), **carried, **(more or {})}
