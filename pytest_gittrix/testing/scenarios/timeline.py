"""A story of a session that is seen from outside: ``Timeline().at("0", runtime="alive", activity="active").at("6m", activity="idle")``.

It is played on a frozen clock: a session of agent-orchestrator's is looked at, again and again, by the rules of the engine, and what comes
of it is kept: statuses, reasons, notifications (session-systems 5.8). Must not know pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self, get_args

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.durations import format_duration, parse_duration
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.agent_reports import check_report
from pytest_gittrix.record.state.observations import (
    ACTIVITIES,
    CI_STATES,
    PR_STATES,
    REVIEW_STATES,
    RUNTIME_STATES,
    ObservedPullRequest,
    observations_of,
)
from pytest_gittrix.testing.scenarios.log_kit import LogKit, open_log
from pytest_gittrix.testing.scenarios.status_scripts import Scene, look
from pytest_gittrix.views.orchestrator import notifications, state_in
from pytest_gittrix.views.orchestrator_status import Dialect

POLL: Final = timedelta(seconds=30)
"""How often a session is looked at (agent-orchestrator)."""

_AT_REST: Final = frozenset({"idle", "blocked", "exited", "probe_failed"})
_DIALECTS: Final = get_args(Dialect)
_PR: Final = ("ci", "review", "mergeable", "draft")
_Kept = Literal["runtime", "activity", "pr"]


@dataclass(frozen=True)
class Look:
    """What one look at the session came to.

    Attributes:
        after: since the start.
        status: what it is then.
        session, reason: how far it is, and why.
        why: what decided, in words.
        attempts: how often in a row what was seen did not agree; None when it did.
    """

    after: timedelta
    status: str
    session: str
    reason: str
    why: str
    attempts: int | None = None

    def __str__(self) -> str:
        told = f" (attempt {self.attempts})" if self.attempts is not None else ""
        return f"{format_duration(self.after):>8} {self.status}: {self.session}/{self.reason}, {self.why}{told}"


@dataclass(frozen=True)
class Played:
    """What came of a timeline.

    Attributes:
        looks: every look, in order.
        events: all events of the session.
        notifications: what was to be told, oldest first: the document's OrchestratorEvents.
    """

    looks: tuple[Look, ...]
    events: tuple[Event, ...] = field(repr=False)
    notifications: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.looks))

    @property
    def statuses(self) -> list[str]:
        """What the session was, each status once for as long as it lasted."""
        return [one.status for one in self._changes(lambda look: look.status)]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """How far it was and why, each once for as long as it lasted."""
        return [(one.session, one.reason) for one in self._changes(lambda look: (look.session, look.reason))]

    @property
    def told(self) -> list[str]:
        """The types of the notifications."""
        return [str(one["type"]) for one in self.notifications]

    def status_at(self, when: str | timedelta) -> str:
        """What it was then: by the last look until then.

        Raises:
            InvalidInput: nobody had looked at it yet.
        """
        after = _after(when)
        seen = [one for one in self.looks if one.after <= after]
        if not seen:
            raise InvalidInput(f"Nobody had looked after {format_duration(after)}.", fix=f"The first look is after {self.looks[0].after}.")
        return seen[-1].status

    def no_flapping(self, within: str | timedelta = "5m") -> None:
        """See that no status was left and come back to within a time.

        Args:
            within: so long is long enough for a status to be true.

        Raises:
            AssertionError: one was; the message has every look.
        """
        span, changes = _after(within), self._changes(lambda look: look.status)
        for before, between, again in zip(changes, changes[1:], changes[2:], strict=False):
            if before.status == again.status and again.after - between.after < span:
                raise AssertionError(
                    f"It was {between.status} for {format_duration(again.after - between.after)} only, and {again.status} again:\n{self}"
                )

    def _changes(self, of: Callable[[Look], object]) -> list[Look]:
        pairs = zip((None, *self.looks), self.looks, strict=False)
        return [look for before, look in pairs if before is None or of(before) != of(look)]


@dataclass(frozen=True)
class _Point:
    after: timedelta
    told: dict[str, Any]


class Timeline:
    """What is to be seen of a session, from some instants on.

    Args:
        session: makes the session, which is looked at from then on; one in a temporary store by default.
        clock: a clock to move; one of its own by default.
        every: how often the session is looked at, besides at each point; None for the points alone.
        dialect: of the statuses, ``document`` or ``head``.

    Raises:
        InvalidInput: there is no such dialect, or the interval is none.
    """

    def __init__(
        self,
        session: Callable[[], LogKit] | None = None,
        clock: FrozenClock | None = None,
        *,
        every: str | timedelta | None = POLL,
        dialect: Dialect = "document",
    ) -> None:
        if dialect not in _DIALECTS:
            raise InvalidInput(f"{dialect!r} is no dialect.", fix=f"Use: {', '.join(_DIALECTS)}.")
        self._session, self._clock, self._dialect = session, clock, dialect
        self._every = None if every is None else _after(every)
        if self._every == timedelta(0):
            raise InvalidInput("Nobody looks at a session all the time.", fix="Give an interval, or None for the points alone.")
        self._points: list[_Point] = []

    def at(
        self,
        when: str | timedelta,
        *,
        runtime: str | None = None,
        activity: str | None = None,
        since: str | timedelta | None = None,
        pr: str | None = None,
        ci: str | None = None,
        review: str | None = None,
        mergeable: bool | None = None,
        draft: bool | None = None,
        report: str | None = None,
    ) -> Self:
        """From an instant on, something else is to be seen; what is not told stays as it was.

        Args:
            when: since the start: ``0``, ``6m`` or a timedelta; not before the last one.
            runtime: one of ``observations.RUNTIME_STATES``.
            activity: one of ``observations.ACTIVITIES``, or ``probe_failed``. An agent that is active, ready or asks does so at that
                instant, and not again until another call says so.
            since: when the agent did something last, if it was not then.
            pr, ci, review, mergeable, draft: of the pull request.
            report: what the agent says of itself, once.

        Returns:
            The timeline.

        Raises:
            InvalidInput: one of them has a value that there is not, or it is before the point before.
        """
        after = _after(when)
        known = {
            "runtime": RUNTIME_STATES,
            "activity": (*ACTIVITIES, "probe_failed"),
            "pr": PR_STATES,
            "ci": CI_STATES,
            "review": REVIEW_STATES,
        }
        given = {"runtime": runtime, "activity": activity, "pr": pr, "ci": ci, "review": review}
        for name, value in given.items():
            if value is not None and value not in known[name]:
                raise InvalidInput(f"{name}={value!r} is never seen.", fix=f"Use: {', '.join(known[name])}.")
        if self._points and after < self._points[-1].after:
            raise InvalidInput(
                f"{format_duration(after)} is before {format_duration(self._points[-1].after)}.", fix="Tell a story from its beginning."
            )
        told = {**given, "since": None if since is None else _after(since), "mergeable": mergeable, "draft": draft, "report": report}
        self._points.append(_Point(after, {name: value for name, value in told.items() if value is not None}))
        return self

    def play(self) -> Played:
        """Let it happen: move the clock from look to look, and gather what comes of it. The clock stays at the last look.

        Raises:
            InvalidInput: there is no point to play.
        """
        if not self._points:
            raise InvalidInput("The timeline is empty.", fix='Say what is to be seen: Timeline().at("0", runtime="alive").')
        with ExitStack() as held:
            clock = self._clock
            if clock is None:
                clock = FrozenClock(separate_files=False)
                held.callback(clock.close)
            if self._session is not None:
                log = self._session()
            else:
                log = held.enter_context(open_log(id="app-1", start=clock.now()))
                log.put("session.created", {"identity": {"project": "app"}}, actor="human", at=clock.now())
                log.put("workspace.ready", {"path": str(log.path.with_name("workspace"))}, actor="system", at=clock.now())
            return self._played(log, clock)

    def _played(self, log: LogKit, clock: FrozenClock) -> Played:
        start, scene, looks = clock.now(), Scene(), list[Look]()
        for number, point in enumerate(self._points):
            clock.advance_to(start + point.after)
            scene = _changed(scene, point.told, start + point.after, start)
            if "report" in point.told:
                _report(log, str(point.told["report"]), clock.now())
            following = self._points[number + 1].after if number + 1 < len(self._points) else None
            looks.append(self._look(log, scene, clock, start))
            while self._every is not None and following is not None and clock.now() - start + self._every < following:
                clock.advance(self._every)
                looks.append(self._look(log, scene, clock, start))
        events = log.events()
        return Played(tuple(looks), tuple(events), tuple(notifications(events, dialect=self._dialect)))

    def _look(self, log: LogKit, scene: Scene, clock: FrozenClock, start: datetime) -> Look:
        decision = look(log, scene, clock.now())
        status = state_in(log.events(), dialect=self._dialect)
        return Look(clock.now() - start, status, decision.session, decision.reason, decision.why, decision.attempts)


def _changed(scene: Scene, told: dict[str, Any], now: datetime, start: datetime) -> Scene:
    kept: dict[_Kept, Any] = {
        "runtime": told.get("runtime", scene.runtime),
        "activity": told.get("activity", scene.activity),
        "pr": scene.pr,
    }
    observed = scene.observed
    if "activity" in told and told["activity"] not in _AT_REST:
        observed = now
    if "since" in told:
        observed = start + told["since"]
    facts = {name: told[name] for name in _PR if name in told}
    if "pr" in told or facts:
        known = scene.pr or ObservedPullRequest("open", number=1)
        kept["pr"] = ObservedPullRequest() if told.get("pr") == "none" else replace(known, state=told.get("pr", known.state), **facts)
    return Scene(kept["runtime"], kept["activity"], observed, kept["pr"], scene.source)


def _report(log: LogKit, name: str, at: datetime) -> None:
    refused = check_report(observations_of(log.events()), name)
    why = {} if refused is None else {"reason": refused}
    log.put("report.submitted", {"report": name, "accepted": refused is None, **why}, actor="agent", at=at)


def _after(when: str | timedelta) -> timedelta:
    if when == "0":
        return timedelta(0)
    found = parse_duration(when) if isinstance(when, str) else when
    if not isinstance(found, timedelta) or found < timedelta(0):
        raise InvalidInput(f"{when!r} is no time since the start.", fix="Write it like 6m, or give a timedelta that is not negative.")
    return found
