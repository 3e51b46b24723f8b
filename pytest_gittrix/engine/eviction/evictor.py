"""Eviction: a session ends, its unpromoted work is archived, its workspace is removed.

The order matters: the end is recorded, a rename takes the workspace out of the agent's reach, and only then it is read and archived, so
nothing that was written before is lost (rule 8, docs/explanation/rules.md). What cannot be archived as a change of the baseline is kept
whole. After a kill, a recovery goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, get_args

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.engine.eviction.archive import Archive
from pytest_gittrix.engine.eviction.archiver import Archiver, Removed, is_awaited, promoted_changes
from pytest_gittrix.engine.operations.in_use import (
    GRACE,
    NO_USERS,
    PROGRAM_END_WAIT,
    Users,
    runs_program,
    tell_programs,
    users_of,
)
from pytest_gittrix.engine.operations.recorder import Recorder, require_live, settled_later
from pytest_gittrix.errors import CapabilityMissing, GittrixError, InvalidInput
from pytest_gittrix.git.tree import Changes
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.os_level.monotonic import OutOfTime, TimeLimit
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.state.values import OUTCOMES
from pytest_gittrix.record.store.store import LOCK, TURN, USE
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

EndState = Literal["expired", "discarded", "promoted"]
_END_STATES = get_args(EndState)

LEAVING = "leaving"
"""The name of a workspace in its session's directory, between the agent's reach and its removal."""

WhoWorksThere = Literal["await", "end", "ignore"]
"""What an eviction does about those who work in a workspace."""

_KILLED_WAIT: Final = 0.1

BUDGET: Final = timedelta(seconds=30)
"""The real time that one session may take in a sweep or a recovery by default."""

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
            f"Session {state.id} is a member's, and {state.life.state}: it can be neither evicted nor discarded.",
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
    """Ends sessions of one engine. Every method's caller holds the session's lease.

    Attributes:
        open_workspace: finds a session's workspace.
        durable_of: finds a session's durable repository.
        trash: where removed workspaces go.
        limits: sizes that a snapshot may have.
        budget: the real time that one session may take in a sweep or a recovery; None for as long as it takes.
    """

    open_workspace: OpenWorkspace
    durable_of: Callable[[SessionState], Durable]
    trash: Trash
    limits: Limits = field(default_factory=Limits)
    budget: timedelta | None = BUDGET

    def set_aside(self, recorder: Recorder, state: SessionState, workspace: Workspace) -> Archive | None:
        """Archive what differs from the baseline in a workspace, and what is ignored; None if there is nothing of either.

        Raises:
            AdapterUnavailable: the workspace cannot be read.
            OSError: the archive cannot be written.
        """
        return Archiver(recorder, state, self.limits).archive_files(workspace)

    def evict(
        self,
        recorder: Recorder,
        state: SessionState,
        how: EndState,
        *,
        workspace: Workspace | None = None,
        promoted: Changes | None = None,
        seen: Changes | None = None,
        outcome: str | None = None,
        within: TimeLimit | None = None,
        users: WhoWorksThere = "await",
    ) -> Removed:
        """End a session, archive what it did not promote, and remove its workspace.

        A second call on a session whose eviction was interrupted or postponed goes on where that stopped. A workspace whose archive takes
        longer than it may a second time is kept whole, which takes no time.

        Args:
            recorder: the session's record.
            state: its state, read under the lease.
            how: the state in which it ends; an ended session stays as it is.
            workspace: its workspace, if it is open; it is opened by default.
            promoted: the changes that were promoted; by default those of the commit that the session ended with.
            seen: all changes that the promotion found, if one runs now: what was written since is named.
            outcome: how its agent did, if the caller says.
            within: how long it may take; None for as long as it takes.
            users: what happens if somebody works in its workspace, which is never read before the programs of the engine that are to end
                have ended. ``await``: it stays until they have ended. ``end``: programs of the engine get SIGTERM, and are killed a few
                seconds later; it stays if there is anybody else. ``ignore``: the same, and then it goes all the same.

        Returns:
            What became of its workspace; one that stays for now is with all its work.

        Raises:
            GittrixError: its end cannot be stored; or its work can be neither archived nor kept, is all still there, and a recovery tries
                again (``outcome`` is ``unknown``).
        """
        if not state.ended:
            state = recorder.append("session.ended", {"state": how} | ({"outcome": outcome} if outcome else {}), commit_point=True)
            points.reached("evict:ended")
        removed = Removed()
        with settled_later(f"The end of session {state.id}"):
            if state.workspace_present:
                staying = self._await_users(recorder, state, users)
                if staying:
                    return Removed(users=staying)
                done = promoted if promoted is not None else promoted_changes(state, self.durable_of)
                archiver = Archiver(recorder, state, self.limits, done, seen, within or TimeLimit())
                try:
                    removed = self._remove_workspace(archiver, workspace)
                except OutOfTime:
                    recorder.append("eviction.postponed", {"budget_ns": _nanoseconds(self.budget)})
                    return Removed(slow=True)
                self.trash.discard(str(recorder.directory / "engine"))
                recorder.append("workspace.removed", {"left_out": [*removed.left_out]} if removed.left_out else {})
        # Unlinked while it is held: a process that waits for it finds that the name is gone, and looks again.
        for name in (LOCK, USE):
            with suppress(FileNotFoundError):
                os.unlink(recorder.directory / name)
        turn = recorder.directory / TURN
        if turn.exists():  # left by a killed turn; a running turn removes its lock itself
            with suppress(GittrixError), Lease(turn, wait=0) as lease:
                lease.remove()
        return removed

    def _await_users(self, recorder: Recorder, state: SessionState, users: WhoWorksThere) -> Users:
        """Have the programs of the engine end, if they are to; gives who works in the workspace then, so that it has to stay."""
        directory = recorder.directory
        if users != "await" and runs_program(directory):
            tell_programs(directory, state.state)
            _end_agents(directory)
        # A turn that was just killed holds its programs' lock for a little longer than it seems to be there.
        runs_program(directory, wait=_KILLED_WAIT if users == "await" else PROGRAM_END_WAIT)
        if users == "ignore":
            return NO_USERS
        staying = users_of(state, directory)
        if staying and not is_awaited(recorder):
            recorder.append("eviction.postponed", {"budget_ns": None, "in_use": [*map(str, staying.processes)]})
        return staying

    def _remove_workspace(self, archiver: Archiver, workspace: Workspace | None) -> Removed:
        """Move a workspace out of the agent's reach, archive it or keep it whole, and move it to the trash."""
        leaving = str(archiver.recorder.directory / LEAVING)
        try:
            workspace = workspace or self.open_workspace(archiver.state)
        except CapabilityMissing:
            raise  # its files are where only another adapter reaches them
        except GittrixError as problem:
            archiver.keep_whole(archiver.state.workspace or leaving, problem)
            return Removed()
        workspace.move_aside(leaving)
        points.reached("evict:apart")
        removed = archiver.archive(workspace)
        workspace.remove(self.trash)
        points.reached("evict:workspace-gone")
        return removed


def _end_agents(directory: Path) -> None:
    """End the agents of a session that run under supervisors of their own."""
    from pytest_gittrix.engine.agents.processes import AgentProcess, agent_directories  # dear to load, and hardly ever needed

    for agent in agent_directories(directory).values():
        with suppress(CapabilityMissing):  # it cannot be seen from here
            AgentProcess(agent).stop(grace=GRACE)


def _nanoseconds(time: timedelta | None) -> int | None:
    return None if time is None else time // timedelta(microseconds=1) * 1000
