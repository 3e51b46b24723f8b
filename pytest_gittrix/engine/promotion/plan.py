"""The plan of one promotion: the selection and its target, chosen once, before durable is touched.

Drift is judged against a head of the branch, and the commit is built on that head, in memory: a head that moved is judged again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Drift, Durable
from pytest_gittrix.engine.operations.resources import LOCAL
from pytest_gittrix.engine.promotion.conflicts import OnOverlap, reader_of, reconcile
from pytest_gittrix.engine.promotion.keeping import Keeping
from pytest_gittrix.engine.promotion.pull_requests import Proposal
from pytest_gittrix.engine.promotion.selection import SelectedChanges
from pytest_gittrix.engine.promotion.strategy import Strategy, branch_names
from pytest_gittrix.errors import InvalidInput, PathCollision, PromoteFailed
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.path_rules import collisions
from pytest_gittrix.git.tree import Item, TreeClash, parse_tree
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.rebase import from_bases
from pytest_gittrix.workspaces.snapshot import Snapshot


@dataclass(frozen=True)
class PromotionPlan:
    """What is promoted, and to which branch.

    Attributes:
        state: of the session, read under its lease.
        snapshot: its workspace.
        selection: what is promoted of the snapshot.
        takes_all: whether that is everything touched, since no path was named.
        durable: the repository to promote to.
        branch: the session's branch of it.
        strategy: where the commit lands; not ``auto``.
        message: the commit message.
        on_overlap: what to do where durable drifted over the selection.
        proposal: the pull request to open; None without one.
        keeping: the session and its workspace, if the session goes on; None if the promotion ends it.
    """

    state: SessionState
    snapshot: Snapshot
    selection: SelectedChanges
    takes_all: bool
    durable: Durable
    branch: str
    strategy: Strategy
    message: str
    on_overlap: OnOverlap
    proposal: Proposal | None
    keeping: Keeping | None

    @property
    def leaves(self) -> bool:
        """Whether the commit leaves this machine: it is pushed, or others see it in a pull request."""
        kept = self.state.kept
        of_request = kept is not None and kept.branch == self.branch and kept.pr_url is not None
        is_remote = not self.durable.uri.startswith(LOCAL)
        return self.strategy != "patch" and (self.strategy == "pr" or is_remote or (of_request and self.strategy == "commit"))

    def head(self) -> str:
        """The commit that the session's branch is at.

        Raises:
            InvalidInput: there is no such branch, or no more, since the pull request of an earlier promotion was merged.
        """
        try:
            return self.durable.head(self.branch)
        except InvalidInput as problem:
            kept = self.state.kept
            if kept is None or kept.branch != self.branch or kept.strategy == "commit":
                raise
            raise InvalidInput(
                f"The session's branch {self.branch!r} is gone from durable.",
                why="An earlier promotion of the session made it. A branch is often deleted when its pull request is merged.",
                fix="Start a new session from the branch that it was merged into. Discard this one: the rest of its work is archived.",
            ) from problem

    def target_branches(self) -> Iterator[str]:
        """The branch to land on, once for each try. New branches get another name each time: a name that was lost is taken."""
        if self.strategy not in ("branch", "pr"):
            return repeat(self.branch)
        identity = self.state.identity
        preferred = identity.get("topic_branch") if self.strategy == "pr" or "project" in identity else None
        return branch_names(self.state.task, self.durable.references(), preferred=preferred)

    def drift(self, head: str) -> Drift:
        """What durable changed between the base of the session's work and a head."""
        points.reached("promote:head-read")
        seed = self.snapshot.seed
        return from_bases(self.durable.drift(self.state.baseline, head, seed), self.snapshot.bases, seed)

    def fit(self, drift: Drift, head: str) -> SelectedChanges:
        """The selection as it is committed on a head that may have drifted from the baseline.

        Raises:
            BaselineConflict: drift overlaps the selection, or work that stays behind in a session that goes on.
            PromoteFailed: durable already has everything that was selected.
            WriteRejected: see ``Keeping.require_no_loss``.
        """
        seed = self.snapshot.seed
        fitted = reconcile(self.selection, drift, seed, reader_of(seed, self.durable), on_overlap=self.on_overlap, head=head)
        if self.keeping is not None:
            self.keeping.require_no_loss(self.snapshot, self.selection, fitted, drift, head)
        return fitted

    def build(self, selection: SelectedChanges, head: str, seconds: int) -> BuiltCommit:
        """The commit that puts a selection onto a head, in memory.

        Args:
            selection: as it goes onto the head.
            head: the commit that the branch is at.
            seconds: the time of the commit, in seconds since 1970.

        Raises:
            PromoteFailed: a path would be both a file and a directory.
            PathCollision: a new path is the same name as another on many file systems.
        """
        try:
            built = self.durable.build(head, selection.changes, selection.blobs, message=self.message, seconds=seconds)
        except TreeClash as clash:
            raise PromoteFailed(
                f"{clash.path!r} would be both a file and a directory in durable.",
                stage="staging",
                why="The selection has only one half of a change from a file to a directory, or the reverse.",
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


def where_to(state: SessionState, durable: Durable) -> tuple[str, str]:
    """The branch that a session is promoted to, and the session's strategy there.

    The branch that an earlier promotion made may be gone: forges delete it with its merge. The session goes back to the branch that it came
    from, and by the way that it took from there. Its baseline is its last commit, so that what was merged of it is no drift.
    """
    branch, kept = state.durable_branch or durable.branch, state.kept
    if kept is None or kept.branch != branch or kept.origin in (None, branch):
        return branch, state.strategy
    try:
        durable.head(branch)
    except InvalidInput:
        assert kept.origin is not None
        return kept.origin, kept.strategy
    return branch, state.strategy


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
