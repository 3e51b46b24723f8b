"""What is observed of a session from outside (docs/explanation/you-know-agent-orchestrator.md).

The main observations are the session's phase, its pull request, and the runtime of its agent; then what the agent was last observed doing,
and what it last reported. ``observations_of`` folds them, and ``views.orchestrator_status`` makes a status of them. They are no part of a
``SessionState``: see docs/decisions/039-observations-are-folded-apart.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pytest_gittrix.errors import LogDamaged
from pytest_gittrix.record.eventlog.events import Event

SESSION_STATES: Final = ("not_started", "working", "idle", "needs_input", "stuck", "detecting", "done", "terminated")
SESSION_REASONS: Final = (
    *("spawn_requested", "agent_acknowledged", "task_in_progress", "pr_created", "pr_closed_waiting_decision", "fixing_ci"),
    *("resolving_review_comments", "awaiting_user_input", "awaiting_external_review", "research_complete", "merged_waiting_decision"),
    *("manually_killed", "pr_merged", "auto_cleanup", "runtime_lost", "agent_process_exited", "probe_failure", "error_in_process"),
)
PR_STATES: Final = ("none", "open", "merged", "closed")
CI_STATES: Final = ("none", "pending", "passing", "failing")
REVIEW_STATES: Final = ("none", "pending", "approved", "changes_requested")
RUNTIME_STATES: Final = ("unknown", "alive", "exited", "missing", "probe_failed")
ACTIVITIES: Final = ("active", "ready", "idle", "waiting_input", "blocked", "exited")
UNKNOWN: Final = "unknown"

SOURCES: Final = ("native", "terminal", "runtime", "none")
_TEXT: Final = (str, type(None))
_NUMBER: Final = (int, type(None))
# The types of the optional fields of an observation.
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("url", "title", "owner", "repo", "branch", "base_branch", "source", "reason", "detail", "note", "evidence"), _TEXT),
    **dict.fromkeys(("number", "pid", "start_time", "exit_code", "observed_ns", "attempts"), _NUMBER),
    **dict.fromkeys(("draft", "mergeable"), (bool, type(None))),
}
_GONE: Final = frozenset({"exited", "missing"})
_OVER: Final = frozenset({"done", "terminated"})
_PR_ADDRESS: Final = re.compile(r"https?://[^/\s]+/(?:.*/)?([^/\s]+)/([^/\s]+)/(?:pull|pulls|-/merge_requests)/([0-9]{1,18})(?:[/?#].*)?")


@dataclass(frozen=True, slots=True)
class Phase:
    """How far the session is; decisions change it. Times are nanoseconds since 1970 UTC.

    Attributes:
        state: one of ``SESSION_STATES``.
        reason: one of ``SESSION_REASONS``.
        kind: ``worker``, or ``orchestrator`` for one that leads others and works from the start.
        of_project: whether it was started for a project, so that its workspace alone does not make it work.
        before: state and reason it had before it was ``detecting``; None otherwise.
        changed_ns: when it last went from one state to another.
        started_ns, completed_ns, terminated_ns: when it first worked; when it was done or terminated, if it is.
        restored_ns: when it was last brought back from its end.
    """

    state: str = "not_started"
    reason: str = "spawn_requested"
    kind: str = "worker"
    of_project: bool = False
    before: tuple[str, str] | None = None
    changed_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    terminated_ns: int | None = None
    restored_ns: int | None = None

    @property
    def over(self) -> bool:
        """Whether the session is done or terminated, which only a restore undoes."""
        return self.state in _OVER


@dataclass(frozen=True, slots=True)
class ObservedPullRequest:
    """The session's pull request as the forge last reported it; ``cleared`` if a restore removed one that had ended."""

    state: str = "none"
    number: int | None = None
    url: str | None = None
    title: str | None = None
    owner: str | None = None
    repo: str | None = None
    branch: str | None = None
    base_branch: str | None = None
    draft: bool = False
    ci: str = "none"
    review: str = "none"
    mergeable: bool = False
    cleared: bool = False

    @property
    def reason(self) -> str:
        """The reason of its state: the first that applies, so that a pull request has one reason.

        It is ready to merge when the forge says so, no review was requested or it was approved, no check is still running, and it is
        no draft.
        """
        if self.state != "open":
            absent = "cleared_on_restore" if self.cleared else "not_created"
            return {"merged": "merged", "closed": "closed_unmerged"}.get(self.state, absent)
        if self.ci == "failing":
            return "ci_failing"
        if self.review == "changes_requested":
            return "changes_requested"
        if self.review in ("approved", "none") and self.mergeable and self.ci != "pending" and not self.draft:
            return "merge_ready"
        return {"approved": "approved", "pending": "review_pending"}.get(self.review, "in_progress")


@dataclass(frozen=True, slots=True)
class Runtime:
    """What runs the agent, as a probe last observed it at ``seen_ns``.

    ``confinement`` is how the last agent was confined at its launch, ``limit`` the limit that it passed, and was ended for.
    """

    state: str = UNKNOWN
    pid: int | None = None
    start_time: int | None = None
    exit_code: int | None = None
    source: str | None = None
    reason: str | None = None
    seen_ns: int | None = None
    confinement: str | None = None
    limit: str | None = None

    @property
    def gone(self) -> bool:
        """Whether a probe found that it does not run any more."""
        return self.state in _GONE


@dataclass(frozen=True, slots=True)
class Activity:
    """What the agent was last observed doing.

    Attributes:
        state: one of ``ACTIVITIES``, or ``unknown``.
        source: where that was observed: ``native`` (the agent's own files), ``terminal``, ``runtime`` or ``none``.
        observed_ns: when the agent last did something, by the source; None if the source does not say.
        detail: more from the source.
        seen_ns: when the source was read.
        failed: the source could not be read; then the state is ``unknown``.
    """

    state: str = UNKNOWN
    source: str = "none"
    observed_ns: int | None = None
    detail: str | None = None
    seen_ns: int | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What the agent last reported of itself, if that was accepted; ``at_ns`` is when."""

    name: str
    at_ns: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered while observations contradict each other: how often in a row, a fingerprint of them, and since when."""

    attempts: int
    evidence: str | None
    since_ns: int


@dataclass(frozen=True, slots=True)
class Observations:
    """Everything that was observed of one session, as its events leave it."""

    session: Phase = field(default_factory=Phase)
    pr: ObservedPullRequest = field(default_factory=ObservedPullRequest)
    runtime: Runtime = field(default_factory=Runtime)
    activity: Activity = field(default_factory=Activity)
    report: AgentReport | None = None
    memory: Memory | None = None


def observations_of(events: Iterable[Event], observations: Observations | None = None) -> Observations:
    """Add events to observations, or build them from the first event on. Other events are passed over.

    A session that belongs to a project is being spawned until a decision says otherwise; any other works as soon as its workspace is
    there. Only a restore changes a session that is done or terminated, or a pull request that is merged.

    Args:
        events: of one session, in order.
        observations: of the events before them.

    Raises:
        LogDamaged: an event has a value that its type does not allow (``runtime.observed`` with an unknown state), or lacks a key.
    """
    found = observations or Observations()
    for event in events:
        step = _STEPS.get(event.type)
        if step is None:
            continue
        _check_kinds(event)
        try:
            found = step(found, event)
        except (KeyError, TypeError, AttributeError) as problem:
            raise LogDamaged(
                f"Event {event.seq} of session {event.stream!r} is {event.type!r}, and its data are not those of its type: {problem!r}.",
                why="What follows from it would be a guess.",
                fix="Find out which program wrote it; this engine checks what it stores.",
            ) from None
    return found


def ended_as(state: str, outcome: str | None) -> tuple[str, str]:
    """State and reason of a session that ended as ``state`` (``promoted``, ``discarded``, ``expired``), its agent as ``outcome`` says."""
    if state == "expired":
        return "terminated", "auto_cleanup"
    if state == "promoted" or outcome in ("done", "handoff"):
        return "done", "research_complete"
    return "terminated", "runtime_lost" if outcome == "crash" else "manually_killed"


def pull_request_at(url: str) -> ObservedPullRequest:
    """An open pull request of which only the address is known; owner, repository and number as far as it tells them."""
    match = _PR_ADDRESS.fullmatch(url)
    if match is None:
        return ObservedPullRequest("open", url=url)
    return ObservedPullRequest("open", number=int(match[3]), url=url, owner=match[1], repo=match[2])


Step = Callable[[Observations, Event], Observations]
_WORKING: Final = ("working", "task_in_progress")


# What each event changes. ------------------------------------------------------------------------------------------------------


def _born(observations: Observations, event: Event) -> Observations:
    facts = event.data.get("identity", {})
    kind = "orchestrator" if facts.get("role") == "orchestrator" else "worker"
    session = Phase(kind=kind, of_project=facts.get("project") is not None, changed_ns=event.ts)
    fresh = replace(observations, session=session, runtime=Runtime(reason="spawn_incomplete"))
    return _moved(fresh, *_WORKING, event.ts) if kind == "orchestrator" else fresh


def _opened(observations: Observations, event: Event) -> Observations:
    return replace(observations, session=Phase(of_project=True, changed_ns=event.ts), runtime=Runtime(reason="spawn_incomplete"))


def _phase(find: Callable[[Observations, Event], tuple[str, str] | None]) -> Step:
    """A step to the state and reason that ``find`` gives, unless the session is over; None leaves it as it is."""

    def step(observations: Observations, event: Event) -> Observations:
        found = None if observations.session.over else find(observations, event)
        return observations if found is None else _moved(observations, *found, event.ts)

    return step


def _imported(observations: Observations, event: Event) -> Observations:
    born, state = _born(observations, event), event.data["metadata"]["state"]
    now = _WORKING if state == "active" else ended_as(state, None)
    return _moved(born, *now, event.ts)


def _when_ready(observations: Observations, _event: Event) -> tuple[str, str] | None:
    waits = observations.session.state == "not_started" and not observations.session.of_project
    return _WORKING if waits else None


def _promoted(observations: Observations, event: Event) -> Observations:
    url = event.data.get("pr_url")
    if observations.session.over or (url is None and event.type == "promote.kept"):
        return observations
    if url is None:
        return _moved(observations, *ended_as("promoted", None), event.ts)
    known = observations if observations.pr.state != "none" else replace(observations, pr=pull_request_at(url))
    return _moved(known, "idle", "pr_created", event.ts)


def _when_ended(observations: Observations, event: Event) -> tuple[str, str] | None:
    state = event.data["state"]
    goes_on = state == "promoted" and observations.pr.state != "none"
    return None if goes_on else ended_as(state, event.data.get("outcome"))


def _runtime(observations: Observations, event: Event) -> Observations:
    known = {name: event.data.get(name) for name in ("pid", "start_time", "exit_code", "source", "reason", "limit")}
    confinement = event.data.get("confinement", observations.runtime.confinement)
    found = Runtime(_one_of(event, "state", RUNTIME_STATES), **known, seen_ns=event.ts, confinement=confinement)
    return replace(observations, runtime=found)


def _activity(observations: Observations, event: Event) -> Observations:
    data = event.data
    state, source = _one_of(event, "state", ACTIVITIES), _one_of(event, "source", SOURCES)
    return replace(observations, activity=Activity(state, source, data.get("observed_ns"), data.get("detail"), event.ts))


def _pr(observations: Observations, event: Event) -> Observations:
    state, data = _one_of(event, "state", PR_STATES), event.data
    for name, values in (("ci", CI_STATES), ("review", REVIEW_STATES)):
        if name in data:
            _one_of(event, name, values)
    if observations.pr.state == "merged":
        return observations
    given = {name: value for name, value in data.items() if name != "state" and value is not None}
    if state == "none":
        return replace(observations, pr=ObservedPullRequest())
    old = observations.pr
    another = old.state == "none" or (old.number is not None and given.get("number", old.number) != old.number)
    return replace(observations, pr=replace(ObservedPullRequest() if another else old, state=state, **given))


def _report(observations: Observations, event: Event) -> Observations:
    if not event.data["accepted"]:
        return observations
    return replace(observations, report=AgentReport(event.data["report"], event.ts, event.data.get("note")))


def _decided(observations: Observations, event: Event) -> Observations:
    state, reason = _one_of(event, "session", SESSION_STATES), _one_of(event, "reason", SESSION_REASONS)
    # What is over is over, also by its pull request; and what was started once is not being started any more.
    back = state == "not_started" != observations.session.state
    if observations.session.over or back or (observations.pr.state == "merged" and state not in ("working", "idle", *_OVER)):
        return observations
    attempts, old = event.data.get("attempts"), observations.memory
    memory = None if attempts is None else Memory(attempts, event.data.get("evidence"), event.ts if old is None else old.since_ns)
    return replace(_moved(observations, state, reason, event.ts), memory=memory)


def _restored(observations: Observations, event: Event) -> Observations:
    session = replace(observations.session, completed_ns=None, terminated_ns=None, restored_ns=event.ts)
    pr = ObservedPullRequest(cleared=True) if observations.pr.state in ("merged", "closed") else observations.pr
    fresh = Observations(session=session, pr=pr, runtime=Runtime(reason="spawn_incomplete"))
    return _moved(fresh, *_WORKING, event.ts)


_LIVES: Final[Mapping[str, tuple[str, str]]] = {
    "creating": ("not_started", "spawn_requested"),
    "active": _WORKING,
    "finalizing": _WORKING,
    "completed": ("done", "research_complete"),
    "failed": ("terminated", "error_in_process"),
    "killed": ("terminated", "manually_killed"),
}

_STEPS: Final[Mapping[str, Step]] = {
    "session.created": _born,
    "session.imported": _imported,
    "session.opened": _opened,
    "life.moved": _phase(lambda _observations, event: _LIVES.get(event.data["to"])),
    "workspace.ready": _phase(_when_ready),
    "promote.done": _promoted,
    "promote.kept": _promoted,
    "session.ended": _phase(_when_ended),
    "runtime.observed": _runtime,
    "activity.observed": _activity,
    "pr.observed": _pr,
    "report.submitted": _report,
    "status.decided": _decided,
    "session.restored": _restored,
}


def _moved(observations: Observations, state: str, reason: str, ts: int) -> Observations:
    old = observations.session
    before = (old.before if old.state == "detecting" else (old.state, old.reason)) if state == "detecting" else None
    session = replace(
        old,
        state=state,
        reason=reason,
        before=before,
        changed_ns=old.changed_ns if state == old.state else ts,
        started_ns=ts if old.started_ns is None and state != "not_started" else old.started_ns,
        completed_ns=ts if state == "done" else old.completed_ns,
        terminated_ns=ts if state == "terminated" else old.terminated_ns,
    )
    return replace(observations, session=session, memory=None)


def _check_kinds(event: Event) -> None:
    if not event.type.endswith((".observed", ".decided", ".submitted")):
        return
    for key, value in event.data.items():
        kinds = _KINDS.get(key)
        if kinds is not None and (not isinstance(value, kinds) or (kinds is _NUMBER and isinstance(value, bool))):
            raise LogDamaged(
                f"Event {event.seq} of session {event.stream!r} is {event.type!r} with the {key} {str(value)[:200]!r}.",
                why="What follows from it would be a guess.",
                fix=f"It can be: {', '.join('nothing' if kind is type(None) else kind.__name__ for kind in kinds)}.",
            )


def _one_of(event: Event, key: str, values: tuple[str, ...]) -> str:
    value: Any = event.data[key]
    if value not in values:
        raise LogDamaged(
            f"Event {event.seq} of session {event.stream!r} is {event.type!r} with the unknown {key} {value!r}.",
            why="What follows from it would be a guess.",
            fix=f"It can be: {', '.join(values)}.",
        )
    return str(value)
