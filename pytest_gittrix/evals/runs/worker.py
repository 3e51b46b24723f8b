"""The worker: it does samples one at a time in this process, and saves the record of each before the next begins.

A job can be pickled and holds no open resource, so that it can go to any executor. Doing it twice has the same effect as doing it once.
"""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.evals.failures.machine import require_room
from pytest_gittrix.evals.inputs.agent_code import search_path
from pytest_gittrix.evals.inputs.identity import digest_bytes, sample_random_seed, session_id
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Outcome, Record
from pytest_gittrix.evals.inputs.suite import Case
from pytest_gittrix.evals.models.sample_model import ModelOfSample
from pytest_gittrix.evals.results.store import TRIED, Artifacts, RunStore
from pytest_gittrix.evals.results.tapes import tape_file
from pytest_gittrix.evals.runs.agents import Agent, NopAgent, agent_of
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.replay import RecordedSample, ReplayAgent, expected_transcript
from pytest_gittrix.evals.runs.rescored_sample import RescoredSample
from pytest_gittrix.evals.runs.sample import SampleRun, SampleSpec
from pytest_gittrix.evals.runs.work_dirs import MARK, WorkDir, make_work_dir
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.process_tree import ProcessTree
from pytest_gittrix.testing.repos.templates import Templates

_REASON: Final = 300
_UMASK: Final = 0o022


@dataclass(frozen=True)
class RunSetting:
    """What all jobs of a run have in common.

    Attributes:
        options: the options of the run: ``out`` is its directory, ``confine`` the level that is really used; no ``agent`` is a replay, or
            one that comes with each job.
        scratch: the directory of work directories.
        instant: the instant of the frozen clocks.
    """

    options: Options
    scratch: Path
    instant: datetime


@dataclass(frozen=True)
class Job:
    """One sample to be done.

    Attributes:
        setting: the setting of the run.
        case: the case.
        epoch: the number of the repetition, from 0.
        key: the key of its record.
        agent: an agent that cannot be given as text, instead of the setting's; such a job stays in this process.
    """

    setting: RunSetting
    case: Case
    epoch: int
    key: str
    agent: Agent | None = None


@dataclass(frozen=True)
class JobResult:
    """The result of a job.

    Attributes:
        key: the key of the record.
        id: the id of the case.
        epoch: the number of the repetition.
        outcome: the outcome of the sample.
        reason: why it is not ``pass``.
        ms: how long it took in milliseconds; 0 if there was a record already.
    """

    key: str
    id: str
    epoch: int
    outcome: Outcome
    reason: str
    ms: float


def execute(job: Job) -> JobResult:
    """Do a job and save its record, unless there is a record already.

    Raises:
        AdapterUnavailable: the record cannot be saved.
    """
    store = RunStore(job.setting.options.out)
    began = real_seconds()
    if store.has(job.key):
        found = store.record(job.key)
        return JobResult(job.key, found.id, found.epoch, found.outcome, found.reason, 0)
    tried: list[dict[str, str]] = []
    while True:
        record, artifacts, finish = _attempt(job)
        try:
            if _orphaned.is_set():
                # The agent was ended with this process, which is no result; so this thread waits for its end.
                threading.Event().wait()
            if record.outcome != RETRIED or len(tried) >= job.setting.options.retries:
                store.save(record, replace(artifacts, timing=[*artifacts.timing, *tried]))
                return JobResult(job.key, record.id, record.epoch, record.outcome, record.reason, (real_seconds() - began) * 1000)
        finally:
            finish()
        tried.append({TRIED: record.reason})


def record_failure(job: Job, reason: str) -> JobResult:
    """Save an ``infra_error`` record for a sample that could not be done at all, so that it stays visible."""
    store = RunStore(job.setting.options.out)
    record = _infra_error(job, reason)
    store.save(record, Artifacts())
    return JobResult(job.key, record.id, record.epoch, record.outcome, record.reason, 0)


def _attempt(job: Job) -> tuple[Record, Artifacts, Callable[[], None]]:
    try:
        state = _worker_state(job.setting.scratch, job.setting.options.out)
        with _pinned_umask():
            directory = state.work_dir.make_sample_dir()
            sample = _sample_of(job, directory, state)
            record, artifacts = sample.do()
            if record.outcome not in ("pass", RETRIED) and not sample.made_room():
                require_room(directory)
    except Exception as problem:  # noqa: BLE001  (the agent did not cause it, and the sample is not dropped)
        timing = {"traceback": "".join(traceback.format_exception(problem))}
        return _infra_error(job, _reason_of(problem)), Artifacts(timing=[timing]), _do_nothing
    return record, artifacts, state.work_dir.clear


def _sample_of(job: Job, directory: Path, state: _WorkerState) -> SampleRun | RescoredSample:
    """The sample of a job: run now, or judged again."""
    spec, rescore = _spec_of(job), job.setting.options.rescore
    if rescore is not None:
        return RescoredSample(spec, RunStore.open(rescore), directory, state.work_dir.mark, into=RunStore(job.setting.options.out))
    return SampleRun(spec, directory, state.work_dir.mark, templates=state.templates, cache=job.setting.scratch / "cases")


def _reason_of(problem: Exception) -> str:
    if isinstance(problem, GittrixError):
        return problem.fact[:_REASON]
    first = (str(problem).splitlines() or [""])[0]
    return f"{type(problem).__name__}: {first}"[:_REASON]


def _do_nothing() -> None:
    pass


@contextmanager
def _pinned_umask() -> Iterator[None]:
    """A block with the usual umask, since agents see file modes. Of several threads, the last one restores the earlier umask."""
    with _umasks_lock:
        _umasks.append(os.umask(_UMASK))
    try:
        yield
    finally:
        with _umasks_lock:
            before = _umasks.pop()
            if not _umasks:
                os.umask(before)


def _infra_error(job: Job, reason: str) -> Record:
    seed = sample_random_seed(job.setting.options.seed or 0, job.case.id, job.epoch)
    return Record(
        key=job.key,
        id=job.case.id,
        epoch=job.epoch,
        seed=seed,
        case=job.case.digest,
        session=session_id(seed),
        outcome=RETRIED,
        reason=reason,
        events=digest_bytes(b""),
    )


def _spec_of(job: Job) -> SampleSpec:
    options, case = job.setting.options, job.case
    recorded = RecordedSample.of(options.replay, case.id, job.epoch) if options.replay is not None else None
    agent = job.agent or (agent_of(options.agent) if options.agent else None)
    if agent is None:
        agent = NopAgent() if recorded is None else ReplayAgent(recorded)
    level = options.confine or "auto"
    return SampleSpec(
        case=case,
        epoch=job.epoch,
        key=job.key,
        seed=sample_random_seed(options.seed or 0, case.id, job.epoch),
        agent=agent,
        instant=job.setting.instant,
        confinement=confinement(level, options.network or "none", options.limits),
        checking=confinement(level, (level != "off" and case.check_network) or "none", options.limits),
        readable=options.readable,
        passed={name: os.environ[name] for name in options.passed if name in os.environ},
        path=search_path(),
        timeout=(case.timeout_ms if options.timeout_ms is None else options.timeout_ms) / 1000,
        trees=options.record or recorded is not None,
        vary=options.vary,
        model=_model_of(job),
        prices=options.prices,
        expected=None if recorded is None else expected_transcript(recorded, lenient=options.lenient),
    )


def _model_of(job: Job) -> ModelOfSample | None:
    options, case = job.setting.options, job.case
    plan = options.model
    if plan is None:
        return None
    tape = tape_file(plan.run, case.id, job.epoch) if plan.run is not None else None
    limits = options.model_limits.over(case.model_limits)
    return ModelOfSample(plan, limits, tape, f"{case.id} #{job.epoch}", job.setting.instant)


# This process ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WorkerState:
    """The work directory and the prepared histories of one thread."""

    work_dir: WorkDir
    templates: Templates


_umasks: list[int] = []
_umasks_lock = threading.Lock()
_orphaned = threading.Event()
_is_worker = threading.Event()
_worker_states: dict[tuple[int, int, str], _WorkerState] = {}


def _worker_state(scratch: Path, run: Path) -> _WorkerState:
    # By process, since a forked child does not own its parent's directory; by thread, since a directory is for one sample at a time.
    key = os.getpid(), threading.get_ident(), str(scratch)
    if key not in _worker_states:
        work_dir = make_work_dir(scratch, str(run))
        if _is_worker.is_set():
            # A worker ends without what Python does at the end of a process; so its temporary files go with its work directory.
            tempfile.tempdir = str(work_dir.path / "temporary")
            os.mkdir(tempfile.tempdir)
        _worker_states[key] = _WorkerState(work_dir, Templates(work_dir.path / "templates"))
        atexit.register(remove_work_dirs)
    return _worker_states[key]


def remove_work_dirs() -> None:
    """Remove the work directories of this process."""
    for key in [key for key in _worker_states if key[0] == os.getpid()]:
        _worker_states.pop(key).work_dir.release()


def begin_worker() -> None:
    """Make this process a worker: it ignores Ctrl-C, and when its parent dies it ends with all programs it started."""
    _is_worker.set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="gittrix-parent", daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import connection, parent_process

    parent = parent_process()
    if parent is None:
        return
    connection.wait([parent.sentinel])
    _orphaned.set()
    for state in [*_worker_states.values()]:
        ProcessTree(mark=state.work_dir.mark, variable=MARK).end()
    os._exit(1)
