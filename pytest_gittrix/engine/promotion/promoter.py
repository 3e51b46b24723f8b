"""Promoting a session: a person's choice of its changes becomes one commit, and the session ends as its policy says.

``promotion`` is how the commit is made and lands, ``operations.eviction`` how the workspace goes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_gittrix.engine.operations.eviction import Evictor
from pytest_gittrix.engine.operations.operation import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.operations.review import Review, snapshot_of
from pytest_gittrix.engine.promotion.promotion import PromoteResult, Promotion
from pytest_gittrix.engine.promotion.pull_requests import PrRequest, PullRequests
from pytest_gittrix.engine.promotion.selection import check_on_overlap
from pytest_gittrix.engine.promotion.strategy import Ask, Preferences, Strategy, check_strategy, decide
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.git.tree import Changes
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace


@dataclass(frozen=True)
class PromoteRequest:
    """What is to be promoted, how, and what is asked of its pull request; ``UserSession.promote`` says what each means."""

    what: Review | Iterable[str] | None
    files: Iterable[str] | None
    hunks: Mapping[str, Collection[int]] | None
    strategy: str
    message: str | None
    on_overlap: str
    pull_request: PrRequest

    def selection(self, session_id: str) -> tuple[Snapshot | None, Iterable[str] | None]:
        """The snapshot that was reviewed, if one was, and the paths. Raises InvalidInput if they contradict each other."""
        if not isinstance(self.what, Review):
            if self.what is not None and self.files is not None:
                raise InvalidInput("Paths were given twice, as the first argument and as files=.", fix="Give them once.")
            return None, self.files if self.what is None else self.what
        if self.what.session_id != session_id:
            raise InvalidInput(f"The review is of session {self.what.session_id}, not {session_id}.", fix="Review this session first.")
        return self.what.snapshot, self.what.choice(self.files, self.hunks)


@dataclass(frozen=True)
class Promoter:
    """Promoting sessions of one engine.

    Attributes:
        resources: durable repositories.
        evictor: ends what was promoted.
        strategy: what ``auto`` means before the contributor heuristic is asked.
        preferences: what people answered before.
        ask: how to ask a person.
        pull_requests: how to open one.
        settle: asked with the contents of a lock that is in the way; mends the promotion that it is of if its process is gone, and says
            whether it did.
    """

    resources: Resources
    evictor: Evictor
    strategy: Strategy
    preferences: Preferences
    ask: Ask | None
    pull_requests: PullRequests
    settle: Callable[[str], bool]

    def promote(self, recorder: Recorder, workspace: Workspace, request: PromoteRequest) -> PromoteResult:
        """Promote a session; ``UserSession.promote`` says how and what it raises.

        Args:
            recorder: of the session.
            workspace: of it.
            request: what, and how.
        """
        request.pull_request.check()
        overlap_rule, asked = check_on_overlap(request.on_overlap), check_strategy(request.strategy)
        with recorder.working("promote", "human") as state:
            reviewed, files = request.selection(recorder.id)
            snapshot = reviewed if reviewed is not None else snapshot_of(state, workspace, self.evictor.limits)
            durable = self.resources.durable_of(state)
            promotion = Promotion(
                recorder,
                state,
                durable,
                snapshot,
                lambda: self.resources.repository_lease(durable),
                self.settle,
                str(recorder.directory),
                self.pull_requests,
            )
            landing = decide(
                durable,
                state.durable_branch or durable.branch,
                asked=asked,
                session=check_strategy(state.strategy),
                default=self.strategy,
                preferences=self.preferences,
                ask=self.ask,
            )
            result, selection = promotion.run(
                files, request.hunks, strategy=landing, message=request.message, on_overlap=overlap_rule, request=request.pull_request
            )
            return self._ended(recorder, recorder.read(), workspace, result, selection.changes)

    def _ended(
        self, recorder: Recorder, state: SessionState, workspace: Workspace, result: PromoteResult, promoted: Changes
    ) -> PromoteResult:
        if not (state.ended and state.policy.until_promote):
            return result
        try:
            replace(self.evictor, open_workspace=lambda _state: workspace).evict(recorder, state, "promoted", promoted=promoted)
        except (GittrixError, OSError) as problem:
            return replace(result, warnings=(*result.warnings, f"the workspace is still there: {problem}"))
        return result
