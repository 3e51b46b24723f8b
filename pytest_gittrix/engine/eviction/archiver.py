"""Archiving a workspace before it is removed: what is in it and nowhere else, or all of it where that cannot be done (rules 8 and 16).

Files that differ from the baseline become a commit and a patch, together with ignored files that cannot be made again, if these are small.
What only the agent's repository has, is moved into a repository next to the record. What was promoted is not archived.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.engine.eviction.archive import WHOLE, Archive, store_large_files, unpromoted, write_archive
from pytest_gittrix.engine.operations.agent_commits import AgentCommits
from pytest_gittrix.engine.operations.checkpoints import CHECKPOINTS
from pytest_gittrix.engine.operations.in_use import NO_USERS, Users
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.review import current_snapshot
from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.git.tree import Changes, Entry
from pytest_gittrix.os_level.monotonic import OutOfTime, TimeLimit
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.safe_text import visible_line
from pytest_gittrix.workspaces.finder.agent_archive import CONTENTS, REPOSITORY, archive_agent_work, settle_agent_work
from pytest_gittrix.workspaces.finder.agent_work import find_linked_work, nested_repositories
from pytest_gittrix.workspaces.finder.ignored import LeftOut, read_left_out
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

_ENDS: Final = ("session.ended", "promote.done")
_GONE: Final = (FileNotFoundError, NotADirectoryError)
_MOST_LINES: Final = 100
_LONGEST_LINE: Final = 500


class Removed(NamedTuple):
    """What became of a workspace.

    Attributes:
        only_archived: a line for each piece of archived work that a promotion did not look at: of the agent's repository, or written since.
        left_out: a line for each ignored file or directory that was not archived, since it is too large.
        slow: whether it stays for now, out of the agent's reach, because to archive it took too long.
        users: who works in it, so that it stays for now.
    """

    only_archived: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    slow: bool = False
    users: Users = NO_USERS

    @property
    def done(self) -> bool:
        """Whether it is gone."""
        return not (self.slow or self.users)


@dataclass(frozen=True)
class Archiver:
    """Archives one session's workspace before it is removed. The caller holds the session's lease.

    Attributes:
        recorder: the session's record.
        state: its state.
        limits: sizes that a snapshot may have.
        promoted: the changes that were promoted; None if none were.
        seen: the changes that the promotion found, if it runs now.
        time: how long it may take.
    """

    recorder: Recorder
    state: SessionState
    limits: Limits
    promoted: Changes | None = None
    seen: Changes | None = None
    time: TimeLimit = field(default_factory=TimeLimit)

    @property
    def _sync(self) -> bool:
        return self.recorder.store.durability == "full"

    @property
    def _durable(self) -> str:
        return self.state.durable_path or self.state.durable_ref.partition("#")[0]

    def archive(self, workspace: Workspace) -> Removed:
        """Archive a workspace that was moved out of the agent's reach, or keep it whole.

        Raises:
            OutOfTime: it takes longer than it may, for the first time.
            GittrixError, OSError: the disk refused; a recovery tries again.
        """
        found: list[str] = []
        ignored = LeftOut({}, {}, ())
        try:
            problem, ignored = self._archive_all(workspace, found)
        except OutOfTime:
            if not was_postponed(self.recorder):
                raise
            problem = AdapterUnavailable("To archive it took longer than a session may take in a sweep, for the second time.")
        if problem is None:
            return Removed(tuple(found), tuple(line[:_LONGEST_LINE] for line in ignored.lines[:_MOST_LINES]))
        why = self._archive_linked_work(workspace)
        with suppress(GittrixError, OSError):  # else what the agent changed is kept as it is
            workspace.stand_alone()
        self.keep_whole(workspace.path, problem, why)
        return Removed(tuple(found))

    def archive_files(self, workspace: Workspace) -> Archive | None:
        """Archive the files of a workspace; None if there is nothing to archive. Raises as ``current_snapshot`` and ``write_archive``."""
        snapshot = current_snapshot(self.state, workspace, self.limits, on_step=self.time.check)
        return self._write_archive(snapshot, *self._files_beyond(workspace, snapshot))

    def _files_beyond(self, workspace: Workspace, snapshot: Snapshot) -> tuple[Mapping[str, Entry], LeftOut]:
        """The files that a snapshot has not read: large ones, which are stored now, and ignored ones."""
        large = store_large_files(
            self.recorder.directory, self._durable, snapshot, workspace.files, sync=self._sync, on_step=self.time.check
        )
        return large, read_left_out(workspace.files, snapshot, self.time.check)

    def _archive_all(self, workspace: Workspace, found: list[str]) -> tuple[Exception | None, LeftOut]:
        """Archive what can be archived.

        Returns:
            Why the whole workspace has to be kept too, or None if everything is archived; and the ignored files.
        """
        large: Mapping[str, Entry] = {}
        ignored = LeftOut({}, {}, ())
        problem: Exception | None = None
        try:
            snapshot = current_snapshot(self.state, workspace, self.limits, on_step=self.time.check)
        except (GittrixError, OSError) as refusal:
            return refusal, ignored
        self.recorder.note_touched(self.recorder.read(), snapshot.touched)
        found += islice(self._written_since(snapshot), _MOST_LINES)
        try:
            _require_archivable(workspace, snapshot)
            large, ignored = self._files_beyond(workspace, snapshot)
        except (GittrixError, OSError) as refusal:
            problem = refusal
        if problem is None:  # the last step, since it takes the objects out of the agent's repository
            problem = self._archive_agent_work(workspace, snapshot, found)
        self._write_archive(snapshot, large, ignored)
        return problem, ignored

    def _written_since(self, snapshot: Snapshot) -> Iterator[str]:
        """A line for each file that a program wrote after a promotion had read the workspace."""
        seen = snapshot.changes if self.seen is None else self.seen
        for path, entry in snapshot.changes.items():
            if seen.get(path, path) != entry:
                yield f"{visible_line(path)[:_LONGEST_LINE]}, which was written after the workspace had been read"

    def _write_archive(self, snapshot: Snapshot, large: Mapping[str, Entry], ignored: LeftOut) -> Archive | None:
        left = unpromoted(snapshot, self.promoted)
        promoted = self.promoted or {}
        aside = ignored._replace(entries={path: entry for path, entry in ignored.entries.items() if promoted.get(path) != entry})
        if not left and not large and not aside.entries:
            return None
        recorder, state = self.recorder, self.state
        archive = write_archive(
            recorder.directory,
            state.id,
            state.task,
            self._durable,
            snapshot,
            left,
            large=large,
            ignored=aside,
            seconds=(state.ended_ns if state.ended_ns is not None else recorder.clock.now_ns()) // 10**9,
            sync=self._sync,
            on_step=self.time.check,
        )
        self._note({"touched": len(archive.touched), "commit": archive.commit, "patch": archive.patch.name, "ref": archive.ref})
        points.reached("evict:archived")
        return archive

    def _archive_agent_work(self, workspace: Workspace, snapshot: Snapshot, found: list[str]) -> Exception | None:
        """Archive what only the agent's git has, and commits of its branch that were not promoted.

        Returns:
            Why the whole workspace has to be kept instead; None if it is archived.
        """
        directory = self.recorder.directory
        try:
            kept = settle_agent_work(workspace.path, directory)
            if kept is None:
                commits = AgentCommits(workspace, directory.joinpath(*CHECKPOINTS), self.state.commits)
                work = commits.agent_work(snapshot, promoted=self.promoted is not None, on_step=self.time.check)
                if work is None:
                    return None
                found += work.lines
                if work.to_copy is None:
                    workspace.stand_alone(".git")
                kept = archive_agent_work(directory, workspace.began, work, sync=self._sync, on_step=self.time.check)
        except GittrixError as problem:
            return problem
        except OSError as problem:
            if workspace.linked_git_dir is not None:
                may_pass = not isinstance(problem, _GONE)
            else:
                may_pass = not os.path.lexists(os.path.join(workspace.path, ".git", "objects"))  # they are on their way into the archive
            if may_pass:
                raise  # a recovery goes on
            return AdapterUnavailable(f"The agent's repository is not archived: {problem}.")
        self._note_agent_work(kept)
        return None

    def _archive_linked_work(self, workspace: Workspace) -> str:
        """Archive what only the entry of a linked work tree in durable leads to, where the files are kept whole without it.

        Returns:
            Why the entry stays in durable instead, locked; empty if it can go.

        Raises:
            OSError: the disk refused; a recovery tries again.
        """
        git_dir, seed, kept = workspace.linked_git_dir, workspace.began, self.recorder.directory / REPOSITORY
        if git_dir is None:
            return ""
        time = self.time.again()
        try:
            if not kept.is_dir():
                work = find_linked_work(git_dir, seed, {}, promoted=self.promoted is not None, on_step=time.check)
                if work is None:
                    return ""
                archive_agent_work(self.recorder.directory, seed, work, sync=self._sync, on_step=time.check)
        except (GittrixError, OutOfTime, *_GONE) as problem:
            reason = str(problem).partition("\n")[0] or "To archive what it leads to took too long."
            workspace.leave_in_durable(f"Its files are in {self.recorder.directory / WHOLE}. {reason}")
            return f" Its entry {git_dir} stays in durable, locked: {reason}"
        self._note_agent_work(kept)
        return ""

    def keep_whole(self, path: str, problem: Exception, also: str = "") -> None:
        """Keep a workspace as it is, where it cannot be archived as changes of the baseline.

        Args:
            path: where it is.
            problem: why it cannot.
            also: more to say.
        """
        target = self.recorder.directory / WHOLE
        if os.path.isdir(path) and not target.exists():
            os.rename(path, target)
        if not target.exists():
            return
        reason = (str(problem).partition("\n")[0] + also)[:_LONGEST_LINE]
        self._note({"touched": len(self.state.api_touched), "patch": target.name, "reason": reason})
        points.reached("evict:kept-whole")

    def _note_agent_work(self, repository: Path) -> None:
        """Store that the work of the agent's git was archived in a repository."""
        lines = (repository / CONTENTS).read_text("utf-8").splitlines()
        self._note({"touched": 0, "patch": repository.name, "reason": f"beside the work tree: {'; '.join(lines)}"[:_LONGEST_LINE]})

    def _note(self, archive: Mapping[str, Any]) -> None:
        """Store that work was set aside, unless the log says so since the session ended: a killed eviction had come as far as that."""
        stored = () if self.recorder.read().archive is None else _since_the_end(self.recorder, "archive.written")
        if not any((one.get("patch"), one.get("commit")) == (archive.get("patch"), archive.get("commit")) for one in stored):
            self.recorder.append("archive.written", archive)


def promoted_changes(state: SessionState, durable_of: Callable[[SessionState], Durable]) -> Changes | None:
    """What the promotion that ended a session put into durable; None if there was none, or durable cannot tell any more."""
    if state.state != "promoted" or state.result is None or not state.result.sha:
        return None
    with suppress(GittrixError):
        durable = durable_of(state)
        parents = durable.commit(state.result.sha).parents
        return {path: new for path, (_, new) in durable.drift(parents[0], state.result.sha).items()} if parents else None
    return None


def _require_archivable(workspace: Workspace, snapshot: Snapshot) -> None:
    """See that the archive can hold all of a workspace. Raises AdapterUnavailable, which says what it cannot hold."""
    if workspace.left_out:
        raise AdapterUnavailable(f"{workspace.left_out}.")
    for path, reason in snapshot.refused.items():
        if path not in snapshot.large:
            raise AdapterUnavailable(f"{path!r} is not archived: {reason}.")
    for path in nested_repositories(workspace.path, snapshot.nested):
        raise AdapterUnavailable(f"{path!r} has a repository of its own, whose history is not archived.")


def _since_the_end(recorder: Recorder, type_: str) -> list[Mapping[str, Any]]:
    """The data of the events of a type that were stored since the session ended."""
    events = recorder.log.twin().read()
    end = max((number for number, event in enumerate(events) if event.type in _ENDS), default=len(events))
    return [event.data for event in events[end:] if event.type == type_]


def was_postponed(recorder: Recorder) -> bool:
    """Whether the eviction of an ended session took too long before, so that the next one that does keeps the workspace whole."""
    return any("in_use" not in data for data in _since_the_end(recorder, "eviction.postponed"))


def is_awaited(recorder: Recorder) -> bool:
    """Whether the workspace of an ended session stayed because somebody worked in it."""
    return any("in_use" in data for data in _since_the_end(recorder, "eviction.postponed"))
