"""The program that the Claude Agent SDK starts in place of the agent's: it becomes the agent's program, confined.

The SDK takes one path for a program, and gives it this process's variables. The file at that path starts this module, which passes on none
of them but the SDK's own marks. The model's key is read here and goes to the gateway alone.
"""

from __future__ import annotations

import os
import pickle
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from pytest_gittrix.confine.command import Confinement, wrapped
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.started import end_tree_of
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.os_level.lock_owner import Owner

_OF_THE_SDK: Final = (
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_AGENT_SDK_VERSION",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
    "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING",
)
_START: Final = "import sys; sys.path[:0] = [sys.argv[1]]; from pytest_gittrix.integrations.claude_program import main; main()"
_PROGRAM, _STARTED, _SCRIPT = "program", "started", "claude"


@dataclass(frozen=True)
class ConfinedProgram:
    """How the agent's program is started.

    Attributes:
        path: the program.
        place: where it works.
        confinement: how it is confined.
        environment: all its variables but those of the network.
    """

    path: str
    place: Place
    confinement: Confinement
    environment: dict[str, str]

    def write(self, directory: Path) -> Path:
        """Write the file for the SDK into an empty directory that nobody else may change; gives its path."""
        (directory / _PROGRAM).write_bytes(pickle.dumps(self))
        (directory / _STARTED).mkdir()
        script = directory / _SCRIPT
        root = Path(__file__).absolute().parents[2]
        command = shlex.join([sys.executable, "-I", "-c", _START, str(root), str(directory)])
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o700)
        return script


@dataclass(frozen=True)
class StartedPrograms:
    """The programs that were started by the file in a directory."""

    directory: Path

    def kill(self) -> None:
        """End those that run, with everything that they started."""
        for file in sorted((self.directory / _STARTED).iterdir()):
            pid, start_time = map(int, file.name.split("-"))
            end_tree_of(replace(Owner.current(), pid=pid, start_time=start_time))


def main() -> NoReturn:
    """Become the program of the directory ``sys.argv[2]``, with the arguments behind that."""
    directory, arguments = Path(sys.argv[2]), sys.argv[3:]
    program: ConfinedProgram = pickle.loads((directory / _PROGRAM).read_bytes())
    marks = {name: os.environ[name] for name in _OF_THE_SDK if name in os.environ}
    try:
        launch = wrapped([program.path, *arguments], program.place, program.confinement, environment={**program.environment, **marks})
    except GittrixError as error:
        sys.exit(f"gittrix: {error}")
    me = Owner.current()
    (directory / _STARTED / f"{me.pid}-{me.start_time}").touch()
    os.chdir(launch.directory)
    os.execve(launch.argv[0], launch.argv, launch.environment)
