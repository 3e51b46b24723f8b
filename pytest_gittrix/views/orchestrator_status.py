"""The one status that follows from the observations of a session, and how contradicting observations are decided (agent-orchestrator).

Everything here is a pure function of the observations, of the result of the latest poll, and of the time. A status is never stored.
There are two dialects: ``document`` is what the project documents (16 statuses), ``head`` what its newest code does (18 statuses; an end
does not depend on the activity, and every end can be undone). See docs/explanation/you-know-agent-orchestrator.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pytest_gittrix.record.state.agent_activity import AHEAD_NS, IDLE_NS
from pytest_gittrix.record.state.agent_reports import REPORTS, counts
from pytest_gittrix.record.state.observations import Activity, Observations, ObservedPullRequest, Runtime

Dialect = Literal["document", "head"]
Strength = Literal["strong", "weak", "stale"]

STATUSES: Final = (
    *("spawning", "working", "pr_open", "ci_failed", "review_pending", "changes_requested", "approved", "mergeable", "merged"),
    *("cleanup", "needs_input", "stuck", "errored", "killed", "done", "terminated"),
)
"""The documented statuses."""
HEAD_STATUSES: Final = (*STATUSES, "detecting", "idle")
"""The statuses of the newest code."""

TERMINAL_STATUSES: Final = frozenset({"killed", "terminated", "done", "cleanup", "errored", "merged"})
"""The statuses of sessions that are over."""
TERMINAL_ACTIVITIES: Final = frozenset({"exited"})
"""The activities of agents whose sessions are over."""
NON_RESTORABLE_STATUSES: Final[Mapping[Dialect, frozenset[str]]] = {"document": frozenset({"merged"}), "head": frozenset()}
"""The ends that cannot be undone."""

_LIVE: Final = frozenset(STATUSES) - TERMINAL_STATUSES - {"spawning"}
_RESTORED: Final = _LIVE - {"needs_input", "stuck"}
_ENDS_OF_MERGED: Final = TERMINAL_STATUSES - {"merged"}
LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "spawning": _LIVE | TERMINAL_STATUSES,
    **{status: (_LIVE | TERMINAL_STATUSES) - {status} for status in STATUSES if status in _LIVE},
    **dict.fromkeys(("killed", "terminated", "done", "cleanup", "errored"), _RESTORED),
    "merged": _ENDS_OF_MERGED,
}
"""Which status may follow which, as documented. After an end comes only what a restored session can be; a merged one is cleaned up."""
_HEAD_LIVE: Final = _LIVE | {"detecting", "idle"}
HEAD_LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "spawning": _HEAD_LIVE | TERMINAL_STATUSES,
    **{status: (_HEAD_LIVE | TERMINAL_STATUSES) - {status} for status in HEAD_STATUSES if status in _HEAD_LIVE},
    **dict.fromkeys(("killed", "terminated", "done", "cleanup", "errored"), _RESTORED),
    "merged": _ENDS_OF_MERGED | _RESTORED,
}
"""The same in the newest code, where a merged session can be restored."""

_SECOND: Final = 1_000_000_000
STRONG_NS: Final = 60 * _SECOND
WEAK_NS: Final = IDLE_NS
STUCK_NS: Final = 600 * _SECOND
DETECTING_NS: Final = 300 * _SECOND
DETECTING_ATTEMPTS: Final = 3

_TERMINATED: Final[Mapping[str, str]] = {
    "manually_killed": "killed",
    **dict.fromkeys(("auto_cleanup", "pr_merged"), "cleanup"),
    **dict.fromkeys(("error_in_process", "probe_failure", "runtime_lost"), "errored"),
}
"""The status of an end by its reason, as documented: killed is by hand only. To the newest code a lost runtime is killed, too."""
_OF_PR: Final[Mapping[str, str]] = {
    "ci_failing": "ci_failed",
    "changes_requested": "changes_requested",
    "review_pending": "review_pending",
    "approved": "approved",
    "merge_ready": "mergeable",
}
_BY_PR: Final[Mapping[str, tuple[str, str]]] = {
    "ci_failing": ("working", "fixing_ci"),
    "changes_requested": ("working", "resolving_review_comments"),
    **dict.fromkeys(("merge_ready", "approved", "review_pending"), ("idle", "awaiting_external_review")),
    "merged": ("idle", "merged_waiting_decision"),
    "closed_unmerged": ("idle", "pr_closed_waiting_decision"),
}
_ALIVE: Final = frozenset({"active", "ready"})
_AT_REST: Final = frozenset({"idle", "blocked"})


# The status --------------------------------------------------------------------------------------------------------------------


def status(observations: Observations, *, dialect: Dialect = "document") -> str:
    """The status of a session; every combination of observations has one.

    The document has no status for a session whose observations contradict each other: it keeps the status from before. Nor has it one
    for an idle session, which counts as working.
    """
    session = observations.session
    if session.state == "not_started":
        return "spawning"
    if session.state == "detecting" and dialect == "document":
        state, reason = session.before or ("working", "task_in_progress")
        return status(replace(observations, session=replace(session, state=state, reason=reason, before=None)))
    if session.state in ("needs_input", "stuck", "done", "detecting"):
        return session.state
    if session.state == "terminated":
        lost = dialect == "head" and session.reason == "runtime_lost"
        return "killed" if lost else _TERMINATED.get(session.reason, "terminated")
    if observations.pr.state == "merged":
        return "merged"
    if observations.pr.state == "open":
        return _OF_PR.get(observations.pr.reason, "pr_open")
    return "idle" if session.state == "idle" and dialect == "head" else "working"


def is_terminal(status: str, activity: str | None) -> bool:
    """Whether a session is over, as documented: by its status, or because its agent has exited."""
    return status in TERMINAL_STATUSES or activity in TERMINAL_ACTIVITIES


def is_restorable(status: str, activity: str | None, *, dialect: Dialect = "document") -> bool:
    """Whether a session that is over can be brought back, as documented."""
    return is_terminal(status, activity) and status not in NON_RESTORABLE_STATUSES[dialect]


def ended(observations: Observations, *, dialect: Dialect = "document") -> bool:
    """Whether the session is over.

    By the newest code, it is if it is done or terminated, its pull request is merged, or its runtime is gone; the activity of its agent
    makes no difference.
    """
    if dialect == "document":
        return is_terminal(status(observations), observations.activity.state)
    return observations.session.over or observations.pr.state == "merged" or observations.runtime.gone


def can_restore(observations: Observations, *, dialect: Dialect = "document") -> bool:
    """Whether the session is over and can be brought back."""
    return ended(observations, dialect=dialect) and status(observations, dialect=dialect) not in NON_RESTORABLE_STATUSES[dialect]


def to_poll(observations: Observations, last_status: str | None, *, dialect: Dialect = "document") -> bool:
    """Whether the session is to be polled.

    A session that is over is polled once more if its status has changed since the last poll, so that its end is announced.

    Args:
        observations: of the session.
        last_status: its status at the caller's last poll; None before the first.
        dialect: whose rules.
    """
    return not ended(observations, dialect=dialect) or last_status not in (None, status(observations, dialect=dialect))


# The evidence of a poll -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PollResult:
    """What one poll observed of a session; None for what it did not look at, whose last observation still counts."""

    runtime: Runtime | None = None
    activity: Activity | None = None
    pr: ObservedPullRequest | None = None

    def applied_to(self, observations: Observations) -> Observations:
        """The observations, updated with this result."""
        return replace(
            observations,
            runtime=self.runtime or observations.runtime,
            activity=self.activity or observations.activity,
            pr=_latest(observations.pr, self.pr),
        )


def strength(observed_ns: int | None, now_ns: int) -> Strength:
    """How strong the evidence of an activity is by its age: up to a minute ``strong``, up to 5 minutes ``weak``, else ``stale``.

    A time more than 5 seconds ahead of the clock is stale, and so is no time.
    """
    if observed_ns is None or observed_ns - now_ns > AHEAD_NS:
        return "stale"
    age = now_ns - observed_ns
    return "strong" if age <= STRONG_NS else "weak" if age <= WEAK_NS else "stale"


def signal(activity: Activity, now_ns: int) -> str:
    """The quality of an observed activity: ``valid``, ``stale``, ``null`` (the source says nothing), ``unavailable`` (there is no
    source) or ``probe_failure``."""
    if activity.failed:
        return "probe_failure"
    if activity.state == "unknown":
        return "unavailable" if activity.source == "none" else "null"
    if activity.state in _AT_REST and activity.observed_ns is None:
        return "stale"
    if activity.state in _ALIVE and strength(activity.observed_ns, now_ns) == "stale":
        return "stale"
    return "valid"


def shows_life(activity: Activity, now_ns: int) -> bool:
    """Whether an activity is evidence that the agent is alive: it is active or ready, at a time that is not stale."""
    return not activity.failed and activity.state in _ALIVE and strength(activity.observed_ns, now_ns) != "stale"


def fingerprint(evidence: str) -> str:
    """Twelve hex digits of evidence, to compare it with the evidence of the last poll."""
    return hashlib.sha256(evidence.encode()).hexdigest()[:12]


# The decision ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """The decided progress of a session.

    Attributes:
        session, reason: its state and reason; see ``observations.Phase``.
        why: what decided, in a few words without times.
        evidence, attempts: a fingerprint of contradicting observations, and how often in a row they contradicted; None if they agree.
        changed: whether the decision differs from the last one. Only then is it recorded.
    """

    session: str
    reason: str
    why: str
    evidence: str | None = None
    attempts: int | None = None
    changed: bool = True

    def to_data(self) -> dict[str, Any]:
        """The data of ``status.decided``."""
        optional = {"evidence": self.evidence, "attempts": self.attempts}
        return {"session": self.session, "reason": self.reason, **{name: value for name, value in optional.items() if value is not None}}


def decide(observations: Observations, polled: PollResult, now_ns: int) -> Decision:
    """Decide the progress of a session from all earlier observations and a new poll. The first rule that applies decides:

    1. A session that is over stays over, and one whose pull request is merged waits for a decision: no observation undoes an end.
    2. An agent that asks a question needs input, unless its runtime is gone.
    3. Contradicting observations are polled again, three times and for five minutes at most; then the session is stuck. If both
       runtime and agent are gone, the exit status says whether the session is done or failed; without one it is lost.
    4. The state of the pull request.
    5. The agent's report of the last five minutes.
    6. An agent that says it is blocked is stuck, and so is one that rests for ten minutes, unless it waits for an answer.
    7. Fresh evidence that the agent is alive makes it work; weaker evidence changes nothing.

    Args:
        observations: of the session, before this poll. They hold the decisions made before, too.
        polled: the result of this poll.
        now_ns: when, in nanoseconds since 1970 UTC.
    """
    now = polled.applied_to(observations)
    if observations.session.over:
        return _settled(observations, observations.session.state, observations.session.reason, "the session is over")
    if now.pr.state == "merged":
        return _settled(observations, *_BY_PR["merged"], "the pull request is merged")
    found = _by_probes(observations, now, now_ns) or _by_pr(now, now_ns) or _by_report(now, now_ns)
    if isinstance(found, Decision):
        return found
    if found is None:
        return _by_activity(observations, now, now_ns)
    return _settled(observations, *found)


_Found = tuple[str, str, str]
"""A state, a reason, and what decided."""


def _by_probes(observations: Observations, now: Observations, now_ns: int) -> Decision | _Found | None:
    state, activity = observations.session.state, now.activity
    # An agent that is being started need not run yet; only that it has run and ended is evidence.
    runtime = Runtime() if state == "not_started" and now.runtime.state not in ("alive", "exited") else now.runtime
    if activity.state == "waiting_input" and not activity.failed and not runtime.gone:
        return "needs_input", "awaiting_user_input", "the agent asks"
    if activity.failed and state in ("stuck", "needs_input"):
        return state, observations.session.reason, "the activity cannot be seen"
    if activity.failed or runtime.state == "probe_failed":
        return _contradicted(observations, now, "probe_failure", "a probe failed", now_ns)
    exited = activity.state == "exited" or runtime.state == "exited"
    if runtime.gone and exited and not shows_life(activity, now_ns):
        return _by_exit_code(runtime.exit_code)
    if runtime.gone:
        return _contradicted(observations, now, "runtime_lost", "the runtime is gone and the agent may not be", now_ns)
    if runtime.state == "alive" and exited:
        return _contradicted(observations, now, "agent_process_exited", "the agent exited and its runtime did not", now_ns)
    return None


def _by_exit_code(code: int | None) -> _Found:
    """How an agent ended that was not stopped, by its exit status if there is one."""
    if code is None:
        return "terminated", "runtime_lost", "the runtime and the agent are gone"
    if code == 0:
        return "done", "research_complete", "the agent ended with status 0"
    return "terminated", "error_in_process", f"the agent ended with status {code}"


def _contradicted(observations: Observations, now: Observations, reason: str, why: str, now_ns: int) -> Decision:
    """Poll again, but not for ever. The five minutes run from the first contradiction, whatever it was about."""
    session, memory = observations.session, observations.memory
    evidence = fingerprint(f"{why} runtime={now.runtime.state} signal={signal(now.activity, now_ns)} source={now.activity.source}")
    attempts = memory.attempts + 1 if memory is not None and memory.evidence == evidence else 1
    late = memory is not None and now_ns - memory.since_ns > DETECTING_NS
    if session.state == "stuck" or attempts > DETECTING_ATTEMPTS or late:
        cause = "error_in_process" if now.activity.state == "blocked" else "probe_failure"
        cause = session.reason if session.state == "stuck" else cause
        return _compared(observations, Decision("stuck", cause, why))
    return _compared(observations, Decision("detecting", reason, why, evidence, attempts))


def _by_pr(now: Observations, now_ns: int) -> _Found | None:
    if now.pr.state == "none":
        return None
    reason = now.pr.reason
    if reason in _BY_PR:
        return *_BY_PR[reason], f"the pull request is {reason}"
    return _too_long_at_rest(now, now_ns) or ("idle", "pr_created", "the pull request is open")


def _by_report(now: Observations, now_ns: int) -> _Found | None:
    report = now.report
    if report is None or not counts(report.at_ns, now_ns) or report.name not in REPORTS:
        return None
    return *REPORTS[report.name], f"the agent reports {report.name}"


def _by_activity(observations: Observations, now: Observations, now_ns: int) -> Decision:
    session, activity = observations.session, now.activity
    if activity.state == "blocked" and not activity.failed:
        return _settled(observations, "stuck", "error_in_process", "the agent says that it is blocked")
    # An agent that reported to have nothing more to do, or waits for an answer, is not stuck for doing nothing.
    waits = session.reason == "research_complete" or session.state == "needs_input"
    rested = None if waits else _too_long_at_rest(now, now_ns)
    if rested is not None:
        return _settled(observations, *rested)
    fresh = shows_life(activity, now_ns) and strength(activity.observed_ns, now_ns) == "strong"
    if session.state in ("not_started", "detecting", "stuck", "needs_input") and fresh:
        return _settled(observations, "working", "task_in_progress", "the agent is at work")
    if session.state == "not_started" and now.runtime.state == "alive":
        return _settled(observations, "working", "task_in_progress", "the agent runs")
    if session.state == "detecting":
        return _contradicted(observations, now, session.reason, "nothing says that the agent is well", now_ns)
    return _settled(observations, session.state, session.reason, "nothing new")


def _too_long_at_rest(now: Observations, now_ns: int) -> _Found | None:
    activity = now.activity
    if activity.state not in _AT_REST or activity.observed_ns is None or now_ns - activity.observed_ns < STUCK_NS:
        return None
    return "stuck", "error_in_process" if activity.state == "blocked" else "probe_failure", "the agent rests for too long"


def _settled(observations: Observations, state: str, reason: str, why: str) -> Decision:
    return _compared(observations, Decision(state, reason, why))


def _compared(observations: Observations, decision: Decision) -> Decision:
    memory = None if observations.memory is None else (observations.memory.evidence, observations.memory.attempts)
    new_memory = None if decision.attempts is None else (decision.evidence, decision.attempts)
    same = (decision.session, decision.reason) == (observations.session.state, observations.session.reason) and memory == new_memory
    return replace(decision, changed=not same)


def _latest(old: ObservedPullRequest, new: ObservedPullRequest | None) -> ObservedPullRequest:
    return old if new is None or old.state == "merged" else new
