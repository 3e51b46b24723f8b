"""What a test has of its sample, and what a person is told where it did not pass. Must not know how samples are run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.evals.inputs.sample_record import Outcome, Record
from pytest_gittrix.evals.results.store import RunStore

_MOST_LINES: Final = 40
_MOST_FILES: Final = 8


class EvalSample:
    """The sample that a test node is about, done. The fixture ``gittrix_eval`` gives it.

    A test that reads ``outcome``, ``passed`` or ``record`` judges for itself; any other test fails where its sample did not pass.

    Args:
        store: the run.
        record: the sample's result.
        root: what paths are told from.

    Attributes:
        run: the run's directory.
        id: of the case.
        epoch: which repetition, from 0.
        key: of the record.
        is_judged: whether the test has looked at what came of it.
    """

    def __init__(self, store: RunStore, record: Record, root: Path) -> None:
        self._store = store
        self._record = record
        self._root = root
        self.run = store.path
        self.id = record.id
        self.epoch = record.epoch
        self.key = record.key
        self.is_judged = False

    @property
    def record(self) -> Record:
        """The result."""
        self.is_judged = True
        return self._record

    @property
    def outcome(self) -> Outcome:
        """``pass``, ``fail``, ``conflict``, ``refused``, ``agent_error`` or ``timeout``."""
        return self.record.outcome

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.record.outcome == "pass"

    @property
    def patch(self) -> bytes:
        """What the agent changed, as ``git apply`` takes it."""
        return self._store.part("patches", self.key)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        return self._store.lines("events", self.key)

    @property
    def transcript(self) -> list[dict[str, Any]]:
        """What the agent did, one mapping a step."""
        return self._store.lines("transcripts", self.key)

    def explain(self) -> str:
        """What came of it, for people: outcome, reason, output of what failed, where the patch is, and how to do it again."""
        record = self._record
        lines = [f"{self} ended in {record.outcome}" + (f": {record.reason}" if record.reason else "")]
        lines += [f"  check {check.kind} failed: {check.detail}".rstrip(": ") for check in record.checks if not check.ok]
        lines += [f"  in conflict: {path} ({kind})" for path, kind in sorted((record.conflict or {}).items())]
        if record.outcome in ("agent_error", "timeout"):
            lines += [line for step in self.transcript[-1:] for line in _output(step)]
        for step in self._store.lines("timing", self.key):
            lines += _output(step)
        place = os.path.relpath(self.run, self._root) if self.run.is_relative_to(self._root) else str(self.run)
        if record.files:
            more = len(record.files) - _MOST_FILES
            files = ", ".join(record.files[:_MOST_FILES]) + (f" and {more} more" if more > 0 else "")
            lines.append(f"patch:  {place}/patches/{record.key}.diff ({files})")
        words = [place, record.id, *(["--epoch", str(record.epoch)] if record.epoch else [])]
        lines += [f"{verb}:{' ' * (7 - len(verb))}{shlex.join(['gittrix', 'eval', verb, *words])}" for verb in ("show", "replay")]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.id} #{self.epoch}"

    def __repr__(self) -> str:
        return f"EvalSample({self.id!r}, epoch={self.epoch}, outcome={self._record.outcome!r})"


def _output(step: Mapping[str, Any]) -> list[str]:
    """What a program printed that went wrong."""
    if "stdout" not in step or (step.get("exit") == 0 and not step.get("timed_out")):
        return []
    name = f"check {step['check']}" if "check" in step else "agent"
    lines = []
    for stream in ("stdout", "stderr"):
        printed = str(step.get(stream, "")).rstrip().splitlines()
        left_out = len(printed) - _MOST_LINES
        if printed:
            lines.append(f"{name}, {stream}{f' (without the first {left_out} lines)' if left_out > 0 else ''}:")
            lines += [f"  {line}" for line in printed[-_MOST_LINES:]]
    return lines
