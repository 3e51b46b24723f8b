"""The agent that replays a recorded sample; each of its steps is compared with the transcript."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.evals.inputs.identity import Json
from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.results.run_repository import ObjectStore
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.agents import AgentFailed
from pytest_gittrix.evals.runs.toolbox import Toolbox
from pytest_gittrix.evals.runs.transcript import ExpectedTranscript, Step, data_of
from pytest_gittrix.git.tree import SUBMODULE, SYMLINK, Entry
from pytest_gittrix.os_level.monotonic import OutOfTime


@dataclass(frozen=True)
class RecordedSample:
    """A recorded sample that is to be replayed.

    Attributes:
        run: the directory of its run.
        record: the record of the sample.
        steps: its transcript.
    """

    run: Path
    record: Record
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, run: Path, id_: str, epoch: int) -> RecordedSample:
        """Read a recorded sample.

        Args:
            run: the directory of the run.
            id_: the id of the case.
            epoch: the number of the repetition.

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
    """Repeats each recorded step.

    Attributes:
        recorded: the recorded sample.
    """

    recorded: RecordedSample

    @property
    def identity(self) -> Mapping[str, Json]:
        """The identity of the recorded agent, whose work is replayed."""
        found: Mapping[str, Json] = RunStore.open(self.recorded.run).manifest().core["setting"]["agent"]
        return found

    @property
    def readable(self) -> tuple[Path, ...]:
        """Nothing."""
        return ()

    def work(self, toolbox: Toolbox) -> int | None:
        """Repeat each step."""
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
        # A function that failed left only the steps before the failure.
        if self.recorded.record.outcome in ("agent_error", "limit"):
            raise AgentFailed(self.recorded.record.reason, self.recorded.record.exit, self.recorded.record.outcome)
        if self.recorded.record.outcome == "timeout":
            raise OutOfTime
        return code

    def _replay_program(self, toolbox: Toolbox, step: Step) -> int | None:
        """Restore the files that the agent's program left, and return its exit status."""
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
            changed = {path: entry for path, entry in after.items() if before.get(path) != entry}
            write_files(objects, changed, toolbox.path)
        except (OSError, GittrixError) as problem:
            raise AgentFailed(f"what was recorded cannot be put back: {problem}".splitlines()[0]) from problem
        names = ("exit", "signal", "output", "stdout", "stderr", "timed_out", "truncated", "limit")
        fields: dict[str, Any] = {name: step[name] for name in names if name in step}
        stdout, stderr = (str(step[name]).encode(errors="replace") for name in ("stdout", "stderr"))
        return Finished(step["exit"], step["signal"], stdout, stderr, step["timed_out"], step["truncated"], limit=step.get("limit")), fields


def write_files(objects: ObjectStore, files: Mapping[str, Entry], directory: Path) -> None:
    """Write files of a run into a directory; submodules are skipped.

    Args:
        objects: the run's objects.
        files: the entries by path; where a link is written there must be nothing.
        directory: the root of the paths.

    Raises:
        AdapterUnavailable: an object is missing.
        OSError: a file cannot be written.
    """
    for path, entry in files.items():
        if entry.mode == SUBMODULE:
            continue
        file = directory / path
        data = objects.read(entry.id)[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == SYMLINK:
            os.symlink(data, os.fsencode(file))
        else:
            file.write_bytes(data)
            file.chmod(entry.mode & 0o777)


def expected_transcript(recorded: RecordedSample, *, lenient: bool) -> ExpectedTranscript:
    """The transcript that the steps of a replay are compared with."""
    return ExpectedTranscript(recorded.steps, "lenient" if lenient else "strict")
