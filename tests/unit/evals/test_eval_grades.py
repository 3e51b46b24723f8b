"""What a verdict is worth: which tests passed and failed, by which judge, and a bar that judges must reach."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import Cli
from support.evals import case, ran, suite

from pytest_gittrix.evals.inputs.identity import canonical, digest_of
from pytest_gittrix.evals.inputs.sample_record import CheckResult, Record, decode
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.results.grades import Grade, VerdictOnTest, grade_of, held_to, score, short_of, verdicts_of
from pytest_gittrix.evals.results.summary import rates
from pytest_gittrix.report.eval_report import page_of

CODE = "def add(a, b): return a + b\n\n\ndef twice(a): return a\n\n\nclass Thing:\n    def __eq__(self, other): return False\n"
FIRST = "import app\n\n\ndef test_add():\n    assert app.add(1, 2) == 3\n\n\ndef test_twice():\n    assert app.twice(2) == 4\n"
SECOND = (
    "import app\n\n\ndef test_equal():\n    assert app.Thing() == 1\n\n\ndef test_same():\n    assert app.add(1, 2) == app.add(2, 1)\n"
    "\n\ndef test_mine():\n    assert isinstance(app.Thing(), app.Thing)\n"
)
BROKEN = "import app\n\nassert app.missing\n\n\ndef test_never():\n    pass\n"
TESTS = '[check]\ntests = "tests"\nmust_pass = ["test_first.py", "test_second.py", "test_third.py"]\n'


def record(**fields: object) -> Record:
    empty = Record("0" * 32, "one", 0, "", "", "", "pass")
    return replace(empty, **fields)  # type: ignore[arg-type]


def judged(**judges: str) -> Record:
    return record(checks=(CheckResult("tests", True, "", judges),))


def failed(failed: dict[str, str], **judges: str) -> Record:
    return record(outcome="fail", checks=(CheckResult("tests", False, "", judges, failed),))


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A suite of one case whose code is partly wrong, with three files of tests."""
    extra = {"tests/test_first.py": FIRST, "tests/test_second.py": SECOND, "tests/test_third.py": BROKEN}
    return suite(tmp_path, files={"app.py": CODE}, more=TESTS, extra=extra)


def test_a_failed_check_has_a_verdict_on_every_test_of_every_file(hidden: Path, tmp_path: Path) -> None:
    first, second = (ran(hidden, tmp_path, "nop", out=tmp_path / name).records[0] for name in ("a", "b"))

    assert first.encode() == second.encode()
    assert first.outcome == "fail"
    assert [(test.name, test.word, test.judge) for test in verdicts_of(first)] == [
        ("test_first.py::test_twice", "failed", "canary"),
        ("test_second.py::test_equal", "failed", "canary"),
        ("test_third.py", "failed", "subject"),
        ("test_first.py::test_add", "passed", "subject"),
        ("test_second.py::test_mine", "passed", "canary"),
        ("test_second.py::test_same", "passed", "subject"),
    ]
    assert first.reason == "tests: test_first.py: status 1; and 2 more files"
    assert score(first) == Fraction(1, 2)


def test_a_record_without_tables_is_read_as_before(hidden: Path, tmp_path: Path) -> None:
    old = judged(test_it="subject")
    body = json.loads(old.encode())
    body.pop("digest")
    del body["checks"][0]["failed"]
    data = canonical({**body, "digest": digest_of(body)})

    assert decode(data, tmp_path) == old


def test_a_grade_counts_tests_by_judge_and_those_that_none_can_judge_as_neither() -> None:
    one = failed({"e": "canary"}, a="subject", b="subject", c="plain", d="unjudgeable")

    grade = grade_of([one])
    assert grade == Grade({"subject": 2, "plain": 1}, {"canary": 1}, 1)
    assert (grade.tests_passed, grade.tests, grade.mix) == (3, 4, "2 by subject, 1 by plain, 1 unjudgeable")
    assert verdicts_of(one)[:2] == [VerdictOnTest("e", False, "canary"), VerdictOnTest("d", None, "unjudgeable")]


@pytest.mark.parametrize(
    ("judges", "at_least", "reason"),
    [
        ({"a": "subject"}, "subject", ""),
        ({"a": "subject", "b": "canary"}, "subject", "only canary has judged b; subject is demanded"),
        ({"a": "canary", "b": "plain"}, "canary", "only plain has judged b; canary is demanded"),
        ({"a": "canary", "b": "plain"}, "subject", "only plain has judged b and 1 more; subject is demanded"),
        ({"a": "canary", "b": "plain"}, "plain", ""),
        ({"a": "unjudgeable"}, "plain", "none can judge a; plain is demanded"),
        ({"a": "plain"}, None, ""),
        ({}, "subject", ""),
    ],
)
def test_a_sample_counts_as_its_weakest_judge(judges: dict[str, str], at_least: str | None, reason: str) -> None:
    counted = held_to(judged(**judges), at_least)

    assert (counted.outcome, counted.reason) == ("fail" if reason else "pass", reason)
    assert short_of([judged(**judges)], at_least) == bool(reason)


def test_the_score_is_the_mean_share_of_tests_and_a_sample_without_tests_counts_by_its_outcome() -> None:
    records = [failed({"b": "subject"}, a="subject"), replace(judged(a="subject"), id="two"), record(id="three")]
    conflict = record(id="four", outcome="conflict")

    found = rates([*records, conflict])
    assert found.score is not None
    assert found.score.value == pytest.approx((0.5 + 1 + 1 + 0) / 4)
    assert found.grade.mix == "2 by subject"
    assert rates([record()]).score is None
    assert rates([conflict]).score is None


def test_run_show_and_report_say_what_the_rate_is_worth(
    hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cli = Cli(tmp_path, monkeypatch, capfdbinary)
    plain = "import app\n\n\ndef check(a, b):\n    assert a == b\n\n\ndef test_plain():\n    check(type(app.Thing()), app.Thing)\n"
    more = '[check]\npytest = "test_it.py"\n'
    case(hidden, "two", files={"app.py": CODE}, more=more, extra={"test_it.py": plain})
    out = str(tmp_path / "kept")
    line = ("eval", "run", str(hidden), "--agent", "nop", "--confine", "off", "--out", out, "--scratch", str(tmp_path / "scratch"))

    done = cli(*line, "--judge-at-least", "canary")
    shown, one = cli.ok("eval", "show", out), cli.ok("eval", "show", out, "one")
    held = cli("eval", "show", out, "--judge-at-least", "canary", "--json")

    assert done.status == 1
    assert "  pass rate   0.0%" in done.text
    assert "tests 4 of 7 passed, score 75.0%" in " ".join(done.text.split())
    assert "judged 2 by subject, 1 by canary, 1 by plain" in " ".join(done.text.split())
    assert "1 sample passed and does not count as passed: a test of it was judged by less than canary." in done.err
    assert "3/6" in shown.text
    assert "judged      2 by subject, 1 by canary, 1 by plain" in shown.text
    assert "  failed      canary  test_first.py::test_twice" in one.text
    assert held.status == 1
    data = held.envelope["data"]
    assert (data["outcomes"]["pass"], data["short"], data["rates"]["grade"]["tests_passed"]) == (0, 1, 4)
    assert [sample["tests"] for sample in data["samples"]] == [6, 1]
    assert cli.data("eval", "show", out)["outcomes"]["pass"] == 1
    assert cli.data("eval", "compare", out, out)["rates"]["a"]["pass_rate"]["value"] == 0.5
    assert cli.data("eval", "compare", out, out, "--judge-at-least", "canary")["rates"]["a"]["pass_rate"]["value"] == 0
    assert data["digest"] == cli.data("eval", "show", out)["digest"]


def test_the_page_and_the_comparison_name_the_tests(hidden: Path, tmp_path: Path) -> None:
    before = ran(hidden, tmp_path, "nop", out=tmp_path / "a").store
    fix = "toolbox.write('app.py', toolbox.read('app.py').replace(b'return a\\n', b'return 2 * a\\n'))"
    (tmp_path / "agent.py").write_text(f"def work(toolbox):\n    {fix}\n")
    after = ran(hidden, tmp_path, f"python:{tmp_path / 'agent.py'}:work", out=tmp_path / "b").store

    page = page_of(before)
    (pair,) = compare(before, after).pairs

    assert "3 of 6 passed; score 50 %" in page
    assert "judged by" not in page
    assert "test_second.py::test_equal" in page
    assert [(one.name, one.a, one.b) for one in pair.test_changes] == [("test_first.py::test_twice", "failed", "passed")]
    assert compare(before, after).to_json()["rates"]["b"]["score"]["value"] == pytest.approx(4 / 6)
