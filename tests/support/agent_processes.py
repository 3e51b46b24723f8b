"""What the tests of agents as processes share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import process, signal_process
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit, AgentScript

LONG = 60.0
SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath)}

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents as processes need Linux")


@pytest.fixture(name="agents")
def agents_fixture(tmp_path: Path) -> Iterator[AgentKit]:
    """Scripts, and agents that follow them."""
    with AgentKit(tmp_path / "kit", timeout=LONG) as kit:
        yield kit


@pytest.fixture(name="place")
def place_fixture(tmp_path: Path) -> Iterator[Path]:
    """A workspace; the agents that are started beside it end with the test."""
    (tmp_path / "workspace").mkdir()
    yield tmp_path / "workspace"
    for file in tmp_path.glob("*/agent.json"):
        AgentProcess(file.parent).stop(grace=0)


def start(place: Path, *command: str, name: str = "agent", **variables: str) -> AgentProcess:
    """Start a command with its files beside its workspace."""
    return start_agent(command, directory=place.parent / name, workspace=place, environment={**ENVIRONMENT, **variables})


def started(agents: AgentKit, script: AgentScript) -> AgentProcess:
    """An agent that came to the end of a script, and hangs."""
    agent = agents.start(script.at("up").hang())
    agents.step("up")
    return agent


def owner(agent: AgentProcess) -> Owner:
    """Who it is."""
    assert agent.owner is not None
    return agent.owner


def record(agent: AgentProcess) -> dict[str, Any]:
    """What its directory tells of it."""
    stored: dict[str, Any] = json.loads((agent.directory / "agent.json").read_bytes())
    return stored


def supervisor_of(agent: AgentProcess) -> Owner:
    """Who keeps it."""
    return Owner.from_json(record(agent)["keeper"])


def hit(who: Owner, number: int) -> None:
    """Send a signal to a process that a test started."""
    one = process(who.pid)
    assert one is not None
    assert one.is_(who)
    assert signal_process(one, number)
