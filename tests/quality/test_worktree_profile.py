"""A run of the worktree profile: its verdicts, its exit status, and what is left of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fixtures.worktree_managers.tools import CARELESS
from pytest_gittrix.cli.main import main
from pytest_gittrix.conformance.reports.badge import to_badge
from pytest_gittrix.conformance.reports.baseline import compare
from pytest_gittrix.conformance.reports.files import WRITERS
from pytest_gittrix.conformance.reports.json_report import to_json
from pytest_gittrix.conformance.worktrees import profile
from pytest_gittrix.conformance.worktrees.base.description import Waiver, WorktreeTool
from pytest_gittrix.conformance.worktrees.catalogue import select_worktree_clauses
from pytest_gittrix.conformance.worktrees.findings import CellOutcome, WorktreeReport, combined, system_report
from pytest_gittrix.conformance.worktrees.profile import run_worktree_profile
from pytest_gittrix.conformance.worktrees.text import report_text
from pytest_gittrix.errors import GittrixError, InvalidInput

VERSION = "printf 'careless \\033[1m'; test $HOME = $R/home && echo 1.0"
HELP = "echo 'delete:  removes the worktree\n  with force.'"
EXPECTED = {
    "WREM-01": "documented",
    "WREM-02": "broken",
    "WREM-12": "broken",
    "WREM-03": "waived",
    "WREM-04": "as git",
    "WMRG-02": "no verdict",
    "WNEW-07": "kept",
    "WNEW-08": "broken",
    "WNEW-11": "not claimed",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> WorktreeReport:
    waive = {
        "WREM-01": Waiver(quote="removes the worktree with force", help=HELP),
        "WREM-02": Waiver(quote="nobody ever said this", help=HELP),
        "WREM-03": Waiver(not_yet="issue 12"),
        "WNEW-08": Waiver(not_yet="issue 13"),
    }
    tool = CARELESS.model_copy(update={"clean": "true", "sync": "", "version": VERSION, "waive": waive})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))
        patch.setattr("tempfile.tempdir", None)
        made = run_worktree_profile(tool, select_worktree_clauses([*EXPECTED]))
        assert os.listdir(os.environ["TMPDIR"]) == []
    return made


def test_each_verdict_is_given_where_it_is_due(report: WorktreeReport) -> None:
    assert {one.clause: one.verdict for one in report.findings} == EXPECTED
    assert report.version == r"careless \x1b[1m1.0"
    assert report.git.startswith("git version ")


def test_only_what_is_broken_fails_a_run_and_each_has_a_script_that_showed_it(report: WorktreeReport) -> None:
    assert [one.clause for one in report.broken] == ["WREM-02", "WREM-12", "WNEW-08"]
    assert all(one.reproduced and one.script.startswith("#!/bin/sh\n") for one in report.broken[:2])


def test_a_waiver_counts_where_the_help_has_its_words(report: WorktreeReport) -> None:
    said = {one.clause: one.what for one in report.findings}

    assert said["WREM-01"].startswith("“removes the worktree with force”")
    assert "does not say “nobody ever said this”" in said["WREM-02"]


def test_what_is_not_kept_yet_fails_no_run_until_it_is_kept(report: WorktreeReport) -> None:
    found = {one.clause: one for one in report.findings}

    assert found["WREM-03"].reason == "not yet: issue 12"
    assert found["WNEW-08"].reason == "it is kept now: remove its waiver (not yet: issue 13)"
    assert [one.waiver for one in system_report(report).outcomes if one.clause.code in ("WREM-01", "WREM-03")] == ["on purpose", "not yet"]


def test_a_command_that_does_nothing_on_finished_work_gives_no_verdict(report: WorktreeReport) -> None:
    (cleaning,) = [one for one in report.findings if one.clause == "WMRG-02"]

    assert "`true` removed nothing, not even finished work" in cleaning.what


def test_the_report_has_the_form_of_all_reports(report: WorktreeReport) -> None:
    text, (system,) = report_text(report, "careless.toml"), to_json([system_report(report)])["systems"]

    assert "Removing loses the commits of an unmerged branch (broken, loses work: WREM-12)" in text
    assert "broken WREM-12: an unmerged branch is kept, or its tip is named (loses work)" in text
    assert "again: gittrix conform --worktree careless.toml --clause WREM-12" in text
    assert '    R=$(mktemp -d) || exit 3; export R W; cd "$R"' in text
    assert "as git     WREM-04  lost: an untracked file, where status.showUntrackedFiles is no" in text
    assert {one["code"]: one["status"] for one in system["clauses"]} == EXPECTED
    assert [one["clauses"] for one in system["findings"]] == [["WREM-02"], ["WREM-12"], ["WNEW-08"]]
    assert {one["family"] for one in system["families"]} == {"WREM", "WMRG", "WNEW"}


@pytest.mark.parametrize("suffix", [".json", ".html", ".txt", ".xml", ".sarif"])
def test_each_kind_of_report_says_what_was_run_when_and_beside_which_git(report: WorktreeReport, suffix: str) -> None:
    text = WRITERS[suffix]([system_report(report)])

    assert re.fullmatch(r"\d{4}-\d\d-\d\d", report.date)
    assert [fact for fact in ("x1b[1m1.0", report.date, report.git) if fact not in text] == []


def test_the_badge_has_its_date_and_the_version_of_git(report: WorktreeReport) -> None:
    assert f", {report.date}, {report.git.replace('git version', 'git')}</text>" in to_badge([system_report(report)])


def test_a_baseline_leaves_only_what_is_new_to_fail_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    description, earlier = tmp_path / "tool.toml", tmp_path / "earlier.json"
    description.write_text('[worktree]\ncreate = "git stash -q; git worktree add -q -b {name} ../{name}"\n', encoding="utf-8")
    command = ["conform", "--worktree", str(description), "--clause", "WNEW-07"]

    assert main([*command, "--report", str(earlier), "--report", str(tmp_path / "badge.svg")]) == 1
    assert "broken WNEW-07" in capsys.readouterr().out
    assert main([*command, "--against", str(earlier)]) == 0
    assert (tmp_path / "badge.svg").read_text(encoding="utf-8").startswith("<svg")


def test_each_clause_has_a_line_on_the_errors_as_soon_as_it_is_known(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    description = tmp_path / "tool.toml"
    description.write_text('[worktree]\ncreate = "git worktree add -q -b {name} ../{name}"\nsetup = "no-such-tool"\n', encoding="utf-8")

    main(["conform", "--worktree", str(description), "--family", "WTRU", "--clause", "WNEW-07", "--clause", "WNEW-12"])

    shown = capfd.readouterr()
    lines = [line.split("]")[1].split("  ")[0].strip() for line in shown.err.splitlines() if line.startswith("[")]
    assert sorted(lines) == ["no verdict", "no verdict", *["not claimed"] * (len(lines) - 2)]
    assert len(lines) == len(select_worktree_clauses(["WTRU", "WNEW-07", "WNEW-12"]))
    assert shown.out.count("no-such-tool") == 2  # its line, and what the shell says of it
    assert "no verdict WNEW-07, WNEW-12  the setup `no-such-tool`" in shown.out


def test_a_tool_that_does_not_run_fails_the_run_and_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    description = tmp_path / "tool.toml"
    broken = "echo first; echo ModuleNotFoundError: no click; false"
    description.write_text(f'[worktree]\ncreate = "{broken}"\nversion = "{broken}"\n', encoding="utf-8")

    assert main(["conform", "--worktree", str(description), "--clause", "WNEW-07"]) == 1

    shown = capsys.readouterr()
    assert "made no worktree: ModuleNotFoundError: no click\n" in shown.out
    assert "first" not in shown.out.splitlines()[-1]
    assert "No clause could be judged" in shown.err


@pytest.mark.parametrize(("create", "said"), [("sleep 60", "took more than 0.5 seconds"), ("kill -9 $PPID", "killed by signal 9")])
def test_a_run_that_does_not_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: str, said: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if "sleep" in create:
        monkeypatch.setattr(profile, "LONGEST_RUN", 0.5)

    with pytest.raises(GittrixError, match=said):
        run_worktree_profile(WorktreeTool(create=create), select_worktree_clauses(["WNEW-07"]))

    assert os.listdir(tmp_path) == []


def test_the_seconds_of_a_search_are_those_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "LONGEST_RUN", 0.1)
    description = tmp_path / "tool.toml"
    description.write_text('[worktree]\ncreate = "sleep 60"\n', encoding="utf-8")

    assert main(["conform", "--worktree", str(description), "--clause", "WNEW-07", "--crash", "0.1", "--race", "0.2"]) == 1
    assert "The run took more than 0.7 seconds." in capsys.readouterr().err


def test_a_clause_is_kept_only_if_every_case_has_a_verdict() -> None:
    cells = [CellOutcome("WNEW-02", case, verdict, what) for case, verdict, what in (("a", "kept", ""), ("b", "no verdict", "not refused"))]

    found = combined("WNEW-02", cells, frozenset())

    assert (found.verdict, found.reason) == ("no verdict", "not refused (b)")
    assert combined("WNEW-02", cells[:1], frozenset()).verdict == "kept"
    assert combined("WNEW-02", cells[1:], frozenset()).reason == "not refused"


def test_what_is_known_of_one_version_is_not_new_in_the_next_and_a_loss_is_one_whatever_it_says() -> None:
    finding = combined("WNEW-05", [CellOutcome("WNEW-05", "", "broken", "commits are gone", lost=True)], frozenset())
    old, new = (system_report(WorktreeReport("tool", version, "git", 1, (finding,))) for version in ("tool 1.0", "tool 2.0"))

    assert compare(to_json([old]), to_json([new])).new == ()
    assert new.outcomes[0].loses_work


def test_a_report_of_no_kind_is_refused_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tool.toml").write_text('[worktree]\ncreate = "false"\n', encoding="utf-8")

    assert main(["conform", "--worktree", str(tmp_path / "tool.toml"), "--report", "report.doc"]) == 2
    assert "Its name ends with one of .json, .html" in capsys.readouterr().err


def test_the_clauses_can_be_listed_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--worktree", "any.toml", "--list", "--family", "WTRU", "--json"]) == 0

    assert [one["code"] for one in json.loads(capsys.readouterr().out)["data"]] == ["WTRU-01", "WTRU-02", "WTRU-03", "WTRU-04"]


def test_the_fast_clauses_are_about_removing_and_cleaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--worktree", "any.toml", "--list", "--fast", "--json"]) == 0

    assert {one["code"][:4] for one in json.loads(capsys.readouterr().out)["data"]} == {"WREM", "WMRG"}


def test_fast_is_refused_without_a_manager_of_worktrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--fast"]) == 2

    assert "--fast does nothing without --worktree." in capsys.readouterr().err


def test_a_clause_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean WREM-\d\d\? The families are WREM, WMRG"):
        select_worktree_clauses(["WREM-O1"])
