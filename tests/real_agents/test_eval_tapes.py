"""Published coding agents in evals: three samples recorded in a jail, and replayed offline elsewhere to one digest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.frameworks import available

from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.model import ModelServer, call_any, edit, stop
from tests.real_agents.table import ROOT, named

CLAUDE = """\
export IS_SANDBOX=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
exec "$1" --bare -p "$(cat)" --dangerously-skip-permissions < /dev/null
"""
OPENCODE = """\
export OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_AUTOUPDATE=1
mkdir -p "$HOME/.config/opencode"
cat > "$HOME/.config/opencode/opencode.json" <<END
{"model": "test/test-model", "small_model": "test/test-model",
 "provider": {"test": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "$OPENAI_BASE_URL", "apiKey": "any"},
                       "models": {"test-model": {}}}}}
END
exec "$1" run "$(cat)" < /dev/null
"""
VERSIONS = "123"


def suite(root: Path) -> Path:
    """Three cases, each with another version to be written."""
    for number in VERSIONS:
        place = root / "suite" / "cases" / f"v{number}"
        (place / "repo").mkdir(parents=True)
        (place / "repo" / "app.py").write_text("VERSION = 0\n")
        check = f'command = ["grep", "-qx", "VERSION = {number}", "app.py"]'
        (place / "case.toml").write_text(f'task = "Write version {number} to app.py"\n[durable]\nfiles = "repo"\n[check]\n{check}\n')
    (root / "suite" / "suite.toml").write_text("schema = 1\n")
    return root / "suite"


def evaluated(place: Path, variables: Mapping[str, str], *more: str) -> None:
    """Run ``gittrix eval run`` in a process of its own, in a jail."""
    command = [sys.executable, "-m", "pytest_gittrix.cli", "eval", "run", str(place), "--no-report", *more]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    subprocess.run(command, env=environment, timeout=300, check=True)


@pytest.mark.parametrize(("name", "script"), [("claude", CLAUDE), ("opencode", OPENCODE)], ids=["claude", "opencode"])
def test_three_samples_are_recorded_in_a_jail_and_replayed_elsewhere_to_one_digest(tmp_path: Path, name: str, script: str) -> None:
    agent = named(name)
    if agent.missing is not None:
        pytest.skip(agent.missing)
    available("jail")
    (tmp_path / "agent.sh").write_text(script)
    place, elsewhere = suite(tmp_path), tmp_path / "another place"
    elsewhere.mkdir()
    command = f"sh {tmp_path}/agent.sh {agent.executable.resolve()}"
    with ModelServer() as upstream:
        for number in VERSIONS:
            steps = (call_any(shell="cat app.py"), edit("app.py", f"VERSION = {number}\n"), stop("It is done."))
            upstream.script(*steps, about=f"version {number}")
        keys = {"ANTHROPIC_API_KEY": "any", "OPENAI_API_KEY": "any"}
        there = {"ANTHROPIC_BASE_URL": upstream.url, "OPENAI_BASE_URL": f"{upstream.url}/v1", **keys}
        evaluated(place, there, "--agent", command, "--confine", "jail", "--tape", "record", "--out", str(tmp_path / "live"))
        upstream.check()

    replayed = ("--tape", "replay", str(tmp_path / "live"), "--out", str(elsewhere / "run"))
    evaluated(place, {"TMPDIR": str(elsewhere)}, *replayed)

    found = compare(RunStore.open(tmp_path / "live"), RunStore.open(elsewhere / "run"))
    assert (found.code, [pair.flip for pair in found.pairs]) == (0, ["pass -> pass"] * 3)
