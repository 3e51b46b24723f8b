"""The orchestrator: agents of several projects that work on issues, each in its own session, polled from outside (agent-orchestrator).

An orchestrated session is an ordinary session of the engine with an agent in it, and can be reviewed, promoted and discarded. The
orchestrator's observations and decisions are in the session's log; statuses, files and notifications follow from it
(docs/explanation/you-know-agent-orchestrator.md).
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pytest_gittrix.confine.limits import ResourceLimits
from pytest_gittrix.confine.network import ModelEndpoint
from pytest_gittrix.durations import duration_of
from pytest_gittrix.engine.agents.launch import settings_for
from pytest_gittrix.engine.agents.processes import GRACE
from pytest_gittrix.engine.operations.requester import require_person, sessions_of_requester
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import GittrixError, InvalidInput, SessionNotRestorable
from pytest_gittrix.orchestrator.agents import Agents
from pytest_gittrix.orchestrator.board import Board, Notify, ObservedSession
from pytest_gittrix.orchestrator.config import Project, SpawnConfig, projects_by_id
from pytest_gittrix.orchestrator.end import Ends
from pytest_gittrix.orchestrator.flat_audit import append_audit, audit_of
from pytest_gittrix.orchestrator.poll import Poller
from pytest_gittrix.orchestrator.session import (
    Cleaned,
    Killed,
    Reported,
    Session,
)
from pytest_gittrix.orchestrator.spawn import Spawner
from pytest_gittrix.os_level.command import Level
from pytest_gittrix.record.state.agent_reports import check_report, report_named
from pytest_gittrix.views.orchestrator_status import Dialect, can_restore

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import Timer
    from pytest_gittrix.engine.engine import GitTrix

POLL: Final = timedelta(seconds=30)
"""How often sessions are polled."""


class Orchestrator:
    """Leads the sessions of some projects in one engine's store. Several orchestrators may do so at once, in several processes.

    Args:
        engine: the engine, initialised.
        projects: the projects for which sessions are spawned.
        directory: the directory of the flat ``key=value`` files; ``<home>/orchestrator`` by default. Those of a project are below
            ``<directory>/<project>/sessions``, the reports of its agents in ``.agent-report-audit`` there.
        dialect: ``document`` (as documented) or ``head`` (as the newest code).
        notify: called with each notification (agent-orchestrator's OrchestratorEvent as a dict), once and in order, also across
            orchestrators of one directory. After a kill, the last notification may be repeated, under the same id.
        environment: the agents' environment; by default what every agent gets of this process's, and ``pass_env``.
        confine: how agents are confined: ``auto`` (as strongly as this machine and user can), ``jail``, ``guard`` or ``off``. The default
            is what ``LocalEphemeral(confine=...)`` of the engine names, or ``auto`` (docs/reference/confinement.md). A confined
            agent reaches neither store nor daemon: one that is to report, or to lead others, needs ``off``.
        network: which network confined agents have: ``none``, ``all`` for the machine's, or a list of what they reach, such as
            ``["model:anthropic", "api.example.org:443"]``.
        limits: what each confined agent may use, such as ``{"memory": "2GB", "processes": 200}``; one that passes a limit is ended, and the
            record names the limit. None for all there is.
        pass_env: names of variables of this process that agents get in addition to those that every agent gets.
        readable: files and directories that confined agents may read in addition to the tools of the system.
        grace: real seconds that an agent has to end when asked, before it is killed.
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
        confine: Level | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        pass_env: Iterable[str] = (),
        readable: Iterable[Path | str] = (),
        grace: float = GRACE,
        end_merged: bool = False,
        list_persists_death: bool = False,
    ) -> None:
        if dialect not in ("document", "head"):
            raise InvalidInput(f"{dialect!r} is no dialect.", fix="Use document or head.")
        directory = Path(directory).absolute() if directory is not None else engine.home / "orchestrator"
        agents = settings_for(engine.ephemeral, confine, network, limits, pass_env, readable)
        self._board = Board(engine, projects_by_id(projects), directory, dialect, notify, agents, environment, grace)
        self._agents = Agents(self._board)
        self._ends = Ends(self._board, self._agents)
        self._spawning = Spawner(self._board, self._agents, self._ends)
        self._poller = Poller(self._board, self._agents, self._spawning.repair, self._purge_merged if end_merged else None)
        self._list_persists_death = list_persists_death
        self._timer: Timer | None = None
        self.recover()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The directory of the flat files."""
        return self._board.directory

    def recover(self) -> builtins.list[str]:
        """Undo spawns that were killed, end agents of sessions that are over, and update the files. The constructor does this, too.

        Returns:
            The ids of the sessions whose spawn was undone. They are discarded, their work is archived, and their ids are never used again.
        """
        return self._spawning.recover()

    def close(self) -> None:
        """Stop polling. Sessions and their agents go on; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _require_person_or_orchestrator(self, verb: str) -> None:
        """Refuse an agent, unless it is the one of a session that leads a project's others. One that it spawned is refused, too."""
        root = self._board.engine.store.root
        asking = [self._board.find_or_none(id) for id in sessions_of_requester(root)]
        if not all(one is not None and one.state.identity.get("role") == "orchestrator" for one in asking):
            require_person(root, verb)

    # Spawning ------------------------------------------------------------------------------------------------------------------

    def spawn(self, config: SpawnConfig) -> Session:
        """Spawn a session: an id, a workspace, an agent at work in it.

        Its branch (its ``topic_branch``) is the configured one, the tracker's, ``feat/<issue>``, or ``session/<id>``. The agent gets
        its prompt by its command, or by its input once it runs, with three retries; if that fails, the session stays. It is confined as
        ``SpawnConfig(confine=...)`` says, and else as all agents of this orchestrator are.

        Raises:
            InvalidInput: there is no such project, agent or program, or a value cannot be used.
            GittrixError: an error of the tracker; nothing was made.
            AdapterUnavailable, UnsupportedRepository, CapabilityMissing: it cannot be started. After any error, no reservation, session,
                workspace or process is left.
            PersonRequired: an agent's process asks that is not the project's orchestrator.
        """
        self._require_person_or_orchestrator("spawn")
        return self._session(self._spawning.worker(config))

    def spawn_orchestrator(
        self,
        project_id: str,
        *,
        system_prompt: str | None = None,
        agent: str | None = None,
        confine: Level | None = None,
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
    ) -> Session:
        """The session that leads a project's others: the existing one, or a new one. Concurrent calls get the same.

        A confined agent cannot lead others, since it reaches neither store nor daemon: give ``confine="off"`` to one that is to spawn them.

        Raises:
            InvalidInput: there is no such project or agent.
            SessionNotRestorable: it is done, and its workspace still exists.
            EvictionRace: another process has been spawning it for 20 seconds.
            AdapterUnavailable, UnsupportedRepository, CapabilityMissing, PersonRequired: as ``spawn``.
        """
        self._require_person_or_orchestrator("spawn")
        config = SpawnConfig(project_id, prompt=system_prompt, agent=agent, confine=confine, limits=limits)
        return self._session(self._spawning.orchestrator(config))

    # Finding -------------------------------------------------------------------------------------------------------------------

    def get(self, id: str) -> Session | None:
        """A session, purged ones too, or one of another program by its flat file; None if there is none.

        Raises:
            InvalidInput: the id is malformed.
            LogDamaged, MetadataVersionUnsupported: its log cannot be read.
        """
        observed = self._board.find_or_none(id)
        if observed is not None:
            return self._board.to_session(observed)
        filed = (one for project in self._board.projects.values() for one in self._board.file_sessions(project))
        return next((one for one in filed if one.id == id), None)

    def list(self, project_id: str | None = None) -> builtins.list[Session]:
        """Every session that was not purged, over or not, oldest first; then those with only a flat file.

        A session is listed as the last poll observed it; one whose log cannot be read is left out.

        Raises:
            InvalidInput: there is no such project.
        """
        projects = self._board.projects.values() if project_id is None else [self._board.project(project_id)]
        found: builtins.list[Session] = []
        for project in projects:
            every = self._board.every(project)
            if self._list_persists_death:
                every = [self._poller.end_if_lost(observed) for observed in every]
            found += [self._board.to_session(observed) for observed in every] + self._board.file_sessions(project)
        return found

    # Ending and restoring ------------------------------------------------------------------------------------------------------

    def kill(self, id: str, *, reason: str = "manually_killed", purge: bool = False) -> Killed:
        """End all processes of a session's agent; a second call does nothing.

        The session's workspace stays, so that it can be restored, reviewed and promoted, until its TTL passes.

        Args:
            id: the session.
            reason: ``manually_killed``, ``pr_merged``, ``auto_cleanup``, ``runtime_lost`` or ``error_in_process``; the status follows it.
            purge: archive its work and remove its workspace too; it is no longer listed then.

        Raises:
            SessionNotFound: there is no such session.
            InvalidInput: the reason is unknown.
            CapabilityMissing, AdapterUnavailable: the agent cannot be ended from here, or does not end; nothing was recorded.
            EvictionRace: another process is changing the session for too long.
            SessionInUse: ``purge`` was asked for, and other processes work in its workspace; its agent has ended.
            PersonRequired: an agent's process asks that is not the project's orchestrator.
        """
        self._require_person_or_orchestrator("kill")
        return self._ends.kill(id, reason, purge=purge)

    def restore(self, id: str) -> Session:
        """Start a new agent in a session that is over, where the last one stopped; a pull request that was merged or closed is dropped.

        The agent gets no prompt: use ``send``.

        Raises:
            SessionNotFound: there is no such session.
            SessionNotRestorable: it is not over, or over for good: its pull request is merged, or its work promoted.
            WorkspaceMissing: its workspace is gone.
            InvalidInput, AdapterUnavailable, CapabilityMissing: the agent cannot be started; the session stays over.
            PersonRequired: as ``kill``.
        """
        self._require_person_or_orchestrator("restore a session")
        if not self._board.over(self._board.find(id)):
            self._poller.poll_one(id)  # its agent may have ended since the last poll
        self._ends.restore(id)
        return self._session(id)

    def send(self, id: str, text: str) -> None:
        """Send a text to a session's agent; a session that is over is restored first, if possible. It is recorded as ``user_message``.

        Raises:
            InvalidInput: ``text`` is no text.
            SessionNotFound: there is no such session.
            SessionNotRestorable: it cannot be sent to: it is over for good, or its agent has ended and the outcome is not decided yet.
            WorkspaceMissing, SessionExpired: it is over, and its workspace is gone.
            AdapterUnavailable: the agent does not read; the text is recorded.
            PersonRequired: as ``kill``.
        """
        self._require_person_or_orchestrator("send to a session")
        message = check_text(text, "text")
        self._agents.send(self._awake(id), message)

    def cleanup(self, *, project_id: str | None = None, dry_run: bool = False, ended: bool = False) -> Cleaned:
        """Kill and purge the sessions whose pull request is merged or closed, whose issue is completed, or whose agent has ended.

        Their work is archived. Orchestrators are left, and unless ``ended`` says otherwise, sessions that are over, which wait for their
        TTL. An error of one session is listed in ``errors`` and stops no other.

        Args:
            project_id: only of this project.
            dry_run: only report what would be killed.
            ended: purge sessions that are over, too; they cannot be restored then.

        Raises:
            InvalidInput: there is no such project.
            PersonRequired: as ``kill``, unless it is a dry run.
        """
        if not dry_run:
            self._require_person_or_orchestrator("clean up")
        return self._ends.cleanup(project_id, dry_run=dry_run, ended=ended, merged=self._poller.pr_state)

    # Pull requests, reports and polls ------------------------------------------------------------------------------------------

    def claim_pr(self, id: str, number: int) -> Session:
        """Assign an open pull request to a session, and take it from others. Its branch is the pull request's from then on.

        The files of its workspace stay as they are.

        Raises:
            SessionNotFound: there is no such session.
            InvalidInput: it is an orchestrator, over or without a workspace, has another pull request, its project has no forge, or the
                pull request is not open.
            AuthFailed, AdapterUnavailable: the forge cannot be reached.
            PersonRequired: as ``kill``, for another session than its own.
        """
        if id not in sessions_of_requester(self._board.engine.store.root):
            self._require_person_or_orchestrator("claim a pull request for another session")
        self._poller.claim(id, number)
        return self._session(id)

    def report(self, id: str, name: str, note: str | None = None) -> Reported:
        """Record an agent's report of its progress. Refused reports are recorded too; the next poll acts on an accepted one.

        Args:
            id: its session.
            name: ``started``, ``working``, ``waiting``, ``needs_input``, ``fixing_ci``, ``addressing_reviews``, ``pr_created``,
                ``draft_pr_created``, ``ready_for_review`` or ``completed``; in any case, and short forms too.
            note: a further remark of the agent's.

        Raises:
            SessionNotFound: there is no such session.
            InvalidInput: the name or the note is no text.
        """
        text = check_text(name, "name")
        report = report_named(text) or text.strip().lower().replace("-", "_")
        noted = {} if note is None else {"note": check_text(note, "note")}
        observed = self._board.find(id)
        recorder = self._board.recorder(id)
        with recorder.leased():
            reason = check_report(self._board.find(id).observations, report)
            refused = {} if reason is None else {"reason": reason}
            recorder.append("report.submitted", {"report": report, "accepted": reason is None, **refused, **noted}, actor="agent")
        try:
            entry = audit_of(self._board.find(id).events, dialect=self._board.dialect)[0]
            append_audit(self._board.files(observed.project), id, entry)
        except GittrixError as problem:
            self._board.complain(id, problem)
        return Reported(reason is None, reason)

    def audit(self, id: str) -> builtins.list[dict[str, Any]]:
        """All reports of a session's agent, refused ones too, newest first; from the log, of which the audit file is a copy.

        Raises:
            SessionNotFound: there is no such session.
        """
        return audit_of(self._board.find(id).events, dialect=self._board.dialect)

    def poll(self, id: str | None = None) -> builtins.list[Session]:
        """Poll each session that is due, or one session, and return those.

        New observations are recorded, the status is decided, files are updated, and ``notify`` is called. If several are polled, an error
        of one is announced (``engine.error``) and stops no other.

        Raises:
            SessionNotFound: there is no session of that id.
        """
        polled = self._poller.poll() if id is None else [self._poller.poll_one(id)]
        return [self._board.to_session(observed) for observed in polled]

    def watch(self, interval: timedelta | str = POLL) -> None:
        """Poll regularly on the engine's clock, until ``close``; never twice at once.

        Raises:
            InvalidInput: the interval is not positive.
        """
        self.close()
        self._timer = self._board.engine.clock.every(duration_of(interval), _weakly(self._poller))

    def _purge_merged(self, id: str) -> None:
        self._ends.kill(id, "pr_merged", purge=True)

    def _session(self, id: str) -> Session:
        return self._board.to_session(self._board.find(id))

    def _awake(self, id: str) -> ObservedSession:
        """A session whose agent runs, restored if necessary."""
        observed = self._board.find(id)
        if not self._board.over(observed) and self._agents.observe(observed).state != "alive":
            observed = self._poller.poll_one(id)
        if not self._board.over(observed):
            runtime = self._agents.observe(observed).state
            if runtime != "alive":
                raise _cannot_send(id, f"its agent is {runtime}, and it is not known yet what that means")
            return observed
        if not can_restore(observed.observations, dialect=self._board.dialect):
            raise _cannot_send(id, f"it is {self._board.status(observed)}")
        self._ends.restore(id)
        return self._board.find(id)


def _cannot_send(id: str, reason: str) -> SessionNotRestorable:
    return SessionNotRestorable(
        f"Cannot send to session {id}: {reason}.", why="No agent would read it.", fix="Poll it, restore it, or spawn another session."
    )


def _weakly(poller: Poller) -> Callable[[], None]:
    """A timer's callback that does not keep the orchestrator alive."""
    reference = weakref.ref(poller)

    def poll() -> None:
        alive = reference()
        if alive is not None:
            alive.poll_unless_busy()

    return poll
