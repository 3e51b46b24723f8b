"""Samples as test nodes: a marked function becomes one node for each sample, which runs it and fails if it did not pass.

Node ids are made from the ids of cases, never from paths.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.evals.agents.watching import loading, not_recording, recording
from pytest_gittrix.evals.inputs.sample_record import RETRIED
from pytest_gittrix.evals.results.grades import grade_of, held_to
from pytest_gittrix.plugin.evals.outcome import EvalSample
from pytest_gittrix.plugin.evals.plan import ChosenSample, EvalOptions, Plan, forget_suites, plan_of
from pytest_gittrix.plugin.evals.shared_run import SampleResult, SharedRun, TestRun

MARKER: Final = "gittrix_eval"
FIXTURE: Final = "gittrix_eval"

RUN: Final = "gittrix_eval_run"
"""The property of a test's report that names its run; the others begin with ``gittrix_eval_`` too."""
KEY: Final = "gittrix_eval_key"
OUTCOME: Final = "gittrix_eval_outcome"
JUDGED: Final = "gittrix_eval_judged"
BY_OUTCOME: Final = "by its outcome"

_MOST_REASON: Final = 300
_RUNS = pytest.StashKey["_Runs"]()


@contextmanager
def watched_import(file: Path) -> Iterator[None]:
    """A block in which pytest loads a module of tests, whose functions may be agents.

    Args:
        file: the module's file.
    """

    def loaded() -> list[str]:
        return [name for name, module in [*sys.modules.items()] if getattr(module, "__file__", None) == str(file)]

    with recording(str(file)), loading(loaded):
        yield


def generate(metafunc: pytest.Metafunc, options: EvalOptions) -> None:
    """Make a test of each sample that a marked function requests.

    Args:
        metafunc: pytest's description of the marked function.
        options: the options of the run.

    Raises:
        pytest.fail.Exception: an argument of the marker is unknown or wrong, or the suite cannot be read; the message points at the test.
    """
    config = metafunc.config
    if not config.pluginmanager.has_plugin(MARKER):
        config.pluginmanager.register(_Judge(), MARKER)
        config.add_cleanup(forget_suites)
    arguments: dict[str, Any] = {}
    for mark in metafunc.definition.iter_markers(MARKER):
        if mark.args:
            _refuse(metafunc, f"takes keyword arguments only, and was given {mark.args[0]!r}.")
        arguments = {**mark.kwargs, **arguments}
    try:
        with not_recording():
            plan = plan_of(arguments, options, metafunc.definition.path.parent)
    except GittrixError as problem:
        _refuse(metafunc, f"cannot be followed.\n{problem}")
    if FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(FIXTURE)
    chosen = plan.chosen
    metafunc.parametrize(FIXTURE, chosen, indirect=True, ids=[one.name for one in chosen])


def sample_of(request: pytest.FixtureRequest, options: EvalOptions) -> EvalSample:
    """Run the sample of a test, unless it has a record.

    Raises:
        pytest.fail.Exception: the test has no marker, the run cannot be made or joined, or the sample could not be run.
    """
    chosen = getattr(request, "param", None)
    if not isinstance(chosen, ChosenSample):
        pytest.fail(f"gittrix_eval is for tests with @pytest.mark.{MARKER}(suite=..., agent=...).", pytrace=False)
    config, node = request.config, request.node
    runs = _runs(config, options, request.session)
    root = runs.test_run.root
    try:
        run = runs.of(chosen.plan)
        directory = run.store.path
        key = run.keys[chosen.case.id, chosen.epoch]
        # The controller finds the run by these, so they are set before anything can fail.
        node.user_properties += [(RUN, str(directory.relative_to(root) if directory.is_relative_to(root) else directory)), (KEY, key)]
        found = run.find(chosen)
    except GittrixError as problem:
        pytest.fail(f"{chosen.name} could not be run.\n{problem}", pytrace=False)
    found = replace(found, record=held_to(found.record, options.judge_at_least))
    node.user_properties += _properties(found)
    sample = EvalSample(run.store, found.record, root)
    if found.record.outcome == RETRIED:
        pytest.fail(f"{sample.explain()}\nThis says nothing about the agent: run again with --gittrix-eval-resume.", pytrace=False)
    return sample


def _properties(result: SampleResult) -> list[tuple[str, object]]:
    record = result.record
    grade = grade_of([record])
    found: dict[str, object] = {
        OUTCOME: record.outcome,
        "gittrix_eval_sample": f"{record.id} #{record.epoch}",
        "gittrix_eval_reason": record.reason[:_MOST_REASON],
        "gittrix_eval_tests": f"{grade.tests_passed}/{grade.tests}" if grade.tests else "",
        "gittrix_eval_judges": grade.mix,
        "gittrix_eval_promoted": record.promoted,
        "gittrix_eval_seconds": f"{result.ms / 1000:.3f}",
        "gittrix_eval_origin": result.origin,
    }
    return [(name, value) for name, value in found.items() if value]


class _Judge:
    """The plugin that fails tests which do not judge their samples themselves. Registered by the first marked function."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Run the sample of a test that does not name the fixture, which pytest then does not set up."""
        callspec = getattr(item, "callspec", None)
        if callspec is not None and FIXTURE in callspec.params and isinstance(item, pytest.Function) and FIXTURE not in item.funcargs:
            item.funcargs[FIXTURE] = item._request.getfixturevalue(FIXTURE)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Fail a test that did not look at the outcome of its sample, if the sample did not pass."""
        sample = pyfuncitem.funcargs.get(FIXTURE)
        if not isinstance(sample, EvalSample):
            return (yield)
        try:
            result = yield
        except BaseException:
            pyfuncitem.add_report_section("call", "gittrix eval", sample.explain())
            raise
        if not sample.is_judged:
            pyfuncitem.user_properties.append((JUDGED, BY_OUTCOME))
            if not sample.passed:
                pytest.fail(sample.explain(), pytrace=False)
        return result


class _Runs:
    """The eval runs that this process writes to, by plan."""

    def __init__(self, test_run: TestRun, plans: list[Plan]) -> None:
        self.test_run = test_run
        self._found: dict[int, SharedRun | GittrixError] = {}
        # In the order of the tests, which is the same in all processes; so each process finds the same run at the same place.
        for plan in plans:
            try:
                self._found[id(plan)] = SharedRun(plan, test_run)
            except GittrixError as problem:
                self._found[id(plan)] = problem

    def of(self, plan: Plan) -> SharedRun:
        """The run of a plan. Raises GittrixError if it cannot be made or run."""
        found = self._found[id(plan)]
        if isinstance(found, GittrixError):
            raise found
        return found

    def leave(self) -> None:
        """Leave all runs."""
        for found in self._found.values():
            if isinstance(found, SharedRun):
                found.leave()


def _runs(config: pytest.Config, options: EvalOptions, session: pytest.Session) -> _Runs:
    if _RUNS not in config.stash:
        callspecs = [getattr(item, "callspec", None) for item in session.items]
        chosen = [callspec.params[FIXTURE] for callspec in callspecs if callspec is not None and FIXTURE in callspec.params]
        plans = {id(one.plan): one.plan for one in chosen if isinstance(one, ChosenSample)}
        runs = config.stash[_RUNS] = _Runs(_test_run(config, options), [*plans.values()])
        config.add_cleanup(runs.leave)
    return config.stash[_RUNS]


def _test_run(config: pytest.Config, options: EvalOptions) -> TestRun:
    # A worker of xdist computes a root directory of its own, which is another one where there is no configuration file.
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return TestRun(
        name=str(worker.get("testrunuid") or uuid.uuid4().hex),
        root=Path(worker.get("gittrix_root", config.rootpath)),
        workers=int(worker.get("workercount", 1)),
        argv=[str(one) for one in worker.get("mainargv", [])] or ["pytest", *map(str, config.invocation_params.args)],
        directory=options.eval_run,
        resume=options.eval_resume == "yes",
        reuse=options.eval_from,
        trust_agent=options.eval_trust_agent == "yes",
        count_infra_errors=options.eval_count_infra_errors == "yes",
        shard=str(options.eval_shard) if options.eval_shard is not None else None,
    )


def _refuse(metafunc: pytest.Metafunc, fact: str) -> NoReturn:
    definition = metafunc.definition
    path, line, _ = definition.location
    # The message has all that the error said, so it is not shown a second time as the context.
    raise pytest.fail.Exception(f"{path}:{(line or 0) + 1}: the {MARKER} marker of {definition.name} {fact}", pytrace=False) from None
