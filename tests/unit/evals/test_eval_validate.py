"""A validation names the cases that say nothing about an agent, and why: their solution, doing nothing, and wrong solutions are run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from support.cli import Cli
from support.evals import case, options, suite

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals import Suite, Validation, validate_suite
from pytest_gittrix.evals.inputs.sample_record import CheckResult, Record
from pytest_gittrix.evals.runs.run import Progress
from pytest_gittrix.evals.verification.validate import CaseValidation

RIGHT = "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-VERSION = 1\n+VERSION = 2\n"
OTHER = RIGHT.replace("= 2", "= 3")
GOLD = 'gold = "gold.patch"\n'
ANY = "def check(result): pass\n"
COUNTS = """
    from pathlib import Path

    def check(result):
        assert b"VERSION = 2" in result.read("app.py"), "the version is not 2"
        with Path({place!r}).open("a+") as file:
            file.write("x")
            assert file.tell() != 2, "it was the second time"
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """A suite with a sound case, and one for each thing that is wrong with a case."""
    place = suite(tmp_path, "sound", more=GOLD, extra={"gold.patch": RIGHT, "wrong/three.patch": OTHER})
    case(place, "no-solution")
    case(place, "never", more=GOLD, extra={"gold.patch": OTHER})
    case(place, "nothing", more=GOLD, extra={"gold.patch": RIGHT})
    (place / "cases" / "nothing" / "check.py").write_text(ANY)
    case(place, "lenient", more=GOLD, extra={"gold.patch": RIGHT, "wrong/three.patch": OTHER, "wrong/torn.patch": "no patch\n"})
    (place / "cases" / "lenient" / "check.py").write_text("def check(result): assert result.read('app.py') != b'VERSION = 1\\n'\n")
    case(place, "now-and-then", more=GOLD, extra={"gold.patch": RIGHT})
    counting = dedent(COUNTS.format(place=str(tmp_path / "count")))
    (place / "cases" / "now-and-then" / "check.py").write_text(counting)
    return place


def validated(place: Path, root: Path, **changed: object) -> Validation:
    return validate_suite(Suite.load(place), options(root, "", **changed), gold_runs=2)


def test_each_case_that_is_not_sound_is_named_with_the_reason(cases: Path, tmp_path: Path) -> None:
    found = validated(cases, tmp_path)

    assert {one.id: [problem.kind for problem in one.problems] for one in found.cases} == {
        "sound": [],
        "no-solution": ["no-gold"],
        "never": ["gold-fails"],
        "nothing": ["nop-passes"],
        "lenient": ["wrong-passes", "wrong-unusable"],
        "now-and-then": ["flaky"],
    }
    [never] = [one for one in found.cases if one.id == "never"]
    text = "its solution ended in fail in 2 of 2 runs: function: AssertionError: the version is not 2"
    assert never.problems[0].text.startswith(text)
    assert found.sentence == (
        "1 of 6 cases are valid; gold as it must be in 7 of 10 runs; nop refused in 5 of 6; wrong solutions refused in 1 of 3."
    )


def test_the_progress_of_all_runs_is_one(tmp_path: Path) -> None:
    place = suite(tmp_path, more=GOLD, extra={"gold.patch": RIGHT, "wrong/three.patch": OTHER})
    seen: list[Progress] = []

    validate_suite(Suite.load(place), options(tmp_path, ""), gold_runs=2, watch=seen.append)
    again = validated(place, tmp_path)

    assert [(one.done, one.total) for one in seen if one.last] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert again.valid == 1
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["gold", "nop", "wrong"]
    with pytest.raises(InvalidInput, match="at least once"):
        validate_suite(Suite.load(place), options(tmp_path, ""), gold_runs=0)


def test_tests_that_are_flaky_trivial_or_judged_by_none_are_named() -> None:
    empty = Record("0" * 32, "one", 0, "", "", "", "pass")
    first = replace(empty, checks=(CheckResult("tests", True, "", {"a": "subject", "b": "subject", "c": "unjudgeable"}),))
    second = replace(empty, checks=(CheckResult("tests", True, "", {"a": "subject", "c": "unjudgeable"}, {"b": "subject"}),))
    nop = replace(empty, outcome="fail", checks=(CheckResult("tests", False, "", {"a": "subject"}, {"b": "subject"}),))

    found = CaseValidation("one", (first, second), nop)

    assert (found.flaky_tests, found.trivial_tests, found.unjudgeable_tests) == (("b",), ("a",), ("c",))
    assert [(one.kind, one.text) for one in found.problems] == [("flaky", "tests of its solution pass now and then: b")]
    assert found.grade.mix == "2 by subject, 1 unjudgeable"


def test_a_case_whose_tests_none_can_judge_is_not_sound_and_one_that_cannot_be_run_is_unknown() -> None:
    empty = Record("0" * 32, "one", 0, "", "", "", "pass")
    unjudged = replace(empty, checks=(CheckResult("tests", True, "", {"c": "unjudgeable"}),))
    broken = replace(empty, outcome="infra_error", reason="the disk was full")
    nop = replace(empty, outcome="fail")

    assert [one.kind for one in CaseValidation("one", (unjudged,), nop).problems] == ["unjudgeable"]
    assert [one.kind for one in CaseValidation("one", (broken,), broken, {"w": broken}).problems] == ["unknown"] * 3
    assert CaseValidation("one", (replace(empty, outcome="conflict"),), nop, expected="conflict").is_valid


def test_the_command_ends_with_1_unless_all_cases_are_valid_and_writes_junit(
    cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cli = Cli(tmp_path, monkeypatch, capfdbinary)
    junit = tmp_path / "validation.xml"
    line = ("eval", "validate", str(cases), "--confine", "off", "--gold-runs", "1", "--scratch", str(tmp_path / "scratch"))

    sound = cli.ok(*line, "--filter", "sound")
    done = cli(*line, "--filter", "sound", "--filter", "n*", "--junit", str(junit), "--out", str(tmp_path / "kept"))
    data = cli(*line, "--filter", "no-*", "--json").envelope["data"]

    assert sound.lines[0] == "valid    sound  1 of 1 wrong solutions refused"
    assert done.status == 1
    assert "           nop-passes: it passes without any work" in done.lines
    assert (tmp_path / "kept" / "gold" / "manifest.json").is_file()
    results = {
        one.get("name"): [child.tag for child in one if child.tag != "properties"] for one in ElementTree.parse(junit).iter("testcase")
    }
    assert results == {
        "sound": [], "never": ["failure"], "no-solution": ["failure"], "nothing": ["failure"], "now-and-then": [],
    }  # fmt: skip
    assert [(one["id"], one["valid"], one["problems"][0]["kind"]) for one in data["cases"]] == [("no-solution", False, "no-gold")]
    assert "No case fits" in cli(*line, "--filter", "elsewhere").err
