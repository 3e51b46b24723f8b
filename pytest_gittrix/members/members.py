"""The sessions of a team's members, from their start until their workspaces are gone (BotMinter; session-systems 4).

Each is one run of a member's agent in a workspace of several repositories. When the agent goes, what it left is saved to the remotes, and
the workspace is retained for a while. The document's behaviour is the default: every ending is retained, and nothing that is nowhere
else is ever collected (4.6, rules 8 to 11). Several engines may manage the same sessions at once.
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_gittrix.clock.clock import Timer
from pytest_gittrix.durations import ns_of
from pytest_gittrix.engine.agents.processes import GRACE, AgentProcess
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, SessionNotFound
from pytest_gittrix.members.cleanup import CleanupReport, MemberCleanup, looked
from pytest_gittrix.members.finalize import DEADLINE, CreateIssue, Credentials
from pytest_gittrix.members.inspection import Inspection, RepositoryState
from pytest_gittrix.members.record import RUNNING, Team, check_name
from pytest_gittrix.members.start import Asked, MemberStart
from pytest_gittrix.members.stop import MemberEnd, StopSummary
from pytest_gittrix.members.work_locks import Acquired, WorkLocks
from pytest_gittrix.record.state.lifecycle import STATES, TERMINAL, Life
from pytest_gittrix.record.state.retention import RetentionPolicy, Selector
from pytest_gittrix.views import botminter
from pytest_gittrix.workspaces.multi_repo import Progress, RepositorySpec

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix

__all__ = ["CleanupReport", "Inspection", "Members", "RepositoryState", "StopSummary"]

CLONES: Final = "clones"
"""The directory of shared clones, in the engine's home."""
WORK_LOCKS: Final = "work-locks"
"""The directory of the work items that sessions hold, in the engine's home."""

_LEFT: Final = ("active", "finalizing", *sorted(TERMINAL))
Dead = Literal["finalize", "fail"]


class Members:
    """The sessions of a team's members, on one engine.

    Args:
        engine: where the sessions are kept, and whose clock counts.
        repositories: what every workspace has, unless a start says otherwise.
        team: its name.
        commands: the program that a member runs, by member; under ``""`` that of all others.
        retention: how long workspaces are kept; ``RetentionPolicy()`` by default.
        forge: opens an issue about work that only recovery branches have.
        credentials: asked for each ``http`` address that is read or pushed to; agents are not told them.
        environment: more variables for agents. Those of ssh (``SSH_AUTH_SOCK``) are the engine's own git's, too.
        grace: real seconds from asking an agent to end to killing it.
        deadline: real seconds that saving one workspace may take.
        dead: what becomes of an agent that is found dead without having been stopped: ``finalize`` saves its work (the document); ``fail``
            calls it a failure and saves nothing, as BotMinter's code does (4.2). Its workspace is retained in any case.

    Raises:
        InvalidInput: an argument has a value that is not allowed.
    """

    def __init__(
        self,
        engine: GitTrix,
        repositories: Sequence[RepositorySpec] = (),
        *,
        team: str = "team",
        commands: Mapping[str, Sequence[str]] | None = None,
        retention: RetentionPolicy | None = None,
        forge: CreateIssue | None = None,
        credentials: Credentials = lambda _url: None,
        environment: Mapping[str, str] | None = None,
        grace: float = GRACE,
        deadline: float = DEADLINE,
        dead: Dead = "finalize",
    ) -> None:
        if dead not in ("finalize", "fail"):
            raise InvalidInput(f"dead={dead!r} is nothing that becomes of a dead agent.", fix="Use finalize or fail.")
        if not grace >= 0 or not deadline > 0:
            raise InvalidInput(f"grace is {grace!r} and deadline {deadline!r}.", fix="Use seconds: grace from 0, deadline above 0.")
        locks = WorkLocks(engine.home / WORK_LOCKS, is_live=self._is_live, now_ns=engine.clock.now_ns)
        self._engine = engine
        self._timer: Timer | None = None
        self._team = Team(
            engine,
            check_name(team, "name of a team"),
            tuple(repositories),
            dict(commands or {}),
            retention or RetentionPolicy(),
            forge,
            credentials,
            dict(environment or {}),
            grace,
            deadline,
            dead == "fail",
            engine.home / CLONES,
            locks,
        )
        self._end = MemberEnd(self._team)
        self._cleanup = MemberCleanup(self._team)

    def _is_live(self, id_: str) -> bool:
        """Whether a session still works on what it holds: one that is being started, too."""
        store = self._engine.store
        try:
            state = store.load(id_)
        except SessionNotFound:
            return store.directory(id_).is_dir() and store.lease(id_).state() != "available"
        except GittrixError:
            return True  # it cannot be told
        return not state.ended and (state.life is None or state.life in RUNNING)

    # Starting and finding ----------------------------------------------------------------------------------------------------------

    def start(
        self,
        member: str,
        kind: str = "loop",
        *,
        task: str = "",
        command: Sequence[str] | None = None,
        repositories: Sequence[RepositorySpec] | None = None,
        work_item: str | None = None,
        environment: Mapping[str, str] | None = None,
        id: str | None = None,
        progress: Progress | None = None,
        **identity: str,
    ) -> Life:
        """Start a session: make its workspace, and start the agent in it.

        Args:
            member: whose it is.
            kind: ``loop``, ``interactive`` or ``brain``. A loop becomes a brain if the team's repository has ``brain-prompt.md``, at its
                root or below ``members/<member>/`` (4.3).
            task: what the agent is to do.
            command: what it runs; that of the member by default. An interactive session runs nothing unless it is told what.
            repositories: what its workspace has; those of the team by default.
            work_item: what it alone shall work on, until its run ends.
            environment: more variables for the agent.
            id: its id; made here by default.
            progress: told what is being done about each repository.
            identity: more about who works in it, and on what; see ``values.IDENTITY``.

        Returns:
            Its life, as the start left it.

        Raises:
            InvalidInput: an argument is not allowed, or the id is taken; or there is no such program, and the session failed.
            WorkItemHeld: another session works on the item; ``.holder`` is its id.
            AdapterUnavailable: a remote or the disk refused, and nothing is left; or the agent could not be started, and the session
                failed: then the message names it, and it is retained.
            CapabilityMissing: agents cannot run here; the session failed likewise.
        """
        runs = command
        if runs is None and kind != "interactive":
            runs = self._team.commands.get(member, self._team.commands.get(""))
        places = self._team.repositories if repositories is None else tuple(repositories)
        asked = Asked(member, kind, task, runs, places, work_item, dict(environment or {}), progress, identity)
        return MemberStart(self._team).run(asked, id)

    def get(self, id: str) -> Life:
        """A session as it is now.

        Raises:
            SessionNotFound: there is none of that id, or its start never finished.
            InvalidInput: it is no member's, or that is no id.
            LogDamaged, MetadataVersionUnsupported: its record cannot be read.
        """
        return self._team.record(id).life()

    def list(self, *, member: str | None = None, states: Collection[str] = ()) -> list[Life]:
        """The sessions of a member, or of all, in some states, or in any; oldest first. One that cannot be read is left out.

        Raises:
            InvalidInput: there is no such state.
        """
        wanted = [states] if isinstance(states, str) else [*states]
        unknown = [state for state in wanted if state not in STATES]
        if unknown:
            raise InvalidInput(f"{unknown[0]!r} is no state of a session.", fix=f"Use: {', '.join(STATES)}.")
        found: builtins.list[Life] = []
        for id_ in self._ids(wanted, member):
            try:
                life = self.get(id_)
            except GittrixError:
                continue  # `problems` of the engine tells of it
            if not wanted or life.state in wanted:
                found.append(life)
        return found

    def _ids(self, states: Iterable[str] = (), member: str | None = None) -> builtins.list[str]:
        self._engine.services.index.sync()
        return self._engine.services.index.lives(states, member=member)

    def process(self, id: str) -> AgentProcess | None:
        """The agent of a session, dead or alive; None if none was started. Raises as ``get``."""
        record = self._team.record(id)
        return record.process(record.life())

    # Ends --------------------------------------------------------------------------------------------------------------------------

    def exited(self) -> builtins.list[str]:
        """The ids of those to ``finish``, oldest first: their agent is gone, or an ending stopped half-way, and nobody goes on with it.

        An interactive session without an agent is never one of them.
        """
        return self._end.exited(self._ids(_LEFT))

    def finish(self, id: str) -> Life:
        """Bring a session whose agent is gone to its end, or an interactive one that is over: save its work, and retain it.

        Of two who do that at once, one does it, and the other waits. A session that is over is no error.

        Returns:
            Its life: retained, if nobody did something else to it meanwhile.

        Raises:
            SessionNotFound, LogDamaged, MetadataVersionUnsupported: as ``get``.
            InvalidInput: its agent still runs, it is still being made, or as ``get``.
            EvictionRace: somebody else did not come to an end with it; it is finalizing still.
            AdapterUnavailable: something of the agent's cannot be ended, or the disk refused.
        """
        return self._end.finish(id)

    def observe(self) -> builtins.list[Life]:
        """Finish all that are to be finished; gives those that were. What cannot be is announced as ``engine.error``."""
        return self._each(self.exited(), self.finish)

    def _each(self, ids: Iterable[str], do: Callable[[str], Life]) -> builtins.list[Life]:
        done: builtins.list[Life] = []
        for id_ in ids:
            try:
                done.append(do(id_))
            except Exception as problem:  # noqa: BLE001  (one session must not keep the others from being finished)
                self._team.complain(id_, problem)
        return done

    def stop(self, id: str, *, force: bool = False, reason: str | None = None) -> Life:
        """End a session's run. A session that is over is no error.

        Args:
            id: the session.
            force: kill its agent at once, and save nothing; its workspace is retained with what is in it. Without it, the agent is asked
                to end, and killed after ``grace``; then all goes on as in ``finish``.
            reason: why, for the record.

        Raises:
            as ``finish``.
        """
        return self._end.stop(id, force=force, reason=reason)

    def stop_all(self, *, member: str | None = None, force: bool = False) -> StopSummary:
        """Stop all sessions that run, one after the other; interactive ones only if a member is named (4.3). One failure stops nothing.

        Args:
            member: only those of this member.
            force: as in ``stop``.
        """
        return self._end.stop_all(self.list(member=member, states=("active", "finalizing")), force=force, chats=member is not None)

    def finalize(self, id: str) -> Life:
        """Save the work of a retained session once more, and retain it again.

        Raises:
            InvalidInput: it is not retained ("Cannot transition from ... to Finalizing"), or as ``get``.
            SessionNotFound, EvictionRace, AdapterUnavailable: as ``finish``.
        """
        return self._end.finalize(id)

    # Workspaces --------------------------------------------------------------------------------------------------------------------

    def inspect(self, id: str) -> Inspection:
        """A session, and what its repositories hold that is not committed, or not pushed. It changes nothing, and asks no remote.

        Raises:
            SessionNotFound, InvalidInput, LogDamaged, MetadataVersionUnsupported: as ``get``.
            OSError: there is no room to look.
        """
        record = self._team.record(id)
        return Inspection(record.life(), looked(record))

    def cleanup(self, selector: Selector, *, dry_run: bool = False) -> CleanupReport:
        """Remove workspaces of retained sessions that somebody selects. Their records stay.

        What holds work that is nowhere else is spared, unless it is named by its id, or ``even_unsaved`` says so.

        Args:
            selector: which.
            dry_run: only say what would be removed.

        Raises:
            SessionNotFound: there is no session of that id.
            InvalidInput: it is not retained, or no member's.
        """
        lives = [self.get(selector.id)] if selector.id is not None else self.list(states=("retained",))
        return self._cleanup.clean(lives, selector, dry_run=dry_run)

    def scan(self) -> CleanupReport:
        """Remove the workspaces that were kept for their time, or that are over the budget: the retention engine, once."""
        return self._cleanup.scan(self.list(states=("retained",)))

    def watch(self) -> None:
        """Have the clock ``scan`` every ``retention.scan_interval_ns``, the first time after one interval. Again, it does nothing."""
        if self._timer is None:
            interval = timedelta(microseconds=max(self._team.retention.scan_interval_ns // 1000, 1))
            self._timer = self._engine.clock.every(interval, _weakly(self))

    def close(self) -> None:
        """Stop what ``watch`` began. Sessions and agents go on; calling it again is no error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # After a restart ---------------------------------------------------------------------------------------------------------------

    def recover(self) -> builtins.list[Life]:
        """Bring every session that a kill left half-way to a state that somebody meant; agents that live are left alone.

        Returns:
            The sessions whose end was brought about, or that were finished. What cannot be is announced as ``engine.error``.
        """
        self._engine.recover()
        self._each(self._ids(("retained",)), self._end.settle)
        done = self.observe()
        self._free()
        return done

    def _free(self) -> None:
        """Give back the work items of sessions that are over."""
        try:
            for session in {lock.session for lock in self._team.locks.held()}:
                if not self._is_live(session):
                    self._team.locks.release_all(session)
        except GittrixError as problem:
            self._team.complain("", problem)

    # Records -----------------------------------------------------------------------------------------------------------------------

    def history(self, *, member: str | None = None, since: datetime | None = None) -> builtins.list[dict[str, Any]]:
        """The sessions that have ended, the newest end first, as BotMinter tells of them; see ``views.botminter.history``.

        Args:
            member: only those of this member.
            since: only those that came into their state then or later; aware.

        Raises:
            InvalidInput: ``since`` has no time zone.
        """
        since_ns = None if since is None else ns_of(since)
        events = []
        for id_ in self._ids((*sorted(TERMINAL), "retained", "removed"), member):
            try:
                events.append(self._team.record(id_).events())
            except GittrixError:
                continue  # `problems` of the engine tells of it
        return botminter.history(events, member=member, since_ns=since_ns)

    # Work items --------------------------------------------------------------------------------------------------------------------

    def lock(self, id: str, item: str) -> Acquired:
        """Have a session alone work on an item, until it gives that back or its run ends. Exactly one of those who ask gets it.

        Raises:
            InvalidInput: its run is over, or the item cannot name one; or as ``get``.
            SessionNotFound, EvictionRace, AdapterUnavailable: as ``finish``.
        """
        with self._team.record(id).held() as held:
            if held.life.state not in RUNNING:
                raise InvalidInput(
                    f"Session {id} is {held.life.state}, and works on nothing any more.",
                    why="A lock that nobody works under keeps others from the item.",
                    fix="Ask for it from a session that runs.",
                )
            asked = self._team.locks.acquire(item, id)
            if asked.acquired and item not in held.life.locks:
                held.add("work.locked", {"item": item})
            return asked

    def unlock(self, id: str, item: str) -> bool:
        """Give an item back; whether the session held it. Somebody else's lock stays.

        Raises:
            InvalidInput, SessionNotFound, EvictionRace, AdapterUnavailable: as ``lock``, but a run that is over is no error.
        """
        with self._team.record(id).held() as held:
            released = self._team.locks.release(item, id)
            if released or item in held.life.locks:
                held.add("work.released", {"item": item})
            return released


def _weakly(members: Members) -> Callable[[], None]:
    """A timer's callback that keeps nothing alive; what goes wrong in it is announced."""
    reference = weakref.ref(members)

    def scan() -> None:
        held = reference()
        if held is None:
            return
        try:
            report = held.scan()
        except (GittrixError, OSError) as problem:
            held._team.complain("", problem)
            return
        for id_, reason in report.failed.items():
            held._team.complain(id_, AdapterUnavailable(reason))

    return scan
