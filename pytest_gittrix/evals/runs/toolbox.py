"""The toolbox of an agent in a sample: its task, its files, and programs that run for it. Every action is recorded.

It gives no access to durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.evals.agents.programs import unseen
from pytest_gittrix.evals.agents.watching import not_recording, runs_program
from pytest_gittrix.evals.failures.machine import require_sandbox
from pytest_gittrix.evals.inputs.identity import digest_bytes
from pytest_gittrix.evals.runs.launch import ProgramLauncher
from pytest_gittrix.evals.runs.transcript import ExpectedTranscript, Step, begin, data_fields
from pytest_gittrix.os_level.monotonic import OutOfTime, real_seconds
from pytest_gittrix.os_level.proc import oom_kills

Launch = Callable[..., Finished]
"""Runs a program, given ``argv`` and by name ``environment``, ``stdin``, ``timeout`` and ``most_output``."""


class Toolbox:
    """What an agent gets; there is a new one for each sample.

    Args:
        session: the agent's side of the session.
        task: the task.
        seed: 64 hex digits that everything random is to be drawn from.
        case: the id of the case.
        epoch: the number of the repetition.
        gold: the case's gold patch, if it has one; only for the agent ``gold``.
        make_environment: makes the environment of programs; called before the first one.
        launch: runs programs in the workspace.
        timeout: the agent's time in seconds.
        most_output: the most bytes of a program's output that are recorded.
        base: the commit that the agent starts from.
        tree: returns the tree of the workspace, which is recorded after each step.
        expected: a transcript that the steps are compared with.
        model_url: the address of the sample's model for clients in this process; empty if it has none.

    Attributes:
        steps: the steps so far, in order.
    """

    def __init__(
        self,
        session: AgentSession,
        *,
        task: str,
        seed: str,
        case: str,
        epoch: int,
        gold: Path | None,
        make_environment: Callable[[], Mapping[str, str]],
        launch: Launch,
        timeout: float,
        most_output: int,
        base: str,
        tree: Callable[[], str] | None = None,
        expected: ExpectedTranscript | None = None,
        model_url: str = "",
    ) -> None:
        self.session = session
        self.model_url = model_url
        self._stayed: list[Running] = []
        self._kills = oom_kills()
        self.task = task
        self.seed = seed
        self.case = case
        self.epoch = epoch
        self.gold = gold
        self._make_environment = make_environment
        self.most_output = most_output
        self.steps: list[Step] = [begin(base, task)]
        self._launch = launch
        self._deadline = real_seconds() + timeout
        self._tree = tree
        self._expected = expected
        if expected is not None:
            expected.check_start(self.steps[0])

    @property
    def path(self) -> Path:
        """The directory of the workspace.

        Raises:
            CapabilityMissing: this kind of workspace has no directory.
        """
        return self._require_files()

    def _require_files(self) -> Path:
        path = self.session.workspace_path
        if path is None:
            raise CapabilityMissing(
                f"The case {self.case!r} has a workspace without files.",
                why="A program needs a directory to work in.",
                fix="Use read, write and delete, or another workspace than lazy and overlay.",
            )
        return path

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of programs: hermetic, with the clock, the task's file and the seed."""
        return dict(self._make_environment())

    @property
    def time_left(self) -> float:
        """The seconds until the agent's time is up; at least 0."""
        return max(self._deadline - real_seconds(), 0.0)

    # Acting --------------------------------------------------------------------------------------------------------------------

    def run(self, argv: Sequence[str], *, stdin: bytes | str = b"", timeout: float | None = None) -> Finished:
        """Run a program in the workspace.

        Args:
            argv: the program and its arguments.
            stdin: its standard input.
            timeout: seconds; at most those that the agent has left.

        Returns:
            How the program ended, and its output.

        Raises:
            OutOfTime: the agent's time is up.
            InvalidInput: an argument is not a text, or holds NUL.
            CapabilityMissing: the workspace has no directory.
            transcript.Mismatch: a replay differs from the transcript.
        """
        self._runs_program()
        data = stdin.encode() if isinstance(stdin, str) else stdin
        step: Step = {"do": "run", "argv": _arguments(argv), "stdin": digest_bytes(data)}
        if data:
            step |= {"fed": data_fields(data)}
        done: Finished = self._record_step(step, lambda: self.program(step["argv"], data, timeout))
        if done.timed_out and not self.time_left:
            raise OutOfTime
        return done

    def program(self, argv: Sequence[str], data: bytes, timeout: float | None) -> tuple[Finished, Step]:
        """Run a program without recording it; return how it ended, also as fields of a step. Raises as ``run`` does."""
        self._require_files()
        left = self.time_left
        if not left:
            raise OutOfTime
        given = left if timeout is None else min(timeout, left)
        done = self._launch(argv, environment=self.environment, stdin=data, timeout=given, most_output=self.most_output)
        return done, finished_fields(done)

    def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, **options: Any) -> Running:
        """Start a program that stays, without recording it, for at most the time that the agent has left; see ``Programs.start``."""
        if not self.time_left:
            raise OutOfTime
        self._runs_program()
        given = {**self.environment, **(environment or {})}
        running = self._started().start(argv, environment=given, timeout=self.time_left, **options)
        self._stayed.append(running)
        return running

    def require_sandboxes(self) -> None:
        """See that no sandbox of a program that stayed has died. Raises AdapterUnavailable if one has."""
        for running in self._stayed:
            done = running.poll()
            if done is not None:
                require_sandbox(done, self._started().confinement.level, self._kills)

    @property
    def network(self) -> list[str]:
        """What the gateways of the agent's programs decided, a line of JSON each; those programs have ended."""
        if not isinstance(self._launch, ProgramLauncher):
            return []
        ended = [done for done in (running.poll() for running in self._stayed) if done is not None]
        return [*self._launch.network, *(line for done in ended for line in done.network)]

    @property
    def workspace(self) -> str:
        """The directory of the workspace as programs see it."""
        return self._started().workspace

    def unseen(self, argv: Sequence[str], text: str) -> str:
        """What a program that failed speaks of and cannot see where it is confined; empty if there is nothing.

        Args:
            argv: the program and its arguments.
            text: what it printed.
        """
        launch = self._launch
        return unseen(argv, text, launch.confinement.level, launch.readable) if isinstance(launch, ProgramLauncher) else ""

    def _runs_program(self) -> None:
        if isinstance(self._launch, ProgramLauncher):
            runs_program(confined=self._launch.confinement.level != "off")

    def _started(self) -> ProgramLauncher:
        self._require_files()
        if not isinstance(self._launch, ProgramLauncher):
            raise CapabilityMissing("Nothing here starts programs that stay.", fix="Give the toolbox a ProgramLauncher.")
        return self._launch

    def read(self, path: str) -> bytes:
        """Read the bytes of a file; see ``AgentSession.read``."""
        with not_recording():
            return self.session.read(path)

    def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file. Raises as ``AgentSession.write`` does."""
        raw = data.encode() if isinstance(data, str) else data
        self._record_step({"do": "write", "path": path, **data_fields(raw)}, _without_result(lambda: self.session.write(path, raw)))

    def delete(self, path: str) -> None:
        """Delete a file. Raises as ``AgentSession.delete`` does."""
        self._record_step({"do": "delete", "path": path}, _without_result(lambda: self.session.delete(path)))

    def note(self, role: str, text: str) -> None:
        """Record a message of ``user``, ``assistant`` or another role. A replay does not compare notes."""
        self.steps.append({"do": "note", "role": role, "text": text[: self.most_output]})

    def run_as_one_step(self, step: Step, act: Callable[[], tuple[Any, Step]]) -> Any:
        """Record all work of an agent as one step; ``act`` does it, and returns its result and the fields to record."""
        return self._record_step({"do": "agent", **step}, act)

    def finish(self) -> None:
        """Check that no recorded step is left. Raises ``transcript.Mismatch``."""
        if self._expected is not None:
            self._expected.check_end()

    def _record_step(self, step: Step, act: Callable[[], tuple[Any, Step]]) -> Any:
        if self._expected is not None:
            self._expected.check_action(step)
        with not_recording():
            value, found = act()
            step |= found
            step["tree"] = self._tree() if self._tree is not None else None
        step["step"] = sum(1 for one in self.steps if "step" in one) + 1
        self.steps.append(step)
        if self._expected is not None:
            self._expected.check_result(step)
        return value


def _without_result(act: Callable[[], None]) -> Callable[[], tuple[None, Step]]:
    def acted() -> tuple[None, Step]:
        act()
        return None, {}

    return acted


def finished_fields(done: Finished) -> Step:
    """The end of a program as fields of a step."""
    output = done.stdout + done.stderr
    return {
        "exit": done.code,
        "signal": done.signal,
        "output": digest_bytes(output),
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": done.stderr.decode(errors="replace"),
        "timed_out": done.timed_out,
        "truncated": done.truncated,
        **({} if done.limit is None else {"limit": done.limit}),
    }


def _arguments(argv: Sequence[str]) -> list[str]:
    arguments = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in argv]
    if arguments and all(isinstance(one, str) and "\0" not in one for one in arguments):
        return arguments
    raise InvalidInput(f"{argv!r:.200} is no command.", why="A command is a program and its arguments.", fix="Give texts without NUL.")
