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
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.workspaces.finder.opened_repository import GONE, SHORT, OpenedRepository, opened, refusal
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace
from pytest_gittrix.workspaces.repositories.walk import find_repositories
from pytest_gittrix.workspaces.secrets import is_credential_file

_ORIGIN: Final = "refs/remotes/origin/"
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
        pushed: commits that are known to be on a remote, in addition to those that the shared clones fetched from there.
        saved: the finalizations' notes of what is safe, by repository.

    Raises:
        OSError: the disk has no space for a temporary repository of the engine's.
    """
    if not os.path.isdir(workspace.path):
        return ()
    paths = find_repositories(workspace.path)
    own = {one.directory for one in workspace.repositories}
    noted = saved or {}
    states = [_inspect_repository(workspace, one, paths, pushed, noted.get(one.name, Saved())) for one in workspace.repositories]
    unknown = "the session does not know it, nor a remote of it"
    return (*states, *(RepositoryState(path, None, holds_work=True, problem=unknown) for path in paths if path not in own))


def _inspect_repository(
    workspace: MultiRepoWorkspace, repository: CheckedOutRepository, paths: Collection[str], pushed: Collection[str], saved: Saved
) -> RepositoryState:
    problem = refusal(workspace, repository)
    if problem is not None:
        root = os.path.join(workspace.path, repository.directory)
        holds = problem != GONE or (os.path.isdir(root) and bool(os.listdir(root)))
        return RepositoryState(repository.name, None, holds_work=holds, problem=problem)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gittrix-look-") as directory,
            opened(workspace, repository, paths, os.path.join(directory, "repository.git"), lambda: _TIMEOUT) as look,
        ):
            return _state_of(look, {*pushed, *saved.commits}, saved)
    except (GittrixError, OSError, ValueError, LookupError, RecursionError) as error:
        reason = error.fact if isinstance(error, GittrixError) else f"{type(error).__name__}: {error}"
        return RepositoryState(repository.name, None, holds_work=True, problem=reason)


def _state_of(look: OpenedRepository, pushed: Collection[str], saved: Saved) -> RepositoryState:
    found = look.found
    uncommitted = sorted(look.paths)
    safe = {path for path, entry in look.uncommitted.changes.items() if _is_saved(saved, path, entry)}
    work = [path for path in uncommitted if path not in safe and not _is_idle(path, tracked=path in look.entries)]
    staged = look.staged({id_ for _, id_ in filter(None, saved.files.values())})
    unpushed, alone = _commits(look, pushed)
    problem = "; ".join([*found.problems, *(f".git/{path} holds work of its own" for path in found.other_stores)]) or None
    return RepositoryState(
        look.planned.name,
        found.branch,
        tuple(uncommitted),
        tuple(unpushed),
        bool(work or staged or alone or problem),
        problem,
        tuple(sorted(safe)),
        tuple(look.uncommitted.ignored),
        tuple(staged),
    )


def _is_idle(path: str, *, tracked: bool) -> bool:
    """Whether a file is no work: credentials, or the state of what ran here."""
    return is_credential_file(path) or is_runtime(path, tracked=tracked)


def _is_saved(saved: Saved, path: str, entry: Entry | None) -> bool:
    return path in saved.files and saved.files[path] == (None if entry is None else (entry.mode, entry.id))


def _commits(look: OpenedRepository, pushed: Collection[str]) -> tuple[list[str], bool]:
    """The labels of the commits that the remote does not have; and whether there are any if the agent's own refs are not trusted."""
    scratch = look.scratch
    fetched = References(look.clone, scratch.format).below(_ORIGIN).values() if os.path.isdir(look.clone) else ()
    known = {*scratch.object_kinds({*fetched, *pushed, *filter(None, [look.planned.commit])})}
    claimed = known | {*scratch.object_kinds(look.found.remotes.values())}
    unpushed = [label for label, tip in look.tips.items() if scratch.new_commits([tip], claimed)]
    unpushed += [f"lost-{id_[:SHORT]}" for id_ in sorted(look.lost([*claimed, *look.tips.values()]))]
    return unpushed, bool(unpushed or scratch.new_commits([*look.own_commits, *look.tips.values()], known))
