"""The eval run that all processes of one test run write to: the first process makes it, the others join it.

All processes are equal, since only the workers of xdist know the tests. The first one writes the manifest, under a lock, and the name of
the test run next to it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record
from pytest_gittrix.evals.models.setting import model_host, with_replayed
from pytest_gittrix.evals.results.manifest import Manifest, host, taken_from
from pytest_gittrix.evals.results.reuse import check_unchanged, reuse, why_not
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.tapes import note_tapes, without_tapes
from pytest_gittrix.evals.runs.agents import CallableAgent, check_known, identity_at, require_seen
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.work_dirs import scratch_root, sweep
from pytest_gittrix.evals.runs.worker import Job, RunSetting, execute, remove_work_dirs
from pytest_gittrix.os_level.file_lock import exclusive
from pytest_gittrix.os_level.files import PUBLIC, write_file
from pytest_gittrix.plugin.evals.plan import ChosenSample, Plan

RUNS: Final = "runs"
"""The default directory of eval runs, below the root directory of the tests."""

TRUST: Final = "--gittrix-eval-trust-agent"

_NOTE: Final = ".test-run"


@dataclass(frozen=True)
class TestRun:
    """A run of pytest, of one process or several.

    Attributes:
        name: a name that all its processes share, and no other test run has.
        root: the root directory of the tests.
        workers: the number of processes.
        argv: the command line.
        directory: the directory of the eval run; below ``RUNS`` by default.
        resume: whether to resume an existing eval run.
        reuse: a run whose samples are taken over where their inputs are the same.
        shard: the part of the samples that is run, as text for the manifest.
        trust_agent: whether results are taken over although something of the agent cannot be known.
        count_infra_errors: whether samples that could not be run count as not passed.
    """

    __test__ = False

    name: str
    root: Path
    workers: int = 1
    argv: Sequence[str] = field(default_factory=lambda: [*sys.argv])
    directory: Path | None = None
    resume: bool = False
    reuse: Path | None = None
    shard: str | None = None
    trust_agent: bool = False
    count_infra_errors: bool = False


@dataclass(frozen=True)
class SampleResult:
    """The result of a sample, and how it was found.

    Attributes:
        record: the record of the sample.
        ms: how long it took in milliseconds; 0 if it was not run now.
        origin: ``run``, ``already there``, or why it was taken over.
    """

    record: Record
    ms: float
    origin: str


class SharedRun:
    """An eval run that this process writes to.

    Args:
        plan: the samples that this process may do.
        test_run: the run of pytest.

    Attributes:
        store: the store of the eval run.
        keys: the keys of all samples, by id and epoch.

    Raises:
        InvalidInput: there is a run that is not to be resumed, or that has other inputs; or the agent cannot be known well enough.
        CapabilityMissing: the requested level of confinement is not available.
        AdapterUnavailable: the disk refused, or a process of another test run writes to the run.
    """

    def __init__(self, plan: Plan, test_run: TestRun) -> None:
        level = confinement(plan.confine, plan.network or "none")
        require_seen(plan.agent, level.level, plan.readable)
        self._plan = plan
        self._test_run = test_run
        self._root = plan.agent.root if isinstance(plan.agent, CallableAgent) else ""
        self._scratch = scratch_root()
        sweep(self._scratch)
        self._done: set[str] = set()
        if test_run.reuse is not None and not test_run.trust_agent:
            check_known(identity_at(plan.agent, level.level), TRUST)
        if plan.model is not None:
            plan.model.check_keys()
        manifest = with_replayed(Manifest(plan.core(level.level), _host(plan, test_run, level.why)), plan.model)
        self.store, self._lock = _join(plan, manifest, test_run, self._scratch, self._root)
        self.keys = manifest.keys
        model = None if plan.model is None else plan.model.absolute()
        options = Options(
            agent="",
            out=self.store.path,
            seed=plan.seed,
            confine=level.level,
            model=model,
            prices=plan.prices,
            model_limits=plan.model_limits,
            network=plan.network,
            readable=plan.readable,
        )
        self._setting = RunSetting(options, self._scratch, plan.suite.clock_start)

    def find(self, chosen: ChosenSample) -> SampleResult:
        """Find the result of a sample in this run or in another one, or run the sample.

        Raises:
            InvalidInput: the run to take over from cannot be read.
            AdapterUnavailable: the record cannot be saved.
        """
        sample = chosen.case.id, chosen.epoch
        key = self.keys[sample]
        record = self._saved_record(key)
        if record is not None:
            return SampleResult(record, 0, "already there")
        if self._test_run.reuse is not None:
            decision = reuse(self.store, self._test_run.reuse, {sample: key}, root=self._root, trust=self._test_run.trust_agent)[sample]
            if decision.reused:
                return SampleResult(self.store.record(key), 0, f"taken over: {decision.why}")
        self._done.add(key)
        done = execute(Job(self._setting, chosen.case, chosen.epoch, key, self._plan.agent))
        return SampleResult(self.store.record(key), done.ms, "run")

    def leave(self) -> None:
        """Remove the work directories of this process, and release the run's lock; write down whether the agent has changed."""
        remove_work_dirs()
        with suppress(GittrixError, OSError):
            if self._plan.model is not None and self._plan.model.mode == "record":
                note_tapes(self.store)
            setting = self.store.manifest().core["setting"]
            changed = any(why_not(self.store, key, self._root, trust=True) for key in self._done)
            if changed or (self._done and identity_at(self._plan.agent, setting["confine"]) != setting["agent"]):
                self.store.mark_mixed()
        self._lock.close()

    def _saved_record(self, key: str) -> Record | None:
        """The record of a key. One that is damaged or an ``infra_error`` is set aside, so that its sample is retried."""
        if not self.store.has(key):
            return None
        with suppress(GittrixError):
            record = self.store.record(key)
            if record.outcome != RETRIED:
                return record
        self.store.set_aside(key)
        return None


def _host(plan: Plan, test_run: TestRun, why: str) -> dict[str, object]:
    return host(
        argv=[*test_run.argv],
        **taken_from(test_run.reuse),
        began=format_instant(SystemClock().now()),
        count_infra_errors=test_run.count_infra_errors,
        only=sorted({id_ for id_, _ in plan.samples}),
        replay=None,
        shard=test_run.shard,
        suite=str(plan.suite.directory),
        why_not_stronger=why,
        workers=test_run.workers,
        **model_host(plan.model, ""),
    )


def _join(plan: Plan, manifest: Manifest, test_run: TestRun, scratch: Path, root: str) -> tuple[RunStore, ExitStack]:
    base = test_run.directory or test_run.root / RUNS / plan.suite.name
    lock = hashlib.sha256(os.fsencode(base)).hexdigest()[:16]
    with exclusive(scratch / f"join-{lock}.lock"):
        for store in _candidates(base, manifest, test_run):
            if not store.exists or _test_run_of(store) == test_run.name or test_run.resume:
                if store.exists and _test_run_of(store) != test_run.name:
                    store.check_not_mixed()
                    _check_kept(store, manifest, root, trust=test_run.trust_agent)
                return _enter(store, manifest, test_run)
    raise AssertionError("there is always another candidate")


def _check_kept(store: RunStore, manifest: Manifest, root: str, *, trust: bool) -> None:
    """See that the samples of a run that is continued count for the agent as it is now. Raises InvalidInput if they do not."""
    keys = [record.key for record in store.records() if record.outcome != RETRIED]
    if keys and not trust:
        check_known(manifest.core["setting"]["agent"], TRUST)
    for key in keys:
        check_unchanged(store, key, root, trust=trust, option=TRUST)


def _candidates(base: Path, manifest: Manifest, test_run: TestRun) -> Iterator[RunStore]:
    """The directories that the run may have, the best one first."""
    if test_run.directory is not None:
        yield _requested(RunStore(base), manifest, test_run)
        return
    numbered = (RunStore(base if number == 1 else base.with_name(f"{base.name}-{number}")) for number in count(1))
    known: list[RunStore] = []
    for store in numbered:
        if not store.path.exists():
            break
        known.append(store)
    fitting = [one for one in known if one.exists and not _differences(one, manifest)]
    yield from (one for one in fitting if _test_run_of(one) == test_run.name)
    if test_run.resume:
        yield from reversed(fitting)
    yield store


def _differences(store: RunStore, manifest: Manifest) -> list[str]:
    """What differs between a run and the inputs of this one. While tapes are recorded, their digest is none of the inputs."""
    there = store.manifest()
    return (there if "tape" in manifest.core else without_tapes(there)).differences(manifest)


def _requested(store: RunStore, manifest: Manifest, test_run: TestRun) -> RunStore:
    """The requested directory, if this run may have it."""
    if not store.exists:
        return store
    differing = _differences(store, manifest)
    if differing and _test_run_of(store) == test_run.name:
        raise InvalidInput(
            f"The tests of this run need more than one eval run, and {store.path} is one: {', '.join(differing)} differ.",
            why="Records of different inputs would stand side by side.",
            fix="Leave --gittrix-eval-run out, or choose the tests of one suite and agent with -k.",
        )
    if differing and test_run.resume:
        raise InvalidInput(
            f"{store.path} was made from something else: {', '.join(differing)} differ.",
            why="Its records would be mixed with those of other inputs.",
            fix="Give another --gittrix-eval-run, with --gittrix-eval-from to take over what is the same.",
        )
    if _test_run_of(store) != test_run.name and not test_run.resume:
        raise InvalidInput(
            f"{store.path} holds a run already.",
            why="Two runs in one place could not be distinguished.",
            fix="Go on with it by --gittrix-eval-resume, or give another --gittrix-eval-run.",
        )
    return store


def _enter(store: RunStore, manifest: Manifest, test_run: TestRun) -> tuple[RunStore, ExitStack]:
    """Open or make the run. The first process of a test run locks it until it ends; the others need no lock."""
    with ExitStack() as held:
        try:
            held.enter_context(store.locked())
        except AdapterUnavailable:
            if _test_run_of(store) != test_run.name:
                raise
            return store, ExitStack()
        entered = store if store.exists else RunStore.create(store.path, manifest)
        entered.count_infra_errors(test_run.count_infra_errors)
        write_file(str(entered.path / _NOTE), test_run.name.encode(), mode=PUBLIC)
        return entered, held.pop_all()


def _test_run_of(store: RunStore) -> str:
    try:
        return (store.path / _NOTE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
