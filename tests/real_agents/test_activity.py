"""What published agents write in their homes by themselves tells an orchestrator what they do, on a clock that a test moves."""

from __future__ import annotations

import os
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path
from string import Template

import pytest
from support.daemon import wait_until
from support.frameworks import available

from pytest_gittrix.model import call_any, stop
from pytest_gittrix.orchestrator.config import CommandAgent, Project, SpawnConfig
from pytest_gittrix.orchestrator.orchestrator import Orchestrator
from pytest_gittrix.testing.world import World
from tests.real_agents.table import AGENTS, Agent

GATEWAY = "http://127.0.0.1:3128/model"
SILENT = (("working", "idle"), ("stuck", "idle"))
WAITING = (("needs_input", "waiting_input"), ("needs_input", "waiting_input"))
SEEN = {"claude": SILENT, "codex": SILENT, "opencode": WAITING, "pi": SILENT}
"""Status and activity six minutes, and half an hour, into a command that does not end. Gemini CLI writes a call with its result only."""
WAITS = call_any(shell="touch began; while [ ! -e go ]; do sleep 0.1; done")


def command_of(agent: Agent) -> tuple[str, ...]:
    """A command that writes an agent's settings into its home, and becomes the agent."""

    def filled(text: str) -> str:
        return Template(text).substitute(URL=GATEWAY, TASK="Wait for the file go")

    lines = [
        f'mkdir -p "$HOME/{Path(path).parent}"; printf %s {shlex.quote(filled(text))} > "$HOME/{path}"'
        for path, text in agent.files.items()
    ]
    lines.append('exec "$@" < /dev/null')  # most of them wait for the end of a pipe
    return ("/bin/sh", "-c", "\n".join(lines), "sh", str(agent.executable), *map(filled, agent.arguments))


@pytest.mark.parametrize("agent", [one for one in AGENTS if one.program in SEEN], ids=lambda agent: agent.program)
def test_it_is_seen_at_work_idle_stuck_and_gone(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    if agent.missing is not None:
        pytest.skip(agent.missing)
    available("jail")
    for name, value in agent.variables.items():
        monkeypatch.setenv(name, value)
    node = Path(shutil.which("node") or "").resolve().parent.parent
    # Their records have the machine's time.
    with World.open(files={"app.py": "v1\n"}, clock_start=datetime.now(UTC)) as world:
        world.model.script(WAITS, stop("Done."))
        project = Project("app", str(world.durable.path), agents=(CommandAgent(agent.program, command_of(agent)),))
        reached = {"readable": [agent.directory, node], "network": [world.model.endpoint], "pass_env": [*agent.variables]}
        with Orchestrator(world.gittrix, [project], confine="auto", **reached) as lead:
            session = lead.spawn(SpawnConfig("app"))
            workspace = Path(os.fspath(session.workspace_path or ""))

            def now() -> tuple[str, str | None]:
                lead.poll()
                found = lead.get(session.id)
                return found.status, found.activity

            try:
                wait_until((workspace / "began").exists, f"{agent.name}'s first command")
                wait_until(lambda: now() == ("working", "active"), "it is seen at work")
                world.clock.advance(minutes=6)
                after_six = now()
                world.clock.advance(minutes=30)
                assert (after_six, now()) == SEEN[agent.program]
                (workspace / "go").touch()
                wait_until(lambda: now() == ("done", "exited"), "it is seen to have ended")
            finally:
                lead.kill(session.id)
        world.model.check()
