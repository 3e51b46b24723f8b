"""The pytest plugin: its hooks, options, markers, fixtures and report sections.

pytest imports this module in every run of every project that has the package installed, so each function imports what it needs. The logic
is in other modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gittrix.clock.clock import FrozenClock
    from pytest_gittrix.conformance.under_test import SystemUnderTest
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.user_session import AgentSession, UserSession
    from pytest_gittrix.plugin.config import GittrixConfig
    from pytest_gittrix.plugin.evals.outcome import EvalSample
    from pytest_gittrix.plugin.fixtures import Ephemeral, Worlds
    from pytest_gittrix.plugin.run_end import TerminalSection
    from pytest_gittrix.plugin.surroundings import Surroundings
    from pytest_gittrix.testing.faults.crash import Crash
    from pytest_gittrix.testing.faults.model_sweep import WorldModel
    from pytest_gittrix.testing.faults.powercut import PowerCuts
    from pytest_gittrix.testing.faults.small_disks import SmallDisks
    from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
    from pytest_gittrix.testing.repos.forge_server import ForgeServer
    from pytest_gittrix.testing.repos.history import Contents
    from pytest_gittrix.testing.repos.remote_kit import Remotes
    from pytest_gittrix.testing.scenarios.agent_kit import AgentKit
    from pytest_gittrix.testing.scenarios.lineage_kit import ChainKit
    from pytest_gittrix.testing.scenarios.log_kit import LogKit
    from pytest_gittrix.testing.scenarios.session_in import SessionsIn
    from pytest_gittrix.testing.scenarios.timeline import Timeline
    from pytest_gittrix.testing.scenarios.turn_kit import TurnKit
    from pytest_gittrix.testing.schedules.race import Race
    from pytest_gittrix.testing.world import World

_CONFIG = pytest.StashKey["GittrixConfig"]()
_WORLDS = pytest.StashKey["Worlds"]()
_MARKER = pytest.StashKey[dict[str, Any]]()
_FAILED = pytest.StashKey[bool]()
_SURROUNDINGS = pytest.StashKey["Surroundings"]()
_NOTES = pytest.StashKey[list[str]]()
_SECTIONS: pytest.StashKey[tuple[TerminalSection, ...]] = pytest.StashKey()
_OURS = frozenset({"gittrix_clause", "gittrix_eval_run"})  # clause.PROPERTY and nodes.RUN, whose modules are too slow to load in every run
_WORKER_KEY = "gittrix_notes"


__getattr__ = door(
    __name__,
    {"pytest_gittrix.plugin.evals.outcome": ("EvalSample",), "pytest_gittrix.plugin.fixtures": ("Ephemeral", "Worlds")},
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks of the plugin."""
    from pytest_gittrix import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the plugin."""
    from pytest_gittrix.plugin.config import add_options

    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; check the options, if any was given, before a test runs."""
    from pytest_gittrix.plugin.config import EVAL_MARKER, MARKER, put_in_force

    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", EVAL_MARKER)
    if _given(config):
        put_in_force(config, _resolved(config))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Answer ``--gittrix-show-config`` instead of running."""
    if not config.getoption("gittrix_show_config"):
        return None
    from pytest_gittrix.plugin.config import table

    print(*table(config), sep="\n")
    return 0


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the options in force if one was given or pytest is verbose."""
    if config.get_verbosity() <= 0 and not _given(config):
        return None
    from pytest_gittrix.plugin.header import header

    return header(_resolved(config))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not collect the cases of an eval suite: the tests in them check the work of agents."""
    return True if collection_path.name == "cases" and collection_path.with_name("suite.toml").is_file() else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test with the eval marker one test for each sample."""
    if metafunc.definition.get_closest_marker("gittrix_eval") is not None:
        from pytest_gittrix.plugin.evals.nodes import generate

        generate(metafunc, _resolved(metafunc.config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with gittrix fixtures without git's local variables, and note what changes meanwhile in the checkout of the run."""
    if not any(name.startswith("gittrix") for name in getattr(item, "fixturenames", ())):
        return (yield)
    with _surroundings(item.config).around(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test whose fixtures want programs confined on a machine where nothing confines them, if that is asked for."""
    with _where_nothing_confines(item.config):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test whose programs nothing confines, if that is asked for; fail one that passed without its model's script being used up."""
    with _where_nothing_confines(item.config):
        result = yield
    check = getattr(getattr(item, "funcargs", {}).get("gittrix_model"), "check", None)
    if check is not None:
        check()
    return result


@contextmanager
def _where_nothing_confines(config: pytest.Config) -> Iterator[None]:
    """Skip, or say how to skip, where a block fails because nothing confines programs here."""
    try:
        yield
    except Exception as problem:
        errors = sys.modules.get("pytest_gittrix.errors")  # who raises the error has loaded it
        if errors is None or not isinstance(problem, errors.ConfinementMissing):
            raise
        if _resolved(config).unconfined == "skip":
            pytest.skip(problem.fact)
        problem.add_note("Or skip such tests: --gittrix-unconfined=skip.")
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failing test up to the user's line, and its world once; after the test, keep its worlds or remove them."""
    if call.when == "call" and any(name == "gittrix_clause" for name, _ in item.user_properties):
        from pytest_gittrix.conformance.base.clauses import describe_end

        describe_end(item, call.excinfo.value if call.excinfo else None)
    failure = call.excinfo
    by_message = _hide_frames(item, failure)
    report = yield
    if call.excinfo is not failure and call.excinfo is not None and report.failed:  # a unittest.TestCase hands its failure over late
        by_message = _hide_frames(item, call.excinfo)
        report.longrepr = item.repr_failure(call.excinfo)
    if by_message and report.failed and call.excinfo is not None:
        report.longrepr = call.excinfo.getrepr(style="value", chain=False)
    worlds = item.config.stash.get(_WORLDS, None)
    if worlds is None or not worlds.opened:
        return report
    options = _resolved(item.config)
    if report.failed and not item.stash.get(_FAILED, False):
        from pytest_gittrix.plugin.sections import explain_failure

        item.stash[_FAILED] = True
        if call.excinfo is not None:
            from pytest_gittrix.plugin.examples import example_lines

            lines = example_lines(call.excinfo.value, item)
            report.sections += [("gittrix example", "\n".join(lines))] if lines else []
        parts = getattr(item, "funcargs", None) or {}
        report.sections += explain_failure(worlds.opened, item.nodeid, parts, kept=options.keep != "none", artifacts=options.artifacts)
    if report.when == "teardown":
        failed = item.stash.get(_FAILED, False)
        item.stash[_FAILED] = False
        worlds.settle(keep=options.keep == "all" or (options.keep == "failed" and failed))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Finish clauses and evals, delete removed worlds, and send the controller what only this process knows."""
    _finish_run(session)
    config = session.config
    if (worlds := config.stash.get(_WORLDS, None)) is not None:
        worlds.close()
    if (surroundings := config.stash.get(_SURROUNDINGS, None)) is not None:
        surroundings.close()
        _remember(config, surroundings.notes)
        if hasattr(config, "workeroutput"):
            config.workeroutput[_WORKER_KEY] = surroundings.notes


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send a worker of xdist the root directory of the tests."""
    node.workerinput["gittrix_root"] = str(node.config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive what a worker of xdist sent."""
    _remember(node.config, getattr(node, "workeroutput", {}).get(_WORKER_KEY, ()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the results of clauses and evals, and what there is to say of git's variables and of the checkout of the run."""
    for section in config.stash.get(_SECTIONS, ()):
        terminalreporter.section(section.title)
        for line, colour in section.lines:
            terminalreporter.write_line(line, **({colour: True} if colour else {}))
    for note in config.stash.get(_NOTES, ()):
        terminalreporter.write_line(note)


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """Explain comparisons of trees and fingerprints, and of ids with sessions that were swept already, or that sweeps leave."""
    from pytest_gittrix.plugin.assertions import explain, explain_swept

    worlds = config.stash.get(_WORLDS, None)
    engines = [one.world.gittrix for one in worlds.opened] if worlds is not None else ()
    swept = [one for engine in engines for one in engine.services.swept]
    return explain(op, left, right) or explain_swept(op, left, right, swept, engines)


@pytest.fixture(scope="session")
def gittrix_worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Opens a fresh world for each Hypothesis example: ``with gittrix_worlds.open(files=...) as world:``.

    It has session scope, so Hypothesis accepts it. Its worlds do not freeze the test process. Their arguments are those of ``World.open``;
    the marker does not reach them.
    """
    config = request.config
    if _WORLDS in config.stash:
        return config.stash[_WORLDS]  # a plugin reruns a test after the last one: do not use its directories twice

    from pytest_gittrix.plugin.fixtures import Worlds

    options = _resolved(config)
    base = tmp_path_factory.getbasetemp()
    # The base directory of a worker of xdist stands in one that all workers share.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def prepare(world: World) -> None:
        config.hook.pytest_gittrix_world(config=config, world=world)

    worlds = Worlds(
        base / "gittrix",
        shared=shared / "gittrix-shared",
        defaults={"workspace": options.workspace, "clock_start": options.clock_start, "git_variables": options.git_variables},
        run_from=config.invocation_params.dir,
        prepare=prepare,
        keep_all=options.keep == "all",
    )
    config.stash[_WORLDS] = worlds
    return worlds


@pytest.fixture(scope="session")
def gittrix_system(gittrix_worlds: Worlds, request: pytest.FixtureRequest) -> SystemUnderTest:
    """The session system under test. Override it in your ``conftest.py`` to run clauses and tests of yours on a system of your own.

    A ``SessionSystem`` that can also be called with ``files=`` and the other arguments of ``World.open``, and gives a context manager of a
    world. Tests that are written against it run on any system.

    By default it is the one that ``--gittrix-system`` names, or else the reference engine; the other fixtures always show that engine.
    """
    from pytest_gittrix.conformance.under_test import SystemUnderTest
    from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem

    options = _resolved(request.config)
    if options.system is not None:
        return SystemUnderTest(options.system)
    return SystemUnderTest(GitTrixSystem(options.workspace), gittrix_worlds.open)


@pytest.fixture(scope="session")
def gittrix_files() -> Contents | None:
    """Override point: the files that durable begins with, by path, in every test that can see the override; the marker wins."""
    return None


@pytest.fixture(scope="session")
def gittrix_world_options() -> Mapping[str, Any]:
    """Override point: arguments of ``World.open``, such as ``{"workspace": "copy"}``, for the same tests; the marker wins."""
    return {}


@pytest.fixture
def _gittrix_world(
    request: pytest.FixtureRequest, gittrix_worlds: Worlds, gittrix_files: object, gittrix_world_options: object
) -> Iterator[World]:
    """The world that the fixtures of one test are parts of."""
    from pytest_gittrix.plugin.config import refusals_at
    from pytest_gittrix.plugin.fixtures import required_clock, world_arguments

    marker, own = _marker(request), {}
    if _is_overridden(request, "gittrix_clock"):
        own["clock"] = required_clock(request.getfixturevalue("gittrix_clock"), "gittrix_clock gives")
    with refusals_at(request.node, gittrix_world_options, gittrix_files):
        world = gittrix_worlds.create(request.node.name, **world_arguments(marker, gittrix_world_options, gittrix_files), **own)
    with gittrix_worlds.standing(world), _frozen(world.clock, request, only_if_asked=True):
        yield world


@pytest.fixture
def gittrix_durable(_gittrix_world: World) -> DurableRepo:
    """A seeded, isolated durable repository (``DurableRepo``), made from what the marker says."""
    return _gittrix_world.durable


@pytest.fixture
def gittrix_clock(request: pytest.FixtureRequest, gittrix_world_options: object) -> Iterator[FrozenClock]:
    """A clock that only the test moves (``FrozenClock``), at 2030-01-01T00:00:00Z unless configured.

    Naming it also freezes the wall clock of the test process, as ``--gittrix-freeze`` or the marker's ``freeze`` says. The engine runs
    on it in any case.
    """
    options, marker = _resolved(request.config), _marker(request)
    with ExitStack() as held:
        if _is_overridden(request, "gittrix_clock"):  # an override extends this fixture, and the world is opened on what that gives
            from pytest_gittrix.plugin.config import refusals_at
            from pytest_gittrix.plugin.fixtures import clock_before_world

            with refusals_at(request.node, gittrix_world_options):
                clock = held.enter_context(clock_before_world(marker, gittrix_world_options, options.clock_start))
        else:
            clock = request.getfixturevalue("_gittrix_world").clock
        held.enter_context(_frozen(clock, request))
        yield clock


@pytest.fixture
def gittrix(_gittrix_world: World, gittrix_durable: DurableRepo) -> GitTrix:
    """The engine (``GitTrix``) on ``gittrix_durable`` and ``gittrix_clock``: start, list, sweep, evict, recover."""
    return _world_on(_gittrix_world, gittrix_durable).gittrix


@pytest.fixture
def gittrix_session(gittrix: GitTrix, request: pytest.FixtureRequest) -> UserSession:
    """A started session (``UserSession``) on ``gittrix``; its task is the marker's ``task``, or the name of the test.

    Its times are those of ``gittrix_clock``. The test process sees them too if the test names ``gittrix_clock``, and otherwise real time.
    """
    from pytest_gittrix.plugin.fixtures import start_session

    return start_session(gittrix, _marker(request).get("task", request.node.name), request.config.stash.get(_WORLDS, None))


@pytest.fixture
def gittrix_agent(gittrix_session: UserSession) -> AgentSession:
    """``gittrix_session`` as its agent has it (``AgentSession``): no promote, no way to the durable repository."""
    return gittrix_session.for_agent()


@pytest.fixture
def gittrix_ephemeral(_gittrix_world: World, gittrix_durable: DurableRepo) -> Iterator[Ephemeral]:
    """A bare workspace of ``gittrix_durable`` at its head, without a session (``Ephemeral``); of the marker's kind."""
    from pytest_gittrix.plugin.fixtures import ephemeral

    with ephemeral(_world_on(_gittrix_world, gittrix_durable)) as workspace:
        yield workspace


@pytest.fixture
def gittrix_rival(gittrix_durable: DurableRepo) -> Iterator[Rival]:
    """A second person who commits to ``gittrix_durable`` (``Rival``), and leaves its work tree alone unless asked."""
    from pytest_gittrix.plugin.fixtures import required_durable

    with required_durable(gittrix_durable).rival() as rival:
        yield rival


@pytest.fixture
def gittrix_env(_gittrix_world: World, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The hermetic environment, read-only, for programs the test runs: no user configuration, no prompts, dates of ``gittrix_clock``."""
    from pytest_gittrix.plugin.fixtures import Environment

    config = request.config
    return Environment(_gittrix_world, lambda env: config.hook.pytest_gittrix_git_env(config=config, env=env))


@pytest.fixture
def gittrix_race(_gittrix_world: World, gittrix_env: Mapping[str, str]) -> Iterator[Race]:
    """Control over interleavings (``Race``): another actor at a named step, or several actors in an order the test chooses."""
    from pytest_gittrix.plugin.fixtures import race

    with race(_gittrix_world, gittrix_env) as control:
        yield control


@pytest.fixture(scope="session")
def gittrix_crash() -> Crash:
    """Crashes of any code at a named point or at any call that changes a file (``Crash``). Skips where a machine cannot play them."""
    from pytest_gittrix.testing.faults.crash import Crash

    return Crash(cannot=pytest.skip)


@pytest.fixture(scope="session")
def gittrix_power_cuts() -> PowerCuts:
    """Power cuts at each call of a program, on a real file system in an image (``PowerCuts``). Skips where that cannot be mounted."""
    from pytest_gittrix.testing.faults.powercut import PowerCuts

    return PowerCuts(cannot=pytest.skip)


@pytest.fixture
def gittrix_small_disk() -> Iterator[SmallDisks]:
    """Disks that really fill up (``SmallDisks``): ``gittrix_small_disk("64k")`` gives a directory. Skips where none can be mounted."""
    from contextlib import ExitStack

    from pytest_gittrix.testing.faults.small_disks import SmallDisks

    with ExitStack() as mounted:
        yield SmallDisks(mounted.enter_context, cannot=pytest.skip)


@pytest.fixture
def gittrix_log(tmp_path_factory: pytest.TempPathFactory) -> LogKit:
    """A real event log to build, compare and damage (``LogKit``); ``gittrix_log.of(session)`` is the same for that of a session."""
    from pytest_gittrix.testing.scenarios.log_kit import LogKit

    return LogKit(tmp_path_factory.mktemp("gittrix-log"))


@pytest.fixture
def gittrix_turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnKit]:
    """Scripted turns that stop at named points (``TurnKit``): ``start_turn(gittrix_turns.script().call("c1").at("inside").hang())``."""
    from pytest_gittrix.testing.scenarios.turn_kit import TurnKit

    with TurnKit(tmp_path_factory.mktemp("gittrix-turns")) as turns:
        yield turns


@pytest.fixture
def gittrix_agent_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentKit]:
    """Agents as real processes that do what a script says (``AgentKit``): ``gittrix_agent_process.script().at("up").exits(3)``."""
    from pytest_gittrix.testing.scenarios.agent_kit import AgentKit

    with AgentKit(tmp_path_factory.mktemp("gittrix-agents")) as agents:
        yield agents


@pytest.fixture
def gittrix_chain(gittrix: GitTrix) -> ChainKit:
    """Lineages of sessions on ``gittrix``, at times that the test chooses (``ChainKit``): ``gittrix_chain("ada", ["handoff", "done"])``."""
    from pytest_gittrix.plugin.fixtures import required_clock
    from pytest_gittrix.testing.scenarios.lineage_kit import ChainKit

    return ChainKit(gittrix, required_clock(gittrix.clock, "gittrix runs on"))


@pytest.fixture
def gittrix_session_in(gittrix: GitTrix) -> SessionsIn:
    """Makes a session in any state of any of the systems: ``gittrix_session_in("retained", outcome="failed", age="25h")``."""
    from pytest_gittrix.plugin.fixtures import required_clock
    from pytest_gittrix.testing.scenarios.session_in import SessionsIn

    return SessionsIn(gittrix, required_clock(gittrix.clock, "gittrix runs on"))


@pytest.fixture
def gittrix_timeline(gittrix_session_in: SessionsIn) -> Callable[..., Timeline]:
    """Makes a story of a session that is seen from outside (``Timeline``): ``gittrix_timeline().at("0", runtime="alive")``."""
    return gittrix_session_in.timeline


@pytest.fixture
def gittrix_remote(_gittrix_world: World, request: pytest.FixtureRequest) -> Iterator[Remotes]:
    """Makes bare remotes (``BareRemote``) that refuse, diverge, are read-only or slow: ``gittrix_remote(files=..., name="app")``."""
    from pytest_gittrix.testing.repos.remote_kit import remotes

    # Asked for only by a remote with durable's commits: a gittrix_durable of the project's own may be made from a remote.
    with remotes(_gittrix_world, lambda: request.getfixturevalue("gittrix_durable")) as make:
        yield make


@pytest.fixture
def gittrix_forge(_gittrix_world: World, gittrix_durable: DurableRepo) -> Iterator[ForgeServer]:
    """A forge on this machine (``ForgeServer``) with pull requests, CI and reviews to script; ``forge()`` is an adapter to it."""
    from pytest_gittrix.testing.repos.remote_kit import forge_at

    with forge_at(_world_on(_gittrix_world, gittrix_durable)) as server:
        yield server


@pytest.fixture
def gittrix_model(_gittrix_world: World, gittrix: GitTrix, request: pytest.FixtureRequest) -> WorldModel:
    """A model on this machine (``WorldModel``) that answers agents by a script: ``gittrix_model.script(say("Hello"))``.

    A script that is not used up, or is asked for more than it has, fails the test. With the marker's ``model="tape"`` it answers from a
    recording beside the test, or makes one.
    """
    from pytest_gittrix.plugin.tapes import put_tape_in

    assert gittrix is not None, "the sessions of a sweep are on the engine of the test"
    put_tape_in(_gittrix_world.model, request.node, _marker(request), _resolved(request.config))
    return _gittrix_world.model


@pytest.fixture
def gittrix_eval(request: pytest.FixtureRequest) -> EvalSample:
    """The sample that a test with ``@pytest.mark.gittrix_eval`` is about (``EvalSample``), done: its outcome, record and patch."""
    from pytest_gittrix.plugin.evals.nodes import sample_of

    return sample_of(request, _resolved(request.config))


def _resolved(config: pytest.Config) -> GittrixConfig:
    if _CONFIG not in config.stash:
        from pytest_gittrix.plugin.config import resolve

        config.stash[_CONFIG] = resolve(config)
    return config.stash[_CONFIG]


def _given(config: pytest.Config) -> bool:
    from pytest_gittrix.plugin.config import settings

    return any(setting.given for setting in settings(config))


def _marker(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """The arguments of the markers of a test, merged once for all its fixtures."""
    stash = request.node.stash
    if _MARKER not in stash:
        from pytest_gittrix.plugin.config import marker_arguments

        stash[_MARKER] = marker_arguments(request.node)
    arguments: Mapping[str, Any] = stash[_MARKER]
    return arguments


def _is_overridden(request: pytest.FixtureRequest, name: str) -> bool:
    """Whether a test finds another fixture of this name than the one of this module."""
    found = request.session._fixturemanager.getfixturedefs(name, request.node)
    return not found or getattr(found[-1].func, "__module__", None) != __name__


def _world_on(world: World, durable: DurableRepo) -> World:
    """The world of a test once it works on the test's durable repository, which an override may have replaced."""
    if durable is not world.durable:
        from pytest_gittrix.plugin.fixtures import required_durable

        world.work_on(required_durable(durable))
    return world


def _frozen(clock: FrozenClock, request: pytest.FixtureRequest, *, only_if_asked: bool = False) -> AbstractContextManager[None]:
    """Freeze the process as the test and the options of the run say; ``only_if_asked`` by the test's marker."""
    from pytest_gittrix.plugin.config import freezing

    how = freezing(request.node, _marker(request), _resolved(request.config))
    if how.mode == "none" or (only_if_asked and not how.asked):
        return nullcontext()
    from pytest_gittrix.clock.freeze import process_freeze

    return process_freeze(clock, how.mode, children=how.children, autojump=how.autojump)


def _hide_frames(item: pytest.Item, failure: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Hide the frames of the package in a failure; returns whether it has no other, so that its message is all there is to show."""
    if failure is None or item.config.getoption("fulltrace", False):
        return False
    from pytest_gittrix.plugin.tracebacks import hide_frames

    return hide_frames(failure.value, getattr(item, "module", None))


def _surroundings(config: pytest.Config) -> Surroundings:
    if _SURROUNDINGS not in config.stash:
        from pytest_gittrix.plugin.surroundings import Surroundings

        config.stash[_SURROUNDINGS] = Surroundings(config.invocation_params.dir, _resolved(config).git_variables)
    return config.stash[_SURROUNDINGS]


def _remember(config: pytest.Config, notes: Iterable[str]) -> None:
    known = config.stash.setdefault(_NOTES, [])
    known += [note for note in notes if note not in known]


def _finish_run(session: pytest.Session) -> None:
    """Summarise clauses and evals."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(session.config, "workerinput"):  # the controller of xdist has the reports of all its workers
        return
    reports = [report for found in terminal.stats.values() for report in found if _is_ours(report)]
    if reports:
        from pytest_gittrix.plugin.run_end import finish_run

        session.config.stash[_SECTIONS] = finish_run(session, reports, terminal, _resolved(session.config))


def _is_ours(report: object) -> bool:
    return any(name in _OURS for name, _ in getattr(report, "user_properties", ()))
