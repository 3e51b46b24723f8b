"""Options: command line, environment and configuration, what wins, and what is refused."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gittrix.confine.levels import missing_layers

Run = Callable[..., pytest.RunResult]

NOTHING = "def test_nothing(): pass"


def shown(result: pytest.RunResult) -> dict[str, str]:
    """What ``--gittrix-show-config`` printed: value and origin by option."""
    lines = [line.split(maxsplit=1) for line in result.outlines if line and not line.startswith(("=", "ERROR"))]
    return {name: " ".join(rest.split()) for name, rest in lines}


def test_defaults_are_shown_with_their_origin(run: Run) -> None:
    result = run(NOTHING, "--gittrix-show-config")

    assert result.ret == 0
    assert shown(result) == {
        "clock-start": "2030-01-01T00:00:00Z (default)",
        "freeze": "wall (default)",
        "autojump": "no (default)",
        "freeze-children": "yes (default)",
        "model": "auto (default)",
        "model-lenient": "no (default)",
        "unconfined": "fail (default)",
        "workspace": "clone (default)",
        "keep": "failed (default)",
        "artifacts": "none (default)",
        "git": "git (default)",
        "git-variables": "drop (default)",
        "profile": "default (default)",
        "system": "none (default)",
        "conformance-report": "none (default)",
        "waive": "none (default)",
        "clauses": "none (default)",
        "crash": "none (default)",
        "race": "none (default)",
        "eval-resume": "no (default)",
        "eval-trust-agent": "no (default)",
        "eval-count-infra-errors": "no (default)",
        "eval-judge-at-least": "any (default)",
        **dict.fromkeys(
            ("eval-run", "eval-from", "eval-tape", "eval-prices", "eval-seed", "eval-epochs", "eval-shard", "eval-fail-under"),
            "none (default)",
        ),
    }


def test_the_command_line_wins_over_the_environment_and_that_over_the_configuration(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\ngittrix_keep = none\ngittrix_freeze = none\ngittrix_workspace = copy\n")
    monkeypatch.setenv("PYTEST_GITTRIX_KEEP", "all")
    monkeypatch.setenv("PYTEST_GITTRIX_FREEZE", "all")

    result = run(NOTHING, "--gittrix-show-config", "--gittrix-keep=failed")

    options = shown(result)
    assert options["keep"] == "failed (--gittrix-keep)"
    assert options["freeze"] == "all (PYTEST_GITTRIX_FREEZE)"
    assert options["workspace"] == "copy (gittrix_workspace in tox.ini)"


def test_show_config_runs_no_test(run: Run) -> None:
    result = run("def test_it(): raise SystemExit('ran')", "--gittrix-show-config")

    assert result.ret == 0
    result.stdout.no_fnmatch_line("*ran*")


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("freeze", "walls", "wall, all, none"),
        ("workspace", "zip", "clone, lazy, copy, worktree"),
        ("keep", "some", "failed, all, none"),
        ("profile", "fast", "quick, default, soak"),
        ("clock-start", "yesterday", "instants with a time zone, such as 2030-01-01T00:00:00Z"),
        ("clock-start", "2030-01-01T00:00:00", "instants with a time zone"),
        ("git-variables", "hide", "drop, keep"),
        ("unconfined", "run", "fail, skip"),
        ("git", "/no/such/git", "the name or path of a program"),
        ("artifacts", "test_it.py", "a directory"),
        ("conformance-report", "/reports/report.pdf", "files that end in .json, .html, .txt, .xml, .sarif, .svg or .jsonl"),
        ("waive", "CNF-99=no", "the run waives 'CNF-99', which is no clause"),
        ("crash", "long", "numbers of seconds"),
        ("waive", "CNF-01", "has no reason*NAME=REASON"),
    ],
)
def test_a_wrong_value_is_refused_with_those_that_are_valid(option: str, value: str, valid: str, run: Run) -> None:
    result = run(NOTHING, f"--gittrix-{option}={value}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*'{value}' is not a valid gittrix {option} (from --gittrix-{option}).*{valid}*"])


def test_a_wrong_value_is_traced_to_where_it_was_given(run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini("[pytest]\ngittrix_keep = some\n")
    from_file = run(NOTHING)
    monkeypatch.setenv("PYTEST_GITTRIX_KEEP", "few")
    from_environment = run(NOTHING)

    from_file.stderr.fnmatch_lines(["*'some' is not a valid gittrix keep (from gittrix_keep in tox.ini)*"])
    from_environment.stderr.fnmatch_lines(["*'few' is not a valid gittrix keep (from PYTEST_GITTRIX_KEEP)*"])


def test_a_wrong_value_is_refused_by_show_config_too(run: Run) -> None:
    assert run(NOTHING, "--gittrix-show-config", "--gittrix-keep=some").ret == pytest.ExitCode.USAGE_ERROR


def test_a_reason_in_the_environment_may_have_a_colon_in_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_GITTRIX_WAIVE", "CNF-01=see https://example.org/why\nlisting=names are folded")

    options = shown(run(NOTHING, "--gittrix-show-config"))

    assert "https://example.org/why" in options["waive"]
    assert options["waive"].endswith("(PYTEST_GITTRIX_WAIVE)")


def test_the_header_is_silent_unless_asked(run: Run) -> None:
    run(NOTHING).stdout.no_fnmatch_line("gittrix: *")
    run(NOTHING, "-v").stdout.fnmatch_lines(
        ["gittrix: git *, workspace=clone, freeze=wall, clock_start=2030-01-01T00:00:00.000Z, keep=failed"]
    )
    run(NOTHING, "--gittrix-workspace=lazy").stdout.fnmatch_lines(["gittrix: git *, workspace=lazy, *"])


def test_the_clock_starts_where_the_option_says(run: Run) -> None:
    source = """
        def test_start(gittrix_clock, gittrix_durable):
            assert gittrix_clock.now().isoformat() == "2040-05-06T06:00:00+00:00"
    """
    run(source, "--gittrix-clock-start=2040-05-06T07:00:00+01:00", "--gittrix-freeze=none").assert_outcomes(passed=1)


@pytest.mark.parametrize("kind", ["clone", "worktree", "copy", "lazy", "overlay"])
def test_the_workspace_option_is_the_kind_of_every_session(kind: str, run: Run) -> None:
    source = f"""
        def test_kind(gittrix_session):
            assert gittrix_session.info().workspace_kind == "{kind}"
            if gittrix_session.workspace_path is None and gittrix_session.info().capabilities["shell"]:
                assert gittrix_session.run(["git", "status", "--short"]).stdout == b""
    """
    if kind == "overlay" and (why := missing_layers(tempfile.gettempdir())):
        pytest.skip(why)
    run(source, f"--gittrix-workspace={kind}").assert_outcomes(passed=1)


def test_the_git_that_was_asked_for_is_used_and_forgotten_again(run: Run, pytester: pytest.Pytester) -> None:
    from pytest_gittrix.git.environment import git_binary

    usual = git_binary()
    mine = pytester.path / "bin" / "my-git"
    mine.parent.mkdir()
    mine.write_text(f'#!{sys.executable}\nimport os, sys\nos.execv("{usual}", ["git", *sys.argv[1:]])\n', encoding="utf-8")
    mine.chmod(0o755)
    source = f"""
        import os
        from pytest_gittrix.git.environment import git_binary

        def test_git(gittrix_durable):
            assert git_binary() == os.environ["PYTEST_GITTRIX_GIT"] == "{mine}"
            assert gittrix_durable.git("rev-parse", "HEAD")
    """

    run(source, f"--gittrix-git={mine}").assert_outcomes(passed=1)

    assert git_binary() == usual


def test_relative_artifacts_are_beside_the_configuration_that_names_them(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngittrix_artifacts = kept\ntestpaths = .\n")
    source = "def test_it(gittrix_durable): assert False"

    run(source, "--rootdir", str(pytester.path)).assert_outcomes(failed=1)

    assert [path.name for path in Path(pytester.path, "kept").iterdir()] == ["test_it.py-test_it"]
