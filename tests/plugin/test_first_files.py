"""``pytest --gittrix-init``: the files that it writes, and those that it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

WORKFLOW = ".github/workflows/agent-tests.yml"


def init(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    """What it prints, with the paths from the project's directory."""
    ran = pytester.runpytest("--gittrix-init", *arguments)
    assert ran.ret == 0
    return [line.replace(f"{pytester.path}/", "") for line in ran.outlines]


def test_a_new_project_gets_three_files_whose_tests_pass(pytester: pytest.Pytester) -> None:
    assert init(pytester) == [
        "wrote tests/conftest.py",
        "wrote tests/test_my_agent.py",
        f"wrote {WORKFLOW}",
        "Now run pytest, and put your agent into test_my_agent.py.",
    ]
    pytester.runpytest("tests").assert_outcomes(passed=3)


def test_a_file_that_is_there_stays_and_the_first_test_passes_without_its_conftest(pytester: pytest.Pytester) -> None:
    (pytester.path / "tests").mkdir()
    conftest = pytester.path / "tests" / "conftest.py"
    conftest.write_text("MINE = 1\n")

    assert "left as it is: tests/conftest.py" in init(pytester)
    assert conftest.read_text() == "MINE = 1\n"
    pytester.runpytest("tests").assert_outcomes(passed=3)
    assert init(pytester)[-1] == "Nothing was written: every file is there already."


def test_a_link_to_nowhere_is_not_written_through(pytester: pytest.Pytester) -> None:
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "conftest.py").symlink_to(pytester.path / "elsewhere.py")

    assert "left as it is: tests/conftest.py" in init(pytester)
    assert not (pytester.path / "elsewhere.py").exists()


def test_the_tests_go_where_pytest_looks_for_them(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntestpaths = checks/agents\n")
    assert "wrote checks/agents/test_my_agent.py" in init(pytester)
    assert "pytest checks/agents --gittrix-artifacts=artifacts" in (pytester.path / WORKFLOW).read_text()


def test_the_workflow_is_at_the_top_of_the_repository(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (pytester.path / ".git").mkdir()
    inner = pytester.mkdir("inner")
    (inner / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(inner)

    assert f"wrote {WORKFLOW}" in init(pytester)
    text = (pytester.path / WORKFLOW).read_text()
    assert "working-directory: inner\n" in text
    assert "path: inner/artifacts\n" in text


def test_what_cannot_be_written_is_said(pytester: pytest.Pytester) -> None:
    (pytester.path / "tests").write_text("a file\n")
    ran = pytester.runpytest("--gittrix-init")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*--gittrix-init cannot write a file: *tests*"])
