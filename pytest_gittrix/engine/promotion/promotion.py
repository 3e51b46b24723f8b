"""Promotion: select -> snapshot -> drift -> intent -> swap -> record, as one commit or not at all (RELIABILITY 5, DESIGN rules 1 to 5).

The order is the protocol. Drift is judged against the very head that the swap expects; the swap holds durable's own
reference lock; objects are written only under it; the intent is
on disk before, so that whoever comes after a kill knows what was meant. Once the branch has moved, nothing may raise any more.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Durable, Landed
from pytest_gittrix.engine.operations.operation import Recorder
from pytest_gittrix.engine.operations.review import Review, side
from pytest_gittrix.engine.promotion.pull_requests import Opened, Proposal, PrRequest, PullRequests, record_done
from pytest_gittrix.engine.promotion.selection import OnOverlap, Selection, reconcile, select
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
from pytest_gittrix.git.commit import Built
from pytest_gittrix.git.patch import FileChange, patch_text
from pytest_gittrix.git.refs import RefMoved, branch_ref
from pytest_gittrix.git.tree import Item, TreeClash, collisions
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.snapshot import Snapshot

__all__ = ["PromoteResult", "Promotion", "Review", "digest_of"]

_ATTEMPTS: Final = 200
_ROOM: Final = "Make room, then promote again."
_RIGHTS: Final = "See that the repository is yours to write, then promote again."
_FILES: Final = "Close files that this process holds open, or raise its limit of them (ulimit -n), then promote again."
_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}


@dataclass(frozen=True, slots=True)
class PromoteResult:
    """How a promotion ended.

    Attributes:
        sha: the commit that was made; empty for a patch.
        branch: the branch it is on, or the patch is for.
        pr_url: address of the pull request, if one was opened.
        patch: the patch itself, with strategy ``patch``.
        warnings: what did not go well after the branch had moved (a checkout left behind, a pull request not opened).
    """

    sha: str
    branch: str
    pr_url: str | None = None
    patch: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Promotion:
    """One promotion of one session. The caller holds the session's lease; ``run`` takes the repository's.

    Attributes:
        recorder: the session's record.
        state: its state, read under the lease.
        durable: where to promote to.
        snapshot: what is promoted from.
        repository: makes the lease under which this store's promotions into one repository take turns.
        settle: asked with the contents of a lock in the way; mends the promotion it is of if its owner is dead, and says whether it did.
        directory: the session's own directory.
        pull_requests: how to open one.
    """

    recorder: Recorder
    state: SessionState
    durable: Durable
    snapshot: Snapshot
    repository: Callable[[], AbstractContextManager[object]]
    settle: Callable[[str], bool]
    directory: str
    pull_requests: PullRequests = field(default_factory=PullRequests)
    warnings: list[str] = field(default_factory=list)

    def run(
        self,
        files: Iterable[str] | None,
        hunks: Mapping[str, Collection[int]] | None,
        *,
        strategy: Strategy,
        message: str | None,
        on_overlap: OnOverlap,
        request: PrRequest,
    ) -> tuple[PromoteResult, Selection]:
        """Promote.

        With ``pr``, the forge is asked once the commit is in and others may promote to the repository again.

        Returns:
            The result, and the selection that was promoted.

        Raises:
            BaselineConflict: durable drifted over the selection.
            PromoteFailed: nothing is selected, it does not fit on durable, a checkout is in the way, or durable is locked.
            WriteRejected, InvalidInput: see ``selection.select``; or the base of a pull request is no branch there.
            CapabilityMissing: a pull request, without a forge.
        """
        proposal = self._proposal(strategy, request, self._text(message))
        selection = select(self.snapshot, files, hunks)
        points.reached("promote:selected")
        with ExitStack() as turn:
            turn.enter_context(self.repository())
            if strategy == "patch":
                return self._as_patch(selection, on_overlap), selection
            made = self._landed(selection, strategy, self._text(message), on_overlap, proposal)
            if proposal is not None:
                turn.close()
            return self._concluded(made, strategy, proposal), selection

    def _text(self, message: str | None) -> str:
        return message or (f"gittrix: {self.state.task}" if self.state.task else f"gittrix: promote session {self.state.id}")

    def _proposal(self, strategy: Strategy, request: PrRequest, message: str) -> Proposal | None:
        request.refuse_unless_pr(strategy)
        if strategy != "pr":
            return None
        self.pull_requests.require(self.durable)
        proposal = request.proposal(message, self._branch, self.state.id, self.state.task)
        if proposal.base != self._branch:
            self.durable.head(proposal.base)
        return proposal

    def _landed(self, selection: Selection, strategy: Strategy, text: str, on_overlap: OnOverlap, proposal: Proposal | None) -> _Made:
        for target in islice(self._targets(strategy), _ATTEMPTS):
            made = self._try(selection, strategy, text, on_overlap, target, proposal)
            if made is not None:
                return made
        raise PromoteFailed(
            f"{self._branch!r}, or the branch that the promotion was to make, moved {_ATTEMPTS} times while it was made.",
            stage="apply",
            why="Each time drift had to be judged anew.",
            fix="Promote again when fewer programs write to it.",
        )

    def _concluded(self, made: _Made, strategy: Strategy, proposal: Proposal | None) -> PromoteResult:
        """The commit is in: open its pull request, and say so. Where the landing is not at its end, a recovery does both."""
        opened = None
        if made.end is not None:
            points.reached("promote:swapped")
            if proposal is not None:
                opened = self.pull_requests.open(self.durable, made.target, proposal)
                self.warnings.extend([opened.problem] if opened.problem is not None else [])
            self._record_done(made.built, made.target, strategy, opened)
            self._record_checkouts(made.built, made.end)
        return PromoteResult(made.built.id, made.target, opened.url if opened is not None else None, warnings=tuple(self.warnings))

    @property
    def _branch(self) -> str:
        return self.state.durable_branch or self.durable.branch

    def _targets(self, strategy: Strategy) -> Iterator[str]:
        """The branch to land on, once for each try: of new branches always another one, since a name that was lost is taken."""
        if strategy not in ("branch", "pr"):
            return repeat(self._branch)
        preferred = self.state.identity.get("branch") if strategy == "pr" else None
        return branch_names(self.state.task, self.durable.references(), preferred=preferred)

    def _fitted(self, selection: Selection, head: str, on_overlap: OnOverlap) -> Selection:
        """The selection as it goes onto ``head``, or the conflict that forbids it."""
        points.reached("promote:head-read")
        drift = self.durable.drift(self.state.baseline, head, self.snapshot.seed)
        try:
            return reconcile(
                selection,
                drift,
                baseline=self.snapshot.seed.entries.get,
                blob=self._blob,
                hash_object=self.snapshot.seed.format.hash_object,
                on_overlap=on_overlap,
                baseline_sha=self.state.baseline,
                head=head,
            )
        except BaselineConflict as conflict:
            paths = conflict.conflicting_files
            self.recorder.append("promote.conflict", {"paths_digest": digest_of(paths), "count": len(paths), "head": head}, actor="human")
            raise

    def _blob(self, id_: str) -> bytes:
        try:
            return self.snapshot.seed.blob(id_)
        except GittrixError:
            return self.durable.blob(id_)

    def _try(
        self, selection: Selection, strategy: Strategy, message: str, on_overlap: OnOverlap, target: str, proposal: Proposal | None
    ) -> _Made | None:
        """Land on the head as it is now; None if somebody moved the branch, so that all must be judged anew."""
        head = self.durable.head(self._branch)
        fitted = self._fitted(selection, head, on_overlap)
        points.reached("promote:drift-checked")
        built = self._build(fitted, head, message)
        expected = head if strategy == "commit" else None
        self._intend(built, fitted, target, strategy, proposal)
        end: Landed | None
        try:
            end = self.durable.land(
                target,
                built,
                fitted.changes,
                expected=expected,
                note=f"promote: session {self.state.id}",
                keep=f"gittrix-{self.state.id}",
                seconds=self.recorder.clock.now_ns() // 10**9,
                settle=self.settle,
            )
        except RefMoved as error:
            self._abort(built, f"{target} moved to {error.current}")
            points.reached("promote:lost-race")
            return None
        except (PromoteFailed, InvalidInput) as refusal:
            self._abort(built, refusal.fact)
            if isinstance(refusal, WorktreeDirty) and self.durable.head(self._branch) != head:
                # A checkout that went along with a rival's commit only looks as if the human had changed it.
                points.reached("promote:lost-race")
                return None
            raise
        except (GittrixError, OSError) as error:
            end = self._rescued(built, target, error)
        return _Made(built, target, end)

    def _rescued(self, built: Built, target: str, error: GittrixError | OSError) -> Landed | None:
        """After the disk failed in the middle of a landing, only the branch knows whether it moved.

        Returns:
            How the landing ended; None if its remains could not be removed either, so that its intent stays open for a recovery.

        Raises:
            PromoteFailed: it did not move. An error that says itself what was refused, and what to do about it, is raised as it is.
        """
        points.reached("promote:failed")
        landed = self.durable.contains(target, built.id)
        end: Landed | None = None
        try:
            self.durable.repair(target, built.id, built.pack.name)
            end = self.durable.bring_forward(target, built.id) if landed else Landed()
        except OSError as worse:
            self.warnings.append(f"what the failed landing left could not be removed yet: {worse.strerror}")
        reason = error.fact if isinstance(error, GittrixError) else f"{error.strerror or error}"
        if landed:
            self.warnings.append(reason)
            return end
        if end is not None:
            self._abort(built, reason)
        if isinstance(error, GittrixError):
            raise error
        remedy = _REMEDIES.get(error.errno or 0, "Mend the cause, then promote again.")
        raise PromoteFailed(f"Durable refused the commit: {reason}.", stage="apply", why="The branch did not move.", fix=remedy) from error

    def _build(self, selection: Selection, head: str, message: str) -> Built:
        seconds = self.recorder.clock.now_ns() // 10**9
        try:
            built = self.durable.build(head, selection.changes, selection.blobs, message=message, seconds=seconds)
        except TreeClash as clash:
            raise PromoteFailed(
                f"{clash.path!r} would be both a file and a directory in durable.",
                stage="staging",
                why="The selection holds only one half of a file that became a directory, or the reverse.",
                fix="Select the other half too.",
            ) from clash
        added = [path for path, entry in selection.changes.items() if entry is not None and self.snapshot.seed.entries.get(path) is None]
        clashes = collisions(_with(built, self.durable), built.tree, added)
        if clashes:
            path, twin = next(iter(clashes.items()))
            raise PathCollision(
                f"{path!r} differs from {twin!r} only by case or unicode form.",
                stage="staging",
                why="On many file systems the two are one file, and a checkout there loses one of them.",
                fix="Rename it in the workspace, or leave it out of the selection.",
            )
        return built

    def _intend(self, built: Built, selection: Selection, target: str, strategy: Strategy, proposal: Proposal | None) -> None:
        intent: dict[str, Any] = {
            "commit": built.id,
            "parent": built.parent,
            "ref": branch_ref(target),
            "tree": built.tree,
            "paths_digest": digest_of(selection.changes),
            "count": len(selection.changes),
            "branch": target,
            "strategy": strategy,
            "pack": built.pack.name,
            **(proposal.to_data() if proposal is not None else {}),
        }
        self.recorder.append("promote.intent", intent, actor="human", commit_point=True)
        points.reached("promote:intent-logged")

    def _abort(self, built: Built, reason: str) -> None:
        """That this cannot be recorded leaves the intent open, which whoever comes next finds and ends; the reason is what matters now."""
        with suppress(AdapterUnavailable):
            self.recorder.append("promote.aborted", {"commit": built.id, "reason": reason[:500]})

    def _record_done(self, built: Built, target: str, strategy: Strategy, opened: Opened | None) -> None:
        """The commit is in: say so. That the log cannot be written now is a warning; recovery will find the commit and say it."""
        done = {"commit": built.id, "ref": branch_ref(target), "branch": target, "strategy": strategy}
        try:
            record_done(self.recorder, done, opened, actor="human")
        except GittrixError as error:
            self.warnings.append(f"the promotion is in, but could not be recorded yet: {error.fact}")
        points.reached("promote:recorded")

    def _record_checkouts(self, built: Built, landed: Landed) -> None:
        for path, reason in (landed.stale or {}).items():
            self.warnings.append(f"the checkout {path} was left behind: {reason.partition(chr(10))[0]}")
        try:
            for _ in landed.forwarded:
                self.recorder.append("worktree.updated", {"commit": built.id})
            for reason in (landed.stale or {}).values():
                self.recorder.append("worktree.stale", {"commit": built.id, "reason": reason[:500]})
        except GittrixError as error:
            self.warnings.append(error.fact)

    def _as_patch(self, selection: Selection, on_overlap: OnOverlap) -> PromoteResult:
        """A patch for the head as it is now, kept beside the record; no branch moves."""
        head = self.durable.head(self._branch)
        fitted = self._fitted(selection, head, on_overlap)
        seed = self.snapshot.seed
        changes = []
        for path, entry in fitted.changes.items():
            old = self.durable.entry(head, path)
            blobs = dict(fitted.blobs)
            if old is not None and old.kind != "submodule" and old.id not in blobs:
                blobs[old.id] = self.durable.blob(old.id)
            changes.append(FileChange(path, side(seed, old, blobs), side(seed, entry, blobs)))
        text = patch_text(changes)
        path = os.path.join(self.directory, "promote.patch")
        with open(path, "wb") as file:
            file.write(text.encode(errors="surrogateescape"))
        done = {"commit": "", "ref": branch_ref(self._branch), "branch": self._branch, "strategy": "patch", "patch": "promote.patch"}
        self.recorder.append("promote.done", done, actor="human", commit_point=True)
        return PromoteResult("", self._branch, patch=text)


@dataclass(frozen=True, slots=True)
class _Made:
    """A commit that is on its branch, and how its landing ended; None if what it left could not be removed yet."""

    built: Built
    target: str
    end: Landed | None


def _with(built: Built, durable: Durable) -> Callable[[str], Mapping[bytes, Item]]:
    """A reader of trees that knows the built commit's too."""
    from pytest_gittrix.git.tree import parse_tree

    def read(id_: str) -> Mapping[bytes, Item]:
        if id_ in built.objects:
            return parse_tree(built.objects[id_][1], built.format.size)
        return durable.read_tree(id_)

    return read


def digest_of(paths: Iterable[str]) -> str:
    """A short name for a set of paths, as events hold it."""
    names = b"\0".join(sorted(os.fsencode(path) for path in paths))
    return hashlib.sha256(names).hexdigest()[:32]
