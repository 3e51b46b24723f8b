"""What an agent may report of itself, the status that follows, and when a report is refused (agent-orchestrator).

An agent can report its progress. It can neither end its session nor report the state of its pull request: those are observed. See
docs/explanation/you-know-agent-orchestrator.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_gittrix.record.state.observations import Observations

REPORTS: Final[Mapping[str, tuple[str, str]]] = {
    "started": ("working", "agent_acknowledged"),
    "working": ("working", "task_in_progress"),
    "waiting": ("idle", "awaiting_external_review"),
    "needs_input": ("needs_input", "awaiting_user_input"),
    "fixing_ci": ("working", "fixing_ci"),
    "addressing_reviews": ("working", "resolving_review_comments"),
    "pr_created": ("idle", "pr_created"),
    "draft_pr_created": ("working", "task_in_progress"),
    "ready_for_review": ("idle", "awaiting_external_review"),
    "completed": ("idle", "research_complete"),
}
"""What may be reported, each with the state and the reason that it gives its session."""

RESERVED: Final[frozenset[str]] = frozenset({"done", "terminated", "merged", "closed"})
"""What an agent must not declare."""

FRESH_NS: Final = 300_000_000_000
"""For how long a report counts: 5 minutes."""
REPORT_AHEAD_NS: Final = 60_000_000_000
"""How far a report may be dated into the future: a minute."""

# Reports that are accepted although the pull request was closed: they are of another one.
_OF_ANOTHER: Final = frozenset({"pr_created", "draft_pr_created", "ready_for_review"})
_SHORT: Final[Mapping[str, str]] = {
    "start": "started",
    "work": "working",
    "wait": "waiting",
    "input": "needs_input",
    "ci": "fixing_ci",
    "reviews": "addressing_reviews",
    "complete": "completed",
}


def report_named(text: str) -> str | None:
    """The report that a text names: in any case, with ``-`` for ``_``, or by its short name; None if it names none."""
    name = text.strip().lower().replace("-", "_")
    name = _SHORT.get(name, name)
    return name if name in REPORTS else None


def check_report(observations: Observations, report: str, role: str | None = None) -> str | None:
    """Why a report is refused, or None if it counts.

    Args:
        observations: of the session now.
        report: the report, by its full name.
        role: of the agent, ``worker`` or ``orchestrator``; the session's own by default.

    Returns:
        One sentence, for the agent and for the audit.
    """
    if report in RESERVED:
        return f"An agent cannot declare {report!r}; it is seen."
    if report not in REPORTS:
        return f"There is no report {report!r}; there are {', '.join(REPORTS)}."
    if "orchestrator" in (role, observations.session.kind):
        return "An orchestrator does not report of itself."
    if observations.session.over:
        return f"The session is {observations.session.state}."
    if observations.pr.state == "merged":
        return "Its pull request is merged."
    if observations.pr.state == "closed" and report not in _OF_ANOTHER:
        return "Its pull request is closed."
    if observations.runtime.gone:
        return f"Its runtime is {observations.runtime.state}."
    return None


def counts(at_ns: int, now_ns: int) -> bool:
    """Whether a report of ``at_ns`` still counts: it is younger than 5 minutes, and at most a minute ahead of the clock."""
    return -REPORT_AHEAD_NS <= now_ns - at_ns < FRESH_NS
