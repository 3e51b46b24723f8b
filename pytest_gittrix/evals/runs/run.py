"""A run of a suite: which samples are missing, and an executor that does them.

A run can be killed at any moment and resumed: samples that have a record are done.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.evals.agents.reach import reach_setting
from pytest_gittrix.evals.inputs.agent_values import digest_of_values
from pytest_gittrix.evals.inputs.identity import Json
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record, digest, spent_of, tally
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.models.setting import as_done, model_host, model_setting, with_replayed
from pytest_gittrix.evals.results.grades import held_to, short_of
from pytest_gittrix.evals.results.manifest import Manifest, core_of, host, taken_from
from pytest_gittrix.evals.results.reuse import ReuseDecision, check_unchanged, reuse, unknown_of, why_not
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import Rates, rates
from pytest_gittrix.evals.results.tapes import note_tapes, without_tapes
from pytest_gittrix.evals.runs.agents import Agent, CallableAgent, agent_of, check_known, identity_at, require_seen
from pytest_gittrix.evals.runs.executors import Factory, local
from pytest_gittrix.evals.runs.options import Options, with_defaults, with_reach
from pytest_gittrix.evals.runs.work_dirs import owners, scratch_root, sweep
from pytest_gittrix.evals.runs.worker import Job, JobResult, RunSetting, execute, record_failure, remove_work_dirs
from pytest_gittrix.evals.spending.spent import Spent
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.process_tree import KILL_WAIT, signal_process

_NAP = 0.005
_AHEAD = 2
"""Jobs that are submitted for each worker: the next one waits there, and a broken executor loses few."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        done: the number of samples that have a record.
        total: the number of samples that will have one.
        last: the sample that was just done; None at first.
    """

    done: int
    total: int
    last: JobResult | None = None


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    Attributes:
        store: the store of the run.
        manifest: its inputs.
        records: the records of its samples, by id and epoch.
        reused: which samples were taken over from another run, and why the others were not; by id and epoch.
        already: the number of samples that were done when the run was resumed.
        swept: the directories of killed runs that were removed at the start.
        at_least: the judge that a sample needs to count as passed, see ``grades.held_to``; any judge by default.
    """

    store: RunStore
    manifest: Manifest
    records: tuple[Record, ...]
    reused: Mapping[tuple[str, int], ReuseDecision] = field(default_factory=dict)
    already: int = 0
    swept: tuple[str, ...] = ()
    at_least: str | None = None

    @property
    def counted(self) -> tuple[Record, ...]:
        """The records as they count: a sample that no good enough judge has judged has failed."""
        return tuple(held_to(record, self.at_least) for record in self.records)

    @property
    def short(self) -> int:
        """The number of samples that passed, and do not count as passed."""
        return short_of(self.records, self.at_least)

    @property
    def counts(self) -> dict[str, int]:
        """The number of records of each outcome, as they count."""
        return tally(self.counted)

    @property
    def digest(self) -> str:
        """The digest of the results."""
        return digest(self.records)

    @property
    def spent(self) -> Spent | None:
        """What the agents used of their models; None if no model was reached through the run."""
        return spent_of(self.records)

    @property
    def rates(self) -> Rates:
        """The rates of the samples, with those in ``infra_error`` if the run counts them."""
        return rates(self.counted, count_infra_errors=self.manifest.counts_infra_errors)

    @property
    def taken_over(self) -> int:
        """The number of samples that were taken over from another run."""
        return sum(1 for decision in self.reused.values() if decision.reused)

    def to_json(self) -> dict[str, Json]:
        """The same for programs."""
        return {
            "run": str(self.store.path),
            "manifest": self.manifest.digest,
            "digest": self.digest,
            "samples": len(self.records),
            "outcomes": self.counts,
            "already": self.already,
            "reused": self.taken_over,
            "mixed": self.store.is_mixed,
            "confine": self.manifest.core["setting"]["confine"],
            "rates": self.rates.to_json(),
            "model": None if self.spent is None else self.spent.to_json(),
            "tape": self.store.manifest().core.get("tape"),
            "judge_at_least": self.at_least,
            "short": self.short,
        }


Watch = Callable[[Progress], object]


def run_suite(
    suite: Suite, options: Options, *, factory: Factory = local, agent: Agent | None = None, watch: Watch = lambda _progress: None
) -> Summary:
    """Run a suite.

    Args:
        suite: the suite.
        options: the options of the run.
        factory: makes the executor that does the samples; see ``executors``.
        agent: an agent that cannot be given as text, instead of ``options.agent``; then samples are done in this process.
        watch: called with the progress at first and after each sample.

    Returns:
        The outcome of the run, with a record of every chosen sample.

    Raises:
        InvalidInput: an option is not allowed, or the directory holds a run that is not to be resumed or has other inputs.
        CapabilityMissing: the requested level of confinement is not available, or does not keep to limits.
        AdapterUnavailable: the disk refused, or another process writes to the run.
        KeyboardInterrupt: Ctrl-C was pressed; finished samples are saved, and no program is left running.
    """
    options = with_defaults(options)
    options = with_reach(options, suite, works=agent is not None or bool(options.agent))
    _check_model(options)
    level = confinement(options.confine or suite.confine, options.network or "none", options.limits)
    require_seen(agent or options.agent, level.level, options.readable)
    root = scratch_root(options.scratch)
    swept = sweep(root)
    manifest = _manifest(suite, options, level.level, agent)
    if options.rescore is not None:
        manifest = manifest.judging_again(RunStore.open(options.rescore).manifest())
    with RunStore(Path(options.out).absolute()).locked():
        store = _store(options, manifest)
        keys = manifest.keys
        chosen = _kept(_chosen(keys, options), options)
        already = _already(store, [keys[sample] for sample in chosen])
        identity = manifest.core["setting"]["agent"]
        own = _check_kept(store, identity, already, options, agent)
        missing = [sample for sample in chosen if keys[sample] not in already]
        lacking = {sample: keys[sample] for sample in missing}
        reused = {} if options.reuse is None else reuse(store, options.reuse, lacking, root=own, trust=options.trust_agent)
        replay = options.replay.absolute() if options.replay is not None else None
        model = options.model.absolute() if options.model is not None else None
        rescore = options.rescore.absolute() if options.rescore is not None else None
        wanted = replace(options, out=store.path, confine=level.level, replay=replay, rescore=rescore, model=model)
        setting = RunSetting(wanted, root, suite.clock_start)
        left = [sample for sample in missing if not (sample in reused and reused[sample].reused)]
        jobs = [Job(setting, suite.case(id_), epoch, keys[id_, epoch], agent) for id_, epoch in left]
        if options.vary:
            jobs.reverse()
        here = local if agent is not None else factory
        _Dispatch(jobs, here, 1 if agent is not None else options.workers, len(chosen), watch).run()
        changed = any(why_not(store, job.key, own, trust=True) for job in jobs)
        if jobs and (changed or _identity(options, agent, level.level) != identity):
            store.mark_mixed()
        if options.model is not None and options.model.mode == "record":
            note_tapes(store)
        store.note_unknown(sorted(unknown_of(store, [keys[sample] for sample in chosen])))
        records = tuple(store.record(keys[sample]) for sample in chosen)
        return Summary(store, store.manifest(), records, reused, len(already), swept.removed)


run = run_suite
"""Its name where the documentation once taught it, ``pytest_gittrix.evals.run``."""


def _check_model(options: Options) -> None:
    if options.model is None:
        return
    options.model.check_keys()
    if options.model.run is not None and options.reuse is not None:
        raise InvalidInput(
            "A replay of tapes takes no samples over from another run.",
            why="They could be of other tapes, and a replay asks no server that has to be paid.",
            fix="Leave --from out.",
        )
    if options.replay is not None:
        raise InvalidInput(
            "--replay and --tape exclude each other.",
            why="--replay repeats what an agent did, without the agent; --tape replay runs the agent with a recorded model.",
            fix="Give one of them.",
        )


def _manifest(suite: Suite, options: Options, level: str, agent: Agent | None) -> Manifest:
    core = core_of(
        suite,
        agent=_identity(options, agent, level),
        random_seed=options.seed or 0,
        epochs=options.epochs or 1,
        confine=level,
        limits=options.limits,
        passed=_passed(options, agent),
        timeout_ms=options.timeout_ms,
        model=model_setting(options.model, options.model_limits, suite.cases),
        reach=reach_setting(options.network, options.readable),
    )
    details: dict[str, Json] = {
        "began": format_instant(SystemClock().now()),
        "count_infra_errors": options.count_infra_errors,
        "confined_by": confinement(options.confine or suite.confine).by,
        "only": list(options.only),
        "replay": str(options.replay) if options.replay is not None else None,
        "rescore": str(options.rescore) if options.rescore is not None else None,
        "shard": str(options.shard) if options.shard is not None else None,
        "suite": str(suite.directory),
        "why_not_stronger": confinement(options.confine or suite.confine).why,
        "workers": options.workers,
    }
    noted = model_host(options.model, options.agent, options.readable)
    made = with_replayed(Manifest(core, host(**details, **noted, **taken_from(options.reuse))), options.model)
    return made if options.replay is None or options.agent or agent is not None else as_done(made, RunStore.open(options.replay).manifest())


def _identity(options: Options, agent: Agent | None, level: str) -> Mapping[str, Json]:
    if agent is not None or options.agent:
        return identity_at(agent or agent_of(options.agent), level)
    recorded = options.replay or options.rescore
    if recorded is None:
        raise InvalidInput("There is no agent.", why="A run needs an agent, or a run to replay.", fix="Give --agent, or --replay RUN.")
    found: Mapping[str, Json] = RunStore.open(recorded).manifest().core["setting"]["agent"]
    return found


def _passed(options: Options, agent: Agent | None) -> Mapping[str, str | None]:
    """The digests of the variables that are passed on. A replay runs no agent, so that they are those of the replayed run."""
    recorded = options.replay or options.rescore
    if agent is None and not options.agent and recorded is not None:
        setting = RunStore.open(recorded).manifest().core["setting"]
        return {name: setting.get("passed_values", {}).get(name) for name in options.passed}
    return digest_of_values(options.passed, os.environ)


def _store(options: Options, manifest: Manifest) -> RunStore:
    store = RunStore(Path(options.out).absolute())
    if not store.exists or not options.resume:
        return RunStore.create(options.out, manifest)
    store.check_not_mixed()
    begun = store.manifest() if options.model is None or not options.model.asks else without_tapes(store.manifest())
    differing = begun.differences(manifest)
    if differing:
        raise InvalidInput(
            f"{store.path} was made from something else: {', '.join(differing)} differ.",
            why="Its records would be mixed with those of other inputs.",
            fix="Give the options that it was begun with, or another --out with --from to take over what is the same.",
        )
    store.count_infra_errors(options.count_infra_errors)
    return store


def _chosen(samples: Iterable[tuple[str, int]], options: Options) -> list[tuple[str, int]]:
    """The chosen samples, epoch by epoch, so that a run that is stopped early has tried every case."""
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


def _kept(samples: list[tuple[str, int]], options: Options) -> list[tuple[str, int]]:
    """Those of some samples that the run whose results are judged again has; all where there is none."""
    if options.rescore is None:
        return samples
    run = RunStore.open(options.rescore)
    keys = run.manifest().keys
    return [sample for sample in samples if sample in keys and run.has(keys[sample])]


def _check_kept(store: RunStore, identity: Mapping[str, Json], already: Collection[str], options: Options, agent: Agent | None) -> str:
    """See that samples which are kept or taken over count for the agent as it is now; return the directory that its reads are named from.

    Raises:
        InvalidInput: they do not, or it cannot be known.
    """
    working = agent or (agent_of(options.agent) if options.agent else None)
    if (already or options.reuse is not None) and not options.trust_agent and working is not None:
        check_known(identity, "--trust-agent")
    own = working.root if isinstance(working, CallableAgent) else ""
    for key in already:
        check_unchanged(store, key, own, trust=options.trust_agent)
    return own


def _already(store: RunStore, keys: Sequence[str]) -> set[str]:
    """The keys of finished samples. Records that are damaged or an ``infra_error`` are set aside, so that their samples are retried."""
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
    """Hands jobs to executors, and retries those whose worker died."""

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

    def run(self) -> None:
        """Do all jobs."""
        self._report(None)
        try:
            while self._waiting or self._suspects:
                self._with_one_executor()
        finally:
            remove_work_dirs()
            if self._setting is not None:
                sweep(self._setting.scratch)

    def _with_one_executor(self) -> None:
        """Run jobs until all are done or the executor breaks. The jobs in flight are then done one by one."""
        in_flight: dict[Future[JobResult], Job] = {}
        queue, most = (self._suspects, 1) if self._suspects else (self._waiting, self._workers * _AHEAD)
        executor = self._factory(self._workers)
        try:
            while queue or in_flight:
                while queue and len(in_flight) < most:
                    in_flight[executor.submit(execute, queue[-1])] = queue[-1]
                    queue.pop()
                    if self._workers == 1:
                        break
                ready, _ = wait(in_flight, return_when=FIRST_COMPLETED)
                for future in ready:
                    self._finished(future, in_flight[future])
                    del in_flight[future]
        except BrokenExecutor:
            alone = len(in_flight) == 1
            self._suspects += [job for job in in_flight.values() if self._is_to_retry(job, "the process that did it died", counts=alone)]
        except BaseException:
            self._stop(executor)
            raise
        executor.shutdown()

    def _finished(self, future: Future[JobResult], job: Job) -> None:
        problem = future.exception()
        if problem is None:
            self._left -= 1
            self._report(future.result())
        elif isinstance(problem, (BrokenExecutor, GittrixError)):
            raise problem
        elif self._is_to_retry(job, f"{type(problem).__name__}: the process that did it died"):
            self._waiting.append(job)

    def _is_to_retry(self, job: Job, reason: str, *, counts: bool = True) -> bool:
        """Whether a job whose worker died is to be retried; a job with a record counts as done."""
        died = self._broke[job.key] = self._broke.get(job.key, 0) + counts
        if RunStore(job.setting.options.out).has(job.key):
            self._left -= 1
            self._report(execute(job))
            return False
        if died > job.setting.options.retries + 1:
            self._left -= 1
            self._report(record_failure(job, reason))
            return False
        return True

    def _stop(self, executor: object) -> None:
        """End the busy workers, and the programs they started."""
        shutdown = getattr(executor, "shutdown")  # noqa: B009  (an executor is anything that has one)
        shutdown(wait=False, cancel_futures=True)
        if self._setting is not None:
            self._end_workers(self._setting)

    def _end_workers(self, setting: RunSetting) -> None:
        ours = [owner for owner, run in owners(setting.scratch).values() if run == str(setting.options.out) and owner.pid != os.getpid()]
        for owner in ours:
            signal_process(owner, signal.SIGKILL)
        deadline = real_seconds() + KILL_WAIT
        while any(owner.alive() for owner in ours) and real_seconds() < deadline:
            pause(_NAP)
        sweep(setting.scratch)

    def _report(self, last: JobResult | None) -> None:
        self._watch(Progress(self._total - self._left, self._total, last))
