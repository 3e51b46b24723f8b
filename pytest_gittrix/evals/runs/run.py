"""A run: what is to be done, what is there already, and who does the rest.

``start`` makes or finds the run's directory and says what is left; ``Run.go`` has it done. A run can be killed at any moment and gone on
with: what has a record is done. Must not know how a sample is done, nor how progress is shown.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.confine.choose import confinement
from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.evals.inputs.identity import Json
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record, digest, tally
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.manifest import Manifest, core_of, host
from pytest_gittrix.evals.results.reuse import ReuseDecision, reuse
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.agents import Agent, agent_of
from pytest_gittrix.evals.runs.executors import Factory, local
from pytest_gittrix.evals.runs.shards import Shard
from pytest_gittrix.evals.runs.work_dirs import owners, scratch_root, sweep
from pytest_gittrix.evals.runs.worker import Job, JobResult, Setting, execute, record_failure, remove_work_dirs
from pytest_gittrix.os_level.process_tree import KILL_WAIT, pause, process, seconds, signal_process

_NAP = 0.005
_AHEAD = 2
"""Jobs that are handed out for each worker: the next one waits there, and a broken executor loses few."""


@dataclass(frozen=True)
class Options:
    """How a suite is run.

    Attributes:
        agent: its spec, see ``agents.agent_of``; empty for a replay.
        out: the run's directory.
        seed: everything random is drawn from it; 0 by default, and that of the run that is replayed.
        epochs: how often each case is run; once by default, and as often as in the run that is replayed.
        workers: how many samples at a time.
        resume: whether to go on with a run that is there.
        reuse: directory of a run whose samples are taken over where their inputs are the same.
        only: shell patterns of ids; all by default.
        shard: a part of the samples.
        timeout_ms: instead of the cases' own.
        confine: level of confinement; the suite's by default, and that of the run that is replayed.
        passed: names of variables that the agent gets from outside.
        record: whether the tree after each step is written down, for a strict replay.
        replay: directory of a run whose transcripts are replayed.
        lenient: whether a replay holds only the actions against them.
        retries: how often what ended in ``infra_error`` is done again.
        scratch: where samples work; below the system's directory for temporary files by default.
    """

    agent: str
    out: Path
    seed: int | None = None
    epochs: int | None = None
    workers: int = 1
    resume: bool = False
    reuse: Path | None = None
    only: tuple[str, ...] = ()
    shard: Shard | None = None
    timeout_ms: int | None = None
    confine: str | None = None
    passed: tuple[str, ...] = ()
    record: bool = False
    replay: Path | None = None
    lenient: bool = False
    retries: int = 1
    scratch: Path | None = None


@dataclass(frozen=True)
class Progress:
    """What a run tells while it goes on.

    Attributes:
        done: samples that have a record.
        total: samples that will have one.
        last: the one that was just done; None at first.
    """

    done: int
    total: int
    last: JobResult | None = None


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        store: where it is.
        manifest: what it was made from.
        records: of its samples, by id and epoch.
        reused: what was taken over from another run, and why the rest was not; by id and epoch.
        already: how many were there when it was gone on with.
        swept: directories of killed runs that were removed at the start.
    """

    store: RunStore
    manifest: Manifest
    records: tuple[Record, ...]
    reused: Mapping[tuple[str, int], ReuseDecision] = field(default_factory=dict)
    already: int = 0
    swept: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Records by outcome."""
        return tally(self.records)

    @property
    def digest(self) -> str:
        """Of the results."""
        return digest(self.records)

    def to_json(self) -> dict[str, Json]:
        """The same for programs."""
        return {
            "run": str(self.store.path),
            "manifest": self.manifest.digest,
            "digest": self.digest,
            "samples": len(self.records),
            "outcomes": self.counts,
            "already": self.already,
            "reused": sum(1 for choice in self.reused.values() if choice.reused),
            "confine": self.manifest.core["setting"]["confine"],
        }


Watch = Callable[[Progress], object]


def run_suite(
    suite: Suite, options: Options, *, factory: Factory = local, agent: Agent | None = None, watch: Watch = lambda _progress: None
) -> Summary:
    """Run a suite.

    Args:
        suite: what.
        options: how.
        factory: makes the executor that does the samples; see ``executors``.
        agent: one that cannot be told as text, instead of ``options.agent``; then samples are done in this process.
        watch: told of each sample that was done.

    Returns:
        How it ended; every sample that was chosen has a record.

    Raises:
        InvalidInput: an option is not allowed; a run is there and is not to be gone on with, or it was made from something else.
        CapabilityMissing: the level of confinement that was asked for is not available.
        AdapterUnavailable: the disk refused, or another process writes to the run.
        KeyboardInterrupt: Ctrl-C; what was done is kept, nothing is left running.
    """
    options = settled(options)
    level = confinement(options.confine or suite.confine)
    root = scratch_root(options.scratch)
    swept = sweep(root)
    manifest = _manifest(suite, options, level.level, agent)
    with RunStore(Path(options.out).absolute()).locked():
        store = _store(options, manifest)
        keys = manifest.keys
        chosen = _chosen(keys, options)
        already = _already(store, [keys[sample] for sample in chosen])
        missing = [sample for sample in chosen if keys[sample] not in already]
        reused = reuse(store, options.reuse, {sample: keys[sample] for sample in missing}) if options.reuse is not None else {}
        setting = Setting(
            store=store.path,
            scratch=root,
            agent=options.agent,
            seed=options.seed or 0,
            instant=suite.epoch,
            confine=level.level,
            passed=options.passed,
            timeout_ms=options.timeout_ms,
            record=options.record,
            replay=options.replay.absolute() if options.replay is not None else None,
            lenient=options.lenient,
            retries=options.retries,
        )
        left = [sample for sample in missing if not (sample in reused and reused[sample].reused)]
        jobs = [Job(setting, suite.case(id_), epoch, keys[id_, epoch], agent) for id_, epoch in left]
        here = local if agent is not None else factory
        _Dispatch(jobs, here, 1 if agent is not None else options.workers, len(chosen), watch).go()
        records = tuple(store.record(keys[sample]) for sample in chosen)
        return Summary(store, store.manifest(), records, reused, len(already), swept.removed)


run = run_suite
"""Its name where the documentation once taught it, ``pytest_gittrix.evals.run``."""


def settled(options: Options) -> Options:
    """Options with their defaults: a replay is done as the run was that it replays, but for what was told.

    Raises:
        InvalidInput: the run that is to be replayed is none, or there is to be no epoch, no worker, or less than no retry.
    """
    found = replace(options, seed=options.seed or 0, epochs=1 if options.epochs is None else options.epochs)
    if options.replay is not None:
        core = RunStore.open(options.replay).manifest().core
        setting = core["setting"]
        found = replace(
            options,
            seed=setting["seed"] if options.seed is None else options.seed,
            epochs=core["epochs"] if options.epochs is None else options.epochs,
            timeout_ms=setting["timeout_ms"] if options.timeout_ms is None else options.timeout_ms,
            confine=setting["confine"] if options.confine is None else options.confine,
            passed=options.passed or tuple(setting["passed"]),
        )
    if (found.epochs or 0) < 1 or found.workers < 1 or found.retries < 0:
        raise InvalidInput("A run has at least one epoch and one worker, and no fewer than no retries.", fix="Give --epochs and -n from 1.")
    return found


def _manifest(suite: Suite, options: Options, level: str, agent: Agent | None) -> Manifest:
    core = core_of(
        suite,
        agent=_identity(options, agent),
        seed=options.seed or 0,
        epochs=options.epochs or 1,
        confine=level,
        passed=options.passed,
        timeout_ms=options.timeout_ms,
    )
    more: dict[str, Json] = {
        "began": format_instant(SystemClock().now()),
        "confined_by": confinement(options.confine or suite.confine).by,
        "only": list(options.only),
        "replay": str(options.replay) if options.replay is not None else None,
        "shard": str(options.shard) if options.shard is not None else None,
        "suite": str(suite.directory),
        "why_not_stronger": confinement(options.confine or suite.confine).why,
        "workers": options.workers,
    }
    return Manifest(core, host(**more))


def _identity(options: Options, agent: Agent | None) -> Mapping[str, Json]:
    if agent is not None:
        return agent.identity
    if options.agent:
        return agent_of(options.agent).identity
    if options.replay is None:
        raise InvalidInput("There is no agent.", why="Somebody has to do the work.", fix="Give --agent, or --replay RUN.")
    found: Mapping[str, Json] = RunStore.open(options.replay).manifest().core["setting"]["agent"]
    return found


def _store(options: Options, manifest: Manifest) -> RunStore:
    store = RunStore(Path(options.out).absolute())
    if not store.exists or not options.resume:
        return RunStore.create(options.out, manifest)
    differing = store.manifest().differences(manifest)
    if differing:
        raise InvalidInput(
            f"{store.path} was made from something else: {', '.join(differing)} differ.",
            why="Its records would stand beside those of other inputs.",
            fix="Give the options that it was begun with, or another --out with --from to take over what is the same.",
        )
    return store


def _chosen(samples: Iterable[tuple[str, int]], options: Options) -> list[tuple[str, int]]:
    """Epoch by epoch, so that a run that is stopped early has seen every case."""
    chosen = [
        (id_, epoch)
        for id_, epoch in samples
        if (not options.only or any(fnmatchcase(id_, pattern) for pattern in options.only))
        and (options.shard is None or options.shard.has(id_, epoch))
    ]
    if not chosen and options.only:
        raise InvalidInput(
            f"No sample fits {', '.join(options.only)}.",
            why="A run of nothing passes nothing.",
            fix="Give ids, or patterns such as 'fix-*'.",
        )
    return sorted(chosen, key=lambda sample: (sample[1], sample[0]))


def _already(store: RunStore, keys: Sequence[str]) -> set[str]:
    """What is done. What is damaged or an ``infra_error`` is taken aside, and done again."""
    found = set()
    for key in keys:
        if not store.has(key):
            continue
        with suppress(GittrixError):
            if store.record(key).outcome != RETRIED:
                found.add(key)
                continue
        store.set_aside(key)
    return found


class _Dispatch:
    """Jobs and who does them."""

    def __init__(self, jobs: Sequence[Job], factory: Factory, workers: int, total: int, watch: Watch) -> None:
        self._waiting = [*reversed(jobs)]
        self._suspects: list[Job] = []
        self._factory = factory
        self._workers = workers
        self._total = total
        self._watch = watch
        self._left = len(jobs)
        self._setting = jobs[0].setting if jobs else None
        self._broke: dict[str, int] = {}

    def go(self) -> None:
        """Have them done."""
        self._tell(None)
        try:
            while self._waiting or self._suspects:
                self._with_one_executor()
        finally:
            remove_work_dirs()
            if self._setting is not None:
                sweep(self._setting.scratch)

    def _with_one_executor(self) -> None:
        """Until all are done or the executor breaks. What was under way then is done one by one, to see whose doing it was."""
        under_way: dict[Future[JobResult], Job] = {}
        queue, most = (self._suspects, 1) if self._suspects else (self._waiting, self._workers * _AHEAD)
        executor = self._factory(self._workers)
        try:
            while queue or under_way:
                while queue and len(under_way) < most:
                    under_way[executor.submit(execute, queue[-1])] = queue[-1]
                    queue.pop()
                    if self._workers == 1:
                        break
                ready, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ready:
                    self._finished(future, under_way[future])
                    del under_way[future]
        except BrokenExecutor:
            alone = len(under_way) == 1
            self._suspects += [job for job in under_way.values() if self._is_left(job, "the process that did it died", counts=alone)]
        except BaseException:
            self._stop(executor)
            raise
        executor.shutdown()

    def _finished(self, future: Future[JobResult], job: Job) -> None:
        problem = future.exception()
        if problem is None:
            self._left -= 1
            self._tell(future.result())
        elif isinstance(problem, (BrokenExecutor, GittrixError)):
            raise problem
        elif self._is_left(job, f"{type(problem).__name__}: the process that did it died"):
            self._waiting.append(job)

    def _is_left(self, job: Job, reason: str, *, counts: bool = True) -> bool:
        """Whether a job whose worker died is to be done again. It is counted once: by its record."""
        died = self._broke[job.key] = self._broke.get(job.key, 0) + counts
        if RunStore(job.setting.store).has(job.key):
            self._left -= 1
            self._tell(execute(job))
            return False
        if died > job.setting.retries + 1:
            self._left -= 1
            self._tell(record_failure(job, reason))
            return False
        return True

    def _stop(self, executor: object) -> None:
        """End the workers that are at work, and what they started."""
        shutdown = getattr(executor, "shutdown")  # noqa: B009  (an executor is anything that has one)
        shutdown(wait=False, cancel_futures=True)
        if self._setting is not None:
            self._end_workers(self._setting)

    def _end_workers(self, setting: Setting) -> None:
        ours = [owner for owner, run in owners(setting.scratch).values() if run == str(setting.store) and owner.pid != os.getpid()]
        for owner in ours:
            found = process(owner.pid)
            if found is not None and found.is_(owner):
                signal_process(found, signal.SIGKILL)
        deadline = seconds() + KILL_WAIT
        while any(owner.alive() for owner in ours) and seconds() < deadline:
            pause(_NAP)
        sweep(setting.scratch)

    def _tell(self, last: JobResult | None) -> None:
        self._watch(Progress(self._total - self._left, self._total, last))
