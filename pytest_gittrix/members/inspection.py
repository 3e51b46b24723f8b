"""What the repositories of a member's workspace hold, and whether any of it is nowhere else (BotMinter, session-systems 4.1 and 4.6).

No network is asked: what the remotes have is what the shared clones saw of them last, and what finalizations pushed. In doubt, work is
nowhere else. The agent's git directories are read as plain files, as a finalization does it (RELIABILITY 3.5). It must not know what is
done with the answer.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.refs import References
from pytest_gittrix.git.tree import Entry, flatten
from pytest_gittrix.members.finalize_files import is_credential, is_runtime
from pytest_gittrix.members.finalize_record import Saved
from pytest_gittrix.members.finalize_repository import Task, lenders
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.workspaces.alternates import ScratchRepository
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace, clone_format, clone_path
from pytest_gittrix.workspaces.rescue import AgentRepository, find_repositories, read_repository
from pytest_gittrix.workspaces.uncommitted import find_uncommitted

_ORIGIN: Final = "refs/remotes/origin/"
_SHORT: Final = 12
_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """What one repository of a workspace holds.

    Attributes:
        name: its name; the place of one that the session does not know.
        branch: the branch that is checked out; None for a detached HEAD.
        uncommitted: paths that differ from the commit that is checked out, sorted. What git ignores is not among them.
        unpushed: what leads to commits that the remote has not: names of branches, ``HEAD-<id>`` for a detached HEAD, ``stash-<id>``, and
            ``lost-<id>`` for what nothing leads to.
        holds_work: whether it may have work that is nowhere else. Credentials, state of what ran there, and files that a finalization
            committed and pushed as they are, are no work; and that something was pushed counts only if others than the agent's
            repository say so.
        problem: why it cannot be told, where it cannot; then it counts as holding work.
    """

    name: str
    branch: str | None
    uncommitted: tuple[str, ...] = ()
    unpushed: tuple[str, ...] = ()
    holds_work: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A session, and what its workspace holds at this moment.

    Attributes:
        life: the session.
        repositories: those of its workspace, in the order in which they were asked for, then those that it does not know; none once the
            workspace is gone.
    """

    life: Life
    repositories: tuple[RepositoryState, ...]

    @property
    def holds_work(self) -> bool:
        """Whether any of them has work that is nowhere else."""
        return any(one.holds_work for one in self.repositories)


def look_into(
    workspace: MultiRepoWorkspace, pushed: Collection[str] = (), saved: Mapping[str, Saved] | None = None
) -> tuple[RepositoryState, ...]:
    """What the repositories of a workspace hold. Nothing in it is changed.

    Args:
        workspace: what ``checkout_all`` made.
        pushed: commits that are known to be on a remote, besides those that the shared clones saw there.
        saved: what finalizations noted of what is safe, by repository.

    Raises:
        OSError: there is no room for a repository of the engine's own beside it.
    """
    if not os.path.isdir(workspace.path):
        return ()
    places = find_repositories(workspace.path)
    own = {one.directory for one in workspace.repositories}
    noted = saved or {}
    found = [_look(workspace, one, places, pushed, noted.get(one.name, Saved())) for one in workspace.repositories]
    unknown = "the session does not know it, nor a remote of it"
    return (*found, *(RepositoryState(place, None, holds_work=True, problem=unknown) for place in places if place not in own))


def _look(
    workspace: MultiRepoWorkspace, repository: CheckedOutRepository, places: Iterable[str], pushed: Collection[str], saved: Saved
) -> RepositoryState:
    root = os.path.join(workspace.path, repository.directory)
    if not os.path.lexists(os.path.join(root, ".git")):
        left = os.path.isdir(root) and bool(os.listdir(root))
        return RepositoryState(repository.name, None, holds_work=left, problem="there is no repository any more")
    below = f"{repository.directory}/"
    strangers = frozenset(place.removeprefix(below) for place in places if place.startswith(below))
    if os.path.realpath(root) != os.path.join(os.path.realpath(workspace.path), *repository.directory.split("/")):
        return RepositoryState(repository.name, None, holds_work=True, problem=f"a link leads from {repository.directory} to another place")
    try:
        format_ = clone_format(clone_path(workspace.clones, repository.url), repository.commit)
        found = read_repository(root, format_, timeout=_TIMEOUT)
        with tempfile.TemporaryDirectory(prefix="gittrix-look-") as directory:
            task = Task(repository, root, "", strangers, ("", ""))
            return _Look(workspace, task, found, format_, saved).run(directory, {*pushed, *saved.commits})
    except (GittrixError, OSError, ValueError, LookupError, RecursionError) as problem:
        told = problem.fact if isinstance(problem, GittrixError) else f"{type(problem).__name__}: {problem}"
        return RepositoryState(repository.name, None, holds_work=True, problem=told)


@dataclass(frozen=True)
class _Look:
    """A look into one repository."""

    workspace: MultiRepoWorkspace
    task: Task
    found: AgentRepository
    format: ObjectFormat
    saved: Saved

    def run(self, directory: str, pushed: Collection[str]) -> RepositoryState:
        found, repository = self.found, self.task.repository
        borrowed = lenders(self.task, self.workspace.clones)
        path = os.path.join(directory, "repository.git")
        scratch = ScratchRepository.make(path, self.format, borrowed, shallow=found.shallow, time_left=lambda: _TIMEOUT)
        try:
            dirty, work = self._files(scratch)
            unpushed, alone = self._commits(scratch, pushed)
        finally:
            scratch.close()
        problem = "; ".join([*found.problems, *(f".git/{place} holds work of its own" for place in found.other_stores)]) or None
        holds = bool(work or alone or problem)
        return RepositoryState(repository.name, found.branch, tuple(dirty), tuple(unpushed), holds, problem)

    def _files(self, scratch: ScratchRepository) -> tuple[list[str], list[str]]:
        """The files that differ, and those of them that are work."""
        commit = self.found.commit
        entries = flatten(scratch.trees.read, scratch.commit(commit).tree) if commit is not None else {}
        seen = find_uncommitted(
            self.task.root,
            entries,
            self.format,
            may_be_deleted=self.found.may_be_deleted,
            exclude=self.found.exclude,
            nested=self.task.strangers,
        )
        dirty = sorted({*seen.changes, *seen.refused})
        safe = {path for path, entry in seen.changes.items() if self._is_saved(path, entry)}
        return dirty, [path for path in dirty if not (path in safe or is_credential(path) or is_runtime(path, tracked=path in entries))]

    def _is_saved(self, path: str, entry: Entry | None) -> bool:
        return path in self.saved.files and self.saved.files[path] == (None if entry is None else (entry.mode, entry.id))

    def _commits(self, scratch: ScratchRepository, pushed: Collection[str]) -> tuple[list[str], bool]:
        """What leads to commits that the remote has not; and whether there are any, if only others than the agent are believed."""
        found, base = self.found, self.task.repository.commit
        clone = clone_path(self.workspace.clones, self.task.repository.url)
        seen = References(clone, self.format).below(_ORIGIN).values() if os.path.isdir(clone) else ()
        known = {*scratch.object_kinds({*seen, *pushed, *filter(None, [base])})}
        told = known | {*scratch.object_kinds(found.remotes.values())}
        tips = dict(found.branches)
        if found.commit is not None and found.branch is None:
            tips[f"HEAD-{found.commit[:_SHORT]}"] = found.commit
        tips |= {f"stash-{stash[:_SHORT]}": stash for stash in found.stashes}
        unpushed = [label for label, tip in tips.items() if scratch.new_commits([tip], told)]
        own = [id_ for id_, kind in scratch.object_kinds(found.objects).items() if kind == "commit"]
        lost = scratch.new_commits(own, [*told, *tips.values()]) if own else {}
        inner = {parent for parents in lost.values() for parent in parents}
        unpushed += [f"lost-{id_[:_SHORT]}" for id_ in sorted(lost) if id_ not in inner]
        return unpushed, bool(unpushed or scratch.new_commits([*own, *tips.values()], known))
