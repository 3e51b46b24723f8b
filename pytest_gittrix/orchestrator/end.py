"""How orchestrated sessions end, and come back: kill, restore, cleanup (session-systems 5.3).

A kill ends the agent, not the session: its workspace stays, so that it can be reviewed, promoted or restored, until its TTL passes or it
is purged. Nothing that is over is kept alive by being looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.errors import GittrixError, InvalidInput, SessionExpired, SessionNotRestorable, WorkspaceMissing
from pytest_gittrix.orchestrator.agents import Agents, alive, runtime_data
from pytest_gittrix.orchestrator.board import RUNTIME, Board, Seen
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
"""Why a session can be killed, each with what that makes of its runtime."""

_OUTCOMES: Final = {"pr_merged": "done", "runtime_lost": "crash", "error_in_process": "crash"}


@dataclass(frozen=True)
class Ends:
    """Ending sessions of a board, and bringing them back."""

    board: Board
    agents: Agents

    def kill(self, id: str, reason: str, *, purge: bool) -> Killed:
        """End a session's agent; ``Orchestrator.kill`` says how and what it raises."""
        if reason not in REASONS:
            raise InvalidInput(f"{reason!r} is no reason to kill a session for.", fix=f"Use one of: {', '.join(REASONS)}.")
        project = self.board.find(id).project
        with self.board.held(project, id):
            seen = self.board.find(id)
            points.reached("kill:asked")
            stopped = self.agents.stop(seen)
            points.reached("kill:ended")
            already = seen.observations.session.over
            if not already or stopped:
                self._record_end(seen, reason)
            purged = purge and self._purge(seen, reason)
            if not already or stopped or purged:
                self.board.publish(id)
            if purge:
                self.forget(id)
            return Killed(not already or stopped or purged, already)

    def _record_end(self, seen: Seen, reason: str) -> None:
        now = self.agents.look(seen)
        told = [("runtime.observed", runtime_data(now, reason=REASONS[reason]))]
        if not seen.observations.session.over:
            if now.pid is not None:
                told.append(("activity.observed", {"state": "exited", "source": "runtime"}))
            told.append(("status.decided", {"session": "terminated", "reason": reason}))
        self.board.append(seen.id, *told)

    def _purge(self, seen: Seen, reason: str) -> bool:
        """Archive what was done and take the workspace away; whether there was anything to do."""
        if seen.state.ended and not seen.state.workspace_present:
            return False
        self.board.engine.evict(seen.id, "discarded", outcome=None if seen.state.ended else _OUTCOMES.get(reason, "killed"))
        self.agents.clear(seen)
        return True

    def forget(self, id: str) -> None:
        """List a session no more; its id stays taken."""
        self.board.retire(self.board.find(id))

    def restore(self, id: str) -> None:
        """Start another agent in a session that is over; ``Orchestrator.restore`` says when and what it raises."""
        project = self.board.find(id).project
        with self.board.held(project, id):
            seen = self.board.find(id)
            self._restore(seen)

    def _restore(self, seen: Seen) -> None:
        self._check(seen)
        # Two agents in one workspace would be one too many: what is left of the last one goes first.
        self.agents.stop(seen)
        points.reached("restore:checked")
        try:
            with self.board.recorder(seen.id).working("restore", "human"):
                workspace = seen.workspace
        except SessionExpired as problem:
            raise _not_restorable(seen, f"its time was up: it is {problem.state}") from problem
        if workspace is None:
            raise _missing(seen)

        def known(owner: Owner) -> None:
            self.board.append(seen.id, ("runtime.observed", alive(owner)))

        try:
            agent = self.agents.launch(seen, workspace, None, known)
            assert agent.owner is not None
            self.board.append(seen.id, ("session.restored", {}), ("runtime.observed", alive(agent.owner)))
        except BaseException:
            # No agent may run in what is over, nor the log go on saying that one does.
            with suppress(GittrixError):
                self.agents.stop(seen, grace=0)
                if self.board.find(seen.id).observations.runtime.state == "alive":
                    self.board.append(seen.id, ("runtime.observed", {"state": "missing", "source": RUNTIME, "reason": "process_missing"}))
            raise
        points.reached("restore:launched")
        self.board.publish(seen.id)

    def _check(self, seen: Seen) -> None:
        status = self.board.status(seen)
        if not can_restore(seen.observations, dialect=self.board.dialect):
            final = status in NON_RESTORABLE_STATUSES[self.board.dialect]
            raise _not_restorable(seen, f"it is {status}, which nothing comes back from" if final else f"it is not over, but {status}")
        if seen.state.ended and seen.state.workspace_present:
            raise _not_restorable(seen, f"its work is {seen.state.state}")
        if seen.workspace is None:
            raise _missing(seen)

    # Cleanup -------------------------------------------------------------------------------------------------------------------

    def cleanup(self, project_id: str | None, *, dry_run: bool, merged: Callable[[Seen], str]) -> Cleaned:
        """Kill and purge what nobody needs any more; ``Orchestrator.cleanup`` says what that is.

        Args:
            project_id: only of this project.
            dry_run: only tell.
            merged: the state of a session's pull request, as the forge tells now.
        """
        projects = self.board.projects.values() if project_id is None else [self.board.project(project_id)]
        done = Cleaned()
        for seen in [one for project in projects for one in self.board.every(project)]:
            try:
                reason = None if _protected(seen) else self._reason(seen, merged)
                if reason is None:
                    done.skipped.append(seen.id)
                    continue
                if not dry_run:
                    self.kill(seen.id, reason, purge=True)
                done.killed.append(seen.id)
            except Exception as problem:  # noqa: BLE001  (one session, or a tracker's stranger, must not stop the others)
                done.errors[seen.id] = str(problem).partition("\n")[0]
        return done

    def _reason(self, seen: Seen, merged: Callable[[Seen], str]) -> str | None:
        state = merged(seen)
        if state in ("merged", "closed"):
            return "pr_merged" if state == "merged" else "auto_cleanup"
        issue, tracker = seen.state.identity.get("issue"), seen.project.tracker
        if issue is not None and tracker is not None and tracker.exists(issue) and tracker.completed(issue):
            return "auto_cleanup"
        return "runtime_lost" if self.agents.look(seen).state in ("exited", "missing") else None


def _protected(seen: Seen) -> bool:
    """Whether a cleanup leaves it: an orchestrator, what is being spawned, and what is over already and waits for its TTL."""
    return seen.observations.session.kind == "orchestrator" or seen.spawning or seen.observations.session.over


def _not_restorable(seen: Seen, reason: str) -> SessionNotRestorable:
    return SessionNotRestorable(
        f"Session {seen.id} cannot be restored: {reason}.",
        why="Only what is over can come back, and not from every end.",
        fix="Spawn another session for the same work.",
    )


def _missing(seen: Seen) -> WorkspaceMissing:
    path = seen.state.workspace or ""
    return WorkspaceMissing(
        f"The workspace of session {seen.id} is gone: {path}.",
        path=path,
        why="A restored agent goes on where the last one stopped.",
        fix="What was not promoted is in the session's archive; spawn another session.",
    )
