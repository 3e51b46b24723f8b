"""The suite that comes with the project: each case has a solution that passes, and three that its checks refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.evals import ran
from support.puzzles import PUZZLES, WRONG, quick_python, wrong, wrong_solutions

from pytest_gittrix.evals.inputs.suite import Suite

IDS = sorted(path.name for path in (PUZZLES / "cases").iterdir())
GROUPS = 6
EVERY_KIND = ("bump-version", "delete-dead-code", "small-change-merges", "compare-aware-times", "rename-across-modules")
"""A case for each kind of check and of drift."""
ORDINARY_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
soak = pytest.mark.skipif(os.environ.get("PYTEST_GITTRIX_SOAK") != "1", reason="takes minutes: PYTEST_GITTRIX_SOAK=1")


def test_there_are_thirty_with_every_kind_of_check_and_drift() -> None:
    cases = {case.id: case for case in Suite.load(PUZZLES).cases}

    assert [*cases] == IDS
    assert len(cases) == 30
    for some in (cases, EVERY_KIND):
        assert {check.kind for id_ in some for check in cases[id_].checks} == {"command", "tree", "diff", "function", "pytest"}
        assert {drift.at for id_ in some if (drift := cases[id_].drift)} == {"after-start", "before-promote"}
    assert all(case.gold for case in cases.values())
    assert {len(wrong_solutions(id_)) for id_ in cases} == {WRONG}


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_gold_patches_pass_and_neither_wrong_ones_nor_nothing_do(tmp_path: Path, group: int) -> None:
    only = tuple(IDS[group::GROUPS])

    with quick_python():
        gold = ran(PUZZLES, tmp_path, "gold", only=only, out=tmp_path / "gold")
        other = ran(PUZZLES, tmp_path, wrong(0), only=only[:2], out=tmp_path / "wrong")
        nothing = ran(PUZZLES, tmp_path, "nop", only=only[2:3], out=tmp_path / "nothing")

    assert [(record.id, record.reason) for record in gold.records if record.outcome != "pass"] == []
    assert [record.id for record in other.records if record.outcome not in ("fail", "conflict", "refused")] == []
    assert [record.outcome for record in nothing.records] == ["fail"]
    assert (len(gold.records), len(other.records)) == (len(only), 2)


@pytest.mark.parametrize(
    ("only", "jail", "agents"),
    [
        pytest.param(EVERY_KIND, "", ["gold"], id="a case of every kind"),
        pytest.param(("*",), "", ["gold", wrong(1), wrong(2), wrong(3)], id="all", marks=soak),
        pytest.param(("*",), "bwrap", ["gold", wrong(1), wrong(2), wrong(3)], id="all, in bubblewrap", marks=soak),
    ],
)
def test_root_and_an_ordinary_user_get_one_digest_in_a_jail(tmp_path: Path, only: tuple[str, ...], jail: str, agents: list[str]) -> None:
    if subprocess.run([*ORDINARY_USER, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("there is no user namespace here")
    if jail and shutil.which(jail) is None:
        pytest.skip(f"there is no {jail} here")
    elsewhere = [place for place in os.environ["PATH"].split(os.pathsep) if jail or not os.path.exists(os.path.join(place, "bwrap"))]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PATH": os.pathsep.join(elsewhere)}
    for number, agent in enumerate(agents):
        found = []
        for user in ((), ORDINARY_USER):
            place = tmp_path / f"{number}-{len(found)}"
            command = [*user, sys.executable, "-m", "pytest_gittrix.cli", "eval", "run", str(PUZZLES), "--agent", agent]
            chosen = [part for pattern in only for part in ("--filter", pattern)]
            options = [*chosen, "--no-report", "--json", "--out", str(place), "--scratch", str(tmp_path / f"scratch-{place.name}")]
            done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
            found.append(json.loads(done.stdout)["data"])
        as_root, as_user = found

        assert as_root["digest"] == as_user["digest"]
        assert as_root["confine"] == as_user["confine"] == "jail"
        samples = sum(as_root["outcomes"].values())
        assert as_root["outcomes"]["pass"] == (samples if agent == "gold" else 0)
        assert samples == (30 if only == ("*",) else len(only))
