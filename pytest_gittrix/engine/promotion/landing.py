"""One try to land a commit on a branch of durable, and what the session's log has of it (docs/explanation/promotion.md).

The intent is in the log before the branch moves, so that a recovery after a kill knows what was meant. Objects are written, and the branch
moves, only under the lock of git's own reference. Once the branch has moved, nothing may raise any more.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import LandingResult
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.promotion.plan import PromotionPlan, digest_of
from pytest_gittrix.engine.promotion.pull_requests import PrOutcome
from pytest_gittrix.engine.promotion.selection import SelectedChanges
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, PromoteFailed, WorktreeDirty
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.refs import RefMoved, branch_ref
from pytest_gittrix.record.eventlog.events import Actor
from pytest_gittrix.record.state.fold import SessionState

_MAKE_SPACE: Final = "Free disk space, then promote again."
_GET_PERMISSION: Final = "Check that you may write to the repository, then promote again."
_CLOSE_FILES: Final = "Close files that this process holds open, or raise its limit of them (ulimit -n), then promote again."
_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: _MAKE_SPACE,
    errno.EDQUOT: _MAKE_SPACE,
    errno.EACCES: _GET_PERMISSION,
    errno.EPERM: _GET_PERMISSION,
    errno.EROFS: _GET_PERMISSION,
    errno.EMFILE: _CLOSE_FILES,
    errno.ENFILE: _CLOSE_FILES,
}


@dataclass
class Landing:
    """One try to land a commit.

    Attributes:
        recorder: the session's record.
        plan: what is promoted.
        branch: the branch to land on.
        head: the commit that the session's branch is at.
        fitted: the selection as it goes onto the head.
        built: the commit.
        keep: what ``promote.kept`` has in addition to ``promote.done``; None where the promotion ends the session.
        settle: called with the contents of a lock in the way; mends the promotion that holds it if its process is dead, and returns
            whether it did.
        result: what happened to the checkouts of the branch; None before ``run``, and if the landing failed half-way and what it left
            could not be removed yet, so that the intent stays open for a recovery.
        warnings: what failed after the branch had moved.
    """

    recorder: Recorder
    plan: PromotionPlan
    branch: str
    head: str
    fitted: SelectedChanges
    built: BuiltCommit
    keep: Mapping[str, Any] | None
    settle: Callable[[str], bool]
    result: LandingResult | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, str]:
        """What ``promote.done`` has of the commit."""
        return {"commit": self.built.id, "ref": branch_ref(self.branch), "branch": self.branch, "strategy": self.plan.strategy}

    def run(self) -> bool:
        """Log the intent, then move the branch by a compare-and-swap: only if it is still where the commit expects it.

        Returns:
            Whether the commit is in; False if another program moved the branch first.

        Raises:
            PromoteFailed: a checkout is in the way, durable is locked, or its disk failed before the branch moved.
        """
        self._log_intent()
        plan, built = self.plan, self.built
        try:
            self.result = plan.durable.land(
                self.branch,
                built,
                self.fitted.changes,
                expected=self.head if plan.strategy == "commit" else None,
                note=f"promote: session {plan.state.id}",
                keep=f"gittrix-{plan.state.id}",
                seconds=self.recorder.clock.now_ns() // 10**9,
                settle=self.settle,
            )
        except RefMoved as error:
            self._log_aborted(f"{self.branch} moved to {error.current}")
            points.reached("promote:lost-race")
            return False
        except (PromoteFailed, InvalidInput) as refusal:
            self._log_aborted(refusal.fact)
            if isinstance(refusal, WorktreeDirty) and plan.durable.head(plan.branch) != self.head:
                # A checkout that went along with a rival's commit only looks as if the human had changed it.
                points.reached("promote:lost-race")
                return False
            raise
        except (GittrixError, OSError) as error:
            self.result = self._tidy_failure(error)
        return True

    def _log_intent(self) -> None:
        """Store the intent on the disk, before anything else is written."""
        plan, built, facts = self.plan, self.built, self.facts
        intent: dict[str, Any] = {
            "commit": built.id,
            "parent": built.parent,
            "ref": facts["ref"],
            "tree": built.tree,
            "paths_digest": digest_of(self.fitted.changes),
            "count": len(self.fitted.changes),
            "branch": self.branch,
            "strategy": plan.strategy,
            "pack": built.pack.name,
            **(plan.proposal.to_data() if plan.proposal is not None else {}),
            **({"keep": self.keep} if self.keep is not None else {}),
        }
        self.recorder.append("promote.intent", intent, actor="human", commit_point=True)
        points.reached("promote:intent-logged")

    def _tidy_failure(self, error: GittrixError | OSError) -> LandingResult | None:
        """Clean up after a disk error in the middle of a landing, when only the branch shows whether it moved.

        Returns:
            What happened to the checkouts, where the branch moved; None if the remains could not be removed either.

        Raises:
            PromoteFailed: it did not move. An error that says itself what was refused, and what to do about it, is raised as it is.
        """
        points.reached("promote:failed")
        durable, branch, built = self.plan.durable, self.branch, self.built
        moved = durable.contains(branch, built.id)
        landed: LandingResult | None = None
        try:
            durable.repair(branch, built.id, built.pack.name)
            landed = durable.bring_forward(branch, built.id) if moved else LandingResult()
        except OSError as worse:
            self.warnings.append(
                f"what the failed landing left could not be removed yet ({worse.strerror}): "
                "a checkout may be locked, or show the promotion as undone, until `gittrix recover` finishes it"
            )
        reason = error.fact if isinstance(error, GittrixError) else f"{error.strerror or error}"
        if moved:
            self.warnings.append(reason)
            return landed
        if landed is not None:
            self._log_aborted(reason)
        if isinstance(error, GittrixError):
            raise error
        remedy = _REMEDIES.get(error.errno or 0, "Fix the cause, then promote again.")
        raise PromoteFailed(f"Durable refused the commit: {reason}.", stage="apply", why="The branch did not move.", fix=remedy) from error

    def _log_aborted(self, reason: str) -> None:
        """Close the intent. If that cannot be stored, a recovery closes it."""
        with suppress(AdapterUnavailable):
            self.recorder.append("promote.aborted", {"commit": self.built.id, "reason": reason[:500]})


def record_done(
    recorder: Recorder, done: Mapping[str, Any], outcome: PrOutcome | None, keep: Mapping[str, Any] | None, *, actor: Actor
) -> SessionState:
    """Store the end of a promotion, and the state of its pull request.

    Args:
        recorder: of the session; the caller holds its lease.
        done: the data of ``promote.done``, without the pull request.
        keep: what ``promote.kept`` has in addition; None where the promotion ends the session.
        outcome: whether the pull request was opened; None where the promotion opens none.
        actor: who promoted.

    Raises:
        AdapterUnavailable: the end could not be stored. A pull request whose state could not be stored is no failure: the end has its
            address.
    """
    pull_request = outcome.done_fields() if outcome is not None else {}
    type_ = "promote.done" if keep is None else "promote.kept"
    state = recorder.append(type_, {**done, **pull_request, **(keep or {})}, actor=actor, commit_point=True)
    observation = outcome.observation() if outcome is not None else None
    if observation is not None:
        with suppress(GittrixError):
            state = recorder.append("pr.observed", observation)
    return state


def record_checkouts(recorder: Recorder, commit: str, landed: LandingResult) -> None:
    """Store which checkouts were brought forward to a promoted commit, and which were left behind. The caller holds the lease.

    Raises:
        AdapterUnavailable: an event could not be stored.
    """
    for _ in landed.forwarded:
        recorder.append("worktree.updated", {"commit": commit})
    for reason in (landed.stale or {}).values():
        recorder.append("worktree.stale", {"commit": commit, "reason": reason[:500]})
