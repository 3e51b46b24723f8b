"""The options of a run, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gittrix.confine.limits import ResourceLimits, check_limits
from pytest_gittrix.confine.network import check_network
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.agents.reach import check_readable
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.models.plan import ModelPlan, check_prices
from pytest_gittrix.evals.models.setting import as_recorded, kept_live
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.shards import Shard
from pytest_gittrix.evals.spending.model_limits import NO_LIMITS, ModelLimits
from pytest_gittrix.evals.spending.prices import Prices


@dataclass(frozen=True)
class Options:
    """How a suite is run.

    Attributes:
        agent: the spec of the agent, see ``agents.agent_of``; empty for a replay.
        out: the directory of the run.
        seed: the seed of everything random; by default 0, or that of the replayed run.
        epochs: how often each case is run; by default once, or as often as in the replayed run.
        workers: the number of samples that run at a time.
        resume: whether to resume an existing run.
        reuse: the directory of a run whose samples are taken over where their inputs are the same.
        only: shell patterns of ids; all cases by default.
        shard: the part of the samples to run.
        timeout_ms: the time limit in milliseconds that replaces those of the cases.
        confine: the level of confinement; by default that of the suite, or of the replayed run.
        limits: what each program may use; by default no limits, or those of the replayed run.
        passed: the names of the environment variables that are passed to the agent.
        record: whether to record the tree after each step, for a strict replay.
        replay: the directory of a run whose transcripts are replayed.
        lenient: whether a replay compares only actions with the transcripts, not their results.
        retries: how often a sample that ended in ``infra_error`` is retried.
        trust_agent: whether results are taken over although something of the agent cannot be known.
        count_infra_errors: whether samples that end in ``infra_error`` count in the rates, as not passed.
        model: how agents reach their model; None if the run has no part in that.
        prices: what models cost, for agents that reach theirs by the gateway of their confinement; a ``model`` has its own.
        model_limits: what an agent may use of its model in a sample, in place of what cases say.
        rescore: the directory of a run whose kept results are judged again; no agent runs.
        vary: whether to vary what results must not depend on: the order, and the seed of Python's hashes.
        scratch: the directory that samples work in; below the system's directory for temporary files by default.
        network: what the agent's programs reach, see ``confine.check_network``; what the suite says by default.
        readable: what they may read beyond their workspaces; what the suite says by default.
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
    limits: ResourceLimits | None = None
    passed: tuple[str, ...] = ()
    record: bool = False
    replay: Path | None = None
    lenient: bool = False
    retries: int = 1
    scratch: Path | None = None
    trust_agent: bool = False
    vary: bool = False
    count_infra_errors: bool = False
    model: ModelPlan | None = None
    prices: Prices | None = None
    model_limits: ModelLimits = NO_LIMITS
    rescore: Path | None = None
    network: object = ()
    readable: tuple[Path, ...] = ()


def with_defaults(options: Options) -> Options:
    """Fill in the defaults of options; those of a replay are the settings of the replayed run.

    Raises:
        InvalidInput: the run to replay does not exist, or has no tapes; a limit of costs has no prices; or there are less than one epoch,
            one worker or no retries.
    """
    found = replace(options, seed=options.seed or 0, epochs=1 if options.epochs is None else options.epochs)
    source = (options.replay or options.rescore) if options.model is None or options.model.run is None else options.model.run
    if source is not None:
        manifest = RunStore.open(source).manifest()
        core = manifest.core
        setting = core["setting"]
        found = replace(
            options,
            seed=setting["seed"] if options.seed is None else options.seed,
            epochs=core["epochs"] if options.epochs is None else options.epochs,
            timeout_ms=setting["timeout_ms"] if options.timeout_ms is None else options.timeout_ms,
            confine=setting["confine"] if options.confine is None else options.confine,
            limits=check_limits(setting.get("limits")) if options.limits is None else options.limits,
            passed=options.passed or tuple(setting["passed"]),
        )
    if options.model is not None and options.model.run is not None:
        found = _as_recorded(found, options.model, manifest)
    if (found.epochs or 0) < 1 or found.workers < 1 or found.retries < 0:
        raise InvalidInput("A run has at least one epoch and one worker, and no fewer than no retries.", fix="Give --epochs and -n from 1.")
    return found


def with_reach(options: Options, suite: Suite, *, works: bool) -> Options:
    """Fill in what the agent reaches beyond its workspace, which is what the suite says unless the options do.

    Args:
        options: the options.
        suite: the suite.
        works: whether an agent works in the run, and not only a record of one.

    Raises:
        InvalidInput: it is no network, or something may not be read, or is not there.
    """
    if not works:
        return replace(options, network=(), readable=())
    network = options.network if options.network not in ((), [], None) else suite.network
    check_prices(options.model, options.prices, network)
    options = replace(options, model=kept_live(options.model, options.model_limits, suite.cases, network, options.prices))
    if options.model is not None and check_network(network or "none") == "all":
        raise InvalidInput(
            "--network all and --tape exclude each other.",
            why="An agent that reaches every server could ask its model past the tape.",
            fix="Name what else the agent reaches, such as --network packages.example.org:443.",
        )
    if options.model is not None and options.model.run is not None:
        if options.network not in ((), [], None):
            raise InvalidInput(
                "A replay of tapes has no network.",
                why="It is to have the same results where there is none.",
                fix="Leave --network out.",
            )
        network = ()
    hidden = (("suite", suite.directory), ("run", Path(options.out)))
    model = None if options.model is None else options.model.with_network(network)
    return replace(options, network=network, model=model, readable=check_readable(options.readable or suite.readable, hidden))


def _as_recorded(options: Options, plan: ModelPlan, recorded: Manifest) -> Options:
    """A replay of tapes with what it does not say itself as it was recorded: the agent and what it reads, the prices, the limits."""
    model, limits = as_recorded(plan, options.model_limits)
    readable = options.readable or tuple(map(Path, recorded.host.get("readable", ())))
    return replace(options, agent=options.agent or str(recorded.host.get("agent", "")), model=model, model_limits=limits, readable=readable)
