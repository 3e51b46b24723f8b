"""Sets of clauses: a set stays as it is, whatever clauses come later, so that a new version of the package turns no run red."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import Cli

from pytest_gittrix.cli.main import main
from pytest_gittrix.conformance.base import clause
from pytest_gittrix.conformance.base.catalogue import all_clauses
from pytest_gittrix.conformance.base.clause import SETS, first_set, in_set
from pytest_gittrix.conformance.runner import select
from pytest_gittrix.conformance.worktrees.catalogue import select_worktree_clauses, worktree_clauses
from pytest_gittrix.errors import InvalidInput

LATER = {"2026.1": {"ISO": 2, "WTRU": 1}, "2027.1": {"ISO": 3, "WTRU": 2}}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of a package whose families have got clauses since."""
    monkeypatch.setattr(clause, "SETS", LATER)
    monkeypatch.setattr("pytest_gittrix.conformance.worktrees.catalogue.SETS", LATER)


def test_the_first_set_has_a_clause_of_every_family() -> None:
    families = {one.family for one in (*all_clauses(), *worktree_clauses())}

    assert {family for family in families if in_set(f"{family}-01", "2026.1")} == families


@pytest.mark.usefixtures("later")
def test_a_clause_knows_since_which_set_it_is_in() -> None:
    assert [first_set(code) for code in ("ISO-01", "ISO-02", "ISO-03", "ISO-04")] == ["2026.1", "2026.1", "2027.1", ""]
    assert next(one for one in all_clauses() if one.code == "ISO-03").since == "2027.1"


@pytest.mark.usefixtures("later")
def test_a_set_leaves_out_what_came_later() -> None:
    assert [one.code for one in select([], [], "2026.1")] == ["ISO-01", "ISO-02"]
    assert [one.code for one in select(["ISO"], [], "2027.1")] == ["ISO-01", "ISO-02", "ISO-03"]
    assert [one.code for one in select_worktree_clauses(["2026.1"])] == ["WTRU-01"]
    assert [one.code for one in select_worktree_clauses(["WTRU", "2027.1"])] == ["WTRU-01", "WTRU-02"]


@pytest.mark.usefixtures("later")
def test_a_clause_that_is_named_and_not_in_the_set_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"None of these clauses is in the set 2026\.1") as refused:
        select([], ["ISO-03"], "2026.1")
    assert "Name a newer set" in str(refused.value)
    with pytest.raises(InvalidInput, match=r"None of these clauses is in the set 2026\.1"):
        select_worktree_clauses(["WTRU-02", "2026.1"])


def test_clauses_of_other_packages_are_in_every_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clause, "registered", lambda kind: {"ISO": None, "ACM": None})

    assert in_set("ACM-99", "2026.1")
    assert not in_set("ISO-99", "2026.1")


def test_a_set_that_is_not_there_is_refused(cli: Cli) -> None:
    refused = cli("conform", "--list", "--clauses", "1999.1")

    assert refused.status == 2
    assert "'1999.1' is no set of clauses." in refused.err
    assert f"The sets are {', '.join(SETS)}." in refused.err
    refused = cli("conform", "--worktree", "tool.toml", "--list", "--clauses", "1999.1")
    assert refused.status == 2
    assert "'1999.1' is no clause, family or set" in refused.err


@pytest.mark.usefixtures("later")
def test_the_list_says_since_when_each_clause_is_asked(cli: Cli) -> None:
    listed = cli.data("conform", "--list", "--family", "ISO")
    shown = cli.ok("conform", "--list", "--clauses", "2027.1").lines

    assert [one["since"] for one in listed[:4]] == ["2026.1", "2026.1", "2027.1", ""]
    assert [line.split()[:2] for line in shown] == [["CLAUSE", "SINCE"], ["ISO-01", "2026.1"], ["ISO-02", "2026.1"], ["ISO-03", "2027.1"]]
    listed = cli.data("conform", "--worktree", "tool.toml", "--list", "--clauses", "2027.1")
    assert [(one["code"], one["since"]) for one in listed] == [("WTRU-01", "2026.1"), ("WTRU-02", "2027.1")]


@pytest.mark.usefixtures("later")
def test_a_run_asks_the_clauses_of_its_set(tmp_path: Path) -> None:
    description, report = tmp_path / "tool.toml", tmp_path / "report.json"
    description.write_text('[worktree]\ncreate = "git worktree add -q -b {name} ../{name}"\nlist = "git worktree list"\n', encoding="utf-8")

    main(["conform", "--worktree", str(description), "--clauses", "2026.1", "--report", str(report)])

    [system] = json.loads(report.read_text(encoding="utf-8"))["systems"]
    assert [(one["code"], one["since"]) for one in system["clauses"]] == [("WTRU-01", "2026.1")]
