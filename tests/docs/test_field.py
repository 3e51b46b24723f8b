"""The page on published tools has a row of counts for each description, and each description can be read."""

from __future__ import annotations

import re

import pytest

from pytest_gittrix.conformance.worktrees.base.description import read_tool
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from tests.quality import field

PAGE = field.PAGE.read_text(encoding="utf-8")
LOSSES, COUNTS = (
    [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    for table in re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE)
)


def test_each_tool_has_a_row_of_losses_and_one_that_counts_the_other_clauses() -> None:
    shown = field.descriptions()
    assert [row[0] for row in LOSSES] == [f"{one.stem} {field.pinned(one)[1]}" for one in shown]
    assert [row[0] for row in COUNTS] == [one.stem for one in shown]
    clauses = re.search(r"was put to (\d+) clauses", PAGE)
    assert clauses is not None
    counts = [int(loss[1]) + sum(map(int, row[1:])) for loss, row in zip(LOSSES, COUNTS, strict=True)]
    assert counts == [int(clauses[1])] * len(counts)
    assert int(clauses[1]) <= len(worktree_clauses())  # a clause may be younger than the page


def test_each_tool_did_run() -> None:
    assert [row[0] for row in COUNTS if not int(row[1 + field.COLUMNS.index("kept")])] == []
    assert not field.judged({"systems": [{"clauses": [{"status": "no verdict"}, {"status": "not claimed"}]}]})


def test_enough_tools_are_asked_and_some_have_no_finding() -> None:
    found = [int(row[1]) for row in LOSSES]

    assert len(field.descriptions()) >= 20
    assert any(found)
    assert not all(found)
    assert any("npm install" in one.read_text(encoding="utf-8") for one in field.descriptions())


def test_each_finding_of_the_page_has_a_script() -> None:
    broken = sum(int(row[1]) for row in LOSSES)

    assert len(re.findall(r"\. `W[A-Z]{3}-\d\d`: ", PAGE)) == broken
    assert len(re.findall(r"^#!/bin/sh$", PAGE, re.MULTILINE)) + PAGE.count("No script shows it") == broken
    assert re.search(r"Each of the (\d+) scripts was run once more by a shell alone:\n\1 of them showed", PAGE)


@pytest.mark.parametrize("description", field.descriptions(), ids=lambda path: path.stem)
def test_each_description_is_short_and_names_a_version(description: object) -> None:
    tool = read_tool(description)  # type: ignore[arg-type]

    assert all(field.pinned(description))  # type: ignore[arg-type]
    assert len(description.read_text(encoding="utf-8").splitlines()) - 1 <= 10  # type: ignore[attr-defined]
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
