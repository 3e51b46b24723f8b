"""Starting a session of a member: its record, its workspace, its agent (BotMinter, session-systems 4.3).

The record comes first, so that a kill leaves something that says what it was going to be. Whatever fails before there is an agent leaves
nothing; an agent that cannot be started leaves a session that failed. It must not know what becomes of a session that runs.
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
from pytest_gittrix.backends.transport import Transport
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.engine.lineage.member_recovery import AGENT, HOME
from pytest_gittrix.engine.lineage.start import check_identity, known
from pytest_gittrix.engine.operations.ids import claim
from pytest_gittrix.engine.operations.operation import typed
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, GittrixError, InvalidInput, WorkItemHeld
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.git.objects import MissingObject, Trees, open_objects
from pytest_gittrix.git.tree import entry_at
from pytest_gittrix.members.record import Held, MemberRecord, Team, check_name, plain
from pytest_gittrix.os_level.command import check_command
from pytest_gittrix.os_level.files import sync_file_system
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.record.eventlog.events import path_fields
from pytest_gittrix.record.state.lifecycle import KINDS, NEVER_SWEPT, Life
from pytest_gittrix.workspaces.multi_repo import (
    PROTOCOLS,
    CheckedOutRepository,
    Progress,
    RepositorySpec,
    checkout_all,
    clone_format,
    clone_path,
    hide_credentials,
)

BRAIN: Final = "brain-prompt.md"
"""A file of the team's repository, at its root or below ``members/<member>/``, that makes a brain of a loop."""

_SECRET: Final = re.compile(r"https?://[^/@]*@|[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", re.IGNORECASE)
_SECOND: Final = 10**9


@dataclass(frozen=True)
class Asked:
    """What somebody wants to start; ``Members.start`` says what each part is."""

    member: str
    kind: str
    task: str
    command: Sequence[str] | None
    repositories: tuple[RepositorySpec, ...]
    work_item: str | None
    environment: Mapping[str, str]
    progress: Progress | None
    identity: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Judge it before anything is made.

        Raises:
            InvalidInput: a part of it is not allowed.
        """
        check_name(self.member, "member")
        check_text(self.task, "task")
        check_identity(self.identity)
        if self.kind not in KINDS:
            raise InvalidInput(f"{self.kind!r} is no kind of session.", fix=f"Use one of: {', '.join(KINDS)}.")
        if self.command is None and self.kind != "interactive":
            raise InvalidInput(
                f"Nothing says what {self.member} runs.",
                why=f"A session that is {self.kind} is one run of an agent's program.",
                fix='Give command=[...], or Members(commands={member: [...]}) with "" for all others; interactive needs none.',
            )
        check_command(["-"] if self.command is None else self.command, self.environment)
        for spec in self.repositories:
            check_text(spec.name, "name of a repository")
            if _SECRET.match(check_text(spec.url, "address of a repository")):
                raise InvalidInput(
                    f"The address {hide_credentials(spec.url)!r} has credentials in it.",
                    why="It is written into the record, and into the agent's repository.",
                    fix="Leave them out, and give Members(credentials=...).",
                )


@dataclass(frozen=True)
class MemberStart:
    """Starting sessions of a team."""

    team: Team

    def run(self, asked: Asked, id_: str | None) -> Life:
        """Start one; ``Members.start`` says what is raised."""
        asked.check()
        engine = self.team.engine
        name, lease = claim(engine.store, engine.services.make_id, id_)
        record = self.team.record(name)
        try:
            with typed():
                held = self._made(record, asked)
                try:
                    return self._launched(record, held, asked) if asked.command is not None else held.life
                finally:
                    record.recorder.derive()
        finally:
            lease.release()

    # Until there could be an agent -------------------------------------------------------------------------------------------------

    def _made(self, record: MemberRecord, asked: Asked) -> Held:
        try:
            points.reached("member:claimed")
            if asked.work_item is not None:
                self._take(asked.work_item, record.id)
            self._hydrate(record, asked)
            held = Held(record.recorder, record.life())
            held.add("workspace.ready", path_fields(str(record.workspace)), commit_point=True)
            points.reached("member:hydrated")
            held.move("active")
            points.reached("member:active")
            return held
        except BaseException:
            with suppress(OSError, GittrixError):  # of what is over, anybody takes it
                self.team.locks.release_all(record.id)
            with suppress(OSError, GittrixError):  # the next recovery takes it away
                self.team.engine.services.resources.trash.discard(str(record.directory))
                self.team.engine.services.tidy()
            raise

    def _take(self, item: str, id_: str) -> None:
        asked = self.team.locks.acquire(item, id_)
        if not asked.acquired:
            raise WorkItemHeld(
                f"Session {asked.holder} works on {item!r} already.",
                why="Two who work on one thing undo each other's work.",
                fix="Wait for it to end, stop it, or work on something else.",
                holder=asked.holder,
            )

    def _hydrate(self, record: MemberRecord, asked: Asked) -> None:
        clock = self.team.engine.clock
        checkout_all(
            asked.repositories,
            record.workspace,
            self.team.clones,
            now=lambda: clock.now_ns() / _SECOND,
            marker={"session_id": record.id, "member": asked.member},
            environment=git_variables(self.team, asked.repositories),
            progress=asked.progress,
            planned=self._planned(record, asked),
        )
        if self.team.engine.store.durability == "full":
            # A workspace that a power cut emptied would look as if the agent had emptied it.
            sync_file_system(str(record.directory))

    def _planned(self, record: MemberRecord, asked: Asked) -> Callable[[tuple[CheckedOutRepository, ...]], None]:
        def planned(repositories: tuple[CheckedOutRepository, ...]) -> None:
            kind = "brain" if asked.kind == "loop" and self._has_brain(repositories, asked.member) else asked.kind
            opened: dict[str, Any] = {
                "task": asked.task,
                "kind": kind,
                "member": asked.member,
                "team": self.team.name,
                "repositories": [_told(one) for one in repositories],
                **path_fields(str(record.workspace), "workspace"),
                "policy": NEVER_SWEPT.to_data(),
            }
            if asked.work_item is not None:
                opened["work_item"] = asked.work_item
            if identity := known(check_identity(asked.identity)):
                opened["identity"] = identity
            record.recorder.append("session.opened", opened, actor="human", commit_point=True)
            if asked.work_item is not None:
                record.recorder.append("work.locked", {"item": asked.work_item})
            points.reached("member:planned")

        return planned

    def _has_brain(self, repositories: Sequence[CheckedOutRepository], member: str) -> bool:
        """Whether the team's repository, as it is about to be checked out, says that the member is a brain."""
        for one in repositories:
            if not one.team or one.commit is None:
                continue
            clone = clone_path(self.team.clones, one.url)
            objects = open_objects(Path(clone, "objects"), clone_format(clone, one.commit))
            try:
                tree = parse_commit(one.commit, objects.read(one.commit)[1]).tree
                reading = Trees(objects)
                return any(entry_at(reading.read, tree, path) for path in (BRAIN, f"members/{member}/{BRAIN}"))
            except MissingObject:
                return False
            finally:
                objects.close()
        return False

    # The agent ---------------------------------------------------------------------------------------------------------------------

    def _launched(self, record: MemberRecord, held: Held, asked: Asked) -> Life:
        try:
            self._launch(record, held, asked)
        except BaseException as problem:
            self._failed(held, problem)
            if not isinstance(problem, GittrixError):
                raise
            kind = type(problem) if type(problem) in (InvalidInput, CapabilityMissing) else AdapterUnavailable
            fix = problem.fix or "See why, and start another session."
            raise kind(f"Session {record.id} failed, its agent was not started: {problem.fact}", why=problem.why, fix=fix) from problem
        points.reached("member:launched")
        return held.life

    def _launch(self, record: MemberRecord, held: Held, asked: Asked) -> None:
        command = [*(asked.command or ())]

        def confirm(owner: Owner) -> None:
            told = {"pid": owner.pid, "start_time": owner.start_time, "command": [plain(word) for word in command]}
            held.add("agent.launched", told, commit_point=True)

        start_agent(
            command,
            directory=record.directory / AGENT,
            workspace=record.workspace,
            environment=self._environment(record, asked),
            confirm=confirm,
        )

    def _environment(self, record: MemberRecord, asked: Asked) -> dict[str, str]:
        clock_variables: Callable[[], Mapping[str, str]] = getattr(self.team.engine.clock, "environment", dict)
        return {
            **hermetic_env(record.directory / HOME),
            "GIT_ALLOW_PROTOCOL": PROTOCOLS,
            **clock_variables(),
            **self.team.environment,
            **asked.environment,
            "BM_SESSION_ID": record.id,
            "BM_TEAM_NAME": self.team.name,
            "GITTRIX_SESSION_ID": record.id,
        }

    def _failed(self, held: Held, problem: BaseException) -> None:
        """Store that no agent was started; where even that cannot be, whoever looks for agents that are gone does it later."""
        reason = problem.fact if isinstance(problem, GittrixError) else type(problem).__name__
        with suppress(OSError, GittrixError):
            if held.life.agent is not None:
                held.add("agent.exited", {"reason": "it was not started"})
            never_started(held, plain(reason))
            retain(self.team, held)


def git_variables(team: Team, repositories: Sequence[RepositorySpec]) -> dict[str, str]:
    """The variables by which git logs in at remotes: the way to an agent of ssh, and a header for each address that takes one.

    Raises:
        InvalidInput: credentials cannot be used for an address.
    """
    told: list[tuple[str, str]] = []
    for url in dict.fromkeys(spec.url for spec in repositories):
        header = Transport.to(url, credentials=team.credentials(url)).header if url.lower().startswith("http") else None
        if header is not None:
            # Git would follow a redirection with the header.
            told += [(f"http.{url}.extraHeader", header), (f"http.{url}.followRedirects", "false")]
    variables = {"GIT_CONFIG_COUNT": str(len(told))} if told else {}
    for number, (key, value) in enumerate(told):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return ssh_variables(team) | variables


def ssh_variables(team: Team) -> dict[str, str]:
    """What agents are told of ssh, so that the engine reaches the remotes that they reach."""
    return {name: value for name, value in team.environment.items() if name.startswith("SSH_")}


def never_started(held: Held, reason: str) -> Life:
    """End the run of a session in which no agent ever worked, so that nothing in it needs to be saved. Raises as ``Held.add``."""
    held.move("failed", reason=f"its agent was not started: {reason}", result="Skipped")
    points.reached("member:ended")
    return held.life


def retain(team: Team, held: Held) -> Life:
    """Give back what a session whose run has ended worked on, and keep its workspace for a while. Raises as ``Held.add``."""
    release(team, held)
    held.move("retained")
    points.reached("member:retained")
    return held.life


def release(team: Team, held: Held) -> None:
    """Give back all that a session works on. Raises as ``Held.add``; a lock that cannot be read is nobody's, and told of."""
    items = set(held.life.locks)
    try:
        items.update(team.locks.release_all(held.life.id))
    except GittrixError as problem:
        team.complain(held.life.id, problem)
    for item in sorted(items):
        held.add("work.released", {"item": item})


def _told(one: CheckedOutRepository) -> dict[str, Any]:
    fields = {"name": one.name, "url": one.url, "branch": one.branch, "place": one.directory}
    texts = {name: check_text(text, f"{name} of a repository") for name, text in fields.items()}
    return {**texts, "commit": os.fspath(one.commit) if one.commit is not None else None}
