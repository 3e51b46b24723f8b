"""Eviction: a session ends, its unpromoted work is archived, its workspace is removed; and the sweep that evicts by TTL.

A session is expired if and only if now is strictly past its deadline (GitTrix). The order matters: the end is recorded, a rename takes the
workspace out of the agent's reach, and only then it is read and archived, so nothing that was written before is lost (rule 8,
docs/explanation/rules.md). What cannot be archived as a change of the baseline is kept whole. After a kill, a recovery goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_gittrix import points
from pytest_gittrix.engine.operations.agent_commits import AgentCommits
from pytest_gittrix.engine.operations.archive import WHOLE, Archive, store_large_files, unpromoted, write_archive
from pytest_gittrix.engine.operations.checkpoints import CHECKPOINTS
from pytest_gittrix.engine.operations.expiry import is_past, resolution_ns
from pytest_gittrix.engine.operations.recorder import Recorder, require_live, settled_later
from pytest_gittrix.engine.operations.review import current_snapshot
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, EvictionRace, GittrixError, InvalidInput
from pytest_gittrix.git.tree import Changes, Entry
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.os_level.monotonic import OutOfTime, TimeLimit
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.state.values import OUTCOMES
from pytest_gittrix.record.store.store import LOCK, TURN
from pytest_gittrix.workspaces.side_work import (
    CONTENTS,
    REPOSITORY,
    LinkedWork,
    find_linked_work,
    keep_linked_work,
    keep_side_work,
    nested_repositories,
    settle_side_work,
)
from pytest_gittrix.workspaces.snapshot import Limits, Snapshot
from pytest_gittrix.workspaces.workspace import Trash, Workspace

EndState = Literal["expired", "discarded", "promoted"]
_END_STATES = get_args(EndState)

LEAVING = "leaving"
"""The name of a workspace in its session's directory, between the agent's reach and its removal."""

BUDGET: Final = timedelta(seconds=30)
"""The real time that one session may take in a sweep or a recovery by default."""

_ENDS: Final = ("session.ended", "promote.done")
_GONE: Final = (FileNotFoundError, NotADirectoryError)

OpenWorkspace = Callable[[SessionState], Workspace]


def check_end(state: str) -> EndState:
    """Validate how an eviction is to end a session. Raises InvalidInput, which lists the ends."""
    if state in _END_STATES:
        return state  # type: ignore[return-value]
    raise InvalidInput(f"A session cannot end as {state!r}.", fix=f"Use one of: {', '.join(_END_STATES)}.")


def check_outcome(outcome: str | None) -> str | None:
    """Validate how an agent did. Raises InvalidInput, which lists the outcomes; a handoff is made with ``handoff()``."""
    if outcome is None or outcome in OUTCOMES:
        return outcome
    raise InvalidInput(
        f"An agent cannot have ended as {outcome!r}.", fix=f"Use one of: {', '.join(OUTCOMES)}; or hand the session on with handoff()."
    )


def require_evictable(state: SessionState) -> None:
    """Refuse to evict an ended session, unless it still has its workspace (a promotion without ``until_promote``).

    Raises:
        SessionExpired: there is nothing left to evict.
        InvalidInput: it is a member's, whose work is finalized and retained (BotMinter).
    """
    if state.life is not None and not state.ended:
        raise InvalidInput(
            f"Session {state.id} is a member's, and {state.life}: it can be neither evicted nor discarded.",
            why="What its agent did is saved to the remotes when it ends, and not archived.",
            fix="Stop it; once it is retained, clean it up.",
        )
    if not state.workspace_present:
        require_live(state)


def is_repeated(state: SessionState, how: EndState, outcome: str | None) -> bool:
    """Whether a session has ended so already, with the same outcome, so that a second report of it is no error (Gas Town)."""
    return state.ended and not state.workspace_present and outcome is not None and (state.state, state.outcome) == (how, outcome)


@dataclass(frozen=True)
class Evictor:
    """Ends sessions of one engine. Every method's caller holds the session's lease, but for ``sweep_one``.

    Attributes:
        open_workspace: finds a session's workspace.
        trash: where removed workspaces go.
        limits: sizes that a snapshot may have.
        budget: the real time that one session may take in a sweep or a recovery; None for as long as it takes.
    """

    open_workspace: OpenWorkspace
    trash: Trash
    limits: Limits = field(default_factory=Limits)
    budget: timedelta | None = BUDGET

    def set_aside(self, recorder: Recorder, state: SessionState, workspace: Workspace) -> Archive | None:
        """Archive what differs from the baseline in a workspace; None if nothing does.

        Raises:
            AdapterUnavailable: the workspace cannot be read.
            OSError: the archive cannot be written.
        """
        snapshot = current_snapshot(state, workspace, self.limits)
        large = store_large_files(recorder.directory, snapshot, workspace.files, sync=recorder.store.durability == "full")
        return self._archive(recorder, state, snapshot, None, large, TimeLimit(None))

    def _archive(
        self,
        recorder: Recorder,
        state: SessionState,
        snapshot: Snapshot,
        promoted: Changes | None,
        large: Mapping[str, Entry],
        time: TimeLimit,
    ) -> Archive | None:
        left = unpromoted(snapshot, promoted)
        if not left and not large:
            return None
        archive = write_archive(
            recorder.directory,
            state.id,
            state.task,
            snapshot,
            left,
            large=large,
            seconds=(state.ended_ns if state.ended_ns is not None else recorder.clock.now_ns()) // 10**9,
            sync=recorder.store.durability == "full",
            on_step=time.check,
        )
        _note(recorder, {"touched": len(archive.touched), "commit": archive.commit, "patch": archive.patch.name, "ref": archive.ref})
        points.reached("evict:archived")
        return archive

    def evict(
        self,
        recorder: Recorder,
        state: SessionState,
        how: EndState,
        *,
        promoted: Changes | None = None,
        outcome: str | None = None,
        within: TimeLimit | None = None,
    ) -> bool:
        """End a session, archive what it did not promote, and remove its workspace.

        A second call on a session whose eviction was interrupted or postponed goes on where that stopped. A workspace whose archive takes
        longer than it may a second time is kept whole, which takes no time.

        Args:
            recorder: the session's record.
            state: its state, read under the lease.
            how: the state in which it ends; an ended session stays as it is.
            promoted: the changes that were promoted, if any were.
            outcome: how its agent did, if the caller says.
            within: how long it may take; None for as long as it takes.

        Returns:
            Whether that is done; False if it took too long and was postponed, out of the agent's reach and with all its work.

        Raises:
            GittrixError: its end cannot be stored; or its work can be neither archived nor kept, is all still there, and a recovery tries
                again (``outcome`` is ``unknown``).
        """
        if not state.ended:
            state = recorder.append("session.ended", {"state": how} | ({"outcome": outcome} if outcome else {}), commit_point=True)
            points.reached("evict:ended")
        with settled_later(f"The end of session {state.id}"):
            if state.workspace_present:
                try:
                    self._clear(recorder, state, promoted, within)
                except OutOfTime:
                    recorder.append("eviction.postponed", {"budget_ns": _nanoseconds(self.budget)})
                    return False
                self.trash.discard(str(recorder.directory / "engine"))
                recorder.append("workspace.removed", {})
        # Unlinked while it is held: a process that waits for it finds that the name is gone, and looks again.
        with suppress(FileNotFoundError):
            os.unlink(recorder.directory / LOCK)
        turn = recorder.directory / TURN
        if turn.exists():  # left by a killed turn; a running turn removes its lock itself
            with suppress(GittrixError), Lease(turn, wait=0) as lease:
                lease.remove()
        return True

    def _clear(self, recorder: Recorder, state: SessionState, promoted: Changes | None, within: TimeLimit | None) -> None:
        leaving = str(recorder.directory / LEAVING)
        try:
            workspace = self.open_workspace(state)
        except CapabilityMissing:
            raise  # its files are where only another adapter reaches them
        except GittrixError as problem:
            self._keep_whole(recorder, state, state.workspace or leaving, problem)
            return
        workspace.move_aside(leaving)
        points.reached("evict:apart")
        try:
            left_out = self._archive_workspace(recorder, state, workspace, promoted, within or TimeLimit(None))
        except OutOfTime:
            if not was_postponed(recorder):
                raise
            left_out = AdapterUnavailable("To archive it took longer than a session may take in a sweep, for the second time.")
        if left_out is not None:
            why = self._archive_linked_work(recorder, workspace, promoted, TimeLimit(self.budget if within is not None else None))
            with suppress(GittrixError, OSError):  # else what the agent changed is kept as it is
                workspace.stand_alone()
            self._keep_whole(recorder, state, leaving, left_out, why)
        workspace.remove(self.trash)
        points.reached("evict:workspace-gone")

    def _archive_workspace(
        self, recorder: Recorder, state: SessionState, workspace: Workspace, promoted: Changes | None, time: TimeLimit
    ) -> Exception | None:
        """Archive what is in a workspace; returns why the whole of it has to be kept too, or None if everything is archived."""
        try:
            snapshot = current_snapshot(state, workspace, self.limits, time.check)
        except (GittrixError, OSError) as problem:
            return problem
        large: Mapping[str, Entry] = {}
        left_out: Exception | None = None
        sync = recorder.store.durability == "full"
        try:
            _require_archivable(workspace, snapshot)
            large = store_large_files(recorder.directory, snapshot, workspace.files, sync=sync, on_step=time.check)
        except (GittrixError, OSError) as problem:
            left_out = problem
        if left_out is None:  # the last step, since it takes the objects out of the agent's repository
            left_out = self._archive_side_work(recorder, state, workspace, snapshot, promoted, time)
        self._archive(recorder, state, snapshot, promoted, large, time)
        return left_out

    def _archive_side_work(
        self,
        recorder: Recorder,
        state: SessionState,
        workspace: Workspace,
        snapshot: Snapshot,
        promoted: Changes | None,
        time: TimeLimit,
    ) -> Exception | None:
        """Archive what lies beside the files; returns why the whole workspace has to be kept instead, or None if that was done."""
        try:
            kept = self._keep_side_work(recorder, state, workspace, snapshot, promoted=promoted is not None, time=time)
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
        if kept is not None:
            _note_side_work(recorder, kept)
        return None

    def _keep_side_work(
        self, recorder: Recorder, state: SessionState, workspace: Workspace, snapshot: Snapshot, *, promoted: bool, time: TimeLimit
    ) -> Path | None:
        """Keep what the agent committed, stashed or staged aside, and commits of its branch that were not promoted."""
        root, sync = workspace.path, recorder.store.durability == "full"
        kept = settle_side_work(root, recorder.directory)
        if kept is not None:
            return kept
        commits = AgentCommits(workspace, recorder.directory.joinpath(*CHECKPOINTS), state.commits)
        work = commits.beside(snapshot, promoted=promoted, on_step=time.check)
        if isinstance(work, LinkedWork):
            return keep_linked_work(recorder.directory, workspace.began, work, sync=sync, on_step=time.check)
        if work is None:
            return None
        workspace.stand_alone(".git")
        return keep_side_work(root, recorder.directory, workspace.began, work, sync=sync)

    def _archive_linked_work(self, recorder: Recorder, workspace: Workspace, promoted: Changes | None, time: TimeLimit) -> str:
        """Archive what only the entry of a linked work tree in durable leads to, where the files are kept whole without it.

        Returns:
            Why the entry stays in durable instead, locked; empty if it can go.

        Raises:
            OSError: the disk refused; a recovery tries again.
        """
        git_dir, seed, kept = workspace.linked_git_dir, workspace.began, recorder.directory / REPOSITORY
        if git_dir is None:
            return ""
        try:
            if not kept.is_dir():
                work = find_linked_work(git_dir, seed, {}, promoted=promoted is not None, on_step=time.check)
                if work is None:
                    return ""
                keep_linked_work(recorder.directory, seed, work, sync=recorder.store.durability == "full", on_step=time.check)
        except (GittrixError, OutOfTime, *_GONE) as problem:
            reason = str(problem).partition("\n")[0] or "To archive what it leads to took too long."
            workspace.leave_in_durable(f"Its files are in {recorder.directory / WHOLE}. {reason}")
            return f" Its entry {git_dir} stays in durable, locked: {reason}"
        _note_side_work(recorder, kept)
        return ""

    def _keep_whole(self, recorder: Recorder, state: SessionState, path: str, problem: Exception, also: str = "") -> None:
        """Keep a workspace as it is, where it cannot be archived as changes of the baseline."""
        target = recorder.directory / WHOLE
        if os.path.isdir(path) and not target.exists():
            os.rename(path, target)
        if not target.exists():
            return
        reason = (str(problem).partition("\n")[0] + also)[:500]
        _note(recorder, {"touched": len(state.api_touched), "patch": target.name, "reason": reason})
        points.reached("evict:kept-whole")

    def sweep_one(self, recorder: Recorder, *, patient: bool = False) -> bool:
        """Evict one session if it is past its TTL, judged under its lease; returns whether it was evicted.

        A session with a running operation is left for the next sweep, and so is one that takes longer than ``budget`` to archive.

        Args:
            recorder: the session's record.
            patient: look at all its files for use of it, however long that takes.

        Raises:
            OutOfTime: to look at its files takes longer than ``budget``, so that nobody can say yet whether it is past its TTL.
        """
        look = TimeLimit(None if patient else self.budget)
        try:
            with recorder.leased(wait=0) as state:
                if (state.ended and not state.workspace_present) or not is_past(state, recorder.clock):
                    return False
                points.reached("sweep:past-deadline")
                if not state.ended:
                    state = recorder.with_activity(state, look.check)
                if not is_past(state, recorder.clock):
                    return False
                return self.evict(recorder, state, "expired", within=TimeLimit(self.budget))
        except EvictionRace:
            return False

    def rebase_one(self, recorder: Recorder) -> None:
        """Restart the idle time of a session that was last used in the future, because the clock was set back since."""
        with suppress(EvictionRace), recorder.leased(wait=0) as state:
            if not state.ended and state.last_access_ns > recorder.clock.now_ns() + resolution_ns(recorder.clock):
                recorder.append("session.accessed", {"op": "clock set back"})


def _require_archivable(workspace: Workspace, snapshot: Snapshot) -> None:
    """See that the archive can hold all of a workspace. Raises AdapterUnavailable, which says what it cannot hold."""
    if workspace.left_out:
        raise AdapterUnavailable(f"{workspace.left_out}.")
    for path, reason in snapshot.refused.items():
        if path not in snapshot.large:
            raise AdapterUnavailable(f"{path!r} is not archived: {reason}.")
    for path in nested_repositories(workspace.path, snapshot.nested):
        raise AdapterUnavailable(f"{path!r} has a repository of its own, whose history is not archived.")


def _nanoseconds(time: timedelta | None) -> int | None:
    return None if time is None else time // timedelta(microseconds=1) * 1000


def _since_the_end(recorder: Recorder, type_: str) -> list[Mapping[str, Any]]:
    """The data of the events of a type that were stored since the session ended."""
    events = recorder.log.twin().read()
    end = max((number for number, event in enumerate(events) if event.type in _ENDS), default=len(events))
    return [event.data for event in events[end:] if event.type == type_]


def was_postponed(recorder: Recorder) -> bool:
    """Whether the eviction of an ended session was postponed, so that the next one that takes too long keeps the workspace whole."""
    return bool(_since_the_end(recorder, "eviction.postponed"))


def _note_side_work(recorder: Recorder, repository: Path) -> None:
    """Store that what lay beside the files was set aside in a repository."""
    lines = (repository / CONTENTS).read_text("utf-8").splitlines()
    _note(recorder, {"touched": 0, "patch": repository.name, "reason": f"beside the work tree: {'; '.join(lines)}"[:500]})


def _note(recorder: Recorder, archive: Mapping[str, Any]) -> None:
    """Store that work was set aside, unless the log says so since the session ended: a killed eviction had come as far as that."""
    if recorder.read().archive is None or not _is_noted(recorder, archive):
        recorder.append("archive.written", archive)


def _is_noted(recorder: Recorder, archive: Mapping[str, Any]) -> bool:
    stored = _since_the_end(recorder, "archive.written")
    return any((one.get("patch"), one.get("commit")) == (archive.get("patch"), archive.get("commit")) for one in stored)
