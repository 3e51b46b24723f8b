"""What a run with evals leaves for others: JUnit, the terminal, GitHub, the page; and when its pass rate decides the exit status."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.eval_tests import EvalTests, properties
from support.evals import agent_file

from pytest_gittrix.plugin.evals.github import MOST_BYTES, MOST_ERRORS, SampleRow, append_summary, errors_of, summary

ODD = "toolbox.write('app.py', f'VERSION = {2 if toolbox.case in \"ace\" else 1}\\n')"


@pytest.fixture
def half(evals: EvalTests) -> EvalTests:
    """Four cases, of which two pass."""
    evals.suite("a", "b", "c", "d")
    evals.tests(agent_file(evals.root, ODD))
    return evals


def row(sample: str, outcome: str, reason: str = "") -> SampleRow:
    return SampleRow(sample, outcome, reason, "test_it.py", 3)


# JUnit and the terminal ------------------------------------------------------------------------------------------------------------


def test_junit_has_what_is_true_of_each_sample_and_of_the_run(half: EvalTests) -> None:
    half.run("--junitxml=junit.xml").assert_outcomes(passed=2, failed=2)

    whole, cases = properties(half.root / "junit.xml")
    record = half.store().sample("a")
    values = cases["test_case[a]"]
    assert (values["gittrix_eval_key"], values["gittrix_eval_promoted"]) == (record.key, record.promoted)
    assert (values["gittrix_eval_outcome"], values["gittrix_eval_run"], values["gittrix_eval_origin"]) == ("pass", "runs/suite", "run")
    assert float(values["gittrix_eval_seconds"]) > 0
    assert cases["test_case[b]"]["gittrix_eval_reason"] == half.store().sample("b").reason
    assert {name.removeprefix("gittrix_eval.suite."): value for name, value in whole.items() if len(value) < 40} == {
        "directory": "runs/suite",
        "seed": "0",
        "confine": "off",
        "pass_rate": "50.0",
        "samples": "4",
        "pass": "2",
        "fail": "2",
        "counts_infra_errors": "false",
        **dict.fromkeys(("unjudgeable", "conflict", "refused", "agent_error", "timeout", "limit", "infra_error"), "0"),
    }
    assert whole["gittrix_eval.suite.manifest"] == half.store().manifest().digest


def test_the_terminal_tells_counts_rate_digest_and_where_to_look(half: EvalTests) -> None:
    result = half.run("--gittrix-eval-epochs=2")

    result.stdout.fnmatch_lines(
        [
            "*gittrix eval: suite*",
            "8 samples: 4 pass, 4 fail",
            "pass rate 50.0% [[]*%, *%]",
            "pass@2 50.0%*",
            "pass^2 50.0%*",
            "manifest ????????????, seed 0, confine off",
            "result ???????????? in runs/suite",
            "report runs/suite/report.html",
        ],
        consecutive=True,
    )
    assert "4 of 8 samples passed." in (half.root / "runs" / "suite" / "report.html").read_text(encoding="utf-8")


def test_a_run_without_evals_has_none_of_this(evals: EvalTests) -> None:
    evals.source("def test_it(): pass")

    result = evals.run("--gittrix-eval-fail-under=90", "--junitxml=junit.xml")

    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*gittrix eval*")
    assert properties(evals.root / "junit.xml") == ({}, {"test_it": {}})


# The pass rate ---------------------------------------------------------------------------------------------------------------------


def test_failing_samples_are_let_through_where_enough_pass(half: EvalTests) -> None:
    result = half.run("--gittrix-eval-fail-under=50")

    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["pass rate 50.0%*, and no less than the 50% that must pass", "2 that did not pass let through"])


def test_too_few_passes_fail_the_run(half: EvalTests) -> None:
    result = half.run("--gittrix-eval-fail-under=50.1")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["pass rate 50.0%*, less than the 50.1% that must pass"])


def test_a_bar_for_judges_fails_a_test_whose_sample_a_lesser_judge_has_judged(evals: EvalTests) -> None:
    plain = "import app\n\n\ndef check(a, b):\n    assert a == b\n\n\ndef test_plain():\n    check(type(app.Thing()), app.Thing)\n"
    extra = {"test_hidden.py": plain}
    evals.suite("one", files={"app.py": "class Thing: pass\n"}, more='[check]\npytest = "test_hidden.py"\n', extra=extra)
    evals.tests("nop")

    held = evals.run("--gittrix-eval-judge-at-least=canary", "--junitxml=junit.xml")
    let_through = evals.run("--gittrix-eval-judge-at-least=plain", "--gittrix-eval-resume", "--gittrix-eval-run=runs/suite")

    held.assert_outcomes(failed=1)
    held.stdout.fnmatch_lines(["*only plain has judged test_plain; canary is demanded*"])
    assert properties(evals.root / "junit.xml")[0]["gittrix_eval.suite.pass_rate"] == "0.0"
    let_through.assert_outcomes(passed=1)
    assert evals.outcomes() == {"one #0": "pass"}


def test_too_few_passes_fail_a_run_whose_tests_all_pass(evals: EvalTests) -> None:
    evals.suite("one")
    evals.source("""
        import pytest

        @pytest.mark.gittrix_eval(suite="suite", agent="nop", confine="off")
        def test_it(gittrix_eval):
            assert gittrix_eval.outcome == "fail"
    """)

    result = evals.run("--gittrix-eval-fail-under=1")

    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("more", "arguments"),
    [
        ("def test_other(): assert False", ()),
        ("", ("--maxfail=1",)),
    ],
    ids=["another test failed", "stopped early"],
)
def test_only_failing_samples_are_let_through(more: str, arguments: tuple[str, ...], half: EvalTests) -> None:
    file = half.root / "test_it.py"
    file.write_text(f"{file.read_text()}\n{more}\n")

    assert half.run("--gittrix-eval-fail-under=10", *arguments).ret == pytest.ExitCode.TESTS_FAILED


def test_what_could_not_be_run_is_not_let_through(evals: EvalTests) -> None:
    place = evals.suite("a", "c", "e")
    (place / "cases" / "e" / "check.py").write_text("raise OSError\ndef check(result): pass\n")
    evals.tests(agent_file(evals.root, ODD))

    result = evals.run("--gittrix-eval-fail-under=10")

    result.assert_outcomes(passed=2, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["1 in infra_error count for nothing: *", "pass rate 100.0%*"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fail-under", "101"),
        ("fail-under", "many"),
        ("seed", "-1"),
        ("epochs", "0"),
        ("shard", "4/3"),
    ],
)
def test_a_wrong_option_is_refused(option: str, value: str, evals: EvalTests) -> None:
    evals.source("def test_it(): pass")

    result = evals.run(f"--gittrix-eval-{option}={value}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*'{value}' is not a valid gittrix eval-{option} (from --gittrix-eval-{option})*"])


# GitHub ----------------------------------------------------------------------------------------------------------------------------


def test_github_gets_one_table_and_an_annotation_for_each_failure(half: EvalTests, monkeypatch: pytest.MonkeyPatch) -> None:
    file = half.root / "step.md"
    file.write_text("what was there\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))

    result = half.run_apart("-n", "2")

    text = file.read_text()
    assert text.startswith("what was there\n### gittrix eval: runs/suite\n")
    assert text.count("| sample | outcome | why |") == 1
    assert [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| ")][1:] == [
        ["| b #0", "fail"],
        ["| d #0", "fail"],
        ["| a #0", "pass"],
        ["| c #0", "pass"],
    ]
    assert [line.partition("::function")[0] for line in result.outlines if line.startswith("::")] == [
        f"::error file=test_it.py,line=3,title={id_} #0%3A fail" for id_ in "bd"
    ]


def test_elsewhere_nothing_is_annotated(half: EvalTests) -> None:
    half.run().stdout.no_fnmatch_line("::error*")


def test_a_summary_is_cut_to_its_room_and_says_so() -> None:
    rows = [row(f"case-{number} #0", "fail" if number % 2 else "pass", "why | <b> " * 20) for number in range(9_000)]

    text = summary("runs/a", ["9000 samples"], rows, MOST_BYTES)

    shown = text.count("| fail |") + text.count("| pass |")
    assert len(text.encode()) <= MOST_BYTES
    assert 0 < shown < 9_000
    assert text.endswith(f"… and {9_000 - shown} more samples: they are in the directory of the run.\n")
    assert "| pass |" not in text or text.index("| pass |") > text.rindex("| fail |")
    assert "<b>" not in text
    assert r"why \| &lt;b&gt;" in text


def test_a_full_summary_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "step.md"
    file.write_bytes(b"x" * (MOST_BYTES - 100))

    assert append_summary(file, "runs/a", [], [row("one #0", "pass")]) == "the summary of the step is full"
    assert file.stat().st_size == MOST_BYTES - 100


def test_a_summary_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    assert append_summary(tmp_path, "runs/a", [], []).startswith("the summary of the step cannot be written: ")


def test_there_are_no_more_annotations_than_are_shown() -> None:
    lines = errors_of([row(f"case-{number} #0", "fail", "status 1") for number in range(MOST_ERRORS + 3)])

    assert [line.startswith("::error ") for line in lines] == [True] * MOST_ERRORS + [False]
    assert lines[-1] == "::notice title=gittrix eval::3 more samples did not pass; the summary lists them."


def test_what_a_reason_says_cannot_become_a_command() -> None:
    [line] = errors_of([SampleRow("a, b: c", "fail", "100%\r\n::error::more", "tests/a,b.py", 3)])

    assert line == "::error file=tests/a%2Cb.py,line=3,title=a%2C b%3A c%3A fail::100%25%0D%0A::error::more"
