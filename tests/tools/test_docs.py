"""What the pages on other tools show is run as shown: the repository that a page makes, and its ``python`` block with a name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.git import git

from pytest_gittrix.extras import missing

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
EXTRAS = ("mcp", "inspect", "pydantic-ai", "deepagents", "openai-agents")
COPIED = {
    "mini-swe-agent": ("minisweagent", "mini_swe_agent_environment.py"),
    "smolagents": ("smolagents", "smolagents_executor.py"),
    "swe-rex": ("swerex", "swe_rex_deployment.py"),
    "strands": ("strands", "strands_sandbox.py"),
    "adk": ("google.adk", "adk_environment.py"),
}
"""By the page: the framework, and the file of ``examples/integrations`` that the page says to copy."""
ANY = {"langgraph_agent.py": "langgraph", "autogen_agent.py": "autogen_agentchat", "llamaindex_agent.py": "llama_index"}
"""The programs of the page on any framework, and their frameworks."""
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


def made(text: str, directory: Path) -> tuple[Path, bytes]:
    """Make the repository of a page; return its place and the id of its commit."""
    [commands] = REPOSITORY.findall(text)
    run(directory, "sh", "-ec", commands)
    place = directory / commands.splitlines()[0].split()[-1]
    return place, git("rev-parse", "HEAD", cwd=place)


@pytest.mark.parametrize("page", [*EXTRAS, *COPIED])
def test_the_program_of_a_page_runs_as_shown(page: str, tmp_path: Path) -> None:
    text = (PAGES / f"use-with-{page}.md").read_text(encoding="utf-8")
    if page in COPIED:
        framework, copied = COPIED[page]
        pytest.importorskip(framework, reason="needs the environment of make tools")
        assert f"cp examples/integrations/{copied} PROJECT/" in text
        shutil.copy(PAGES.parents[1] / "examples" / "integrations" / copied, tmp_path)
    elif reason := missing(page):
        pytest.skip(reason)
    [(body, name)] = BLOCK.findall(text)
    (tmp_path / name).write_text(body, encoding="utf-8")
    if name.startswith("test_"):
        run(tmp_path, sys.executable, "-m", "pytest", name)
        return
    project, head = made(text, tmp_path)

    run(tmp_path, sys.executable, name)

    assert (git("rev-parse", "HEAD", cwd=project) == head) == (page not in PROMOTE)


@pytest.mark.parametrize("program", ANY)
def test_one_tool_gives_an_agent_of_any_framework_a_session(program: str, tmp_path: Path) -> None:
    if find_spec(ANY[program]) is None:
        pytest.skip(f"{ANY[program]} is not installed")
    text = (PAGES / "use-with-any-framework.md").read_text(encoding="utf-8")
    for body, name in BLOCK.findall(text):
        (tmp_path / name).write_text(body, encoding="utf-8")
    project, head = made(text, tmp_path)

    run(tmp_path, sys.executable, program)

    assert git("rev-parse", "HEAD~1", cwd=project) == head
    assert b"a + b" in git("show", "HEAD:app.py", cwd=project)
