"""Spawning: an id, a session with a workspace, an agent in it; a failure leaves nothing (docs/explanation/you-know-agent-orchestrator.md).

The steps in order: the configuration is checked and the tracker read; an id is reserved; the session is started; its agent is launched,
and recorded before it runs; the session's file is written; the agent gets its prompt. Until the agent runs, a failure undoes all steps.
A spawn that was killed is undone by ``Spawner.recover``: its agent is ended, its session is discarded and its work archived, and its id
stays taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.limits import check_limits
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, Advice, EvictionRace, GittrixError, SessionNotRestorable, WorkspaceMissing
from pytest_gittrix.orchestrator.agents import Agents, alive_data, tolerated
from pytest_gittrix.orchestrator.board import RUNTIME, Board, ObservedSession
from pytest_gittrix.orchestrator.config import AgentPlugin, Project, SpawnConfig, branch_for, issue_of, prompt_as
from pytest_gittrix.orchestrator.end import Ends
from pytest_gittrix.orchestrator.flat_files import orchestrator_id, release, reserve
from pytest_gittrix.orchestrator.flat_files import read as read_file
from pytest_gittrix.os_level.files import names_in
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.monotonic import pause
from pytest_gittrix.views.orchestrator_status import PollResult, decide

PROMPT_WAITS: Final = (3.0, 6.0, 9.0)
"""Real seconds before each retry of sending an agent its first prompt."""
ORCHESTRATOR_WAIT: Final = 20.0
"""Real seconds to wait for another process that is spawning the same orchestrator."""
_TRIES: Final = 100


@dataclass(frozen=True)
class Spawner:
    """Spawns sessions of a board."""

    board: Board
    agents: Agents
    ends: Ends

    def worker(self, config: SpawnConfig) -> str:
        """Spawn a worker session, and return its id, as ``Orchestrator.spawn`` documents."""
        config.check()
        self.board.agents.at(config.confine, check_limits(config.limits)).require()
        project = self.board.project(config.project_id)
        agent = project.agent(config.agent)
        tracked = issue_of(project, config)
        with self._reserved(project) as id:
            points.reached("spawn:reserved")
            facts = {"issue": config.issue_id, "topic_branch": branch_for(config, tracked, id), "role": "worker"}
            self._start(project, agent, id, config.prompt or _task(config, id), config, facts)
            observed = self.board.publish(id)
        self._send_prompt(observed, agent, config.prompt)
        return id

    def orchestrator(self, config: SpawnConfig) -> str:
        """The id of the session that leads a project's others; it is spawned if there is none.

        One that was killed is restored; one that cannot be restored gets a successor, ``<prefix>-orchestrator-2`` and so on.
        """
        config.check()
        self.board.agents.at(config.confine, check_limits(config.limits)).require()
        project = self.board.project(config.project_id)
        agent = project.agent(config.agent)
        name = orchestrator_id(project.ids)
        with self.board.locked(project, f"{name}.one", wait=ORCHESTRATOR_WAIT):
            id = name
            for number in count(2):
                if not os.path.lexists(self.board.engine.store.directory(id)):
                    break
                if self._is_usable(id):
                    return id
                id = f"{name}-{number}"
            with self.board.locked(project, id):
                points.reached("spawn:reserved")
                task = config.prompt or f"Lead the sessions of {project.id}"
                self._start(project, agent, id, task, config, {"role": "orchestrator"})
                observed = self.board.publish(id)
            self._send_prompt(observed, agent, config.prompt)
            return id

    def recover(self) -> list[str]:
        """Undo spawns that were killed, end agents of sessions that are over, and update the files; return the ids of the undone spawns.

        A session that another process is changing is left alone. A second call does nothing more.
        """
        undone = []
        for project in self.board.projects.values():
            tolerated(self.board, project.id, partial(self.board.tidy, project))
            for id in self._reservations(project):
                tolerated(self.board, id, partial(self._release_reservation, project, id))
            for observed in self.board.every(project, retired=True):
                try:
                    if self.repair(observed):
                        undone.append(observed.id)
                except GittrixError as problem:
                    self.board.complain(observed.id, problem)
        return undone

    # Steps ---------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _reserved(self, project: Project) -> Iterator[str]:
        """A new id with its lock held; its reservation is released if the block fails."""
        directory = self.board.files(project)
        for _ in range(_TRIES):
            taken = [*names_in(self.board.engine.store.root), *self._branches(project)]
            id = reserve(directory, project.ids, taken)
            with self.board.locked(project, id):
                # Before the lock was held, a recovery may have released the id, or another caller may have started a session under it.
                if not (directory / id).exists() or os.path.lexists(self.board.engine.store.directory(id)):
                    release(directory, id)
                    continue
                try:
                    yield id
                except BaseException:
                    with suppress(GittrixError):
                        release(directory, id)
                    raise
                return
        raise AdapterUnavailable(f"{_TRIES} ids of the project {project.id!r} in a row were taken meanwhile.", fix="Try again.")

    def _branches(self, project: Project) -> list[str]:
        durable, _ = self.board.engine.services.resources.resolve(project.durable, None, project.branch)
        return [name for name in durable.references() if f"session/{project.ids}-" in name]

    def _start(self, project: Project, agent: AgentPlugin, id: str, task: str, config: SpawnConfig, facts: dict[str, str | None]) -> None:
        """Start a session and launch its agent, or leave nothing. The caller holds the id's lock."""
        identity: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
        session = self.board.engine.start_session(
            task,
            durable_path=project.durable,
            durable_branch=project.branch,
            workspace=project.workspace,
            id=id,
            keep_after_promote=config.keep_after_promote,
            project=project.id,
            agent=agent.name,
            runtime=RUNTIME,
            **identity,
        )
        try:
            if "topic_branch" in identity:
                parts_of(session).workspace.name_branch(identity["topic_branch"])
            points.reached("spawn:started")
            self._launch(session, agent, config)
        except BaseException:
            self._undo(session)
            raise

    def _launch(self, session: UserSession, agent: AgentPlugin, config: SpawnConfig) -> None:
        observed = self.board.find(session.id)

        def known(owner: Owner, confined: Confinement) -> None:
            self.board.append(session.id, ("runtime.observed", alive_data(owner, confined)))

        prompt = None if prompt_as(agent) == "input" else config.prompt
        workspace = Path(parts_of(session).workspace.path)
        self.agents.launch(observed, workspace, prompt, config.confine, check_limits(config.limits), known)
        points.reached("spawn:launched")
        self._decide(session.id)

    def _decide(self, id: str) -> None:
        now = self.board.find(id)
        decision = decide(now.observations, PollResult(), self.board.engine.clock.now_ns())
        if decision.changed:
            self.board.append(id, ("status.decided", decision.to_data()))

    def _send_prompt(self, observed: ObservedSession, agent: AgentPlugin, prompt: str | None) -> None:
        """Send the first prompt to the agent of a session that runs. A failure from here on does not end the session."""
        points.reached("spawn:ready")
        if prompt is not None:
            tolerated(self.board, observed.id, partial(self._prompt, observed, agent, prompt))

    def _prompt(self, observed: ObservedSession, agent: AgentPlugin, prompt: str) -> None:
        if self.agents.speaks_acp(observed):
            return  # its driver has the prompt, and records it
        self.board.engine.get_session(observed.id).record("user_message", {"text": prompt})
        if prompt_as(agent) == "argument":
            return
        for wait in (*PROMPT_WAITS, None):
            try:
                self.agents.send(observed, prompt)
                return
            except AdapterUnavailable:
                if wait is None or self.agents.observe(observed).state != "alive":
                    raise
                pause(wait)

    def _undo(self, session: UserSession) -> None:
        """Remove a session without a trace: its agent, its workspace, its record."""
        with suppress(GittrixError, OSError):
            observed = self.board.find(session.id)
            self.agents.stop(observed, grace=0)
            trash = self.board.engine.services.resources.trash
            recorder = self.board.recorder(session.id)
            with recorder.leased():
                parts_of(session).workspace.remove(trash)
                trash.discard(str(recorder.directory / "engine"))
                trash.discard(str(recorder.directory))
            self.board.engine.services.tidy()

    # After a kill --------------------------------------------------------------------------------------------------------------

    def _reservations(self, project: Project) -> list[str]:
        directory = self.board.files(project)
        return [
            name
            for name in names_in(directory)
            if project.owns(name) and (directory / name).is_file() and read_file(directory / name) is None
        ]

    def _release_reservation(self, project: Project, id: str) -> None:
        """Release an abandoned reservation: the id of a session stays taken, any other is free again."""
        with self.board.locked_if_free(project, id) as free:
            if free and not os.path.lexists(self.board.engine.store.directory(id)):
                release(self.board.files(project), id)

    def repair(self, observed: ObservedSession) -> bool:
        """Complete what a kill left half-way in a session, unless another process is changing it; return whether its spawn was undone."""
        with self.board.locked_if_free(observed.project, observed.id) as free:
            if not free:
                return False
            observed = self.board.find(observed.id)
            half = observed.spawning or (observed.stillborn and not self.board.retired(observed.project, observed.id))
            if half or ((observed.observations.session.over or observed.state.ended) and self.agents.observe(observed).state == "alive"):
                self.agents.stop(observed, grace=0 if half else None)
            if half:
                # Retired before it ends: after a kill in between, it is a session that was never spawned, not one that ended.
                self.ends.forget(observed.id)
                self.board.append(observed.id, ("runtime.observed", self.agents.runtime_data(observed)))
                if not observed.state.ended:
                    self.board.engine.evict(observed.id, "discarded", outcome="crash", force=True)
                self.agents.clear(observed)
                return True
            if not self.board.retired(observed.project, observed.id):
                self.board.publish(observed.id)
            return False

    def _is_usable(self, id: str) -> bool:
        """Whether an orchestrator of that id works, or was restored; raises SessionNotRestorable for one that is done."""
        try:
            observed = self.board.find(id)
        except GittrixError:
            return False
        if observed.spawning:
            with suppress(EvictionRace):
                self.repair(observed)
            return False
        if not self.board.over(observed):
            return True
        if observed.workspace is None or observed.state.ended:
            return False
        if self.board.status(observed) == "done":
            raise SessionNotRestorable(
                f"The orchestrator {id} of the project {observed.project.id!r} is done.",
                why="What is done is not begun again by itself.",
                fix=Advice(
                    f"restore({id!r}) brings it back; kill({id!r}, purge=True) makes room for another.",
                    f"`gittrix session restore {id}` brings it back; `gittrix session kill {id} --purge` makes room for another.",
                ),
            )
        with suppress(WorkspaceMissing):
            self.ends.restore(id)
            return True
        return False


def _task(config: SpawnConfig, id: str) -> str:
    """The task of a session without a prompt."""
    return f"Work on {config.issue_id}" if config.issue_id is not None else f"Session {id}"
