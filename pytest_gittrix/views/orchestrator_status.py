"""One status from what was seen of a session, and what is made of it when it does not agree (agent-orchestrator, session-systems 5.1, 5.2).

Everything here is a pure function of the axes, of what was just seen, and of the time, which is an argument. A status is never stored.
There are two dialects: ``document`` is what the project documents (16 statuses), ``head`` what its newest code does (18, an end that
does not ask for the activity, and no end that cannot be undone).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pytest_gittrix.record.state.agent_activity import AHEAD_NS, IDLE_NS
from pytest_gittrix.record.state.agent_reports import REPORTS, counts
from pytest_gittrix.record.state.observations import Activity, Axes, PullRequest, Runtime

Dialect = Literal["document", "head"]
Strength = Literal["strong", "weak", "stale"]

STATUSES: Final = (
    *("spawning", "working", "pr_open", "ci_failed", "review_pending", "changes_requested", "approved", "mergeable", "merged"),
    *("cleanup", "needs_input", "stuck", "errored", "killed", "done", "terminated"),
)
"""The documented statuses."""
HEAD_STATUSES: Final = (*STATUSES, "detecting", "idle")
"""Those of the newest code."""

TERMINAL_STATUSES: Final = frozenset({"killed", "terminated", "done", "cleanup", "errored", "merged"})
"""Those of sessions that are over."""
TERMINAL_ACTIVITIES: Final = frozenset({"exited"})
"""What an agent does no more after."""
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
    **dict.fromkeys(("manually_killed", "runtime_lost"), "killed"),
    **dict.fromkeys(("auto_cleanup", "pr_merged"), "cleanup"),
    **dict.fromkeys(("error_in_process", "probe_failure"), "errored"),
}
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


def status(axes: Axes, *, dialect: Dialect = "document") -> str:
    """The status of a session: one for any axes there can be (session-systems 5.2).

    The document has no status for a session whose evidence disagrees: it keeps the one from before. Nor has it one for a session at
    rest: that one works.
    """
    session = axes.session
    if session.state == "not_started":
        return "spawning"
    if session.state == "detecting" and dialect == "document":
        state, reason = session.before or ("working", "task_in_progress")
        return status(replace(axes, session=replace(session, state=state, reason=reason, before=None)))
    if session.state in ("needs_input", "stuck", "done", "detecting"):
        return session.state
    if session.state == "terminated":
        return _TERMINATED.get(session.reason, "terminated")
    if axes.pr.state == "merged":
        return "merged"
    if axes.pr.state == "open":
        return _OF_PR.get(axes.pr.reason, "pr_open")
    return "idle" if session.state == "idle" and dialect == "head" else "working"


def is_terminal(status: str, activity: str | None) -> bool:
    """Whether a session is over, as documented: by its status, or because its agent has exited."""
    return status in TERMINAL_STATUSES or activity in TERMINAL_ACTIVITIES


def is_restorable(status: str, activity: str | None, *, dialect: Dialect = "document") -> bool:
    """Whether a session that is over can be brought back, as documented."""
    return is_terminal(status, activity) and status not in NON_RESTORABLE_STATUSES[dialect]


def ended(axes: Axes, *, dialect: Dialect = "document") -> bool:
    """Whether the session is over.

    The newest code goes by the axes: the session is done or terminated, its pull request is merged, or its runtime is gone. What the
    agent was last seen doing is not asked.
    """
    if dialect == "document":
        return is_terminal(status(axes), axes.activity.state)
    return axes.session.over or axes.pr.state == "merged" or axes.runtime.gone


def can_restore(axes: Axes, *, dialect: Dialect = "document") -> bool:
    """Whether the session is over and can be brought back."""
    return ended(axes, dialect=dialect) and status(axes, dialect=dialect) not in NON_RESTORABLE_STATUSES[dialect]


def to_poll(axes: Axes, seen: str | None, *, dialect: Dialect = "document") -> bool:
    """Whether the session is to be looked at.

    One that is over is not, but for the once that its status is another than the last that was seen: so its end is told (5.2).

    Args:
        axes: of the session.
        seen: the status that the one who asks saw last; None if it has seen none.
        dialect: whose rules.
    """
    return not ended(axes, dialect=dialect) or (seen is not None and seen != status(axes, dialect=dialect))


# What was seen, and how much it is worth ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observation:
    """What was just seen of a session; None where nobody looked, and then what was seen last counts."""

    runtime: Runtime | None = None
    activity: Activity | None = None
    pr: PullRequest | None = None

    def on(self, axes: Axes) -> Axes:
        """The axes with this in place of what was seen before."""
        return replace(axes, runtime=self.runtime or axes.runtime, activity=self.activity or axes.activity, pr=_latest(axes.pr, self.pr))


def strength(observed_ns: int | None, now_ns: int) -> Strength:
    """How much a time of activity is worth: up to a minute old ``strong``, up to 5 minutes ``weak``, else ``stale``.

    A time more than 5 seconds ahead of the clock is not believed, and none is worth nothing.
    """
    if observed_ns is None or observed_ns - now_ns > AHEAD_NS:
        return "stale"
    age = now_ns - observed_ns
    return "strong" if age <= STRONG_NS else "weak" if age <= WEAK_NS else "stale"


def signal(activity: Activity, now_ns: int) -> str:
    """What an activity is worth: ``valid``, ``stale``, ``null`` (the source tells nothing), ``unavailable`` (there is none) or
    ``probe_failure``."""
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
    """Whether an activity supports that the agent is alive: it is active or ready, at a time that is not stale."""
    return not activity.failed and activity.state in _ALIVE and strength(activity.observed_ns, now_ns) != "stale"


def fingerprint(evidence: str) -> str:
    """Twelve hex digits of evidence, to tell whether it is the same as before."""
    return hashlib.sha256(evidence.encode()).hexdigest()[:12]


# The decision ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """How far a session is, by what was seen.

    Attributes:
        session, reason: for the axis of the session.
        why: what decided, in a few words without times.
        evidence, attempts: a fingerprint of what does not agree, and how often it did not in a row; None when it does.
        changed: whether this is news. Only then is it to be recorded.
    """

    session: str
    reason: str
    why: str
    evidence: str | None = None
    attempts: int | None = None
    changed: bool = True

    def to_data(self) -> dict[str, Any]:
        """The data of ``status.decided``."""
        known = {"evidence": self.evidence, "attempts": self.attempts}
        return {"session": self.session, "reason": self.reason, **{name: value for name, value in known.items() if value is not None}}


def decide(axes: Axes, seen: Observation, now_ns: int) -> Decision:
    """How far a session is, by all that was ever seen of it and what is seen now; the first rule that applies decides (5.2).

    1. One that is over stays so, and one whose pull request is merged waits for what comes next, whatever else is seen: with that it
    is over, and nothing seen may undo an end. 2. A question of the agent needs input, unless what ran it is gone. 3. What does not agree
    is looked at again, three times and for five minutes at most, and then the session is stuck; what is gone by all accounts is lost.
    4. The pull request. 5. What the agent said in the last five minutes. 6. Ten minutes of rest are too many. 7. A fresh sign of life
    makes it work; anything weaker leaves it as it is.

    Args:
        axes: of the session, before what is seen now. They are also the memory: what was decided before is in them.
        seen: by this look.
        now_ns: when, in nanoseconds since 1970 UTC.
    """
    now = seen.on(axes)
    if axes.session.over:
        return _settled(axes, axes.session.state, axes.session.reason, "the session is over")
    if now.pr.state == "merged":
        return _settled(axes, *_BY_PR["merged"], "the pull request is merged")
    found = _by_probes(axes, now, now_ns) or _by_pr(now, now_ns) or _by_report(now, now_ns)
    if isinstance(found, Decision):
        return found
    if found is None:
        return _by_activity(axes, now, now_ns)
    return _settled(axes, *found)


_Found = tuple[str, str, str]
"""A state, a reason, and what decided."""


def _by_probes(axes: Axes, now: Axes, now_ns: int) -> Decision | _Found | None:
    state, activity = axes.session.state, now.activity
    # Whoever is being started need not be there yet; only that it was there and ended says something.
    runtime = Runtime() if state == "not_started" and now.runtime.state not in ("alive", "exited") else now.runtime
    if activity.state == "waiting_input" and not activity.failed and not runtime.gone:
        return "needs_input", "awaiting_user_input", "the agent asks"
    if activity.failed and state in ("stuck", "needs_input"):
        return state, axes.session.reason, "the activity cannot be seen"
    if activity.failed or runtime.state == "probe_failed":
        return _disagreeing(axes, now, "probe_failure", "a probe failed", now_ns)
    exited = activity.state == "exited" or runtime.state == "exited"
    if runtime.gone and exited and not shows_life(activity, now_ns):
        return "terminated", "runtime_lost", "the runtime and the agent are gone"
    if runtime.gone:
        return _disagreeing(axes, now, "runtime_lost", "the runtime is gone and the agent may not be", now_ns)
    if runtime.state == "alive" and exited:
        return _disagreeing(axes, now, "agent_process_exited", "the agent exited and its runtime did not", now_ns)
    return None


def _disagreeing(axes: Axes, now: Axes, reason: str, why: str, now_ns: int) -> Decision:
    """Look again, but not for ever. The five minutes run from the first disagreement, whatever it was about."""
    session, memory = axes.session, axes.memory
    evidence = fingerprint(f"{why} runtime={now.runtime.state} signal={signal(now.activity, now_ns)} source={now.activity.source}")
    again = memory is not None and memory.evidence == evidence
    attempts = memory.attempts + 1 if memory is not None and again else 1
    late = memory is not None and now_ns - memory.since_ns > DETECTING_NS
    if session.state == "stuck" or attempts > DETECTING_ATTEMPTS or late:
        cause = "error_in_process" if now.activity.state == "blocked" else "probe_failure"
        cause = session.reason if session.state == "stuck" else cause
        return _as_news(axes, Decision("stuck", cause, why))
    return _as_news(axes, Decision("detecting", reason, why, evidence, attempts))


def _by_pr(now: Axes, now_ns: int) -> _Found | None:
    if now.pr.state == "none":
        return None
    reason = now.pr.reason
    if reason in _BY_PR:
        return *_BY_PR[reason], f"the pull request is {reason}"
    return _too_long_at_rest(now, now_ns) or ("idle", "pr_created", "the pull request is open")


def _by_report(now: Axes, now_ns: int) -> _Found | None:
    report = now.report
    if report is None or not counts(report.at_ns, now_ns) or report.name not in REPORTS:
        return None
    return *REPORTS[report.name], f"the agent reports {report.name}"


def _by_activity(axes: Axes, now: Axes, now_ns: int) -> Decision:
    session, activity = axes.session, now.activity
    # Who said that it has nothing more to do is not stuck for doing nothing.
    rested = None if session.reason == "research_complete" else _too_long_at_rest(now, now_ns)
    if rested is not None:
        return _settled(axes, *rested)
    fresh = shows_life(activity, now_ns) and strength(activity.observed_ns, now_ns) == "strong"
    if session.state in ("not_started", "detecting", "stuck", "needs_input") and fresh:
        return _settled(axes, "working", "task_in_progress", "the agent is at work")
    if session.state == "not_started" and now.runtime.state == "alive":
        return _settled(axes, "working", "task_in_progress", "the agent runs")
    if session.state == "detecting":
        return _disagreeing(axes, now, session.reason, "nothing says that the agent is well", now_ns)
    return _settled(axes, session.state, session.reason, "nothing new")


def _too_long_at_rest(now: Axes, now_ns: int) -> _Found | None:
    activity = now.activity
    if activity.state not in _AT_REST or activity.observed_ns is None or now_ns - activity.observed_ns < STUCK_NS:
        return None
    return "stuck", "error_in_process" if activity.state == "blocked" else "probe_failure", "the agent rests for too long"


def _settled(axes: Axes, state: str, reason: str, why: str) -> Decision:
    return _as_news(axes, Decision(state, reason, why))


def _as_news(axes: Axes, decision: Decision) -> Decision:
    memory = None if axes.memory is None else (axes.memory.evidence, axes.memory.attempts)
    told = None if decision.attempts is None else (decision.evidence, decision.attempts)
    same = (decision.session, decision.reason) == (axes.session.state, axes.session.reason) and memory == told
    return replace(decision, changed=not same)


def _latest(known: PullRequest, seen: PullRequest | None) -> PullRequest:
    return known if seen is None or known.state == "merged" else seen
