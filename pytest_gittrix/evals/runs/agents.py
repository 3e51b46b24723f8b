"""Agents of a run: a command, a Python function, the solution of the case, or none.

An agent is given as text, so that a job can go to another process or machine. Its identity is part of the run's manifest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from pytest_gittrix.confine.filesystem_layout import toolchain
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, did_you_mean
from pytest_gittrix.evals.agents.programs import UNCONFINED, is_file, programs_among, require_in_sight, words_of
from pytest_gittrix.evals.agents.reads import Reads, digest_of_file, installed
from pytest_gittrix.evals.agents.watching import loading, reads_so_far, recording
from pytest_gittrix.evals.inputs.agent_code import UNKNOWN, load, search_path
from pytest_gittrix.evals.inputs.identity import Json
from pytest_gittrix.evals.inputs.sample_record import Outcome
from pytest_gittrix.evals.runs.launch import succeeded
from pytest_gittrix.evals.runs.toolbox import Toolbox, finished_fields
from pytest_gittrix.evals.runs.transcript import Mismatch
from pytest_gittrix.extensions import Names, find
from pytest_gittrix.os_level.monotonic import OutOfTime

PYTHON: Final = "python:"
"""The prefix of a function's spec: ``python:module:name`` or ``python:./file.py:name``."""
GOLD, NOP = "gold", "nop"


class AgentFailed(Exception):
    """The agent failed; the message says how, on one line.

    Attributes:
        exit: its exit status; None if it has none.
        outcome: that of the sample.
        cure: what a confined program lacks, and the option that shows it; empty if that is not known.
    """

    def __init__(self, reason: str, exit: int | None = None, outcome: Outcome = "agent_error", *, cure: str = "") -> None:
        super().__init__(reason)
        self.exit = exit
        self.outcome: Outcome = outcome
        self.cure = cure


class Agent(Protocol):
    """An agent that works on cases."""

    @property
    def identity(self) -> Mapping[str, Json]:
        """The identity for the manifest: agents with equal identities are the same agent."""

    @property
    def readable(self) -> tuple[Path, ...]:
        """The files and directories outside the workspace that its program reads."""

    def work(self, toolbox: Toolbox) -> int | None:
        """Do the task.

        Args:
            toolbox: the task, the files and the programs of the sample.

        Returns:
            The exit status; None for an agent that is not a program.

        Raises:
            AgentFailed: the agent failed.
            OutOfTime: its time is up.
            AdapterUnavailable: the machine failed, not the agent.
        """


@dataclass(frozen=True)
class ProgramAgent:
    """A program. It gets the task on standard input and in the file that ``GITTRIX_TASK_FILE`` names, and runs in the workspace.

    Attributes:
        argv: the program and its arguments, files by their whole paths; see ``words_of``.
    """

    argv: tuple[str, ...]

    @classmethod
    def of(cls, line: str) -> ProgramAgent:
        """Split a command line, see ``words_of``. Raises InvalidInput if it cannot be split, or is empty."""
        return cls(words_of(line))

    @property
    def identity(self) -> Mapping[str, Json]:
        """The arguments, with names of files in place of their paths; the digests of files and programs; and what is installed."""
        files = {os.path.basename(argument): digest_of_file(argument) for argument in self.argv if is_file(argument)}
        return {
            "kind": "command",
            "argv": self.shown,
            "files": files,
            "programs": programs_among(self.argv),
            "installed": installed(),
        }

    @property
    def shown(self) -> list[str]:
        """The arguments with the names of files in place of their paths, so that they are the same on every machine."""
        return [os.path.basename(argument) if is_file(argument) else argument for argument in self.argv]

    @property
    def readable(self) -> tuple[Path, ...]:
        """The files among the arguments, and nothing next to them: an agent is often next to suites and runs, which it must not see."""
        shown = toolchain()
        files = {Path(argument) for argument in self.argv if is_file(argument)}
        return tuple(sorted(file for file in files if not any(file.is_relative_to(path) for path in shown)))

    def work(self, toolbox: Toolbox) -> int | None:
        """Run the program."""
        done: Finished = toolbox.run_as_one_step({"argv": self.shown}, lambda: self._run(toolbox))
        if done.timed_out:
            raise OutOfTime
        if done.code != 0:
            how = f"signal {done.signal}" if done.code is None else f"status {done.code}"
            how = how if done.limit is None else f"{how}, for it passed its limit of {done.limit}"
            text = (done.stdout + done.stderr).decode(errors="replace")
            raise AgentFailed(f"the agent ended with {how}", done.code, cure=toolbox.unseen(self.argv, text))
        return done.code

    def _run(self, toolbox: Toolbox) -> tuple[Finished, dict[str, Any]]:
        return toolbox.program(self.argv, toolbox.task.encode(errors="surrogatepass"), None)


@dataclass(frozen=True)
class AcpProgramAgent(ProgramAgent):
    """A program that speaks the Agent Client Protocol. It gets the task as one prompt, and its permissions are all granted."""

    @property
    def identity(self) -> Mapping[str, Json]:
        """That of the command, and the protocol."""
        return {**super().identity, "protocol": "acp"}

    def _run(self, toolbox: Toolbox) -> tuple[Finished, dict[str, Any]]:
        from pytest_gittrix.acp.client import run_prompt

        try:
            answer = run_prompt(toolbox.session, self.argv, toolbox.task, timeout=toolbox.time_left, programs=toolbox)
        except TimeoutError:
            raise OutOfTime from None
        except AdapterUnavailable as problem:
            toolbox.require_sandboxes()
            raise AgentFailed(problem.fact, cure=toolbox.unseen(self.argv, f"{problem.fact} {problem.why}")) from problem
        done = Finished(0 if answer.stop_reason == "end_turn" else 1, None, answer.text.encode(), answer.stop_reason.encode())
        return done, finished_fields(done)


@dataclass(frozen=True)
class CallableAgent:
    """A Python function of a ``Toolbox``. It is not stopped when its time is up: the next program that it runs raises.

    Attributes:
        spec: ``module:name`` or ``file.py:name``, the file absolute. A file may import the modules next to it.
    """

    spec: str

    @classmethod
    def of(cls, spec: str) -> CallableAgent:
        """Make the agent of a spec. Raises InvalidInput if there is no such function."""
        module, _, name = spec.rpartition(":")
        agent = cls(f"{os.path.abspath(module)}:{name}" if module.endswith(".py") else spec)
        agent.function()
        return agent

    def function(self) -> Callable[[Toolbox], object]:
        """Load the function; what its module reads then is recorded. Raises InvalidInput if there is none."""
        module, _, name = self.spec.rpartition(":")
        with recording(self.spec):
            found: Callable[[Toolbox], object] | None = getattr(self._module(), name, None) if module and name else None
        if found is None or not callable(found):
            raise InvalidInput(
                f"{self.spec!r} is no function.", why="It is called with a Toolbox for each sample.", fix="Give python:module:name."
            )
        return found

    def _module(self) -> ModuleType:
        found: list[ModuleType] = []
        with loading(lambda: [one.__name__ for one in found]):
            found.append(load(self.spec.rpartition(":")[0], adjacent=True))
        return found[0]

    @property
    def source(self) -> str:
        """The path of the file that the function is in; empty if it has none."""
        with recording(self.spec):
            file = self._module().__file__
        return os.path.abspath(file) if file else ""

    @property
    def identity(self) -> Mapping[str, Json]:
        """The name of the function, and the digest of its source file. What it reads is recorded while it works, see ``reads``."""
        module, _, name = self.spec.rpartition(":")
        named = os.path.basename(module) if module.endswith(".py") else module
        return {"kind": "callable", "name": f"{named}:{name}", "source": digest_of_file(self.source) if self.source else ""}

    @property
    def root(self) -> str:
        """The directory that what the function reads is named from: that of its file."""
        return os.path.dirname(self.source)

    @property
    def reads(self) -> Reads:
        """What the function, and what it uses, has read in this process so far."""
        return reads_so_far(self.spec, self.root)

    @property
    def readable(self) -> tuple[Path, ...]:
        """Nothing: the function runs in this process."""
        return ()

    def work(self, toolbox: Toolbox) -> int | None:
        """Call the function."""
        function = self.function()
        try:
            with recording(self.spec):
                function(toolbox)
        except (AdapterUnavailable, AgentFailed, KeyboardInterrupt, Mismatch, OutOfTime):
            raise
        except BaseException as problem:  # also SystemExit, which would end the run with a status of the agent's choice
            first = (str(problem).splitlines() or [""])[0]
            raise AgentFailed(f"the agent raised {type(problem).__name__}: {first}") from problem
        if not toolbox.time_left:
            raise OutOfTime
        return None


@dataclass(frozen=True)
class GoldAgent:
    """Applies the gold patch of each case, which shows that the suite can be passed."""

    @property
    def identity(self) -> Mapping[str, Json]:
        """The name of the agent."""
        return {"kind": GOLD}

    @property
    def readable(self) -> tuple[Path, ...]:
        """Nothing: the patch comes on standard input."""
        return ()

    def work(self, toolbox: Toolbox) -> int | None:
        """Apply the gold patch."""
        if toolbox.gold is None:
            raise AgentFailed("the case has no gold patch")
        # The index gets the names of new files, so that one which ignore rules leave out is part of the result.
        done = toolbox.run(["git", "apply", "--whitespace=nowarn", "--intent-to-add"], stdin=toolbox.gold.read_bytes())
        if not succeeded(done):
            raise AgentFailed("the gold patch does not apply")
        return None


@dataclass(frozen=True)
class NopAgent:
    """Does nothing, which shows that the suite cannot be passed without work."""

    @property
    def identity(self) -> Mapping[str, Json]:
        """The name of the agent."""
        return {"kind": NOP}

    @property
    def readable(self) -> tuple[Path, ...]:
        """Nothing."""
        return ()

    def work(self, toolbox: Toolbox) -> int | None:  # noqa: ARG002  (part of the protocol)
        """Do nothing."""
        return None


def agent_of(spec: str) -> Agent:
    """Make the agent of a spec: ``gold``, ``nop``, ``python:module:name``, ``acp:`` before a command, ``NAME:`` of a registered
    agent, or else a command.

    Raises:
        InvalidInput: there is no such function, or the command is empty.
    """
    if spec == GOLD:
        return GoldAgent()
    if spec == NOP:
        return NopAgent()
    name, colon, rest = spec.partition(":")
    # A command has no colon in its first word, unless that is the path of a program.
    if colon and name.isidentifier() and name in Names("agents"):
        agent: Agent = find("agents", name)(rest)
        return agent
    return ProgramAgent.of(spec)


def require_program(agent: Agent) -> None:
    """See that the program of an agent that is a command is found by samples, before each ends as an error. Raises InvalidInput if not."""
    program = agent.argv[0] if isinstance(agent, ProgramAgent) else "/"
    if "/" in program or shutil.which(program, path=search_path()) is not None:
        return
    raise InvalidInput(
        f"There is no program {program!r} on PATH.",
        why="Each sample would end as an error of the agent.",
        fix=f"{did_you_mean(program, (GOLD, NOP))}Give a command, {GOLD}, {NOP} or {PYTHON}module:function.",
    )


def identity_at(agent: Agent, level: str) -> dict[str, Json]:
    """The identity of an agent that works at a level of confinement, with what cannot be known of it there.

    Args:
        agent: the agent.
        level: the level that is really used.
    """
    found = dict(agent.identity)
    if level == "off" and isinstance(agent, ProgramAgent):
        found[UNKNOWN] = [UNCONFINED]
    return found


def require_seen(agent: Agent | str, level: str, readable: Iterable[Path]) -> None:
    """See that the program of an agent is where it is seen at a level of confinement.

    Args:
        agent: the agent, or its spec; there is none in a replay.
        level: the level that is really used.
        readable: what the agent may read beyond its workspace.

    Raises:
        InvalidInput: it is not; the message names the directory to give.
    """
    found = agent_of(agent) if isinstance(agent, str) and agent else agent
    if isinstance(found, ProgramAgent):
        require_in_sight(found.argv, level, (*found.readable, *readable))


def check_known(identity: Mapping[str, Json], option: str) -> None:
    """Refuse to take over results of an agent of which something cannot be known.

    Args:
        identity: the identity of the agent.
        option: the option of the user's command that trusts it, for the message.

    Raises:
        InvalidInput: something of the agent cannot be known.
    """
    if identity.get(UNKNOWN):
        raise InvalidInput(
            f"It cannot be seen whether the agent is still the same: {' '.join(identity[UNKNOWN])}",
            why="Results of an agent that has changed since would count for this one.",
            fix="Run all samples again, into a new directory; a program that is confined (guard or jail) can read only what it is given.",
            opt_out=f"{option} takes the agent to be the same",
        )


@contextmanager
def turn_of(agent: Agent, session: UserSession) -> Iterator[None]:
    """A block that is a turn of the session, where the agent gets a prompt. One whose time is up was cancelled, which interrupts it."""
    with session.turn() if isinstance(agent, AcpProgramAgent) else nullcontext():
        try:
            yield
        except OutOfTime:
            if isinstance(agent, AcpProgramAgent):
                session.interrupt()
            raise
