"""The life cycle of a member's session, from its opening until its workspace is gone (docs/explanation/you-know-botminter.md).

``LEGAL`` is the table of state changes. ``life_of`` folds the rest of a life from the same events that ``fold`` folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.eventlog.events import Event, path_of
from pytest_gittrix.record.state.values import Policy

T = TypeVar("T")

KINDS: Final = ("loop", "interactive", "brain")
"""What runs in a session: an agent by itself, one that a person talks to, or one that does both."""

LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "creating": frozenset({"active"}),
    "active": frozenset({"finalizing", "completed", "failed", "killed"}),
    "finalizing": frozenset({"completed", "failed", "killed"}),
    "completed": frozenset({"retained"}),
    "failed": frozenset({"retained"}),
    "killed": frozenset({"retained"}),
    "retained": frozenset({"finalizing", "removed"}),
    "removed": frozenset(),
}
"""Which state may follow which; ``removed`` is the state of a session whose workspace was cleaned up."""

STATES: Final = tuple(LEGAL)
TERMINAL: Final[frozenset[str]] = frozenset({"completed", "failed", "killed"})
"""How an agent's run ends. None of these is the last state: the session is retained next."""

OUTCOMES: Final[Mapping[str, str]] = {"completed": "done", "failed": "crash", "killed": "killed"}
"""The outcome that other systems give a run, by the state that it ended in."""

STATUSES: Final = ("Completed", "CompletedDegraded", "Failed", "Skipped")
"""How a finalization can end."""
SAVED: Final = ("Completed", "CompletedDegraded", "Skipped")
"""How a finalization ends that leaves no work in the workspace alone."""
ACTIONS: Final = ("committed", "pushed", "recovered", "left", "skipped", "failed")
"""What a finalization can do about a repository."""

NEVER_SWEPT: Final = Policy(ttl_idle_ns=None, ttl_absolute_ns=None, manual=True)
"""The eviction policy of a session with a life cycle: ``retention`` decides when its workspace goes."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was started for a session; times are nanoseconds since 1970 UTC.

    Attributes:
        pid: its number. start_time: distinguishes it from another process of that number, as in ``lock_owner.Owner``; None if unknown.
        launched_ns, exited_ns: when it was started, and when it was found to be gone.
        code, signal, reason: how it ended, as far as it is known.
        stop_reason: why the last turn of an agent that speaks the Agent Client Protocol ended; ``lost`` if the turn was cut short.
        confinement: how it is confined, such as ``jail(bwrap)`` or ``off``; None if nobody recorded it.
    """

    pid: int
    start_time: int | None
    launched_ns: int
    exited_ns: int | None = None
    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    confinement: str | None = None
    stop_reason: str | None = None


class Pushed(NamedTuple):
    """A branch of a repository that work was committed to or pushed as."""

    repository: str
    branch: str


@dataclass(frozen=True, slots=True)
class FinalizationResult:
    """What all attempts together saved: an attempt that finds nothing more to do takes nothing back.

    Attributes:
        exit_status: how the last attempt ended, one of ``STATUSES``; None while one runs, or after it was cut short.
        committed_repos, pushed_branches, recovery_branches: where work is, each once, in the order of the saves.
        github_issue_urls: the issues that were opened about it.
    """

    exit_status: str | None = None
    committed_repos: tuple[Pushed, ...] = ()
    pushed_branches: tuple[Pushed, ...] = ()
    recovery_branches: tuple[Pushed, ...] = ()
    github_issue_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """The life of one session as its events leave it; times are nanoseconds since 1970 UTC.

    Attributes:
        id, task, kind, member, team, work_item, workspace: as it was opened.
        created_ns: when that was. since_ns: when it came into its present state.
        state: one of ``STATES``.
        ended: the state in which its agent's run last ended, one of ``TERMINAL``. ended_ns: when.
        retained_ns: since when it is retained; None while it is not.
        agent, finalizer: the last process that worked in it, and the last that saved its work afterwards.
        stop_ns: when a stop was first requested. forced: whether a stop left it no time to finish.
        attempts: number of attempts to save its work.
        result: of these attempts; None before the first, and if none was needed and none was recorded.
        left: the repositories whose work the last attempt left in the workspace, or failed to save.
        unsaved: whether the workspace has work that is known to be nowhere else, until an attempt saves all of it.
        locks: the work items that only it works on.
    """

    id: str
    task: str
    kind: str
    member: str
    team: str | None
    work_item: str | None
    workspace: str
    created_ns: int
    since_ns: int
    state: str = "creating"
    ended: str | None = None
    ended_ns: int | None = None
    retained_ns: int | None = None
    agent: Process | None = None
    finalizer: Process | None = None
    stop_ns: int | None = None
    forced: bool = False
    attempts: int = 0
    result: FinalizationResult | None = None
    left: tuple[str, ...] = ()
    unsaved: bool = False
    locks: tuple[str, ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether it completed with some work on a recovery branch."""
        return self.result is not None and self.result.exit_status == "CompletedDegraded"


def life_of(events: Iterable[Event], life: Life | None = None) -> Life | None:
    """Add events to a life, or build one from the first event on; None for a session that has none.

    ``state.fold`` checks whether the events are legal; this function does not.

    Args:
        events: of one session, in order.
        life: of the events before them.
    """
    for event in events:
        if event.type == "session.opened":
            life = _opened(event)
        elif life is not None and event.type in _STEPS:
            life = _STEPS[event.type](life, event)
    return life


def require_legal(old: str, new: str) -> None:
    """Refuse a state change that the table does not allow.

    Raises:
        InvalidInput: ``new`` may not follow ``old``.
    """
    if new in LEGAL.get(old, ()):
        return
    allowed = ", ".join(sorted(name.capitalize() for name in LEGAL.get(old, ())))
    raise InvalidInput(
        f"Cannot transition from {old.capitalize()} to {new.capitalize()}.",
        why="Of a session that skips a step, nobody knows whether its work was saved.",
        fix=f"From {old.capitalize()} it can go on to: {allowed or 'nothing'}.",
        opt_out="A test can write such a history all the same: gittrix_log.put(..., legal=False).",
    )


def why_not(event: Event, state: str | None) -> str | None:
    """Why an event of a life cannot happen in a state of it, or None if it can. Without a life (None) only its processes and locks can."""
    data = event.data
    match event.type:
        case "life.moved" if state is None:
            return "the session has no life cycle"
        case "life.moved" if data["to"] not in LEGAL[str(state)]:
            return f"it cannot go from {state} to {data['to']}"
        case "life.moved" if data.get("result", STATUSES[0]) not in STATUSES:
            return f"{data['result']!r} is no result ({', '.join(STATUSES)})"
        case "agent.launched" if state not in (None, "active", "finalizing"):
            return f"nothing runs in a session that is {state}"
        case "finalize.started" | "finalize.repository" | "finalize.finished" if state != "finalizing":
            return f"it is {state}, and not finalizing" if state else "the session has no life cycle"
        case "finalize.repository" if data["action"] not in ACTIONS:
            return f"{data['action']!r} is no action ({', '.join(ACTIONS)})"
        case "finalize.finished" if data["status"] not in STATUSES:
            return f"{data['status']!r} is no status ({', '.join(STATUSES)})"
    return None


# What each event changes. ------------------------------------------------------------------------------------------------------


def _opened(event: Event) -> Life:
    data = event.data
    return Life(
        id=event.stream,
        task=data["task"],
        kind=data["kind"],
        member=data["member"],
        team=data.get("team"),
        work_item=data.get("work_item"),
        workspace=path_of(data, "workspace"),
        created_ns=event.ts,
        since_ns=event.ts,
    )


def _moved(life: Life, event: Event) -> Life:
    to, result = event.data["to"], life.result
    moved = replace(life, state=to, since_ns=event.ts, retained_ns=event.ts if to == "retained" else None)
    if to in TERMINAL:
        status = event.data.get("result")
        result = replace(result or FinalizationResult(), exit_status=status) if status is not None else result
        idle = life.state == "active" and status == "Skipped"  # the caller that ended it knows that no agent had worked there
        # Its agent failed, and an attempt has saved its work.
        saved = life.state == "finalizing" and life.result is not None and life.result.exit_status in SAVED
        unsaved = life.unsaved or status == "Failed" or (to == "failed" and not idle and not saved)
        return replace(moved, ended=to, ended_ns=event.ts, result=result, unsaved=unsaved)
    if to == "finalizing":
        return replace(moved, result=None if result is None else replace(result, exit_status=None))
    return replace(moved, locks=()) if to == "removed" else moved


def _launched(life: Life, event: Event) -> Life:
    process = Process(event.data["pid"], event.data.get("start_time"), event.ts, confinement=event.data.get("confinement"))
    return replace(life, finalizer=process) if life.state == "finalizing" else replace(life, agent=process)


def _exited(life: Life, event: Event) -> Life:
    exit_fields: dict[str, Any] = {name: event.data.get(name) for name in ("code", "signal", "reason", "stop_reason")}
    # An agent is not started again once its work is being saved, so the finalizer is the later process.
    if life.finalizer is not None and life.finalizer.exited_ns is None:
        return replace(life, finalizer=replace(life.finalizer, exited_ns=event.ts, **exit_fields))
    if life.agent is not None and life.agent.exited_ns is None:
        return replace(life, agent=replace(life.agent, exited_ns=event.ts, **exit_fields))
    return life


def _stopping(life: Life, event: Event) -> Life:
    first = event.ts if life.stop_ns is None else life.stop_ns
    return replace(life, stop_ns=first, forced=life.forced or bool(event.data.get("force")))


def _began(life: Life, event: Event) -> Life:
    result = replace(life.result or FinalizationResult(), exit_status=None)
    return replace(life, attempts=event.data["attempt"], result=result, left=())


def _saved(life: Life, event: Event) -> Life:
    name, action = event.data["name"], event.data["action"]
    if action in ("left", "failed"):
        return replace(life, left=_with(life.left, name), unsaved=True)
    if event.data.get("branch") is None:
        return life
    result, where = life.result or FinalizationResult(), Pushed(name, event.data["branch"])
    match action:
        case "committed":
            result = replace(result, committed_repos=_with(result.committed_repos, where))
        case "pushed":
            result = replace(result, pushed_branches=_with(result.pushed_branches, where))
        case "recovered":
            result = replace(result, recovery_branches=_with(result.recovery_branches, where))
    return replace(life, result=result)


def _finished(life: Life, event: Event) -> Life:
    status, result = event.data["status"], life.result or FinalizationResult()
    issues = result.github_issue_urls
    for url in event.data.get("issues", ()):
        issues = _with(issues, url)
    return replace(
        life, result=replace(result, exit_status=status, github_issue_urls=issues), unsaved=status == "Failed" or bool(life.left)
    )


def _locked(life: Life, event: Event) -> Life:
    return replace(life, locks=_with(life.locks, event.data["item"]))


def _released(life: Life, event: Event) -> Life:
    return replace(life, locks=tuple(item for item in life.locks if item != event.data["item"]))


_STEPS: Final[Mapping[str, Callable[[Life, Event], Life]]] = {
    "life.moved": _moved,
    "agent.launched": _launched,
    "agent.exited": _exited,
    "stop.requested": _stopping,
    "finalize.started": _began,
    "finalize.repository": _saved,
    "finalize.finished": _finished,
    "work.locked": _locked,
    "work.released": _released,
}


def _with(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    return items if item in items else (*items, item)
