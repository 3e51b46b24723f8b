"""The suite that comes with the project: its gold patches pass, doing nothing does not, and each case says what it is about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.evals import ran

from pytest_gittrix.evals.inputs.suite import Suite

PUZZLES = Path(__file__).resolve().parents[3] / "fixtures" / "evals" / "puzzles"
ORDINARY_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


def test_there_are_ten_with_every_kind_of_check_and_drift() -> None:
    suite = Suite.load(PUZZLES)

    assert len(suite.cases) == 10
    assert {check.kind for case in suite.cases for check in case.checks} == {"command", "tree", "diff", "function", "pytest"}
    assert {case.drift.at for case in suite.cases if case.drift} == {"after-start", "before-promote"}
    assert all(case.gold for case in suite.cases)


def test_the_gold_patches_pass_as_root_and_as_an_ordinary_user_with_one_digest(tmp_path: Path) -> None:
    here = ran(PUZZLES, tmp_path, "gold", confine="auto", out=tmp_path / "here")
    command = [*ORDINARY_USER, sys.executable, "-m", "pytest_gittrix.cli", "eval", "run", str(PUZZLES), "--agent", "gold"]
    if subprocess.run([*ORDINARY_USER, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("there is no user namespace here")

    done = subprocess.run(
        [*command, "--no-report", "--json", "--out", str(tmp_path / "there"), "--scratch", str(tmp_path / "scratch-there")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert [(record.id, record.reason) for record in here.records if record.outcome != "pass"] == []
    found = json.loads(done.stdout)["data"]
    assert (found["outcomes"]["pass"], found["confine"], found["digest"]) == (10, here.to_json()["confine"], here.digest)


def test_a_gold_patch_passes_unconfined_and_doing_nothing_fails(tmp_path: Path) -> None:
    gold = ran(PUZZLES, tmp_path, "gold", only=("fix-*", "add-*", "conflict-*"), out=tmp_path / "gold")
    nothing = ran(PUZZLES, tmp_path, "nop", out=tmp_path / "nop")

    assert {record.outcome for record in gold.records} == {"pass"}
    assert {record.outcome for record in nothing.records} == {"fail"}
