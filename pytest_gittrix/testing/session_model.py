"""A model of a correct session system: durable and its checkout, sessions over it, and the right answer of each operation.

Trees are ``Tree`` values, commits have the ids that the caller gives them, time is an argument. Where the contract leaves freedom the model
allows several answers: the caller takes the one that came, and checks invariants instead. The engine of this package is held to its own
choices there (``native``). The model knows no disk and no engine, so that it does not share the mistakes of the engine under test.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from pytest_gittrix.git.tree import parents
from pytest_gittrix.testing.repos.edits import Edits, Tree
from pytest_gittrix.testing.repos.history import Content, Executable

State = Literal["active", "promoted", "discarded", "expired"]
Answers = frozenset[str]
"""The correct answers: codes of errors, and ``OK``."""

Merge = Callable[[Content | None, Content | None, Content | None], Content | None]

OK: Final = "OK"
FINE: Final[Answers] = frozenset({OK})

# Where the contract requires an error and leaves its code open, or accepts two codes.
_EQUIVALENT: Final[Mapping[str, Answers]] = {
    "SESSION_EXPIRED": frozenset({"SESSION_NOT_FOUND"}),
    "WORKTREE_DIRTY": frozenset({"PROMOTE_FAILED"}),
    "PATH_COLLISION": frozenset({"PROMOTE_FAILED", "WRITE_REJECTED"}),
    "PROMOTE_FAILED": frozenset({"INVALID_INPUT", "PATH_NOT_FOUND", "WRITE_REJECTED"}),
    "PATH_NOT_FOUND": frozenset({"WRITE_REJECTED"}),
}


# Rules of two trees ------------------------------------------------------------------------------------------------------------


def overlapping(selected: Iterable[str], drift: Collection[str]) -> list[str]:
    """Return the selected paths, sorted, that drift overlaps (rule 4, docs/explanation/rules.md).

    A path overlaps itself, and as a file every path below it.
    """
    overlaps = {
        path for path in selected for other in drift if path == other or path.startswith(other + "/") or other.startswith(path + "/")
    }
    return sorted(overlaps)


def fits(tree: Tree, edits: Edits) -> bool:
    """Whether the edits leave no path that is both a file and a directory."""
    try:
        tree.apply(edits)
    except ValueError:
        return False
    return True


def colliding(tree: Tree, added: Iterable[str]) -> list[str]:
    """Return the added paths that differ from another name of the tree, at some level, only by case or Unicode form."""
    names: dict[tuple[str, str], set[str]] = {}
    for path in tree:
        for level in (*parents(path), path):
            above, _, name = level.rpartition("/")
            names.setdefault((above, _folded(name)), set()).add(name)
    twins = {(above, folded) for (above, folded), spelled in names.items() if len(spelled) > 1}
    levels = {path: [level.rpartition("/") for level in (*parents(path), path)] for path in added}
    return [path for path, parts in levels.items() if any((above, _folded(name)) in twins for above, _, name in parts)]


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


# The state ----------------------------------------------------------------------------------------------------------------------


@dataclass
class ModelCheckout:
    """The human's files: the index, and the work tree without any ``.git``."""

    staged: Tree
    files: Tree

    def obstacles(self, head: Tree, edits: Edits) -> list[str]:
        """Return the paths of a commit on ``head`` that cannot be updated, since the human has work there or in the way."""
        deleted = {path for path, new in edits.items() if new is None}
        return [path for path, new in edits.items() if not self._clean(path, head.get(path)) or self._blocked(path, new, head, deleted)]

    def _clean(self, path: str, old: Content | None) -> bool:
        return self.staged.get(path) == old == self.files.get(path)

    def _blocked(self, path: str, new: Content | None, head: Tree, deleted: set[str]) -> bool:
        around = self.files.keys() | self.staged.keys()
        near = {other for other in around if path.startswith(other + "/") or (new is not None and other.startswith(path + "/"))}
        return path not in head and not near <= deleted

    def bring(self, edits: Edits) -> None:
        """Apply edits to the index and to the work tree."""
        self.staged, self.files = self.staged.apply(edits), self.files.apply(edits)

    def edit(self, edits: Edits, *, stage: bool) -> None:
        """Apply the human's edits of files, staged or only in the work tree."""
        for path, new in edits.items():
            # A plain file over an executable one keeps the bit, as in an editor.
            executable = isinstance(new, bytes | str) and isinstance(self.files.get(path), Executable)
            self.files = self.files.made_by({path: Executable(new) if executable else new})  # type: ignore[arg-type]
            if stage:
                self.staged = self.staged.made_by({path: self.files.get(path)})


@dataclass
class ModelSession:
    """One session.

    Attributes:
        baseline: the files of durable when the session started, or after its last promotion that kept it.
        files: the files of the workspace.
        created, used: when the session started, and when it was last used or its files changed.
        idle, absolute, manual: the eviction policy.
        until_promote: whether the workspace is removed when the session is promoted.
        state: the state in the record. A session past its deadline stays ``active`` there until it is swept.
        present: whether the workspace still exists.
        sha: the commit of the promotion, or None.
        surely: the last use beyond doubt, if earlier than ``used``: the contract leaves open whether a read or a refusal is a use.
    """

    baseline: Tree
    files: Tree
    created: datetime
    used: datetime
    idle: timedelta | None
    absolute: timedelta | None = None
    manual: bool = False
    until_promote: bool = True
    state: State = "active"
    present: bool = True
    sha: str | None = None
    surely: datetime | None = None

    @property
    def touched(self) -> Edits:
        """The difference between baseline and workspace (rule 3, docs/explanation/rules.md)."""
        return self.baseline.to(self.files)

    @property
    def deadline(self) -> datetime | None:
        """The last instant at which the session may be used; None for no limit."""
        return self._deadline(self.used)

    def _deadline(self, used: datetime) -> datetime | None:
        if self.manual:
            return None
        limits = [start + ttl for start, ttl in ((used, self.idle), (self.created, self.absolute)) if ttl is not None]
        return min(limits, default=None)

    def due(self, now: datetime) -> bool:
        """Whether the session is strictly past its deadline and still has a workspace to evict."""
        return self.present and self.deadline is not None and now > self.deadline

    def doubtful(self, now: datetime) -> bool:
        """Whether the session is past its deadline only if some operation on it does not count as a use."""
        earliest = self._deadline(self.surely or self.used)
        return self.present and not self.due(now) and earliest is not None and now > earliest

    def use(self, now: datetime, *, surely: bool) -> None:
        """Record a use: a certain one, or one that the system may count or not."""
        self.surely = None if surely else self.surely or self.used
        self.used = now

    def settled(self, now: datetime, *, kept: bool) -> None:
        """Record what a sweep did with a doubtful session, which shows whether it was used late enough."""
        assert self.surely is not None
        assert self.idle is not None
        if kept:
            self.surely = now - self.idle
        else:
            self.used = self.surely


@dataclass
class Model:
    """Durable, and every session that was ever started on it.

    Attributes:
        head: the commit that the branch is at.
        trees: the files of each commit that was ever on the branch, by id.
        checkout: the human's work tree on that branch, or None for a bare repository.
        sessions: the sessions by id, ended ones too.
        native: whether the system is the engine of this package, with its own choices.
    """

    head: str
    trees: dict[str, Tree]
    checkout: ModelCheckout | None = None
    sessions: dict[str, ModelSession] = field(default_factory=dict)
    native: bool = True

    @property
    def tree(self) -> Tree:
        """The files of the branch."""
        return self.trees[self.head]

    # A person --------------------------------------------------------------------------------------------------------------

    def committed(self, sha: str, edits: Edits, *, in_checkout: bool) -> None:
        """Record a commit to the branch; the checkout is updated if the commit was made there and nothing is in the way."""
        before, self.head = self.tree, sha
        self.trees[sha] = before.apply(edits)
        if in_checkout and self.checkout is not None and not self.checkout.obstacles(before, edits):
            self.checkout.bring(edits)

    def moved(self, sha: str, tree: Tree | None = None, *, in_checkout: bool) -> None:
        """Record a move of the branch to a commit, as by ``git reset --hard``; untracked files survive it."""
        self.head = sha
        if tree is not None:
            self.trees[sha] = tree
        if in_checkout and self.checkout is not None:
            untracked = {path: content for path, content in self.checkout.files.items() if path not in self.checkout.staged}
            self.checkout.staged = self.checkout.files = self.tree
            for path, content in untracked.items():
                if not overlapping([path], self.tree):
                    self.checkout.files = self.checkout.files.apply({path: content})

    # An agent --------------------------------------------------------------------------------------------------------------

    def refusal(self, session: ModelSession, now: datetime) -> Answers:
        """Return what any work on a session must answer: an ended or overdue one refuses it (rule 7, docs/explanation/rules.md)."""
        return self.answers("SESSION_EXPIRED") if session.state != "active" or session.due(now) else FINE

    def answers(self, *codes: str) -> Answers:
        """Return the accepted codes for an error, or for several of which any may come first."""
        return frozenset(codes) if self.native else frozenset(codes).union(*(_EQUIVALENT.get(code, ()) for code in codes))

    def write(self, session: ModelSession, path: str, data: bytes, *, executable: bool | None = None) -> Answers:
        """Write a file; by default it stays executable if it was."""
        if executable is None:
            executable = isinstance(session.files.get(path), Executable)
        return self.put(session, path, Executable(data) if executable else data)

    def put(self, session: ModelSession, path: str, content: Content) -> Answers:
        """Put any content at a path."""
        edits = Edits({path: content})
        if not fits(session.files, edits):
            return frozenset({"WRITE_REJECTED"})
        session.files = session.files.apply(edits)
        return FINE

    def delete(self, session: ModelSession, path: str) -> Answers:
        """Delete a file. A missing file is no error, a directory is one, and a path below a file or link may be either."""
        if any(other.startswith(path + "/") for other in session.files):
            return frozenset({"WRITE_REJECTED"})
        session.files = session.files.apply({path: None})
        return FINE if session.files.keys().isdisjoint(parents(path)) else FINE | {"WRITE_REJECTED"}

    def open_question(self, session: ModelSession, path: str) -> bool:
        """Whether the contract leaves open what a write or deletion of the path does: over a link, an executable, a directory."""
        if self.native:
            return False
        return not isinstance(session.files.get(path, b""), bytes | str) or any(other.startswith(path + "/") for other in session.files)

    # Ends ------------------------------------------------------------------------------------------------------------------

    def promotion(self, session: ModelSession, selected: Edits, *, on_overlap: str = "refuse", keep: bool = False) -> tuple[Answers, Edits]:
        """Return the correct answers of a promotion of a selection, and the edits that it makes on the branch if it succeeds.

        If there are several reasons for a refusal, any of them may be given. The result of ``merge`` on an overlap is not predicted. A
        promotion that keeps the session is also refused where durable changed what stays behind.
        """
        drift = session.baseline.to(self.tree)
        overlaps = overlapping(selected, drift)
        left = self._left(session, selected)
        lost = [path for path in overlapping(left, drift) if not (path in drift and drift[path] == left[path])] if keep else []
        if on_overlap == "merge" and overlaps:
            return frozenset({OK, "BASELINE_CONFLICT", "PROMOTE_FAILED", "PATH_COLLISION", "WORKTREE_DIRTY"}), selected
        equal = [path for path in overlaps if path in drift and drift[path] == selected[path]] if on_overlap == "allow-identical" else []
        landing = selected.only(path for path in selected if path not in equal)
        refusals, choices = set(), set()
        if len(overlaps) > len(equal) or (landing and lost):
            refusals.add("BASELINE_CONFLICT")
        if not landing:
            choices.add("PROMOTE_FAILED")
        elif not fits(self.tree, landing):
            refusals.add("PROMOTE_FAILED")
        elif colliding(self.tree.apply(landing), [path for path in landing if path not in session.baseline and landing[path] is not None]):
            choices.add("PATH_COLLISION")
        if self.checkout is not None and self.checkout.obstacles(self.tree, landing):
            refusals.add("WORKTREE_DIRTY")
        if self.native:  # a conflict is reported first, since a person must decide it
            return frozenset(refusals & {"BASELINE_CONFLICT"} or refusals | choices) or FINE, landing
        return (self.answers(*refusals) or FINE) | self.answers(*choices), landing

    def promoted(self, session: ModelSession, sha: str, landing: Mapping[str, Content | None]) -> None:
        """Record a successful promotion."""
        self.committed(sha, Edits(landing), in_checkout=True)
        session.state, session.sha, session.present = "promoted", sha, not session.until_promote

    def kept(self, session: ModelSession, sha: str, selected: Edits, landing: Mapping[str, Content | None]) -> None:
        """Record a successful promotion after which the session goes on: the commit is its baseline, and what is left is on top of it."""
        left = self._left(session, selected)
        self.committed(sha, Edits(landing), in_checkout=True)
        session.baseline, session.files = self.tree, self.tree.made_by(left)

    def rebase(self, session: ModelSession, merge: Merge) -> tuple[Answers, Tree]:
        """Return the correct answers of a rebase onto the branch, and the files that the workspace has if it succeeds.

        Args:
            session: the session.
            merge: gives what the base and both sides of a file merge to; None where a person has to decide.
        """
        touched, drift = session.touched, session.baseline.to(self.tree)
        work: dict[str, Content | None] = dict(touched)
        may_refuse = False
        for path in overlapping(touched, drift):
            if path in drift and drift[path] == touched[path]:
                del work[path]
                continue
            merged = merge(session.baseline.get(path), touched[path], drift[path]) if path in drift else None
            if merged is None:
                return frozenset({"BASELINE_CONFLICT"}), session.files
            work[path] = merged
            may_refuse = True  # git merges slightly more than the engine
        return FINE | {"BASELINE_CONFLICT"} if may_refuse else FINE, self.tree.made_by(work)

    @staticmethod
    def _left(session: ModelSession, selected: Edits) -> Edits:
        """What a promotion of a selection leaves behind."""
        return session.touched.only(path for path in session.touched if path not in selected)

    def ended(self, session: ModelSession, how: State) -> None:
        """Record that a session was discarded or swept; a session that had ended stays as it is."""
        session.state, session.present = how if session.state == "active" else session.state, False

    def due(self, now: datetime) -> list[str]:
        """Return the sessions that a sweep at this instant must evict, all of them and no others (rule 8, docs/explanation/rules.md)."""
        return sorted(id_ for id_, session in self.sessions.items() if session.due(now))
