"""The sessions of members, and the statuses, of our engine by session ids; ``protocol_members`` describes the verbs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.members.members import Members
from pytest_gittrix.record.state.observations import Activity, Observations, ObservedPullRequest, Phase, Runtime
from pytest_gittrix.record.state.retention import RetentionPolicy, Selector
from pytest_gittrix.testing.scenarios.timeline import Timeline
from pytest_gittrix.testing.systems.gittrix_engine import ShellEngine
from pytest_gittrix.views.orchestrator_status import is_restorable, is_terminal, status, to_poll
from pytest_gittrix.workspaces.multi_repo import RepositorySpec

GRACE: Final = 0.5
"""Real seconds that an agent has to end in."""
_PATIENCE: Final = 60.0
_OF_PR: Final = ("ci", "review", "mergeable", "draft")


class WholeEngine(ShellEngine):
    """Our engine with every capability."""

    def __init__(self, gittrix: GitTrix) -> None:
        super().__init__(gittrix)
        self._policy = RetentionPolicy()
        self._members: Members | None = None

    @property
    def members(self) -> Members:
        """``Members``, made when it is needed, and recovered from kills first."""
        if self._members is None:
            self._members = self._make_members()
            self._members.recover()
        return self._members

    def _make_members(self) -> Members:
        # The suite's agents report to files outside of their workspaces.
        return Members(self.gittrix, retention=self._policy, grace=GRACE, confine="off")

    # Members -----------------------------------------------------------------------------------------------------------------------

    def open_member(
        self,
        member: str,
        repositories: Mapping[str, str],
        *,
        kind: str = "interactive",
        command: Sequence[str] | None = None,
        work_item: str | None = None,
    ) -> str:
        """``Members.start``."""
        specs = [RepositorySpec(name, url, team=name == "team") for name, url in repositories.items()]
        return self.members.start(member, kind, task="Improve the project", command=command, repositories=specs, work_item=work_item).id

    def life(self, id: str) -> Mapping[str, Any]:
        """``Members.get``."""
        life = self.members.get(id)
        result = life.result
        recovered = [one.branch for one in result.recovery_branches] if result is not None else []
        status = result.exit_status if result is not None else None
        return {"state": life.state, "ended": life.ended, "exit_status": status, "recovery_branches": recovered}

    def lives(self) -> Mapping[str, str]:
        """``Members.list``, the states."""
        return {life.id: life.state for life in self.members.list()}

    def repositories(self, id: str) -> Mapping[str, Path]:
        """The directories recorded in its log."""
        opened, workspace = self.gittrix.history(id)[0].data, Path(self.members.get(id).workspace)
        return {one["name"]: workspace / one["place"] for one in opened["repositories"]}

    def stop(self, id: str, force: bool = False) -> None:
        """``Members.stop``."""
        self.members.stop(id, force=force)

    def conclude(self, id: str) -> None:
        """``Members.finish``, once its agent is gone."""
        process = self.members.process(id)
        if process is not None and self.members.get(id).state == "active":
            process.wait(_PATIENCE)
        self.members.finish(id)

    def finalize(self, id: str) -> None:
        """``Members.finalize``."""
        self.members.finalize(id)

    def keep_for(self, *, autonomous: timedelta, interactive: timedelta, unsuccessful: timedelta, budget: int | None = None) -> None:
        """A ``RetentionPolicy``."""
        self._policy = RetentionPolicy(_ns(autonomous), _ns(interactive), _ns(unsuccessful), budget)
        self._members = None

    def scan(self) -> Iterable[str]:
        """``Members.scan``."""
        return self.members.scan().removed

    def cleanup(
        self,
        *,
        id: str | None = None,
        all: bool = False,
        member: str | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> Iterable[str]:
        """``Members.cleanup``."""
        selector = Selector(id, all, member, None if older_than is None else _ns(older_than))
        return self.members.cleanup(selector, dry_run=dry_run).removed

    def acquire(self, id: str, item: str) -> str:
        """``Members.lock``."""
        return self.members.lock(id, item).holder

    # Statuses ----------------------------------------------------------------------------------------------------------------------

    def status_of(self, facts: Mapping[str, Any]) -> str:
        """``orchestrator_status.status``."""
        return status(observations_of(facts))

    def is_terminal(self, status: str, activity: str | None) -> bool:
        """``orchestrator_status.is_terminal``."""
        return is_terminal(status, activity)

    def is_restorable(self, status: str, activity: str | None) -> bool:
        """``orchestrator_status.is_restorable``."""
        return is_restorable(status, activity)

    def is_polled(self, facts: Mapping[str, Any], seen: str | None) -> bool:
        """``orchestrator_status.to_poll``."""
        return to_poll(observations_of(facts), seen)

    def look_through(self, looks: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """A ``Timeline`` that is observed at its points alone."""
        timeline = Timeline(every=None)
        for look in looks:
            facts = {("pr" if name == "pr_state" else name): value for name, value in look.items() if name != "after"}
            timeline.at(timedelta(seconds=look["after"]), **facts)
        return [look.status for look in timeline.play().looks]

    def close(self) -> None:
        """``Members.close``, then ``GitTrix.close``."""
        if self._members is not None:
            self._members.close()
        super().close()


def observations_of(facts: Mapping[str, Any]) -> Observations:
    """Facts as our rules take them.

    Raises:
        InvalidInput: ``pr_state`` is no state of a pull request.
    """
    state = facts.get("pr_state", "none")
    if state not in ("none", "open", "merged", "closed"):
        raise InvalidInput(f"{state!r} is no state of a pull request.", fix="Use: none, open, merged, closed.")
    details = {name: facts[name] for name in _OF_PR if name in facts}
    pr = ObservedPullRequest(state, None if state == "none" else 1, **details)
    activity = facts.get("activity") or "unknown"
    observed = Activity() if activity == "unknown" else Activity(activity, "native")
    return Observations(Phase(facts["session"], facts["reason"]), pr, Runtime(facts.get("runtime", "unknown")), observed)


def _ns(span: timedelta) -> int:
    return span // timedelta(microseconds=1) * 1000
