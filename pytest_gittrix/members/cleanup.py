"""Removing workspaces of members' sessions: by age, by disk budget, or on request (docs/explanation/you-know-botminter.md).

A workspace with work that is nowhere else is removed only on request by its id, and then kept whole in its session's archive. Of any other
one, files that are in no repository, that may be credentials or that git ignores are kept there, if these are small and cannot be made
again. None is removed under a process that works in it. A workspace is renamed first, so that one that cannot be removed stays retained;
then it is looked into, the removal is recorded, and the files are deleted. The session's record stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.engine.eviction.archive import WHOLE
from pytest_gittrix.engine.eviction.evictor import LEAVING
from pytest_gittrix.engine.lineage.member_recovery import clear_away, keep, kept_data, move_aside, put_back
from pytest_gittrix.engine.operations.in_use import require_unused
from pytest_gittrix.engine.operations.recorder import convert_os_errors
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.tree import parents
from pytest_gittrix.members.finalize_files import is_runtime
from pytest_gittrix.members.finalize_record import NOTES, Notes
from pytest_gittrix.members.inspection import RepositoryState, inspect_repositories
from pytest_gittrix.members.record import MemberRecord, TeamSettings
from pytest_gittrix.members.stop import MemberEnd
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.retention import CleanupSelection, Selector, chosen, selected
from pytest_gittrix.workspaces.finder.ignored import find_left_out
from pytest_gittrix.workspaces.multi_repo import MARKER, MultiRepoWorkspace
from pytest_gittrix.workspaces.repositories.walk import files_below, walk
from pytest_gittrix.workspaces.secrets import is_credential_file

_BLOCK: Final = 512
_SMALL: Final = 4096
_PUSHED: Final = ("committed", "pushed", "recovered")


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """The outcome of a cleanup.

    Attributes:
        removed: ids of the sessions whose workspaces were removed, the longest retained first; in a dry run, those that would be.
        spared: ids of the sessions that were selected but hold work that is nowhere else.
        failed: why a selected workspace could not be removed, by id.
        dry_run: whether nothing was removed.
        archived: where that is kept which removed workspaces held and no remote has, by id.
    """

    removed: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    archived: Mapping[str, str] = field(default_factory=dict)


class _Changed(Exception):
    """The session has changed since it was selected."""


@dataclass(frozen=True)
class MemberCleanup:
    """Removing workspaces of a team's sessions."""

    team: TeamSettings

    def scan(self, lives: Collection[Life]) -> CleanupReport:
        """Remove the workspaces among these that the retention policy selects now."""
        policy, now = self.team.retention, self.team.engine.clock.now_ns()
        sizes = {} if policy.disk_budget_bytes is None else {life.id: _size(self.team.record(life.id)) for life in lives}

        def pick(with_work: Collection[str]) -> list[str]:
            return [choice.id for choice in chosen(lives, policy, now, sizes, held=with_work)]

        spared = frozenset(choice.id for choice in chosen(lives, policy, now, sizes, even_unsaved=True))
        picked = pick(self._with_work(lives, pick))
        return self._remove_all(lives, picked, [id_ for id_ in _in_order(lives, spared) if id_ not in picked], even_unsaved=False)

    def clean(self, lives: Collection[Life], selector: Selector, *, dry_run: bool) -> CleanupReport:
        """Remove the workspaces among these that ``selector`` selects; raises as ``retention.selected``."""
        now = self.team.engine.clock.now_ns()

        def pick(with_work: Collection[str]) -> CleanupSelection:
            return selected(lives, selector, now, held=with_work)

        even_unsaved = selector.id is not None or selector.even_unsaved
        picked = pick(() if even_unsaved else self._with_work(lives, lambda with_work: pick(with_work).chosen))
        if dry_run:
            return CleanupReport(picked.chosen, picked.spared, dry_run=True)
        return self._remove_all(lives, picked.chosen, picked.spared, even_unsaved=even_unsaved)

    def _with_work(self, lives: Iterable[Life], pick: Callable[[Collection[str]], Iterable[str]]) -> frozenset[str]:
        """The sessions that ``pick`` would select and whose inspection finds work that is nowhere else.

        Args:
            lives: all sessions.
            pick: selects sessions, given the ids of those that are known to have such work.
        """
        by_id = {life.id: life for life in lives}
        with_work: frozenset[str] = frozenset()
        inspected: set[str] = set()
        while fresh := [id_ for id_ in pick(with_work) if id_ not in inspected]:
            inspected.update(fresh)
            with_work |= {id_ for id_ in fresh if self.holds_work(by_id[id_])}
        return with_work

    def holds_work(self, life: Life) -> bool:
        """Whether a session's workspace may hold work that is nowhere else."""
        if life.unsaved:
            return True
        try:
            repositories = inspect_workspace(self.team.record(life.id))
        except (GittrixError, OSError):
            return True
        return self._hold_work(life, repositories)

    @staticmethod
    def _hold_work(life: Life, repositories: Iterable[RepositoryState]) -> bool:
        finalized = life.ended != "killed" and life.result is not None and life.result.exit_status is not None
        # Once the work was saved, only later changes can be lost; a shared clone that is gone by now is no reason to retain it.
        return any(one.holds_work and not (finalized and one.problem) for one in repositories)

    def _remove_all(self, lives: Iterable[Life], ids: Iterable[str], spared: Iterable[str], *, even_unsaved: bool) -> CleanupReport:
        by_id = {life.id: life for life in lives}
        removed: list[str] = []
        retained = [*spared]
        failed: dict[str, str] = {}
        archived: dict[str, str] = {}
        for id_ in ids:
            try:
                kept = self._remove(by_id[id_], even_unsaved=even_unsaved)
                removed.append(id_)
                if kept is not None:
                    archived[id_] = kept
            except _Changed:
                retained.append(id_)
            except Exception as problem:  # noqa: BLE001  (one workspace must not keep the others from being removed)
                failed[id_] = problem.fact if isinstance(problem, GittrixError) else str(problem)
        if removed:
            self.team.engine.services.tidy()
        return CleanupReport(tuple(removed), tuple(retained), failed, archived=archived)

    def _remove(self, life: Life, *, even_unsaved: bool) -> str | None:
        """Remove a workspace; returns the path of what was kept of it, if anything was."""
        record = self.team.record(life.id)
        trash = self.team.engine.services.resources.trash
        with convert_os_errors(), record.workspace_lock() as lock:
            MemberEnd(self.team).ensure_stopped(record)
            with record.locked() as session:
                now = session.life
                if now.state == "removed":
                    lock.remove()
                    return None
                changed = (now.retained_ns, now.unsaved) != (life.retained_ns, life.unsaved)
                if now.state != "retained" or (changed and not even_unsaved):
                    raise _Changed
                require_unused(record.recorder.read(), record.directory, "clean up", forcible=False)
                os.makedirs(self.team.engine.store.root / ".trash", exist_ok=True)
                apart = move_aside(record.directory)
                left_out: tuple[str, ...] = ()
                try:
                    if apart:
                        left_out = self._keep(record, now, even_unsaved=even_unsaved)
                    points.reached("member:removing")
                    session.move("removed")
                except BaseException:
                    if apart:
                        with suppress(OSError):  # the next recovery does it
                            put_back(record.directory)
                    raise
                points.reached("member:removed")
                clear_away(record.directory, trash)
                kept = kept_data(record.directory)
                if kept is not None:
                    session.add("archive.written", kept)
                session.add("workspace.removed", {"left_out": [*left_out]} if left_out else {})
                return None if kept is None else str(record.directory / WHOLE)

    def _keep(self, record: MemberRecord, life: Life, *, even_unsaved: bool) -> tuple[str, ...]:
        """Choose what of a workspace that is set apart is archived.

        Returns:
            A line for each ignored file or directory that is too large for that.

        Raises:
            _Changed: the workspace holds work and is not to be removed then.
        """
        workspace = replace(record.multi_repo(), path=str(record.directory / LEAVING))
        try:
            repositories = inspect_workspace(record, workspace)
        except (GittrixError, OSError):
            if not even_unsaved:
                raise
            keep(record.directory)
            return ()
        if not even_unsaved and self._hold_work(life, repositories):
            raise _Changed
        if any(one.holds_work for one in repositories):
            keep(record.directory)
            return ()
        paths, left_out = _doubtful(workspace, repositories)
        keep(record.directory, paths)
        return left_out


def _doubtful(workspace: MultiRepoWorkspace, repositories: Iterable[RepositoryState]) -> tuple[list[str], tuple[str, ...]]:
    """The files of a workspace that are saved nowhere and were no reason to retain it, and lines for those that are too large to keep."""
    own = [one.directory for one in workspace.repositories]
    placed = [*zip(own, repositories, strict=False)]
    secrets = [
        f"{place}/{path}"
        for place, one in placed
        for path in one.uncommitted
        if is_credential_file(path) and not is_runtime(path, tracked=False)
    ]
    ignored = [f"{place}/{path}" for place, one in placed for path in one.ignored if not is_runtime(path, tracked=False)]
    try:
        with SafeDir.open(workspace.path) as files:
            found, left_out = find_left_out(files, ignored)
    except (GittrixError, FileNotFoundError):
        found, left_out = (), tuple(map(repr, ignored))
    kept = dict.fromkeys([*secrets, *_loose(workspace.path, own), *(one.path for one in found)])
    return [path for path in kept if _is_file(workspace.path, path)], left_out


def _loose(root: str, repositories: Collection[str]) -> Iterator[str]:
    """The files of a workspace that are in none of its repositories, without its marker and the state of what ran there."""
    apart = {os.path.join(root, place) for place in repositories}
    for parent, directories, names in walk(root):
        directories[:] = [name for name in directories if os.path.join(parent, name) not in apart]
        links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
        for name in (*names, *links):
            path = os.path.relpath(os.path.join(parent, name), root)
            if path != MARKER and not is_runtime(path, tracked=False):
                yield path


def _is_file(root: str, path: str) -> bool:
    if any(os.path.islink(os.path.join(root, above)) for above in parents(path)):
        return False  # it leads elsewhere, and is archived as the link that it is
    try:
        mode = os.lstat(os.path.join(root, path)).st_mode
    except FileNotFoundError:
        return False  # a credential that was deleted
    except OSError:
        return True  # its path may be too long for the system
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def inspect_workspace(record: MemberRecord, workspace: MultiRepoWorkspace | None = None) -> tuple[RepositoryState, ...]:
    """Inspect a session's workspace, given what its finalizations pushed. Raises as ``MemberRecord.life``; OSError.

    Args:
        record: the session.
        workspace: its workspace, where it is not in its place.
    """
    actions = (event.data for event in record.events() if event.type == "finalize.repository")
    pushed = [data["commit"] for data in actions if data["action"] in _PUSHED and "commit" in data]
    return inspect_repositories(workspace or record.multi_repo(), pushed, Notes.at(str(record.finalization / NOTES)).saved)


def _in_order(lives: Iterable[Life], ids: Collection[str]) -> list[str]:
    found = [life for life in lives if life.id in ids]
    return [life.id for life in sorted(found, key=lambda life: (life.retained_ns or life.since_ns, life.id))]


def _size(record: MemberRecord) -> int:
    """The bytes that the files of a workspace take on the disk: without the holes of sparse files, and each hard link once."""
    total = 0
    linked: set[tuple[int, int]] = set()
    for file in files_below(str(record.workspace)):
        with suppress(OSError):
            found = os.lstat(file)
            if found.st_nlink > 1:
                if (found.st_dev, found.st_ino) in linked:
                    continue
                linked.add((found.st_dev, found.st_ino))
            # Some file systems store small files without counting a block.
            total += min(found.st_size, max(found.st_blocks * _BLOCK, _SMALL))
    return total
