"""The ends of orchestrated sessions and their return: kill, restore, cleanup (docs/explanation/you-know-agent-orchestrator.md).

A kill ends the agent, not the session: its workspace stays, so that it can be reviewed, promoted or restored, until its TTL passes or it
is purged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.confine.command_line import Confinement, level_of, limits_of
from pytest_gittrix.errors import GittrixError, InvalidInput, SessionExpired, SessionNotRestorable, WorkspaceMissing
from pytest_gittrix.orchestrator.agents import Agents, alive_data
from pytest_gittrix.orchestrator.board import RUNTIME, Board, ObservedSession
from pytest_gittrix.orchestrator.session import Cleaned, Killed
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.views.orchestrator_status import NON_RESTORABLE_STATUSES, can_restore

REASONS: Final = {
    "manually_killed": "manual_kill_requested",
    "pr_merged": "pr_merged_cleanup",
    "auto_cleanup": "auto_cleanup",
    "runtime_lost": "process_missing",
    "error_in_process": "process_missing",
}
"""The reasons to kill a session, each with the reason that its runtime gets."""

_OUTCOMES: Final = {"pr_merged": "done", "runtime_lost": "crash", "error_in_process": "crash"}


@dataclass(frozen=True)
class Ends:
    """Ends sessions of a board, and restores them."""

    board: Board
    agents: Agents

    def kill(self, id: str, reason: str, *, purge: bool) -> Killed:
        """End a session's agent, as ``Orchestrator.kill`` documents."""
        if reason not in REASONS:
            raise InvalidInput(f"{reason!r} is no reason to kill a session for.", fix=f"Use one of: {', '.join(REASONS)}.")
        project = self.board.find(id).project
        with self.board.locked(project, id):
            observed = self.board.find(id)
            points.reached("kill:asked")
            stopped = self.agents.stop(observed)
            points.reached("kill:ended")
            already = observed.observations.session.over
            if not already or stopped:
                self._record_end(observed, reason)
            purged = purge and self._purge(observed, reason)
            if not already or stopped or purged:
                self.board.publish(id)
            if purge:
                self.forget(id)
            return Killed(not already or stopped or purged, already, self.board.engine.archives(id) if purge else ())

    def _record_end(self, observed: ObservedSession, reason: str) -> None:
        now = self.agents.observe(observed)
        events = [("runtime.observed", self.agents.runtime_data(observed, now, reason=REASONS[reason]))]
        if not observed.observations.session.over:
            if now.pid is not None:
                events.append(("activity.observed", {"state": "exited", "source": "runtime"}))
            events.append(("status.decided", {"session": "terminated", "reason": reason}))
        self.board.append(observed.id, *events)

    def _purge(self, observed: ObservedSession, reason: str) -> bool:
        """Archive a session's work and remove its workspace; return whether there was anything to do."""
        if observed.state.ended and not observed.state.workspace_present:
            return False
        self.board.engine.evict(observed.id, "discarded", outcome=None if observed.state.ended else _OUTCOMES.get(reason, "killed"))
        self.agents.clear(observed)
        return True

    def forget(self, id: str) -> None:
        """List a session no longer; its id stays taken."""
        self.board.retire(self.board.find(id))

    def restore(self, id: str) -> None:
        """Start another agent in a session that is over, as ``Orchestrator.restore`` documents."""
        project = self.board.find(id).project
        with self.board.locked(project, id):
            observed = self.board.find(id)
            self._restore(observed)

    def _restore(self, observed: ObservedSession) -> None:
        self._check(observed)
        # Remaining processes of the last agent are ended first: two agents must not work in one workspace.
        self.agents.stop(observed)
        points.reached("restore:checked")
        try:
            with self.board.recorder(observed.id).working("restore", "human"):
                workspace = observed.workspace
        except SessionExpired as problem:
            raise _not_restorable(observed, f"its time was up: it is {problem.state}") from problem
        if workspace is None:
            raise _missing(observed)

        launched: list[dict[str, Any]] = []

        def known(owner: Owner, confined: Confinement) -> None:
            launched.append(alive_data(owner, confined))
            self.board.append(observed.id, ("runtime.observed", launched[0]))

        try:
            had = observed.observations.runtime.confinement
            self.agents.launch(observed, workspace, None, level_of(had), limits_of(had), known)
            self.board.append(observed.id, ("session.restored", {}), ("runtime.observed", launched[0]))
        except BaseException:
            # No agent may run in a session that is over, and the log must not say that one does.
            with suppress(GittrixError):
                self.agents.stop(observed, grace=0)
                if self.board.find(observed.id).observations.runtime.state == "alive":
                    self.board.append(
                        observed.id, ("runtime.observed", {"state": "missing", "source": RUNTIME, "reason": "process_missing"})
                    )
            raise
        points.reached("restore:launched")
        self.board.publish(observed.id)

    def _check(self, observed: ObservedSession) -> None:
        status = self.board.status(observed)
        if not can_restore(observed.observations, dialect=self.board.dialect):
            final = status in NON_RESTORABLE_STATUSES[self.board.dialect]
            raise _not_restorable(observed, f"it is {status}, which nothing comes back from" if final else f"it is not over, but {status}")
        if observed.state.ended and observed.state.workspace_present:
            raise _not_restorable(observed, f"its work is {observed.state.state}")
        if observed.workspace is None:
            raise _missing(observed)

    # Cleanup -------------------------------------------------------------------------------------------------------------------

    def cleanup(self, project_id: str | None, *, dry_run: bool, ended: bool, merged: Callable[[ObservedSession], str]) -> Cleaned:
        """Kill and purge sessions, as ``Orchestrator.cleanup`` documents.

        Args:
            project_id: only of this project.
            dry_run: only report.
            ended: purge sessions that are over, too.
            merged: returns the present state of a session's pull request at the forge.
        """
        projects = self.board.projects.values() if project_id is None else [self.board.project(project_id)]
        done = Cleaned()
        for observed in [one for project in projects for one in self.board.every(project)]:
            try:
                reason = self._reason(observed, merged, ended=ended)
                if reason is None:
                    done.skipped.append(observed.id)
                    continue
                if not dry_run and (archives := self.kill(observed.id, reason, purge=True).archives):
                    done.archives[observed.id] = archives
                done.killed.append(observed.id)
            except Exception as problem:  # noqa: BLE001  (one session, or the user's tracker, must not stop the others)
                done.errors[observed.id] = str(problem).partition("\n")[0]
        return done

    def _reason(self, observed: ObservedSession, merged: Callable[[ObservedSession], str], *, ended: bool) -> str | None:
        """Why a cleanup purges a session; None for one that it leaves."""
        if observed.observations.session.kind == "orchestrator" or observed.spawning:
            return None
        if observed.observations.session.over:
            return "auto_cleanup" if ended else None
        state = merged(observed)
        if state in ("merged", "closed"):
            return "pr_merged" if state == "merged" else "auto_cleanup"
        issue, tracker = observed.state.identity.get("issue"), observed.project.tracker
        if issue is not None and tracker is not None and tracker.exists(issue) and tracker.completed(issue):
            return "auto_cleanup"
        return "runtime_lost" if self.agents.observe(observed).state in ("exited", "missing") else None


def _not_restorable(observed: ObservedSession, reason: str) -> SessionNotRestorable:
    return SessionNotRestorable(
        f"Session {observed.id} cannot be restored: {reason}.",
        why="Only an ended session can be restored, and not after every end.",
        fix="Spawn another session for the same work.",
    )


def _missing(observed: ObservedSession) -> WorkspaceMissing:
    path = observed.state.workspace or ""
    return WorkspaceMissing(
        f"The workspace of session {observed.id} is gone: {path}.",
        path=path,
        why="A restored agent goes on where the last one stopped.",
        fix="What was not promoted is in the session's archive; spawn another session.",
    )
