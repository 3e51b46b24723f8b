"""The gate holds: whoever launches an agent, at the default level nothing that the agent tries gets through.

At ``off`` the attempts that the level is to prevent succeed, which proves that they work. A promotion is refused there, too, because the
engine knows the agent's processes (docs/explanation/isolation.md).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.agent_processes import on_linux
from support.daemon import LONG
from support.gate import CODING_AGENT, FOR_PEOPLE, LAUNCHERS, MODEL_KEY, Gate
from support.gateway import serving
from support.unconfinable import ROOT, on_a_machine_without

from pytest_gittrix.confine.levels import missing, strongest

pytestmark = on_linux

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/reference/confinement.md"
ROW: Final = re.compile(r"^\| ([^|]+) \| (\*\*yes\*\*|no) \| (no) \| (not started) \|$", re.MULTILINE)
ATTEMPTS: Final = {
    "has a variable that is for people": False,
    "read the daemon's key": True,
    "read the store": True,
    "read another session": True,
    "write outside": True,
    "open the network": True,
    "signal others": True,
    "push": True,
    "promote by the command line": False,
    "promote by the daemon": False,
    "promote by Python": False,
    "start a member": False,
}
"""What an agent tries, with whether it can at ``off``."""
NOTHING: Final = dict.fromkeys(ATTEMPTS, False)


def tried(launcher: str, level: str | None, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    for name, value in FOR_PEOPLE.items():
        monkeypatch.setenv(name, value)
    with Gate.open(root, level) as gate:
        return gate.got(LAUNCHERS[launcher](gate))


@pytest.mark.skipif(strongest().level == "off", reason=strongest().why)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_by_default_nothing_gets_through(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(launcher, None, tmp_path, monkeypatch) == NOTHING


@pytest.mark.skipif(bool(missing("landlock")), reason=missing("landlock"))
@pytest.mark.parametrize("launcher", ["Members.start", "Orchestrator.spawn"])
def test_nor_at_guard(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(launcher, "guard", tmp_path, monkeypatch) == NOTHING


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_off_has_no_walls_but_only_a_person_promotes(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(launcher, "off", tmp_path, monkeypatch) == ATTEMPTS


@pytest.mark.skipif(bool(missing("namespaces")), reason=missing("namespaces"))
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_agent_reaches_the_model_that_is_listed_and_nothing_else(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as model:
        variables = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{model.port}", "ANTHROPIC_API_KEY": MODEL_KEY}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with Gate.open(tmp_path, None, agent=CODING_AGENT, network=["model:anthropic"], variables=variables) as gate:
            workspace = LAUNCHERS[launcher](gate)
            said = gate.said(workspace)
            logs = [json.loads(line) for file in gate.home.rglob("network.jsonl") for line in file.read_text().splitlines()]
            summaries = gate.ended()

    assert said == {"answer": "hello from the model", "files": 403, "key": "the-key-is-added-outside", "reaches another server": False}
    assert [(path, headers["x-api-key"]) for _, path, headers, _ in model.heard] == [("/v1/messages", MODEL_KEY)]
    assert [(one["decision"], one["target"]) for one in logs] == [
        ("passed", "POST /anthropic/v1/messages"),
        ("answered", "POST /anthropic/v1/messages"),
        ("refused", "POST /anthropic/v1/files"),
    ]
    counted = {"exchanges": 1, "input": 0, "output": 0, "cached": 0, "uncounted": 1}
    assert summaries == [{"passed": 1, "refused": 1, "refused_targets": ["POST /anthropic/v1/files"], "model": counted}]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_where_nothing_confines_no_agent_is_started(launcher: str, tmp_path: Path) -> None:
    argv = on_a_machine_without(tmp_path / "bin", sys.executable, "-m", "support.gate", launcher, str(tmp_path / "gate"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}

    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=LONG, check=False)

    assert done.returncode == 0, done.stderr
    assert "Nothing confines programs here" in done.stdout
    assert "GITTRIX_CONFINE=off" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "run", "fixtures/evals/puzzles", "--agent", "gold", "--out", "{out}"),
        ("acp", "--store", "{out}", "--", sys.executable, "-c", "raise AssertionError('it runs')"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_nor_is_an_eval_run_or_an_editors_agent_started(command: tuple[str, ...], tmp_path: Path) -> None:
    words = [word.format(out=tmp_path / "out") for word in command]
    argv = on_a_machine_without(tmp_path / "bin", sys.executable, "-m", "pytest_gittrix.cli", *words)

    done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG, check=False)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "Nothing confines programs here" in done.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_where_nothing_confines_a_person_asks_for_off_by_name(launcher: str, tmp_path: Path) -> None:
    argv = on_a_machine_without(tmp_path / "bin", sys.executable, "-m", "support.gate", launcher, str(tmp_path / "gate"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "GITTRIX_CONFINE": "off"}

    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=LONG, check=False)

    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


def test_the_page_says_the_same() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    said = {name: off == "**yes**" for name, off, default, nothing in rows if (default, nothing) == ("no", "not started")}

    assert {name: said.get(name) for name in ATTEMPTS} == ATTEMPTS
