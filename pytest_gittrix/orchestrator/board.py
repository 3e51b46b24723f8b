"""Where an orchestrator keeps track: the sessions of its projects as their logs tell of them, the flat files, and who has been told what.

Every change of a session is made by whoever holds its lock (``Board.held``), in whatever process: a spawn, a kill, a restore or a look
at it never meets another one half-way. The files are copies: they can be deleted, and what is told comes from the log (session-systems
5.1, 5.5). It must not know what is done with a session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.engine.operations.operation import Recorder
from pytest_gittrix.errors import EvictionRace, GittrixError, InvalidInput, SessionNotFound
from pytest_gittrix.orchestrator.config import Project
from pytest_gittrix.orchestrator.flat_audit import DIRECTORY as AUDITS
from pytest_gittrix.orchestrator.flat_files import ARCHIVE, changes_of, retire, session_of, sessions, tidy, update
from pytest_gittrix.orchestrator.flat_files import read as read_file
from pytest_gittrix.orchestrator.session import Session, session_from
from pytest_gittrix.os_level.atomic_text import is_unfinished, typed_file, write_whole
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
"""What the fact ``runtime`` says of the sessions that an orchestrator spawned: by that it knows them."""
WAIT: Final = 60.0
"""Real seconds to wait for whoever changes a session: a stop takes its time."""
_LOCKS: Final = ".working"
_TOLD: Final = ".told"


@dataclass(frozen=True)
class Seen:
    """A session of a project, as its log tells now.

    Attributes:
        project: the project.
        events: all of them.
        state: what they add up to for the engine.
        observations: and for an orchestrator.
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
        """Whether nothing says that its spawn came to its end; an orchestrator works from the start, so its agent must have been seen."""
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
        """Since when its agent may have run; what was seen of one before is of another."""
        return self.observations.session.restored_ns or self.state.created_ns

    @property
    def workspace(self) -> Path | None:
        """Its workspace, if it is there."""
        there = self.state.workspace is not None and self.state.workspace_present and os.path.isdir(self.state.workspace)
        return Path(self.state.workspace) if there and self.state.workspace is not None else None


@dataclass(frozen=True)
class Board:
    """The sessions of some projects in one store.

    Attributes:
        engine: whose sessions they are.
        projects: by id.
        directory: of the flat files, ``<directory>/<project>/sessions/<id>``.
        dialect: of every status.
        notify: who is told what happens; None for nobody.
        environment: what agents get; this process's own by default, but for the token of the engine's forge.
        grace: real seconds that an agent has to end by itself.
    """

    engine: GitTrix
    projects: Mapping[str, Project]
    directory: Path
    dialect: Dialect
    notify: Notify | None
    environment: Mapping[str, str] | None
    grace: float

    # Where things are ----------------------------------------------------------------------------------------------------------

    def project(self, id: str) -> Project:
        """A project. Raises InvalidInput for one that there is not, listing those there are."""
        found = self.projects.get(id)
        if found is None:
            known = ", ".join(self.projects) or "none"
            raise InvalidInput(f"There is no project {id!r}.", why="Sessions are spawned for one.", fix=f"The projects are: {known}.")
        return found

    def files(self, project: Project) -> Path:
        """The directory of a project's flat files."""
        return self.directory / project.id / "sessions"

    def retired(self, project: Project, id: str) -> bool:
        """Whether a session is to be listed no more."""
        return (self.files(project) / ARCHIVE / id).exists()

    @contextmanager
    def held(self, project: Project, id: str, *, wait: float = WAIT) -> Iterator[None]:
        """Be the only one who changes a session.

        Raises:
            EvictionRace: somebody else did not let go in time.
        """
        place = self.files(project) / _LOCKS
        with typed_file(place):
            place.mkdir(parents=True, exist_ok=True)
        with Lease(place / id, wait=wait):
            yield

    @contextmanager
    def held_if_free(self, project: Project, id: str) -> Iterator[bool]:
        """The same, if nobody else is at it; whether that is so."""
        place = self.files(project) / _LOCKS
        with typed_file(place):
            place.mkdir(parents=True, exist_ok=True)
        lease = Lease(place / id, wait=0)
        try:
            lease.acquire()
        except EvictionRace:
            yield False
            return
        try:
            yield True
        finally:
            lease.release()

    # What there is -------------------------------------------------------------------------------------------------------------

    def ids(self, project: Project) -> list[str]:
        """The ids of a project's shape that the store has, those that cannot be read included."""
        return [id for id in self.engine.store.ids() if project.owns(id)]

    def recorder(self, id: str) -> Recorder:
        """The recorder of a session."""
        return self.engine.services.recorder(id)

    def find(self, id: str) -> Seen:
        """A session of one of the projects.

        Raises:
            SessionNotFound: there is none of that id, or it is of none of the projects.
            InvalidInput: there can be no such id.
            LogDamaged, MetadataVersionUnsupported: its log cannot be read.
        """
        found = self.seen(id)
        if found is None:
            raise SessionNotFound(
                f"There is no session {id!r} of the projects {', '.join(self.projects)}.",
                why="Only sessions that an orchestrator spawned can be led by one.",
                fix="List them with list().",
            )
        return found

    def seen(self, id: str) -> Seen | None:
        """A session of one of the projects; None if there is none. Raises as ``find`` for what cannot be read."""
        events = self.engine.store.log(id).read()
        facts = events[0].data.get("identity", {}) if events else {}
        project = self.projects.get(facts.get("project", ""))
        # What a person started for the project, and named like its sessions, is not ours to lead, nor to take for a spawn that was killed.
        # Nor is what came of a session of ours: a fork has the facts of where it came from.
        if project is None or facts.get("runtime") != RUNTIME or "lineage" in events[0].data or not project.owns(id):
            return None
        return Seen(project, tuple(events), fold(events), observations_of(events))

    def every(self, project: Project, *, retired: bool = False) -> list[Seen]:
        """Every session of a project that can be read, in order of birth; ``GitTrix.problems`` tells of those that cannot.

        Args:
            project: the project.
            retired: those too that are to be listed no more.
        """
        found = []
        for id in self.ids(project):
            if not retired and self.retired(project, id):
                continue
            with suppress(GittrixError):
                seen = self.seen(id)
                if seen is not None and seen.project is project:
                    found.append(seen)
        return sorted(found, key=lambda seen: (seen.state.created_ns, len(seen.id), seen.id))

    def shown(self, seen: Seen) -> Session:
        """A session as it is given out: by its log, with what else its file says as metadata."""
        wire = record(seen.events, now_ns=self.engine.clock.now_ns(), dialect=self.dialect)
        filed: dict[str, Any] = {}
        with suppress(GittrixError):
            values = read_file(self.files(seen.project) / seen.id)
            filed = {} if values is None else session_of(seen.id, values, modified_ns=seen.state.updated_ns)["metadata"]
        return session_from({**wire, "metadata": {**filed, **wire["metadata"]}})

    def filed(self, project: Project) -> list[Session]:
        """The sessions of which there is a file and no log: somebody else's, who keeps them so."""
        place = self.files(project)
        found = []
        with suppress(GittrixError, OSError):  # whoever keeps them may take one away meanwhile
            for id, values in sessions(place).items():
                if values.get("project", project.id) == project.id and not os.path.lexists(self.engine.store.directory(id)):
                    modified = (place / id).stat().st_mtime_ns
                    told = session_of(id, {"project": project.id, **values}, modified_ns=modified, dialect=self.dialect)
                    found.append(session_from(told))
        return found

    def status(self, seen: Seen) -> str:
        """The status of a session."""
        return status(seen.observations, dialect=self.dialect)

    def over(self, seen: Seen) -> bool:
        """Whether a session is over, as an orchestrator sees it: one that was promoted as a pull request goes on until that is merged."""
        return ended(seen.observations, dialect=self.dialect)

    # What is made known --------------------------------------------------------------------------------------------------------

    def append(self, id: str, *told: tuple[str, Mapping[str, Any]]) -> None:
        """Store events of a session, whatever has become of it. Raises as ``Recorder.leased`` and ``Recorder.append``."""
        recorder = self.recorder(id)
        with recorder.leased():
            for type, data in told:
                recorder.append(type, data)

    def publish(self, id: str) -> Seen:
        """Bring a session's file up to date, then tell who is to be told, each thing once. The caller holds the session.

        What goes wrong with either is announced (``engine.error``) and changes nothing: both follow from the log, and are made up for at
        the next look.
        """
        seen = self.find(id)
        try:
            if not self.retired(seen.project, id):
                update(self.files(seen.project) / id, changes_of(seen.events, dialect=self.dialect))
            self._tell(seen)
        except GittrixError as problem:
            self.complain(id, problem)
        return seen

    def retire(self, seen: Seen) -> None:
        """List a session no more; its id stays taken. What its file says then is what its log says now."""
        if not self.retired(seen.project, seen.id):
            update(self.files(seen.project) / seen.id, changes_of(seen.events, dialect=self.dialect))
            retire(self.files(seen.project), seen.id)

    def tidy(self, project: Project) -> None:
        """Remove what was left of files that were being written when their writer was killed."""
        place = self.files(project)
        for directory in (place, place / AUDITS):
            tidy(directory)
        for name in os.listdir(place / _TOLD) if (place / _TOLD).is_dir() else ():
            if is_unfinished(name):
                with self.held_if_free(project, name[1:].partition(".")[0]) as free, suppress(OSError):
                    if free:
                        (place / _TOLD / name).unlink()

    def complain(self, id: str, problem: Exception) -> None:
        """Announce what went wrong where there is no caller to raise to."""
        self.engine.services.complain(id, problem)

    def _tell(self, seen: Seen) -> None:
        if self.notify is None:
            return
        place = self.files(seen.project) / _TOLD / seen.id
        known = {told["id"] for told in notifications(seen.events[: _number(place)], dialect=self.dialect)}
        news = [told for told in notifications(seen.events, dialect=self.dialect) if told["id"] not in known]
        for told in news:
            try:
                self.notify(told)
            except Exception as problem:  # noqa: BLE001  (who is told is a stranger, and undoes nothing that happened)
                report_ignored(problem)
        if news:
            write_whole(place, f"{len(seen.events)}\n")


def _number(path: Path) -> int:
    """The number of events that were told of, by a file that may be missing or damaged."""
    try:
        return max(0, int(path.read_bytes()[:20]))
    except (OSError, ValueError):
        return 0
