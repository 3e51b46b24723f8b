"""Every pair of states and every combination of observations, for ``pytest.mark.parametrize``.

A test of a session system, or of a rule over one, can try them all: ``@pytest.mark.parametrize("pair", life_pairs(), ids=str)``. What is
right for each, docs/explanation/you-know-botminter.md and docs/explanation/you-know-agent-orchestrator.md say.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

from pytest_gittrix.record.state.lifecycle import LEGAL
from pytest_gittrix.record.state.observations import (
    ACTIVITIES,
    RUNTIME_STATES,
    SESSION_STATES,
    UNKNOWN,
    Activity,
    Observations,
    ObservedPullRequest,
    Phase,
    Runtime,
)
from pytest_gittrix.views.orchestrator_status import STATUSES

LIFE_STATES: Final = tuple(state for state in LEGAL if state != "removed")
"""The seven states that BotMinter documents. It documents no ``removed``, the state of a session that was cleaned up."""

PULL_REQUESTS: Final = {
    "none": ObservedPullRequest(),
    "in_progress": ObservedPullRequest("open", number=7, ci="pending"),
    "ci_failing": ObservedPullRequest("open", number=7, ci="failing"),
    "review_pending": ObservedPullRequest("open", number=7, ci="passing", review="pending"),
    "changes_requested": ObservedPullRequest("open", number=7, ci="passing", review="changes_requested"),
    "approved": ObservedPullRequest("open", number=7, ci="passing", review="approved"),
    "merge_ready": ObservedPullRequest("open", number=7, ci="passing", review="approved", mergeable=True),
    "merged": ObservedPullRequest("merged", number=7),
    "closed": ObservedPullRequest("closed", number=7),
}
"""A pull request of each kind: none, open for each reason, merged, closed."""

REASONS: Final = {
    "not_started": ("spawn_requested",),
    "working": ("task_in_progress",),
    "idle": ("research_complete",),
    "needs_input": ("awaiting_user_input",),
    "stuck": ("probe_failure",),
    "detecting": ("runtime_lost",),
    "done": ("research_complete",),
    "terminated": (
        "manually_killed",
        "runtime_lost",
        "auto_cleanup",
        "pr_merged",
        "error_in_process",
        "probe_failure",
        "agent_process_exited",
    ),
}
"""For each state of a session, the reasons that affect its status."""


@dataclass(frozen=True)
class Pair:
    """Two states, and whether the second may follow the first."""

    old: str
    new: str
    legal: bool

    def __str__(self) -> str:
        return f"{self.old}-{self.new}"


@dataclass(frozen=True)
class Combination:
    """One observation of each kind.

    Attributes:
        session, reason: the progress of the session, and its reason.
        pr: one of ``PULL_REQUESTS``.
        runtime: one of ``observations.RUNTIME_STATES``.
        activity: one of ``observations.ACTIVITIES``, or ``unknown``.
    """

    session: str
    reason: str
    pr: str
    runtime: str
    activity: str

    def __str__(self) -> str:
        return f"{self.session}:{self.reason}-{self.pr}-{self.runtime}-{self.activity}"

    @property
    def observations(self) -> Observations:
        """The observations as the rules take them."""
        activity = Activity() if self.activity == UNKNOWN else Activity(self.activity, "native", 0)
        return Observations(Phase(self.session, self.reason), PULL_REQUESTS[self.pr], Runtime(self.runtime), activity)


def life_pairs(*, legal: bool | None = None) -> tuple[Pair, ...]:
    """All 49 pairs of the seven documented states.

    Args:
        legal: only those that may (or may not) follow each other; all by default.
    """
    pairs = (Pair(old, new, new in LEGAL[old]) for old, new in product(LIFE_STATES, repeat=2))
    return tuple(pair for pair in pairs if legal in (None, pair.legal))


def status_axes() -> tuple[Combination, ...]:
    """Every combination of observations of a session: its state, its pull request, its runtime, the activity of its agent."""
    sessions = [(state, reason) for state in SESSION_STATES for reason in REASONS[state]]
    rest = product(PULL_REQUESTS, RUNTIME_STATES, (UNKNOWN, *ACTIVITIES))
    return tuple(Combination(*session, *others) for session, others in product(sessions, rest))


def status_ends() -> tuple[tuple[str, str | None], ...]:
    """Every documented status with every activity (None for an unknown one), for tests of whether a session has ended."""
    return tuple(product(STATUSES, (None, *ACTIVITIES)))
