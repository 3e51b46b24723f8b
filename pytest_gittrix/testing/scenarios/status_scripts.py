"""Observing a session as agent-orchestrator does, and the observations that lead to each of its statuses.

An observation records new facts, decides as ``views.orchestrator_status`` does, and records the decision if it is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pytest_gittrix.durations import ns_of
from pytest_gittrix.record.state.observations import UNKNOWN, Activity, Observations, ObservedPullRequest, Runtime, observations_of
from pytest_gittrix.testing.scenarios.log_kit import LogKit
from pytest_gittrix.views.orchestrator_status import Decision, PollResult, decide

_MINUTE: Final = timedelta(minutes=1)
_PR_FIELDS: Final = ("number", "url", "title", "owner", "repo", "branch", "base_branch", "draft", "ci", "review", "mergeable")


@dataclass(frozen=True)
class Observed:
    """The facts that can be observed of a session; None is not observed.

    Attributes:
        runtime: one of ``observations.RUNTIME_STATES``.
        activity: one of ``observations.ACTIVITIES``; ``probe_failed`` if the probe fails.
        observed: when the agent did something last; None if that is not known.
        pr: the pull request.
        source: the source of the activity.
    """

    runtime: str | None = None
    activity: str | None = None
    observed: datetime | None = None
    pr: ObservedPullRequest | None = None
    source: str = "native"

    def observation(self) -> PollResult:
        """The facts as a decision takes them."""
        runtime = None if self.runtime is None else Runtime(self.runtime)
        if self.activity == "probe_failed":
            return PollResult(runtime, Activity(source=self.source, failed=True), self.pr)
        at = None if self.observed is None else ns_of(self.observed)
        activity = None if self.activity is None else Activity(self.activity, self.source, at)
        return PollResult(runtime, activity, self.pr)


def look(log: LogKit, scene: Observed, at: datetime) -> Decision:
    """Observe a session once.

    Args:
        log: its log, to which new facts are added.
        scene: the facts that can be observed.
        at: the instant.

    Raises:
        LogDamaged: the log is damaged or empty.
    """
    observed = scene.observation()
    observations = observations_of(log.events())
    for type_, data in _news(observations, observed):
        log.put(type_, data, actor="system", at=at)
    decision = decide(observations, observed, ns_of(at))
    if decision.changed:
        log.put("status.decided", decision.to_data(), actor="system", at=at)
    return decision


def _news(observations: Observations, observed: PollResult) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    if observed.runtime is not None and observed.runtime.state != observations.runtime.state:
        found.append(("runtime.observed", {"state": observed.runtime.state}))
    now, before = observed.activity, observations.activity
    if now is not None and now.state != UNKNOWN and (now.state, now.observed_ns) != (before.state, before.observed_ns):
        known = {} if now.observed_ns is None else {"observed_ns": now.observed_ns}
        found.append(("activity.observed", {"state": now.state, "source": now.source, **known}))
    if observed.pr is not None and observed.pr != replace(observations.pr, cleared=False):
        fields = {name: value for name in _PR_FIELDS if (value := getattr(observed.pr, name)) is not None}
        found.append(("pr.observed", {"state": observed.pr.state, **fields}))
    return found


# The way to each status ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatusScript:
    """The observations that lead to a status.

    Attributes:
        scenes: the facts to observe, each with the time from there to the status; the last observation gives the status.
        end: the state and reason of a session that was ended by hand, decided last.
        rest: how long the agent has been at rest in a scene in which it is idle or blocked.
    """

    scenes: tuple[tuple[timedelta, Observed], ...] = ()
    end: tuple[str, str] | None = None
    rest: timedelta = field(default=timedelta(0))

    @property
    def lasts(self) -> timedelta:
        """The time from the session's start to the status."""
        return max((before + _MINUTE for before, _ in self.scenes), default=timedelta(0))


def play(script: StatusScript, log: LogKit, until: datetime) -> None:
    """Make every observation of a script; the session has the status at the instant ``until``."""
    for before, scene in script.scenes:
        at = until - before
        observed = at - script.rest if scene.activity in ("idle", "blocked") else at if scene.activity is not None else None
        look(log, replace(scene, observed=observed), at)
    if script.end is not None:
        state, reason = script.end
        log.put("status.decided", {"session": state, "reason": reason}, actor="system", at=until)


_AT_WORK: Final = (_MINUTE, Observed("alive", "active"))


def _with_pr(**facts: Any) -> StatusScript:
    state = facts.pop("state", "open")
    url = "https://forge.example/acme/app/pull/7"
    made = ObservedPullRequest(
        state, number=7, url=url, title="Fix the bug", owner="acme", repo="app", branch="feat/fix", base_branch="main", **facts
    )
    return StatusScript((_AT_WORK, (timedelta(0), Observed("alive", "ready", pr=made))))


def _ended(state: str, reason: str, *, runtime: str = "exited") -> StatusScript:
    return StatusScript((_AT_WORK, (timedelta(0), Observed(runtime if state == "terminated" else "alive", "active"))), (state, reason))


STATUS_SCRIPTS: Final[Mapping[str, StatusScript]] = {
    "spawning": StatusScript(),
    "working": StatusScript(((timedelta(0), Observed("alive", "active")),)),
    "pr_open": _with_pr(ci="pending"),
    "ci_failed": _with_pr(ci="failing"),
    "review_pending": _with_pr(ci="passing", review="pending"),
    "changes_requested": _with_pr(ci="passing", review="changes_requested"),
    "approved": _with_pr(ci="passing", review="approved"),
    "mergeable": _with_pr(ci="passing", review="approved", mergeable=True),
    "merged": _with_pr(state="merged", ci="passing", review="approved"),
    "cleanup": replace(_with_pr(state="merged", ci="passing", review="approved"), end=("terminated", "pr_merged")),
    "needs_input": StatusScript((_AT_WORK, (timedelta(0), Observed("alive", "waiting_input")))),
    "stuck": StatusScript(((10 * _MINUTE, Observed("alive", "active")), (timedelta(0), Observed("alive", "idle"))), rest=10 * _MINUTE),
    "errored": _ended("terminated", "error_in_process"),
    "killed": _ended("terminated", "manually_killed"),
    "done": _ended("done", "research_complete"),
    "terminated": _ended("terminated", "agent_process_exited"),
}
"""The script of each documented status."""
