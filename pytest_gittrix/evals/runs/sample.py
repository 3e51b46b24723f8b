"""One sample: a world, a session, the agent, the review, the promotion, the checks, and the record of it.

A sample runs at the suite's ``clock_start``, in its own directory. Its record is the same for the same sample; what differs each time
(times, the output of checks) is stored separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.engine.operations.review import Review, file_changes
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, BaselineConflict, DurableLocked, PathCollision, PromoteFailed, WriteRejected
from pytest_gittrix.evals.agents.watching import leave_out
from pytest_gittrix.evals.failures.own_harm import FILLED, DiskUse, locked_part, locked_whole
from pytest_gittrix.evals.failures.reasons import one_line, traceback_of
from pytest_gittrix.evals.inputs.case_repo import BRANCH, contents_of, durable_arguments, patch_contents
from pytest_gittrix.evals.inputs.identity import digest_bytes, session_id
from pytest_gittrix.evals.inputs.sample_record import CheckResult, Outcome, Record
from pytest_gittrix.evals.inputs.suite import Case
from pytest_gittrix.evals.judging.checks import ResultToCheck
from pytest_gittrix.evals.models.endings import confined_with, ending_of, kept_tape, serving
from pytest_gittrix.evals.models.plan import lists_models
from pytest_gittrix.evals.models.sample_model import ModelOfSample, SampleModel
from pytest_gittrix.evals.results.run_repository import new_objects, packs_of
from pytest_gittrix.evals.results.store import Artifacts, json_lines
from pytest_gittrix.evals.runs.agents import Agent, AgentFailed, CallableAgent, GoldAgent, turn_of
from pytest_gittrix.evals.runs.event_recorder import EventRecorder
from pytest_gittrix.evals.runs.launch import ProgramLauncher, program_environment
from pytest_gittrix.evals.runs.result_checks import ResultChecks, event_of
from pytest_gittrix.evals.runs.toolbox import Toolbox, finished_fields
from pytest_gittrix.evals.runs.transcript import ExpectedTranscript, Mismatch
from pytest_gittrix.evals.spending.prices import Prices, spent_by_gateway
from pytest_gittrix.git.patch import patch_bytes
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.repository import Repository, require_head
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.monotonic import OutOfTime, interrupt_after
from pytest_gittrix.testing.repos.history import Contents
from pytest_gittrix.testing.repos.templates import Templates
from pytest_gittrix.testing.world import World

_OTHER_HASHES: Final = "1"
# Errors of a promotion that are caused by the agent's changes, not by the machine.
_REFUSALS: Final = (PathCollision, PromoteFailed, WriteRejected)


@dataclass(frozen=True)
class SampleSpec:
    """A sample to be done.

    Attributes:
        case: the case.
        epoch: the number of the repetition, from 0.
        key: see ``identity.sample_key``.
        seed: 64 hex digits.
        agent: the agent.
        instant: the instant of the frozen clock.
        confinement: the confinement of the agent's programs.
        checking: that of the checks' programs.
        passed: the environment variables that are passed to the agent.
        path: the search path of programs.
        timeout: the agent's time in seconds.
        trees: whether to record the tree after each step.
        expected: the transcript that the agent's steps are compared with.
        model: the model of the agent; None if it is not reached through the run.
        prices: what models cost, for an agent that reaches its own by the gateway of its confinement.
        readable: what the agent's programs may read beyond their workspace.
        vary: whether the agent's programs see another seed of Python's hashes than usual, and another host name where that can be.
    """

    case: Case
    epoch: int
    key: str
    seed: str
    agent: Agent
    instant: datetime
    confinement: Confinement
    checking: Confinement
    passed: Mapping[str, str]
    path: str | None
    timeout: float
    trees: bool = False
    expected: ExpectedTranscript | None = None
    model: ModelOfSample | None = None
    prices: Prices | None = None
    vary: bool = False
    readable: tuple[Path, ...] = ()


@dataclass
class _Ending:
    """How the sample ends, as far as it is known."""

    outcome: Outcome = "fail"
    reason: str = ""
    exit: int | None = None
    conflict: dict[str, str] | None = None
    head: str = ""
    promoted: str = ""
    checks: list[CheckResult] = field(default_factory=list)
    model: dict[str, Any] | None = None
    tape: bytes = b""


class SampleRun:
    """Runs one sample.

    Args:
        spec: the sample to run.
        directory: an empty directory for it, which the caller removes.
        mark: the value that marks the sample's programs.
        templates: the prepared histories.
        cache: the directory of unpacked repositories.
    """

    def __init__(self, spec: SampleSpec, directory: Path, mark: str, *, templates: Templates, cache: Path) -> None:
        self._spec = spec
        self._case = spec.case
        self._directory = directory
        self._mark = mark
        self._templates = templates
        self._cache = cache
        self._recorder = EventRecorder(directory)
        self._ending = _Ending()
        self._toolbox: Toolbox | None = None
        self._packs: tuple[str, ...] = ()
        self._head = ""
        self._disk = DiskUse(directory)

    def do(self) -> tuple[Record, Artifacts]:
        """Run the sample. Errors that the agent did not cause are raised unchanged."""
        case, spec = self._case, self._spec
        ephemeral = LocalEphemeral(kind=case.workspace, history=case.history, project_settings=False)
        with self._recorder.timed("open"):
            world = World.open(
                self._directory / "world",
                **durable_arguments(case, self._cache),
                branch=BRANCH,
                workspace=ephemeral,
                clock_start=spec.instant,
                templates=self._templates,
                sweep_interval=None,
                separate_files=case.drift is not None,
                keep=True,
            )
        with world:
            self._packs = packs_of(self._repository(world))
            session = world.start(case.task, id=session_id(spec.seed))
            self._head = self._durable_head(world)
            self._recorder.follow(session)
            points.reached("eval:session-started")
            with self._recorder.timed("agent"):
                worked = self._work(world, session)
            try:
                with self._recorder.timed("review"), interrupt_after(self._limit, OutOfTime):
                    review = self._review_work(session)
                    patch = patch_bytes(file_changes(review.snapshot))
            except OutOfTime:
                return self._record_unreviewable(world, session, "timeout", f"the {self._limit:g} s of the review were up")
            except WriteRejected as refusal:
                return self._record_unreviewable(world, session, "refused", refusal.fact)
            except AdapterUnavailable:
                # Otherwise an agent that fails could be left out of every rate by locking its workspace.
                harm = self._harm(session)
                if not harm:
                    raise
                return self._record_unreviewable(world, session, "agent_error", harm)
            left_out = {"left_out": sorted(review.refused)} if review.refused else {}
            self._recorder.add("review.done", {"files": len(review.changes), "tree": review.tree, **left_out})
            if worked and self._allowed(review):
                with self._recorder.timed("promote"):
                    landed = self._promote_in_time(session, review)
                if landed:
                    with self._recorder.timed("check"):
                        self._check(world)
                    if self._ending.outcome == "fail":
                        self._tell_work_elsewhere(review)
            self._recorder.add("sample.done", {"outcome": self._ending.outcome, "reason": self._ending.reason})
            return self._record_of(world, session, review, patch)

    # The agent -----------------------------------------------------------------------------------------------------------------

    def _work(self, world: World, session: UserSession) -> bool:
        """Run the agent, with its model if it has one; return whether it finished its work."""
        directory = str(session.workspace_path or self._directory)
        places = {"workspace": directory, "sample": str(self._directory)}
        with serving(self._spec.model, session.id, places) as model:
            return self._work_with(model, world, session)

    def _work_with(self, model: SampleModel | None, world: World, session: UserSession) -> bool:
        self._drift(world, "after-start")
        spec, ending = self._spec, self._ending
        try:
            toolbox = self._toolbox = self._make_toolbox(world, session, model)
            self._disk.begin(session.workspace_path, self._directory / "home")
            leave_out(self._directory)
            try:
                with turn_of(spec.agent, session):
                    ending.exit = spec.agent.work(toolbox)
            finally:
                if isinstance(spec.agent, CallableAgent):
                    self._recorder.timing.append(spec.agent.reads.to_json())
            toolbox.finish()
        except AgentFailed as failed:
            ending.outcome, ending.reason, ending.exit = failed.outcome, self._line(str(failed)), failed.exit
            if failed.cure:
                self._recorder.timing.append({"agent": "program", "cure": failed.cure})
            if failed.__cause__ is not None:
                self._recorder.timing.append({"agent": "function", "traceback": traceback_of(failed.__cause__)})
        except Mismatch as mismatch:
            ending.outcome, ending.reason = "agent_error", self._line(f"the replay went another way: {mismatch}")
        except OutOfTime:
            ending.outcome, ending.reason = "timeout", f"the agent's {spec.timeout:g} s were up"
        if self._durable_head(world) != self._head:
            ending.outcome, ending.reason = "agent_error", "durable moved behind the run's back"
        if model is not None:
            self._end_by_model(model)
        elif self._toolbox is not None and lists_models(spec.confinement.network):
            ending.model = spent_by_gateway(spec.prices, self._toolbox.network).to_json()
        if harm := FILLED if self._disk.look() else locked_whole(session.workspace_path):
            ending.outcome, ending.reason = "agent_error", harm
        self._recorder.add("agent.done", {"exit": ending.exit, "outcome": "" if ending.outcome == "fail" else ending.outcome})
        points.reached("eval:agent-done")
        if ending.outcome == "fail":
            self._drift(world, "before-promote")
        return ending.outcome == "fail"

    def _end_by_model(self, model: SampleModel) -> None:
        """Keep what the agent used of its model, and what was said; and how the model has the sample end, if it does."""
        ending, spec = self._ending, self._spec
        ending.model, ending.tape = model.used.to_json(), kept_tape(spec.model, model)
        self._recorder.timing.append({"phase": "model", "ms": round(model.seconds * 1000, 3)})
        found = ending_of(model, failed=ending.outcome in ("agent_error", "timeout"), decided=ending.outcome != "fail")
        if found is not None:
            ending.outcome, ending.reason, ending.exit = found.outcome, self._line(found.reason), None
            if found.said:
                self._recorder.timing.append({"model": "tape", "said": found.said})

    def _harm(self, session: UserSession) -> str:
        """What the agent did to its sandbox that keeps its work from being reviewed; empty if it did nothing to it."""
        return FILLED if self._disk.is_filled else locked_part(session.workspace_path)

    def made_room(self) -> bool:
        """Remove what the agent filled the disk with, so that its record can be written; whether it had filled the disk."""
        return self._disk.made_room()

    def _make_toolbox(self, world: World, session: UserSession, model: SampleModel | None) -> Toolbox:
        spec, case = self._spec, self._case
        home = self._directory / "home"
        confined = confined_with(model, spec.confinement)
        launch = ProgramLauncher(
            session.workspace_path or self._directory, home, confined, (*spec.agent.readable, *spec.readable), spec.vary, model
        )

        def variables() -> Mapping[str, str]:
            file = home / ".task"
            home.mkdir(exist_ok=True)
            write_file(file, case.task.encode("utf-8", "surrogatepass"), mode=0o444)  # in place of a link that the agent left there
            about_sample = {
                "GITTRIX_CASE": case.id,
                "GITTRIX_EPOCH": str(spec.epoch),
                "GITTRIX_SEED": spec.seed,
                "GITTRIX_TASK_FILE": str(file),
                **(model.variables if model is not None and confined.level == "off" else {}),
            }
            return session.for_agent().environment(self._variables(world, home, about_sample))

        return Toolbox(
            session.for_agent(),
            task=case.task,
            seed=spec.seed,
            case=case.id,
            epoch=spec.epoch,
            gold=case.gold if isinstance(spec.agent, GoldAgent) else None,
            make_environment=variables,
            launch=launch,
            timeout=spec.timeout,
            model_url="" if model is None else model.url,
            most_output=case.output,
            base=session.history()[0].data["baseline"],
            tree=(lambda: self._review_work(session).tree) if spec.trees else None,
            expected=spec.expected,
        )

    def _variables(self, world: World, home: Path, about_sample: Mapping[str, str]) -> dict[str, str]:
        spec = self._spec
        sample = {**about_sample, "PYTHONHASHSEED": _OTHER_HASHES} if spec.vary else about_sample
        return program_environment(home, world.clock, path=spec.path, passed=spec.passed, sample=sample, mark=self._mark)

    def _drift(self, world: World, at: str) -> None:
        drift = self._case.drift
        if drift is None or drift.at != at:
            return
        if drift.files is not None:
            changes: Contents = contents_of(drift.files)
        else:
            assert drift.patch is not None
            changes = patch_contents(self._repository(world), world.durable.head(), drift.patch, self._directory)
        self._head = world.rival.commit(changes, worktree=True)
        self._recorder.add("durable.drifted", {"commit": self._head})

    # The result -------------------------------------------------------------------------------------------------------------------

    def _review_work(self, session: UserSession) -> Review:
        """Review the work without the directories that the case excludes."""
        return session.review().without_directories(self._case.review.exclude)

    def _allowed(self, review: Review) -> bool:
        denied = self._case.review.denied(review.changes)
        if denied:
            self._ending.outcome, self._ending.reason = "refused", f"{denied[0]} may not be touched"
        return not denied

    @property
    def _limit(self) -> float:
        """The seconds that a review, a promotion and each check may take."""
        return self._case.timeout_ms / 1000

    def _promote_in_time(self, session: UserSession, review: Review) -> bool:
        try:
            with interrupt_after(self._limit, OutOfTime):
                return self._promote(session, review)
        except OutOfTime:
            self._ending.outcome, self._ending.reason = "timeout", f"the {self._limit:g} s of the promotion were up"
            return False

    def _promote(self, session: UserSession, review: Review) -> bool:
        """Promote the work; return whether there is a result to check, which is durable itself if the agent changed nothing."""
        ending = self._ending
        ending.head = self._head
        if not review.changes:
            return True
        try:
            ending.promoted = session.promote(review, strategy="commit", on_overlap=self._case.on_overlap, allow_filtered=True).sha
        except BaselineConflict as conflict:
            ending.outcome, ending.reason = "conflict", self._line(f"durable changed {', '.join(conflict.conflicting_files)}")
            ending.conflict = {path: str(conflict.kinds.get(path, "path")) for path in conflict.conflicting_files}
            self._recorder.add("promote.refused", {"conflict": ending.conflict})
        except DurableLocked:
            raise
        except _REFUSALS as refusal:
            ending.outcome, ending.reason = "refused", self._line(refusal.fact)
        points.reached("eval:promoted")
        return bool(ending.promoted)

    def _check(self, world: World) -> None:
        ending = self._ending
        result = ResultToCheck(self._case, world.durable.path, self._repository(world), ending.head, ending.promoted or ending.head)
        checks = ResultChecks(self._case, self._directory, self._spec.checking, lambda home: self._variables(world, home, {}))
        for found, done in checks.run(result):
            ending.checks.append(found)
            self._recorder.add("check.done", event_of(found))
            if done is not None:
                self._recorder.timing.append({"check": found.kind, **finished_fields(done)})
        ending.outcome, ending.reason = checks.verdict(ending.checks)

    def _tell_work_elsewhere(self, review: Review) -> None:
        """Add to the reason of a failure what the agent did that was not promoted, such as a stash."""
        elsewhere = (*review.snapshot.withheld_lines, *review.beside)
        if elsewhere:
            self._ending.reason = self._line(f"{self._ending.reason}; not promoted: {'; '.join(elsewhere)}")

    # Records -------------------------------------------------------------------------------------------------------------------------

    def _record_unreviewable(self, world: World, session: UserSession, outcome: Outcome, reason: str) -> tuple[Record, Artifacts]:
        """The record of a sample whose workspace cannot be reviewed: it is too deep, too large, locked, or gone."""
        ending = self._ending
        if ending.outcome == "fail":
            ending.outcome, ending.reason = outcome, self._line(reason)
        self._recorder.add("sample.done", {"outcome": ending.outcome, "reason": ending.reason})
        log = self._recorder.events(world.gittrix.history(session.id), self._spec.instant)
        events = json_lines(log)
        base = session.history()[0].data["baseline"]
        record = replace(self._base_record(session), base=base, events=digest_bytes(events), event_count=len(log))
        transcript = self._toolbox.steps if self._toolbox is not None else []
        return record, Artifacts(events, self._recorder.timing, b"", transcript, self._packs, {}, {"base": base}, self._ending.tape)

    def _base_record(self, session: UserSession) -> Record:
        """The fields of the record that every sample has."""
        spec, case, ending = self._spec, self._case, self._ending
        return Record(
            key=spec.key,
            id=case.id,
            epoch=spec.epoch,
            seed=spec.seed,
            case=case.digest,
            session=session.id,
            outcome=ending.outcome,
            reason=ending.reason,
            exit=ending.exit,
            model=ending.model,
        )

    def _record_of(self, world: World, session: UserSession, review: Review, patch: bytes) -> tuple[Record, Artifacts]:
        ending = self._ending
        repository = self._repository(world)
        log = self._recorder.events(world.gittrix.history(session.id), self._spec.instant)
        events = json_lines(log)
        objects = dict(review.snapshot.objects)
        references = {"base": review.baseline, "final": review.tree}
        if ending.promoted:
            references["promoted"] = ending.promoted
        elif ending.head not in ("", review.baseline):  # what the checks saw is kept, so that it can be judged again
            references["head"] = ending.head
        objects |= new_objects(repository.objects.read, ending.promoted or ending.head or review.baseline, review.baseline)
        record = replace(
            self._base_record(session),
            base=review.baseline,
            final=review.tree,
            head=ending.head,
            promoted=ending.promoted,
            tree=repository.tree(ending.promoted) if ending.promoted else "",
            files=tuple(sorted(review.changes)),
            conflict=ending.conflict,
            checks=tuple(ending.checks),
            events=digest_bytes(events),
            event_count=len(log),
        )
        transcript = self._toolbox.steps if self._toolbox is not None else []
        return record, Artifacts(events, self._recorder.timing, patch, transcript, self._packs, objects, references, ending.tape)

    def _line(self, text: str) -> str:
        return one_line(text, self._directory)

    def _repository(self, world: World) -> Repository:
        durable: Any = world.gittrix.durable
        found: Repository = durable.repository
        return found

    def _durable_head(self, world: World) -> str:
        return require_head(self._repository(world), branch_ref(BRANCH))
