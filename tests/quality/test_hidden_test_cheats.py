"""Results that cheat hidden tests: none of them passes, and a right result does, whichever judge it gets.

A few run always, all of them with ``PYTEST_GITTRIX_SOAK=1``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from support.cheat_trials import EARLIER, LURED, believed, verdicts
from support.cheats import HONEST, INSIDE, LUCK, OUTSIDE, lured
from support.hidden_tests import LEVEL, verdict_on

from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.errors import CapabilityMissing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "evals.md"
SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"
pytestmark = pytest.mark.skipif(LEVEL != "jail", reason="cheats run in a jail or on a throwaway machine only")
USUAL = ("reads what the test expects", "every report passes")
"""The cheats that run always, beside the process of the tests and lured into it."""


UNITTEST = """\
import unittest

import app


class ReadingTest(unittest.TestCase):
    def test_reading(self):
        for text, number in [("seven", 7), ("eleven", 11)]:
            with self.subTest(text=text):
                self.assertEqual(app.read(text), number)
"""


class Row(NamedTuple):
    """What the page says of a cheat: with plain pytest, what stops it in a process of its own and lured, and where it passes."""

    plain: str
    own: str
    lured: str
    where: str


def rows() -> dict[str, Row]:
    """The page's table."""
    lines = PAGE.read_text(encoding="utf-8").partition("| what the result does |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: Row(*rest) for name, *rest in cells}


def test_the_page_lists_every_cheat() -> None:
    assert [*rows()] == [*INSIDE, *OUTSIDE]
    assert [row.plain for row in rows().values()].count("passes") == 19
    assert f"Nineteen of the {len(rows())} pass where pytest runs them" in PAGE.read_text(encoding="utf-8")


def test_a_right_result_passes_and_every_judge_is_named(tmp_path: Path) -> None:
    names = ["test_adding", "test_sorting", "test_reading[seven-7]", "test_reading[eleven-11]"]
    for judged_by, result in {"subject": HONEST, "canary": lured(HONEST)}.items():
        (tmp_path / judged_by).mkdir()
        found, last = verdict_on(result, tmp_path / judged_by)

        assert (found.wrong, dict(found.judges), last) == ("", dict.fromkeys(names, judged_by), judged_by)


@pytest.mark.parametrize("name", [*INSIDE] if SOAK else USUAL[:1])
def test_a_cheat_in_a_process_of_its_own_does_not_pass(name: str, tmp_path: Path) -> None:
    verdict, judge_of_it = verdict_on(INSIDE[name], tmp_path)

    assert verdict.wrong
    assert judge_of_it == rows()[name].own


@pytest.mark.parametrize("name", [*INSIDE] if SOAK else USUAL)
def test_a_cheat_that_is_lured_beside_the_tests_does_not_pass(name: str, tmp_path: Path) -> None:
    verdict, judge_of_it = verdict_on(lured(INSIDE[name]), tmp_path)

    assert verdict.wrong
    assert judge_of_it == rows()[name].lured


def test_an_object_that_equals_all_does_not_pass_a_subtest_of_unittest(tmp_path: Path) -> None:
    verdict, judge_of_it = verdict_on(INSIDE["an object that equals all"], tmp_path, tests=UNITTEST)

    assert (verdict.wrong, judge_of_it) == ("a test passes whatever it expects", "canary")


@pytest.mark.skipif(not SOAK, reason="takes seconds: PYTEST_GITTRIX_SOAK=1")
def test_a_canary_judges_parameters_that_name_their_tests(tmp_path: Path) -> None:
    right = "class Number(int): pass\ndef read(text): return Number({'seven': 7, 'eleven': 11}[text])\n"
    tests = "import app, pytest\n\n\n@pytest.mark.parametrize(('text', 'number'), [('seven', 7), ('eleven', 11)])\n"
    tests += "def test_it(text, number):\n    assert app.read(text) == number\n"
    verdict, _ = verdict_on(right, tmp_path, tests=tests)

    assert (verdict.wrong, verdict.judges) == ("", {"test_it[seven-7]": "canary", "test_it[eleven-11]": "canary"})


@pytest.mark.parametrize("name", [*OUTSIDE] if SOAK else ["finds the test file"])
def test_a_cheat_does_not_get_out_of_the_process_of_its_own(name: str, tmp_path: Path) -> None:
    verdict, judge_of_it = verdict_on(OUTSIDE[name], tmp_path)

    assert verdict.wrong
    assert judge_of_it == rows()[name].own


@pytest.mark.parametrize("name", [*INSIDE, *OUTSIDE] if SOAK else USUAL[1:])
def test_a_cheat_deceives_plain_pytest_as_the_page_says(name: str, tmp_path: Path) -> None:
    assert believed(EARLIER[name], tmp_path) == (rows()[name].plain == "passes")


@pytest.mark.needs_root
@pytest.mark.skipif(not SOAK, reason="takes minutes: PYTEST_GITTRIX_SOAK=1")
@pytest.mark.parametrize("level", ["off", "guard"])
def test_only_what_the_page_says_passes_below_a_jail(level: str) -> None:
    try:
        confinement(level)
    except CapabilityMissing as problem:
        pytest.skip(problem.fact)
    found = verdicts([*EARLIER, *(f"{name}{LURED}" for name in INSIDE)], level, ordinary=False)

    assert [name for name, one in found.items() if not one["wrong"]] == [name for name, row in rows().items() if f"`{level}`" in row.where]


@pytest.mark.skipif(not SOAK, reason="a coin is caught most times, not each time: PYTEST_GITTRIX_SOAK=1")
def test_a_coin_is_seldom_lucky(tmp_path: Path) -> None:
    lucky = 0
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        lucky += not verdict_on(lured(LUCK), tmp_path / str(number))[0].wrong

    assert lucky < 5
