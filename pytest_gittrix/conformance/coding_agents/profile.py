"""Runs the profile of coding agents, and gives its report in the form that every kind of file is written from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from pytest_gittrix.conformance.base.clause import Clause
from pytest_gittrix.conformance.base.outcome import Status
from pytest_gittrix.conformance.coding_agents.clauses import AGENT_CLAUSES, AGENT_FAMILIES, AgentClause
from pytest_gittrix.conformance.coding_agents.description import CodingAgent
from pytest_gittrix.conformance.coding_agents.runs import AgentRuns
from pytest_gittrix.conformance.reports.model import ClauseOutcome, SystemReport
from pytest_gittrix.conformance.worktrees.base.world import NoVerdict, PromiseBroken
from pytest_gittrix.safe_text import printable


def run_agent_profile(
    agent: CodingAgent,
    clauses: Sequence[AgentClause] = AGENT_CLAUSES,
    *,
    description: str = "agent.toml",
    progress: Callable[[ClauseOutcome], None] = lambda _: None,
) -> SystemReport:
    """Put a coding agent to clauses, in a jail from which it reaches the model of the test and nothing else.

    Args:
        agent: the description.
        clauses: the clauses; all by default.
        description: the file with the description, for the line that runs a clause again.
        progress: called with each outcome once it is known.

    Raises:
        CapabilityMissing: programs cannot be jailed here.
        InvalidInput: something of the description cannot be used.
    """
    runs, outcomes = AgentRuns(agent), list[ClauseOutcome]()
    for one in clauses:
        outcomes.append(_outcome(one, runs, description))
        progress(outcomes[-1])
    return SystemReport(printable(agent.title), tuple(outcomes), titles=AGENT_FAMILIES, has_levels=False)


def _outcome(one: AgentClause, runs: AgentRuns, description: str) -> ClauseOutcome:
    clause = Clause(one.code, one.promise, f"Otherwise {one.why}.", frozenset())
    try:
        one.judge(runs)
    except PromiseBroken as broken:
        again = f"gittrix conform --agent {shlex.quote(description)} --clause {one.code}"
        return ClauseOutcome(clause, Status.BROKEN, printable(str(broken)), replay=again)
    except NoVerdict as reason:
        return ClauseOutcome(clause, Status.NO_VERDICT, printable(str(reason)))
    return ClauseOutcome(clause, Status.KEPT)
