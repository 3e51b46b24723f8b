"""Repositories and workspaces on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property

import pygit2

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Drift, LandingResult
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.checkout_update import Sides, lock_checkout
from pytest_gittrix.git.commit import BuiltCommit, Commit, Signature, build_commit
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.pack import release_pack
from pytest_gittrix.git.refs import branch_ref, short_branch, temporary_prefix
from pytest_gittrix.git.repository import Repository, require_head
from pytest_gittrix.git.tree import Changes, Entry, Item, changed_paths, entry_at
from pytest_gittrix.os_level.confinement_levels import Level, check_level
from pytest_gittrix.os_level.files import read_text
from pytest_gittrix.workspaces.seed import History, Seed, check_history, prepare_seed
from pytest_gittrix.workspaces.snapshot import Limits
from pytest_gittrix.workspaces.workspace import Workspace, WorkspaceKind, check_kind, create, open_workspace

_COUNTED_COMMITS = 1000
_FALLBACK = ("gittrix", "gittrix@localhost")


class LocalDurable:
    """A git repository on this machine, with a work tree or bare.

    Args:
        path: the repository, or any directory inside its work tree.
        branch: the branch that sessions start from and promote to.
        author: name and address on promoted commits; by default those configured in the repository, then the user's own.
        protected: branches that commits may not be made on directly, as shell patterns are not: full branch names.
        sync: write landings through to the disk before saying that they are in.

    Raises:
        AdapterUnavailable: there is no repository.
        UnsupportedRepository: it is shallow, partial or of unknown storage.
        InvalidInput: the branch name is not one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        branch: str = "main",
        *,
        author: tuple[str, str] | None = None,
        protected: Collection[str] = (),
        sync: bool = True,
    ) -> None:
        self.branch = short_branch(branch)
        self.repository = Repository.open(path)
        self.sync = sync
        self._author = author
        self._protected = frozenset(protected)

    @cached_property
    def path(self) -> str:
        """Where this repository is found again: the work tree's root, or the git directory where no root leads to it."""
        repository = self.repository
        own = next((checkout.path for checkout in repository.checkouts() if checkout.git_dir == repository.git_dir), None)
        return own if own is not None and repository.is_found_from(own) else repository.common_dir

    @property
    def uri(self) -> str:
        """``local://<path>#<branch>``."""
        return f"local://{self.path}#{self.branch}"

    @property
    def objects_dir(self) -> str:
        """Its object directory."""
        return self.repository.objects_dir

    def close(self) -> None:
        """Give back descriptors and processes."""
        self.repository.close()

    def head(self, branch: str) -> str:
        """The commit a branch is at. Raises InvalidInput if there is no such branch."""
        return require_head(self.repository, branch_ref(branch))

    def references(self) -> Mapping[str, str]:
        """Every branch and tag with its id."""
        return self.repository.references.below("refs/heads/", "refs/tags/")

    def seed(self, seeds: str, commit: str, history: History) -> Seed:
        """What workspaces of a commit start from."""
        return prepare_seed(seeds, self.repository, commit, history, sync=self.sync)

    def drift(self, baseline: str, head: str, seed: Seed | None = None) -> Drift:
        """Every path that differs between two commits, in the cost of what differs.

        Args:
            baseline: the older commit.
            head: the newer one.
            seed: what holds the baseline, where history may have been rewritten and pruned since.
        """
        if baseline == head:
            return {}

        def read(id_: str) -> Mapping[bytes, Item]:
            try:
                return self.read_tree(id_)
            except MissingObject:
                if seed is None:
                    raise
                return seed.trees.read(id_)

        old = seed.root if seed is not None and seed.commit == baseline else self.repository.tree(baseline)
        return changed_paths(read, old, self.repository.tree(head))

    def entry(self, commit: str, path: str) -> Entry | None:
        """What stands at a path in a commit."""
        return entry_at(self.read_tree, self.repository.tree(commit), path)

    def read_tree(self, id_: str) -> Mapping[bytes, Item]:
        """A tree object, parsed."""
        return self.repository.trees.read(id_)

    def blob(self, id_: str) -> bytes:
        """The bytes of a blob."""
        return self.repository.blob(id_)

    def commit(self, id_: str) -> Commit:
        """A commit, parsed."""
        return self.repository.commit(id_)

    def contributors(self, branch: str, most: int) -> int:
        """Different author addresses among the last thousand commits of a branch, counted up to ``most``."""
        people: set[str] = set()
        for commit in self.repository.log(self.head(branch), limit=_COUNTED_COMMITS):
            people.add(commit.author.email.lower())
            if len(people) >= most:
                break
        return len(people)

    def protected(self, branch: str) -> bool:
        """Whether the branch was declared protected."""
        return branch.removeprefix("refs/heads/") in self._protected

    @cached_property
    def identity(self) -> tuple[str, str]:
        """Name and address that promoted commits carry."""
        if self._author is not None:
            return self._author
        name, email = self.repository.identity
        if name and email:
            return name, email
        try:
            config = pygit2.Config.get_global_config()
            return name or str(config["user.name"]), email or str(config["user.email"])
        except (KeyError, OSError, pygit2.GitError):
            return name or _FALLBACK[0], email or _FALLBACK[1]

    def _signature(self, seconds: int) -> Signature:
        return Signature(*self.identity, seconds)

    def build(self, parent: str, changes: Changes, blobs: Mapping[str, bytes], *, message: str, seconds: int) -> BuiltCommit:
        """The commit that applies changes to a parent, in memory. Raises TreeClash if they do not fit."""
        return build_commit(
            self.read_tree,
            self.repository.tree(parent),
            changes,
            blobs,
            parent=parent,
            author=self._signature(seconds),
            message=message,
            format_=self.repository.format,
            level=1 if self.sync else 0,  # what need not survive a power cut need not be small either
        )

    def land(
        self,
        branch: str,
        built: BuiltCommit,
        changes: Changes,
        *,
        expected: str | None,
        note: str,
        keep: str,
        seconds: int,
        settle: Callable[[str], bool],
    ) -> LandingResult:
        """Make a built commit the branch's head, and bring work trees on that branch forward.

        Raises:
            RefMoved: the branch is not at ``expected``.
            WorktreeDirty: a work tree on the branch has the human's work in the way.
            DurableLocked: another program holds the branch.
            WriteRejected, OSError: the disk failed; ``contains`` knows whether the branch has moved, ``repair`` and
            ``bring_forward`` end it.
        """
        ref = branch_ref(branch)
        on_it = [checkout for checkout in self.repository.checkouts() if checkout.branch == ref]
        there = [checkout for checkout in on_it if os.path.isdir(checkout.path)]
        sides = self._sides(built.parent, changes) if there else {}
        with ExitStack() as held:
            forwards = [
                held.enter_context(lock_checkout(checkout, self.repository.format, sides, token=built.id, settle=settle, sync=self.sync))
                for checkout in there
            ]
            self.repository.land(
                ref,
                built,
                signature=self._signature(seconds),
                note=note,
                keep=keep,
                expected=expected,
                sync=self.sync,
                settle=settle,
                checkouts=on_it,
            )
            left = {forward.checkout.path: forward.update(self.blob, sync=self.sync) for forward in forwards}
            points.reached("land:forwarded")
        return LandingResult(tuple(path for path in left if not left[path]), {path: _told(left[path]) for path in left if left[path]})

    def _sides(self, parent: str | None, changes: Changes) -> Sides:
        return {path: (self.entry(parent, path) if parent else None, entry) for path, entry in changes.items()}

    def worktree_admin_dir(self, path: str) -> str | None:
        """The git directory kept for a linked work tree at ``path``, if there is one."""
        wanted = os.path.realpath(path)
        for checkout in self.repository.checkouts():
            if checkout.git_dir != self.repository.common_dir and os.path.realpath(checkout.path) == wanted:
                return checkout.git_dir
        return None

    def contains(self, branch: str, commit: str) -> bool:
        """Whether a commit is the branch's head or among its ancestors (all parents followed)."""
        head = self.repository.head(branch_ref(branch))
        try:
            # No commit is among the ancestors of its own parents, so a branch that did not move far is not walked far.
            seen = set(self.repository.commit(commit).parents)
        except MissingObject:
            return False
        pending = [head] if head else []
        while pending:
            here = pending.pop()
            if here == commit:
                return True
            if here in seen:
                continue
            seen.add(here)
            pending.extend(self.repository.commit(here).parents)
        return False

    def repair(self, branch: str, built: str, pack: str | None) -> list[str]:
        """Remove the locks and shields that a killed landing of ``built`` left; only what its contents prove to be that landing's."""
        common = self.repository.common_dir
        suspects = [self.repository.references.path(branch_ref(branch)) + ".lock"]
        suspects += [os.path.join(checkout.git_dir, "index.lock") for checkout in self.repository.checkouts()]
        removed = [path for path in suspects if read_text(path) == built]
        for directory in {common, *(checkout.git_dir for checkout in self.repository.checkouts())}:
            removed += [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(temporary_prefix(built))]
        for path in removed:
            os.unlink(path)
        if pack is not None:
            release_pack(self.repository.objects_dir, pack)
        return removed

    def bring_forward(self, branch: str, commit: str) -> LandingResult:
        """Finish the work trees of a killed landing whose commit is in, where they are still as they were before it."""
        ref = branch_ref(branch)
        head = self.repository.head(ref)
        parents = self.repository.commit(commit).parents
        if head is None or not parents:
            return LandingResult()
        # Others may have moved the branch on since: what was selected comes to where it is now.
        sides = {path: (old, self.entry(head, path)) for path, (old, _) in self.drift(parents[0], commit).items()}
        done: list[str] = []
        stale: dict[str, str] = {}
        for checkout in self.repository.checkouts():
            if checkout.branch != ref or not os.path.isdir(checkout.path):
                continue
            try:
                with lock_checkout(checkout, self.repository.format, sides, token=commit, resumed=True, sync=self.sync) as forward:
                    left = forward.update(self.blob, sync=self.sync)
                if left:
                    stale[checkout.path] = _told(left)
                else:
                    done.append(checkout.path)
            except (OSError, GittrixError) as error:
                stale[checkout.path] = str(error)
        return LandingResult(tuple(done), stale)


def _told(left: Mapping[str, str]) -> str:
    """Why paths of a checkout were left as they are, as one line."""
    return "; ".join(f"{path!r} {reason}" for path, reason in sorted(left.items()))


@dataclass(frozen=True)
class LocalEphemeral:
    """Workspaces on this machine.

    Attributes:
        kind: ``clone`` (self-contained repository), ``lazy`` (only what was written exists), ``copy`` (files, no git) or
            ``worktree`` (as the original; shares references with durable).
        history: how much of the past a ``clone`` may see: ``none``, a number of commits, or ``full``.
        confine: how programs that the agent runs through its session are confined: ``auto``, ``off``, ``guard`` or ``jail``; see
            ``confine/``. ``off`` runs them as they are.
        limits: how large a session's changes may be.

    Raises:
        InvalidInput: a value is not allowed; the message lists those that are.
    """

    kind: WorkspaceKind = "clone"
    history: History = "none"
    confine: Level = "off"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_kind(self.kind)
        check_history(self.history)
        check_level(self.confine)

    def create(self, path: str, state_dir: str, seed: Seed, *, branch: str, durable_objects: str | None, name: str) -> Workspace:
        """Make a workspace at the seed's baseline.

        Raises:
            CapabilityMissing: a ``worktree`` of a repository that is not on this machine.
        """
        common = os.path.dirname(durable_objects) if durable_objects is not None else None
        return self._told(create(self.kind, path, state_dir, seed, branch=branch, durable_common_dir=common, name=name))

    def open(self, path: str, state_dir: str) -> Workspace:
        """Find a workspace again. Raises AdapterUnavailable if what the engine knows of it is gone."""
        return self._told(open_workspace(path, state_dir))

    def _told(self, workspace: Workspace) -> Workspace:
        workspace.confine = self.confine
        return workspace
