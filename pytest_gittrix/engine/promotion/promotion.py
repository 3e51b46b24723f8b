"""Promoting a session: selected changes become one commit on durable, or nothing changes (docs/explanation/promotion.md).

``Promotion.run`` is the protocol, step by step; its order is what makes it safe: choose, check, land, record, settle. The session then ends
as its policy says, or goes on from the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Drift
from pytest_gittrix.engine.eviction.evictor import Evictor
from pytest_gittrix.engine.operations.agent_commits import only_in_agents_git
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.operations.review import Review, catch_up, narrowed, side, snapshot_of
from pytest_gittrix.engine.operations.shown_files import ShownFiles
from pytest_gittrix.engine.operations.validation import visible
from pytest_gittrix.engine.promotion.keeping import Keeping
from pytest_gittrix.engine.promotion.landing import Landing, record_checkouts, record_done
from pytest_gittrix.engine.promotion.plan import PromotionPlan, digest_of, where_to
from pytest_gittrix.engine.promotion.pull_requests import PullRequests
from pytest_gittrix.engine.promotion.request import SHOWN, PromoteRequest, secret_lines
from pytest_gittrix.engine.promotion.selection import SelectedChanges, select
from pytest_gittrix.engine.promotion.strategy import StrategyPolicy, check_strategy
from pytest_gittrix.errors import BaselineConflict, GittrixError, PromoteFailed, first_few
from pytest_gittrix.git.patch import FileChange, patch_text
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.os_level.files import sync_directory, write_file
from pytest_gittrix.record.eventlog.events import live_event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.visibility import sized
from pytest_gittrix.workspaces.workspace import Workspace

__all__ = ["PromoteResult", "Promotion", "PromotionParts", "Review", "digest_of"]

_ATTEMPTS: Final = 200
_PATCH: Final = "promote.patch"
_LATE: Final = "what they write from now on is archived when a sweep removes it"
_STAYS: Final = "not promoted, and still in the workspace: {}"


@dataclass(frozen=True, slots=True)
class PromoteResult:
    """How a promotion ended.

    Attributes:
        sha: the commit that was made; empty for a patch.
        branch: the branch it is on, or the patch is for.
        pr_url: address of the pull request, if one was opened.
        patch: the patch itself, with strategy ``patch``.
        warnings: work that was not promoted and is in no file, or ignored; more files than expected; and what failed after the branch had
            moved, such as a checkout that was left behind or a pull request that was not opened.
        secrets: promoted files that look like credentials, or gained lines that do, by path, as ``Review.secrets``.
    """

    sha: str
    branch: str
    pr_url: str | None = None
    patch: str | None = None
    warnings: tuple[str, ...] = ()
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_warnings(self, warnings: Iterable[str]) -> PromoteResult:
        """The same result with more warnings."""
        return replace(self, warnings=(*self.warnings, *warnings))


@dataclass(frozen=True)
class PromotionParts:
    """What the promotions of one engine share.

    Attributes:
        resources: durable repositories.
        evictor: ends promoted sessions.
        strategies: how ``auto`` is decided.
        pull_requests: how to open one.
        settle: called with the contents of a lock that is in the way; mends the promotion that holds it if its process is gone, and
            returns whether it did.
    """

    resources: Resources
    evictor: Evictor
    strategies: StrategyPolicy
    pull_requests: PullRequests
    settle: Callable[[str], bool]


@dataclass(frozen=True)
class Promotion:
    """One promotion of one session."""

    parts: PromotionParts
    recorder: Recorder
    workspace: Workspace
    request: PromoteRequest

    def run(self) -> PromoteResult:
        """Promote; ``UserSession.promote`` says what is raised.

        Promotions into one repository take turns. With a pull request, the forge is asked once the commit is in and the turn is over.
        """
        with self.recorder.working("promote", "human") as state:
            catch_up(self.workspace, state)
            plan = self._choose(state)
            secrets, warnings = self._check(plan)
            points.reached("promote:selected")
            with ExitStack() as turn:
                turn.enter_context(self.parts.resources.repository_lease(plan.durable, state.id, self._tell_waiting))
                if plan.strategy == "patch":
                    result = self._write_patch(plan)
                else:
                    landing = self._land(plan)
                    if plan.proposal is not None:
                        turn.close()
                    result = self._record(landing)
            result = replace(result, secrets=secrets, warnings=(*warnings, *result.warnings))
            return self._go_on(plan, result) if plan.keeping is not None else self._end_session(plan, result)

    def _choose(self, state: SessionState) -> PromotionPlan:
        """Make the plan; durable is only read."""
        request, workspace = self.request, self.workspace
        reviewed, files = request.selection(state)
        files = None if files is None else [*files]
        named = {*(files or ()), *(request.hunks or ())}
        snapshot = reviewed if reviewed is not None else snapshot_of(state, workspace, self.parts.evictor.limits, named)
        name = partial(ShownFiles.of(workspace, state).touched_name, snapshot)
        files = None if files is None else [*map(name, files)]
        hunks = None if request.hunks is None else {name(path): numbers for path, numbers in request.hunks.items()}
        if reviewed is None:
            state = self.recorder.note_touched(state, snapshot.touched)
            snapshot = narrowed(state, snapshot, {*(files or ()), *(hunks or ())})
        durable = self.parts.resources.durable_of(state)
        branch, of_session = where_to(state, durable)
        strategy = self.parts.strategies.choose(durable, branch, requested=request.strategy, of_session=check_strategy(of_session))
        keeps = request.keeps(state, branch, strategy)
        proposal = request.proposal(state, branch, strategy)
        if proposal is not None:
            self.parts.pull_requests.require(durable)
            if proposal.base != branch:
                durable.head(proposal.base)
        return PromotionPlan(
            state,
            snapshot,
            select(snapshot, files, hunks, partial(only_in_agents_git, self.recorder, state, workspace, snapshot)),
            not named,
            durable,
            branch,
            strategy,
            request.commit_message(state),
            request.on_overlap,
            proposal,
            Keeping(state, workspace) if keeps else None,
        )

    def _check(self, plan: PromotionPlan) -> tuple[dict[str, tuple[str, ...]], list[str]]:
        """Refuse what the request does not allow; returns the allowed secrets, and warnings."""
        snapshot, selection = plan.snapshot, plan.selection
        self.request.require_filtered(plan.state, snapshot, selection)
        secrets = self.request.secrets(snapshot, selection, leaves=plan.leaves)
        if secrets:
            self._announce("promote.secrets", found=[*map(visible, secret_lines(secrets))])
        warnings = self.request.hazards(snapshot, selection)
        own = plan.state.durable_branch or plan.durable.branch
        if plan.branch != own:
            warnings.append(f"the session's branch {own!r} is gone from durable, so this promotion goes by {plan.branch!r} again")
        warnings += _taken_back(self.workspace, selection)
        if plan.takes_all:
            warnings += [*self.request.many(selection.changes), *_withheld(snapshot)]
        return secrets, warnings

    def _land(self, plan: PromotionPlan) -> Landing:
        """Land the commit. A branch that another program moves meanwhile is no failure: everything from the head on is judged again."""
        for branch in islice(plan.target_branches(), _ATTEMPTS):
            head = plan.head()
            drift = plan.drift(head)
            fitted = self._fit(plan, drift, head)
            points.reached("promote:drift-checked")
            built = plan.build(fitted, head, self.recorder.clock.now_ns() // 10**9)
            keep = plan.keeping.data(plan.selection, fitted, drift) if plan.keeping is not None else None
            landing = Landing(self.recorder, plan, branch, head, fitted, built, keep, self.parts.settle)
            if landing.run():
                return landing
        raise PromoteFailed(
            f"{plan.branch!r}, or the branch that the promotion was to make, moved {_ATTEMPTS} times while it was made.",
            stage="apply",
            why="Each time drift had to be judged again.",
            fix="Promote again when fewer programs write to it.",
        )

    def _fit(self, plan: PromotionPlan, drift: Drift, head: str) -> SelectedChanges:
        """As ``PromotionPlan.fit``; a conflict is in the log."""
        try:
            return plan.fit(drift, head)
        except BaselineConflict as conflict:
            paths = conflict.conflicting_files
            self.recorder.append("promote.conflict", {"paths_digest": digest_of(paths), "count": len(paths), "head": head}, actor="human")
            raise

    def _tell_waiting(self, holder: str) -> None:
        """Announce that another promotion into the repository takes long."""
        self._announce("promote.waiting", holder=holder)

    def _announce(self, type_: str, **data: object) -> None:
        recorder = self.recorder
        recorder.emit(live_event(type_, data, ts=recorder.clock.now_ns(), stream=recorder.id, actor="human"))

    def _record(self, landing: Landing) -> PromoteResult:
        """Open the pull request and store the end. Raises nothing: a failure is a warning, since the commit is in.

        A landing that is not tidied up yet is recorded by the recovery that finds its intent.
        """
        plan, built, branch, warnings = landing.plan, landing.built, landing.branch, landing.warnings
        if landing.result is None:
            return PromoteResult(built.id, branch, warnings=tuple(warnings))
        points.reached("promote:swapped")
        pull_request = self.parts.pull_requests.open(plan.durable, branch, plan.proposal) if plan.proposal is not None else None
        if pull_request is not None and pull_request.problem is not None:
            warnings.append(pull_request.problem)
        try:
            if landing.keep is not None:
                self.parts.resources.prepare_baseline(plan.state, plan.durable, built.id)
                points.reached("promote:baseline-made")
            record_done(self.recorder, landing.facts, pull_request, landing.keep, actor="human")
        except (GittrixError, OSError) as error:
            reason = error.fact if isinstance(error, GittrixError) else f"{error.strerror or error}"
            warnings.append(f"the promotion is in, but could not be recorded yet: {reason}")
        points.reached("promote:recorded")
        warnings.extend(landing.result.notes)
        for path, reason in (landing.result.stale or {}).items():
            warnings.append(f"the checkout {path} was left behind: {reason.partition(chr(10))[0]}")
        try:
            record_checkouts(self.recorder, built.id, landing.result)
        except GittrixError as error:
            warnings.append(error.fact)
        return PromoteResult(built.id, branch, pull_request.url if pull_request is not None else None, warnings=tuple(warnings))

    def _write_patch(self, plan: PromotionPlan) -> PromoteResult:
        """A patch for the head as it is now, stored in the record; no branch moves."""
        head = plan.durable.head(plan.branch)
        fitted = self._fit(plan, plan.drift(head), head)
        changes = []
        for path, entry in fitted.changes.items():
            old, seed = plan.durable.entry(head, path), plan.snapshot.seed
            blobs = dict(fitted.blobs)
            if old is not None and old.kind != "submodule" and old.id not in blobs:
                blobs[old.id] = plan.durable.blob(old.id)
            changes.append(FileChange(path, side(seed.blob, old, blobs), side(seed.blob, entry, blobs)))
        text = patch_text(changes)
        sync = self.recorder.store.durability == "full"
        write_file(self.recorder.directory / _PATCH, text.encode(errors="surrogateescape"), sync=sync)
        if sync:
            sync_directory(self.recorder.directory)
        done = {"commit": "", "ref": branch_ref(plan.branch), "branch": plan.branch, "strategy": "patch", "patch": _PATCH}
        self.recorder.append("promote.done", done, actor="human", commit_point=True)
        return PromoteResult("", plan.branch, patch=text)

    def _go_on(self, plan: PromotionPlan, result: PromoteResult) -> PromoteResult:
        """Give the workspace the promoted commit as its baseline; one that cannot have it yet is a warning of the result."""
        try:
            catch_up(self.workspace, self.recorder.read())
        except (GittrixError, OSError) as problem:
            result = result.with_warnings([f"the workspace is not brought forward yet: {problem}"])
        return self._with_what_stays(plan, result)

    def _end_session(self, plan: PromotionPlan, result: PromoteResult) -> PromoteResult:
        """Evict the promoted session, unless its policy keeps the workspace; a workspace that stays is a warning of the result."""
        state = self.recorder.read()
        if not (state.ended and state.policy.until_promote):
            return self._with_what_stays(plan, result)
        try:
            removed = self.parts.evictor.evict(
                self.recorder, state, "promoted", workspace=self.workspace, promoted=plan.selection.changes, seen=plan.snapshot.changes
            )
        except (GittrixError, OSError) as problem:
            return result.with_warnings([f"the workspace is still there: {problem}"])
        if removed.users:
            stays = f"the workspace stays until those who work in it have ended: {removed.users}; {_LATE}"
            return self._with_what_stays(plan, result.with_warnings([stays]))
        archived = (f"not promoted, but archived: {line}" for line in removed.only_archived)
        lost = (f"neither promoted nor archived, since it is ignored and too large: {line}" for line in removed.left_out)
        return result.with_warnings((*archived, *lost))

    def _with_what_stays(self, plan: PromotionPlan, result: PromoteResult) -> PromoteResult:
        """The result, with a warning of each piece of work that the agent's own git holds and that is in no file."""
        work = only_in_agents_git(self.recorder, plan.state, self.workspace, plan.snapshot)
        return result.with_warnings(map(_STAYS.format, work))


def _withheld(snapshot: Snapshot) -> list[str]:
    """A warning of the files that are kept out of a promotion of everything, for each of the reasons."""
    tops: dict[str, list[str]] = {}
    for top, sizes in snapshot.withheld_tops.items():
        tops.setdefault(snapshot.why_withheld(top), []).append(sized(top, len(sizes), sum(sizes)))
    return [f"not promoted, since {why}: {first_few(found, SHOWN)}" for why, found in tops.items()]


def _taken_back(workspace: Workspace, selection: SelectedChanges) -> list[str]:
    """A warning of the selected paths that are as the session began, and not as its baseline has them since an earlier promotion.

    ``git stash`` and ``git checkout`` leave them so, since the agent's repository knows no later baseline.
    """
    if workspace.began.commit == workspace.seed.commit:
        return []
    since = workspace.began.differences(workspace.seed)
    paths = [path for path, entry in selection.changes.items() if path in since and entry == since[path][0]]
    if not paths:
        return []
    is_as = "1 path is" if len(paths) == 1 else f"{len(paths)} paths are"
    listed = first_few(map(repr, paths), SHOWN)
    return [f"{is_as} as the session began, so the promotion takes back what durable got since: {listed}"]
