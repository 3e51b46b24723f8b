"""The life cycle of a member's session, from its opening until its workspace is gone (docs/explanation/you-know-botminter.md).

``LEGAL`` is the table of state changes, ``EVENTS`` says in which states each event can happen and what it changes. ``fold`` applies both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.eventlog.events import Event, path_of

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


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """A process that was started for a session; times are nanoseconds since 1970 UTC.

    Attributes:
        pid: its number. start_time: distinguishes it from another process of that number, as in ``lock_owner.Owner``; None if unknown.
        launched_ns, exited_ns: when it was started, and when it was found to be gone.
        code, signal, reason: how it ended, as far as it is known.
        stop_reason: why the last turn of an agent that speaks the Agent Client Protocol ended; ``lost`` if the turn was cut short.
        confinement: how it is confined, such as ``jail(bwrap)`` or ``off``; None if unknown.
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


class RunEnd(NamedTuple):
    """The end of an agent's run, when its session left ``active``, which happens once.

    Attributes:
        outcome: ``done``, ``crash`` or ``killed``. A run whose work is saved next is done, whether the save succeeds or not.
        at_ns: when, in nanoseconds since 1970 UTC.
        seq: the event.
    """

    outcome: str
    at_ns: int
    seq: int


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
        run: the end of its agent's run; None while that goes on.
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
    agent: LaunchedProcess | None = None
    finalizer: LaunchedProcess | None = None
    stop_ns: int | None = None
    forced: bool = False
    attempts: int = 0
    result: FinalizationResult | None = None
    left: tuple[str, ...] = ()
    unsaved: bool = False
    locks: tuple[str, ...] = ()
    run: RunEnd | None = None

    @property
    def degraded(self) -> bool:
        """Whether it completed with some work on a recovery branch."""
        return self.result is not None and self.result.exit_status == "CompletedDegraded"

    def to_data(self) -> dict[str, Any]:
        """The life as JSON; ``from_data`` reads it."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Life:
        """Read what ``to_data`` gave. Raises KeyError or TypeError for anything else."""
        agent, finalizer = (data[name] and LaunchedProcess(**data[name]) for name in ("agent", "finalizer"))
        lists = {name: tuple(data[name]) for name in ("left", "locks")}
        result, run = data["result"] and _result(data["result"]), data["run"] and RunEnd(*data["run"])
        return cls(**{**data, **lists, "agent": agent, "finalizer": finalizer, "result": result, "run": run})


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
        why="If a session skips a step, its work may not have been saved.",
        fix=f"From {old.capitalize()} it can go on to: {allowed or 'nothing'}.",
        opt_out="A test can write such a history all the same: gittrix_log.put(..., legal=False).",
    )


def why_not(life: Life | None, event: Event) -> str | None:
    """Why an event of a life cycle cannot happen now, or None if it can."""
    rule, data = EVENTS[event.type], event.data
    if life is None:
        return None if rule.without else "the session has no life cycle"
    if life.state not in rule.within:
        return f"it is {life.state}, and not {' or '.join(sorted(rule.within))}"
    if rule.moves and data["to"] not in LEGAL[life.state]:
        return f"it cannot go from {life.state} to {data['to']}"
    if rule.key in data and data[rule.key] not in rule.values:
        return f"{data[rule.key]!r} is no {rule.key} ({', '.join(rule.values)})"
    return None


def after(life: Life, event: Event) -> Life:
    """A life after an event that can happen in it."""
    return EVENTS[event.type].apply(life, event)


# What each event changes. ------------------------------------------------------------------------------------------------------


def opened(event: Event) -> Life:
    """The life that ``session.opened`` begins."""
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
    run = RunEnd(OUTCOMES.get(to, "done"), event.ts, event.seq) if life.state == "active" else life.run
    moved = replace(life, state=to, since_ns=event.ts, retained_ns=event.ts if to == "retained" else None, run=run)
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
    process = LaunchedProcess(event.data["pid"], event.data.get("start_time"), event.ts, confinement=event.data.get("confinement"))
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


class LifeRule(NamedTuple):
    """What an event of a life cycle changes, and when it can happen.

    Attributes:
        apply: gives the life after it.
        within: the states in which it can happen.
        without: whether it can also happen in a session without a life cycle, where it changes nothing.
        key, values: the key of its data that has one of these values, if it is there.
        moves: whether it leads to another state, by ``LEGAL``.
    """

    apply: Callable[[Life, Event], Life]
    within: frozenset[str] = frozenset(STATES)
    without: bool = True
    key: str = ""
    values: tuple[str, ...] = ()
    moves: bool = False


_SAVING: Final = frozenset({"finalizing"})
EVENTS: Final[Mapping[str, LifeRule]] = {
    "life.moved": LifeRule(_moved, without=False, key="result", values=STATUSES, moves=True),
    "agent.launched": LifeRule(_launched, frozenset({"active", "finalizing"})),
    "agent.exited": LifeRule(_exited),
    "stop.requested": LifeRule(_stopping),
    "finalize.started": LifeRule(_began, _SAVING, without=False),
    "finalize.repository": LifeRule(_saved, _SAVING, without=False, key="action", values=ACTIONS),
    "finalize.finished": LifeRule(_finished, _SAVING, without=False, key="status", values=STATUSES),
    "work.locked": LifeRule(_locked),
    "work.released": LifeRule(_released),
}
"""When each event of a life cycle can happen, and what it changes."""


def _result(data: Mapping[str, Any]) -> FinalizationResult:
    places = {name: tuple(Pushed(*one) for one in data[name]) for name in ("committed_repos", "pushed_branches", "recovery_branches")}
    return FinalizationResult(data["exit_status"], **places, github_issue_urls=tuple(data["github_issue_urls"]))


def _with(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    return items if item in items else (*items, item)
