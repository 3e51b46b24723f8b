"""An agent that does again what was recorded, held against the record step by step. Must not know what becomes of the work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.evals.inputs.identity import Json
from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.agents import AgentFailed
from pytest_gittrix.evals.runs.launch import Finished
from pytest_gittrix.evals.runs.toolbox import OutOfTime, Toolbox
from pytest_gittrix.evals.runs.transcript import ExpectedTranscript, Step, data_of
from pytest_gittrix.git.tree import SUBMODULE, SYMLINK


@dataclass(frozen=True)
class RecordedSample:
    """A sample of another run, to be done again.

    Attributes:
        run: that run's directory.
        record: the sample's record.
        steps: its transcript.
    """

    run: Path
    record: Record
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, run: Path, id_: str, epoch: int) -> RecordedSample:
        """Find it.

        Raises:
            InvalidInput: the run has no such sample, or no transcript of it.
        """
        key = _keys(run).get((id_, epoch))
        store = RunStore(run)
        steps = store.lines("transcripts", key) if key is not None and store.has(key) else []
        if key is None or not steps:
            raise InvalidInput(
                f"{run} has no transcript of {id_!r}, epoch {epoch}.",
                why="A replay does what was recorded, and nothing else.",
                fix="Record it: gittrix eval run ... --record.",
            )
        return cls(run, store.record(key), tuple(steps))


@lru_cache(maxsize=4)
def _keys(run: Path) -> dict[tuple[str, int], str]:
    return RunStore.open(run).manifest().keys


@dataclass(frozen=True)
class ReplayAgent:
    """Does each recorded step again.

    Attributes:
        recorded: the sample.
    """

    recorded: RecordedSample

    @property
    def identity(self) -> Mapping[str, Json]:
        """That of the agent that was recorded, since it is that agent whose work is done."""
        found: Mapping[str, Json] = RunStore.open(self.recorded.run).manifest().core["setting"]["agent"]
        return found

    @property
    def readable(self) -> tuple[Path, ...]:
        """Nothing."""
        return ()

    def work(self, toolbox: Toolbox) -> int | None:
        """Do each step."""
        code: int | None = None
        for step in self.recorded.steps:
            match step["do"]:
                case "run":
                    toolbox.run(step["argv"], stdin=data_of(step["fed"]) if "fed" in step else b"")
                case "write":
                    toolbox.write(step["path"], data_of(step))
                case "delete":
                    toolbox.delete(step["path"])
                case "note":
                    toolbox.note(step["role"], step["text"])
                case "agent":
                    code = self._replay_program(toolbox, step)
        # A function that failed left nothing but what it had done before.
        if self.recorded.record.outcome == "agent_error":
            raise AgentFailed(self.recorded.record.reason, self.recorded.record.exit)
        if self.recorded.record.outcome == "timeout":
            raise OutOfTime
        return code

    def _replay_program(self, toolbox: Toolbox, step: Step) -> int | None:
        """A program that cannot be looked into: leave what it left, and end as it ended."""
        done: Finished = toolbox.run_as_one_step({"argv": step["argv"]}, lambda: self._restore_files(toolbox, step))
        return done.code

    def _restore_files(self, toolbox: Toolbox, step: Step) -> tuple[Finished, Step]:
        objects = RunStore(self.recorded.run).objects
        before, after = objects.tree(self.recorded.record.base), objects.tree(self.recorded.record.final)
        try:
            for path in sorted({*before, *after} - {path for path in before if before[path] == after.get(path)}, reverse=True):
                file = toolbox.path / path
                if path in before and os.path.lexists(file):
                    file.unlink()
            for path, entry in after.items():
                if before.get(path) != entry and entry.mode != SUBMODULE:
                    _put_file(toolbox.path / path, objects.read(entry.id)[1], entry.mode)
        except (OSError, GittrixError) as problem:
            raise AgentFailed(f"what was recorded cannot be put back: {problem}".splitlines()[0]) from problem
        told: dict[str, Any] = {name: step[name] for name in ("exit", "signal", "output", "stdout", "stderr", "timed_out", "truncated")}
        stdout, stderr = (str(step[name]).encode(errors="replace") for name in ("stdout", "stderr"))
        return Finished(step["exit"], step["signal"], stdout, stderr, step["timed_out"], step["truncated"]), told


def _put_file(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == SYMLINK:
        os.symlink(data, os.fsencode(path))
        return
    path.write_bytes(data)
    path.chmod(mode & 0o777)


def expected_transcript(recorded: RecordedSample, *, lenient: bool) -> ExpectedTranscript:
    """What the actions of a replay are held against."""
    return ExpectedTranscript(recorded.steps, "lenient" if lenient else "strict")
