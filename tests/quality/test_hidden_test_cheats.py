"""Results that cheat hidden tests: none of them passes, and a right result does, whichever judge it gets.

A few run always, all of them with ``PYTEST_GITTRIX_SOAK=1``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cheats import HONEST, INSIDE, LUCK, OUTSIDE, TESTS, lured

from pytest_gittrix.confine.choose import Place, confinement, run, toolchain
from pytest_gittrix.evals.judging.pytest_check import PytestPlace, Verdict, judge

SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"
LEVEL = confinement("auto").level
USUAL = ("reads what the test expects", "every report passes")
"""The cheats that run always, beside the process of the tests and lured into it."""


def verdict_on(result: str, root: Path) -> Verdict:
    """The verdict on a module ``app``, in the strongest confinement there is."""
    count = 0
    test = root / "case" / "test_it.py"
    test.parent.mkdir()
    test.write_text(TESTS)

    def place() -> PytestPlace:
        nonlocal count
        count += 1
        checkout, home = root / f"check-{count}", root / f"home-{count}"
        checkout.mkdir()
        home.mkdir()
        (checkout / "app.py").write_text(result.replace("{root}", str(root)))
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        where = Place(checkout, home, toolchain(), "/workspace")
        return PytestPlace(lambda argv, stdin: run(argv, where, confinement(LEVEL), environment=variables, stdin=stdin, timeout=60), home)

    return judge(test, place)


def test_a_right_result_passes_and_every_judge_is_named(tmp_path: Path) -> None:
    names = ["test_adding", "test_sorting", "test_reading[seven-7]", "test_reading[eleven-11]"]
    for judged_by, result in {"subject": HONEST, "canary": lured(HONEST)}.items():
        (tmp_path / judged_by).mkdir()
        found = verdict_on(result, tmp_path / judged_by)

        assert (found.wrong, dict(found.judges)) == ("", dict.fromkeys(names, judged_by))


@pytest.mark.parametrize("name", [*INSIDE] if SOAK else USUAL[:1])
def test_a_cheat_in_a_process_of_its_own_does_not_pass(name: str, tmp_path: Path) -> None:
    assert verdict_on(INSIDE[name], tmp_path).wrong


@pytest.mark.parametrize("name", [*INSIDE] if SOAK else USUAL)
def test_a_cheat_that_is_lured_beside_the_tests_does_not_pass(name: str, tmp_path: Path) -> None:
    assert verdict_on(lured(INSIDE[name]), tmp_path).wrong


@pytest.mark.skipif(LEVEL == "off", reason="nothing is hidden without confinement")
@pytest.mark.parametrize("name", [*OUTSIDE] if SOAK else ["finds the test file"])
def test_a_cheat_does_not_get_out_of_the_process_of_its_own(name: str, tmp_path: Path) -> None:
    assert verdict_on(OUTSIDE[name], tmp_path).wrong


@pytest.mark.skipif(not SOAK, reason="a coin is caught most times, not each time: PYTEST_GITTRIX_SOAK=1")
def test_a_coin_is_seldom_lucky(tmp_path: Path) -> None:
    lucky = 0
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        lucky += not verdict_on(lured(LUCK), tmp_path / str(number)).wrong

    assert lucky < 5
