"""Each clause of the worktree profile is kept by a manager that loses nothing, and notices when that one is given the fault."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.worktree_managers.tools import CARELESS, OURS, careful
from pytest_gittrix.cli.main import main
from pytest_gittrix.conformance.worktrees.base.plain_git import PLAIN_GIT
from pytest_gittrix.conformance.worktrees.base.world import MOST_LINES
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from pytest_gittrix.conformance.worktrees.clauses import crashes
from pytest_gittrix.conformance.worktrees.findings import WorktreeReport, combined, system_report
from pytest_gittrix.conformance.worktrees.stage import CellStage
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.testing.systems.driver import SearchBudget

SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"
CLAUSES = {one.code: one for one in worktree_clauses()}
CHEAP = [code for code, one in CLAUSES.items() if SOAK or one.family != "WSRV"]

# Where a fault shows in one case of several: the others need not be played.
TELLING = {
    "WMRG-11": "modified",
    "WFIN-02": "modified",
    "WNEW-01": "two words",
    "WNEW-02": "a..b",
    "WNEW-03": "../out",
    "WNEW-04": "a;touch pwned",
    "WTRU-02": "without its .git",
    "WREM-27": "to a directory elsewhere",
    "WMRG-17": "to a directory of the main checkout",
    "WNEW-19": "on a branch",
    "WNEW-21": "clean",
    "WSRV-01": "finish",
    "WSRV-02": "delete",
    "WSRV-04": "create and create",
}


CLAIMED = [one for one in CLAUSES.values() if one.claimed_by(OURS) and one.code not in OURS.waive and one.family != "WSRV"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> CellStage:
    return CellStage.below(tmp_path_factory.mktemp("worktrees"), replays=SOAK)


@pytest.mark.parametrize("code", CHEAP)
def test_a_clause_tells_the_careful_manager_from_one_with_the_fault(stage: CellStage, code: str) -> None:
    one, case = CLAUSES[code], TELLING.get(code, "")

    as_pool = {"pool": code == "WNEW-17"}
    right, wrong = (stage.cell(tool.model_copy(update=as_pool), one, case) for tool in (careful(), careful(code)))

    assert (right.verdict, right.what.startswith("tried ")) == ("kept", one.family == "WSRV"), right.what
    assert wrong.verdict == ("no verdict" if code == "WMRG-01" else "broken"), wrong.what
    assert bool(wrong.script) == (wrong.verdict == "broken" and one.family != "WSRV")
    assert len(wrong.script.splitlines()) <= MOST_LINES
    assert wrong.reproduced == (SOAK and bool(wrong.script)), wrong.script


@pytest.mark.parametrize(
    ("fetch", "verdict"), [("", "kept"), ("git fetch -q; ", "broken"), ("git fetch -q; git status -sb; echo behind; ", "kept")]
)
def test_a_tool_that_asks_the_remote_says_where_its_worktree_begins(stage: CellStage, fetch: str, verdict: str) -> None:
    tool = PLAIN_GIT.model_copy(update={"create": f"{fetch}{PLAIN_GIT.create}"})

    found = replace(stage, replays=True).cell(tool, CLAUSES["WNEW-22"])

    assert (found.verdict, found.reproduced) == (verdict, verdict == "broken"), found.what
    assert found.what == ("it asks no remote" if not fetch else found.what)


def test_a_manager_that_does_what_it_is_told_loses_work_that_plain_git_keeps(stage: CellStage) -> None:
    codes = ("WREM-01", "WREM-08", "WREM-12", "WREM-17", "WREM-18", "WFIN-03", "WNEW-05")

    careless = {code: stage.cell(CARELESS, CLAUSES[code]) for code in codes}
    assert {code: cell.verdict for code, cell in careless.items()} == dict.fromkeys(codes, "broken")
    assert [code for code, cell in careless.items() if not cell.lost] == ["WREM-18"]
    assert {code: stage.cell(PLAIN_GIT, CLAUSES[code]).verdict for code in codes} == dict.fromkeys(codes, "kept")


@pytest.mark.parametrize("code", ["WREM-04", "WREM-11", "WREM-19", "WFIN-07", "WFIN-11"])
def test_what_git_itself_loses_is_shown_by_a_script_that_is_run_once_more(stage: CellStage, code: str) -> None:
    lost = replace(stage, replays=True).cell(PLAIN_GIT, CLAUSES[code])

    assert (lost.verdict, lost.reproduced) == ("broken", True)


def test_a_loss_that_its_script_does_not_show_again_is_no_verdict(stage: CellStage, tmp_path: Path) -> None:
    once = f'mkdir "{tmp_path}/once" && git worktree remove --force {{path}}'

    found = replace(stage, replays=True).cell(PLAIN_GIT.model_copy(update={"delete": once}), CLAUSES["WREM-01"])

    assert (found.verdict, found.reproduced) == ("no verdict", False)
    assert "the script, run once more, did not show it" in found.what
    finding = combined("WREM-01", [found], frozenset())
    report = system_report(WorktreeReport("git", "", "", 1.0, (finding,)))
    assert report.defect == "This kit has a defect: a script did not show what it is for, so that WREM-01 gave no verdict."


INSIDE = PLAIN_GIT.model_copy(
    update={
        "create": "git worktree add -q -b {name} .worktrees/{name} && echo {name} >> .worktrees/list",
        "delete": "git worktree remove {path} && rm .worktrees/list && touch .worktrees/log",
    }
)
"""A manager that keeps worktrees, and files of its own, inside the main checkout, and says so in no ignore rule."""


@pytest.mark.parametrize(
    ("also", "verdict"), [("", "kept"), ("rm .env", "broken"), ("rm -r build", "broken"), ("git checkout -q -b moved", "broken")]
)
def test_worktrees_in_the_main_checkout_are_no_files_of_the_persons(stage: CellStage, also: str, verdict: str) -> None:
    tool = INSIDE.model_copy(update={"delete": f"{INSIDE.delete}; {also}" if also else INSIDE.delete})

    found = replace(stage, replays=True).cell(tool, CLAUSES["WREM-22"])

    assert (found.verdict, found.reproduced) == (verdict, verdict == "broken"), found.what


def test_a_line_of_the_tools_own_in_the_ignore_rules_is_not_held_to_be_a_move_of_the_person(stage: CellStage) -> None:
    tool = PLAIN_GIT.model_copy(update={"create": f"{PLAIN_GIT.create}; echo .worktrees >> .gitignore"})

    assert [stage.cell(tool, CLAUSES["WNEW-19"], case).verdict for case in CLAUSES["WNEW-19"].cases] == ["kept", "kept"]


_TO_BARE = 'mv .git .bare; git --git-dir .bare config core.bare true; rm file.txt other.txt .gitignore; echo "gitdir: ./.bare" > .git'
BARE = PLAIN_GIT.model_copy(update={"setup": (f"{_TO_BARE}; git worktree add -q main main",), "main": "{repo}/main"})
"""Plain git in a bare repository, with the main checkout and the others as worktrees in it."""
WHEREVER = {
    "inside": PLAIN_GIT.model_copy(update={"create": "git worktree add -q -b {name} .worktrees/{name} {base} && touch .worktrees/log"}),
    "bare": BARE,
}


@pytest.mark.parametrize("layout", WHEREVER)
@pytest.mark.parametrize(
    "code", [code for code in CHEAP if SOAK or code in ("WREM-10", "WREM-22", "WFIN-10", "WFIN-11", "WFIN-21", "WNEW-19", "WREM-14")]
)
def test_where_a_tool_puts_its_worktrees_changes_no_verdict(stage: CellStage, code: str, layout: str) -> None:
    tool, one = WHEREVER[layout], CLAUSES[code]
    if not one.claimed_by(tool):
        pytest.skip("the clause is about another layout")

    verdicts = {case: [stage.cell(each, one, case).verdict for each in (PLAIN_GIT, tool)] for case in one.cases}

    assert {case: found[1] for case, found in verdicts.items()} == {case: found[0] for case, found in verdicts.items()}


def test_a_script_asks_git_where_the_worktrees_are(stage: CellStage) -> None:
    elsewhere = 'git worktree add -q -b {name} "$R/$(date +%s%N)-{name}"'
    tool = PLAIN_GIT.model_copy(update={"create": elsewhere, "delete": "git worktree remove --force {path}"})

    found = replace(stage, replays=True).cell(tool, CLAUSES["WREM-01"])

    assert (found.verdict, found.reproduced) == ("broken", True), found.what
    assert len(found.script.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("code", ["WREM-14", "WFIN-01", "WFIN-10", "WFIN-13", "WMRG-04", "WNEW-05"])
def test_a_clause_is_about_the_base_that_the_description_names(stage: CellStage, code: str) -> None:
    case = stage.cell(PLAIN_GIT.model_copy(update={"base": "develop"}), CLAUSES[code])

    assert (case.verdict, case.what) == ("kept", "")


def test_a_pool_is_judged_by_its_tenants(stage: CellStage) -> None:
    pool = PLAIN_GIT.model_copy(
        update={
            "pool": True,
            "setup": ("for n in 1 2 3; do git worktree add -q --detach ../slot-$n; done",),
            "create": "for slot in ../slot-*; do git -C $slot symbolic-ref -q HEAD || exec git -C $slot checkout -q -b {name}; done; false",
            "delete": "git -C {path} checkout -q --detach {base}",
            "list": "for slot in ../slot-*; do echo $slot $(git -C $slot symbolic-ref HEAD); done",
        }
    )

    verdicts = {code: stage.cell(pool, CLAUSES[code]).verdict for code in ("WTRU-03", "WNEW-08", "WNEW-10", "WNEW-17")}
    assert verdicts == {"WTRU-03": "kept", "WNEW-08": "kept", "WNEW-10": "broken", "WNEW-17": "broken"}
    ends = "for one in /proc/[0-9]*; do test $one/cwd -ef {path} && kill -9 $(basename $one); done 2>/dev/null"
    ending = pool.model_copy(update={"delete": f"{ends}; {pool.delete}"})
    assert stage.cell(ending, CLAUSES["WNEW-17"]).verdict == "kept"


def test_a_tool_may_put_its_worktrees_anywhere(stage: CellStage, tmp_path: Path) -> None:
    elsewhere = PLAIN_GIT.model_copy(update={"create": f"git worktree add -q -b {{name}} {tmp_path}/{{name}}"})

    assert stage.cell(elsewhere, CLAUSES["WNEW-16"]).verdict == "kept"


def test_a_second_creation_may_say_that_the_worktree_is_there_already(stage: CellStage) -> None:
    add = "git worktree add -q -b {name} ../{name} 2>/dev/null"

    quiet, open_, folded = (
        PLAIN_GIT.model_copy(update={"create": f"{add} || {rest}"})
        for rest in ("true", "echo existing worktree {name}", "{ echo There is a worktree already:; echo /a/path/{name}; }")
    )

    assert stage.cell(quiet, CLAUSES["WNEW-09"]).verdict == "broken"
    assert [stage.cell(tool, CLAUSES["WNEW-09"]).verdict for tool in (open_, folded)] == ["kept", "kept"]


@pytest.mark.skipif(bool(supported()), reason="programs cannot be stopped at their calls here")
def test_a_promise_about_crashes_says_how_many_calls_were_tried(stage: CellStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "MOST_POINTS", 2)

    found = stage.cell(careful(), CLAUSES["WSRV-01"], "create")

    assert found.verdict == "kept"
    assert re.match(r"tried at 2 of the \d+ calls of `.* create demo` that change files", found.what)


@pytest.mark.skipif(bool(supported()), reason="programs cannot be stopped at their calls here")
def test_what_git_keeps_of_a_worktree_that_is_gone_is_no_damage(stage: CellStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "spread", lambda *_: range(15, 18))  # git removes HEAD of the worktree first, and its directory later

    assert stage.cell(PLAIN_GIT, CLAUSES["WSRV-01"], "delete").verdict == "kept"


@pytest.mark.skipif(bool(supported()), reason="programs cannot be stopped at their calls here")
def test_a_promise_about_two_commands_says_how_many_orders_were_tried(stage: CellStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "MOST_ORDERS", 2)

    found = stage.cell(careful(), CLAUSES["WSRV-04"], "delete and finish of one")

    assert found.verdict == "kept"
    assert re.match(r"tried 2 orders with at most 2 switches; \d+ more are known$", found.what)


@pytest.mark.skipif(bool(supported()), reason="programs cannot be stopped at their calls here")
@pytest.mark.parametrize(
    ("code", "case", "first"), [("WSRV-01", "delete", "tried at {} of the "), ("WSRV-04", "delete and finish", "tried {} orders ")]
)
def test_a_case_tries_more_for_as_long_as_the_user_says(
    stage: CellStage, monkeypatch: pytest.MonkeyPatch, code: str, case: str, first: str
) -> None:
    monkeypatch.setattr(crashes, "spread", lambda _count: [15, 16])
    monkeypatch.setattr(crashes, "MOST_SWITCHES", 0)
    for limit in ("MOST_POINTS", "MOST_ORDERS"):
        monkeypatch.setattr(crashes, limit, 1)

    short = stage.cell(PLAIN_GIT, CLAUSES[code], case)
    long = replace(stage, search=SearchBudget(600, 600)).cell(PLAIN_GIT, CLAUSES[code], case)

    assert short.what.startswith(first.format(1))
    assert long.what.startswith(first.format(2))


_MERGED = "git merge-base --is-ancestor $(git -C {path} rev-parse HEAD) {base}"
_LETTERS = "$(echo {name} | tr a-z A-Z)"
LAYOUTS = {
    "inside the repository": {"create": "git worktree add -q -b {name} .worktrees/{name} {base}"},
    "detached": {
        "create": "git worktree add -q --detach ../$(echo {name} | md5sum | cut -c -8) {base}",
        "delete": f"{_MERGED} && git worktree remove {{path}}",
        "finish": "git merge -q --no-edit $(git -C {path} rev-parse HEAD)",
    },
    "with other names": {
        "create": f"git worktree add -q -b agent/{_LETTERS} ../{_LETTERS} {{base}}",
        "delete": f"git worktree remove {{path}} && git branch -d agent/{_LETTERS}",
        "finish": f"git merge -q --no-edit agent/{_LETTERS}",
    },
    "in free directories": {
        "create": "for n in 1 2 3; do [ -e ../slot-$n ] || exec git worktree add -q -b {name} ../slot-$n {base}; done; false",
    },
}


@pytest.mark.skipif(bool(supported()), reason="programs cannot be stopped at their calls here")
@pytest.mark.parametrize(
    ("layout", "code", "case"),
    [
        ("inside the repository", "WSRV-03", ""),
        ("inside the repository", "WSRV-04", "create and delete"),
        ("detached", "WSRV-04", "create and create"),
        ("with other names", "WSRV-04", "create and finish"),
        ("in free directories", "WSRV-04", "create and delete"),
        ("in free directories", "WSRV-04", "delete and delete of one"),
    ],
)
def test_two_commands_are_judged_wherever_a_tool_puts_its_worktrees_and_whatever_it_calls_them(
    stage: CellStage, monkeypatch: pytest.MonkeyPatch, layout: str, code: str, case: str
) -> None:
    monkeypatch.setattr(crashes, "MOST_SWITCHES", 0)

    found = stage.cell(PLAIN_GIT.model_copy(update=LAYOUTS[layout]), CLAUSES[code], case)

    assert (found.verdict, found.what) == ("kept", "tried 2 orders with at most 0 switches, which are all")


@pytest.mark.skipif(bool(supported()), reason="programs cannot be stopped at their calls here")
def test_what_a_command_does_wrong_alone_is_no_matter_of_two(stage: CellStage) -> None:
    keeps = f"if {_MERGED}; then {PLAIN_GIT.delete}; else echo kept {{name}}: not merged; fi"

    found = stage.cell(PLAIN_GIT.model_copy(update={"delete": keeps}), CLAUSES["WSRV-04"], "delete and finish of one")

    assert found.verdict == "no verdict"
    assert found.what == "inconclusive: the delete of beta exits with 0, and has not done it, since delete of beta ran alone"


@pytest.mark.parametrize(
    ("code", "case"), [(one.code, case) for one in CLAIMED for case in one.cases if SOAK or one.code in ("WREM-03", "WFIN-21")]
)
def test_our_own_command_line_loses_nothing_that_git_keeps(stage: CellStage, monkeypatch: pytest.MonkeyPatch, code: str, case: str) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))

    ours = stage.cell(OURS, CLAUSES[code], case)

    assert ours.verdict != "broken" or stage.cell(PLAIN_GIT, CLAUSES[code], case).verdict == "broken", ours.what
    assert SOAK or ours.verdict == "kept", ours.what


@pytest.mark.parametrize("code", OURS.waive)
def test_what_our_own_command_line_does_not_promise_its_help_says(capsys: pytest.CaptureFixture[str], code: str) -> None:
    waiver = OURS.waive[code]

    with suppress(SystemExit):
        main(shlex.split(waiver.help)[1:])

    assert waiver.quote in " ".join(capsys.readouterr().out.split())
