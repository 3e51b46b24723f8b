"""One repository of a workspace of several, opened to find the work in it: an inspection names it, and a finalization pushes it.

The agent's git directory is read as plain files. Git runs in a scratch repository alone, which borrows the agent's objects and those of the
shared clone. Nothing in the workspace is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pytest_gittrix.git.tree import Entry, flatten
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace, clone_format, clone_path
from pytest_gittrix.workspaces.repositories.agent_repository import AgentRepository, read_repository
from pytest_gittrix.workspaces.repositories.scratch_repository import ScratchRepository
from pytest_gittrix.workspaces.repositories.uncommitted import Uncommitted, find_uncommitted

GONE: Final = "there is no repository any more"
"""Why a repository whose git directory the agent removed cannot be opened."""
SHORT: Final = 12
"""The digits of an id in the label of a commit."""


def refusal(workspace: MultiRepoWorkspace, repository: CheckedOutRepository) -> str | None:
    """Why a repository cannot be opened: ``GONE``, or a link that leads elsewhere; None if it can be tried."""
    root = os.path.join(workspace.path, repository.directory)
    if not os.path.lexists(os.path.join(root, ".git")):
        return GONE
    if os.path.realpath(root) != os.path.join(os.path.realpath(workspace.path), *repository.directory.split("/")):
        return f"a link leads from {repository.directory} to another place"
    return None


@dataclass(frozen=True)
class OpenedRepository:
    """A repository that was opened. Made by ``opened``.

    Attributes:
        planned: the repository as the workspace was planned.
        root: its work tree.
        clone: the shared clone of its remote.
        found: what its git directory holds.
        scratch: the repository in which git may run.
        nested: other repositories below the work tree, relative to it.
        on_step: called for each file of the work tree; may raise to end the look.
    """

    planned: CheckedOutRepository
    root: str
    clone: str
    found: AgentRepository
    scratch: ScratchRepository
    nested: frozenset[str]
    on_step: Callable[[], object]

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Everything in the commit that is checked out, by path."""
        commit = self.found.commit
        return {} if commit is None else flatten(self.scratch.trees.read, self.scratch.commit(commit).tree)

    @cached_property
    def uncommitted(self) -> Uncommitted:
        """The files of the work tree that differ from that commit."""
        found = self.found
        return find_uncommitted(
            self.root,
            self.entries,
            self.scratch.format,
            may_be_deleted=found.may_be_deleted,
            exclude=found.exclude,
            nested=self.nested,
            on_file=self.on_step,
        )

    @property
    def paths(self) -> list[str]:
        """The paths of these files, and of those that can never be committed."""
        return [*self.uncommitted.changes, *self.uncommitted.refused]

    @cached_property
    def own_commits(self) -> frozenset[str]:
        """The commits in the agent's own store, whatever leads to them."""
        return frozenset(id_ for id_, kind in self.scratch.object_kinds(self.found.objects).items() if kind == "commit")

    @cached_property
    def tips(self) -> Mapping[str, str]:
        """The commits of branches, of a detached HEAD and of stashes, by label: a branch's name, ``HEAD-<id>``, ``stash-<id>``."""
        found = self.found
        tips = dict(found.branches)
        if found.commit is not None and found.branch is None:
            tips[f"HEAD-{found.commit[:SHORT]}"] = found.commit
        return tips | {f"stash-{stash[:SHORT]}": stash for stash in found.stashes}

    def lost(self, known: Iterable[str]) -> list[str]:
        """The uppermost of the agent's own commits that none of ``known`` leads to: only a reflog, a tag or nothing names them."""
        missing = self.scratch.new_commits(self.own_commits, known) if self.own_commits else {}
        inner = {parent for parents in missing.values() for parent in parents}
        return [id_ for id_ in missing if id_ not in inner]

    def staged(self, elsewhere: Collection[str]) -> list[str]:
        """The paths for which contents are staged that are neither in a file, nor in the commit that is checked out, nor ``elsewhere``."""
        entries = (*self.entries.values(), *self.uncommitted.changes.values())
        kept = {entry.id for entry in entries if entry is not None}.union(elsewhere)
        staged = () if self.found.index is None else self.found.index.staged()
        return sorted({path for path, id_ in staged if id_ not in kept and id_ in self.found.objects})


@contextmanager
def opened(
    workspace: MultiRepoWorkspace, repository: CheckedOutRepository, repositories: Iterable[str], path: str, time_left: Callable[[], float]
) -> Iterator[OpenedRepository]:
    """Open a repository for which there is no ``refusal``.

    Args:
        workspace: the workspace.
        repository: the repository as the workspace was planned.
        repositories: the paths of all repositories that are in the workspace.
        path: where to make the scratch repository; the caller removes it.
        time_left: the seconds that are left; it may raise.

    Raises:
        GittrixError, OSError, ValueError, LookupError, RecursionError: the agent's repository cannot be read.
    """
    root, clone = os.path.join(workspace.path, repository.directory), clone_path(workspace.clones, repository.url)
    format_ = clone_format(clone, repository.commit)
    found = read_repository(root, format_, on_step=time_left)
    lenders = [directory for parent in (os.path.join(root, ".git"), clone) if os.path.isdir(directory := f"{parent}/objects")]
    scratch = ScratchRepository.make(path, format_, lenders, shallow=found.shallow, time_left=time_left)
    below = f"{repository.directory}/"
    nested = frozenset(path.removeprefix(below) for path in repositories if path.startswith(below))
    try:
        yield OpenedRepository(repository, root, clone, found, scratch, nested, time_left)
    finally:
        scratch.close()
