"""The action for workflows of GitHub: its steps, run as a runner would run them, by the shell with the inputs in variables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
ACTION: Final = (ROOT / "action.yml").read_text(encoding="utf-8")
INPUTS: Final = re.findall(r"^  (\w+):\n    description: .+\n    default: (.+)$", ACTION, re.MULTILINE)
SHOWN: Final = ("check-your-own-session-system.md", "test-your-worktree-tool.md")
SCRIPT: Final = "\n".join(line[8:] for line in ACTION.partition("      run: |\n")[2].splitlines())


def run(directory: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the step that checks, with these inputs and the defaults of the others."""
    given = {name.upper(): inputs.get(name, default.strip('"')) for name, default in INPUTS}
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", SCRIPT],
        cwd=directory,
        env={**os.environ, **given, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the description of a tool."""
    (tmp_path / "my tool.toml").write_text(
        '[worktree]\ncreate = "git stash -q; git worktree add -q -b {name} ../{name}"\n', encoding="utf-8"
    )
    return tmp_path


def test_the_step_has_each_input_in_a_variable_of_its_name() -> None:
    assert [name for name, _ in INPUTS] == ["system", "worktree", "clauses", "against", "report", "arguments"]
    assert [name for name, _ in INPUTS if f"        {name.upper()}: ${{{{ inputs.{name} }}}}\n" not in ACTION] == []


def test_the_action_fails_for_a_fault_and_writes_the_reports_and_passes_where_the_fault_is_known(project: Path) -> None:
    arguments = "--clause WNEW-07 --workers 1"
    failed = run(project, worktree="my tool.toml", clauses="2026.1", arguments=arguments)

    assert failed.returncode == 1
    assert "[1/1] broken" in failed.stderr
    [result] = json.loads((project / "conform.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("my%20tool.toml", 2)

    known = run(project, worktree="my tool.toml", against="conform.json", report="new.html", arguments=arguments)

    assert (known.returncode, known.stdout) == (0, "Same: git: WNEW-07.\n")
    assert (project / "new.html").exists()


def test_the_action_takes_a_session_system(project: Path) -> None:
    ran = run(project, system="pytest_gittrix.testing.systems:GitTrixSystem", arguments="--family CAP")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads((project / "conform.json").read_text(encoding="utf-8"))["systems"][0]["kept"] is True


@pytest.mark.parametrize("page", SHOWN)
def test_pages_name_only_inputs_that_there_are(page: str) -> None:
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    [with_] = re.findall(r"- uses: .*pytest-gittrix@.*\n +with: \{(.*)\}", text)

    assert {part.partition(":")[0].strip() for part in with_.split(", ")} <= {name for name, _ in INPUTS}
