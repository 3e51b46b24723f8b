"""A session as agent-orchestrator sees it: its log, written by hand at times of the test's choosing, and somebody who looks at it."""

from __future__ import annotations

from typing import Any

from support.events import CREATED, NOW

from pytest_gittrix.record.axes import Activity, Axes, PullRequest, Runtime, axes_of
from pytest_gittrix.record.events import Event, check
from pytest_gittrix.views.orchestrator_status import Decision, Dialect, Observation, decide, status

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
ID = "app-1"


def at(minute: float) -> int:
    """So many minutes after the session was created, in nanoseconds since 1970 UTC."""
    return NOW + round(minute * MINUTE / 1000) * 1000


def does(state: str, minute: float | None = None, source: str = "native") -> Activity:
    """An agent that was last seen to do something at a minute."""
    return Activity(state, source, None if minute is None else at(minute))


class Watched:
    """A session of a project, and somebody who polls it: records what is news, decides, and records what was decided if that is news.

    Args:
        identity: who works in it; ``project=None`` for a session of nobody's.
    """

    def __init__(self, **identity: Any) -> None:
        told = {name: value for name, value in {"project": "app", **identity}.items() if value is not None}
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.tell(0, "session.created", **CREATED, identity=told)
        self.tell(0, "workspace.ready", path="/w")

    @property
    def axes(self) -> Axes:
        """What is known by now."""
        return axes_of(self.events)

    def status(self, dialect: Dialect = "document") -> str:
        """What it is by now."""
        return status(self.axes, dialect=dialect)

    def tell(self, minute: float, type: str, **data: Any) -> None:
        """Something happened to it."""
        check(type, data)
        self.events.append(Event(len(self.events), at(minute), ID, type, "system", data))

    def decided(self, minute: float, session: str, reason: str = "task_in_progress", **data: Any) -> None:
        """Somebody decided."""
        self.tell(minute, "status.decided", session=session, reason=reason, **data)

    def look(self, minute: float, runtime: str | None = None, activity: Activity | None = None, pr: PullRequest | None = None) -> str:
        """Look at it, and say what it is then in the newest dialect."""
        if runtime is not None and runtime != self.axes.runtime.state:
            self.tell(minute, "runtime.observed", state=runtime)
        if activity is not None and activity.state not in ("unknown", self.axes.activity.state):
            seen = {} if activity.observed_ns is None else {"observed_ns": activity.observed_ns}
            self.tell(minute, "activity.observed", state=activity.state, source=activity.source, **seen)
        if pr is not None and pr.state != self.axes.pr.state:
            self.tell(minute, "pr.observed", state=pr.state, ci=pr.ci, review=pr.review, mergeable=pr.mergeable)
        decision = decide(self.axes, Observation(None if runtime is None else Runtime(runtime), activity, pr), at(minute))
        self.decisions.append(decision)
        if decision.changed:
            self.tell(minute, "status.decided", **decision.to_data())
        return self.status("head")
