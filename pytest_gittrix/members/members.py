"""The sessions of a team's members, from their start until their workspaces are removed (BotMinter).

Each is one run of a member's agent in a workspace of several repositories. When the agent ends, its work is saved to the remotes, and the
workspace is retained for a while. By default, every ending is retained, and work that is nowhere else is never removed
(docs/explanation/you-know-botminter.md). Several engines may manage the same sessions at once.
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_gittrix.backends.forge.protocol import Topics
from pytest_gittrix.clock.clock import Timer
from pytest_gittrix.confine.limits import ResourceLimits, check_limits
from pytest_gittrix.confine.network import ModelEndpoint
from pytest_gittrix.durations import ns_of
from pytest_gittrix.engine.agents.launch import settings_for
from pytest_gittrix.engine.agents.processes import GRACE, AgentProcess
from pytest_gittrix.engine.operations.requester import require_person, sessions_of_requester
from pytest_gittrix.engine.operations.validation import check_paths, check_text
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.members.cleanup import CleanupReport, MemberCleanup, inspect_workspace
from pytest_gittrix.members.finalize import DEADLINE, CreateIssue, Credentials, issue_opener
from pytest_gittrix.members.hearing import Hearing, send
from pytest_gittrix.members.inspection import Inspection, RepositoryState
from pytest_gittrix.members.record import TeamSettings, check_name, require_states
from pytest_gittrix.members.start import MemberStart, StartRequest
from pytest_gittrix.members.stop import MemberEnd, StopSummary
from pytest_gittrix.members.work_items import lock, may_work, release_stale, unlock
from pytest_gittrix.members.work_locks import LockAnswer, WorkLocks
from pytest_gittrix.os_level.command import Level
from pytest_gittrix.record.state.lifecycle import TERMINAL, Life
from pytest_gittrix.record.state.retention import RetentionPolicy, Selector
from pytest_gittrix.views import botminter
from pytest_gittrix.workspaces.multi_repo import Progress, RepositorySpec

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.protocol import Forge
    from pytest_gittrix.engine.engine import GitTrix

__all__ = ["CleanupReport", "Inspection", "Members", "RepositoryState", "StopSummary"]

CLONES: Final = "clones"
WORK_LOCKS: Final = "work-locks"
"""The directories of shared clones and of the locks of work items, in the engine's home."""

_UNFINISHED: Final = ("active", "finalizing", *sorted(TERMINAL))
Dead = Literal["finalize", "fail"]


class Members:
    """The sessions of a team's members, on one engine.

    Args:
        engine: the engine with the store of the sessions, and the clock.
        repositories: the repositories of every workspace, unless a start names others.
        team: the name of the team.
        commands: the program that a member runs, by member; under ``""`` that of all others.
        retention: how long workspaces are retained; ``RetentionPolicy()`` by default.
        forge: opens an issue about work that only recovery branches have: a forge, or a function of title and body that returns an address.
        credentials: called for each ``http`` address that is read or pushed to; agents do not get them.
        environment: more variables for agents. Those of ssh (``SSH_AUTH_SOCK``) are used by the engine's git, too.
        confine: how agents are confined: ``auto`` (as strongly as this machine and user can), ``jail``, ``guard`` or ``off``. The default
            is what ``LocalEphemeral(confine=...)`` of the engine names, or ``auto`` (docs/reference/confinement.md).
        network: which network confined agents have: ``none``, ``all`` for the machine's, or a list of what they reach, such as
            ``["model:anthropic", "api.example.org:443"]``.
        limits: what each confined agent may use, such as ``{"memory": "2GB", "processes": 200}``; one that passes a limit is ended, and the
            record names the limit. None for all there is.
        pass_env: names of variables of this process that agents get in addition to those that every agent gets.
        readable: files and directories that confined agents may read in addition to the tools of the system.
        grace: real seconds that an agent has to end when asked, before it is killed.
        deadline: real seconds that saving one workspace may take.
        dead: what happens after an agent is found dead without having been stopped: ``finalize`` saves its work, as BotMinter documents;
            ``fail`` makes it a failure and saves nothing, as BotMinter's code does. Its workspace is retained in both cases.
        allow_secrets: files that finalizations push although they seem to hold credentials: their paths in their repository, or the
            fingerprints in a report.

    Raises:
        InvalidInput: an argument is not allowed.
    """

    def __init__(
        self,
        engine: GitTrix,
        repositories: Sequence[RepositorySpec] = (),
        *,
        team: str = "team",
        commands: Mapping[str, Sequence[str]] | None = None,
        retention: RetentionPolicy | None = None,
        forge: Forge | CreateIssue | None = None,
        credentials: Credentials = lambda _url: None,
        environment: Mapping[str, str] | None = None,
        confine: Level | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        pass_env: Iterable[str] = (),
        readable: Iterable[Path | str] = (),
        grace: float = GRACE,
        deadline: float = DEADLINE,
        dead: Dead = "finalize",
        allow_secrets: Iterable[str] = (),
    ) -> None:
        if dead not in ("finalize", "fail"):
            raise InvalidInput(f"dead={dead!r} is not a way to treat a dead agent's session.", fix="Use finalize or fail.")
        if not grace >= 0 or not deadline > 0:
            raise InvalidInput(f"grace is {grace!r} and deadline {deadline!r}.", fix="Use seconds: grace from 0, deadline above 0.")
        locks = WorkLocks(engine.home / WORK_LOCKS, is_live=partial(may_work, engine.store), now_ns=engine.clock.now_ns)
        self._engine = engine
        self._timer: Timer | None = None
        self._team = TeamSettings(
            engine,
            check_name(team, "name of a team"),
            tuple(repositories),
            dict(commands or {}),
            retention or RetentionPolicy(),
            forge if forge is None or callable(forge) else issue_opener(forge),
            credentials,
            dict(environment or {}),
            settings_for(engine.ephemeral, confine, network, limits, pass_env, readable),
            grace,
            deadline,
            dead == "fail",
            engine.home / CLONES,
            locks,
            tuple(check_paths(allow_secrets, "allow_secrets")),
        )
        self._hearing = Hearing(self._team, forge if isinstance(forge, Topics) else None)
        self._end = MemberEnd(self._team)
        self._cleanup = MemberCleanup(self._team)

    def _require_person(self, verb: str, *, own: str = "") -> None:
        """Refuse an agent's process, unless what it asks for is about its ``own`` session."""
        root = self._engine.store.root
        if own not in sessions_of_requester(root):
            require_person(root, verb)

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
        confine: Level | None = None,
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        terminal: int | None = None,
        id: str | None = None,
        progress: Progress | None = None,
        **identity: str,
    ) -> Life:
        """Start a session: make its workspace, and start the agent in it.

        Args:
            member: the member.
            kind: ``loop``, ``interactive`` or ``brain``. A loop becomes a brain if the team's repository has ``brain-prompt.md``, at its
                root or below ``members/<member>/``.
            task: the agent's task.
            command: the agent's program; the member's by default. An interactive session runs nothing unless a command is given. If it
                begins with ``acp:``, the program speaks the Agent Client Protocol: the task is its first prompt, and unless the session is
                a loop, each line that is sent to the process is a further one. In its arguments, ``{persona}`` is replaced by the text of
                ``members/<member>/PERSONA.md`` in the team's repository, and ``{persona_file}`` for its path from the workspace.
            repositories: the repositories of its workspace; the team's by default.
            work_item: a work item to lock for the session until its run ends.
            environment: more variables for the agent.
            confine: how the agent is confined; as all agents of this team by default.
            limits: what the agent may use; those of this team's agents hold, too, where these name no other.
            terminal: the descriptor of a terminal that the agent gets as its standard streams; the member's program runs on it then, also
                in an interactive session.
            id: the session's id; made here by default.
            progress: called with the progress of each repository.
            identity: more about who works in the session, and on what; see ``values.IDENTITY``.

        Returns:
            Its lifecycle after the start.

        Raises:
            InvalidInput: an argument is not allowed, or the id is taken; or there is no such program, and the session failed.
            WorkItemHeld: another session works on the item; ``.holder`` is its id.
            AdapterUnavailable: a remote or the disk refused, and nothing is left; or the agent could not be started, and the session
                failed: then the message names it, and it is retained.
            CapabilityMissing: agents cannot run here, or cannot be confined so; the session failed, too.
            ExtraMissing: the command begins with ``acp:``, and the extra ``acp`` is not installed.
            PersonRequired: an agent's process asks.
        """
        self._require_person("start a member's session")
        program = command
        if program is None and (kind != "interactive" or terminal is not None):
            program = self._team.commands.get(member, self._team.commands.get(""))
        specs, most = self._team.repositories if repositories is None else tuple(repositories), check_limits(limits)
        variables = dict(environment or {})
        request = StartRequest(member, kind, task, program, specs, work_item, variables, progress, identity, confine, most, terminal)
        return MemberStart(self._team).run(request, id)

    def get(self, id: str) -> Life:
        """A session as it is now.

        Raises:
            SessionNotFound: there is no such session, or its start never finished.
            InvalidInput: it is no member's session, or the id is malformed.
            LogDamaged, MetadataVersionUnsupported: its record cannot be read.
        """
        return self._team.record(id).life()

    def list(self, *, member: str | None = None, states: Collection[str] = ()) -> list[Life]:
        """The sessions of a member or of all members, in some states or in any, oldest first. One that cannot be read is left out.

        Raises:
            InvalidInput: there is no such state.
        """
        wanted = [states] if isinstance(states, str) else [*states]
        require_states(wanted)
        records = map(self._team.record, self._ids(wanted, member))
        lives = [life for record in records if (life := record.life_or_none()) is not None]  # the engine's `problems` lists the others
        return [life for life in lives if not wanted or life.state in wanted]

    def _ids(self, states: Iterable[str] = (), member: str | None = None) -> builtins.list[str]:
        index = self._engine.services.index
        index.sync()
        return index.lives(states, member=member)

    def process(self, id: str) -> AgentProcess | None:
        """The process of a session's agent, dead or alive; None if none was started. Raises as ``get``."""
        record = self._team.record(id)
        return record.process(record.life())

    def send(self, id: str, text: str) -> None:
        """Send a text to a session's agent: as a prompt, if it speaks the Agent Client Protocol, or else as a line of its input.

        A prompt is stored first, and the agent takes prompts in their order, each once, whatever happens to this process.

        Raises:
            InvalidInput: ``text`` is no text, the agent takes no prompts, or as ``get``.
            AdapterUnavailable: no process of the agent reads; the text is recorded.
            SessionNotFound, LogDamaged: as ``get``.
            PersonRequired: an agent's process asks.
        """
        self._require_person("send to a session")
        send(self._team, id, check_text(text, "text"))

    def hear(self, sources: Mapping[str, Sequence[str]] | None = None) -> builtins.list[str]:
        """Look once for events that brains hear of, and give them those as prompts, in their order and each once.

        Events are the ends of other members' sessions, the issues and pull requests that are opened at the forge and what becomes of them,
        and the files that are put into ``<home>/inbox/<member>/``. A daemon calls this all the time. Errors are announced as
        ``engine.error``.

        Args:
            sources: which of ``members``, ``forge`` and ``inbox`` a member hears, by member; all by default.

        Returns:
            The id of a session for each prompt.
        """
        return self._hearing.look(sources or {})

    # Ends --------------------------------------------------------------------------------------------------------------------------

    def exited(self) -> builtins.list[str]:
        """The ids of the sessions to ``finish``, oldest first: their agent has ended, or their ending was killed half-way.

        A session that another process is ending is not among them, nor an interactive session without an agent.
        """
        return self._end.exited(self._ids(_UNFINISHED))

    def finish(self, id: str) -> Life:
        """End a session whose agent has ended, or an interactive one: save its work, and retain its workspace.

        Of two concurrent calls, one does it, and the other waits. A session that is over is no error.

        Returns:
            Its lifecycle: retained, unless another call changed it meanwhile.

        Raises:
            SessionNotFound, LogDamaged, MetadataVersionUnsupported: as ``get``.
            InvalidInput: its agent still runs, it is still being made, or as ``get``.
            EvictionRace: another process took too long with it, and is finalizing it still.
            AdapterUnavailable: a process of the agent's cannot be ended, or the disk refused.
        """
        return self._end.finish(id)

    def observe(self) -> builtins.list[Life]:
        """Finish all sessions that ``exited`` lists, and return them. A failure is announced as ``engine.error``, and stops no other."""
        return self._end.each(self.exited(), self.finish)

    def stop(self, id: str, *, force: bool = False, reason: str | None = None) -> Life:
        """End a session's run. A session that is over is no error.

        Args:
            id: the session.
            force: kill its agent at once, and save nothing; its workspace is retained as it is. Without it, the agent is asked to end, and
                killed after ``grace`` seconds; then the session is ended as by ``finish``.
            reason: the reason, for the record.

        Raises:
            as ``finish``.
            PersonRequired: an agent's process asks.
        """
        self._require_person("stop a session")
        return self._end.stop(id, force=force, reason=reason)

    def stop_all(self, *, member: str | None = None, force: bool = False) -> StopSummary:
        """Stop all sessions that run, side by side; interactive ones only if a member is named. A failure stops no other.

        Args:
            member: only those of this member.
            force: as in ``stop``.

        Raises:
            PersonRequired: an agent's process asks.
        """
        self._require_person("stop sessions")
        return self._end.stop_all(self.list(member=member, states=("active", "finalizing")), force=force, chats=member is not None)

    def finalize(self, id: str, *, allow_secrets: Iterable[str] = ()) -> Life:
        """Save the work of a retained session once more, and retain it again.

        Args:
            id: the session.
            allow_secrets: more files to push although they seem to hold credentials, now and in later attempts: paths or fingerprints.

        Raises:
            InvalidInput: it is not retained ("Cannot transition from ... to Finalizing"), or as ``get``.
            SessionNotFound, EvictionRace, AdapterUnavailable: as ``finish``.
            PersonRequired: an agent's process asks.
        """
        self._require_person("finalize a session")
        return self._end.finalize(id, check_paths(allow_secrets, "allow_secrets"))

    # Workspaces --------------------------------------------------------------------------------------------------------------------

    def inspect(self, id: str) -> Inspection:
        """A session, and the uncommitted and unpushed work in its repositories. It changes nothing, and reads no remote.

        Raises:
            SessionNotFound, InvalidInput, LogDamaged, MetadataVersionUnsupported: as ``get``.
            OSError: the disk has no space for temporary files.
        """
        record = self._team.record(id)
        return Inspection(record.life(), inspect_workspace(record))

    def cleanup(self, selector: Selector, *, dry_run: bool = False) -> CleanupReport:
        """Remove workspaces of retained sessions. Their records stay.

        A workspace with work that is nowhere else is spared, unless it is selected by its id or with ``even_unsaved``.

        Args:
            selector: selects the sessions.
            dry_run: only report what would be removed.

        Raises:
            SessionNotFound: there is no session of that id.
            InvalidInput: it is not retained, or no member's session.
            PersonRequired: an agent's process asks, and it is no dry run.
        """
        if not dry_run:
            self._require_person("clean up")
        lives = [self.get(selector.id)] if selector.id is not None else self.list(states=("retained",))
        return self._cleanup.clean(lives, selector, dry_run=dry_run)

    def scan(self) -> CleanupReport:
        """Remove the workspaces whose retention time has passed, or that are over the disk budget."""
        return self._cleanup.scan(self.list(states=("retained",)))

    def watch(self) -> None:
        """Have the clock ``scan`` every ``retention.scan_interval_ns``, first after one interval. A second call does nothing."""
        if self._timer is None:
            interval = timedelta(microseconds=max(self._team.retention.scan_interval_ns // 1000, 1))
            scan = weakref.WeakMethod(self._scan_and_announce)  # the timer does not keep the manager alive
            self._timer = self._engine.clock.every(interval, lambda: None if (alive := scan()) is None else alive())

    def _scan_and_announce(self) -> None:
        try:
            failed = self.scan().failed
        except (GittrixError, OSError) as problem:
            self._team.complain("", problem)
            return
        for id_, reason in failed.items():
            self._team.complain(id_, AdapterUnavailable(reason))

    def close(self) -> None:
        """Stop the scans that ``watch`` began. Sessions and agents go on. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # After a restart ---------------------------------------------------------------------------------------------------------------

    def recover(self) -> builtins.list[Life]:
        """Complete all starts, stops and removals that a kill left half-way; agents that run are left alone.

        Returns:
            The sessions that were finished. A failure is announced as ``engine.error``, and stops no other.
        """
        self._engine.recover()
        self._end.each(self._ids(("retained",)), self._end.repair)
        done = self.observe()
        release_stale(self._team)
        return done

    # Records -----------------------------------------------------------------------------------------------------------------------

    def history(self, *, member: str | None = None, since: datetime | None = None) -> builtins.list[dict[str, Any]]:
        """The sessions that have ended, the newest end first, as BotMinter's records; see ``views.botminter.history``.

        Args:
            member: only those of this member.
            since: only those that entered their state then or later; aware.

        Raises:
            InvalidInput: ``since`` has no time zone.
        """
        events = []
        for id_ in self._ids((*sorted(TERMINAL), "retained", "removed"), member):
            with suppress(GittrixError):  # the engine's `problems` lists it
                events.append(self._team.record(id_).events())
        return botminter.history(events, member=member, since_ns=None if since is None else ns_of(since))

    # Work items --------------------------------------------------------------------------------------------------------------------

    def lock(self, id: str, item: str) -> LockAnswer:
        """Lock a work item for a session, until ``unlock`` or the end of its run. Of several concurrent calls, exactly one gets it.

        Raises:
            InvalidInput: its run is over, or the item is malformed; or as ``get``.
            SessionNotFound, EvictionRace, AdapterUnavailable: as ``finish``.
            PersonRequired: an agent's process asks for another session than its own.
        """
        self._require_person("lock a work item for another session", own=id)
        return lock(self._team, id, item)

    def unlock(self, id: str, item: str) -> bool:
        """Release a work item, if the session holds it; return whether it did.

        Raises:
            InvalidInput, SessionNotFound, EvictionRace, AdapterUnavailable: as ``lock``, but a run that is over is no error.
            PersonRequired: as ``lock``.
        """
        self._require_person("release a work item of another session", own=id)
        return unlock(self._team, id, item)
