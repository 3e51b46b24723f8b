"""Data sets in the format of SWE-bench become suites on local repositories, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.evals import agent_file
from support.git import git

from pytest_gittrix.cli.main import main
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.inputs.swebench import case_files, import_swebench, instances
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.run import run_suite

BROKEN = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return a * 2\n"
MENDED = BROKEN.replace("a - b", "a + b")
TESTS = "import sums\n\n\ndef test_twice():\n    assert sums.twice(2) == 4\n"
MORE = TESTS + "\n\n@pytest.mark.parametrize('a', [1, 2])\ndef test_add(a):\n    assert sums.add(a, 2) == a + 2\n"


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
    """A directory with one repository, ``acme/sums``."""
    path = tmp_path / "repos" / "acme" / "sums"
    path.mkdir(parents=True)
    git("init", "-q", "--initial-branch=main", cwd=path)
    git("config", "user.name", "Ada", cwd=path)
    git("config", "user.email", "ada@example.org", cwd=path)
    (path / "sums.py").write_text(BROKEN)
    (path / "test_sums.py").write_text(TESTS)
    git("add", "--all", cwd=path)
    git("commit", "-q", "--message=first", cwd=path)
    return tmp_path / "repos"


def patch_of(repository: Path, name: str, text: str) -> str:
    """The patch that makes a file of it be this text."""
    before = (repository / name).read_text()
    (repository / name).write_text(text)
    patch = git("diff", cwd=repository).decode()
    (repository / name).write_text(before)
    return patch


@pytest.fixture
def line(repositories: Path) -> dict[str, Any]:
    """An instance, as the published data set has them: lists of tests are texts."""
    repository = repositories / "acme" / "sums"
    return {
        "instance_id": "acme__sums-1",
        "repo": "acme/sums",
        "base_commit": git("rev-parse", "HEAD", cwd=repository).decode().strip(),
        "problem_statement": "add() subtracts.\n\u2028Mend it.",
        "patch": patch_of(repository, "sums.py", MENDED),
        "test_patch": patch_of(repository, "test_sums.py", "import pytest\n" + MORE),
        "FAIL_TO_PASS": json.dumps(["test_sums.py::test_add[1]", "test_sums.py::test_add[2]"]),
        "PASS_TO_PASS": ["test_sums.py::test_twice"],
        "version": "1.0",
        "hints_text": "",
    }


def written(tmp_path: Path, *lines: object) -> Path:
    """A data set of these lines."""
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)}\n" for one in lines), encoding="utf-8")
    return file


def test_the_gold_patch_passes_and_an_agent_that_does_nothing_fails(line: dict[str, Any], repositories: Path, tmp_path: Path) -> None:
    suite = import_swebench(written(tmp_path, line), repositories, tmp_path / "suite")

    outcomes = {}
    for agent in ("gold", "nop"):
        done = run_suite(suite, Options(agent, tmp_path / agent, confine="off", scratch=tmp_path / "scratch"))
        [record] = done.records
        outcomes[agent] = (record.outcome, record.reason)

    assert outcomes == {"gold": ("pass", ""), "nop": ("fail", "tests: test_sums.py: status 1")}


def test_a_result_that_prints_what_pytest_prints_or_answers_for_pytest_does_not_pass(
    line: dict[str, Any], repositories: Path, tmp_path: Path
) -> None:
    suite = import_swebench(written(tmp_path, line), repositories, tmp_path / "suite")
    says = "print('PASSED test_sums.py::test_add[1]\\nPASSED test_sums.py::test_add[2]\\nPASSED test_sums.py::test_twice')\n"
    conftest = "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    agent = agent_file(
        tmp_path,
        f"""
        toolbox.write("sums.py", {says + "import os; os._exit(0)"!r})
        toolbox.write("conftest.py", {conftest!r})
        toolbox.write("test_sums.py", "def test_twice(): pass")
        """,
    )

    [record] = run_suite(suite, Options(agent, tmp_path / "run", confine="off", scratch=tmp_path / "scratch")).records

    assert (record.outcome, record.reason) == ("fail", "tests: test_sums.py: the result ended its process")


def test_a_case_says_what_its_line_says(line: dict[str, Any], repositories: Path, tmp_path: Path) -> None:
    import_swebench(written(tmp_path, line, "", {**line, "instance_id": "acme__sums-2", "patch": ""}), repositories, tmp_path / "suite")

    suite = Suite.load(tmp_path / "suite")
    first, second = suite.cases
    assert suite.name == "suite"
    assert (first.id, first.task) == ("acme__sums-1", line["problem_statement"].strip())
    assert (first.source.path, first.source.ref) == (repositories / "acme" / "sums", line["base_commit"])
    assert first.gold is not None
    assert first.gold.read_text() == line["patch"]
    assert second.gold is None
    assert [check.kind for check in first.checks] == ["tests"]
    assert first.checks[0].must_pass == ("test_sums.py::test_add[1]", "test_sums.py::test_add[2]", "test_sums.py::test_twice")
    assert "test_add" in (first.directory / "tests" / "test_sums.py").read_text()
    assert git("status", "--porcelain", cwd=repositories / "acme" / "sums") == b""


def test_the_files_of_a_case_are_the_same_for_the_same_line(line: dict[str, Any]) -> None:
    text = json.dumps(line)

    first, second = (case_files(instances(text)[0], Path("/repos/acme/sums")) for _ in range(2))

    assert first == second
    assert sorted(first) == ["case.toml", "gold.patch", "task.md"]


@pytest.mark.parametrize("place", ["acme/sums", "acme__sums", "sums", "sums.git"])
def test_a_repository_is_found_under_any_of_its_names(place: str, line: dict[str, Any], repositories: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere" / place
    there.parent.mkdir(parents=True)
    git("clone", "-q", *(["--bare"] if place.endswith(".git") else []), str(repositories / "acme" / "sums"), str(there))

    suite = import_swebench(written(tmp_path, line), tmp_path / "elsewhere", tmp_path / "suite")

    assert suite.cases[0].source.path == there


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instance_id": "../out"}, "Line 1|line 1"),
        ({"instance_id": None}, "instance_id"),
        ({"repo": "sums"}, "owner/name"),
        ({"repo": "../../etc/passwd"}, "owner/name"),
        ({"repo": "acme/other"}, "acme/other is not in"),
        ({"base_commit": "main"}, "full id"),
        ({"base_commit": "0" * 40}, "cannot be read from"),
        ({"problem_statement": " "}, "problem_statement"),
        ({"problem_statement": "a\0b"}, "NUL"),
        ({"FAIL_TO_PASS": "no list", "PASS_TO_PASS": []}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": ["--rootdir=/"]}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": ["test_add (sums.tests.Sums)"]}, "pytest can name"),
        ({"FAIL_TO_PASS": [], "PASS_TO_PASS": []}, "no test is named"),
        ({"FAIL_TO_PASS": ["test_other.py::test_it"]}, "has no test_other.py"),
        ({"test_patch": "no patch"}, "cannot be read from"),
        ({"patch": 7}, "patch"),
    ],
)
def test_a_line_that_is_none_is_refused_and_nothing_is_written(
    change: dict[str, Any], message: str, line: dict[str, Any], repositories: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, {**line, **change})
    before = sorted(tmp_path.iterdir())

    with pytest.raises(InvalidInput, match=message):
        import_swebench(file, repositories, tmp_path / "suite")

    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("text", ["", "\n\n", "[]\n", "no json\n", "\ud800"])
def test_what_is_no_data_set_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        instances(text)


def test_half_of_a_character_and_an_id_that_is_there_twice_are_refused(line: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="half of a surrogate pair"):
        instances(json.dumps({**line, "problem_statement": "\ud800"}))
    with pytest.raises(InvalidInput, match="Line 2"):
        instances(json.dumps(line) + "\n" + json.dumps({**line, "instance_id": "ACME__sums-1"}))


def test_nothing_is_written_over_and_a_file_that_is_not_there_is_told(line: dict[str, Any], repositories: Path, tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()

    with pytest.raises(InvalidInput, match="already exists"):
        import_swebench(written(tmp_path, line), repositories, tmp_path / "suite")
    with pytest.raises(InvalidInput, match="cannot be read"):
        import_swebench(tmp_path / "nowhere", repositories, tmp_path / "other")
    assert [*(tmp_path / "suite").iterdir()] == []


def test_the_command_tells_where_the_suite_is(
    line: dict[str, Any], repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    status = main(
        ["eval", "import", "swebench", str(written(tmp_path, line)), "--repos", str(repositories), "--gold-runs", "1", "--confine", "off"]
    )

    suite, *validation = capsys.readouterr().out.splitlines()
    assert (status, suite) == (0, f"{tmp_path}/evals/data")
    assert validation == [
        "valid    acme__sums-1  3 tests: 3 by subject; 1 pass without any work",
        "1 of 1 cases are valid; gold as it must be in 1 of 1 runs; nop refused in 1 of 1.",
    ]
    assert Suite.load(tmp_path / "evals" / "data").cases[0].id == "acme__sums-1"


@pytest.mark.parametrize(
    ("valid", "flags", "status", "note"),
    [
        (1, [], 1, "--accept-invalid ends with 0"),
        (1, ["--accept-invalid"], 0, ""),
        (0, ["--accept-invalid"], 1, "none of its cases says anything"),
        (0, ["--no-validate"], 0, "not validated: `gittrix eval validate`"),
    ],
)
def test_the_status_of_the_command_says_whether_its_cases_are_valid(
    line: dict[str, Any],
    repositories: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    valid: int,
    flags: list[str],
    status: int,
    note: str,
) -> None:
    bad = {**line, "instance_id": "acme__sums-2", "FAIL_TO_PASS": ["test_sums.py::test_twice"], "PASS_TO_PASS": []}
    lines = [line] * valid + [bad]
    argv = ["eval", "import", "swebench", str(written(tmp_path, *lines)), "--repos", str(repositories), "--out", str(tmp_path / "suite")]

    found = main([*argv, "--gold-runs", "1", "--confine", "off", *flags])

    printed = capsys.readouterr()
    assert (found, len(Suite.load(tmp_path / "suite").cases)) == (status, len(lines))
    assert note in printed.err
    assert ("the suite is made" in printed.err) == (status == 1)


def test_a_suite_that_could_not_be_validated_ends_with_1_and_says_why(
    line: dict[str, Any], repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AdapterUnavailable("The disk is full.", fix="Free disk space.")

    monkeypatch.setattr("pytest_gittrix.cli.evals_suites._validated", fails)
    argv = ["eval", "import", "swebench", str(written(tmp_path, line)), "--repos", str(repositories), "--out", str(tmp_path / "suite")]

    assert (main(argv), main([*argv[:-1], str(tmp_path / "other"), "--no-validate"])) == (1, 0)
    assert "not validated: The disk is full. Free disk space." in capsys.readouterr().err
