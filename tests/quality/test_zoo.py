"""The zoo: every system that is broken on purpose is caught by the clause named for it, and the correct one keeps that clause.

``PYTEST_GITTRIX_SOAK=1`` also has the state machine and the explorer of schedules find them without being told.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import settings

from fixtures.broken_systems.hunting import by_machine, by_schedule
from fixtures.broken_systems.judging import clauses, complaint
from fixtures.broken_systems.page import PAGE, remembered
from fixtures.broken_systems.plain import PlainSystem
from fixtures.broken_systems.planted import PLANTED
from fixtures.broken_systems.races import RACES, explored
from fixtures.broken_systems.zoo import ZOO
from pytest_gittrix.conformance.base.outcome import LOST, STATUS, ClauseFailure, properties_of
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
from pytest_gittrix.testing.systems.protocol import SessionSystem

ROOT = Path(__file__).resolve().parents[2]
soak = pytest.mark.skipif(os.environ.get("PYTEST_GITTRIX_SOAK") != "1", reason="takes half an hour: PYTEST_GITTRIX_SOAK=1")
FOUND_AT_LEAST = 24


def judged(system: SessionSystem, code: str) -> str | None:
    """What a clause has against a system; skips where it cannot be judged."""
    try:
        return complaint(system, code)
    except LookupError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", ZOO)
def test_a_broken_system_breaks_the_clause_that_is_named_for_it(name: str) -> None:
    broken = ZOO[name]

    assert judged(broken.system(), broken.clause), (
        f"{broken.clause} ({clauses()[broken.clause][0].promise}) did not notice: {broken.defect}"
    )


@pytest.mark.parametrize("code", sorted({broken.clause for broken in ZOO.values()}))
def test_the_correct_system_keeps_each_of_these_clauses(code: str) -> None:
    assert judged(PlainSystem(), code) is None


def test_a_system_that_fails_only_where_the_checkout_was_left_behind_is_told_as_that() -> None:
    system = ZOO["builds on the index"].system()

    found = judged(system, "CNF-14")

    assert found is not None
    assert "takes back what a person committed without the checkout: README.md" in found
    assert judged(system, "CNF-21") is None


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_planted_in_our_engine_is_told_with_what_it_costs(name: str) -> None:
    system, code, loses = PLANTED[name]
    clause, family, test = clauses()[code]
    suite = family()
    with Stage.open(system, files=suite.files()) as stage:
        with pytest.raises((ClauseFailure, AssertionError)) as failure:
            test(suite, stage)
        said = dict(properties_of(failure.value, stage.journal, protects_work=clause.protects_work))

    assert said[STATUS] == "broken"
    assert {type(value) for value in said.values()} == {str}  # which go from one process to another
    assert (LOST in said) == loses


@pytest.mark.parametrize("code", sorted({code for _, code, _ in PLANTED.values()}))
def test_our_engine_keeps_each_of_these_clauses(code: str) -> None:
    assert judged(GitTrixSystem(), code) is None


def test_every_broken_system_says_what_is_wrong_with_it() -> None:
    assert len(ZOO) >= 30
    assert len({broken.defect for broken in ZOO.values()}) == len(ZOO)
    assert all(broken.defect.endswith(".") for broken in ZOO.values())


def test_the_page_lists_them_all() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (.+) \| ([^|]+) \| `([A-Z]{3}-\d\d)` \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert rows == [(one.name, one.defect, one.source, one.clause) for one in ZOO.values()], "run `python -m fixtures.broken_systems`"


def test_the_readme_counts_them_as_the_page_does() -> None:
    assert re.findall(r"for (\d+) broken systems", (ROOT / "README.md").read_text(encoding="utf-8")) == [str(len(ZOO))]


def test_many_of_them_were_found_without_being_told() -> None:
    assert len(remembered()) >= FOUND_AT_LEAST


@soak
@pytest.mark.parametrize("name", [name for name, broken in ZOO.items() if broken.finder == "machine" and name in remembered()])
def test_the_machine_finds_it_without_being_told(name: str) -> None:
    found = by_machine(ZOO[name].system())

    assert found is not None
    assert found.steps


@soak
@pytest.mark.parametrize("name", [name for name, broken in ZOO.items() if broken.finder == "schedule"])
def test_the_explorer_finds_it_without_being_told(name: str) -> None:
    found = by_schedule(ZOO[name].system())

    assert found is not None
    assert "=>" in "".join(found.steps)


@soak
@pytest.mark.parametrize("name", RACES)
def test_the_correct_system_is_right_in_every_order(name: str) -> None:
    found = explored(PlainSystem(), name, bound=2)

    found.verify()
    assert found.complete


@soak
def test_the_machine_finds_nothing_in_the_correct_system() -> None:
    found = by_machine(PlainSystem(), settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True, database=None))

    assert found is None, found
