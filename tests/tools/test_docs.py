"""What the pages on other tools show is run as shown: each ``python`` block with a name, beside a repository called ``project``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.git import git

from pytest_gittrix.integrations.extras import missing

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
EXTRAS = {"mcp": "mcp", "inspect": "inspect", "mini-swe-agent": "mini", "pydantic-ai": "pydantic-ai"}
BLOCK = re.compile(r"^```python\n(# file: (\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", EXTRAS)
def test_the_program_of_a_page_runs_as_shown(page: str, project: Path) -> None:
    if reason := missing(EXTRAS[page]):
        pytest.skip(reason)
    head = git("rev-parse", "HEAD", cwd=project)
    [(body, name)] = BLOCK.findall((PAGES / f"use-with-{page}.md").read_text(encoding="utf-8"))
    (project.parent / name).write_text(body, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, name], cwd=project.parent, env=dict(os.environ), capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert (git("rev-parse", "HEAD", cwd=project) == head) == (page != "pydantic-ai")
