"""Fixtures for special purposes, for projects whose root ``conftest.py`` asks for them.

In that file::

    pytest_plugins = ["pytest_gittrix.more_fixtures"]

For pytest, which would warn that it cannot rewrite the assertions of a loaded module: PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from pytest_gittrix.plugin.core_fixtures import world_on

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.testing.faults.powercut import PowerCuts
    from pytest_gittrix.testing.faults.small_disks import SmallDisks
    from pytest_gittrix.testing.repos.durable import DurableRepo
    from pytest_gittrix.testing.repos.forge_server import ForgeServer
    from pytest_gittrix.testing.repos.remote_kit import Remotes
    from pytest_gittrix.testing.scenarios.agent_kit import AgentKit
    from pytest_gittrix.testing.scenarios.lineage_kit import ChainKit
    from pytest_gittrix.testing.scenarios.log_kit import LogKit
    from pytest_gittrix.testing.scenarios.session_in import SessionsIn
    from pytest_gittrix.testing.scenarios.timeline import Timeline
    from pytest_gittrix.testing.scenarios.turn_kit import TurnKit
    from pytest_gittrix.testing.world import World


@pytest.fixture(scope="session")
def gittrix_power_cuts() -> PowerCuts:
    """Power cuts at each call of a program, on a real file system in an image (``PowerCuts``). Skips where that cannot be mounted."""
    from pytest_gittrix.testing.faults.powercut import PowerCuts

    return PowerCuts(cannot=pytest.skip)


@pytest.fixture
def gittrix_small_disk() -> Iterator[SmallDisks]:
    """Disks that really fill up (``SmallDisks``): ``gittrix_small_disk("64k")`` gives a directory. Skips where none can be mounted."""
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
    from pytest_gittrix.plugin.worlds import required_clock
    from pytest_gittrix.testing.scenarios.lineage_kit import ChainKit

    return ChainKit(gittrix, required_clock(gittrix.clock, "gittrix runs on"))


@pytest.fixture
def gittrix_session_in(gittrix: GitTrix) -> SessionsIn:
    """Makes a session in any state of any of the systems: ``gittrix_session_in("retained", outcome="failed", age="25h")``."""
    from pytest_gittrix.plugin.worlds import required_clock
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

    with forge_at(world_on(_gittrix_world, gittrix_durable)) as server:
        yield server
