"""Polling orchestrated sessions: their processes, their agents' activities, their pull requests, and the status that follows.

Each poll appends new observations, decides (``views.orchestrator_status.decide``), and publishes the result. A poll does not count as use
of a session; a running agent does.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.forge.protocol import Forge, PullRequest
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.orchestrator.agents import Agents
from pytest_gittrix.orchestrator.board import Board, ObservedSession
from pytest_gittrix.record.state.observations import Activity, Runtime, pull_request_at
from pytest_gittrix.views.orchestrator_status import STRONG_NS, PollResult, decide, to_poll

MERGED_GRACE_NS: Final = 300_000_000_000
"""How long, in nanoseconds, the agent of a session may go on after its pull request was merged."""

NewEvent = tuple[str, Mapping[str, Any]]


class Poller:
    """Polls a board's sessions; it remembers their last status, so that an end that another process recorded is published once.

    Args:
        board: the sessions.
        agents: their agents.
        repair: undoes a spawn that was killed.
        end_merged: ends the session of an id whose pull request is merged, once its agent rests, or 5 minutes later; None leaves it.
    """

    def __init__(
        self, board: Board, agents: Agents, repair: Callable[[ObservedSession], object], end_merged: Callable[[str], object] | None = None
    ) -> None:
        self.board = board
        self.agents = agents
        self.repair = repair
        self.end_merged = end_merged
        self._last: dict[str, tuple[str, int]] = {}
        self._busy = threading.Lock()

    def poll(self) -> list[ObservedSession]:
        """Poll each session that is due, and return those, as they are then. An error of one stops no other."""
        polled = []
        for project in self.board.projects.values():
            every = self.board.every(project)
            self._repair(every)
            for at, observed in enumerate(every):
                try:
                    if observed.spawning:
                        self.repair(observed)
                    elif self._wanted(observed):
                        every[at] = self.poll_one(observed.id, every)
                        polled.append(every[at])
                    elif self.end_merged is not None and self._rests_merged(observed):
                        self.end_merged(observed.id)
                    elif self._last.get(observed.id) != self._now(observed):
                        self._publish(observed)
                except Exception as problem:  # noqa: BLE001  (one session, or the user's forge, must not stop the others)
                    self.board.complain(observed.id, problem)
        return polled

    def poll_unless_busy(self) -> None:
        """Poll, for a timer: do nothing if a poll of this orchestrator runs."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self.poll()
        finally:
            self._busy.release()

    def poll_one(self, id: str, every: Iterable[ObservedSession] | None = None) -> ObservedSession:
        """Poll one session, unless another process is changing it.

        Args:
            id: the session.
            every: the sessions of its project, if they are known: a pull request belongs to one of them.

        Raises:
            SessionNotFound, LogDamaged, EvictionRace: it cannot be polled.
        """
        observed = self.board.find(id)
        pr = self._pr(observed, every)  # before the session is locked: a forge can be slow
        with self.board.locked_if_free(observed.project, id) as free:
            if not free:
                return observed
            observed = self.board.find(id)
            if observed.spawning:
                return observed  # its spawn was killed, and a recovery undoes it
            activity = None if self._gone(observed) else self.agents.activity(observed)
            news = [*self._news_of_agent(observed, activity), *_news_of_pr(observed, pr)]
            if news:
                self.board.append(id, *news)
            points.reached("poll:observed")
            self._decide(id, activity)
            points.reached("poll:decided")
            observed = self.board.publish(id)
        self._last[id] = self._now(observed)
        return observed

    def end_if_lost(self, observed: ObservedSession) -> ObservedSession:
        """End a session whose agent has ended, without a second poll, as the original's list does; return the session as it is then."""
        try:
            return self._end_if_lost(observed)
        except GittrixError as problem:
            self.board.complain(observed.id, problem)
            return observed

    def _end_if_lost(self, observed: ObservedSession) -> ObservedSession:
        if self.board.over(observed) or observed.spawning or observed.state.ended:
            return observed
        runtime = self.agents.observe(observed)
        if not runtime.gone:
            return observed
        with self.board.locked_if_free(observed.project, observed.id) as free:
            if not free or self.board.find(observed.id).events != observed.events:
                return observed
            ended = {"session": "terminated", "reason": "runtime_lost"}
            found = self.agents.runtime_data(observed, runtime)
            self.board.append(observed.id, ("runtime.observed", found), _EXITED, ("status.decided", ended))
            return self.board.publish(observed.id)

    # One poll ------------------------------------------------------------------------------------------------------------------

    def _wanted(self, observed: ObservedSession) -> bool:
        last, _ = self._last.get(observed.id, (None, 0))
        left = observed.observations.runtime.state == "alive" and self._gone(observed)
        return left or to_poll(observed.observations, last, dialect=self.board.dialect)

    def _rests_merged(self, observed: ObservedSession) -> bool:
        if observed.observations.pr.state != "merged" or self._gone(observed):
            return False
        since = max(event.ts for event in observed.events if event.type == "pr.observed")
        activity = self.agents.activity(observed)
        busy = activity is not None and activity.state in ("active", "waiting_input", "blocked")
        return not busy or self.board.engine.clock.now_ns() - since > MERGED_GRACE_NS

    def _now(self, observed: ObservedSession) -> tuple[str, int]:
        return self.board.status(observed), len(observed.events)

    def _publish(self, observed: ObservedSession) -> None:
        with self.board.locked_if_free(observed.project, observed.id) as free:
            if free:
                self._last[observed.id] = self._now(self.board.publish(observed.id))

    @staticmethod
    def _gone(observed: ObservedSession) -> bool:
        return observed.state.ended or observed.observations.session.over

    def _news_of_agent(self, observed: ObservedSession, activity: Activity | None) -> list[NewEvent]:
        """The new observations of the agent. An agent whose session is over is stopped."""
        if self._gone(observed):
            if observed.observations.runtime.state == "alive":
                self.agents.stop(observed)
                if observed.state.ended:
                    self.agents.clear(observed)
                return [("runtime.observed", self.agents.runtime_data(observed))]
            return []
        news: list[NewEvent] = []
        runtime = self.agents.observe(observed)
        if _differs(runtime, observed.observations.runtime):
            news.append(("runtime.observed", self.agents.runtime_data(observed, runtime)))
        if activity is not None and _is_news(activity, observed.observations.activity):
            fields = {"state": activity.state, "source": activity.source, "observed_ns": activity.observed_ns, "detail": activity.detail}
            news.append(("activity.observed", {name: value for name, value in fields.items() if value is not None}))
        return news

    def _decide(self, id: str, activity: Activity | None) -> None:
        observed = self.board.find(id)
        # A promoted session has neither workspace nor agent any more; only its pull request can still change.
        observation = PollResult(Runtime(), Activity()) if observed.state.ended else PollResult(activity=activity)
        decision = decide(observed.observations, observation, self.board.engine.clock.now_ns())
        if not decision.changed:
            return
        left = decision.session == "terminated" or (decision.session == "done" and observed.observations.runtime.gone)
        ended = left and observed.observations.activity.state != "exited"
        self.board.append(id, *([_EXITED] if ended else []), ("status.decided", decision.to_data()))

    # Pull requests -------------------------------------------------------------------------------------------------------------

    def pr_state(self, observed: ObservedSession) -> str:
        """The present state of a session's pull request at the forge; ``none`` if it has none. Raises as the forge does."""
        forge, pr = observed.project.forge, observed.observations.pr
        if forge is None or pr.number is None or pr.state in ("none", "merged"):
            return pr.state
        return forge.pr(pr.number).state

    def _pr(self, observed: ObservedSession, every: Iterable[ObservedSession] | None) -> dict[str, Any] | None:
        """The forge's data of a session's pull request, or of one that was opened for its branch; None if there is none."""
        forge = observed.project.forge
        if forge is None or observed.observations.session.over or observed.observations.pr.state == "merged":
            return None
        try:
            if observed.observations.pr.state != "none":
                number = observed.observations.pr.number
                return None if number is None else facts(forge, forge.pr(number))
            return self._detected(observed, forge, every)
        except GittrixError as problem:
            self.board.complain(observed.id, problem)
            return None

    def _detected(self, observed: ObservedSession, forge: Forge, every: Iterable[ObservedSession] | None) -> dict[str, Any] | None:
        branch = observed.state.identity.get("topic_branch")
        if branch is None or observed.observations.session.kind == "orchestrator":
            return None
        found = forge.find_prs(head=branch)
        if not found:
            return None
        others = self.board.every(observed.project) if every is None else every
        taken = {other.observations.pr.number for other in others if other.id != observed.id and other.observations.pr.state == "open"}
        free = [pr for pr in found if pr.number not in taken]
        return facts(forge, forge.pr(free[0].number)) if free else None

    def _repair(self, every: Iterable[ObservedSession]) -> None:
        """Leave a pull request that several sessions have to the one that got it last."""
        holders: dict[int, list[ObservedSession]] = defaultdict(list)
        for observed in every:
            if (
                observed.observations.pr.state == "open"
                and observed.observations.pr.number is not None
                and not observed.observations.session.over
            ):
                holders[observed.observations.pr.number].append(observed)
        for several in holders.values():
            for observed in sorted(several, key=_got_ns)[:-1]:
                try:
                    self.give_up(observed)
                except GittrixError as problem:
                    self.board.complain(observed.id, problem)

    def give_up(self, observed: ObservedSession) -> None:
        """Take a session's pull request away from it."""
        with self.board.locked(observed.project, observed.id):
            self.board.append(observed.id, ("pr.observed", {"state": "none"}))
            self.board.publish(observed.id)

    def claim(self, id: str, number: int) -> None:
        """Assign a pull request to a session, as ``Orchestrator.claim_pr`` documents."""
        observed = self.board.find(id)
        pr = self._claimable(observed, number)
        with self.board.locked(observed.project, id):
            observed = self.board.find(id)
            _require_worker(observed)
            events: list[NewEvent] = [("pr.observed", facts(pr[0], pr[1]))]
            if not observed.state.ended and observed.state.identity.get("topic_branch") != pr[1].head:
                events.append(("session.identified", {"identity": {"topic_branch": pr[1].head}}))
            self.board.append(id, *events)
            self.board.publish(id)
        for other in self.board.every(observed.project):
            if other.id != id and other.observations.pr.state == "open" and other.observations.pr.number == number:
                self.give_up(other)
        self._decide_again(id)

    def _decide_again(self, id: str) -> None:
        with self.board.locked(self.board.find(id).project, id):
            self._decide(id, None)
            self.board.publish(id)

    def _claimable(self, observed: ObservedSession, number: int) -> tuple[Forge, PullRequest]:
        _require_worker(observed)
        forge = observed.project.forge
        if forge is None:
            raise InvalidInput(f"The project {observed.project.id!r} has no forge.", why="Its pull requests are there.", fix="Give it one.")
        if observed.observations.pr.state == "open" and observed.observations.pr.number not in (None, number):
            raise InvalidInput(
                f"Session {observed.id} has the pull request {observed.observations.pr.number}.",
                why="A session follows one at a time.",
                fix=f"Close that one, or have another session claim {number}.",
            )
        pr = forge.pr(number)
        if pr.state != "open":
            raise InvalidInput(f"The pull request {number} is {pr.state}.", why="Only an open one can be worked on.", fix="Reopen it.")
        return forge, pr


_EXITED: Final[NewEvent] = ("activity.observed", {"state": "exited", "source": "runtime"})


def facts(forge: Forge, pr: PullRequest) -> dict[str, Any]:
    """The data of ``pr.observed`` for a pull request; with CI and reviews while it is open. Raises as the forge does."""
    address = pull_request_at(pr.url)
    fields: dict[str, Any] = {"state": pr.state, "number": pr.number, "url": pr.url, "title": pr.title, "draft": pr.draft}
    fields |= {"branch": pr.head, "base_branch": pr.base, "owner": address.owner, "repo": address.repo, "mergeable": pr.mergeable}
    if pr.state == "open":
        fields |= {"ci": forge.ci(pr.head_sha).state, "review": forge.reviews(pr.number).state}
    return {name: value for name, value in fields.items() if value is not None}


def _news_of_pr(observed: ObservedSession, fields: dict[str, Any] | None) -> list[NewEvent]:
    if fields is None or all(getattr(observed.observations.pr, name) == value for name, value in fields.items()):
        return []
    return [("pr.observed", fields)]


def _require_worker(observed: ObservedSession) -> None:
    reason = (
        "is an orchestrator"
        if observed.observations.session.kind == "orchestrator"
        else "is over"
        if observed.observations.session.over
        else None
    )
    reason = reason or ("has no workspace" if observed.workspace is None else None)
    if reason is not None:
        raise InvalidInput(
            f"Session {observed.id} {reason}.", why="A worker takes a pull request over, in its workspace.", fix="Spawn one."
        )


def _differs(now: Runtime, known: Runtime) -> bool:
    return replace(now, seen_ns=None) != replace(known, seen_ns=None)


def _is_news(now: Activity, known: Activity) -> bool:
    """Whether an activity has to be recorded: its state differs from the known one's, or its time differs by ``STRONG_NS`` or more."""
    if now.failed or now.state == "unknown":
        return False
    if now.state != known.state or (now.observed_ns is None) != (known.observed_ns is None):
        return True
    return now.observed_ns is not None and known.observed_ns is not None and abs(now.observed_ns - known.observed_ns) >= STRONG_NS


def _got_ns(observed: ObservedSession) -> tuple[int, str]:
    """When a session got its pull request, in nanoseconds since 1970 UTC, and its id."""
    number, since = None, 0
    for event in observed.events:
        if event.type == "pr.observed":
            latest = event.data.get("number", number) if event.data["state"] != "none" else None
            number, since = latest, event.ts if latest != number else since
    return since, observed.id
