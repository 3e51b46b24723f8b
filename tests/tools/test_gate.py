"""What an agent of each framework tries at its default: nothing gets out, and nothing is promoted."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from support.agent_processes import on_linux
from support.gate import FOR_PEOPLE, ROOT, Gate

from pytest_gittrix.confine import strongest
from pytest_gittrix.extras import EXTRAS, missing
from pytest_gittrix.model import ModelServer, call

pytestmark = on_linux


def by_deepagents(gate: Gate) -> str | None:
    from pytest_gittrix.integrations.deepagents import GittrixBackend

    session = gate.engine.start_session("the gate")
    GittrixBackend(session.for_agent(), readable=[ROOT]).execute(shlex.join(gate.command))
    return str(session.workspace_path)


def by_openai_agents(gate: Gate) -> str | None:
    from pytest_gittrix.integrations.openai_agents import GittrixSandboxClient

    async def run() -> str:
        async with await GittrixSandboxClient(gate.engine, readable=[ROOT]).create() as sandbox:
            await sandbox.exec(*gate.command, shell=False)
            return str(sandbox.state.gittrix_session)

    return str(gate.engine.get_session(asyncio.run(run())).workspace_path)


def by_claude(gate: Gate) -> str | None:
    from claude_agent_sdk import ClaudeSDKClient

    from pytest_gittrix.integrations.claude_agent import claude_options

    session = gate.engine.start_session("the gate")

    async def run() -> None:
        async with claude_options(session.for_agent(), readable=[ROOT]) as options, ClaudeSDKClient(options) as client:
            await client.query("Go.")
            _ = [message async for message in client.receive_response()]

    attempt = call("Bash", command=shlex.join(gate.command), description="try")
    with ModelServer() as model, pytest.MonkeyPatch.context() as patch:
        model.script(attempt, "Done.")
        patch.setenv("ANTHROPIC_BASE_URL", model.url)
        patch.setenv("ANTHROPIC_API_KEY", "hunter2")
        asyncio.run(run())
    return str(session.workspace_path)


def by_smolagents(gate: Gate) -> str | None:
    from examples.integrations.smolagents_executor import GittrixExecutor

    session = gate.engine.start_session("the gate")
    executor = GittrixExecutor(session.for_agent(), readable=[ROOT])
    executor(f"import subprocess; subprocess.run({[*gate.command]!r})")
    executor.cleanup()
    return str(session.workspace_path)


def by_swe_rex(gate: Gate) -> str | None:
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    from examples.integrations.swe_rex_deployment import GittrixDeployment

    session = gate.engine.start_session("the gate")
    deployment = GittrixDeployment(session.for_agent(), readable=[ROOT])

    async def run() -> None:
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        await deployment.runtime.run_in_session(BashAction(command=shlex.join(gate.command), check="silent", timeout=120))
        await deployment.stop()

    asyncio.run(run())
    return str(session.workspace_path)


def by_strands(gate: Gate) -> str | None:
    from examples.integrations.strands_sandbox import GittrixSandbox

    session = gate.engine.start_session("the gate")
    asyncio.run(GittrixSandbox(session.for_agent(), readable=[ROOT]).execute(shlex.join(gate.command)))
    return str(session.workspace_path)


def by_adk(gate: Gate) -> str | None:
    from examples.integrations.adk_environment import GittrixEnvironment

    session = gate.engine.start_session("the gate")
    asyncio.run(GittrixEnvironment(session.for_agent(), readable=[ROOT]).execute(shlex.join(gate.command)))
    return str(session.workspace_path)


LAUNCHERS: Final[Mapping[str, Callable[[Gate], str | None]]] = {
    "deepagents": by_deepagents,
    "openai-agents": by_openai_agents,
    "claude": by_claude,
    "smolagents": by_smolagents,
    "swe-rex": by_swe_rex,
    "strands": by_strands,
    "adk": by_adk,
}
"""By the framework: runs the gate's agent in a session, as a tool of the framework does, and gives its workspace."""


COPIED: Final = {"smolagents": "smolagents", "swe-rex": "swerex", "strands": "strands", "adk": "google.adk"}
"""The frameworks that no extra installs, and how they are imported."""


@pytest.mark.skipif(strongest().level == "off", reason=strongest().why)
@pytest.mark.parametrize("extra", LAUNCHERS)
def test_by_default_nothing_gets_through(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing("serve") or (missing(extra) if extra in EXTRAS else ""):
        pytest.skip(reason)
    if extra in COPIED:
        pytest.importorskip(COPIED[extra], reason="needs the environment of make tools")
    for name, value in FOR_PEOPLE.items():
        monkeypatch.setenv(name, value)
    with Gate.open(tmp_path, None) as gate:
        got = gate.got(LAUNCHERS[extra](gate))

    assert len(got) == 12
    assert not any(got.values()), got
