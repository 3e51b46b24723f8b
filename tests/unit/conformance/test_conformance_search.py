"""With a budget, the clauses about crashes and races try all that there is time for, and say how much that was."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from fixtures.broken_systems.judging import clauses
from fixtures.broken_systems.plain import PlainSystem
from fixtures.broken_systems.zoo import ZOO
from pytest_gittrix.conformance.base.catalogue import clauses_by_code
from pytest_gittrix.conformance.base.outcome import COVERED, SCENE, SCRIPT, properties_of
from pytest_gittrix.conformance.base.search import asked_for, search_for, share_of
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


def judged(system: PlainSystem, code: str, budget: SearchBudget) -> tuple[bool, dict[str, str]]:
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
    kept, facts = judged(ZOO["the last one wins"].system(), "LCK-05", SearchBudget(race=600))

    assert not kept
    assert facts[SCENE].startswith("Two processes, A and B, took turns:\n")
    assert "preemptions = [(" in facts[SCENE]
    assert "orders in" in facts[COVERED]
    assert "# Two processes, A and B, took turns:" in facts[SCRIPT]


@here
def test_the_call_of_a_kill_is_told_and_the_script_is_of_the_place_where_it_happened() -> None:
    kept, facts = judged(ZOO["writes in place"].system(), "DUR-09", SearchBudget(crash=600))

    assert not kept
    assert facts[SCENE].startswith("Another process, which was to write, met ")
    assert " kills at calls that change a file were tried" in facts[COVERED]
    assert "# the system: write(SESSION1, 'app.py', b'agent\\n') returned" in facts[SCRIPT]


@here
def test_what_is_kept_says_how_much_was_tried_before_the_time_was_up() -> None:
    crash, race = judged(PlainSystem(), "DUR-09", SearchBudget(crash=1e-6)), judged(PlainSystem(), "LCK-03", SearchBudget(race=1e-6))

    assert crash[0]
    assert crash[1][COVERED].startswith("1 of ")
    assert race[0]
    assert race[1][COVERED].startswith("two processes took turns: the first 1 orders in ")


@here
def test_without_a_budget_a_few_kills_are_tried_and_none_is_counted() -> None:
    assert judged(PlainSystem(), "DUR-09", SearchBudget()) == (True, {})


def test_the_first_of_all_kills_are_spread_over_the_whole() -> None:
    assert far_apart(range(40))[:3] == [0, 16, 32]
    assert sorted(far_apart(range(40))) == [*range(40)]
    assert far_apart([]) == []
    assert POINTS < 40


def run_of(*codes: str) -> pytest.FixtureRequest:
    """A run in which the tests of these clauses, and one that is no test of a clause, were collected."""
    items = [SimpleNamespace(function=clauses()[code][2]) for code in codes]
    return cast("pytest.FixtureRequest", SimpleNamespace(session=SimpleNamespace(items=[*items, SimpleNamespace()])))


@pytest.mark.usefixtures("minute")
def test_the_clauses_of_a_search_run_for_systems_that_claim_neither_capability() -> None:
    by_code = clauses_by_code()

    assert asked_for(by_code["LCK-03"]) == {Capability.CRASH, Capability.PROCESSES}
    assert not any(asked_for(by_code[code]) for code in ("IDS-07", "LOG-01", "TRN-04", "CNF-01"))


@pytest.mark.usefixtures("minute")
def test_the_clauses_of_a_run_that_search_share_the_time_alike() -> None:
    assert share_of(run_of(), BASE) == SearchBudget(60, 120)
    assert share_of(run_of("LCK-03", "LCK-12", "IDS-07", "CNF-01"), BASE) == SearchBudget(60, 60)
    both = BASE | {Capability.RESUME, Capability.PROCESSES}
    assert share_of(run_of("LCK-03", "LCK-12", "IDS-07", "DUR-06", "DUR-07", "DUR-13"), both) == SearchBudget(30, 60)


def test_without_a_budget_nothing_is_shared() -> None:
    assert asked_for(clauses_by_code()["LCK-03"]) == set()
    assert share_of(run_of("LCK-03"), BASE) == SearchBudget()


def test_the_clauses_that_call_a_search_are_those_that_are_not_marked() -> None:
    calls = re.compile(r"\b(self\.races|kill_during|contests)\(")
    tests = {code: inspect.getsource(inspect.unwrap(test)) for code, (_, _, test) in clauses().items()}

    assert {code for code, clause in clauses_by_code().items() if clause.searches} == {code for code in tests if calls.search(tests[code])}
