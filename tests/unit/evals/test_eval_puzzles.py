"""The suite that comes with the project: its gold patches pass, doing nothing does not, and each case says what it is about."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.evals import ran

from pytest_gittrix.evals.inputs.suite import Suite

PUZZLES = Path(__file__).resolve().parents[3] / "fixtures" / "evals" / "puzzles"
CASES = [case.id for case in Suite.load(PUZZLES).cases]


def test_there_are_ten_with_every_kind_of_check_and_drift() -> None:
    suite = Suite.load(PUZZLES)

    assert len(suite.cases) == 10
    assert {check.kind for case in suite.cases for check in case.checks} == {"command", "tree", "diff", "function", "pytest"}
    assert {case.drift.at for case in suite.cases if case.drift} == {"after-start", "before-promote"}
    assert all(case.gold for case in suite.cases)


@pytest.mark.parametrize("id_", CASES)
def test_the_gold_patch_passes_and_doing_nothing_fails(id_: str, tmp_path: Path) -> None:
    gold = ran(PUZZLES, tmp_path, "gold", only=(id_,), out=tmp_path / "gold").records[0]
    nop = ran(PUZZLES, tmp_path, "nop", only=(id_,), out=tmp_path / "nop").records[0]

    assert (gold.outcome, gold.reason) == ("pass", "")
    assert nop.outcome == "fail"


def test_a_puzzle_passes_in_the_strongest_confinement_there_is(tmp_path: Path) -> None:
    summary = ran(PUZZLES, tmp_path, "gold", only=("fix-off-by-one", "conflict-with-drift"), confine="auto")

    assert summary.counts["pass"] == 2, [record.reason for record in summary.records]
    assert summary.to_json()["confine"] in ("off", "guard", "jail")
