"""Looking at orchestrated sessions: what runs them, what their agents do, what became of their pull requests, and what that comes to.

Each look appends what is news, decides (``views.orchestrator_status.decide``), and makes known what follows (session-systems 5.2). A look
is no use of a session; that its agent runs is.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.forge.protocol import Forge, PullRequest
from pytest_gittrix.engine.operations.expiry import is_past
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.orchestrator.agents import Agents, runtime_data
from pytest_gittrix.orchestrator.board import Board, Seen
from pytest_gittrix.record.state.observations import Activity, Runtime, pull_request_at
from pytest_gittrix.views.orchestrator import POLL
from pytest_gittrix.views.orchestrator_status import STRONG_NS, PollResult, decide, to_poll

IN_USE_NS: Final = 300_000_000_000
"""So often a session whose agent runs is recorded as used."""

MERGED_GRACE_NS: Final = 300_000_000_000
"""So long the agent of a merged session may go on with what it does."""

Told = tuple[str, Mapping[str, Any]]


class Poller:
    """Who looks at a board's sessions; it remembers what it saw last, so that an end that others noticed is made known once.

    Args:
        board: the sessions.
        agents: their agents.
        settle: undoes a spawn that was killed.
        end_merged: ends a session of an id whose pull request is merged, once its agent rests, or 5 minutes after; None leaves it.
    """

    def __init__(
        self, board: Board, agents: Agents, settle: Callable[[Seen], object], end_merged: Callable[[str], object] | None = None
    ) -> None:
        self.board = board
        self.agents = agents
        self.settle = settle
        self.end_merged = end_merged
        self._last: dict[str, tuple[str, int]] = {}
        self._busy = threading.Lock()

    def poll(self) -> list[Seen]:
        """Look at each session of each project that is to be looked at; gives those, as they are then. One that fails stops no other."""
        looked = []
        for project in self.board.projects.values():
            every = self.board.every(project)
            self._repair(every)
            for at, seen in enumerate(every):
                try:
                    if seen.spawning:
                        self.settle(seen)
                    elif self._wanted(seen):
                        every[at] = self.look(seen.id, every)
                        looked.append(every[at])
                    elif self.end_merged is not None and self._rests_merged(seen):
                        self.end_merged(seen.id)
                    elif self._last.get(seen.id) != self._now(seen):
                        self._publish(seen)
                except Exception as problem:  # noqa: BLE001  (one session, or a forge's stranger, must not stop the others)
                    self.board.complain(seen.id, problem)
        return looked

    def poll_unless_busy(self) -> None:
        """The same, for a timer: nothing if a poll of this orchestrator runs."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self.poll()
        finally:
            self._busy.release()

    def look(self, id: str, every: Iterable[Seen] | None = None) -> Seen:
        """Look at one session, unless somebody changes it right now.

        Args:
            id: the session.
            every: the sessions of its project, if they are known: a pull request is of one of them.

        Raises:
            SessionNotFound, LogDamaged, EvictionRace: it cannot be looked at.
        """
        seen = self.board.find(id)
        pr = self._pr(seen, every)  # asked before the session is held: a forge may take its time
        with self.board.held_if_free(seen.project, id) as free:
            if not free:
                return seen
            seen = self.board.find(id)
            if seen.spawning:
                return seen  # its spawn was killed, and is undone by a recovery
            activity = None if self._gone(seen) else self.agents.activity(seen)
            news = [*self._news_of_agent(seen, activity), *_news_of_pr(seen, pr)]
            if news:
                self.board.append(id, *news)
            points.reached("poll:observed")
            self._decide(id, activity)
            points.reached("poll:decided")
            seen = self.board.publish(id)
        self._last[id] = self._now(seen)
        return seen

    def end_if_lost(self, seen: Seen) -> Seen:
        """End a session whose agent is gone without a second look, as the original's list does; the session as it is then."""
        try:
            return self._end_if_lost(seen)
        except GittrixError as problem:
            self.board.complain(seen.id, problem)
            return seen

    def _end_if_lost(self, seen: Seen) -> Seen:
        if self.board.over(seen) or seen.spawning or seen.state.ended:
            return seen
        runtime = self.agents.look(seen)
        if not runtime.gone:
            return seen
        with self.board.held_if_free(seen.project, seen.id) as free:
            if not free or self.board.find(seen.id).events != seen.events:
                return seen
            ended = {"session": "terminated", "reason": "runtime_lost"}
            self.board.append(seen.id, ("runtime.observed", runtime_data(runtime)), _EXITED, ("status.decided", ended))
            return self.board.publish(seen.id)

    # One look ------------------------------------------------------------------------------------------------------------------

    def _wanted(self, seen: Seen) -> bool:
        last, _ = self._last.get(seen.id, (None, 0))
        left = seen.observations.runtime.state == "alive" and self._gone(seen)
        return left or to_poll(seen.observations, last, dialect=self.board.dialect)

    def _rests_merged(self, seen: Seen) -> bool:
        if seen.observations.pr.state != "merged" or self._gone(seen):
            return False
        since = max(event.ts for event in seen.events if event.type == "pr.observed")
        activity = self.agents.activity(seen)
        busy = activity is not None and activity.state in ("active", "waiting_input", "blocked")
        return not busy or self.board.engine.clock.now_ns() - since > MERGED_GRACE_NS

    def _now(self, seen: Seen) -> tuple[str, int]:
        return self.board.status(seen), len(seen.events)

    def _publish(self, seen: Seen) -> None:
        with self.board.held_if_free(seen.project, seen.id) as free:
            if free:
                self._last[seen.id] = self._now(self.board.publish(seen.id))

    @staticmethod
    def _gone(seen: Seen) -> bool:
        return seen.state.ended or seen.observations.session.over

    def _news_of_agent(self, seen: Seen, activity: Activity | None) -> list[Told]:
        """What is news of the agent. It does not outlive its session."""
        if self._gone(seen):
            if seen.observations.runtime.state == "alive":
                self.agents.stop(seen)
                if seen.state.ended:
                    self.agents.clear(seen)
                return [("runtime.observed", runtime_data(self.agents.look(seen)))]
            return []
        news: list[Told] = []
        runtime = self.agents.look(seen)
        if _differs(runtime, seen.observations.runtime):
            news.append(("runtime.observed", runtime_data(runtime)))
        if activity is not None and _is_news(activity, seen.observations.activity):
            told = {"state": activity.state, "source": activity.source, "observed_ns": activity.observed_ns, "detail": activity.detail}
            news.append(("activity.observed", {name: value for name, value in told.items() if value is not None}))
        if runtime.state == "alive" and self._unused(seen):
            news.append(("session.accessed", {"op": POLL}))
        return news

    def _unused(self, seen: Seen) -> bool:
        clock = self.board.engine.clock
        return clock.now_ns() - seen.state.last_access_ns > IN_USE_NS and not is_past(seen.state, clock)

    def _decide(self, id: str, activity: Activity | None) -> None:
        seen = self.board.find(id)
        # Of what was promoted the workspace is gone, and the agent with it; what is left to be seen is its pull request.
        observation = PollResult(Runtime(), Activity()) if seen.state.ended else PollResult(activity=activity)
        decision = decide(seen.observations, observation, self.board.engine.clock.now_ns())
        if not decision.changed:
            return
        ended = decision.session == "terminated" and seen.observations.activity.state != "exited"
        self.board.append(id, *([_EXITED] if ended else []), ("status.decided", decision.to_data()))

    # Pull requests -------------------------------------------------------------------------------------------------------------

    def pr_state(self, seen: Seen) -> str:
        """The state of a session's pull request as the forge tells now; ``none`` if it has none. Raises what the forge raises."""
        forge, pr = seen.project.forge, seen.observations.pr
        if forge is None or pr.number is None or pr.state in ("none", "merged"):
            return pr.state
        return forge.pr(pr.number).state

    def _pr(self, seen: Seen, every: Iterable[Seen] | None) -> dict[str, Any] | None:
        """What the forge tells of a session's pull request, or of one that was opened for its branch; None if it tells nothing."""
        forge = seen.project.forge
        if forge is None or seen.observations.session.over or seen.observations.pr.state == "merged":
            return None
        try:
            if seen.observations.pr.state != "none":
                number = seen.observations.pr.number
                return None if number is None else facts(forge, forge.pr(number))
            return self._detected(seen, forge, every)
        except GittrixError as problem:
            self.board.complain(seen.id, problem)
            return None

    def _detected(self, seen: Seen, forge: Forge, every: Iterable[Seen] | None) -> dict[str, Any] | None:
        branch = seen.state.identity.get("branch")
        if branch is None or seen.observations.session.kind == "orchestrator":
            return None
        found = forge.find_prs(head=branch)
        if not found:
            return None
        others = self.board.every(seen.project) if every is None else every
        held = {other.observations.pr.number for other in others if other.id != seen.id and other.observations.pr.state == "open"}
        free = [pr for pr in found if pr.number not in held]
        return facts(forge, forge.pr(free[0].number)) if free else None

    def _repair(self, every: Iterable[Seen]) -> None:
        """A pull request that two sessions hold is of the one that got it last."""
        holders: dict[int, list[Seen]] = defaultdict(list)
        for seen in every:
            if seen.observations.pr.state == "open" and seen.observations.pr.number is not None and not seen.observations.session.over:
                holders[seen.observations.pr.number].append(seen)
        for several in holders.values():
            for seen in sorted(several, key=_got_ns)[:-1]:
                try:
                    self.give_up(seen)
                except GittrixError as problem:
                    self.board.complain(seen.id, problem)

    def give_up(self, seen: Seen) -> None:
        """Have a session lose its pull request to another one."""
        with self.board.held(seen.project, seen.id):
            self.board.append(seen.id, ("pr.observed", {"state": "none"}))
            self.board.publish(seen.id)

    def claim(self, id: str, number: int) -> None:
        """Take a pull request over; ``Orchestrator.claim_pr`` says how and what it raises."""
        seen = self.board.find(id)
        pr = self._claimable(seen, number)
        with self.board.held(seen.project, id):
            seen = self.board.find(id)
            _require_worker(seen)
            told: list[Told] = [("pr.observed", facts(pr[0], pr[1]))]
            if not seen.state.ended and seen.state.identity.get("branch") != pr[1].head:
                told.append(("session.identified", {"identity": {"branch": pr[1].head}}))
            self.board.append(id, *told)
            self.board.publish(id)
        for other in self.board.every(seen.project):
            if other.id != id and other.observations.pr.state == "open" and other.observations.pr.number == number:
                self.give_up(other)
        self._decide_again(id)

    def _decide_again(self, id: str) -> None:
        with self.board.held(self.board.find(id).project, id):
            self._decide(id, None)
            self.board.publish(id)

    def _claimable(self, seen: Seen, number: int) -> tuple[Forge, PullRequest]:
        _require_worker(seen)
        forge = seen.project.forge
        if forge is None:
            raise InvalidInput(f"The project {seen.project.id!r} has no forge.", why="Its pull requests are there.", fix="Give it one.")
        if seen.observations.pr.state == "open" and seen.observations.pr.number not in (None, number):
            raise InvalidInput(
                f"Session {seen.id} has the pull request {seen.observations.pr.number}.",
                why="A session follows one at a time.",
                fix=f"Close that one, or have another session claim {number}.",
            )
        pr = forge.pr(number)
        if pr.state != "open":
            raise InvalidInput(f"The pull request {number} is {pr.state}.", why="Only an open one can be worked on.", fix="Reopen it.")
        return forge, pr


_EXITED: Final[Told] = ("activity.observed", {"state": "exited", "source": "runtime"})


def facts(forge: Forge, pr: PullRequest) -> dict[str, Any]:
    """The data of ``pr.observed`` by what a forge tells; of CI and reviews while it is open. Raises what the forge raises."""
    place = pull_request_at(pr.url)
    told: dict[str, Any] = {"state": pr.state, "number": pr.number, "url": pr.url, "title": pr.title, "draft": pr.draft}
    told |= {"branch": pr.head, "base_branch": pr.base, "owner": place.owner, "repo": place.repo, "mergeable": pr.mergeable}
    if pr.state == "open":
        told |= {"ci": forge.ci(pr.head_sha).state, "review": forge.reviews(pr.number).state}
    return {name: value for name, value in told.items() if value is not None}


def _news_of_pr(seen: Seen, told: dict[str, Any] | None) -> list[Told]:
    if told is None or all(getattr(seen.observations.pr, name) == value for name, value in told.items()):
        return []
    return [("pr.observed", told)]


def _require_worker(seen: Seen) -> None:
    reason = (
        "is an orchestrator" if seen.observations.session.kind == "orchestrator" else "is over" if seen.observations.session.over else None
    )
    reason = reason or ("has no workspace" if seen.workspace is None else None)
    if reason is not None:
        raise InvalidInput(f"Session {seen.id} {reason}.", why="A worker takes a pull request over, in its workspace.", fix="Spawn one.")


def _differs(now: Runtime, known: Runtime) -> bool:
    return replace(now, seen_ns=None) != replace(known, seen_ns=None)


def _is_news(now: Activity, known: Activity) -> bool:
    """Whether an activity is to be recorded: another state, or a time that makes the one known look older than it is."""
    if now.failed or now.state == "unknown":
        return False
    if now.state != known.state or (now.observed_ns is None) != (known.observed_ns is None):
        return True
    return now.observed_ns is not None and known.observed_ns is not None and abs(now.observed_ns - known.observed_ns) >= STRONG_NS


def _got_ns(seen: Seen) -> tuple[int, str]:
    """Since when a session has the pull request that it has."""
    number, since = None, 0
    for event in seen.events:
        if event.type == "pr.observed":
            told = event.data.get("number", number) if event.data["state"] != "none" else None
            number, since = told, event.ts if told != number else since
    return since, seen.id
