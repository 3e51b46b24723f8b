"""What an agent works with in a sample: its task, its files, and programs run for it; everything it does is written down.

It leads nowhere to durable. Must not know what becomes of the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.evals.inputs.identity import digest_bytes
from pytest_gittrix.evals.runs.launch import Finished
from pytest_gittrix.evals.runs.transcript import ExpectedTranscript, Step, begin, data_fields
from pytest_gittrix.os_level.process_tree import seconds

Launch = Callable[..., Finished]
"""Runs a program: ``argv``, and by name ``environment``, ``stdin``, ``timeout`` and ``most_output``."""


class OutOfTime(Exception):
    """The agent's time is up."""


class Toolbox:
    """Made anew for each sample, and handed to the agent.

    Args:
        session: as the agent holds it.
        task: what is to be done.
        seed: 64 hex digits that everything random is to be drawn from.
        case: id of the case.
        epoch: which repetition.
        gold: the case's own solution, if it has one; for the agent ``gold``.
        make_environment: makes the environment of programs, when there is one to run.
        launch: runs programs in the workspace.
        timeout: seconds that the agent has.
        most_output: bytes that are kept of one program's output.
        base: the commit it starts from.
        tree: gives the tree of the workspace, to be written down after each step.
        expected: a transcript that this one is held against.

    Attributes:
        steps: what was done, in order.
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
    ) -> None:
        self.session = session
        self.task = task
        self.seed = seed
        self.case = case
        self.epoch = epoch
        self.gold = gold
        self._make_environment = make_environment
        self.most_output = most_output
        self.steps: list[Step] = [begin(base, task)]
        self._launch = launch
        self._deadline = seconds() + timeout
        self._tree = tree
        self._expected = expected
        if expected is not None:
            expected.check_start(self.steps[0])

    @property
    def path(self) -> Path:
        """The workspace.

        Raises:
            CapabilityMissing: it is of a kind that has no files to work on.
        """
        return self._require_files()

    def _require_files(self) -> Path:
        path = self.session.workspace_path
        if path is None:
            raise CapabilityMissing(
                f"The case {self.case!r} has a workspace without files.",
                why="A program needs a directory to work in.",
                fix="Use read, write and delete, or another workspace than lazy.",
            )
        return path

    @cached_property
    def environment(self) -> dict[str, str]:
        """The variables of programs: hermetic, with the clock, the task's file and the seed."""
        return dict(self._make_environment())

    @property
    def time_left(self) -> float:
        """Seconds until the agent's time is up; not below 0."""
        return max(self._deadline - seconds(), 0.0)

    # Acting --------------------------------------------------------------------------------------------------------------------

    def run(self, argv: Sequence[str], *, stdin: bytes | str = b"", timeout: float | None = None) -> Finished:
        """Run a program in the workspace.

        Args:
            argv: program and words.
            stdin: what it can read.
            timeout: seconds; no more than the agent has left.

        Raises:
            OutOfTime: the agent's time is up.
            InvalidInput: a word is no text, or holds NUL.
            CapabilityMissing: the workspace has no files to work on.
            transcript.Mismatch: it is not what was recorded.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        step: Step = {"do": "run", "argv": _words(argv), "stdin": digest_bytes(data)}
        if data:
            step |= {"data": data_fields(data)}
        done: Finished = self._record_step(step, lambda: self.program(step["argv"], data, timeout))
        if done.timed_out and not self.time_left:
            raise OutOfTime
        return done

    def program(self, argv: Sequence[str], data: bytes, timeout: float | None) -> tuple[Finished, Step]:
        """Run a program without writing it down; gives how it ended, also as fields of a step. Raises as ``run``."""
        self._require_files()
        left = self.time_left
        if not left:
            raise OutOfTime
        given = left if timeout is None else min(timeout, left)
        done = self._launch(argv, environment=self.environment, stdin=data, timeout=given, most_output=self.most_output)
        return done, finished_fields(done)

    def read(self, path: str) -> bytes:
        """The bytes of a file; see ``AgentSession.read``."""
        return self.session.read(path)

    def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file; see ``AgentSession.write``, which also says what is raised."""
        raw = data.encode() if isinstance(data, str) else data
        self._record_step({"do": "write", "path": path, **data_fields(raw)}, _without_result(lambda: self.session.write(path, raw)))

    def delete(self, path: str) -> None:
        """Delete a file; see ``AgentSession.delete``, which also says what is raised."""
        self._record_step({"do": "delete", "path": path}, _without_result(lambda: self.session.delete(path)))

    def note(self, role: str, text: str) -> None:
        """Write down what was said, by ``user``, ``assistant`` or whoever; it changes nothing and is not held against anything."""
        self.steps.append({"do": "note", "role": role, "text": text[: self.most_output]})

    def run_as_one_step(self, step: Step, act: Callable[[], tuple[Any, Step]]) -> Any:
        """One action that stands for all an agent does: ``act`` gives what came of it, and fields to write down."""
        return self._record_step({"do": "agent", **step}, act)

    def finish(self) -> None:
        """See that nothing recorded is left. Raises ``transcript.Mismatch``."""
        if self._expected is not None:
            self._expected.check_end()

    def _record_step(self, step: Step, act: Callable[[], tuple[Any, Step]]) -> Any:
        if self._expected is not None:
            self._expected.check_action(step)
        value, found = act()
        step |= found
        step["tree"] = self._tree() if self._tree is not None else None
        step["step"] = sum(1 for one in self.steps if "step" in one) + 1
        self.steps.append(step)
        if self._expected is not None:
            self._expected.check_result(step)
        return value


Desk = Toolbox
"""The earlier name of ``Toolbox``."""


def _without_result(act: Callable[[], None]) -> Callable[[], tuple[None, Step]]:
    def acted() -> tuple[None, Step]:
        act()
        return None, {}

    return acted


def finished_fields(done: Finished) -> Step:
    """How a program ended, as fields of a step."""
    output = done.stdout + done.stderr
    return {
        "exit": done.code,
        "signal": done.signal,
        "output": digest_bytes(output),
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": done.stderr.decode(errors="replace"),
        "timed_out": done.timed_out,
        "truncated": done.truncated,
    }


def _words(argv: Sequence[str]) -> list[str]:
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in argv]
    if words and all(isinstance(word, str) and "\0" not in word for word in words):
        return words
    raise InvalidInput(f"{argv!r:.200} is no command.", why="A command is a program and its words.", fix="Give texts without NUL.")
