"""The request of a test with ``@pytest.mark.gittrix_eval``: a suite, an agent, and a choice of samples."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from pytest_gittrix.confine.network import check_network
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.agents.reach import check_readable, reach_setting
from pytest_gittrix.evals.agents.reads import digest_of_file
from pytest_gittrix.evals.agents.watching import module_used, recording
from pytest_gittrix.evals.inputs.agent_code import UNKNOWN
from pytest_gittrix.evals.inputs.agent_values import bound_values
from pytest_gittrix.evals.inputs.identity import Json
from pytest_gittrix.evals.inputs.suite import Case, Suite
from pytest_gittrix.evals.models.plan import ModelPlan
from pytest_gittrix.evals.models.setting import kept_live, model_setting
from pytest_gittrix.evals.results.manifest import core_of
from pytest_gittrix.evals.runs.agents import Agent, CallableAgent, agent_of, identity_at
from pytest_gittrix.evals.runs.shards import Shard
from pytest_gittrix.evals.runs.toolbox import Toolbox
from pytest_gittrix.evals.spending.model_limits import ModelLimits
from pytest_gittrix.evals.spending.prices import Prices
from pytest_gittrix.plugin.evals.model_plan import MODEL_ARGUMENTS, ModelOptions, model_of

ARGUMENTS: Final[Mapping[str, str]] = {
    "suite": "the path of a suite's directory, from the test's file",
    "agent": "a command, gold, nop or python:module:function as a text, or a function of a Toolbox",
    "epochs": "a whole number from 1",
    "seed": "a whole number from 0",
    "confine": "auto, off, guard or jail",
    "network": "what the agent reaches: model:anthropic, host:port, all, or a list of the first two",
    "readable": "paths of directories that the agent may read, from the test's file",
    "only": "a shell pattern of ids, or a list of them",
    **MODEL_ARGUMENTS,
}
"""The marker's arguments, and what each takes."""

_LEVELS: Final = ("auto", "off", "guard", "jail")


class EvalOptions(ModelOptions, Protocol):
    """The options of a test run that its evals read, from the command line and the configuration."""

    @property
    def eval_run(self) -> Path | None:
        """The directory of the eval run."""

    @property
    def eval_resume(self) -> Literal["no", "yes"]:
        """Whether an interrupted run is resumed."""

    @property
    def eval_from(self) -> Path | None:
        """The run that samples are taken over from."""

    @property
    def eval_trust_agent(self) -> Literal["no", "yes"]:
        """Whether results are taken over of an agent that cannot be known."""

    @property
    def eval_count_infra_errors(self) -> Literal["no", "yes"]:
        """Whether samples that could not be run count as not passed."""

    @property
    def judge_at_least(self) -> str | None:
        """The judge that a sample needs to count as passed; any by default."""

    @property
    def eval_shard(self) -> Shard | None:
        """The part of the samples that is run."""

    @property
    def eval_seed(self) -> int | None:
        """The seed that replaces those of the markers."""

    @property
    def eval_epochs(self) -> int | None:
        """How often each case is run, in place of the markers' numbers."""


@dataclass(frozen=True)
class FunctionAgent(CallableAgent):
    """A function that the marker got itself. Its identity is that of ``python:<its file>:<its name>``.

    Attributes:
        given: the function.
    """

    given: Callable[[Toolbox], object]

    @classmethod
    def of_function(cls, given: Callable[[Toolbox], object]) -> FunctionAgent:
        """Make the agent of a function or another callable."""
        code = inspect.unwrap(given) if inspect.isroutine(given) else type(given)
        return cls(f"{inspect.getsourcefile(code) or ''}:{getattr(code, '__qualname__', '')}", given)

    def function(self) -> Callable[[Toolbox], object]:
        """The function; its module was loaded by pytest."""
        with recording(self.spec):
            module_used(getattr(self.given, "__module__", None) or type(self.given).__module__)
        return self.given

    @property
    def source(self) -> str:
        """The path of its file; empty if it has none."""
        return self.spec.rpartition(":")[0]

    @property
    def identity(self) -> Mapping[str, Json]:
        """The name of the function, the digest of its file, and the values that the function carries with it."""
        file, _, name = self.spec.rpartition(":")
        bound, unknown = bound_values(self.given)
        unknown += [] if file else [f"{name} has no source."]
        return {
            "kind": "callable",
            "name": f"{os.path.basename(file)}:{name}",
            "source": digest_of_file(file) if file else "",
            **({"values": bound} if bound else {}),
            **({UNKNOWN: sorted(unknown)} if unknown else {}),
        }


@dataclass(frozen=True)
class Plan:
    """The samples of one test function.

    Attributes:
        suite: the suite of the samples.
        agent: the agent that does them.
        seed: the seed of everything random.
        epochs: how often each case is run.
        confine: the level of confinement, by default the suite's.
        model: how agents reach their model; None if the run has no part in that.
        model_limits: what an agent may use of it in a sample, in place of what cases say.
        samples: the id and epoch of each chosen sample.
        network: what the agent reaches; what the suite says by default.
        readable: what the agent may read beyond its workspace; what the suite says by default.
        prices: what models cost, for an agent that reaches its own by the gateway of its confinement.
    """

    suite: Suite
    agent: Agent
    seed: int
    epochs: int
    confine: str
    model: ModelPlan | None
    model_limits: ModelLimits
    samples: tuple[tuple[str, int], ...]
    network: object = ()
    readable: tuple[Path, ...] = ()
    prices: Prices | None = None

    def core(self, level: str) -> dict[str, Json]:
        """The core of the manifest, as ``gittrix eval run`` writes it.

        Args:
            level: the level of confinement that is really used.
        """
        return core_of(
            self.suite,
            agent=identity_at(self.agent, level),
            random_seed=self.seed,
            epochs=self.epochs,
            confine=level,
            passed={},
            timeout_ms=None,
            model=model_setting(self.model, self.model_limits, self.suite.cases),
            reach=reach_setting(self.network, self.readable),
        )

    @property
    def chosen(self) -> list[ChosenSample]:
        """The chosen samples, one by one."""
        cases = {case.id: case for case in self.suite.cases}
        return [ChosenSample(self, cases[id_], epoch) for id_, epoch in self.samples]


@dataclass(frozen=True)
class ChosenSample:
    """The sample of one test node.

    Attributes:
        plan: the plan that chose it.
        case: the case.
        epoch: the number of the repetition, from 0.
    """

    plan: Plan
    case: Case
    epoch: int

    @property
    def name(self) -> str:
        """The name of the node: the id, and the epoch if there are several."""
        return f"{self.case.id}#{self.epoch}" if self.plan.epochs > 1 else self.case.id


def plan_of(arguments: Mapping[str, Any], options: EvalOptions, base: Path) -> Plan:
    """Make a plan.

    Args:
        arguments: the arguments of the marker.
        options: the options of the run, which override the marker's arguments.
        base: the directory that the suite's path is relative to.

    Raises:
        InvalidInput: an argument is unknown, missing or wrong; the suite or the agent cannot be read; no case fits ``only``.
        AdapterUnavailable: the repository of a case is missing.
    """
    _check_names(arguments)
    suite = _suite(os.path.join(base, _path(arguments.get("suite"))))
    seed = options.eval_seed if options.eval_seed is not None else _whole("seed", arguments.get("seed", 0), 0)
    epochs = options.eval_epochs or _whole("epochs", arguments.get("epochs", 1), 1)
    confine = arguments.get("confine") or suite.confine
    if confine not in _LEVELS:
        raise _wrong("confine", confine)
    samples = tuple(_samples(suite, epochs, _patterns(arguments.get("only")), options))
    model, limits, prices = model_of(arguments, options, base)
    network = arguments.get("network") or suite.network
    check_network(network or "none")
    model = kept_live(model, limits, suite.cases, network, prices)
    if model is not None:
        network = () if model.run is not None else network
        model = model.with_network(network)
    given = [os.path.join(base, path) for path in _paths(arguments.get("readable"))]
    readable = check_readable(given or suite.readable, [("suite", suite.directory)])
    return Plan(suite, _agent(arguments.get("agent")), seed, epochs, confine, model, limits, samples, network, readable, prices)


def _check_names(arguments: Mapping[str, Any]) -> None:
    unknown = [name for name in arguments if name not in ARGUMENTS]
    missing = [name for name in ("suite", "agent") if arguments.get(name) is None]
    if unknown:
        near = get_close_matches(unknown[0], ARGUMENTS, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InvalidInput(f"There is no argument {unknown[0]!r}.", fix=f"{hint}Arguments: {', '.join(ARGUMENTS)}.")
    if missing:
        raise InvalidInput(f"{missing[0]} is missing.", fix=f"Give {missing[0]}=: {ARGUMENTS[missing[0]]}.")


@lru_cache(maxsize=16)
def _suite(path: str) -> Suite:
    """Read a suite, once for all tests of a run that share it."""
    return Suite.load(path)


def forget_suites() -> None:
    """Forget the suites of this run; the next run in this process may find them changed."""
    _suite.cache_clear()


def _path(value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise _wrong("suite", value)
    path = os.fspath(value)
    if not isinstance(path, str):
        raise _wrong("suite", value)
    return path


def _agent(value: Any) -> Agent:
    if isinstance(value, str):
        return agent_of(value)
    if hasattr(value, "work") and hasattr(value, "identity"):
        found: Agent = value
        return found
    if callable(value):
        return FunctionAgent.of_function(value)
    raise _wrong("agent", value)


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(name, value)
    return value


def _paths(value: object) -> tuple[str, ...]:
    paths: Any = (value,) if isinstance(value, str | os.PathLike) else value or ()
    if not isinstance(paths, Sequence) or not all(isinstance(one, str | os.PathLike) for one in paths):
        raise _wrong("readable", value)
    return tuple(map(os.fspath, paths))


def _patterns(value: object) -> tuple[str, ...]:
    patterns: Any = (value,) if isinstance(value, str) else value or ()
    if not isinstance(patterns, Sequence) or not all(isinstance(one, str) for one in patterns):
        raise _wrong("only", value)
    return tuple(patterns)


def _samples(suite: Suite, epochs: int, patterns: tuple[str, ...], options: EvalOptions) -> list[tuple[str, int]]:
    """The chosen samples, epoch by epoch, so that a run that is stopped early has tried every case."""
    ids = [case.id for case in suite.cases if not patterns or any(fnmatchcase(case.id, pattern) for pattern in patterns)]
    if not ids:
        raise InvalidInput(
            f"No case of {suite.name} fits {', '.join(patterns)}.",
            why="A run of nothing passes nothing.",
            fix="Give ids, or patterns such as 'fix-*'.",
        )
    shard = options.eval_shard
    return [(id_, epoch) for epoch in range(epochs) for id_ in ids if shard is None or shard.has(id_, epoch)]


def _wrong(name: str, value: object) -> InvalidInput:
    return InvalidInput(f"{name} was given {value!r:.80}.", fix=f"It takes {ARGUMENTS[name]}.")
