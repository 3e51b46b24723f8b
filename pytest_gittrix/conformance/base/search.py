"""For how long clauses search for crashes and races, beyond the few moments that they always try."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pytest

from pytest_gittrix.conformance.base.clause import Clause, clause_of
from pytest_gittrix.testing.systems.driver import SearchBudget
from pytest_gittrix.testing.systems.protocol import Capability

_of_the_run = SearchBudget()


def search_for(budget: SearchBudget) -> SearchBudget:
    """Set the seconds that all clauses have together, until this is called again; gives those that were set before."""
    global _of_the_run
    before, _of_the_run = _of_the_run, budget
    return before


def asked_for(clause: Clause) -> AbstractSet[Capability]:
    """The capabilities that a system need not declare for a clause that searches, since the user asks what happens."""
    seconds = {Capability.CRASH: _of_the_run.crash, Capability.PROCESSES: _of_the_run.race}
    return {capability for capability in seconds if clause.searches and seconds[capability]}


def share_of(request: pytest.FixtureRequest, capabilities: AbstractSet[Capability]) -> SearchBudget:
    """The seconds of one clause, if all clauses of the run that search share alike.

    Args:
        request: of the clause's test.
        capabilities: what the system declares.
    """
    if _of_the_run == SearchBudget():
        return _of_the_run
    clauses = filter(None, (clause_of(getattr(item, "function", None)) for item in request.session.items))
    run = [clause.needs for clause in clauses if clause.searches and clause.needs <= capabilities | asked_for(clause)]
    kills = sum(Capability.CRASH in needs for needs in run)
    races = len(run) - kills
    return SearchBudget(_of_the_run.crash / max(kills, 1), _of_the_run.race / max(races, 1))
