"""Claude Code in a session: a file that is started in its place, and becomes it, confined.

Who starts it, the Claude Agent SDK or ``run_claude``, gives that file the variables of this process. It passes on none of them but the
SDK's own marks. The model's key is read there and goes to the gateway alone.
"""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from pytest_gittrix.confine.command_line import Confinement, wrapped
from pytest_gittrix.confine.filesystem_layout import HOME, Place
from pytest_gittrix.confine.network import PLACEHOLDER, Reachable
from pytest_gittrix.errors import Advice, CapabilityMissing, GittrixError
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import ProcessTree
from pytest_gittrix.os_level.safe_dir import SafeDir

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint
    from pytest_gittrix.engine.agents.agent_session import AgentSession
    from pytest_gittrix.engine.agents.programs import Programs

_VARIABLES: Final = {
    "IS_SANDBOX": "1",  # root is refused elsewhere
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
_OF_THE_SDK: Final = (
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_AGENT_SDK_VERSION",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
    "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING",
)
_START: Final = "import sys; sys.path[:0] = [sys.argv[1]]; from pytest_gittrix.integrations.claude_program import main; main()"
_CONFIGURATION: Final = ".claude/.claude.json"
_FIRST_CONFIGURATION: Final = {
    "hasCompletedOnboarding": True,
    "customApiKeyResponses": {"approved": [PLACEHOLDER[-20:]], "rejected": []},  # it names keys by their ends
}
_LOOK: Final = 1.0
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
        """Write the file for the SDK into an empty directory that no other user may change; return its path."""
        (directory / _PROGRAM).write_bytes(pickle.dumps(self))
        (directory / _STARTED).mkdir()
        script = directory / _SCRIPT
        root = Path(__file__).absolute().parents[2]
        command = shlex.join([sys.executable, "-I", "-c", _START, str(root), str(directory)])
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o700)
        return script


class StartedPrograms:
    """The programs that were started by the file in a directory, for a block: they are use of the session, and end with it."""

    def __init__(self, directory: Path, programs: Programs) -> None:
        from pytest_gittrix.engine.agents.programs import attend  # the file that becomes the program does without

        self._directory = directory
        self._attendance, self._session_end = attend(programs, self)
        self._left = threading.Event()
        threading.Thread(target=self._watch, name="gittrix-claude", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self.end("", 0)

    def end(self, reason: str, grace: float) -> None:  # noqa: ARG002  (how they ended is not asked)
        """End those that run, with everything that they started."""
        for file in sorted((self._directory / _STARTED).iterdir()):
            pid, start_time = map(int, file.name.split("-"))
            ProcessTree(Owner.here(pid, start_time)).end(grace=grace)
        self._attendance.close()

    def _watch(self) -> None:
        from pytest_gittrix.engine.operations.in_use import GRACE

        while not self._left.wait(_LOOK):
            if (reason := self._session_end()) is not None:
                return self.end(reason, GRACE)
        return None


@dataclass(frozen=True)
class ConfinedClaude:
    """Claude Code as it is started in a session.

    Attributes:
        script: the file that is started in its place.
        programs: the session's programs, among which it is.
        configuration: the directory of its configuration and transcripts, as it sees that.
    """

    script: Path
    programs: Programs
    configuration: str


@contextmanager
def confined_claude(
    session: AgentSession,
    *,
    program: Path | str | None = None,
    confine: str | None = None,
    network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = ("model:anthropic",),
    limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
    readable: Iterable[Path | str] = (),
) -> Iterator[ConfinedClaude]:
    """Claude Code for a session, for a block; what of it runs at the end of the block, or of the session, is killed.

    Args:
        session: the agent's side of a session, as ``for_agent()`` gives it.
        program: its path; the one that the Claude Agent SDK brings by default, or else the one in ``PATH``.
        network: what it reaches; the model alone by default. The key is read from ``ANTHROPIC_API_KEY`` and is not given to the program.
        confine, limits, readable: as for ``AgentSession.programs``.

    Raises:
        CapabilityMissing: there is no such program, or nothing confines it here.
        InvalidInput: ``ANTHROPIC_API_KEY`` is not set, or as for ``AgentSession.programs``.
        SessionExpired: the session has ended.
    """
    path = _found(program)
    with ExitStack() as held:
        programs = held.enter_context(
            session.programs(confine=confine, network=network, limits=limits, at=None, readable=[path, *readable])
        )
        if programs.confinement.level == "off":
            raise CapabilityMissing(
                "Claude Code would not be confined.",
                why=f"It would have the model's key and all that this user may do. {programs.confinement.why}".strip(),
                fix=Advice("Use confine='auto' on a machine that has a jail or a guard.", "Use --confine auto."),
            )
        if isinstance(programs.confinement.network, Reachable):
            programs.confinement.network.keys()  # a missing one is refused here, and not by a program that was started
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="gittrix-claude-")))
        _configure(programs.home)
        configuration = f"{HOME if programs.confinement.level == 'jail' else programs.home}/.claude"
        variables = programs.environment({**_VARIABLES, "CLAUDE_CONFIG_DIR": configuration})
        script = ConfinedProgram(str(path), programs.place, programs.confinement, variables).write(directory)
        held.enter_context(StartedPrograms(directory, programs))
        yield ConfinedClaude(script, programs, configuration)


def run_claude(session: AgentSession, arguments: Sequence[str], **settings: Any) -> int:
    """Run Claude Code in a session to its end, on the standard streams of this process; gives its exit status.

    Args:
        session: the agent's side of a session, as ``for_agent()`` gives it.
        arguments: those of its command line.
        settings: as for ``confined_claude``.

    Raises:
        GittrixError: as ``confined_claude``.
    """
    with confined_claude(session, **settings) as claude, subprocess.Popen([claude.script, *arguments]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the program has heard it too, and decides
                continue


def _configure(home: Path) -> None:
    """Write a first configuration, unless there is one.

    A program without one asks its vendor's server whether it is there, which it does not reach, and then whether to use the key that it
    has, which is a placeholder.
    """
    with SafeDir.open(home) as below:  # what an earlier program left there may be a link to anywhere
        if not below.exists(_CONFIGURATION):
            below.write(_CONFIGURATION, json.dumps(_FIRST_CONFIGURATION).encode())


def _found(program: Path | str | None) -> Path:
    brought = find_spec("claude_agent_sdk") if program is None else None
    places = [Path(one, "_bundled", "claude") for one in (brought.submodule_search_locations or () if brought else ())]
    found = program or next((place for place in places if place.is_file()), None) or shutil.which("claude")
    if found is None or not Path(found).is_file():
        raise CapabilityMissing(
            f"There is no program {str(program or 'claude')!r}.",
            fix=Advice("Install the extra 'claude', which brings it, or give program=.", "Install the extra 'claude', which brings it."),
        )
    return Path(found).absolute()


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
