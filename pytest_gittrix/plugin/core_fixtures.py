"""The fixtures that every test can name. Each is a few lines over a public context manager; pytest loads this in every run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gittrix.plugin.run_state import WORLDS, marker_of, resolved

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import FrozenClock
    from pytest_gittrix.conformance.under_test import SystemUnderTest
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.user_session import AgentSession, UserSession
    from pytest_gittrix.plugin.evals.outcome import EvalSample
    from pytest_gittrix.plugin.worlds import Ephemeral, Worlds
    from pytest_gittrix.testing.faults.crash import Crash
    from pytest_gittrix.testing.faults.model_sweep import WorldModel
    from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
    from pytest_gittrix.testing.repos.history import Contents
    from pytest_gittrix.testing.schedules.race import Race
    from pytest_gittrix.testing.world import World


@pytest.fixture(scope="session")
def gittrix_worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Opens a fresh world for each Hypothesis example: ``with gittrix_worlds.open(files=...) as world:``.

    It has session scope, so Hypothesis accepts it. Its worlds do not freeze the test process. Their arguments are those of ``World.open``;
    the marker does not reach them.
    """
    config = request.config
    if WORLDS in config.stash:
        return config.stash[WORLDS]  # a plugin reruns a test after the last one: do not use its directories twice

    from pytest_gittrix.plugin.worlds import Worlds

    options = resolved(config)
    base = tmp_path_factory.getbasetemp()
    # The base directory of a worker of xdist is in one that all workers share.
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
    config.stash[WORLDS] = worlds
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

    options = resolved(request.config)
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


@pytest.fixture(name="_gittrix_world")
def world_of_the_test(
    request: pytest.FixtureRequest, gittrix_worlds: Worlds, gittrix_files: object, gittrix_world_options: object
) -> Iterator[World]:
    """The world that the fixtures of one test are parts of."""
    from pytest_gittrix.plugin.marker import refusals_at
    from pytest_gittrix.plugin.worlds import required_clock, world_arguments

    marker, own = marker_of(request.node), {}
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
    options, marker = resolved(request.config), marker_of(request.node)
    with ExitStack() as held:
        if _is_overridden(request, "gittrix_clock"):  # an override extends this fixture, and the world is opened on what that gives
            from pytest_gittrix.plugin.marker import refusals_at
            from pytest_gittrix.plugin.worlds import clock_before_world

            with refusals_at(request.node, gittrix_world_options):
                clock = held.enter_context(clock_before_world(marker, gittrix_world_options, options.clock_start))
        else:
            clock = request.getfixturevalue("_gittrix_world").clock
        held.enter_context(_frozen(clock, request))
        yield clock


@pytest.fixture
def gittrix(_gittrix_world: World, gittrix_durable: DurableRepo) -> GitTrix:
    """The engine (``GitTrix``) on ``gittrix_durable`` and ``gittrix_clock``: start, list, sweep, evict, recover."""
    return world_on(_gittrix_world, gittrix_durable).gittrix


@pytest.fixture
def gittrix_session(gittrix: GitTrix, request: pytest.FixtureRequest) -> UserSession:
    """A started session (``UserSession``) on ``gittrix``; its task is the marker's ``task``, or the name of the test.

    Its times are those of ``gittrix_clock``. The test process sees them too if the test names ``gittrix_clock``, and otherwise real time.
    """
    from pytest_gittrix.plugin.worlds import start_session

    return start_session(gittrix, marker_of(request.node).get("task", request.node.name), request.config.stash.get(WORLDS, None))


@pytest.fixture
def gittrix_agent(gittrix_session: UserSession) -> AgentSession:
    """``gittrix_session`` as its agent has it (``AgentSession``): no promote, no way to the durable repository."""
    return gittrix_session.for_agent()


@pytest.fixture
def gittrix_ephemeral(_gittrix_world: World, gittrix_durable: DurableRepo) -> Iterator[Ephemeral]:
    """A bare workspace of ``gittrix_durable`` at its head, without a session (``Ephemeral``); of the marker's kind."""
    from pytest_gittrix.plugin.worlds import ephemeral

    with ephemeral(world_on(_gittrix_world, gittrix_durable)) as workspace:
        yield workspace


@pytest.fixture
def gittrix_rival(gittrix_durable: DurableRepo) -> Iterator[Rival]:
    """A second person who commits to ``gittrix_durable`` (``Rival``), and leaves its work tree alone unless asked."""
    from pytest_gittrix.plugin.worlds import required_durable

    with required_durable(gittrix_durable).rival() as rival:
        yield rival


@pytest.fixture
def gittrix_env(_gittrix_world: World, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The hermetic environment, read-only, for programs the test runs: no user configuration, no prompts, dates of ``gittrix_clock``."""
    from pytest_gittrix.plugin.worlds import Environment

    config = request.config
    return Environment(_gittrix_world, lambda env: config.hook.pytest_gittrix_git_env(config=config, env=env))


@pytest.fixture
def gittrix_race(_gittrix_world: World, gittrix_env: Mapping[str, str]) -> Iterator[Race]:
    """Control over interleavings (``Race``): another actor at a named step, or several actors in an order the test chooses."""
    from pytest_gittrix.plugin.worlds import race

    with race(_gittrix_world, gittrix_env) as control:
        yield control


@pytest.fixture(scope="session")
def gittrix_crash() -> Crash:
    """Crashes of any code at a named point or at any call that changes a file (``Crash``). Skips where a machine cannot play them."""
    from pytest_gittrix.testing.faults.crash import Crash

    return Crash(cannot=pytest.skip)


@pytest.fixture
def gittrix_model(_gittrix_world: World, gittrix: GitTrix, request: pytest.FixtureRequest) -> WorldModel:
    """A model on this machine (``WorldModel``) that answers agents by a script: ``gittrix_model.script(say("Hello"))``.

    A script that is not used up, or is asked for more than it has, fails the test. With the marker's ``model="tape"`` it answers from a
    recording next to the test, or makes one.
    """
    from pytest_gittrix.plugin.tapes import put_tape_in

    assert gittrix is not None, "the sessions of a sweep are on the engine of the test"
    put_tape_in(_gittrix_world.model, request.node, marker_of(request.node), resolved(request.config))
    return _gittrix_world.model


@pytest.fixture
def gittrix_eval(request: pytest.FixtureRequest) -> EvalSample:
    """The sample that a test with ``@pytest.mark.gittrix_eval`` is about (``EvalSample``), done: its outcome, record and patch."""
    from pytest_gittrix.plugin.evals.nodes import sample_of

    return sample_of(request, resolved(request.config))


def _is_overridden(request: pytest.FixtureRequest, name: str) -> bool:
    """Whether a test finds another fixture of this name than the one of this module."""
    found = request.session._fixturemanager.getfixturedefs(name, request.node)
    return not found or getattr(found[-1].func, "__module__", None) != __name__


def world_on(world: World, durable: DurableRepo) -> World:
    """The world of a test once it works on the test's durable repository, which an override may have replaced."""
    if durable is not world.durable:
        from pytest_gittrix.plugin.worlds import required_durable

        world.work_on(required_durable(durable))
    return world


def _frozen(clock: FrozenClock, request: pytest.FixtureRequest, *, only_if_asked: bool = False) -> AbstractContextManager[None]:
    """Freeze the process as the test and the options of the run say; ``only_if_asked`` by the test's marker."""
    from pytest_gittrix.plugin.marker import freezing

    how = freezing(request.node, marker_of(request.node), resolved(request.config))
    if how.mode == "none" or (only_if_asked and not how.asked):
        return nullcontext()
    from pytest_gittrix.clock.freeze import process_freeze

    return process_freeze(clock, how.mode, children=how.children, autojump=how.autojump)
