"""A run of the worktree profile: its verdicts, its exit status, and what is left of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fixtures.worktree_managers.tools import CARELESS
from pytest_gittrix.cli.main import main
from pytest_gittrix.conformance import WorktreeReport, run_worktree_profile
from pytest_gittrix.conformance.worktrees.base.description import Waiver
from pytest_gittrix.conformance.worktrees.catalogue import select_worktree_clauses
from pytest_gittrix.conformance.worktrees.findings import report_data
from pytest_gittrix.conformance.worktrees.text import report_text
from pytest_gittrix.errors import InvalidInput

HELP = "echo 'delete:  removes the worktree\n  with force.'"
EXPECTED = {
    "WREM-01": "documented",
    "WREM-02": "broken",
    "WREM-12": "broken",
    "WREM-04": "as git",
    "WMRG-02": "no verdict",
    "WNEW-07": "kept",
    "WNEW-11": "not claimed",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> WorktreeReport:
    waive = {
        "WREM-01": Waiver(quote="removes the worktree with force", help=HELP),
        "WREM-02": Waiver(quote="nobody ever said this", help=HELP),
    }
    tool = CARELESS.model_copy(update={"clean": "true", "sync": "", "version": "echo careless 1.0", "waive": waive})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))
        patch.setattr("tempfile.tempdir", None)
        made = run_worktree_profile(tool, select_worktree_clauses([*EXPECTED]))
        assert os.listdir(os.environ["TMPDIR"]) == []
    return made


def test_each_verdict_is_given_where_it_is_due(report: WorktreeReport) -> None:
    assert {one.clause: one.verdict for one in report.findings} == EXPECTED
    assert report.version == "careless 1.0"
    assert report.git.startswith("git version ")


def test_only_what_is_broken_fails_a_run_and_each_has_a_script_that_showed_it(report: WorktreeReport) -> None:
    assert [one.clause for one in report.broken] == ["WREM-02", "WREM-12"]
    assert all(one.reproduced and one.script.startswith("#!/bin/sh\n") for one in report.broken)


def test_a_waiver_counts_where_the_help_has_its_words(report: WorktreeReport) -> None:
    said = {one.clause: one.what for one in report.findings}

    assert said["WREM-01"].startswith("“removes the worktree with force”")
    assert "does not say “nobody ever said this”" in said["WREM-02"]


def test_a_command_that_does_nothing_on_finished_work_gives_no_verdict(report: WorktreeReport) -> None:
    (cleaning,) = [one for one in report.findings if one.clause == "WMRG-02"]

    assert "`true` removed nothing, not even finished work" in cleaning.what


def test_the_text_shows_the_scripts_and_the_json_has_everything(report: WorktreeReport) -> None:
    text, data = report_text(report), json.loads(json.dumps(report_data(report)))

    assert "BROKEN WREM-12: an unmerged branch is kept, or its tip is named" in text
    assert '    R=$(mktemp -d); cd "$R"' in text
    assert "1 kept, 2 broken, 1 as git, 1 documented, 1 not claimed, 1 no verdict" in text
    assert [one["verdict"] for one in data["clauses"]] == [EXPECTED[one["clause"]] for one in data["clauses"]]
    assert data["counts"]["broken"] == 2


def test_the_command_exits_with_1_where_something_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    description = tmp_path / "tool.toml"
    description.write_text('[worktree]\ncreate = "git stash -q; git worktree add -q -b {name} ../{name}"\n', encoding="utf-8")

    status = main(["conform", "--worktree", str(description), "--clause", "WNEW-07", "--report", str(tmp_path / "report.json")])

    assert status == 1
    assert "BROKEN WNEW-07" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["counts"]["broken"] == 1


def test_the_clauses_can_be_listed_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--worktree", "any.toml", "--list", "--family", "WTRU", "--json"]) == 0

    assert [one["code"] for one in json.loads(capsys.readouterr().out)["data"]] == ["WTRU-01", "WTRU-02", "WTRU-03"]


def test_a_clause_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean WREM-\d\d\? The families are WREM, WMRG"):
        select_worktree_clauses(["WREM-O1"])
