"""The sample as its test sees it, and the explanation of a sample that did not pass."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import first_few
from pytest_gittrix.evals.inputs.sample_record import Outcome, Record
from pytest_gittrix.evals.results.failure_output import failure_lines
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.safe_text import visible

_MOST_FILES: Final = 8


class EvalSample:
    """The finished sample of a test node, from the fixture ``gittrix_eval``.

    A test that reads ``outcome``, ``passed`` or ``record`` judges for itself; any other test fails if its sample did not pass.

    Args:
        store: the store of the run.
        record: the record of the sample.
        root: the directory that shown paths are relative to.

    Attributes:
        run: the directory of the run.
        id: the id of the case.
        epoch: the number of the repetition, from 0.
        key: the key of the record.
        is_judged: whether the test has looked at the outcome.
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
        """The record of the sample."""
        self.is_judged = True
        return self._record

    @property
    def outcome(self) -> Outcome:
        """``pass``, ``fail``, ``unjudgeable``, ``conflict``, ``refused``, ``agent_error``, ``limit`` or ``timeout``."""
        return self.record.outcome

    @property
    def passed(self) -> bool:
        """Whether the sample passed."""
        return self.record.outcome == "pass"

    @property
    def patch(self) -> bytes:
        """The agent's changes as a patch for ``git apply``."""
        return self._store.part("patches", self.key)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The event log of the sample."""
        return self._store.lines("events", self.key)

    @property
    def transcript(self) -> list[dict[str, Any]]:
        """The steps of the agent."""
        return self._store.lines("transcripts", self.key)

    def explain(self) -> str:
        """The result as text: outcome, reason, output of what failed, the path of the patch, and how to replay it."""
        record = self._record
        lines = [f"{self} ended in {record.outcome}" + (f": {record.reason}" if record.reason else "")]
        lines += [f"  check {check.kind} failed: {check.detail}".rstrip(": ") for check in record.checks if not check.ok]
        lines += [f"  in conflict: {path} ({kind})" for path, kind in sorted((record.conflict or {}).items())]
        lines += failure_lines(self._store, record)
        directory = os.path.relpath(self.run, self._root) if self.run.is_relative_to(self._root) else str(self.run)
        if record.files:
            lines.append(f"patch:  {directory}/patches/{record.key}.diff ({first_few(record.files, _MOST_FILES)})")
        arguments = [directory, record.id, *(["--epoch", str(record.epoch)] if record.epoch else [])]
        lines += [f"{verb}:{' ' * (7 - len(verb))}{shlex.join(['gittrix', 'eval', verb, *arguments])}" for verb in ("show", "replay")]
        return visible("\n".join(lines))

    def __str__(self) -> str:
        return f"{self.id} #{self.epoch}"

    def __repr__(self) -> str:
        return f"EvalSample({self.id!r}, epoch={self.epoch}, outcome={self._record.outcome!r})"
