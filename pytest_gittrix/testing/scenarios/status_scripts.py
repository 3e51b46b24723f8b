"""What has to be seen of a session so that it has a status of agent-orchestrator's, and looking at a session as it does.

A look records what is news, decides as ``views.orchestrator_status`` does, and records what was decided if that is news. Must not know
what is looked at: a real agent or a script.
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
class Scene:
    """What is to be seen of a session; None is not looked at.

    Attributes:
        runtime: one of ``observations.RUNTIME_STATES``.
        activity: one of ``observations.ACTIVITIES``; ``probe_failed`` if it cannot be looked at.
        observed: when the agent did something last; None if nothing tells.
        pr: the pull request.
        source: who tells of the activity.
    """

    runtime: str | None = None
    activity: str | None = None
    observed: datetime | None = None
    pr: ObservedPullRequest | None = None
    source: str = "native"

    def observation(self) -> PollResult:
        """The same, as a decision takes it."""
        runtime = None if self.runtime is None else Runtime(self.runtime)
        if self.activity == "probe_failed":
            return PollResult(runtime, Activity(source=self.source, failed=True), self.pr)
        at = None if self.observed is None else ns_of(self.observed)
        activity = None if self.activity is None else Activity(self.activity, self.source, at)
        return PollResult(runtime, activity, self.pr)


def look(log: LogKit, scene: Scene, at: datetime) -> Decision:
    """Look at a session once.

    Args:
        log: its log, to which is added what is news.
        scene: what there is to be seen.
        at: when.

    Raises:
        LogDamaged: the log is damaged, or the session is none.
    """
    seen = scene.observation()
    observations = observations_of(log.events())
    for type_, data in _news(observations, seen):
        log.put(type_, data, actor="system", at=at)
    decision = decide(observations, seen, ns_of(at))
    if decision.changed:
        log.put("status.decided", decision.to_data(), actor="system", at=at)
    return decision


def _news(observations: Observations, seen: PollResult) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    if seen.runtime is not None and seen.runtime.state != observations.runtime.state:
        found.append(("runtime.observed", {"state": seen.runtime.state}))
    now, before = seen.activity, observations.activity
    if now is not None and now.state != UNKNOWN and (now.state, now.observed_ns) != (before.state, before.observed_ns):
        known = {} if now.observed_ns is None else {"observed_ns": now.observed_ns}
        found.append(("activity.observed", {"state": now.state, "source": now.source, **known}))
    if seen.pr is not None and seen.pr != replace(observations.pr, cleared=False):
        told = {name: value for name in _PR_FIELDS if (value := getattr(seen.pr, name)) is not None}
        found.append(("pr.observed", {"state": seen.pr.state, **told}))
    return found


# The way to each status ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatusScript:
    """What leads to a status.

    Attributes:
        scenes: what is seen, each so long before the status is there; the last of them makes it.
        end: state and reason of a session that somebody ended; decided last.
    """

    scenes: tuple[tuple[timedelta, Scene], ...] = ()
    end: tuple[str, str] | None = None
    rest: timedelta = field(default=timedelta(0))

    @property
    def lasts(self) -> timedelta:
        """How long it takes from the session's start on."""
        return max((before + _MINUTE for before, _ in self.scenes), default=timedelta(0))


def play(script: StatusScript, log: LogKit, until: datetime) -> None:
    """Have everything of a script seen; the status is there at ``until``."""
    for before, scene in script.scenes:
        at = until - before
        observed = at - script.rest if scene.activity in ("idle", "blocked") else at if scene.activity is not None else None
        look(log, replace(scene, observed=observed), at)
    if script.end is not None:
        state, reason = script.end
        log.put("status.decided", {"session": state, "reason": reason}, actor="system", at=until)


_AT_WORK: Final = (_MINUTE, Scene("alive", "active"))


def _with_pr(**facts: Any) -> StatusScript:
    state = facts.pop("state", "open")
    url = "https://forge.example/acme/app/pull/7"
    made = ObservedPullRequest(
        state, number=7, url=url, title="Fix the bug", owner="acme", repo="app", branch="feat/fix", base_branch="main", **facts
    )
    return StatusScript((_AT_WORK, (timedelta(0), Scene("alive", "ready", pr=made))))


def _ended(state: str, reason: str, *, runtime: str = "exited") -> StatusScript:
    return StatusScript((_AT_WORK, (timedelta(0), Scene(runtime if state == "terminated" else "alive", "active"))), (state, reason))


STATUS_SCRIPTS: Final[Mapping[str, StatusScript]] = {
    "spawning": StatusScript(),
    "working": StatusScript(((timedelta(0), Scene("alive", "active")),)),
    "pr_open": _with_pr(ci="pending"),
    "ci_failed": _with_pr(ci="failing"),
    "review_pending": _with_pr(ci="passing", review="pending"),
    "changes_requested": _with_pr(ci="passing", review="changes_requested"),
    "approved": _with_pr(ci="passing", review="approved"),
    "mergeable": _with_pr(ci="passing", review="approved", mergeable=True),
    "merged": _with_pr(state="merged", ci="passing", review="approved"),
    "cleanup": replace(_with_pr(state="merged", ci="passing", review="approved"), end=("terminated", "pr_merged")),
    "needs_input": StatusScript((_AT_WORK, (timedelta(0), Scene("alive", "waiting_input")))),
    "stuck": StatusScript(((10 * _MINUTE, Scene("alive", "active")), (timedelta(0), Scene("alive", "idle"))), rest=10 * _MINUTE),
    "errored": _ended("terminated", "error_in_process"),
    "killed": _ended("terminated", "manually_killed"),
    "done": _ended("done", "research_complete"),
    "terminated": _ended("terminated", "agent_process_exited"),
}
"""What leads to each of the documented statuses."""
