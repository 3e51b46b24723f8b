"""A kept result that is judged again: the checks of the case as it is now, on what the checks of its run saw. No agent runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.agents.reads import READ
from pytest_gittrix.evals.inputs.case_repo import ANY_OBJECT, BRANCH
from pytest_gittrix.evals.inputs.identity import digest_bytes
from pytest_gittrix.evals.inputs.sample_record import CheckResult, Record
from pytest_gittrix.evals.judging.checks import ResultToCheck
from pytest_gittrix.evals.results.reuse import copy_objects
from pytest_gittrix.evals.results.store import RESCORED, TAPES, Artifacts, RunStore, json_lines
from pytest_gittrix.evals.runs.event_recorder import EventRecorder
from pytest_gittrix.evals.runs.launch import program_environment
from pytest_gittrix.evals.runs.result_checks import ResultChecks, event_of
from pytest_gittrix.evals.runs.sample import SampleSpec
from pytest_gittrix.evals.runs.toolbox import finished_fields
from pytest_gittrix.git.environment import run_git
from pytest_gittrix.git.repository import Repository

JUDGED: Final = ("pass", "fail", "unjudgeable")
"""The outcomes that checks decide; every other verdict stays as it is."""

_ELSEWHERE: Final = "; not promoted: "
_OF_CHECKS: Final = ("check.done", "sample.done")


def why_not(run: RunStore, record: Record, work: str) -> str:
    """Why a kept result cannot be judged again; empty if it can.

    Args:
        run: the run that has it.
        record: its record.
        work: the digest of what the agent would work on now, see ``Case.work``.
    """
    known = run.manifest().work.get(record.id)
    if known is None:
        return "its run is of an earlier version, which did not write down what the agent worked on"
    if known != work:
        return "the agent worked on something else: the task, the repository, the drift or a setting of the case has changed"
    if record.outcome not in JUDGED:
        return ""
    commit = record.promoted or record.head
    return "" if commit and run.objects.has(commit) else "its result is not kept in the run"


class RescoredSample:
    """A sample of another run, judged again.

    Args:
        spec: the sample.
        run: the run that has its result.
        directory: an empty directory, where the checks work.
        mark: the value that marks the sample's programs.
        into: the run that the sample will be saved in.
    """

    def __init__(self, spec: SampleSpec, run: RunStore, directory: Path, mark: str, *, into: RunStore) -> None:
        self._spec = spec
        self._run = run
        self._directory = directory
        self._mark = mark
        self._into = into
        self._recorder = EventRecorder(directory)

    def do(self) -> tuple[Record, Artifacts]:
        """Judge the result. Raises InvalidInput if it cannot be judged again; errors of the machine are raised unchanged."""
        spec, run = self._spec, self._run
        before = run.record(run.manifest().keys[spec.case.id, spec.epoch])
        refusal = why_not(run, before, spec.case.work)
        if refusal:
            raise InvalidInput(f"{before.id} #{before.epoch} cannot be judged again: {refusal}.", fix="Run the case again.")
        found = self._checked(before) if before.outcome in JUDGED else None
        record = replace(before, key=spec.key, case=spec.case.digest)
        log = run.lines("events", before.key)
        if found is not None:
            checks, outcome, reason = found
            log = _events(log, checks, {"outcome": outcome, "reason": reason})
            record = replace(record, outcome=outcome, reason=reason, checks=tuple(checks))
        events = json_lines(log)
        copy_objects(self._into, run, [before])
        return replace(record, events=digest_bytes(events), event_count=len(log)), Artifacts(
            events,
            [*_timing(run, before), *self._recorder.timing],
            run.part("patches", before.key),
            run.lines("transcripts", before.key),
            tape=run.part(TAPES, before.key),
        )

    def made_room(self) -> bool:
        """Whether an agent filled the disk: never, since none ran."""
        return False

    def _checked(self, before: Record) -> tuple[list[CheckResult], Any, str]:
        """What the checks found, and the outcome and the reason that follow."""
        spec = self._spec
        clock = FrozenClock(spec.instant)
        checkout = self._directory / "durable"
        self._check_out(before.promoted or before.head, checkout)

        def environment(home: Path) -> Mapping[str, str]:
            return program_environment(home, clock, path=spec.path, passed=spec.passed, sample={}, mark=self._mark)

        checks = ResultChecks(spec.case, self._directory, spec.confinement, environment)
        found = []
        with Repository.open(checkout) as repository, self._recorder.timed("check"):
            result = ResultToCheck(spec.case, checkout, repository, before.head, before.promoted or before.head)
            for one, done in checks.run(result):
                found.append(one)
                if done is not None:
                    self._recorder.timing.append({"check": one.kind, **finished_fields(done)})
        outcome, reason = checks.verdict(found)
        if outcome == "fail" and _ELSEWHERE in before.reason:
            reason += before.reason[before.reason.index(_ELSEWHERE) :]
        return found, outcome, reason

    def _check_out(self, commit: str, to: Path) -> None:
        run_git(["init", "-q", f"--initial-branch={BRANCH}", str(to)])
        fetch = ["-C", str(to), "fetch", "-q", "--no-tags", "--update-head-ok", f"--upload-pack={ANY_OBJECT}"]
        run_git([*fetch, "--", str(self._run.objects.path), f"{commit}:refs/heads/{BRANCH}"])
        run_git(["-C", str(to), "reset", "-q", "--hard"])


def _events(log: Sequence[Mapping[str, Any]], found: Sequence[CheckResult], ending: Mapping[str, str]) -> list[dict[str, Any]]:
    """The event log of a sample with the new results of its checks in the place of the old ones."""
    at = next(number for number, line in enumerate(log) if line["kind"] in _OF_CHECKS)
    tick = log[at]["tick"]
    checks = [{"actor": "eval", "data": event_of(one), "kind": "check.done", "tick": tick} for one in found]
    others = [{**line, "data": {**ending}} if line["kind"] == "sample.done" else dict(line) for line in log if line["kind"] != "check.done"]
    return [{**line, "seq": seq} for seq, line in enumerate([*others[:at], *checks, *others[at:]])]


def _timing(run: RunStore, before: Record) -> list[dict[str, Any]]:
    """What is known of how the sample was run, without what earlier checks printed; and the verdict before.

    What the agent read stays in its run: judging again asks no question about the agent as it is now.
    """
    verdict = {"outcome": before.outcome, "reason": before.reason, "checks": [asdict(check) for check in before.checks]}
    kept = [
        line for line in run.lines("timing", before.key) if not {"check", READ, RESCORED} & line.keys() and line.get("phase") != "check"
    ]
    return [*kept, {RESCORED: str(run.path), "before": verdict}]
