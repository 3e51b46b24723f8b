"""The page on models has the row of each published agent that is tested, and its example runs where Claude Code is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import available

from tests.real_agents.table import AGENTS, ROOT, named

PAGE = (ROOT / "docs" / "how-to" / "give-an-agent-a-model.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```python\n# file: (\w+\.py), with Claude Code\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_each_agent_has_its_row_and_the_seconds_that_it_took() -> None:
    rows = re.findall(r"^(\| .+ [0-9.]+ \| .* \|) [0-9]+ \|$", PAGE, re.MULTILINE)

    assert rows == [agent.row for agent in AGENTS]
    assert len(rows) >= 6


def test_the_example_runs(tmp_path: Path) -> None:
    claude = named("claude")
    if claude.missing is not None:
        pytest.skip(claude.missing)
    available("jail")
    [(name, body)] = EXAMPLE.findall(PAGE)
    (tmp_path / name).write_text(body, encoding="utf-8")
    environment = {**os.environ, "CLAUDE": str(claude.directory), "HOME": str(tmp_path), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}

    command = [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-p", "no:anyio", name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False)

    assert "1 passed" in done.stdout, done.stdout + done.stderr
