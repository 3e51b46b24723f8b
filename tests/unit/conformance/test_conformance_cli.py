"""``gittrix conform``: lists clauses, runs them in a process of its own, and says by its exit status whether all were kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import Cli

from pytest_gittrix.conformance.base.catalogue import all_clauses
from pytest_gittrix.conformance.runner import RunSpec, run_clauses, select
from pytest_gittrix.errors import GittrixError, InvalidInput

BROKEN = """
from pytest_gittrix.testing.systems.gittrix_system import GitTrixEngine, GitTrixSystem


class Forgetful(GitTrixEngine):
    def promote(self, id, **selection):
        return "0" * 40


class Acme(GitTrixSystem):
    def open(self, place):
        return Forgetful(super().open(place).gittrix)


acme = Acme("lazy")
acme.name = "acme 1.4"
"""


def shown(cli: Cli, *arguments: str) -> tuple[int, str]:
    """The exit status of a run, and what a person sees of it."""
    with cli.process("conform", *arguments) as running:
        out, err = (stream.decode() for stream in running.communicate(timeout=120))
    assert err == ""
    return running.returncode, out


@pytest.fixture
def acme(cli: Cli) -> Cli:
    """The command in a project with a session system whose promotions do nothing."""
    (cli.project / "acme.py").write_text(BROKEN, encoding="utf-8")
    return cli


def test_the_clauses_are_listed_for_people_and_for_programs(cli: Cli) -> None:
    shown = cli.ok("conform", "--list").lines
    listed = cli.data("conform", "--list")

    assert [line.split()[0] for line in shown] == ["CLAUSE", *(clause.code for clause in all_clauses())]
    assert [(one["code"], one["promise"], one["why"]) for one in listed] == [(one.code, one.promise, one.why) for one in all_clauses()]


def test_a_list_can_be_of_families_and_clauses(cli: Cli) -> None:
    listed = cli.data("conform", "--list", "--family", "cap", "--clause", "cnf-02")

    assert [one["code"] for one in listed] == ["CNF-02", "CAP-01", "CAP-02", "CAP-03"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--family", "XYZ"], "'XYZ' is no family of clauses."),
        (["--clause", "CNF-99"], "'CNF-99' is no clause."),
        (["-n", "0"], "'0' is no number of processes"),
        (["acme"], "'acme' is not the name of a session system.\n"),
        (["nowhere:system"], "There is no module 'nowhere', which SYSTEM names.\n"),
        (["--waive", "CNF-99=no"], "the command line waives 'CNF-99', which is no clause and no invariant."),
        (["--waive", "listing=folded"], "the command line waives 'listing', which is an invariant of the state machine and no clause."),
        (["--worktree", "tool.toml", "--waive", "CNF-01=no"], "--waive does nothing with --worktree.\n"),
        (["--worktree", "tool.toml", "--waive", "CNF-01=no"], "in the description, in the table [worktree.waive]."),
        (["--ask"], "--ask does nothing without --worktree-init.\n"),
        (["--waive", "CNF-01"], "The waiver of CNF-01 by the command line has no reason."),
        (["--report", "report.pdf"], "report.pdf' is not a valid gittrix conformance-report"),
    ],
)
def test_what_cannot_be_run_is_misuse(arguments: list[str], message: str, cli: Cli) -> None:
    ran = cli("conform", *arguments)

    assert (ran.status, ran.out) == (2, b"")
    assert message in ran.err
    assert "\n  usage: gittrix conform [FLAGS]" in ran.err
    assert not any(word in ran.err for word in ("--gittrix-system", "python -m pytest", "gittrix_system"))


def test_misuse_is_told_to_programs_too(cli: Cli) -> None:
    ran = cli("conform", "--clause", "CNF-99", "--json")

    assert (ran.status, ran.envelope["error"]["code"]) == (2, "USAGE")


def test_kept_promises_exit_with_zero(cli: Cli) -> None:
    ran = cli("conform", "--clause", "CNF-01", "--family", "CAP", "--json")

    (system,) = ran.envelope["data"]["systems"]
    assert (ran.status, ran.envelope["ok"], system["name"]) == (0, True, "gittrix (clone)")
    assert [one["code"] for one in system["clauses"] if one["status"] == "kept"] == ["CNF-01", "CAP-01", "CAP-02", "CAP-03"]


def test_a_broken_promise_exits_with_one_and_is_told(acme: Cli) -> None:
    reports = [acme.project / name for name in ("report.json", "report.html")]

    ran = acme("conform", "acme:acme", "--clause", "CNF-01", "--json", *(word for path in reports for word in ("--report", str(path))))

    assert (ran.status, ran.envelope["ok"], ran.err) == (1, True, "")
    assert ran.envelope["data"] == json.loads(reports[0].read_text(encoding="utf-8"))
    (system,) = ran.envelope["data"]["systems"]
    (broken,) = [one for one in system["clauses"] if one["status"] == "broken"]
    assert (system["name"], broken["code"], broken["replay"]) == ("acme 1.4", "CNF-01", "gittrix conform acme:acme --clause CNF-01")
    assert "acme 1.4" in reports[1].read_text(encoding="utf-8")


def test_a_clause_is_waived_for_one_run(acme: Cli) -> None:
    ran = acme("conform", "acme:acme", "--clause", "CNF-01", "--waive", "CNF-01=acme = one writer", "--json")

    (system,) = ran.envelope["data"]["systems"]
    [waived] = [one for one in system["clauses"] if one["status"] == "waived"]
    assert (ran.status, waived["code"], waived["reason"]) == (0, "CNF-01", "acme = one writer")


def test_people_see_the_table_and_why_it_is_broken(acme: Cli) -> None:
    status, out = shown(acme, "acme:acme", "--clause", "CNF-01")

    assert status == 1
    assert "gittrix conformance: acme 1.4" in out
    assert "broken CNF-01: an edit of the same file is a conflict" in out
    assert "E   ClauseFailure: expected BASELINE_CONFLICT, but it was done: promote()" in out
    assert "again: gittrix conform acme:acme --clause CNF-01" in out


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_each_clause_has_a_line_with_its_result_while_the_run_goes_on(workers: list[str], acme: Cli) -> None:
    _, text = shown(acme, "acme:acme", "--clause", "CAP-01", "--clause", "CAP-02", "--clause", "CNF-01", *workers)

    lines = [line for line in text.splitlines() if line.startswith("[") and line[1].isdigit()]
    assert [line.split("]")[0] for line in lines] == ["[1/3", "[2/3", "[3/3"]
    assert sorted(line.split("]")[1].split()[:2] for line in lines) == [
        ["broken", "CNF-01"],
        ["kept", "CAP-01"],
        ["kept", "CAP-02"],
    ]


def test_a_fault_that_lets_no_clause_begin_is_told_once(cli: Cli) -> None:
    (cli.project / "acme.py").write_text(f"{BROKEN}\nAcme.open = lambda self, place: 1 / 0\n", encoding="utf-8")

    status, text = shown(cli, "acme:acme", "--family", "NAM")

    assert status == 1
    assert "\n1. no clause could begin: ZeroDivisionError: division by zero (broken: NAM-01, NAM-02, " in text
    assert text.count("ZeroDivisionError") == 2
    assert "\n1 fault; " in text


def test_the_project_says_which_system_is_meant(acme: Cli) -> None:
    (acme.project / "pytest.ini").write_text("[pytest]\ngittrix_system = acme:acme\npython_files = check_*.py\n", encoding="utf-8")

    assert [one["name"] for one in acme("conform", "--family", "CAP", "--json").envelope["data"]["systems"]] == ["acme 1.4"]


def test_temporary_files_go_where_the_variable_says_and_are_gone_afterwards(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, place = tmp_path / "seen", tmp_path / "place"
    place.mkdir()
    notes = f"import pathlib, tempfile\npathlib.Path({str(seen)!r}).write_text(tempfile.gettempdir())\n"
    (cli.project / "conftest.py").write_text(notes, encoding="utf-8")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(cli.project)

    kept, _ = run_clauses(RunSpec(clauses=select(["CAP"], [])), quiet=True)

    assert kept
    assert Path(seen.read_text(encoding="utf-8")).parent == place
    assert [*place.iterdir()] == []


def test_nothing_is_left_in_the_project(cli: Cli) -> None:
    before = sorted(path for path in cli.project.rglob("*") if ".git" not in path.parts)

    cli("conform", "--family", "CAP", "--json")

    assert sorted(path for path in cli.project.rglob("*") if ".git" not in path.parts) == before


def test_a_project_that_pytest_cannot_start_in_is_told_as_it_is(cli: Cli) -> None:
    (cli.project / "conftest.py").write_text("raise OSError('no server')\n", encoding="utf-8")

    ran = cli("conform", "--family", "CAP", "--json")

    assert ran.status == 2
    assert "no server" in ran.envelope["error"]["message"]


def test_a_run_without_an_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text("import pytest\ndef pytest_collection_finish(): pytest.exit('enough', 3)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(GittrixError, match="pytest ended with status 3"):
        run_clauses(RunSpec(clauses=select(["CAP"], [])), quiet=True)


def test_all_clauses_are_selected_by_default() -> None:
    assert select([], []) == [*all_clauses()]
    assert [one.code for one in select([], ["iso-01"])] == ["ISO-01"]
    with pytest.raises(InvalidInput, match="no family"):
        select(["ISO-01"], [])
