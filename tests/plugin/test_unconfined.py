"""Tests whose programs are to be confined, on a machine where nothing confines them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.agent_processes import on_linux
from support.confined import LONG
from support.unconfinable import ROOT, on_a_machine_without

pytestmark = on_linux

TESTS = """
import pytest
from pytest_gittrix.errors import ConfinementMissing

@pytest.fixture
def programs(gittrix_agent):
    with gittrix_agent.programs(confine="auto") as programs:
        yield programs

def test_runs(gittrix_agent):
    gittrix_agent.run(["true"], confine="auto", timeout=60)

def test_is_set_up(programs):
    pass

def test_wants_a_jail(gittrix_agent):
    gittrix_agent.run(["true"], confine="jail", timeout=60)

def test_expects_it(gittrix_agent):
    with pytest.raises(ConfinementMissing):
        gittrix_agent.run(["true"], confine="auto", timeout=60)

def test_confines_nothing(gittrix_session):
    assert gittrix_session.for_agent().run(["true"], timeout=60).code == 0

def test_fails_by_itself():
    raise ValueError("no such thing")
"""


def run(directory: Path, *arguments: str) -> str:
    (directory / "test_it.py").write_text(TESTS)
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(directory), "-rs", *arguments, str(directory)]
    argv = on_a_machine_without(directory / "bin", *pytest_)
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=LONG, check=False).stdout


def test_they_fail_by_default_and_say_what_is_missing_and_how_to_skip_them(tmp_path: Path) -> None:
    said = run(tmp_path)

    assert "3 failed, 2 passed, 1 error in" in said
    assert "Nothing confines programs here: no jail by bubblewrap: bwrap: No permissions to create new namespace; none by " in said
    assert said.count("Or skip such tests: --gittrix-unconfined=skip.") == 3


def test_they_are_skipped_where_that_is_asked_for_and_no_other(tmp_path: Path) -> None:
    said = run(tmp_path, "--gittrix-unconfined=skip")

    assert "1 failed, 2 passed, 3 skipped in" in said
    assert "ValueError: no such thing" in said
    assert re.search(r"SKIPPED \[2\] \S+ Nothing confines programs here: ", said)
    assert "The confinement 'jail' is not available here: no jail by bubblewrap" in said


@pytest.mark.parametrize("level", ["off", "none"])
def test_a_variable_names_off_for_all_that_name_no_level(level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITTRIX_CONFINE", level)

    said = run(tmp_path)

    assert ("3 failed, 3 passed in" in said) is (level == "off"), said
    assert ("GITTRIX_CONFINE='none' is no level" in said) is (level == "none"), said
