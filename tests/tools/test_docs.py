"""What the pages on other tools show is run as shown: the repository that a page makes, and its ``python`` block with a name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.git import git

from pytest_gittrix.extras import missing

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
EXTRAS = {
    "mcp": "mcp",
    "inspect": "inspect",
    "mini-swe-agent": "mini",
    "pydantic-ai": "pydantic-ai",
    "deepagents": "deepagents",
    "openai-agents": "openai-agents",
    "smolagents": "smolagents",
    "swe-rex": "swe-rex",
    "strands": "strands",
    "adk": "adk",
}
PROMOTE = {"pydantic-ai", "deepagents", "openai-agents", "smolagents", "swe-rex", "strands", "adk"}
BLOCK = re.compile(r"^```python\n(# file: (\w+\.py)(?:, with the extra \w+)?\n.*?)^```$", re.MULTILINE | re.DOTALL)
REPOSITORY = re.compile(r"^```bash\n(git init .*?)^```$", re.MULTILINE | re.DOTALL)
IDENTITY = {
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"))
}


def run(directory: Path, *command: str) -> None:
    """Run a command of a page; it has to succeed."""
    environment = {**os.environ, **IDENTITY}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", EXTRAS)
def test_the_program_of_a_page_runs_as_shown(page: str, tmp_path: Path) -> None:
    if reason := missing(EXTRAS[page]):
        pytest.skip(reason)
    text = (PAGES / f"use-with-{page}.md").read_text(encoding="utf-8")
    [(body, name)] = BLOCK.findall(text)
    (tmp_path / name).write_text(body, encoding="utf-8")
    if name.startswith("test_"):
        run(tmp_path, sys.executable, "-m", "pytest", name)
        return
    [commands] = REPOSITORY.findall(text)
    run(tmp_path, "sh", "-ec", commands)
    head = git("rev-parse", "HEAD", cwd=tmp_path / "project")

    run(tmp_path, sys.executable, name)

    assert (git("rev-parse", "HEAD", cwd=tmp_path / "project") == head) == (page not in PROMOTE)
