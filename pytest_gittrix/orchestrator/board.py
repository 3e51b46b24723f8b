"""The orchestrator's board: the sessions of its projects as their logs show them, their flat files, and their notifications.

A session is changed only under its lock (``Board.locked``), in any process: so a spawn, a kill, a restore or a poll never meets another one
half-way. The files are copies of the logs, and can be deleted (docs/explanation/you-know-agent-orchestrator.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.engine.agents.launch import AgentSettings
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import Advice, EvictionRace, GittrixError, InvalidInput, SessionNotFound
from pytest_gittrix.orchestrator.config import Project
from pytest_gittrix.orchestrator.flat_audit import DIRECTORY as AUDITS
from pytest_gittrix.orchestrator.flat_files import ARCHIVE, changes_of, retire, session_of, sessions, tidy, update
from pytest_gittrix.orchestrator.flat_files import read as read_file
from pytest_gittrix.orchestrator.session import Session, session_from
from pytest_gittrix.os_level.atomic_text import is_unfinished, typed_file, write_whole
from pytest_gittrix.os_level.files import OWNERS, names_in, private_directory
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.log import report_ignored
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.observations import Observations, observations_of
from pytest_gittrix.views.orchestrator import notifications, record
from pytest_gittrix.views.orchestrator_status import Dialect, ended, status

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix

Notify = Callable[[dict[str, Any]], object]

RUNTIME: Final = "process"
"""The ``runtime`` in the identity of every session that an orchestrator spawned; it recognises its sessions by that."""
WAIT: Final = 60.0
"""Real seconds to wait for another process that changes a session: stopping an agent takes long."""
_LOCKS: Final = ".working"
_NOTIFIED: Final = ".told"


@dataclass(frozen=True)
class ObservedSession:
    """A session of a project, as its log shows it at one moment.

    Attributes:
        project: the project.
        events: all events of its log.
        state: the engine's state that they add up to.
        observations: the orchestrator's observations that they add up to.
    """

    project: Project
    events: tuple[Event, ...]
    state: SessionState
    observations: Observations

    @property
    def id(self) -> str:
        """The session's id."""
        return self.state.id

    @property
    def spawning(self) -> bool:
        """Whether its spawn has not finished: no session state was decided; for an orchestrator, no agent was observed."""
        if self.observations.session.kind == "orchestrator":
            return (
                not self.observations.session.over
                and self.observations.runtime.seen_ns is None
                and self.observations.session.restored_ns is None
            )
        return self.observations.session.state == "not_started"

    @property
    def stillborn(self) -> bool:
        """Whether it ended before it had an agent: its spawn was killed, and a recovery of the engine ended it."""
        return self.state.ended and self.observations.runtime.seen_ns is None

    @property
    def launched_ns(self) -> int:
        """The earliest time at which its present agent can have run; earlier observations are of another agent."""
        return self.observations.session.restored_ns or self.state.created_ns

    @property
    def workspace(self) -> Path | None:
        """Its workspace, if it exists."""
        path = self.state.workspace
        return Path(path) if path is not None and self.state.workspace_present and os.path.isdir(path) else None


@dataclass(frozen=True)
class Board:
    """The sessions of some projects in one store.

    Attributes:
        engine: the engine of the sessions.
        projects: the projects by id.
        directory: the directory of the flat files, ``<directory>/<project>/sessions/<id>``.
        dialect: the dialect of every status.
        notify: called with each notification; None for no notifications.
        agents: how agents are started.
        environment: the agents' environment; by default what ``agents`` takes from this process's.
        grace: real seconds that an agent has to end when asked, before it is killed.
    """

    engine: GitTrix
    projects: Mapping[str, Project]
    directory: Path
    dialect: Dialect
    notify: Notify | None
    agents: AgentSettings
    environment: Mapping[str, str] | None
    grace: float

    # Projects, files and locks -------------------------------------------------------------------------------------------------

    def project(self, id: str) -> Project:
        """The project of an id. Raises InvalidInput for an unknown one, with a list of the known ones."""
        found = self.projects.get(id)
        if found is None:
            known = ", ".join(self.projects) or "none"
            raise InvalidInput(f"There is no project {id!r}.", why="Sessions are spawned for one.", fix=f"The projects are: {known}.")
        return found

    def files(self, project: Project) -> Path:
        """The directory of a project's flat files."""
        return self.directory / project.id / "sessions"

    def retired(self, project: Project, id: str) -> bool:
        """Whether a session is no longer listed."""
        return (self.files(project) / ARCHIVE / id).exists()

    @contextmanager
    def locked(self, project: Project, id: str, *, wait: float = WAIT) -> Iterator[None]:
        """Hold a session's lock, under which alone it is changed.

        Raises:
            EvictionRace: another process did not release it in time.
        """
        with self._lock(project, id, wait):
            yield

    @contextmanager
    def locked_if_free(self, project: Project, id: str) -> Iterator[bool]:
        """Hold a session's lock if it is free, and yield whether it was."""
        lock = self._lock(project, id, 0)
        try:
            lock.acquire()
        except EvictionRace:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _lock(self, project: Project, id: str, wait: float) -> Lease:
        directory = self.files(project) / _LOCKS
        with typed_file(directory):
            private_directory(directory)
        return Lease(directory / id, wait=wait)

    # Sessions ------------------------------------------------------------------------------------------------------------------

    def ids(self, project: Project) -> list[str]:
        """The ids in the store that have the form of a project's ids; also of sessions that cannot be read."""
        return [id for id in self.engine.store.ids() if project.owns(id)]

    def recorder(self, id: str) -> Recorder:
        """The recorder of a session."""
        return self.engine.services.recorder(id)

    def find(self, id: str) -> ObservedSession:
        """A session of one of the projects.

        Raises:
            SessionNotFound: there is no session of that id, or it belongs to none of the projects.
            InvalidInput: the id is malformed.
            LogDamaged, MetadataVersionUnsupported: its log cannot be read.
        """
        found = self.find_or_none(id)
        if found is None:
            raise SessionNotFound(
                f"There is no session {id!r} of the projects {', '.join(self.projects)}."
                if self.projects
                else f"Session {id!r} was not spawned: no project is configured.",
                why="An orchestrator leads only sessions that it spawned.",
                fix=Advice("List them with list().", "`gittrix session list --as orchestrator` lists them."),
            )
        return found

    def find_or_none(self, id: str) -> ObservedSession | None:
        """A session of one of the projects; None if there is none. Raises as ``find`` for one that cannot be read."""
        events = self.engine.store.log(id).read()
        facts = events[0].data.get("identity", {}) if events else {}
        project = self.projects.get(facts.get("project", ""))
        # A session that a person started, even under such an id, is not the orchestrator's, and no spawn that was killed. Nor is a fork
        # of one of the orchestrator's sessions, which inherits the identity.
        if project is None or facts.get("runtime") != RUNTIME or "lineage" in events[0].data or not project.owns(id):
            return None
        return ObservedSession(project, tuple(events), fold(events), observations_of(events))

    def every(self, project: Project, *, retired: bool = False) -> list[ObservedSession]:
        """Every session of a project that can be read, oldest first; ``GitTrix.problems`` lists the others.

        Args:
            project: the project.
            retired: include those that are no longer listed.
        """
        found = []
        for id in self.ids(project):
            if not retired and self.retired(project, id):
                continue
            with suppress(GittrixError):
                observed = self.find_or_none(id)
                if observed is not None and observed.project is project:
                    found.append(observed)
        return sorted(found, key=lambda observed: (observed.state.created_ns, len(observed.id), observed.id))

    def to_session(self, observed: ObservedSession) -> Session:
        """The public Session of a session: by its log, with further keys of its file as metadata."""
        wire = record(observed.events, now_ns=self.engine.clock.now_ns(), dialect=self.dialect)
        filed: dict[str, Any] = {}
        with suppress(GittrixError):
            values = read_file(self.files(observed.project) / observed.id)
            filed = {} if values is None else session_of(observed.id, values, modified_ns=observed.state.updated_ns)["metadata"]
        return session_from({**wire, "metadata": {**filed, **wire["metadata"]}})

    def file_sessions(self, project: Project) -> list[Session]:
        """The sessions with a flat file and no log: those of another program."""
        directory = self.files(project)
        found = []
        with suppress(GittrixError, OSError):  # the other program may remove a file meanwhile
            for id, values in sessions(directory).items():
                if values.get("project", project.id) == project.id and not os.path.lexists(self.engine.store.directory(id)):
                    modified = (directory / id).stat().st_mtime_ns
                    wire = session_of(id, {"project": project.id, **values}, modified_ns=modified, dialect=self.dialect)
                    found.append(session_from(wire))
        return found

    def status(self, observed: ObservedSession) -> str:
        """The status of a session."""
        return status(observed.observations, dialect=self.dialect)

    def over(self, observed: ObservedSession) -> bool:
        """Whether a session is over, as an orchestrator sees it: one that was promoted as a pull request goes on until that is merged."""
        return ended(observed.observations, dialect=self.dialect)

    # Events, files and notifications -------------------------------------------------------------------------------------------

    def append(self, id: str, *events: tuple[str, Mapping[str, Any]]) -> None:
        """Store events of a session, in any state of it. Raises as ``Recorder.leased`` and ``Recorder.append``."""
        recorder = self.recorder(id)
        with recorder.leased():
            for type, data in events:
                recorder.append(type, data)

    def publish(self, id: str) -> ObservedSession:
        """Update a session's file, then send its new notifications, each once. The caller holds the session's lock.

        An error of either is announced (``engine.error``) and changes nothing: both follow from the log, and the next poll repeats them.
        """
        observed = self.find(id)
        try:
            if not self.retired(observed.project, id):
                update(self.files(observed.project) / id, changes_of(observed.events, dialect=self.dialect))
            self._notify(observed)
        except GittrixError as problem:
            self.complain(id, problem)
        return observed

    def retire(self, observed: ObservedSession) -> None:
        """Bring a session's file up to date, and list the session no longer; its id stays taken."""
        if not self.retired(observed.project, observed.id):
            update(self.files(observed.project) / observed.id, changes_of(observed.events, dialect=self.dialect))
            retire(self.files(observed.project), observed.id)

    def tidy(self, project: Project) -> None:
        """Remove the temporary files of writers that were killed."""
        directory = self.files(project)
        tidy(directory)
        tidy(directory / AUDITS)
        notified = directory / _NOTIFIED
        for name in names_in(notified):
            if is_unfinished(name):
                with self.locked_if_free(project, name[1:].partition(".")[0]) as free, suppress(OSError):
                    if free:
                        (notified / name).unlink()

    def complain(self, id: str, problem: Exception) -> None:
        """Announce an error (``engine.error``) where there is no caller to raise it to."""
        self.engine.services.complain(id, problem)

    def _notify(self, observed: ObservedSession) -> None:
        if self.notify is None:
            return
        file = self.files(observed.project) / _NOTIFIED / observed.id
        known = {one["id"] for one in notifications(observed.events[: _notified_count(file)], dialect=self.dialect)}
        fresh = [one for one in notifications(observed.events, dialect=self.dialect) if one["id"] not in known]
        for notification in fresh:
            try:
                self.notify(notification)
            except Exception as problem:  # noqa: BLE001  (notify is the user's code, and must not undo what happened)
                report_ignored(problem)
        if fresh:
            write_whole(file, f"{len(observed.events)}\n", mode=OWNERS)


def _notified_count(path: Path) -> int:
    """The number of events whose notifications were sent, by a file that may be missing or damaged."""
    try:
        return max(0, int(path.read_bytes()[:20]))
    except (OSError, ValueError):
        return 0
