"""With a budget, the clauses about crashes and races try all that there is time for, and say how much that was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.broken_systems.judging import clauses
from fixtures.broken_systems.plain import PlainSystem
from fixtures.broken_systems.zoo import ZOO
from pytest_gittrix.conformance.base.outcome import COVERED, SCENE, SCRIPT, properties_of
from pytest_gittrix.conformance.base.search import search_for, searched_capabilities, share_of
from pytest_gittrix.conformance.families.durability import POINTS, far_apart
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.testing.systems.driver import SearchBudget, Stage
from pytest_gittrix.testing.systems.protocol import BASE, Capability

here = pytest.mark.skipif(supported() is not None, reason=str(supported()))


@pytest.fixture
def minute() -> Iterator[None]:
    """A run with a minute for crashes, and two for races."""
    before = search_for(SearchBudget(60, 120))
    yield
    search_for(before)


def told(system: PlainSystem, code: str, budget: SearchBudget) -> tuple[bool, dict[str, str]]:
    """Whether a system keeps a clause that has a budget, and what the report of the test says."""
    _, family, test = clauses()[code]
    error: BaseException | None = None
    with Stage.open(system, files=family().files()) as stage:
        stage.budget = budget
        try:
            test(family(), stage)
        except (AssertionError, pytest.fail.Exception) as found:
            error = found
        return error is None, dict(properties_of(error, stage.journal, protects_work=True))


@here
def test_a_fault_between_two_switches_is_found_and_its_order_is_told() -> None:
    kept, facts = told(ZOO["the last one wins"].system(), "LCK-05", SearchBudget(race=30))

    assert not kept
    assert facts[SCENE].startswith("Two processes, A and B, took turns:\n")
    assert "preemptions = [(" in facts[SCENE]
    assert "orders in" in facts[COVERED]
    assert "# Two processes, A and B, took turns:" in facts[SCRIPT]


@here
def test_the_call_of_a_kill_is_told_and_the_script_is_of_the_place_where_it_happened() -> None:
    kept, facts = told(ZOO["writes in place"].system(), "DUR-09", SearchBudget(crash=30))

    assert not kept
    assert facts[SCENE].startswith("Another process, which was to write, met ")
    assert " kills at calls that change a file were tried" in facts[COVERED]
    assert "# the system: write(SESSION1, 'app.py', b'agent\\n') returned" in facts[SCRIPT]


@here
def test_what_is_kept_says_how_much_was_tried_before_the_time_was_up() -> None:
    crash, race = told(PlainSystem(), "DUR-09", SearchBudget(crash=1e-6)), told(PlainSystem(), "LCK-03", SearchBudget(race=1e-6))

    assert crash[0]
    assert crash[1][COVERED].startswith("1 of ")
    assert race[0]
    assert race[1][COVERED].startswith("two processes took turns: the first 1 orders in ")


@here
def test_without_a_budget_a_few_kills_are_tried_and_none_is_counted() -> None:
    assert told(PlainSystem(), "DUR-09", SearchBudget()) == (True, {})


def test_the_first_of_all_kills_are_spread_over_the_whole() -> None:
    assert far_apart(range(40))[:3] == [0, 16, 32]
    assert sorted(far_apart(range(40))) == [*range(40)]
    assert far_apart([]) == []
    assert POINTS < 40


@pytest.mark.usefixtures("minute")
def test_the_clauses_of_a_search_run_for_systems_that_claim_neither_capability(request: pytest.FixtureRequest) -> None:
    assert searched_capabilities() == {Capability.CRASH, Capability.PROCESSES}
    assert share_of(request, BASE) == SearchBudget(60, 120)


def test_without_a_budget_nothing_is_shared(request: pytest.FixtureRequest) -> None:
    assert searched_capabilities() == set()
    assert share_of(request, BASE) == SearchBudget()
