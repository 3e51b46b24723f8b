"""The clauses of the worktree profile as a catalogue, and the page on how git loses work, whose scripts run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gittrix.conformance.worktrees.base.clause import FAMILY_TITLES
from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool
from pytest_gittrix.conformance.worktrees.catalogue import page, worktree_clauses
from pytest_gittrix.conformance.worktrees.clauses import crashes
from pytest_gittrix.conformance.worktrees.findings import CellOutcome
from pytest_gittrix.conformance.worktrees.profile import share
from pytest_gittrix.conformance.worktrees.stage import CONTROLS, CellStage
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.testing.systems.driver import SearchBudget

DOCS = Path(__file__).resolve().parents[3] / "docs"
BEGINNING, *SCRIPTS = re.findall(r"```sh\n(.*?)```", (DOCS / "explanation/how-git-loses-work.md").read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_ninety_seven_clauses_with_a_code_each() -> None:
    codes = [one.code for one in worktree_clauses()]

    assert Counter(code[:4] for code in codes) == {"WREM": 27, "WMRG": 17, "WFIN": 22, "WNEW": 23, "WTRU": 4, "WSRV": 4}
    assert codes == [f"{family}-{n:02}" for family in FAMILY_TITLES for n in range(1, Counter(c[:4] for c in codes)[family] + 1)]


def test_each_clause_needs_commands_that_have_a_control() -> None:
    assert {command for one in worktree_clauses() for command in one.needs} == {*CONTROLS}


def test_a_tool_that_is_not_started_in_a_repository_claims_nothing_about_other_repositories() -> None:
    there = WorktreeTool(create="x new {name} --repo app", delete="x rm {name}", cwd="{world}")
    here = there.model_copy(update={"cwd": "repo"})

    assert {one.code for one in worktree_clauses() if one.claimed_by(here) and not one.claimed_by(there)} == {
        *("WREM-24", "WREM-25", "WNEW-15", "WNEW-16")
    }


def test_a_pool_claims_nothing_about_directories_that_cleaning_removes() -> None:
    tool = WorktreeTool(create="x take {name}", clean="x sweep", dry_run="x sweep -n")
    pool = tool.model_copy(update={"pool": True})

    claims = {one.code for one in worktree_clauses() if one.family == "WMRG" and one.claimed_by(tool) and not one.claimed_by(pool)}
    assert claims == {"WMRG-12", "WMRG-13"}


def test_cells_that_search_share_the_seconds_alike() -> None:
    work = [(one, case) for one in worktree_clauses() for case in one.cases]

    assert {one.code: one.searches for one in worktree_clauses() if one.searches} == {
        "WSRV-01": "crash",
        "WSRV-02": "crash",
        "WSRV-03": "race",
        "WSRV-04": "race",
    }
    assert share(SearchBudget(60, 70), work) == SearchBudget(10, 10)
    assert share(SearchBudget(60, 70), []) == SearchBudget(60, 70)


POOL = WorktreeTool(
    pool=True,
    create='git -C "$R/slot" rev-parse -q 2>/dev/null || git worktree add -q --detach "$R/slot"; git -C "$R/slot" checkout -q -b {name}',
    delete='git -C "$R/slot" checkout -q --detach',
)


@pytest.mark.parametrize(
    ("first", "verdict"), [("", "broken"), ('kill -9 $(cat "$R/pid")', "kept"), ('git worktree remove -f "$R/slot"; exit', "kept")]
)
@pytest.mark.skipif(sys.platform != "linux", reason="the working directories of processes are read from /proc")
def test_a_pool_may_give_its_directory_again_when_no_process_is_in_it(tmp_path: Path, first: str, verdict: str) -> None:
    one = next(one for one in worktree_clauses() if one.code == "WNEW-17")
    pool = POOL.model_copy(update={"delete": f"{first}\n{POOL.delete}"})

    found = CellStage.below(tmp_path).cell(pool, one)

    assert (found.verdict, found.reproduced) == (verdict, verdict == "broken"), found.what


def test_a_worktree_of_a_submodule_may_be_anywhere(tmp_path: Path) -> None:
    one = next(one for one in worktree_clauses() if one.code == "WNEW-16")
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "stage").mkdir()

    found = CellStage.below(tmp_path / "stage").cell(WorktreeTool(create=f"git worktree add -q -b {{name}} {elsewhere}"), one)

    assert (found.verdict, found.what) == ("kept", "")


def test_the_page_of_the_reference_is_up_to_date() -> None:
    assert (DOCS / "reference/worktree-clauses.md").read_text(encoding="utf-8") == page(), (
        "run: python -m pytest_gittrix.conformance.worktrees.catalogue > docs/reference/worktree-clauses.md"
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=range(1, len(SCRIPTS) + 1))
def test_each_script_of_the_page_on_how_git_loses_work_loses_it(tmp_path: Path, script: str) -> None:

    env = hermetic_env(tmp_path / "home") | {"TMPDIR": str(tmp_path)}

    done = subprocess.run(["sh", "-c", BEGINNING + script], env=env, capture_output=True, text=True, timeout=30, check=False)

    assert (done.stdout.splitlines()[-1:], done.returncode) == (["LOST"], 0), done.stderr
    assert not [*tmp_path.glob("*/demo")]


@pytest.mark.parametrize(("git", "excused"), [("kept", False), ("broken", False), ("loses work", True)])
def test_what_loses_no_work_excuses_nothing_that_does(git: str, excused: bool) -> None:
    tool = CellOutcome("WSRV-04", "", "broken", lost=True)
    plain = CellOutcome("WSRV-04", "", "kept" if git == "kept" else "broken", lost=git == "loses work")

    assert plain.excuses(tool) is excused
    assert plain.excuses(replace(tool, lost=False)) is (git != "kept")


@pytest.mark.parametrize(
    ("each", "seconds", "tried"),
    [
        pytest.param(1, 0, 32, id="what is always tried"),
        pytest.param(1, 10, 42, id="the seconds of the user come after that"),
        pytest.param(20, 0, 3, id="slow commands: a minute"),
        pytest.param(20, 40, 5, id="slow commands: a minute, and then the seconds of the user"),
        pytest.param(100, 0, 1, id="very slow commands: once"),
    ],
)
def test_a_case_goes_on_for_the_seconds_of_the_user(each: int, seconds: int, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def play(point: int) -> int:
        nonlocal now
        now += each
        return point

    monkeypatch.setattr(crashes, "real_seconds", lambda: now)

    assert [play(point) for point in crashes.trials(range(100), crashes.MOST_POINTS, seconds)] == [*range(tried)]
