"""Promoting a session: selected changes become one commit on durable, and the session ends as its policy says, or goes on from there.

``promotion`` makes the commit and lands it; ``operations.eviction`` takes the workspace away afterwards, unless the session is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.engine.eviction.evictor import Evictor
from pytest_gittrix.engine.operations.agent_commits import work_beside
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import LOCAL, Resources
from pytest_gittrix.engine.operations.review import (
    Review,
    catch_up,
    filtered_of,
    hazards_of,
    narrowed,
    snapshot_of,
    suspects,
    touched_name,
)
from pytest_gittrix.engine.operations.validation import visible
from pytest_gittrix.engine.promotion.conflicts import check_on_overlap
from pytest_gittrix.engine.promotion.keeping import Keeping
from pytest_gittrix.engine.promotion.promotion import PromoteResult, Promotion
from pytest_gittrix.engine.promotion.pull_requests import PrRequest, PullRequests
from pytest_gittrix.engine.promotion.selection import Selection, select
from pytest_gittrix.engine.promotion.strategy import StrategyPolicy, check_strategy
from pytest_gittrix.errors import Advice, FilteredContent, GittrixError, HazardousPath, InvalidInput, SecretsFound
from pytest_gittrix.git.tree import Changes
from pytest_gittrix.record.eventlog.events import live_event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.snapshot import Snapshot, sized
from pytest_gittrix.workspaces.workspace import Workspace

ON_HAZARD: Final = ("warn", "refuse", "allow")
_SHOWN: Final = 50
_LATE: Final = "what they write from now on is archived when a sweep removes it"
_STAYS: Final = "not promoted, and still in the workspace: {}"


@dataclass(frozen=True)
class PromoteRequest:
    """The arguments of one ``UserSession.promote``, which says what each means."""

    what: Review | Iterable[str] | None
    files: Iterable[str] | None
    hunks: Mapping[str, Collection[int]] | None
    strategy: str
    message: str | None
    on_overlap: str
    pull_request: PrRequest
    refuse_secrets: bool | None
    allow_secrets: frozenset[str]
    keep: bool | None = None
    allow_filtered: bool = False
    on_hazard: str = "warn"

    def selection(self, state: SessionState) -> tuple[Snapshot | None, Iterable[str] | None]:
        """The snapshot that was reviewed, if one was, and the paths.

        Raises:
            InvalidInput: they contradict each other, or the review is of another session or of its baseline before the last promotion.
        """
        if not isinstance(self.what, Review):
            if self.what is not None and self.files is not None:
                raise InvalidInput("Paths were given twice, as the first argument and as files=.", fix="Give them once.")
            return None, self.files if self.what is None else self.what
        if self.what.session_id != state.id:
            raise InvalidInput(f"The review is of session {self.what.session_id}, not {state.id}.", fix="Review this session first.")
        if self.what.baseline != state.baseline:
            raise InvalidInput(
                f"The review is of the changes since {self.what.baseline[:12]}, and the session's baseline is {state.baseline[:12]} now.",
                why="A promotion moved the baseline, so what was reviewed is no longer what would be promoted.",
                fix="Review the session again.",
            )
        return self.what.snapshot, self.what.choice(self.files, self.hunks)

    def secrets(self, snapshot: Snapshot, selection: Selection, *, leaves: bool) -> dict[str, tuple[str, ...]]:
        """What of a selection looks like credentials, by path, without what is allowed.

        Args:
            snapshot: the workspace.
            selection: what is promoted of it.
            leaves: whether the commit leaves this machine; then secrets are refused unless the caller says otherwise.

        Raises:
            SecretsFound: they are to be refused.
        """
        found = suspects(snapshot.seed, selection.changes, selection.blobs)
        held = {one.path: one.found for one in found if not one.is_among(self.allow_secrets)}
        if not held or not (leaves if self.refuse_secrets is None else self.refuse_secrets):
            return held
        raise SecretsFound(
            f"{_counted(held, 'selected file looks', 'selected files look')} like credentials.",
            secrets=held,
            stage="staging",
            why=_listed(secret_lines(held)),
            fix="Remove them from the workspace, or select the other files. Nothing was promoted.",
            opt_out=Advice(
                "Let a file through by its path, with allow_secrets=[...], or all with refuse_secrets=False.",
                "Let a file through by its path, with --allow-secret PATH, or all with --no-refuse-secrets.",
            ),
        )

    def require_filtered(self, state: SessionState, snapshot: Snapshot, selection: Selection) -> None:
        """Refuse files that a filter would store otherwise. Raises FilteredContent."""
        found = {} if self.allow_filtered else filtered_of(state, snapshot, selection.changes, selection.blobs)
        if not found:
            return
        raise FilteredContent(
            f"{_counted(found, 'selected file goes', 'selected files go')} through a filter, and may not be as it would store them.",
            filters=found,
            stage="staging",
            why=_listed(f"{path}: filter={name}" for path, name in found.items()) + "\nThe engine runs no filter of yours.",
            fix="Put in the workspace what the filter would store, such as a pointer of Git LFS, or select the other files.",
            opt_out=Advice(
                "Promote the bytes as they are with allow_filtered=True.", "Promote the bytes as they are with --allow-filtered."
            ),
        )

    def hazards(self, snapshot: Snapshot, selection: Selection) -> list[str]:
        """A warning of each hazard among the paths of a selection. Raises HazardousPath if they are to be refused."""
        found = {} if self.on_hazard == "allow" else hazards_of(snapshot, selection.changes)
        lines = [f"{path!r} is a hazard: {reason}" for path, reason in found.items()]
        if not found or self.on_hazard == "warn":
            return [*lines[:_SHOWN], *_more(lines)]
        raise HazardousPath(
            f"{_counted(found, 'new path is a hazard', 'new paths are hazards')} to other machines or programs.",
            hazards=found,
            stage="staging",
            why=_listed(lines),
            fix="Rename them in the workspace, or leave them out of the selection. Nothing was promoted.",
            opt_out=Advice("Promote them with a warning of each, with on_hazard='warn'.", "Promote them with --on-hazard warn."),
        )

    def keeps(self, state: SessionState, branch: str, strategy: str) -> bool:
        """Whether the session goes on after the promotion.

        Raises:
            InvalidInput: a patch moves no baseline; or the session's branch has a pull request.
        """
        if self.keep and strategy == "patch":
            raise InvalidInput(
                "A promotion by the strategy 'patch' cannot keep the session.",
                why="No commit lands from which the session could go on.",
                fix=Advice("Promote with another strategy, or without keep=True.", "Promote with another strategy, or without --keep."),
            )
        before = state.kept if state.kept is not None and state.kept.branch == branch else None
        if strategy == "pr" and self.pull_request.base is None and before is not None and before.pr_url is not None:
            raise InvalidInput(
                f"The session's branch {branch!r} has a pull request: {before.pr_url}",
                why="Another one would be merged into that branch.",
                fix=Advice(
                    "Promote with strategy='commit', which adds to that pull request.", "Promote with --strategy commit, which adds to it."
                ),
                opt_out=Advice(
                    "Name the branch that another one goes to, with base=.", "Name the branch that another one goes to, with --base."
                ),
            )
        if self.keep is not None:
            return self.keep
        return state.keep_after_promote and (strategy == "pr" or (strategy == "commit" and before is not None))

    def commit_message(self, state: SessionState) -> str:
        """The caller's message, or one from the session's task."""
        return self.message or (f"gittrix: {visible(state.task)}" if state.task else f"gittrix: promote session {state.id}")


@dataclass(frozen=True)
class Promoter:
    """Promoting sessions of one engine.

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

    def promote(self, recorder: Recorder, workspace: Workspace, request: PromoteRequest) -> PromoteResult:
        """Promote a session; ``UserSession.promote`` says what is raised.

        Args:
            recorder: of the session.
            workspace: of the session.
            request: what to promote, and how.
        """
        request.pull_request.check()
        _check_on_hazard(request.on_hazard)
        on_overlap, requested = check_on_overlap(request.on_overlap), check_strategy(request.strategy)
        with recorder.working("promote", "human") as state:
            catch_up(workspace, state)
            reviewed, files = request.selection(state)
            files = None if files is None else [*files]
            chosen = {*(files or ()), *(request.hunks or ())}
            snapshot = reviewed if reviewed is not None else snapshot_of(state, workspace, self.evictor.limits, chosen)
            files, hunks = _located(snapshot, workspace, state, files, request.hunks)
            if reviewed is None:
                state = recorder.note_touched(state, snapshot.touched)
                snapshot = narrowed(state, snapshot, {*(files or ()), *(hunks or ())})
            beside = partial(work_beside, recorder, state, workspace, snapshot)
            durable = self.resources.durable_of(state)
            branch, of_session, gone = _where_to(state, durable)
            message = request.commit_message(state)
            strategy = self.strategies.choose(durable, branch, requested=requested, of_session=check_strategy(of_session))
            keeps = request.keeps(state, branch, strategy)
            proposal = self.pull_requests.propose(
                request.pull_request, strategy, durable=durable, branch=branch, session=state.id, task=state.task, message=message
            )
            promotion = Promotion(
                recorder,
                state,
                snapshot,
                durable,
                branch,
                strategy,
                message,
                on_overlap,
                proposal,
                self.resources,
                self.pull_requests,
                self.settle,
                Keeping(state, workspace) if keeps else None,
            )
            selection = select(snapshot, files, hunks, beside)
            request.require_filtered(state, snapshot, selection)
            found = request.secrets(snapshot, selection, leaves=_leaves(state, durable, branch, strategy))
            if found:
                data = {"found": [*map(visible, secret_lines(found))]}
                recorder.emit(live_event("promote.secrets", data, ts=recorder.clock.now_ns(), stream=recorder.id, actor="human"))
            promotion.warnings.extend(request.hazards(snapshot, selection))
            promotion.warnings.extend(gone)
            promotion.warnings.extend(_taken_back(workspace, selection))
            if not chosen:
                promotion.warnings.extend(_withheld(snapshot))
            result = replace(promotion.run(selection), secrets=found)
            if keeps:
                return _with_warnings(self._go_on(recorder, workspace, result), map(_STAYS.format, beside()))
            return self._end_session(recorder, workspace, result, selection.changes, snapshot.changes, beside)

    def _go_on(self, recorder: Recorder, workspace: Workspace, result: PromoteResult) -> PromoteResult:
        """Give the workspace the promoted commit as its baseline; one that cannot have it yet is a warning of the result."""
        try:
            catch_up(workspace, recorder.read())
        except (GittrixError, OSError) as problem:
            return _with_warnings(result, [f"the workspace is not brought forward yet: {problem}"])
        return result

    def _end_session(
        self,
        recorder: Recorder,
        workspace: Workspace,
        result: PromoteResult,
        promoted: Changes,
        seen: Changes,
        beside: Callable[[], Iterable[str]],
    ) -> PromoteResult:
        """Evict the promoted session, unless its policy keeps the workspace; a workspace that stays is a warning of the result."""
        state = recorder.read()
        if not (state.ended and state.policy.until_promote):
            return _with_warnings(result, map(_STAYS.format, beside()))
        try:
            removed = self.evictor.evict(recorder, state, "promoted", workspace=workspace, promoted=promoted, seen=seen)
        except (GittrixError, OSError) as problem:
            return _with_warnings(result, [f"the workspace is still there: {problem}"])
        if removed.users:
            stays = f"the workspace stays until those who work in it have ended: {removed.users}; {_LATE}"
            return _with_warnings(result, [stays, *map(_STAYS.format, beside())])
        archived = (f"not promoted, but archived: {line}" for line in removed.beside)
        lost = (f"neither promoted nor archived, since it is ignored and too large: {line}" for line in removed.left_out)
        return _with_warnings(result, (*archived, *lost))


def _leaves(state: SessionState, durable: Durable, branch: str, strategy: str) -> bool:
    """Whether a promotion's commit leaves this machine: it is pushed, or others see it in a pull request."""
    of_request = state.kept is not None and state.kept.branch == branch and state.kept.pr_url is not None
    return strategy != "patch" and (strategy == "pr" or not durable.uri.startswith(LOCAL) or (of_request and strategy == "commit"))


def secret_lines(found: Mapping[str, Collection[str]]) -> list[str]:
    """A line for people about each file that looks like credentials; what of its name is a secret is not repeated."""
    from pytest_gittrix.workspaces.secrets import masked  # as in operations.review: most promotions have none

    return [f"{masked(path)}: {'; '.join(of_path)}" for path, of_path in found.items()]


def _located(
    snapshot: Snapshot, workspace: Workspace, state: SessionState, files: list[str] | None, hunks: Mapping[str, Collection[int]] | None
) -> tuple[list[str] | None, Mapping[str, Collection[int]] | None]:
    """A selection by the names that its paths have among the touched ones."""
    deleted = state.api_deleted if workspace.kind == "lazy" else frozenset()

    def name(path: str) -> str:
        return touched_name(snapshot, workspace, path, deleted)

    return None if files is None else [*map(name, files)], None if hunks is None else {name(path): chosen for path, chosen in hunks.items()}


def _where_to(state: SessionState, durable: Durable) -> tuple[str, str, list[str]]:
    """The branch that a session is promoted to, the session's strategy there, and a warning if it is not the session's own branch.

    The branch that an earlier promotion made may be gone: forges delete it with its merge. The session goes back to the branch that it came
    from, and by the way that it took from there. Its baseline is its last commit, so that what was merged of it is no drift.
    """
    branch, kept = state.durable_branch or durable.branch, state.kept
    if kept is None or kept.branch != branch or kept.origin in (None, branch):
        return branch, state.strategy, []
    try:
        durable.head(branch)
        return branch, state.strategy, []
    except InvalidInput:
        assert kept.origin is not None
        why = f"the session's branch {branch!r} is gone from durable, so this promotion goes by {kept.origin!r} again"
        return kept.origin, kept.strategy, [why]


def _check_on_hazard(value: str) -> None:
    if value not in ON_HAZARD:
        raise InvalidInput(f"on_hazard={value!r} is not a way to treat hazards.", fix=f"Use one of: {', '.join(ON_HAZARD)}.")


def _counted(found: Collection[object], one: str, many: str) -> str:
    return f"{len(found)} {one if len(found) == 1 else many}"


def _listed(lines: Iterable[str]) -> str:
    """The first of some lines, and how many there are more."""
    every = [*lines]
    return "\n".join([*every[:_SHOWN], *_more(every)])


def _more(lines: Collection[str]) -> list[str]:
    return [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []


def _with_warnings(result: PromoteResult, warnings: Iterable[str]) -> PromoteResult:
    return replace(result, warnings=(*result.warnings, *warnings))


def _withheld(snapshot: Snapshot) -> list[str]:
    """A warning of what a promotion of everything leaves out because only the workspace's own rules ignore it."""
    tops = [sized(top, len(sizes), sum(sizes)) for top, sizes in snapshot.withheld_tops.items()]
    if not tops:
        return []
    more = f" and {len(tops) - _SHOWN} more" if len(tops) > _SHOWN else ""
    return [f"not promoted, since only the workspace's own ignore rules ignore it: {', '.join(tops[:_SHOWN])}{more}"]


def _taken_back(workspace: Workspace, selection: Selection) -> list[str]:
    """A warning of the selected paths that are as the session began, and not as its baseline has them since an earlier promotion.

    ``git stash`` and ``git checkout`` leave them so, since the agent's repository knows no later baseline.
    """
    if workspace.began.commit == workspace.seed.commit:
        return []
    since = workspace.began.differences(workspace.seed)
    paths = [path for path, entry in selection.changes.items() if path in since and entry == since[path][0]]
    if not paths:
        return []
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    is_as = "1 path is" if len(paths) == 1 else f"{len(paths)} paths are"
    listed = ", ".join(map(repr, paths[:_SHOWN]))
    return [f"{is_as} as the session began, so the promotion takes back what durable got since: {listed}{more}"]
