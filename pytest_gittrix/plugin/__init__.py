"""The pytest plugin: its hooks, options, markers, fixtures and report sections.

pytest imports this module in every run of every project that has the package installed, so each function imports what it needs. The logic
is in other modules.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gittrix.lazy_exports import door
from pytest_gittrix.plugin.core_fixtures import gittrix as gittrix
from pytest_gittrix.plugin.core_fixtures import gittrix_agent as gittrix_agent
from pytest_gittrix.plugin.core_fixtures import gittrix_clock as gittrix_clock
from pytest_gittrix.plugin.core_fixtures import gittrix_crash as gittrix_crash
from pytest_gittrix.plugin.core_fixtures import gittrix_durable as gittrix_durable
from pytest_gittrix.plugin.core_fixtures import gittrix_env as gittrix_env
from pytest_gittrix.plugin.core_fixtures import gittrix_ephemeral as gittrix_ephemeral
from pytest_gittrix.plugin.core_fixtures import gittrix_eval as gittrix_eval
from pytest_gittrix.plugin.core_fixtures import gittrix_files as gittrix_files
from pytest_gittrix.plugin.core_fixtures import gittrix_model as gittrix_model
from pytest_gittrix.plugin.core_fixtures import gittrix_race as gittrix_race
from pytest_gittrix.plugin.core_fixtures import gittrix_rival as gittrix_rival
from pytest_gittrix.plugin.core_fixtures import gittrix_session as gittrix_session
from pytest_gittrix.plugin.core_fixtures import gittrix_system as gittrix_system
from pytest_gittrix.plugin.core_fixtures import gittrix_world_options as gittrix_world_options
from pytest_gittrix.plugin.core_fixtures import gittrix_worlds as gittrix_worlds
from pytest_gittrix.plugin.core_fixtures import world_of_the_test as world_of_the_test
from pytest_gittrix.plugin.run_state import WORLDS, given, marker_of, resolved

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gittrix.plugin.run_end import TerminalSection
    from pytest_gittrix.plugin.surroundings import Surroundings

_FAILED = pytest.StashKey[bool]()
_SURROUNDINGS = pytest.StashKey["Surroundings"]()
_NOTES = pytest.StashKey[list[str]]()
_SECTIONS: pytest.StashKey[tuple[TerminalSection, ...]] = pytest.StashKey()
_OURS = frozenset({"gittrix_clause", "gittrix_eval_run"})  # clause.PROPERTY and nodes.RUN, whose modules are too slow to load in every run
_MORE = frozenset(
    f"gittrix_{name}"
    for name in ("agent_process", "chain", "forge", "log", "power_cuts", "remote", "session_in", "small_disk", "timeline", "turns")
)
_MORE_FIXTURES = """fixture '{}' not found
It is for special purposes, and pytest --fixtures shows those only to projects that ask for them.
Add this line to the conftest.py of your root directory: pytest_plugins = ["pytest_gittrix.more_fixtures"]
Or for one run: pytest -p pytest_gittrix.more_fixtures"""
_LONGER_WORLD = """{0}
A world of gittrix_worlds lives as long as the fixture that opens it:
@pytest.fixture(scope="module")
def world(gittrix_worlds):
    with gittrix_worlds.open(files={{"app.py": "v1\\n"}}) as world:
        yield world
It has .durable, .gittrix, .clock and .rival; world.start("a task") starts a session."""
_WORKER_KEY = "gittrix_notes"


__getattr__ = door(
    __name__,
    {"pytest_gittrix.plugin.evals.outcome": ("EvalSample",), "pytest_gittrix.plugin.worlds": ("Ephemeral", "Worlds")},
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
    from pytest_gittrix.plugin.config import put_in_force
    from pytest_gittrix.plugin.options import EVAL_MARKER, MARKER

    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", EVAL_MARKER)
    if given(config):
        put_in_force(config, resolved(config))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Answer ``--gittrix-show-config`` or ``--gittrix-init`` instead of running."""
    if config.getoption("gittrix_init"):
        from pytest_gittrix.plugin.first_files import first_files, write_missing

        try:
            print(*write_missing(first_files(config.rootpath, config.getini("testpaths"))), sep="\n")
        except OSError as problem:
            raise pytest.UsageError(f"--gittrix-init cannot write a file: {problem}") from None
        return 0
    if not config.getoption("gittrix_show_config"):
        return None
    from pytest_gittrix.plugin.config import table

    print(*table(config), sep="\n")
    return 0


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the options in force if one was given or pytest is verbose."""
    if config.get_verbosity() <= 0 and not given(config):
        return None
    from pytest_gittrix.plugin.config import header

    return header(resolved(config))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not collect the cases of an eval suite: the tests in them check the work of agents."""
    return True if collection_path.name == "cases" and collection_path.with_name("suite.toml").is_file() else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """Watch what a module with evals reads while it is loaded: its functions may be agents, and agents are inputs of their results."""
    if not isinstance(collector, pytest.Module) or b"gittrix_eval" not in _bytes_of(collector.path):
        return (yield)
    from pytest_gittrix.plugin.evals.nodes import watched_import

    with watched_import(collector.path):
        return (yield)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test with the eval marker one test for each sample."""
    if metafunc.definition.get_closest_marker("gittrix_eval") is not None:
        from pytest_gittrix.plugin.evals.nodes import generate

        generate(metafunc, resolved(metafunc.config))


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
    with _explained(item.config):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test whose programs nothing confines, if that is asked for; fail one that passed over its budget or script."""
    with _explained(item.config), _budgets(item):
        result = yield
    check = getattr(getattr(item, "funcargs", {}).get("gittrix_model"), "check", None)
    if check is not None:
        check()
    return result


def _budgets(item: pytest.Item) -> AbstractContextManager[None]:
    """Keep a test to the budgets of its markers, if they set any."""
    if item.get_closest_marker("gittrix") is None:
        return nullcontext()
    from pytest_gittrix.plugin.marker import BUDGETS, within_budgets

    is_set = any(name in BUDGETS for mark in item.iter_markers("gittrix") for name in mark.kwargs)
    return within_budgets(item, marker_of(item)) if is_set else nullcontext()


@contextmanager
def _explained(config: pytest.Config) -> Iterator[None]:
    """Say what to do where a fixture of a block has to be asked for, and skip or say how to skip where nothing confines programs."""
    try:
        yield
    except pytest.FixtureLookupError as problem:
        if problem.argname in _MORE:
            problem.msg = _MORE_FIXTURES.format(problem.argname)
        raise
    except pytest.fail.Exception as problem:
        if str(problem.msg).startswith("ScopeMismatch") and "scoped fixture gittrix" in str(problem.msg):
            problem.msg = _LONGER_WORLD.format(problem.msg)
            problem.args = (problem.msg,)
        raise
    except Exception as problem:
        errors = sys.modules.get("pytest_gittrix.errors")  # who raises the error has loaded it
        if errors is None or not isinstance(problem, errors.ConfinementMissing):
            raise
        if resolved(config).unconfined == "skip":
            pytest.skip(problem.fact)
        problem.add_note("Or skip such tests: --gittrix-unconfined=skip.")
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failing test up to the user's line, and its world once; after the test, keep its worlds or remove them."""
    if call.when == "call" and any(name == "gittrix_clause" for name, _ in item.user_properties):
        from pytest_gittrix.conformance.base.clauses import describe_end

        history = any(file.suffix == ".jsonl" for file in resolved(item.config).conformance_report)
        describe_end(item, call.excinfo.value if call.excinfo else None, history=history)
    failure = call.excinfo
    by_message = _hide_frames(item, failure)
    report = yield
    if call.excinfo is not failure and call.excinfo is not None and report.failed:  # a unittest.TestCase hands its failure over late
        by_message = _hide_frames(item, call.excinfo)
        report.longrepr = item.repr_failure(call.excinfo)
    if by_message and report.failed and call.excinfo is not None:
        report.longrepr = call.excinfo.getrepr(style="value", chain=False)
    worlds = item.config.stash.get(WORLDS, None)
    if worlds is None or not worlds.opened:
        return report
    options = resolved(item.config)
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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Finish clauses and evals as soon as all tests have run, so that every plugin meets the exit status that they decide."""
    try:
        return (yield)
    finally:
        _finish_run(session)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Delete removed worlds, and send the controller what only this process knows."""
    config = session.config
    if (worlds := config.stash.get(WORLDS, None)) is not None:
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

    worlds = config.stash.get(WORLDS, None)
    engines = [one.world.gittrix for one in worlds.opened] if worlds is not None else ()
    swept = [one for engine in engines for one in engine.services.swept]
    return explain(op, left, right) or explain_swept(op, left, right, swept, engines)


def _hide_frames(item: pytest.Item, failure: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Hide the frames of the package in a failure; returns whether it has no other, so that its message is all there is to show."""
    if failure is None or item.config.getoption("fulltrace", False):
        return False
    from pytest_gittrix.plugin.tracebacks import hide_frames, hide_lines

    hide_lines(failure.value)
    return hide_frames(failure.value, getattr(item, "module", None))


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _surroundings(config: pytest.Config) -> Surroundings:
    if _SURROUNDINGS not in config.stash:
        from pytest_gittrix.plugin.surroundings import Surroundings

        config.stash[_SURROUNDINGS] = Surroundings(config.invocation_params.dir, resolved(config).git_variables)
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

        session.config.stash[_SECTIONS] = finish_run(session, reports, terminal, resolved(session.config))


def _is_ours(report: object) -> bool:
    return any(name in _OURS for name, _ in getattr(report, "user_properties", ()))
