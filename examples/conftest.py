"""What the examples share: the agent, and which repository it works on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gittrix import AgentSession

CODEMOD = Path(__file__).with_name("codemod.py")


@pytest.fixture
def run_agent(gittrix_env: dict[str, str]) -> Callable[[AgentSession], list[str]]:
    """Runs the codemod as a program on a session's copy of the package; gives the files it says it changed."""

    def run(agent: AgentSession) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(CODEMOD), "pytest_gittrix"],
            cwd=agent.workspace_path,
            env=dict(gittrix_env),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    return run
