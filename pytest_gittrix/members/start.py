"""Starting a session of a member: its record, its workspace, its agent (docs/explanation/you-know-botminter.md).

The record is written first, so that a kill leaves a record of the start. A failure before the agent is started leaves nothing; an agent
that cannot be started leaves a session that failed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.acp.driver import speaks_acp, start_agent_of
from pytest_gittrix.backends.transport import Transport
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.limits import ResourceLimits
from pytest_gittrix.engine.lineage.member_recovery import AGENT, HOME
from pytest_gittrix.engine.lineage.start import check_identity, with_values
from pytest_gittrix.engine.operations.recorder import convert_os_errors
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import AdapterUnavailable, Advice, CapabilityMissing, GittrixError, InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.members.conversation.persona import BRAIN, team_file, with_persona
from pytest_gittrix.members.finalize_record import plain
from pytest_gittrix.members.record import LockedSession, MemberRecord, TeamSettings, check_name
from pytest_gittrix.members.work_items import release, take
from pytest_gittrix.os_level.command import check_command, check_level
from pytest_gittrix.os_level.files import sync_file_system
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.record.eventlog.events import path_fields
from pytest_gittrix.record.state.lifecycle import KINDS, Life
from pytest_gittrix.record.state.values import NEVER_SWEPT
from pytest_gittrix.workspaces.multi_repo import (
    PROTOCOLS,
    CheckedOutRepository,
    Progress,
    RepositorySpec,
    checkout_all,
    clone_path,
    hide_credentials,
)

_SECRET: Final = re.compile(r"https?://[^/@]*@|[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", re.IGNORECASE)
_SECOND: Final = 10**9


@dataclass(frozen=True)
class StartRequest:
    """The arguments of ``Members.start``."""

    member: str
    kind: str
    task: str
    command: Sequence[str] | None
    repositories: tuple[RepositorySpec, ...]
    work_item: str | None
    environment: Mapping[str, str]
    progress: Progress | None
    identity: Mapping[str, str] = field(default_factory=dict)
    confine: str | None = None
    limits: ResourceLimits | None = None
    terminal: int | None = None

    def check(self) -> None:
        """Check the arguments before anything is made.

        Raises:
            InvalidInput: an argument is not allowed.
        """
        check_name(self.member, "member")
        check_text(self.task, "task")
        check_identity(self.identity)
        if self.confine is not None:
            check_level(self.confine)
        if self.kind not in KINDS:
            raise InvalidInput(f"{self.kind!r} is no kind of session.", fix=f"Use one of: {', '.join(KINDS)}.")
        if self.command is None and (self.kind != "interactive" or self.terminal is not None):
            raise InvalidInput(
                f"Nothing says what {self.member} runs.",
                why=f"A session that is {self.kind} is one run of an agent's program.",
                fix=Advice(
                    'Give command=[...], or Members(commands={member: [...]}) with "" for all others; interactive needs none.',
                    f"Write the program behind two dashes, as `gittrix member start {self.member} -- PROGRAM`, or into the team file.",
                ),
            )
        check_command(["-"] if self.command is None else self.command, self.environment)
        self._check_protocol()
        for spec in self.repositories:
            check_text(spec.name, "name of a repository")
            if _SECRET.match(check_text(spec.url, "address of a repository")):
                raise InvalidInput(
                    f"The address {hide_credentials(spec.url)!r} has credentials in it.",
                    why="It is written into the record, and into the agent's repository.",
                    fix=Advice("Leave them out, and give Members(credentials=...).", "Leave them out, and name a variable in token_env."),
                )

    @property
    def speaks_acp(self) -> bool:
        """Whether its command begins with ``acp:``: a program that speaks the Agent Client Protocol."""
        return self.command is not None and speaks_acp(self.command)

    def _check_protocol(self) -> None:
        if not self.speaks_acp:
            return
        if self.terminal is not None:
            raise InvalidInput(
                f"The command of {self.member} speaks the Agent Client Protocol, and no person could read that.",
                why="A chat is between a person and a program on one terminal.",
                fix="Name the program's interactive form; or start it, and send it prompts.",
            )
        with needs("acp"):
            pass
        if not self.task and self.kind == "loop":
            raise InvalidInput(
                f"Nothing says what {self.member} is to do.",
                why="An agent of the Agent Client Protocol does nothing without a prompt, and a loop gets one: its task.",
                fix=Advice("Give task=, or the kind brain.", "Give --task, or --kind brain."),
            )


@dataclass(frozen=True)
class MemberStart:
    """Starting sessions of a team."""

    team: TeamSettings

    def run(self, request: StartRequest, id_: str | None) -> Life:
        """Start a session; raises as ``Members.start``."""
        request.check()
        if request.command is not None:
            self.team.agents.at(request.confine, request.limits).require()
        engine = self.team.engine
        claimed, lease = engine.services.resources.claim(id_)
        record = self.team.record(claimed.id)
        try:
            with convert_os_errors():
                session = self._made(record, request)
                try:
                    return self._launched(record, session, request) if request.command is not None else session.life
                finally:
                    record.recorder.derive()
        finally:
            lease.release()

    # Until there could be an agent -------------------------------------------------------------------------------------------------

    def _made(self, record: MemberRecord, request: StartRequest) -> LockedSession:
        try:
            points.reached("member:claimed")
            if request.work_item is not None:
                take(self.team, request.work_item, record.id)
            self._make_workspace(record, request)
            session = LockedSession(record.recorder, record.life())
            session.add("workspace.ready", path_fields(str(record.workspace)), commit_point=True)
            points.reached("member:hydrated")
            session.move("active")
            points.reached("member:active")
            return session
        except BaseException:
            with suppress(OSError, GittrixError):  # any other session can take a lock of one that is over
                self.team.locks.release_all(record.id)
            with suppress(OSError, GittrixError):  # the next recovery removes it
                self.team.engine.services.resources.trash.discard(str(record.directory))
                self.team.engine.services.tidy()
            raise

    def _make_workspace(self, record: MemberRecord, request: StartRequest) -> None:
        clock = self.team.engine.clock
        checkout_all(
            request.repositories,
            record.workspace,
            self.team.clones,
            now=lambda: clock.now_ns() / _SECOND,
            refetch_after=0,  # a member goes on where the one before it ended
            marker={"session_id": record.id, "member": request.member},
            environment=git_variables(self.team, request.repositories),
            progress=request.progress,
            planned=self._planned(record, request),
        )
        if self.team.engine.store.durability == "full":
            # A workspace that a power cut emptied would look like one that the agent emptied.
            sync_file_system(str(record.directory))

    def _planned(self, record: MemberRecord, request: StartRequest) -> Callable[[tuple[CheckedOutRepository, ...]], None]:
        def planned(repositories: tuple[CheckedOutRepository, ...]) -> None:
            with_persona(request.command or (), repositories, self.team.clones, request.member)  # before there is anything to undo
            brain = request.kind == "loop" and team_file(repositories, self.team.clones, request.member, BRAIN) is not None
            kind = "brain" if brain else request.kind
            fields: dict[str, Any] = {
                "task": request.task,
                "kind": kind,
                "member": request.member,
                "team": self.team.name,
                "repositories": [_repository_data(one) for one in repositories],
                **path_fields(str(record.workspace), "workspace"),
                "policy": NEVER_SWEPT.to_data(),
            }
            if request.work_item is not None:
                fields["work_item"] = request.work_item
            if identity := with_values(check_identity(request.identity)):
                fields["identity"] = identity
            record.recorder.append("session.opened", fields, actor="human", commit_point=True)
            if request.work_item is not None:
                record.recorder.append("work.locked", {"item": request.work_item})
            points.reached("member:planned")

        return planned

    # The agent ---------------------------------------------------------------------------------------------------------------------

    def _launched(self, record: MemberRecord, session: LockedSession, request: StartRequest) -> Life:
        try:
            self._launch(record, session, request)
        except BaseException as problem:
            self._failed(session, problem)
            if not isinstance(problem, GittrixError):
                raise
            kind = type(problem) if type(problem) in (InvalidInput, CapabilityMissing) else AdapterUnavailable
            fix = problem.fix or "See why, and start another session."
            raise kind(f"Session {record.id} failed, its agent was not started: {problem.fact}", why=problem.why, fix=fix) from problem
        points.reached("member:launched")
        return session.life

    def _launch(self, record: MemberRecord, session: LockedSession, request: StartRequest) -> None:
        command = with_persona(request.command or (), record.multi_repo().repositories, self.team.clones, request.member)

        def confirm(owner: Owner, confined: Confinement) -> None:
            shown = [plain(argument) for argument in request.command or ()]
            fields = {"pid": owner.pid, "start_time": owner.start_time, "command": shown, "confinement": str(confined)}
            session.add("agent.launched", fields, commit_point=True)

        start_agent_of(
            self.team.engine.store,
            record.id,
            self.team.agents.at(request.confine, request.limits),
            command,
            prompt=request.task,
            stays=session.life.kind != "loop",
            directory=record.directory / AGENT,
            workspace=record.workspace,
            home=record.directory / HOME,
            environment=self._environment(record, request),
            confirm=confirm,
            # Repositories of a workspace have their history in the clones.
            readable=[Path(clone_path(self.team.clones, spec.url), "objects") for spec in request.repositories],
            terminal=request.terminal,
        )

    def _environment(self, record: MemberRecord, request: StartRequest) -> dict[str, str]:
        clock_variables: Callable[[], Mapping[str, str]] = getattr(self.team.engine.clock, "environment", dict)
        return {
            **hermetic_env(record.directory / HOME, base=self.team.agents.inherited()),
            "GIT_ALLOW_PROTOCOL": PROTOCOLS,
            **clock_variables(),
            **self.team.environment,
            **request.environment,
            "BM_SESSION_ID": record.id,
            "BM_TEAM_NAME": self.team.name,
            "GITTRIX_SESSION_ID": record.id,
        }

    def _failed(self, session: LockedSession, problem: BaseException) -> None:
        """Store that no agent was started; if even that fails, the next ``observe`` stores it."""
        reason = problem.fact if isinstance(problem, GittrixError) else type(problem).__name__
        with suppress(OSError, GittrixError):
            if session.life.agent is not None:
                session.add("agent.exited", {"reason": "it was not started"})
            mark_never_started(session, plain(reason))
            retain(self.team, session)


def git_variables(team: TeamSettings, repositories: Sequence[RepositorySpec]) -> dict[str, str]:
    """The variables by which git authenticates: the socket of the ssh agent, and a header for each ``http`` address with credentials.

    Raises:
        InvalidInput: credentials cannot be used for an address.
    """
    settings: list[tuple[str, str]] = []
    for url in dict.fromkeys(spec.url for spec in repositories):
        header = Transport.to(url, credentials=team.credentials(url)).header if url.lower().startswith("http") else None
        if header is not None:
            # Git would follow a redirection with the header.
            settings += [(f"http.{url}.extraHeader", header), (f"http.{url}.followRedirects", "false")]
    variables = {"GIT_CONFIG_COUNT": str(len(settings))} if settings else {}
    for number, (key, value) in enumerate(settings):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return ssh_variables(team) | variables


def ssh_variables(team: TeamSettings) -> dict[str, str]:
    """The ssh variables of the agents' environment, so that the engine reaches the remotes that the agents reach."""
    return {name: value for name, value in team.environment.items() if name.startswith("SSH_")}


def mark_never_started(session: LockedSession, reason: str) -> Life:
    """End the run of a session without an agent: it has no work to be saved. Raises as ``LockedSession.add``."""
    session.move("failed", reason=f"its agent was not started: {reason}", result="Skipped")
    points.reached("member:ended")
    return session.life


def retain(team: TeamSettings, session: LockedSession) -> Life:
    """Release the work items of a session whose run has ended, and retain its workspace. Raises as ``LockedSession.add``."""
    release(team, session)
    session.move("retained")
    points.reached("member:retained")
    return session.life


def _repository_data(one: CheckedOutRepository) -> dict[str, Any]:
    fields = {"name": one.name, "url": one.url, "branch": one.branch, "place": one.directory}
    texts = {name: check_text(text, f"{name} of a repository") for name, text in fields.items()}
    return {**texts, "commit": os.fspath(one.commit) if one.commit is not None else None}
