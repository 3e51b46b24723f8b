"""One promotion: selected changes become one commit on durable, or nothing changes (docs/explanation/promotion.md).

``Promotion.run`` is the protocol, step by step; its order is what makes it safe. Drift is judged against the very head that the branch must
still have when it moves. The intent is in the log before the branch moves, so that a recovery after a kill knows what was meant. Objects
are written, and the branch moves, only under the lock of git's own reference. Once the branch has moved, nothing may raise any more.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Drift, Durable, LandingResult
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.operations.review import Review, side
from pytest_gittrix.engine.promotion.conflicts import OnOverlap, reconcile
from pytest_gittrix.engine.promotion.keeping import Keeping
from pytest_gittrix.engine.promotion.pull_requests import Proposal, PullRequests
from pytest_gittrix.engine.promotion.recording import record_checkouts, record_done
from pytest_gittrix.engine.promotion.selection import Selection
from pytest_gittrix.engine.promotion.strategy import Strategy, branch_names
from pytest_gittrix.errors import (
    AdapterUnavailable,
    BaselineConflict,
    GittrixError,
    InvalidInput,
    PathCollision,
    PromoteFailed,
    WorktreeDirty,
)
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.patch import FileChange, patch_text
from pytest_gittrix.git.refs import RefMoved, branch_ref
from pytest_gittrix.git.tree import Item, TreeClash, collisions, parse_tree
from pytest_gittrix.os_level.files import sync_directory, write_file
from pytest_gittrix.record.eventlog.events import live_event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.rebase import from_bases
from pytest_gittrix.workspaces.snapshot import Snapshot

__all__ = ["PromoteResult", "Promotion", "Review", "digest_of"]

_ATTEMPTS: Final = 200
_PATCH: Final = "promote.patch"
_MAKE_SPACE: Final = "Make room, then promote again."
_GET_PERMISSION: Final = "See that the repository is yours to write, then promote again."
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


@dataclass(frozen=True, slots=True)
class PromoteResult:
    """How a promotion ended.

    Attributes:
        sha: the commit that was made; empty for a patch.
        branch: the branch it is on, or the patch is for.
        pr_url: address of the pull request, if one was opened.
        patch: the patch itself, with strategy ``patch``.
        warnings: work that was not promoted and is in no file, or ignored; and what failed after the branch had moved, such as a checkout
            that was left behind or a pull request that was not opened.
        secrets: promoted files that look like credentials, or gained lines that do, by path, as ``Review.secrets``.
    """

    sha: str
    branch: str
    pr_url: str | None = None
    patch: str | None = None
    warnings: tuple[str, ...] = ()
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Landing(NamedTuple):
    """A commit that is on its branch.

    Attributes:
        built: the commit.
        branch: the branch.
        landed: what happened to the checkouts of the branch; None if the landing failed half-way and what it left could not be removed
            yet, so that the intent stays open for a recovery.
    """

    built: BuiltCommit
    branch: str
    landed: LandingResult | None


@dataclass(frozen=True)
class Promotion:
    """One promotion of one session. The caller holds the session's lease; ``run`` takes the repository's.

    Attributes:
        recorder: the session's record.
        state: its state, read under the lease.
        snapshot: the workspace that is promoted.
        durable: the repository to promote to.
        branch: the session's branch of it.
        strategy: where the commit goes; not ``auto``.
        message: the commit message.
        on_overlap: what to do where durable drifted over the selection.
        proposal: the pull request to open; None without one.
        resources: makes the lease under which this store's promotions into one repository take turns.
        pull_requests: opens the pull request.
        settle: called with the contents of a lock in the way; mends the promotion that holds it if its process is dead, and returns
            whether it did.
        keeping: the session and its workspace, if the session goes on; None if the promotion ends it.
        warnings: what failed after the branch had moved.
    """

    recorder: Recorder
    state: SessionState
    snapshot: Snapshot
    durable: Durable
    branch: str
    strategy: Strategy
    message: str
    on_overlap: OnOverlap
    proposal: Proposal | None
    resources: Resources
    pull_requests: PullRequests
    settle: Callable[[str], bool]
    keeping: Keeping | None = None
    warnings: list[str] = field(default_factory=list)

    def run(self, selection: Selection) -> PromoteResult:
        """Promote.

        A branch that another program moves meanwhile is no failure: everything from the head on is judged again. With a pull request,
        the forge is asked once the commit is in and others may promote to the repository again.

        Args:
            selection: what is promoted of the snapshot.

        Raises:
            BaselineConflict: durable drifted over the selection.
            PromoteFailed: it does not fit on durable, a checkout is in the way, or durable is locked.
        """
        points.reached("promote:selected")
        with ExitStack() as turn:
            turn.enter_context(self.resources.repository_lease(self.durable, self.state.id, self._tell_waiting))
            if self.strategy == "patch":
                return self.write_patch(selection)
            for branch in islice(self.target_branches(), _ATTEMPTS):
                head = self.head()
                drift = self.drift(head)
                fitted = self.fit(selection, drift, head)
                points.reached("promote:drift-checked")
                built = self.build(fitted, head)
                keep = self.keeping.data(selection, fitted, drift) if self.keeping is not None else None
                self.log_intent(built, fitted, branch, keep)
                landing = self.land(built, fitted, branch, head)
                if landing is None:
                    continue
                if self.proposal is not None:
                    turn.close()
                return self.record(landing, keep)
            raise PromoteFailed(
                f"{self.branch!r}, or the branch that the promotion was to make, moved {_ATTEMPTS} times while it was made.",
                stage="apply",
                why="Each time drift had to be judged anew.",
                fix="Promote again when fewer programs write to it.",
            )

    def _tell_waiting(self, holder: str) -> None:
        """Announce that another promotion into the repository takes long."""
        recorder = self.recorder
        recorder.emit(live_event("promote.waiting", {"holder": holder}, ts=recorder.clock.now_ns(), stream=recorder.id, actor="human"))

    def head(self) -> str:
        """The commit that the session's branch is at.

        Raises:
            InvalidInput: there is no such branch, or no more, since the pull request of an earlier promotion was merged.
        """
        try:
            return self.durable.head(self.branch)
        except InvalidInput as problem:
            kept = self.state.kept
            if kept is None or kept.branch != self.branch:
                raise
            raise InvalidInput(
                f"The session's branch {self.branch!r} is gone from durable.",
                why="An earlier promotion of the session made it, and whoever merges a pull request may delete its branch.",
                fix="Start a new session from the branch that has the work now. Discard this one: the rest of its work is archived.",
            ) from problem

    def target_branches(self) -> Iterator[str]:
        """The branch to land on, once for each try. New branches get another name each time: a name that was lost is taken."""
        if self.strategy not in ("branch", "pr"):
            return repeat(self.branch)
        identity = self.state.identity
        preferred = identity.get("topic_branch") if self.strategy == "pr" or "project" in identity else None
        return branch_names(self.state.task, self.durable.references(), preferred=preferred)

    def drift(self, head: str) -> Drift:
        """What durable changed up to a head, since what the session's work is based on."""
        points.reached("promote:head-read")
        seed = self.snapshot.seed
        return from_bases(self.durable.drift(self.state.baseline, head, seed), self.snapshot.bases, seed)

    def fit(self, selection: Selection, drift: Drift, head: str) -> Selection:
        """The selection as it goes onto a head that may have drifted from the baseline.

        Raises:
            BaselineConflict: drift overlaps the selection, or work that stays behind in a session that goes on; the conflict is in the log.
            PromoteFailed: durable already has everything that was selected.
            WriteRejected: see ``Keeping.require_no_loss``.
        """
        try:
            fitted = reconcile(selection, drift, self.snapshot.seed, self._read_blob, on_overlap=self.on_overlap, head=head)
            if self.keeping is not None:
                self.keeping.require_no_loss(self.snapshot, selection, fitted, drift, head)
            return fitted
        except BaselineConflict as conflict:
            paths = conflict.conflicting_files
            self.recorder.append("promote.conflict", {"paths_digest": digest_of(paths), "count": len(paths), "head": head}, actor="human")
            raise

    def _read_blob(self, id_: str) -> bytes:
        try:
            return self.snapshot.seed.blob(id_)
        except GittrixError:
            return self.durable.blob(id_)

    def build(self, selection: Selection, head: str) -> BuiltCommit:
        """The commit that puts a selection onto a head, in memory.

        Raises:
            PromoteFailed: a path would be both a file and a directory.
            PathCollision: a new path is the same name as another on many file systems.
        """
        seconds = self.recorder.clock.now_ns() // 10**9
        try:
            built = self.durable.build(head, selection.changes, selection.blobs, message=self.message, seconds=seconds)
        except TreeClash as clash:
            raise PromoteFailed(
                f"{clash.path!r} would be both a file and a directory in durable.",
                stage="staging",
                why="The selection holds only one half of a file that became a directory, or the reverse.",
                fix="Select the other half too.",
            ) from clash
        added = [path for path, entry in selection.changes.items() if entry is not None and self.snapshot.seed.entries.get(path) is None]
        clashes = collisions(_tree_reader(built, self.durable), built.tree, added)
        if clashes:
            path, twin = next(iter(clashes.items()))
            raise PathCollision(
                f"{path!r} differs from {twin!r} only by case or unicode form.",
                stage="staging",
                why="On many file systems the two are one file, and a checkout there loses one of them.",
                fix="Rename it in the workspace, or leave it out of the selection.",
            )
        return built

    def log_intent(self, built: BuiltCommit, selection: Selection, branch: str, keep: Mapping[str, Any] | None) -> None:
        """Store what is about to happen, on the disk before anything of it does."""
        intent: dict[str, Any] = {
            "commit": built.id,
            "parent": built.parent,
            "ref": branch_ref(branch),
            "tree": built.tree,
            "paths_digest": digest_of(selection.changes),
            "count": len(selection.changes),
            "branch": branch,
            "strategy": self.strategy,
            "pack": built.pack.name,
            **(self.proposal.to_data() if self.proposal is not None else {}),
            **({"keep": keep} if keep is not None else {}),
        }
        self.recorder.append("promote.intent", intent, actor="human", commit_point=True)
        points.reached("promote:intent-logged")

    def land(self, built: BuiltCommit, selection: Selection, branch: str, head: str) -> Landing | None:
        """Move a branch to the commit by a compare-and-swap: only if it is still at the head that the commit was built on.

        Returns:
            The landing; None if another program moved the branch first.

        Raises:
            PromoteFailed: a checkout is in the way, durable is locked, or its disk failed before the branch moved.
        """
        try:
            landed = self.durable.land(
                branch,
                built,
                selection.changes,
                expected=head if self.strategy == "commit" else None,
                note=f"promote: session {self.state.id}",
                keep=f"gittrix-{self.state.id}",
                seconds=self.recorder.clock.now_ns() // 10**9,
                settle=self.settle,
            )
        except RefMoved as error:
            self._log_aborted(built, f"{branch} moved to {error.current}")
            points.reached("promote:lost-race")
            return None
        except (PromoteFailed, InvalidInput) as refusal:
            self._log_aborted(built, refusal.fact)
            if isinstance(refusal, WorktreeDirty) and self.durable.head(self.branch) != head:
                # A checkout that went along with a rival's commit only looks as if the human had changed it.
                points.reached("promote:lost-race")
                return None
            raise
        except (GittrixError, OSError) as error:
            return Landing(built, branch, self._tidy_failure(built, branch, error))
        return Landing(built, branch, landed)

    def _tidy_failure(self, built: BuiltCommit, branch: str, error: GittrixError | OSError) -> LandingResult | None:
        """Tidy up after the disk failed in the middle of a landing, when only the branch knows whether it moved.

        Returns:
            What happened to the checkouts, where the branch moved; None if the remains could not be removed either.

        Raises:
            PromoteFailed: it did not move. An error that says itself what was refused, and what to do about it, is raised as it is.
        """
        points.reached("promote:failed")
        moved = self.durable.contains(branch, built.id)
        landed: LandingResult | None = None
        try:
            self.durable.repair(branch, built.id, built.pack.name)
            landed = self.durable.bring_forward(branch, built.id) if moved else LandingResult()
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
            self._log_aborted(built, reason)
        if isinstance(error, GittrixError):
            raise error
        remedy = _REMEDIES.get(error.errno or 0, "Mend the cause, then promote again.")
        raise PromoteFailed(f"Durable refused the commit: {reason}.", stage="apply", why="The branch did not move.", fix=remedy) from error

    def _log_aborted(self, built: BuiltCommit, reason: str) -> None:
        """Close the intent. If that cannot be stored, the intent stays open for a recovery to close; the reason is what matters now."""
        with suppress(AdapterUnavailable):
            self.recorder.append("promote.aborted", {"commit": built.id, "reason": reason[:500]})

    def record(self, landing: Landing, keep: Mapping[str, Any] | None) -> PromoteResult:
        """Open the pull request of a commit that is in, and store the end. Raises nothing: what fails is a warning.

        A landing that is not tidied up yet is recorded by the recovery that finds its intent.

        Args:
            landing: the landing.
            keep: what ``promote.kept`` has beside that; None where the promotion ends the session.
        """
        built, branch = landing.built, landing.branch
        if landing.landed is None:
            return PromoteResult(built.id, branch, warnings=tuple(self.warnings))
        points.reached("promote:swapped")
        pull_request = self.pull_requests.open(self.durable, branch, self.proposal) if self.proposal is not None else None
        if pull_request is not None and pull_request.problem is not None:
            self.warnings.append(pull_request.problem)
        done = {"commit": built.id, "ref": branch_ref(branch), "branch": branch, "strategy": self.strategy}
        try:
            if keep is not None:
                self.resources.prepare_baseline(self.state, self.durable, built.id)
                points.reached("promote:baseline-made")
            record_done(self.recorder, done, pull_request, keep, actor="human")
        except (GittrixError, OSError) as error:
            reason = error.fact if isinstance(error, GittrixError) else f"{error.strerror or error}"
            self.warnings.append(f"the promotion is in, but could not be recorded yet: {reason}")
        points.reached("promote:recorded")
        self.warnings.extend(landing.landed.notes)
        for path, reason in (landing.landed.stale or {}).items():
            self.warnings.append(f"the checkout {path} was left behind: {reason.partition(chr(10))[0]}")
        try:
            record_checkouts(self.recorder, built.id, landing.landed)
        except GittrixError as error:
            self.warnings.append(error.fact)
        return PromoteResult(built.id, branch, pull_request.url if pull_request is not None else None, warnings=tuple(self.warnings))

    def write_patch(self, selection: Selection) -> PromoteResult:
        """A patch for the head as it is now, stored beside the record; no branch moves."""
        head = self.durable.head(self.branch)
        fitted = self.fit(selection, self.drift(head), head)
        seed = self.snapshot.seed
        changes = []
        for path, entry in fitted.changes.items():
            old = self.durable.entry(head, path)
            blobs = dict(fitted.blobs)
            if old is not None and old.kind != "submodule" and old.id not in blobs:
                blobs[old.id] = self.durable.blob(old.id)
            changes.append(FileChange(path, side(seed, old, blobs), side(seed, entry, blobs)))
        text = patch_text(changes)
        sync = self.recorder.store.durability == "full"
        write_file(self.recorder.directory / _PATCH, text.encode(errors="surrogateescape"), sync=sync)
        if sync:
            sync_directory(self.recorder.directory)
        done = {"commit": "", "ref": branch_ref(self.branch), "branch": self.branch, "strategy": "patch", "patch": _PATCH}
        self.recorder.append("promote.done", done, actor="human", commit_point=True)
        return PromoteResult("", self.branch, patch=text)


def _tree_reader(built: BuiltCommit, durable: Durable) -> Callable[[str], Mapping[bytes, Item]]:
    """A reader of durable's trees that also knows those of a commit that is not written yet."""

    def read(id_: str) -> Mapping[bytes, Item]:
        if id_ in built.objects:
            return parse_tree(built.objects[id_][1], built.format.size)
        return durable.read_tree(id_)

    return read


def digest_of(paths: Iterable[str]) -> str:
    """A short name for a set of paths, as events hold it."""
    names = b"\0".join(sorted(os.fsencode(path) for path in paths))
    return hashlib.sha256(names).hexdigest()[:32]
