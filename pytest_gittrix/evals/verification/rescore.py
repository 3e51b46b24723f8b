"""The results of a run judged again, by checks that have changed, without running its agent again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.agent_values import digest_of_values
from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.executors import Factory, local
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.rescored_sample import why_not
from pytest_gittrix.evals.runs.run import Progress, Summary, run_suite

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A sample whose verdict has changed.

    Attributes:
        id: the id of the case.
        epoch: the number of the repetition.
        before: its outcome in the run.
        after: its outcome by the checks as they are now.
        reason: why it is not ``pass`` now.
    """

    id: str
    epoch: int
    before: str
    after: str
    reason: str

    def __str__(self) -> str:
        return f"{self.id} #{self.epoch}  {self.before} -> {self.after}{f'  {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class Rescoring:
    """The results of a run, judged again.

    Attributes:
        source: the run, which stays as it is.
        summary: the run with the new verdicts.
        changes: the samples whose outcome has changed.
    """

    source: RunStore
    summary: Summary
    changes: tuple[VerdictChange, ...]

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        changes = [
            {"id": one.id, "epoch": one.epoch, "before": one.before, "after": one.after, "reason": one.reason} for one in self.changes
        ]
        return {**self.summary.to_json(), "rescored": str(self.source.path), "changes": changes}


def rescore_run(
    run: str | os.PathLike[str],
    suite: Suite,
    options: Options,
    *,
    factory: Factory = local,
    watch: Callable[[Progress], object] = lambda _progress: None,
) -> Rescoring:
    """Judge the kept results of a run by the checks of a suite.

    Results that no check decided, such as a conflict, keep their outcomes. The run itself is not changed.

    Args:
        run: the directory of the run.
        suite: the suite with the checks as they are now.
        options: the options; ``out`` is the directory of the run with the new verdicts, ``only`` chooses cases. The agent, the seed and
            so on are those of the run; the level of confinement too, unless ``confine`` names one.
        factory: makes the executor.
        watch: called with the progress after each sample.

    Raises:
        InvalidInput: a result is not kept, or the agent worked on something else than the case has now; nothing is judged then.
        CapabilityMissing, AdapterUnavailable: as ``run.run_suite``.
    """
    source = RunStore.open(run)
    source.check_not_mixed()
    records = [record for record in source.records() if not options.only or any(fnmatchcase(record.id, one) for one in options.only)]
    _require_kept(source, suite, records)
    _require_variables(source)
    summary = run_suite(suite, replace(options, agent="", rescore=source.path), factory=factory, watch=watch)
    before = {(record.id, record.epoch): record for record in records}
    changes = tuple(
        VerdictChange(one.id, one.epoch, before[one.id, one.epoch].outcome, one.outcome, one.reason)
        for one in sorted(summary.records, key=lambda record: (record.id, record.epoch))
        if one.outcome != before[one.id, one.epoch].outcome
    )
    return Rescoring(source, summary, changes)


def _require_kept(run: RunStore, suite: Suite, records: Sequence[Record]) -> None:
    """Raise InvalidInput unless all results can be judged again."""
    if not records:
        raise InvalidInput(f"{run.path} has no sample to judge again.", fix="Give another run, or other patterns of ids.")
    cases = {case.id: case for case in suite.cases}
    bad = []
    for record in records:
        case = cases.get(record.id)
        why = "the suite has no such case" if case is None else why_not(run, record, case.work)
        if why:
            bad.append(f"{record.id} #{record.epoch}: {why}")
    if bad:
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise InvalidInput(
            f"{len(bad)} of {len(records)} results cannot be judged again: {'; '.join(bad[:_NAMED])}{more}.",
            why="A verdict on something else, or on nothing, would be stale.",
            fix="Run these cases again, or judge only the others.",
            opt_out="--filter chooses cases.",
        )


def _require_variables(run: RunStore) -> None:
    """Raise InvalidInput if checks would see other values of the variables that were passed on."""
    recorded = run.manifest().core["setting"].get("passed_values", {})
    now = digest_of_values([*recorded], os.environ)
    differing = [name for name in recorded if recorded[name] != now[name]]
    if differing:
        raise InvalidInput(
            f"{', '.join(differing)} had other values in the run {run.path}.",
            why="Variables that are passed on are seen by checks too.",
            fix="Set them as they were.",
        )


def default_out(run: Path) -> Path:
    """The directory of the run with the new verdicts, unless another one is given."""
    path = Path(os.path.abspath(run))
    return path.with_name(f"{path.name}-rescored")
