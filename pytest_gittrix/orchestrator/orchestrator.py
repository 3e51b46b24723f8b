"""An orchestrator: agents of several projects at work on issues, each in a session of its own, looked at from outside (agent-orchestrator).

An orchestrated session is an ordinary session of the engine with an agent in it: all of review, promote and discard work on it. What the
orchestrator sees and decides is in the session's log; statuses, files and notifications follow from that (session-systems 5).
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pytest_gittrix.engine.agents.processes import GRACE
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import GittrixError, InvalidInput, SessionNotRestorable
from pytest_gittrix.orchestrator.agents import Agents
from pytest_gittrix.orchestrator.board import Board, Notify, Seen
from pytest_gittrix.orchestrator.config import AgentPlugin, CommandAgent, Project, SpawnConfig, Tracker, projects_by_id
from pytest_gittrix.orchestrator.end import Ends
from pytest_gittrix.orchestrator.flat_audit import append_audit, audit_of
from pytest_gittrix.orchestrator.poll import Poller
from pytest_gittrix.orchestrator.session import (
    NON_RESTORABLE_STATUSES,
    TERMINAL_ACTIVITIES,
    TERMINAL_STATUSES,
    AgentSessionInfo,
    Cleaned,
    Killed,
    PRInfo,
    Reported,
    RuntimeHandle,
    Session,
    is_restorable,
    is_terminal_session,
)
from pytest_gittrix.orchestrator.spawn import Spawning
from pytest_gittrix.record.state.agent_reports import check_report, report_named
from pytest_gittrix.views.orchestrator_status import Dialect, can_restore

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import Timer
    from pytest_gittrix.engine.engine import GitTrix

__all__ = [
    "NON_RESTORABLE_STATUSES",
    "TERMINAL_ACTIVITIES",
    "TERMINAL_STATUSES",
    "AgentPlugin",
    "AgentSessionInfo",
    "Cleaned",
    "CommandAgent",
    "Killed",
    "Orchestrator",
    "PRInfo",
    "Project",
    "Reported",
    "RuntimeHandle",
    "Session",
    "SpawnConfig",
    "Tracker",
    "is_restorable",
    "is_terminal_session",
]

POLL: Final = timedelta(seconds=30)
"""How often sessions are looked at (session-systems 5.2)."""


class Orchestrator:
    """Leads the sessions of some projects in one engine's store. Several may do so at once, in several processes.

    Args:
        engine: the engine, initialised.
        projects: what sessions are spawned for.
        directory: of the flat ``key=value`` files; ``<home>/orchestrator`` by default. Those of a project are below
            ``<directory>/<project>/sessions``, the reports of its agents in ``.agent-report-audit`` there.
        dialect: ``document`` (as documented) or ``head`` (as the newest code).
        notify: called with each notification (the document's OrchestratorEvent as a dict), once and in order, also across orchestrators
            of one directory. One that is killed while it tells may tell the same once more, under the same id.
        environment: what agents get; this process's own by default, but for the token of the engine's forge.
        grace: real seconds that an agent has to end by itself when it is killed.
        end_merged: as in the original's code, ``poll`` kills and purges a session whose pull request is merged, as soon as its agent is not
            active, waiting for input or blocked, or 5 minutes after. Otherwise ``cleanup`` does.
        list_persists_death: as in the original's code, ``list`` ends a session whose agent is gone at once, without the three looks that
            a poll takes.

    Raises:
        InvalidInput: two projects share an id or a prefix, or the dialect is none.
    """

    def __init__(
        self,
        engine: GitTrix,
        projects: Iterable[Project],
        *,
        directory: Path | str | None = None,
        dialect: Dialect = "document",
        notify: Notify | None = None,
        environment: Mapping[str, str] | None = None,
        grace: float = GRACE,
        end_merged: bool = False,
        list_persists_death: bool = False,
    ) -> None:
        if dialect not in ("document", "head"):
            raise InvalidInput(f"{dialect!r} is no dialect.", fix="Use document or head.")
        place = Path(directory).absolute() if directory is not None else engine.home / "orchestrator"
        self._board = Board(engine, projects_by_id(projects), place, dialect, notify, environment, grace)
        self._agents = Agents(self._board)
        self._ends = Ends(self._board, self._agents)
        self._spawning = Spawning(self._board, self._agents, self._ends)
        self._poller = Poller(self._board, self._agents, self._spawning.settle, self._purge_merged if end_merged else None)
        self._list_persists_death = list_persists_death
        self._timer: Timer | None = None
        self.recover()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where the flat files are."""
        return self._board.directory

    def recover(self) -> builtins.list[str]:
        """Undo spawns that were killed, end agents of sessions that are over, and bring files up to date; done when it is made, too.

        Returns:
            The ids of the sessions whose spawn was undone. They are discarded, with what was done in them archived, and never used again.
        """
        return self._spawning.recover()

    def close(self) -> None:
        """Look at nothing any more. Sessions and their agents go on; closing again is no error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Spawning ------------------------------------------------------------------------------------------------------------------

    def spawn(self, config: SpawnConfig) -> Session:
        """Spawn a session: an id, a workspace, an agent at work in it.

        Its work is called (the fact ``branch``) as told, as the tracker says, ``feat/<issue>``, or ``session/<id>``. The agent gets its
        prompt by its command, or by its input once it runs, with three more tries; if that fails, the session stays. It is confined where
        the engine's workspaces are (``LocalEphemeral(confine=...)``).

        Raises:
            InvalidInput: there is no such project, agent or program, or a value cannot be used.
            GittrixError: what the tracker raises for an issue that it cannot look up; nothing was made.
            AdapterUnavailable, UnsupportedRepository, CapabilityMissing: it cannot be started. Whatever is raised, no reservation, session,
                workspace or process is left.
        """
        return self._shown(self._spawning.worker(config))

    def spawn_orchestrator(self, project_id: str, *, system_prompt: str | None = None, agent: str | None = None) -> Session:
        """The session that leads a project's others: the one there is, or a new one. Concurrent calls get the same.

        Raises:
            InvalidInput: there is no such project or agent.
            SessionNotRestorable: it is done, and its workspace still there.
            EvictionRace: another process has been spawning it for 20 seconds.
            AdapterUnavailable, UnsupportedRepository, CapabilityMissing: as ``spawn``.
        """
        return self._shown(self._spawning.orchestrator(project_id, system_prompt, agent))

    # What there is -------------------------------------------------------------------------------------------------------------

    def get(self, id: str) -> Session | None:
        """A session, purged ones too, or one that somebody else keeps in a flat file here; None if there is none.

        Raises:
            InvalidInput: there can be no such id.
            LogDamaged, MetadataVersionUnsupported: its log cannot be read.
        """
        seen = self._board.seen(id)
        if seen is not None:
            return self._board.shown(seen)
        filed = (one for project in self._board.projects.values() for one in self._board.filed(project))
        return next((one for one in filed if one.id == id), None)

    def list(self, project_id: str | None = None) -> builtins.list[Session]:
        """Every session that was not purged, over or not, in order of birth; then those of which there is only a flat file.

        What it shows is what the last look saw; a log that cannot be read is passed over.

        Raises:
            InvalidInput: there is no such project.
        """
        projects = self._board.projects.values() if project_id is None else [self._board.project(project_id)]
        found: builtins.list[Session] = []
        for project in projects:
            every = self._board.every(project)
            if self._list_persists_death:
                every = [self._poller.end_if_lost(seen) for seen in every]
            found += [self._board.shown(seen) for seen in every] + self._board.filed(project)
        return found

    # Ends and new beginnings ---------------------------------------------------------------------------------------------------

    def kill(self, id: str, *, reason: str = "manually_killed", purge: bool = False) -> Killed:
        """End a session's agent, with everything it started; done again, it does nothing.

        The session's workspace stays, so that it can be restored, reviewed and promoted, until its TTL passes.

        Args:
            id: the session.
            reason: ``manually_killed``, ``pr_merged``, ``auto_cleanup``, ``runtime_lost`` or ``error_in_process``; it makes the status.
            purge: archive what it did and take its workspace away too; it is listed no more then.

        Raises:
            SessionNotFound: there is none.
            InvalidInput: the reason is none.
            CapabilityMissing, AdapterUnavailable: the agent cannot be ended from here, or does not end; nothing was recorded.
            EvictionRace: somebody else changes the session and does not let go.
        """
        return self._ends.kill(id, reason, purge=purge)

    def restore(self, id: str) -> Session:
        """Start a new agent in a session that is over, where the last one stopped; a pull request that was merged or closed is dropped.

        The agent gets no prompt: ``send`` tells it what to do.

        Raises:
            SessionNotFound: there is none.
            SessionNotRestorable: it is not over, or over for good: its pull request is merged, or its work promoted.
            WorkspaceMissing: its workspace is gone.
            InvalidInput, AdapterUnavailable, CapabilityMissing: the agent cannot be started; the session stays over.
        """
        if not self._board.over(self._board.find(id)):
            self._poller.look(id)  # its agent may be gone since the last look
        self._ends.restore(id)
        return self._shown(id)

    def send(self, id: str, text: str) -> None:
        """Tell a session's agent something; one that is over is restored first, if it can be. It is recorded as ``user_message``.

        Raises:
            InvalidInput: the text is none.
            SessionNotFound: there is no such session.
            SessionNotRestorable: nothing can be sent to it: it is over for good, or its agent is gone and that is not settled yet.
            WorkspaceMissing, SessionExpired: it is over, and its workspace gone.
            AdapterUnavailable: the agent does not read; what was to be told is recorded.
        """
        said = check_text(text, "text")
        seen = self._awake(id)
        self._board.engine.get_session(id).record("user_message", {"text": said})
        self._agents.tell(seen, said)

    def cleanup(self, *, project_id: str | None = None, dry_run: bool = False) -> Cleaned:
        """Kill and purge the sessions whose pull request is merged or closed, whose issue is completed, or whose agent is gone.

        Their work is archived. Orchestrators are left, and what is over already: that waits for its TTL. What fails for one session is told
        in ``errors`` and stops no other.

        Args:
            project_id: only of this project.
            dry_run: only tell what would be killed.

        Raises:
            InvalidInput: there is no such project.
        """
        return self._ends.cleanup(project_id, dry_run=dry_run, merged=self._poller.pr_state)

    # What is told and seen -----------------------------------------------------------------------------------------------------

    def claim_pr(self, id: str, number: int) -> Session:
        """Have a session take an open pull request over, and others lose it. Its work is called as the pull request's branch from then on.

        The files of its workspace stay as they are: durable decides what is in them.

        Raises:
            SessionNotFound: there is no such session.
            InvalidInput: it is an orchestrator, over or without a workspace, has another pull request, its project has no forge, or the
                pull request is not open.
            AuthFailed, AdapterUnavailable: the forge cannot be asked.
        """
        self._poller.claim(id, number)
        return self._shown(id)

    def report(self, id: str, name: str, note: str | None = None) -> Reported:
        """Take an agent's word for how far it is. Every attempt is recorded, refused ones too; the next look acts on it.

        Args:
            id: its session.
            name: ``started``, ``working``, ``waiting``, ``needs_input``, ``fixing_ci``, ``addressing_reviews``, ``pr_created``,
                ``draft_pr_created``, ``ready_for_review`` or ``completed``; in any case, and short forms too.
            note: what else it says.

        Raises:
            SessionNotFound: there is no such session.
            InvalidInput: the name or the note is no text.
        """
        said = check_text(name, "name")
        told = report_named(said) or said.strip().lower().replace("-", "_")
        noted = {} if note is None else {"note": check_text(note, "note")}
        seen = self._board.find(id)
        recorder = self._board.recorder(id)
        with recorder.leased():
            reason = check_report(self._board.find(id).observations, told)
            refused = {} if reason is None else {"reason": reason}
            recorder.append("report.submitted", {"report": told, "accepted": reason is None, **refused, **noted}, actor="agent")
        try:
            entry = audit_of(self._board.find(id).events, dialect=self._board.dialect)[0]
            append_audit(self._board.files(seen.project), id, entry)
        except GittrixError as problem:
            self._board.complain(id, problem)
        return Reported(reason is None, reason)

    def audit(self, id: str) -> builtins.list[dict[str, Any]]:
        """What a session's agent reported, refused or not, newest first; from the log, of which the audit file is a copy.

        Raises:
            SessionNotFound: there is no such session.
        """
        return audit_of(self._board.find(id).events, dialect=self._board.dialect)

    def poll(self, id: str | None = None) -> builtins.list[Session]:
        """Look once at each session that is to be looked at, or at one; gives those.

        What is news is recorded, what it comes to is decided, files are brought up to date, and ``notify`` is told. What fails for one
        session of several is announced (``engine.error``) and stops no other.

        Raises:
            SessionNotFound: there is no session of that id.
        """
        looked = self._poller.poll() if id is None else [self._poller.look(id)]
        return [self._board.shown(seen) for seen in looked]

    def watch(self, interval: timedelta = POLL) -> None:
        """Poll by itself on the engine's clock, until ``close``; never twice at once.

        Raises:
            InvalidInput: the interval is not positive.
        """
        self.close()
        self._timer = self._board.engine.clock.every(interval, _weakly(self._poller))

    def _purge_merged(self, id: str) -> None:
        self._ends.kill(id, "pr_merged", purge=True)

    def _shown(self, id: str) -> Session:
        return self._board.shown(self._board.find(id))

    def _awake(self, id: str) -> Seen:
        """A session whose agent runs, restored if need be."""
        seen = self._board.find(id)
        if not self._board.over(seen) and self._agents.look(seen).state != "alive":
            seen = self._poller.look(id)
        if not self._board.over(seen):
            runtime = self._agents.look(seen).state
            if runtime != "alive":
                raise _cannot_send(id, f"its agent is {runtime}, and it is not known yet what that means")
            return seen
        if not can_restore(seen.observations, dialect=self._board.dialect):
            raise _cannot_send(id, f"it is {self._board.status(seen)}")
        self._ends.restore(id)
        return self._board.find(id)


def _cannot_send(id: str, reason: str) -> SessionNotRestorable:
    return SessionNotRestorable(
        f"Cannot send to session {id}: {reason}.", why="Nobody would read it.", fix="Poll it, restore it, or spawn another session."
    )


def _weakly(poller: Poller) -> Callable[[], None]:
    """A timer's callback that does not keep the orchestrator alive."""
    reference = weakref.ref(poller)

    def poll() -> None:
        alive = reference()
        if alive is not None:
            alive.poll_unless_busy()

    return poll
