"""The page on published tools has a row of counts for each description, and each description can be read."""

from __future__ import annotations

import re

import pytest

from pytest_gittrix.conformance.worktrees.base.description import read_tool
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from tests.quality import field

PAGE = field.PAGE.read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if re.match(r"\| (?!tool)\S+ .*\d \|$", line)]


def test_each_tool_has_a_row_that_counts_every_clause_that_was_run() -> None:
    assert [row[0].split()[0] for row in ROWS] == [read_tool(one).title for one in field.descriptions()]
    assert [row[0].split()[1] for row in ROWS] == [field.packages(one)[0].partition("==")[2] for one in field.descriptions()]
    assert [sum(map(int, row[4:])) for row in ROWS] == [int(row[3]) for row in ROWS]
    assert max(int(row[3]) for row in ROWS) <= len(worktree_clauses())  # a clause may be younger than the page


def test_each_tool_did_run() -> None:
    assert [row[0] for row in ROWS if not any(map(int, row[4 : 4 + field.COLUMNS.index("no verdict")]))] == []
    assert not field.judged({"systems": [{"clauses": [{"status": "no verdict"}, {"status": "not claimed"}]}]})


def test_enough_tools_are_asked_and_some_have_no_finding() -> None:
    found = [int(row[4 + field.COLUMNS.index("broken")]) for row in ROWS]

    assert len(found) >= 12
    assert sum(map(bool, found)) >= 8
    assert found.count(0) >= 3


def test_each_finding_of_the_page_has_a_script() -> None:
    broken = sum(int(row[4 + field.COLUMNS.index("broken")]) for row in ROWS)

    assert len(re.findall(r"^`W[A-Z]{3}-\d\d` ", PAGE, re.MULTILINE)) == broken
    assert len(re.findall(r"^#!/bin/sh$", PAGE, re.MULTILINE)) == broken


@pytest.mark.parametrize("description", field.descriptions(), ids=lambda path: path.stem)
def test_each_description_is_short_and_names_a_version(description: object) -> None:
    tool = read_tool(description)  # type: ignore[arg-type]

    assert all("==" in name for name in field.packages(description)[:1])  # type: ignore[arg-type]
    assert tool.has("create")
    assert tool.has("delete")


def test_a_kept_report_of_other_clauses_or_of_another_description_is_not_used() -> None:
    description, *_ = field.descriptions()
    promises = [[one.code, one.promise, *one.cases] for one in worktree_clauses()]
    report = {"description": description.read_text(encoding="utf-8"), "promises": promises}

    assert field.is_current(report, description)
    assert not field.is_current(report | {"promises": promises[:-1]}, description)
    assert not field.is_current(report | {"promises": [*promises[:-1], [*promises[-1], "another case"]]}, description)
    assert not field.is_current(report | {"description": "# pip install tool==0.1"}, description)
