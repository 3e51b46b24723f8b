"""Repositories and workspaces on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Drift, Durable, LandingResult
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.commit import BuiltCommit, Commit, Signature, build_commit
from pytest_gittrix.git.consolidation import finish
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.pack import release_pack
from pytest_gittrix.git.refs import BRANCHES_AND_TAGS, PackedReferences, branch_ref, short_branch, temporary_prefix
from pytest_gittrix.git.repository import Checkout, Repository, require_head
from pytest_gittrix.git.tree import Changes, Entry, Item, changed_paths, entry_at
from pytest_gittrix.git.worktree.checkout_update import LockedCheckout, Sides, lock_checkout
from pytest_gittrix.os_level.command import Level, check_level
from pytest_gittrix.os_level.files import names_in, read_text, sync_directory
from pytest_gittrix.workspaces.additions.settings import check_texts
from pytest_gittrix.workspaces.kinds import WorkspaceKind, check_kind
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed
from pytest_gittrix.workspaces.seeds.seed import History, Seed, check_history
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace, create, open_workspace

MOST_SPARES = 64
"""How many spares an engine makes at most."""
_COUNTED_COMMITS = 1000
_DETACHED = "main"
_FALLBACK = ("gittrix", "gittrix@localhost")
_MOST_NAMED = 5
_CALLED_BARE = "core.bare is true in {}, although there is a work tree, so git refuses to work there: `git config core.bare false` mends it"


class RepositoryReader(Durable):
    """The part of a durable that reads objects of a repository on this machine, and builds commits in memory."""

    repository: Repository
    """The repository; of a remote, its mirror."""

    branch: str = ""  # over the property of the protocol, which cannot be set

    def __init__(self, branch: str, author: tuple[str, str] | None, protected: Collection[str], *, sync: bool) -> None:
        self.branch = branch
        self.sync = sync
        self._author = author
        self._protected = frozenset(protected)

    def seed(self, seeds: str, commit: str, history: History) -> Seed:
        return prepare_seed(seeds, self.repository, commit, history, sync=self.sync)

    def drift(self, baseline: str, head: str, seed: Seed | None = None) -> Drift:
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
        return entry_at(self.read_tree, self.repository.tree(commit), path)

    def read_tree(self, id_: str) -> Mapping[bytes, Item]:
        return self.repository.trees.read(id_)

    def blob(self, id_: str) -> bytes:
        return self.repository.blob(id_)

    def commit(self, id_: str) -> Commit:
        return self.repository.commit(id_)

    def contributors(self, branch: str, most: int) -> int:
        """Count the different author addresses among the last thousand commits of a branch, up to ``most``."""
        addresses: set[str] = set()
        for commit in self.repository.log(self.head(branch), limit=_COUNTED_COMMITS):
            addresses.add(commit.author.email.lower())
            if len(addresses) >= most:
                break
        return len(addresses)

    def protected(self, branch: str) -> bool:
        """Whether the branch was declared protected."""
        return branch.removeprefix("refs/heads/") in self._protected

    @cached_property
    def identity(self) -> tuple[str, str]:
        """Author name and address of promoted commits."""
        if self._author is not None:
            return self._author
        name, email = self.repository.identity
        if name and email:
            return name, email
        try:
            config = libgit2.Config.get_global_config()
            return name or str(config["user.name"]), email or str(config["user.email"])
        except (KeyError, OSError, libgit2.GitError):
            return name or _FALLBACK[0], email or _FALLBACK[1]

    def _signature(self, seconds: int) -> Signature:
        return Signature(*self.identity, seconds)

    def build(self, parent: str, changes: Changes, blobs: Mapping[str, bytes], *, message: str, seconds: int) -> BuiltCommit:
        return build_commit(
            self.read_tree,
            self.repository.tree(parent),
            changes,
            blobs,
            parent=parent,
            author=self._signature(seconds),
            message=message,
            format_=self.repository.format,
            level=1 if self.sync else 0,  # without sync speed matters more than size
        )


class LocalDurable(RepositoryReader):
    """A git repository on this machine, with a work tree or bare.

    Args:
        path: the repository, or a directory inside its work tree.
        branch: the branch that sessions start from and promote to; by default the one that HEAD is on, or ``main`` if HEAD is detached.
        author: name and address on promoted commits; by default those configured in the repository, then the user's own.
        protected: full names of branches that commits may not be made on directly (not shell patterns).
        sync: write a landing through to the disk before ``land`` returns.

    Raises:
        AdapterUnavailable: there is no repository.
        UnsupportedRepository: it is shallow, partial, or uses an unknown storage.
        InvalidInput: the branch name is not valid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        branch: str | None = None,
        *,
        author: tuple[str, str] | None = None,
        protected: Collection[str] = (),
        sync: bool = True,
    ) -> None:
        named = None if branch is None else short_branch(branch)
        self.repository = Repository.open(path)
        super().__init__(named or short_branch(self.repository.current_branch() or _DETACHED), author, protected, sync=sync)

    @cached_property
    def path(self) -> str:
        """A path that opens this repository again: the work tree's root, or the git directory if no root leads to it."""
        repository = self.repository
        own = next((checkout.path for checkout in repository.checkouts() if checkout.git_dir == repository.git_dir), None)
        return own if own is not None and repository.is_found_from(own) else repository.common_dir

    @property
    def uri(self) -> str:
        """``local://<path>#<branch>``."""
        return f"local://{self.path}#{self.branch}"

    @property
    def objects_dir(self) -> str:
        return self.repository.objects_dir

    def close(self) -> None:
        self.repository.close()

    def head(self, branch: str) -> str:
        return require_head(self.repository, branch_ref(branch))

    def references(self) -> Mapping[str, str]:
        return self.repository.references.below(*BRANCHES_AND_TAGS)

    def stored_references(self) -> tuple[Mapping[str, str], PackedReferences]:
        loose = self.repository.references.loose(*BRANCHES_AND_TAGS)  # first: git packs a reference before it deletes its file
        return loose, self.repository.references.packed()

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
        ref = branch_ref(branch)
        checkouts = [checkout for checkout in self.repository.checkouts() if checkout.branch == ref]
        existing = [checkout for checkout in checkouts if os.path.isdir(checkout.path)]
        sides = self._sides(built.parent, changes) if checkouts else {}
        with ExitStack() as locks:
            locked = [
                locks.enter_context(
                    lock_checkout(checkout, self.repository.format, sides, self.blob, token=built.id, settle=settle, sync=self.sync)
                )
                for checkout in existing
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
                checkouts=checkouts,
            )
            left = {one.checkout.path: self._update(one) for one in locked}
            points.reached("land:forwarded")
        self._update_absent([checkout for checkout in checkouts if checkout not in existing], sides, built.id)
        with suppress(OSError):  # many packs are as good as one
            self.repository.consolidate(built.pack.name)
        notes = tuple(_CALLED_BARE.format(checkout.common_dir) for checkout in existing if checkout.called_bare)
        return LandingResult(tuple(root for root, why in left.items() if not why), {root: why for root, why in left.items() if why}, notes)

    def _update(self, locked: LockedCheckout) -> str:
        """Bring a checkout forward once its branch has moved; returns what was left behind and how to fix it; empty if nothing was."""
        try:
            return _reasons_text(locked.update(sync=self.sync))
        except (GittrixError, OSError) as error:
            paths = [shlex.quote(path) for path in locked.sides]
            named = f" -- {' '.join(paths)}" if len(paths) <= _MOST_NAMED else ""
            reason = error.fact if isinstance(error, GittrixError) else error.strerror or str(error)
            return (
                f"its index could not be written ({reason}), so the next `git commit` there would take the promotion back: "
                f"run `git reset -q{named}` there first, which leaves the files alone"
            )

    def _update_absent(self, checkouts: Iterable[Checkout], sides: Sides, commit: str) -> None:
        """Update the index of a work tree that is absent, such as one on an unmounted disk, so that it never reverts the commit."""
        for checkout in checkouts:
            lock = lock_checkout(checkout, self.repository.format, sides, self.blob, token=commit, resumed=True, wait=0, sync=self.sync)
            with suppress(OSError, GittrixError), lock as locked:
                locked.update_index(sync=self.sync)

    def _sides(self, parent: str | None, changes: Changes) -> Sides:
        return {path: (self.entry(parent, path) if parent else None, entry) for path, entry in changes.items()}

    def worktree_admin_dir(self, path: str) -> str | None:
        root = os.path.realpath(path)
        for checkout in self.repository.checkouts():
            if checkout.git_dir != self.repository.common_dir and os.path.realpath(checkout.path) == root:
                return checkout.git_dir
        return None

    def contains(self, branch: str, commit: str) -> bool:
        head = self.repository.head(branch_ref(branch))
        try:
            # A commit is no ancestor of its own parents, so the walk need not go beyond them.
            visited = set(self.repository.commit(commit).parents)
        except MissingObject:
            return False
        pending = [head] if head else []
        while pending:
            current = pending.pop()
            if current == commit:
                return True
            if current in visited:
                continue
            visited.add(current)
            pending.extend(self.repository.commit(current).parents)
        return False

    def repair(self, branch: str, built: str, pack: str | None) -> list[str]:
        git_dirs = [checkout.git_dir for checkout in self.repository.checkouts()]
        locks = [self.repository.references.path(branch_ref(branch)) + ".lock"]
        locks += [os.path.join(directory, "index.lock") for directory in git_dirs]
        removed = [path for path in locks if read_text(path) == built]
        for directory in {self.repository.common_dir, *git_dirs}:
            removed += [os.path.join(directory, name) for name in names_in(directory) if name.startswith(temporary_prefix(built))]
        for path in removed:
            # Git may prune a linked work tree that is gone, with all that is in its git directory.
            with suppress(FileNotFoundError):
                os.unlink(path)
                if self.sync:
                    sync_directory(os.path.dirname(path))
        if pack is not None:
            release_pack(self.repository.objects_dir, pack, sync=self.sync, killed=True)
            finish(self.repository.objects_dir, pack, self.repository.format)
        return removed

    def bring_forward(self, branch: str, commit: str) -> LandingResult:
        ref = branch_ref(branch)
        head = self.repository.head(ref)
        parents = self.repository.commit(commit).parents
        if head is None or not parents:
            return LandingResult()
        # The branch may have moved on since, so the selected paths get their contents at its current head.
        sides = {path: (old, self.entry(head, path)) for path, (old, _) in self.drift(parents[0], commit).items()}
        forwarded: list[str] = []
        stale: dict[str, str] = {}
        for checkout in self.repository.checkouts():
            if checkout.branch != ref or not os.path.isdir(checkout.path):
                continue
            try:
                lock = lock_checkout(checkout, self.repository.format, sides, self.blob, token=commit, resumed=True, sync=self.sync)
                with lock as locked:
                    left = self._update(locked)
                if left:
                    stale[checkout.path] = left
                else:
                    forwarded.append(checkout.path)
            except (OSError, GittrixError) as error:
                stale[checkout.path] = str(error)
        return LandingResult(tuple(forwarded), stale)


def _reasons_text(reasons: Mapping[str, str]) -> str:
    """The paths of a checkout that were not brought forward, each with its reason and what to do, as one line; empty without any."""
    if not reasons:
        return ""
    every = "; ".join(f"{path!r} {reason}" for path, reason in sorted(reasons.items()))
    return f"{every}. `git status` there shows what differs: `git restore` takes the promoted contents, `git commit -a` takes them back"


@dataclass(frozen=True)
class LocalEphemeral:
    """Workspaces on this machine.

    Attributes:
        kind: ``clone`` (self-contained repository), ``lazy`` (holds only written files), ``copy`` (files without git), ``worktree``
            (linked work tree, which shares references with durable) or ``overlay`` (a ``clone`` that is whole in a jail only).
        history: how much history a ``clone`` or an ``overlay`` contains: ``none``, a number of commits, or ``full``.
        confine: how an agent's programs are confined: ``auto``, ``off``, ``guard`` or ``jail`` (docs/reference/confinement.md). None leaves
            it to the one who starts them, which is ``auto``.
        limits: how large a session's changes may be.
        spares: how many workspaces an engine makes ahead, in the background, so that the next start is a rename; of ``clone``, ``copy`` and
            ``overlay`` on a repository of this machine. Each takes the disk space of a workspace (docs/how-to/choose-a-workspace.md).
        include: gitignore patterns of files that git ignores, such as ``.env``, which a new workspace gets from durable's checkout.
        project_settings: whether the repository's own settings count, too: ``.worktreeinclude``, and ``[tool.gittrix]`` in its
            ``pyproject.toml`` (docs/how-to/give-a-workspace-what-a-checkout-has.md).

    Raises:
        InvalidInput: a value is not allowed; the message lists the allowed ones.
    """

    kind: WorkspaceKind = "clone"
    history: History = "none"
    confine: Level | None = None
    limits: Limits = field(default_factory=Limits)
    spares: int = 0
    include: Collection[str] = ()
    project_settings: bool = True
    address: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_kind(self.kind)
        check_history(self.history)
        if not isinstance(self.spares, int) or isinstance(self.spares, bool) or not 0 <= self.spares <= MOST_SPARES:
            raise InvalidInput(
                f"spares={self.spares!r} is not a number of spares.",
                why="Each spare is a whole workspace on the disk.",
                fix=f"Use a whole number from 0 to {MOST_SPARES}.",
            )
        if self.confine is not None:
            check_level(self.confine)
        patterns = check_texts(self.include, "include", "It says which ignored files a new workspace gets.", '[".env"]')
        object.__setattr__(self, "include", patterns)

    def with_kind(self, kind: str, history: History | None = None) -> LocalEphemeral:
        """The same adapter for another kind of workspace, and perhaps another history. Raises InvalidInput if there is no such kind."""
        return replace(self, kind=check_kind(kind), history=self.history if history is None else history)

    def create(self, path: str, state_dir: str, seed: Seed, *, branch: str, durable_objects: str | None, name: str) -> Workspace:
        """Make a workspace at the seed's baseline.

        Raises:
            CapabilityMissing: ``kind`` is ``worktree``, and the repository is not on this machine.
        """
        common_dir = os.path.dirname(durable_objects) if durable_objects is not None else None
        workspace = create(self.kind, path, state_dir, seed, branch=branch, durable_common_dir=common_dir, name=name)
        workspace.confine = self.confine or "auto"
        return workspace

    def open(self, path: str, state_dir: str, seeds: str | None = None) -> Workspace:
        """Open an existing workspace, with its seed in a directory. Raises AdapterUnavailable if the engine's state of it is gone."""
        workspace = open_workspace(path, state_dir, seeds)
        workspace.confine = self.confine or "auto"
        return workspace
