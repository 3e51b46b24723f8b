"""The facts of a session over time: ``Timeline().at("0", runtime="alive", activity="active").at("6m", activity="idle")``.

A timeline is played on a frozen clock: a session as agent-orchestrator has them is observed repeatedly by the rules of the engine, which
gives statuses, reasons and notifications (docs/explanation/you-know-agent-orchestrator.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self, get_args

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.durations import duration_of, format_duration
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
from pytest_gittrix.testing.scenarios.status_scripts import Observed, look
from pytest_gittrix.views.orchestrator import notifications, state_in
from pytest_gittrix.views.orchestrator_status import Dialect

POLL: Final = timedelta(seconds=30)
"""How often agent-orchestrator observes a session."""

_AT_REST: Final = frozenset({"idle", "blocked", "exited", "probe_failed"})
_DIALECTS: Final = get_args(Dialect)
_PR: Final = ("ci", "review", "mergeable", "draft")


@dataclass(frozen=True)
class TimelineLook:
    """The result of one observation of the session.

    Attributes:
        after: the time since the start.
        status: the status of the session then.
        session, reason: the progress of the session, and its reason.
        why: the rule that decided, in words.
        attempts: how many observations in a row were contradictory; None if this one was not.
    """

    after: timedelta
    status: str
    session: str
    reason: str
    why: str
    attempts: int | None = None

    def __str__(self) -> str:
        attempt = f" (attempt {self.attempts})" if self.attempts is not None else ""
        return f"{format_duration(self.after):>8} {self.status}: {self.session}/{self.reason}, {self.why}{attempt}"


@dataclass(frozen=True)
class Played:
    """The results of a timeline.

    Attributes:
        looks: every observation, in order.
        events: all events of the session.
        notifications: the notifications (agent-orchestrator's OrchestratorEvents), oldest first.
    """

    looks: tuple[TimelineLook, ...]
    events: tuple[Event, ...] = field(repr=False)
    notifications: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.looks))

    @property
    def statuses(self) -> list[str]:
        """The statuses of the session; one that lasted over several observations is there once."""
        return [one.status for one in self._changes(lambda look: look.status)]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """The progress and reasons of the session; a pair that lasted over several observations is there once."""
        return [(one.session, one.reason) for one in self._changes(lambda look: (look.session, look.reason))]

    @property
    def told(self) -> list[str]:
        """The types of the notifications."""
        return [str(one["type"]) for one in self.notifications]

    def status_at(self, when: str | timedelta) -> str:
        """The status at a time since the start, by the last observation until then.

        Raises:
            InvalidInput: the session had not been observed yet.
        """
        after = _after(when)
        until = [one for one in self.looks if one.after <= after]
        if not until:
            raise InvalidInput(
                f"The session was not observed before {format_duration(after)}.",
                fix=f"The first observation is after {self.looks[0].after}.",
            )
        return until[-1].status

    def no_flapping(self, within: str | timedelta = "5m") -> None:
        """Check that no status was left and came back within a time.

        Args:
            within: the time after which a status may come back.

        Raises:
            AssertionError: a status came back too early; the message has every observation.
        """
        span, changes = _after(within), self._changes(lambda look: look.status)
        for before, between, after in zip(changes, changes[1:], changes[2:], strict=False):
            if before.status == after.status and after.after - between.after < span:
                raise AssertionError(
                    f"It was {between.status} for {format_duration(after.after - between.after)} only, and {after.status} again:\n{self}"
                )

    def _changes(self, of: Callable[[TimelineLook], object]) -> list[TimelineLook]:
        pairs = zip((None, *self.looks), self.looks, strict=False)
        return [look for before, look in pairs if before is None or of(before) != of(look)]


@dataclass(frozen=True)
class _Point:
    after: timedelta
    facts: dict[str, Any]


class Timeline:
    """The facts that can be observed of a session, from certain instants on.

    Args:
        session: makes the session to observe; by default one in a temporary store.
        clock: a clock to advance; by default the timeline has its own.
        every: how often the session is observed, in addition to each point; None for the points alone.
        dialect: the dialect of the statuses, ``document`` or ``head``.

    Raises:
        InvalidInput: the dialect is unknown, or the interval is zero.
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
            raise InvalidInput("The interval between observations is zero.", fix="Give an interval, or None for the points alone.")
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
        """Change facts from an instant on; all other facts stay as they were.

        Args:
            when: the time since the start: ``0``, ``6m`` or a timedelta; not before that of the last point.
            runtime: one of ``observations.RUNTIME_STATES``.
            activity: one of ``observations.ACTIVITIES``, or ``probe_failed``. An agent that is active, ready or waits for input does
                something at this instant, and then nothing more until a later point says so.
            since: the time since the start at which the agent did something last, if that is not ``when``.
            pr, ci, review, mergeable, draft: facts of the pull request.
            report: a report that the agent submits at this instant.

        Returns:
            The timeline.

        Raises:
            InvalidInput: a value is unknown, or ``when`` is before the last point.
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
                f"{format_duration(after)} is before {format_duration(self._points[-1].after)}.", fix="Add the points in order of time."
            )
        facts = {**given, "since": None if since is None else _after(since), "mergeable": mergeable, "draft": draft, "report": report}
        self._points.append(_Point(after, {name: value for name, value in facts.items() if value is not None}))
        return self

    def play(self) -> Played:
        """Play the timeline: advance the clock from observation to observation; it stays at the last one.

        Raises:
            InvalidInput: the timeline has no point.
        """
        if not self._points:
            raise InvalidInput("The timeline is empty.", fix='Say what is to be seen: Timeline().at("0", runtime="alive").')
        with ExitStack() as closing:
            clock = self._clock
            if clock is None:
                clock = FrozenClock(separate_files=False)
                closing.callback(clock.close)
            if self._session is not None:
                log = self._session()
            else:
                log = closing.enter_context(open_log(id="app-1", start=clock.now()))
                log.put("session.created", {"identity": {"project": "app"}}, actor="human", at=clock.now())
                log.put("workspace.ready", {"path": str(log.path.with_name("workspace"))}, actor="system", at=clock.now())
            return self._played(log, clock)

    def _played(self, log: LogKit, clock: FrozenClock) -> Played:
        start, scene, looks = clock.now(), Observed(), list[TimelineLook]()
        for number, point in enumerate(self._points):
            clock.advance_to(start + point.after)
            scene = _changed(scene, point.facts, start + point.after, start)
            if "report" in point.facts:
                _report(log, str(point.facts["report"]), clock.now())
            following = self._points[number + 1].after if number + 1 < len(self._points) else None
            looks.append(self._look(log, scene, clock, start))
            while self._every is not None and following is not None and clock.now() - start + self._every < following:
                clock.advance(self._every)
                looks.append(self._look(log, scene, clock, start))
        events = log.events()
        return Played(tuple(looks), tuple(events), tuple(notifications(events, dialect=self._dialect)))

    def _look(self, log: LogKit, scene: Observed, clock: FrozenClock, start: datetime) -> TimelineLook:
        decision = look(log, scene, clock.now())
        status = state_in(log.events(), dialect=self._dialect)
        return TimelineLook(clock.now() - start, status, decision.session, decision.reason, decision.why, decision.attempts)


def _changed(scene: Observed, facts: dict[str, Any], now: datetime, start: datetime) -> Observed:
    observed = scene.observed
    if "activity" in facts and facts["activity"] not in _AT_REST:
        observed = now
    if "since" in facts:
        observed = start + facts["since"]
    pr, details = scene.pr, {name: facts[name] for name in _PR if name in facts}
    if "pr" in facts or details:
        known = scene.pr or ObservedPullRequest("open", number=1)
        pr = ObservedPullRequest() if facts.get("pr") == "none" else replace(known, state=facts.get("pr", known.state), **details)
    return Observed(facts.get("runtime", scene.runtime), facts.get("activity", scene.activity), observed, pr, scene.source)


def _report(log: LogKit, name: str, at: datetime) -> None:
    refused = check_report(observations_of(log.events()), name)
    why = {} if refused is None else {"reason": refused}
    log.put("report.submitted", {"report": name, "accepted": refused is None, **why}, actor="agent", at=at)


def _after(when: str | timedelta) -> timedelta:
    if when == "0":
        return timedelta(0)
    found = duration_of(when)
    if found < timedelta(0):
        raise InvalidInput(f"{when!r} is no time since the start.", fix="Write it like 6m, or give a timedelta that is not negative.")
    return found
