"""The agents of orchestrated sessions: launched, looked at and ended as processes, each in a directory of its session's own.

A session has one agent at a time, ``agent-1`` first and another after each restore. Where the engine's workspaces are confined, they are
confined too, with a private home that stays as long as the session's workspace. It must not know what follows from what is seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.confine.choose import Place, confinement, toolchain, wrapped
from pytest_gittrix.engine.agents.agent_session import VARIABLES
from pytest_gittrix.engine.agents.keeper import RECORD
from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.engine.operations.operation import typed
from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.orchestrator.board import RUNTIME, Board, Seen
from pytest_gittrix.orchestrator.config import AgentPlugin
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.record.state.observations import ACTIVITIES, SOURCES, UNKNOWN, Activity, Runtime

_MOST_DETAIL: Final = 500
_DIRECTORY: Final = re.compile(r"agent-([0-9]{1,9})")
_HOME: Final = "private-home"
_REASONS: Final[Mapping[str, str]] = {
    "alive": "process_running",
    "exited": "process_missing",
    "missing": "process_missing",
    "probe_failed": "probe_error",
}
# With these set, git would work in the repository of whoever leads the agents.
_ASTRAY: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_NAMESPACE")
# The engine's own token is for people's decisions: an agent that has it opens pull requests, and pushes, past the gate.
_WITHHELD: Final = frozenset({*_ASTRAY, "GITTRIX_FORGE_TOKEN"})


@dataclass(frozen=True)
class Agents:
    """The agents of a board's sessions."""

    board: Board

    def plugin(self, seen: Seen) -> AgentPlugin:
        """The plugin that a session's agent is of: as the session says, the project's first if it says none that there is."""
        known = {plugin.name: plugin for plugin in seen.project.agents}
        return known.get(seen.state.identity.get("agent", ""), seen.project.agents[0])

    def launch(self, seen: Seen, workspace: Path, prompt: str | None, confirm: Callable[[Owner], object]) -> AgentProcess:
        """Start a session's next agent.

        Args:
            seen: the session.
            workspace: where it works.
            prompt: for its command.
            confirm: called with who it is, before it does anything.

        Raises:
            GittrixError: as ``start_agent``; no process and no file of it is left.
        """
        plugin = self.plugin(seen)
        directory = self.board.engine.store.directory(seen.id) / f"agent-{self._last(seen.id) + 1}"
        command = [*plugin.command(prompt, workspace)]
        environment = {**self._environment(seen), **plugin.environment(workspace)}
        level = self.board.engine.ephemeral.confine
        if level != "off":
            place = Place(workspace, self._home(seen), toolchain())
            confined = wrapped(command, place, confinement(level), environment=environment)
            command, environment = confined.argv, confined.environment
        return start_agent(command, directory=directory, workspace=workspace, environment=environment, confirm=confirm)

    def _home(self, seen: Seen) -> Path:
        home = self.board.engine.store.directory(seen.id) / _HOME
        with typed():
            home.mkdir(exist_ok=True)
        return home

    def clear(self, seen: Seen) -> None:
        """Remove the private home of a session's agents, if they had one."""
        home = self.board.engine.store.directory(seen.id) / _HOME
        if home.is_dir():
            with typed():
                self.board.engine.services.resources.trash.discard(str(home))

    def process(self, seen: Seen) -> AgentProcess:
        """A session's last agent, there or not; of one whose files are gone, the log tells who it is."""
        directory = self.board.engine.store.directory(seen.id) / f"agent-{max(self._last(seen.id), 1)}"
        runtime = seen.observations.runtime
        if (directory / RECORD).exists() or runtime.pid is None or runtime.start_time is None:
            return AgentProcess(directory)
        return AgentProcess(directory, replace(Owner.current(), pid=runtime.pid, start_time=runtime.start_time))

    def look(self, seen: Seen) -> Runtime:
        """What runs a session's agent, as it is now."""
        agent = self.process(seen)
        found = agent.observe()
        pid, start = (None, None) if agent.owner is None else (agent.owner.pid, agent.owner.start_time)
        return Runtime(found.state, pid, start, found.code, RUNTIME, _REASONS[found.state], self.board.engine.clock.now_ns())

    def activity(self, seen: Seen) -> Activity | None:
        """What a session's agent does, by its plugin; None if that is not told. What an earlier agent did does not count."""
        if seen.workspace is None:
            return None
        now = self.board.engine.clock.now_ns()
        try:
            found = _believed(self.plugin(seen).activity(seen.workspace, now))
        except Exception as problem:  # noqa: BLE001  (a plugin is a stranger: a look that fails is an observation too)
            return Activity(source="native", detail=f"probe_failure: {problem}", seen_ns=now, failed=True)
        if found is None or (found.observed_ns is not None and found.observed_ns < seen.launched_ns):
            return None
        return found

    def stop(self, seen: Seen, *, grace: float | None = None) -> bool:
        """End a session's agent with everything it started; whether any of it ran.

        Raises:
            CapabilityMissing: it runs where nobody can be reached from here.
            AdapterUnavailable: some of it does not end.
        """
        stopped = self.process(seen).stop(grace=self.board.grace if grace is None else grace)
        if stopped.left:
            raise AdapterUnavailable(
                f"The agent of session {seen.id} cannot be ended: {', '.join(map(str, stopped.left))} run on.",
                why="It may go on working in the session's workspace.",
                fix="See whose these processes are, end them, and try again.",
            )
        return not stopped.idle

    def tell(self, seen: Seen, text: str) -> None:
        """Write a line to a session's agent. Raises AdapterUnavailable if nothing of it reads."""
        self.process(seen).send(text if text.endswith("\n") else f"{text}\n")

    def _last(self, id: str) -> int:
        try:
            names = os.listdir(self.board.engine.store.directory(id))
        except OSError:
            return 0
        return max((int(match[1]) for name in names if (match := _DIRECTORY.fullmatch(name))), default=0)

    def _environment(self, seen: Seen) -> dict[str, str]:
        base = self.board.environment
        found = {name: value for name, value in os.environ.items() if name not in _WITHHELD} if base is None else dict(base)
        facts = seen.state.identity
        told = {"AO_SESSION": seen.id, "AO_PROJECT_ID": seen.project.id, "AO_ISSUE_ID": facts.get("issue")}
        return {**found, **dict.fromkeys(VARIABLES, seen.id), **{name: value for name, value in told.items() if value}}


def _believed(told: Activity | None) -> Activity | None:
    """What a plugin tells, if it is something that can be told, and fit for a log. Raises TypeError or ValueError if not."""
    if told is None:
        return None
    if not isinstance(told, Activity):
        raise TypeError(f"it tells {type(told).__name__}, and no Activity")
    if told.state not in (*ACTIVITIES, UNKNOWN) or told.source not in SOURCES:
        raise ValueError(f"it tells of the state {told.state!r} from {told.source!r}")
    if told.observed_ns is not None and type(told.observed_ns) is not int:
        raise TypeError(f"it tells the time {told.observed_ns!r}, which is no whole number")
    if told.detail is None:
        return told
    # The agent writes what a source tells: half a character, or a page of text, must not keep the rest from being recorded.
    return replace(told, detail=str(told.detail).encode(errors="replace").decode()[:_MOST_DETAIL])


def runtime_data(runtime: Runtime, *, reason: str | None = None) -> dict[str, Any]:
    """The data of ``runtime.observed``; another reason may be told than the probe's."""
    told = {name: getattr(runtime, name) for name in ("state", "pid", "start_time", "exit_code", "source", "reason")}
    return {name: value for name, value in {**told, "reason": reason or runtime.reason}.items() if value is not None}


def alive(owner: Owner) -> dict[str, Any]:
    """The data of ``runtime.observed`` for an agent that is about to run."""
    return runtime_data(Runtime("alive", owner.pid, owner.start_time, None, RUNTIME, _REASONS["alive"]))


def tolerated(board: Board, id: str, action: Callable[[], object]) -> None:
    """Do what a session can do without; if it fails, that is announced."""
    try:
        action()
    except GittrixError as problem:
        board.complain(id, problem)
