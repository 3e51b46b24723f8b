"""One session of a member on the disk: its directories, its event log and its lifecycle, read or written.

The modules that start, stop, clean up and inspect members' sessions share this.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.engine.agents.launch import AgentSettings
from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.lineage.member_recovery import AGENT, FINALIZATION, TURN, WORKSPACE
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import GittrixError, InvalidInput, SessionNotFound
from pytest_gittrix.members.finalize import CreateIssue, Credentials
from pytest_gittrix.members.work_locks import WorkLocks
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.lifecycle import STATES, Life
from pytest_gittrix.record.state.retention import RetentionPolicy
from pytest_gittrix.workspaces.multi_repo import TEAM, CheckedOutRepository, MultiRepoWorkspace, RepositorySpec

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.operations.recorder import Recorder

RUNNING: Final[frozenset[str]] = frozenset({"creating", "active", "finalizing"})
"""The states in which a session holds its work items."""

HELD: Final = "archive.held"
"""The directory of archived files that seem to hold credentials, in the directory of a session."""

_SPARE: Final = 30.0


@dataclass(frozen=True)
class TeamSettings:
    """The settings that the sessions of one team's members share; the other attributes are arguments of ``Members``.

    Attributes:
        clones: the directory of shared clones.
        locks: the locks of work items.
        allow_secrets: files that finalizations let through although they seem to hold credentials.
        agents: how agents are started.
        fails_dead: whether an agent that is found dead is a failure, and its work is not saved.
    """

    engine: GitTrix
    name: str
    repositories: tuple[RepositorySpec, ...]
    commands: Mapping[str, Sequence[str]]
    retention: RetentionPolicy
    forge: CreateIssue | None
    credentials: Credentials
    environment: Mapping[str, str]
    agents: AgentSettings
    grace: float
    deadline: float
    fails_dead: bool
    clones: Path
    locks: WorkLocks
    allow_secrets: tuple[str, ...] = ()

    def record(self, id_: str) -> MemberRecord:
        """The record of a session, which need not exist. Raises InvalidInput for a malformed id."""
        return MemberRecord(self.engine.services.recorder(id_), self.clones)

    def complain(self, id_: str, problem: Exception) -> None:
        """Announce an error (``engine.error``) that stops nothing else."""
        self.engine.services.complain(id_, problem)


class MemberRecord:
    """One session of a member, as it is on the disk.

    Attributes:
        id: its id.
        directory: its directory.
        recorder: the writer of its log.
    """

    def __init__(self, recorder: Recorder, clones: Path) -> None:
        self.recorder = recorder
        self.id = recorder.id
        self.directory = recorder.directory
        self._clones = clones

    @property
    def workspace(self) -> Path:
        """The path of its workspace, made or not."""
        return self.directory / WORKSPACE

    @property
    def finalization(self) -> Path:
        """The directory of its finalizations' notes."""
        return self.directory / FINALIZATION

    @property
    def held(self) -> Path:
        """The directory of files that its finalizations held back; it stays when the workspace goes."""
        return self.directory / HELD

    def events(self) -> list[Event]:
        """All events of its log.

        Raises:
            SessionNotFound: there is no such session.
            LogDamaged, MetadataVersionUnsupported: the log cannot be read.
        """
        return self.history()[0]

    def history(self) -> tuple[list[Event], SessionState]:
        """All events of its log, and the state that they add up to. Raises as ``events``."""
        events = self.recorder.log.twin().read()
        return events, fold(events) if events else self.recorder.read()  # which raises the error that says why there are none

    def life(self) -> Life:
        """Its lifecycle as it is now.

        Raises:
            SessionNotFound: there is no such session, or its start never finished.
            InvalidInput: it is no member's session.
            LogDamaged, MetadataVersionUnsupported: the log cannot be read.
        """
        return self._life(self.history()[1])

    def life_or_none(self) -> Life | None:
        """As ``life``; None for a record that cannot be read."""
        with suppress(GittrixError):
            return self.life()
        return None

    def _life(self, state: SessionState) -> Life:
        if state.life is None:
            raise InvalidInput(
                f"Session {self.id} is not a member's: it has no life cycle.",
                why="Its work is promoted or discarded, not finalized and retained.",
                fix="Use its own verbs, such as `gittrix promote` and `gittrix session discard`.",
            )
        if state.life.state == "creating" and state.ended:
            raise SessionNotFound(f"There is no session {self.id!r}: its start never finished.", fix="Start another one.")
        return state.life

    @contextmanager
    def locked(self, *, wait: float | None = None) -> Iterator[LockedSession]:
        """Lock the session, to store events of it.

        Args:
            wait: real seconds to wait for another process; the recorder's by default.

        Raises:
            EvictionRace: another process held the lock for longer.
            SessionNotFound, InvalidInput, LogDamaged, MetadataVersionUnsupported: as ``life``.
        """
        with self.recorder.leased(wait=wait) as state:
            yield LockedSession(self.recorder, self._life(state))

    def workspace_lock(self, *, wait: float = 0.0) -> Lease:
        """The lock for saving or removing the workspace. It is not the session's lock, since both take long."""
        return Lease(self.directory / TURN, wait=wait)

    def busy(self) -> bool:
        """Whether another thread or process holds one of its locks at this moment."""
        leases = (self.workspace_lock(), self.recorder.store.lease(self.id))
        return any(lease.state() != "available" for lease in leases)

    def multi_repo(self) -> MultiRepoWorkspace:
        """Its workspace as it was planned. Raises as ``life``."""
        planned = self.events()[0].data.get("repositories", ())
        repositories = tuple(
            CheckedOutRepository(one["name"], one["url"], one["place"], one["branch"], one["commit"], one["place"] == TEAM)
            for one in planned
        )
        return MultiRepoWorkspace(str(self.workspace), str(self._clones), repositories)

    def process(self, life: Life) -> AgentProcess | None:
        """The agent that was last started in it; where the log and the agent's files differ, the log is right."""
        if life.agent is None:
            return None
        known = (life.agent.pid, life.agent.start_time)
        found = AgentProcess(self.directory / AGENT)
        if found.owner is not None and (found.owner.pid, found.owner.start_time) == known:
            return found
        return AgentProcess(self.directory / AGENT, Owner.here(life.agent.pid, life.agent.start_time))


class LockedSession:
    """A member's session whose lock is held.

    Attributes:
        life: its lifecycle, with all events that were added.
    """

    def __init__(self, recorder: Recorder, life: Life) -> None:
        self._recorder = recorder
        self.life = life

    def add(self, type_: str, data: Mapping[str, Any], *, commit_point: bool = False) -> Life:
        """Store an event. Raises AdapterUnavailable or LogDamaged, as ``Recorder.append``."""
        known = {name: value for name, value in data.items() if value is not None}
        self.life = self._recorder.append(type_, known, commit_point=commit_point).life or self.life
        return self.life

    def move(self, to: str, *, reason: str | None = None, result: str | None = None) -> Life:
        """Store a move to another state of the lifecycle. Raises as ``add``."""
        return self.add("life.moved", {"to": to, "reason": reason, "result": result}, commit_point=True)


def workspace_lock_wait(team: TeamSettings) -> float:
    """Real seconds to wait for a workspace's lock: as long as its finalization may take, and some to store the outcome."""
    return team.deadline + _SPARE


def require_states(states: Iterable[str]) -> None:
    """Validate states of a session. Raises InvalidInput, which lists them."""
    unknown = next((state for state in states if state not in STATES), None)
    if unknown is not None:
        raise InvalidInput(f"{unknown!r} is no state of a session.", fix=f"Use: {', '.join(STATES)}.")


def check_name(value: str, what: str) -> str:
    """Check a name of one line.

    Raises:
        InvalidInput: it is no text, is empty, begins or ends with a space, or has a control character.
    """
    name = check_text(value, what)
    if not name or name != name.strip() or any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in name):
        raise InvalidInput(
            f"{name[:80]!r} cannot be the {what}.",
            why="The name is printed on a line of its own.",
            fix="Use printable characters, such as alice.",
        )
    return name
