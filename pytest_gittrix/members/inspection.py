"""Inspection: the uncommitted and unpushed work in a member's workspace, and whether any of it is nowhere else (BotMinter).

No remote is read: the remotes are taken to have what the shared clones last fetched, and what finalizations pushed. In doubt, work counts
as being nowhere else. The agent's git directories are read as plain files, as a finalization reads them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.refs import References
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.members.finalize_files import is_runtime
from pytest_gittrix.members.finalize_record import Saved
from pytest_gittrix.members.finalize_repository import GONE, Task
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.workspaces.multi_repo import MultiRepoWorkspace
from pytest_gittrix.workspaces.repositories.agent_repository import AgentRepository
from pytest_gittrix.workspaces.repositories.scratch_repository import ScratchRepository
from pytest_gittrix.workspaces.repositories.uncommitted import Uncommitted
from pytest_gittrix.workspaces.repositories.walk import find_repositories
from pytest_gittrix.workspaces.secrets import is_credential_file

_ORIGIN: Final = "refs/remotes/origin/"
_SHORT: Final = 12
_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """The work in one repository of a workspace.

    Attributes:
        name: its name; the path of one that the session does not know.
        branch: the branch that is checked out; None for a detached HEAD.
        uncommitted: paths that differ from the commit that is checked out, sorted, without those that git ignores.
        unpushed: labels of the commits that the remote does not have: names of branches, ``HEAD-<id>`` for a detached HEAD,
            ``stash-<id>``, and ``lost-<id>`` for an unreferenced commit.
        holds_work: whether it may have work that is nowhere else. Credentials, runtime state, and files that a finalization committed and
            pushed as they are, do not count as work. A commit counts as pushed only if a source other than the agent's repository says
            so.
        problem: why the repository cannot be read, if so; then it counts as holding work.
        pushed: the paths of ``uncommitted`` that a finalization committed and pushed as they are.
        ignored: untracked paths that git ignores; that of a directory ends in ``/``. They do not count as work.
        staged: paths for which contents are staged that neither their files nor the commit that is checked out have. They count as work.
    """

    name: str
    branch: str | None
    uncommitted: tuple[str, ...] = ()
    unpushed: tuple[str, ...] = ()
    holds_work: bool = False
    problem: str | None = None
    pushed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """A session, and the work in its workspace at this moment.

    Attributes:
        life: the session.
        repositories: those of its workspace, in the order of its start, then those that the session does not know; none once the
            workspace is gone.
    """

    life: Life
    repositories: tuple[RepositoryState, ...]

    @property
    def holds_work(self) -> bool:
        """Whether any of them has work that is nowhere else."""
        return any(one.holds_work for one in self.repositories)


def inspect_repositories(
    workspace: MultiRepoWorkspace, pushed: Collection[str] = (), saved: Mapping[str, Saved] | None = None
) -> tuple[RepositoryState, ...]:
    """The work in the repositories of a workspace. Nothing in it is changed.

    Args:
        workspace: the workspace as ``checkout_all`` made it.
        pushed: commits that are known to be on a remote, besides those that the shared clones fetched from there.
        saved: the finalizations' notes of what is safe, by repository.

    Raises:
        OSError: the disk has no space for a temporary repository of the engine's.
    """
    if not os.path.isdir(workspace.path):
        return ()
    paths = find_repositories(workspace.path)
    own = {one.directory for one in workspace.repositories}
    noted = saved or {}
    states = [_inspect_repository(Task.of(workspace, one, paths), pushed, noted.get(one.name, Saved())) for one in workspace.repositories]
    unknown = "the session does not know it, nor a remote of it"
    return (*states, *(RepositoryState(path, None, holds_work=True, problem=unknown) for path in paths if path not in own))


def _inspect_repository(task: Task, pushed: Collection[str], saved: Saved) -> RepositoryState:
    name = task.repository.name
    if task.is_gone():
        return RepositoryState(name, None, holds_work=os.path.isdir(task.root) and bool(os.listdir(task.root)), problem=GONE)
    if task.is_elsewhere():
        return RepositoryState(name, None, holds_work=True, problem=task.elsewhere)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gittrix-look-") as directory,
            task.opened(os.path.join(directory, "repository.git"), lambda: _TIMEOUT) as (found, scratch),
        ):
            return _RepositoryInspection(task, found, scratch, saved).run({*pushed, *saved.commits})
    except (GittrixError, OSError, ValueError, LookupError, RecursionError) as problem:
        reason = problem.fact if isinstance(problem, GittrixError) else f"{type(problem).__name__}: {problem}"
        return RepositoryState(name, None, holds_work=True, problem=reason)


@dataclass(frozen=True)
class _RepositoryInspection:
    """The inspection of one repository."""

    task: Task
    found: AgentRepository
    scratch: ScratchRepository
    saved: Saved

    def run(self, pushed: Collection[str]) -> RepositoryState:
        found = self.found
        entries, differing = self.task.compare(self.found, self.scratch)
        dirty, saved, work = self._files(entries, differing)
        staged = self._staged(entries, differing)
        unpushed, alone = self._commits(pushed)
        problem = "; ".join([*found.problems, *(f".git/{path} holds work of its own" for path in found.other_stores)]) or None
        holds = bool(work or staged or alone or problem)
        name, ignored = self.task.repository.name, tuple(differing.ignored)
        return RepositoryState(name, found.branch, tuple(dirty), tuple(unpushed), holds, problem, tuple(saved), ignored, tuple(staged))

    def _staged(self, entries: Mapping[str, Entry], differing: Uncommitted) -> list[str]:
        """The paths that are staged with contents that are nowhere else."""
        elsewhere = {entry.id for entry in (*entries.values(), *differing.changes.values()) if entry is not None}
        elsewhere |= {id_ for _, id_ in filter(None, self.saved.files.values())}
        staged = () if self.found.index is None else self.found.index.staged()
        return sorted({path for path, id_ in staged if id_ not in elsewhere and id_ in self.found.objects})

    def _files(self, entries: Mapping[str, Entry], found: Uncommitted) -> tuple[list[str], list[str], list[str]]:
        """The files that differ, and those of them that are pushed as they are, and those that are work."""
        dirty = sorted({*found.changes, *found.refused})
        safe = {path for path, entry in found.changes.items() if self._is_saved(path, entry)}
        idle = {path for path in dirty if path in safe or is_credential_file(path) or is_runtime(path, tracked=path in entries)}
        return dirty, sorted(safe), [path for path in dirty if path not in idle]

    def _is_saved(self, path: str, entry: Entry | None) -> bool:
        return path in self.saved.files and self.saved.files[path] == (None if entry is None else (entry.mode, entry.id))

    def _commits(self, pushed: Collection[str]) -> tuple[list[str], bool]:
        """The labels of the commits that the remote does not have; and whether there are any if the agent's own refs are not trusted."""
        found, scratch, base, clone = self.found, self.scratch, self.task.repository.commit, self.task.clone
        fetched = References(clone, scratch.format).below(_ORIGIN).values() if os.path.isdir(clone) else ()
        known = {*scratch.object_kinds({*fetched, *pushed, *filter(None, [base])})}
        claimed = known | {*scratch.object_kinds(found.remotes.values())}
        tips = dict(found.branches)
        if found.commit is not None and found.branch is None:
            tips[f"HEAD-{found.commit[:_SHORT]}"] = found.commit
        tips |= {f"stash-{stash[:_SHORT]}": stash for stash in found.stashes}
        unpushed = [label for label, tip in tips.items() if scratch.new_commits([tip], claimed)]
        own = [id_ for id_, kind in scratch.object_kinds(found.objects).items() if kind == "commit"]
        lost = scratch.new_commits(own, [*claimed, *tips.values()]) if own else {}
        inner = {parent for parents in lost.values() for parent in parents}
        unpushed += [f"lost-{id_[:_SHORT]}" for id_ in sorted(lost) if id_ not in inner]
        return unpushed, bool(unpushed or scratch.new_commits([*own, *tips.values()], known))
