"""For how long clauses search for crashes and races, beyond the few moments that they always try."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pytest

from pytest_gittrix.conformance.base.clause import clause_of
from pytest_gittrix.testing.systems.driver import SearchBudget
from pytest_gittrix.testing.systems.protocol import Capability

_of_the_run = SearchBudget()


def search_for(budget: SearchBudget) -> SearchBudget:
    """Set the seconds that all clauses have together, until this is called again; gives those that were set before."""
    global _of_the_run
    before, _of_the_run = _of_the_run, budget
    return before


def searched_capabilities() -> AbstractSet[Capability]:
    """The capabilities whose clauses are run although the system does not declare them, since the user asks what happens."""
    asked = {Capability.CRASH: _of_the_run.crash, Capability.PROCESSES: _of_the_run.race}
    return {capability for capability, seconds in asked.items() if seconds}


def share_of(request: pytest.FixtureRequest, capabilities: AbstractSet[Capability]) -> SearchBudget:
    """The seconds of one clause, if all clauses of the run that search share alike.

    Args:
        request: of the clause's test.
        capabilities: what the system declares.
    """
    if _of_the_run == SearchBudget():
        return _of_the_run
    has = capabilities | searched_capabilities()
    tests = (item.function for item in request.session.items if isinstance(item, pytest.Function))
    clauses = [clause for test in tests if (clause := clause_of(test))]
    run = [clause.needs for clause in clauses if clause.needs <= has]
    kills = sum(Capability.CRASH in needs for needs in run)
    races = sum(Capability.PROCESSES in needs and Capability.CRASH not in needs for needs in run)
    return SearchBudget(_of_the_run.crash / max(kills, 1), _of_the_run.race / max(races, 1))
