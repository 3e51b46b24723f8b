"""How much a state machine tries is what ``--gittrix-profile`` says, if it says anything."""

from __future__ import annotations

import pytest

MODULE = """
    from pytest_gittrix import World
    from pytest_gittrix.testing.machines.session_machine import machine_for

    def test_extent():
        taken = machine_for(World.open).TestCase.settings
        assert (taken.max_examples, taken.stateful_step_count) == {expected}
"""


@pytest.mark.parametrize(("given", "expected"), [("quick", (50, 20)), ("default", (100, 50)), ("soak", (5_000, 100))])
def test_a_profile_is_heeded_by_machines(pytester: pytest.Pytester, given: str, expected: tuple[int, int]) -> None:
    pytester.makepyfile(MODULE.format(expected=expected))

    pytester.runpytest_inprocess("-p", "no:schemathesis", f"--gittrix-profile={given}").assert_outcomes(passed=1)


def test_without_one_hypothesis_decides(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from hypothesis import settings; settings.register_profile('mine', max_examples=7, stateful_step_count=3)")
    pytester.makepyfile(MODULE.format(expected=(7, 3)))

    pytester.runpytest_inprocess("-p", "no:schemathesis", "--hypothesis-profile=mine").assert_outcomes(passed=1)


def test_a_profile_ends_with_its_run(pytester: pytest.Pytester) -> None:
    from pytest_gittrix.testing.profiles import choose

    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_inprocess("-p", "no:schemathesis", "--gittrix-profile=soak")

    before = choose(None)
    choose(before)
    assert before != "soak"
