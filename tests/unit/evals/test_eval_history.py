"""A repository's own history becomes a suite: its tasks are messages, its hidden tests are those of the commits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.evals import agent_file, ran, suite, write
from support.git import git
from support.puzzles import quick_python

from pytest_gittrix.cli.main import main
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.hidden_tests import is_of_tests, is_test_file
from pytest_gittrix.evals.inputs.history_suite import make_history
from pytest_gittrix.evals.inputs.suite import Suite

CODE = "def add(a, b):\n    return a - b\n"
TEST = """from sums import add
from tests.helper import near


def test_add(two):
    assert near(add(two, 2), 4)
    assert add(1, 2) == 3
"""
FIRST = {
    "src/sums/__init__.py": CODE,
    "README.md": "# Sums\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n",
    "tests/helper.py": "def near(a, b):\n    return abs(a - b) < 0.1\n",
    "pytest.ini": "[pytest]\naddopts = --no-such-option\n",
}
SECOND = {"src/sums/__init__.py": CODE.replace("a - b", "a + b"), "tests/test_sums.py": TEST, "bin/run": "#!/bin/sh\n"}
THIRD = {
    "README.md": "# Sums of numbers\n",
    "src/sums/__init__.py": "from sums.more import plus as add\n",
    "src/sums/more.py": "def plus(a, b):\n    return b + a\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of three commits, the second of which changes code and tests."""
    path = tmp_path / "sums"
    path.mkdir()
    git("init", "-q", "--initial-branch=main", cwd=path)
    git("config", "user.name", "Ada", cwd=path)
    git("config", "user.email", "ada@example.org", cwd=path)
    for message, files in (
        ("Begin", FIRST),
        ("add() adds\n\nIt subtracted.\n\nReviewed-by: Bob <b@example.org>", SECOND),
        ("Words", THIRD),
    ):
        write(path, files)
        git("add", "--all", cwd=path)
        git("commit", "-q", f"--message={message}", cwd=path)
    return path


def test_a_commit_with_tests_is_a_case_that_its_own_change_solves(repository: Path, tmp_path: Path) -> None:
    found = make_history(repository, tmp_path / "suite")
    [case] = found.suite.cases
    cheat = agent_file(tmp_path, "toolbox.write('tests/conftest.py', 'import os; os._exit(0)')\ntoolbox.write('src/sums/__init__.py', '')")

    with quick_python():
        gold = ran(tmp_path / "suite", tmp_path, "gold", out=tmp_path / "gold").records[0]
        nothing = ran(tmp_path / "suite", tmp_path, "nop", out=tmp_path / "nop").records[0]
        wrong = ran(tmp_path / "suite", tmp_path, cheat, out=tmp_path / "wrong").records[0]

    assert found.commits == 2
    assert case.task == "add() adds\n\nIt subtracted."
    assert (gold.outcome, gold.reason, dict(gold.checks[0].judges)) == ("pass", "", {"tests/test_sums.py::test_add": "subject"})
    assert gold.files == ("bin/run", "src/sums/__init__.py")
    assert (nothing.outcome, nothing.reason) == ("fail", "tests: tests/test_sums.py: status 1")
    assert wrong.outcome == "fail"


def test_what_came_next_drifts_in_where_the_change_leaves_room(repository: Path, tmp_path: Path) -> None:
    [case] = make_history(repository, tmp_path / "suite").suite.cases

    assert case.drift is not None
    assert case.drift.patch is not None
    patch = case.drift.patch.read_text()
    assert "README.md" in patch
    assert ".py" not in patch  # the next commit changes this one's file too, and half of its code would not run


def test_the_same_history_gives_the_same_suite_and_stays_as_it_is(repository: Path, tmp_path: Path) -> None:
    before = sorted(path for path in repository.rglob("*"))

    first, second = make_history(repository, tmp_path / "a"), make_history(repository, tmp_path / "b")

    assert first.digest == second.digest
    assert sorted(path for path in repository.rglob("*")) == before


@pytest.mark.parametrize(
    ("ref", "most", "message"), [("nowhere", 9, "cannot be read"), ("HEAD", 1, "None of 1 commits"), ("--all", 9, "cannot")]
)
def test_what_makes_no_suite_is_refused_and_nothing_is_written(repository: Path, tmp_path: Path, ref: str, most: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_history(repository, tmp_path / "suite", ref=ref, most=most)
    with pytest.raises(InvalidInput, match="already exists"):
        make_history(repository, repository)

    assert [path.name for path in tmp_path.iterdir()] == ["sums"]


def test_the_command_counts_commits_and_cases(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "make-history", str(repository), "--out", str(tmp_path / "suite"), "--no-validate", "--json"]) == 0

    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["commits"], len(data["cases"]), data["suite"]) == (2, 1, str(tmp_path / "suite"))


def test_the_command_ends_with_1_where_its_case_is_not_valid(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(repository, {"src/sums/other.py": "OTHER = 1\n", "tests/test_sums.py": TEST + "\n"})
    git("add", "--all", cwd=repository)
    git("commit", "-q", "--message=Change what no test asks for", cwd=repository)
    argv = ["eval", "make-history", str(repository), "--out", str(tmp_path / "suite"), "--most=1", "--gold-runs=1", "--accept-invalid"]

    assert main([*argv, "--confine", "off", "--json"]) == 1

    (case,) = json.loads(capsys.readouterr().out)["data"]["validation"]["cases"]
    assert [problem["kind"] for problem in case["problems"]] == ["nop-passes"]


@pytest.mark.parametrize("named", ["", "must_pass = []\n", 'must_pass = ["test_other.py::test_it"]\n', 'must_pass = "test_it.py"\n'])
def test_a_check_of_tests_names_tests_that_are_there(tmp_path: Path, named: str) -> None:
    place = suite(tmp_path, more=f'[check]\ntests = "hidden"\n{named}', extra={"hidden/test_it.py": "def test_it(): pass\n"})

    with pytest.raises(InvalidInput, match="must_pass"):
        Suite.load(place)


@pytest.mark.parametrize(
    ("path", "of_tests", "collected"),
    [
        ("tests/test_a.py", True, True),
        ("pkg/test/data.bin", True, False),
        ("a_test.py", True, True),
        ("conftest.py", True, False),
        ("src/testimony.py", False, False),
        ("docs/test_a.md", False, False),
    ],
)
def test_tests_are_told_by_their_paths(path: str, of_tests: bool, collected: bool) -> None:
    assert (is_of_tests(path), is_test_file(path)) == (of_tests, collected)


def test_the_repositorys_own_settings_of_diff_do_not_shape_the_patches(repository: Path, tmp_path: Path) -> None:
    plain = make_history(repository, tmp_path / "plain")
    write(repository, {".git/info/attributes": "*.py diff=upper\n"})
    for setting in (
        *("diff.noprefix=true", "color.ui=always", "diff.mnemonicPrefix=true", "diff.relative=true", "diff.external=false"),
        *("diff.upper.textconv=tr a-z A-Z <", "diff.context=0", "diff.interHunkContext=9"),
    ):
        git("config", *setting.split("=", 1), cwd=repository)

    assert make_history(repository, tmp_path / "set").digest == plain.digest


def test_a_commit_whose_code_does_not_apply_without_its_tests_is_left_out_and_said(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(repository, {"more/tests/test_more.py": "", "more.py": ""})
    git("add", "--all", cwd=repository)
    git("commit", "-q", "--message=More", cwd=repository)
    git("rm", "-rq", "more", cwd=repository)
    write(repository, {"more": "a file where the tests were", "more.py": "MORE = 1\n", "tests/test_more.py": ""})
    git("add", "--all", cwd=repository)
    git("commit", "-q", "--message=Move the tests", cwd=repository)
    head = git("rev-parse", "HEAD", cwd=repository).decode().strip()

    assert main(["eval", "make-history", str(repository), "--out", str(tmp_path / "suite"), "--no-validate", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["data"]["left_out"] == [head]
    assert len(answer["data"]["cases"]) == 2
    with pytest.raises(InvalidInput, match="applies as a patch"):
        make_history(repository, tmp_path / "none", most=1)
