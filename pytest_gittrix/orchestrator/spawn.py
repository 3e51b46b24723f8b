"""Spawning: an id, a session with a workspace, an agent in it, and nothing left behind if any of that fails (session-systems 5.3).

In this order: what is asked for is judged and the tracker asked; an id is reserved; the session is started; its agent is launched, and
known to the log before it does anything; the session works; its file is written; the agent is told what to do. Until the agent runs, a
failure takes all of it back. A spawn that was killed is undone by ``Spawning.recover``: its agent is ended, its session discarded with
what was done in it archived, and its id stays taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.engine.agents.agent_session import parts_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, GittrixError, SessionNotRestorable, WorkspaceMissing
from pytest_gittrix.orchestrator.agents import Agents, alive, runtime_data, tolerated
from pytest_gittrix.orchestrator.board import RUNTIME, Board, Seen
from pytest_gittrix.orchestrator.config import AgentPlugin, Project, SpawnConfig, branch_for, issue_of, prompt_as
from pytest_gittrix.orchestrator.end import Ends
from pytest_gittrix.orchestrator.flat_files import orchestrator_id, release, reserve
from pytest_gittrix.orchestrator.flat_files import read as read_file
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.monotonic import pause
from pytest_gittrix.views.orchestrator_status import PollResult, decide

PROMPT_WAITS: Final = (3.0, 6.0, 9.0)
"""Real seconds before each next try to tell an agent its first prompt."""
ORCHESTRATOR_WAIT: Final = 20.0
"""Real seconds to wait for another process that spawns the same orchestrator."""
_TRIES: Final = 100


@dataclass(frozen=True)
class Spawning:
    """Spawning sessions of a board."""

    board: Board
    agents: Agents
    ends: Ends

    def worker(self, config: SpawnConfig) -> str:
        """Spawn a session that works; gives its id. ``Orchestrator.spawn`` says how and what it raises."""
        config.check()
        project = self.board.project(config.project_id)
        agent = project.agent(config.agent)
        tracked = issue_of(project, config)
        with self._reserved(project) as id:
            points.reached("spawn:reserved")
            facts = {"issue": config.issue_id, "branch": branch_for(config, tracked, id), "role": "worker"}
            self._start(project, agent, id, config.prompt or _task(config, id), config.prompt, facts)
            seen = self.board.publish(id)
        self._ready(seen, agent, config.prompt)
        return id

    def orchestrator(self, project_id: str, system_prompt: str | None, agent_name: str | None) -> str:
        """The session that leads a project's others, spawned if there is none; gives its id.

        One that was killed is restored; what is beyond that gets a successor, ``<prefix>-orchestrator-2`` and so on.
        """
        config = SpawnConfig(project_id, prompt=system_prompt, agent=agent_name).check()
        project = self.board.project(config.project_id)
        agent = project.agent(config.agent)
        name = orchestrator_id(project.ids)
        with self.board.held(project, f"{name}.one", wait=ORCHESTRATOR_WAIT):
            id = name
            for number in count(2):
                if not os.path.lexists(self.board.engine.store.directory(id)):
                    break
                if self._reused(id):
                    return id
                id = f"{name}-{number}"
            with self.board.held(project, id):
                points.reached("spawn:reserved")
                task = system_prompt or f"Lead the sessions of {project.id}"
                self._start(project, agent, id, task, system_prompt, {"role": "orchestrator"})
                seen = self.board.publish(id)
            self._ready(seen, agent, system_prompt)
            return id

    def recover(self) -> list[str]:
        """Undo the spawns that were killed, end agents of sessions that are over, and bring files up to date; gives the ids undone.

        What somebody is busy with is left alone. Done again, it does nothing more.
        """
        undone = []
        for project in self.board.projects.values():
            tolerated(self.board, project.id, partial(self.board.tidy, project))
            for id in self._reservations(project):
                tolerated(self.board, id, partial(self._let_go, project, id))
            for seen in self.board.every(project, retired=True):
                try:
                    if self.settle(seen):
                        undone.append(seen.id)
                except GittrixError as problem:
                    self.board.complain(seen.id, problem)
        return undone

    # Steps ---------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _reserved(self, project: Project) -> Iterator[str]:
        """An id that nobody else has, held; let go of if the block fails."""
        place = self.board.files(project)
        for _ in range(_TRIES):
            names = self.board.engine.store.root
            taken = [*(os.listdir(names) if names.is_dir() else ()), *self._branches(project)]
            id = reserve(place, project.ids, taken)
            with self.board.held(project, id):
                # A recovery beside this one may have let go of it before it was held; and any other may have started a session so.
                if not (place / id).exists() or os.path.lexists(self.board.engine.store.directory(id)):
                    release(place, id)
                    continue
                try:
                    yield id
                except BaseException:
                    with suppress(GittrixError):
                        release(place, id)
                    raise
                return
        raise AdapterUnavailable(f"{_TRIES} ids of the project {project.id!r} in a row were taken meanwhile.", fix="Try again.")

    def _branches(self, project: Project) -> list[str]:
        durable, _ = self.board.engine.services.resources.resolve(project.durable, None, project.branch)
        return [name for name in durable.references() if f"session/{project.ids}-" in name]

    def _start(self, project: Project, agent: AgentPlugin, id: str, task: str, prompt: str | None, facts: dict[str, str | None]) -> None:
        """Start a session and launch its agent, or leave nothing. The caller holds the id."""
        told: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
        session = self.board.engine.start_session(
            task,
            durable_path=project.durable,
            durable_branch=project.branch,
            workspace=project.workspace,
            id=id,
            project=project.id,
            agent=agent.name,
            runtime=RUNTIME,
            **told,
        )
        try:
            points.reached("spawn:started")
            self._launch(session, agent, prompt)
        except BaseException:
            self._undo(session)
            raise

    def _launch(self, session: UserSession, agent: AgentPlugin, prompt: str | None) -> None:
        seen = self.board.find(session.id)
        assert session.workspace_path is not None

        def known(owner: Owner) -> None:
            self.board.append(session.id, ("runtime.observed", alive(owner)))

        self.agents.launch(seen, session.workspace_path, None if prompt_as(agent) == "input" else prompt, known)
        points.reached("spawn:launched")
        self._decide(session.id)

    def _decide(self, id: str) -> None:
        now = self.board.find(id)
        decision = decide(now.observations, PollResult(), self.board.engine.clock.now_ns())
        if decision.changed:
            self.board.append(id, ("status.decided", decision.to_data()))

    def _ready(self, seen: Seen, agent: AgentPlugin, prompt: str | None) -> None:
        """The session works: tell its agent what to do. Nothing that fails from here on ends it."""
        points.reached("spawn:ready")
        if prompt is not None:
            tolerated(self.board, seen.id, partial(self._prompt, seen, agent, prompt))

    def _prompt(self, seen: Seen, agent: AgentPlugin, prompt: str) -> None:
        self.board.engine.get_session(seen.id).record("user_message", {"text": prompt})
        if prompt_as(agent) == "argument":
            return
        for wait in (*PROMPT_WAITS, None):
            try:
                self.agents.tell(seen, prompt)
                return
            except AdapterUnavailable:
                if wait is None or self.agents.look(seen).state != "alive":
                    raise
                pause(wait)

    def _undo(self, session: UserSession) -> None:
        """Take a session back as if it had never been: its agent, its workspace, its record."""
        with suppress(GittrixError, OSError):
            seen = self.board.find(session.id)
            self.agents.stop(seen, grace=0)
            trash = self.board.engine.services.resources.trash
            recorder = self.board.recorder(session.id)
            with recorder.leased():
                parts_of(session).workspace.remove(trash)
                trash.discard(str(recorder.directory / "engine"))
                trash.discard(str(recorder.directory))
            self.board.engine.services.tidy()

    # After a kill --------------------------------------------------------------------------------------------------------------

    def _reservations(self, project: Project) -> list[str]:
        place = self.board.files(project)
        names = sorted(os.listdir(place)) if place.is_dir() else []
        return [name for name in names if project.owns(name) and (place / name).is_file() and read_file(place / name) is None]

    def _let_go(self, project: Project, id: str) -> None:
        """Let go of a reservation that nobody works on: an id of which a session came stays taken, any other is free again."""
        with self.board.held_if_free(project, id) as free:
            if free and not os.path.lexists(self.board.engine.store.directory(id)):
                release(self.board.files(project), id)

    def settle(self, seen: Seen) -> bool:
        """Bring one session to a state that somebody meant, unless somebody is busy with it; whether its spawn was undone."""
        with self.board.held_if_free(seen.project, seen.id) as free:
            if not free:
                return False
            seen = self.board.find(seen.id)
            half = seen.spawning or (seen.stillborn and not self.board.retired(seen.project, seen.id))
            if half or ((seen.observations.session.over or seen.state.ended) and self.agents.look(seen).state == "alive"):
                self.agents.stop(seen, grace=0 if half else None)
            if half:
                # Before it ends: a kill in between finds it as one that was never spawned, not as one that ended.
                self.ends.forget(seen.id)
                self.board.append(seen.id, ("runtime.observed", runtime_data(self.agents.look(seen))))
                if not seen.state.ended:
                    self.board.engine.evict(seen.id, "discarded", outcome="crash")
                self.agents.clear(seen)
                return True
            if not self.board.retired(seen.project, seen.id):
                self.board.publish(seen.id)
            return False

    def _reused(self, id: str) -> bool:
        """Whether there is an orchestrator of that id that works, or works again; raises SessionNotRestorable for one that is done."""
        try:
            seen = self.board.find(id)
        except GittrixError:
            return False
        if seen.spawning:
            with suppress(EvictionRace):
                self.settle(seen)
            return False
        if not self.board.over(seen):
            return True
        if seen.workspace is None or seen.state.ended:
            return False
        if self.board.status(seen) == "done":
            raise SessionNotRestorable(
                f"The orchestrator {id} of the project {seen.project.id!r} is done.",
                why="What is done is not begun again by itself.",
                fix=f"restore({id!r}) brings it back; kill({id!r}, purge=True) makes room for another.",
            )
        with suppress(WorkspaceMissing):
            self.ends.restore(id)
            return True
        return False


def _task(config: SpawnConfig, id: str) -> str:
    """What a session is for, as commits of its work will say."""
    return f"Work on {config.issue_id}" if config.issue_id is not None else f"Session {id}"
