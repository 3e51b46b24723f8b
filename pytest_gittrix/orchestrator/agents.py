"""The agents of orchestrated sessions: launched, observed and ended as processes, each with a directory in its session's.

A session has one agent at a time, ``agent-1`` first and another after each restore, confined as the first was. A confined agent has a
private home that stays as long as the session's workspace (docs/reference/confinement.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.acp.driver import speaks_acp, start_agent_of
from pytest_gittrix.confine.command_line import Confinement, level_of
from pytest_gittrix.confine.filesystem_layout import Layers
from pytest_gittrix.confine.limits import ResourceLimits
from pytest_gittrix.engine.agents.launch import Confirm, network_summary
from pytest_gittrix.engine.agents.processes import AgentProcess, agent_directories
from pytest_gittrix.engine.agents.programs import layers_of
from pytest_gittrix.engine.agents.session_parts import VARIABLES
from pytest_gittrix.engine.agents.supervisor import RECORD
from pytest_gittrix.engine.operations.recorder import convert_os_errors
from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.extras import needs
from pytest_gittrix.orchestrator.agent_logs.reading import AgentHome, newest, says
from pytest_gittrix.orchestrator.agent_logs.updates import acp_activity
from pytest_gittrix.orchestrator.board import RUNTIME, Board, ObservedSession
from pytest_gittrix.orchestrator.config import AgentPlugin, refuse_option
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.record.state.observations import ACTIVITIES, SOURCES, UNKNOWN, Activity, Runtime

_MOST_DETAIL: Final = 500
_HOME: Final = "private-home"
_REASONS: Final[Mapping[str, str]] = {
    "alive": "process_running",
    "exited": "process_missing",
    "missing": "process_missing",
    "probe_failed": "probe_error",
}


@dataclass(frozen=True)
class Agents:
    """The agents of a board's sessions."""

    board: Board

    def plugin(self, observed: ObservedSession) -> AgentPlugin:
        """The plugin of a session's agent: the one that its identity names, or the project's first if that does not exist."""
        known = {plugin.name: plugin for plugin in observed.project.agents}
        return known.get(observed.state.identity.get("agent", ""), observed.project.agents[0])

    def launch(
        self,
        observed: ObservedSession,
        workspace: Path,
        prompt: str | None,
        confine: str | None,
        limits: ResourceLimits | None,
        confirm: Confirm,
    ) -> AgentProcess:
        """Start a session's next agent.

        Args:
            observed: the session.
            workspace: its working directory.
            prompt: the prompt for its command.
            confine: its level of confinement; the board's by default.
            limits: what it may use; those of the board hold, too, where these name no other.
            confirm: called with its process, and how that is confined, before it runs.

        Raises:
            GittrixError: as ``start_agent``; no process and no file of it is left.
        """
        plugin = self.plugin(observed)
        directory = self.board.engine.store.directory(observed.id) / f"agent-{self._last(observed.id) + 1}"
        command = plugin.command(prompt, workspace)
        refuse_option(command, prompt)
        if self.speaks_acp(observed):
            with needs("acp"):
                pass
        environment = {**self._environment(observed), **plugin.environment(workspace)}
        return start_agent_of(
            self.board.engine.store,
            observed.id,
            self.board.agents.at(confine, limits),
            command,
            prompt=prompt or "",
            stays=True,
            after=observed.events[-1].seq,
            directory=directory,
            workspace=workspace,
            home=self.board.engine.store.directory(observed.id) / _HOME,
            environment=environment,
            confirm=confirm,
            layers=self._layers(observed),
            session=self.board.engine.store.directory(observed.id),
        )

    def speaks_acp(self, observed: ObservedSession) -> bool:
        """Whether a session's agent speaks the Agent Client Protocol: its command begins with ``acp:``."""
        return speaks_acp(getattr(self.plugin(observed), "argv", ()))

    def _layers(self, observed: ObservedSession) -> Layers | None:
        if observed.state.workspace_kind != "overlay":
            return None
        return layers_of(self.board.engine.services.resources.open_workspace(observed.state))

    def clear(self, observed: ObservedSession) -> None:
        """Remove the private home of a session's agents and the directories next to it, if there is one."""
        for home in self.board.engine.store.directory(observed.id).glob(f"{_HOME}*"):
            with convert_os_errors():
                self.board.engine.services.resources.trash.discard(str(home))

    def process(self, observed: ObservedSession) -> AgentProcess:
        """The process of a session's last agent, dead or alive; the log identifies one whose files are gone."""
        directory = self.board.engine.store.directory(observed.id) / f"agent-{max(self._last(observed.id), 1)}"
        runtime = observed.observations.runtime
        if (directory / RECORD).exists() or runtime.pid is None or runtime.start_time is None:
            return AgentProcess(directory)
        return AgentProcess(directory, Owner.here(runtime.pid, runtime.start_time))

    def observe(self, observed: ObservedSession) -> Runtime:
        """The present state of the process of a session's agent."""
        agent = self.process(observed)
        found = agent.observe()
        pid, start = (None, None) if agent.owner is None else (agent.owner.pid, agent.owner.start_time)
        now, confinement = self.board.engine.clock.now_ns(), observed.observations.runtime.confinement
        return Runtime(found.state, pid, start, found.code, RUNTIME, _REASONS[found.state], now, confinement, found.limit)

    def runtime_data(self, observed: ObservedSession, runtime: Runtime | None = None, *, reason: str | None = None) -> dict[str, Any]:
        """The data of ``runtime.observed``; of an agent that is gone with what was decided about its network.

        Args:
            observed: the session.
            runtime: what a probe found; one is made by default.
            reason: replaces the probe's.
        """
        found = self.observe(observed) if runtime is None else runtime
        network = network_summary(self.process(observed).directory) if found.gone else None
        return runtime_data(found, reason=reason) | ({} if network is None else {"network": network})

    def activity(self, observed: ObservedSession) -> Activity | None:
        """What a session's agent does, as its plugin reports; None if it reports nothing, or an activity of an earlier agent."""
        if observed.workspace is None:
            return None
        now = self.board.engine.clock.now_ns()
        try:
            found = _checked_activity(self._reported(observed, observed.workspace, now))
        except Exception as problem:  # noqa: BLE001  (a plugin is the user's code: a probe that fails is an observation too)
            return Activity(source="native", detail=f"probe_failure: {problem}", seen_ns=now, failed=True)
        if found is None or (found.observed_ns is not None and found.observed_ns < observed.launched_ns):
            return None
        return found

    def _reported(self, observed: ObservedSession, workspace: Path, now_ns: int) -> Activity | None:
        if self.speaks_acp(observed):
            return acp_activity(observed.events, now_ns)
        plugin = self.plugin(observed)
        own = plugin.activity(workspace, now_ns)
        at_home = getattr(plugin, "home_activity", None)
        home = self._home(observed, workspace)
        if at_home is None or home is None or not (own is None or isinstance(own, Activity)):
            return own
        return newest([*says(own), *says(at_home(home, workspace, now_ns))]) or own

    def _home(self, observed: ObservedSession, workspace: Path) -> AgentHome | None:
        """The home directory of a session's agent; a confined one has a private one."""
        if level_of(observed.observations.runtime.confinement) not in (None, "off"):
            return AgentHome(self.board.engine.store.directory(observed.id) / _HOME)
        variables = {**self._environment(observed), **self.plugin(observed).environment(workspace)}
        return AgentHome(Path(variables["HOME"]), private=False) if variables.get("HOME") else None

    def stop(self, observed: ObservedSession, *, grace: float | None = None) -> bool:
        """End all processes of a session's agent; return whether any of them ran.

        Raises:
            CapabilityMissing: it runs on another machine.
            AdapterUnavailable: a process does not end.
        """
        stopped = self.process(observed).stop(grace=self.board.grace if grace is None else grace)
        if stopped.left:
            raise AdapterUnavailable(
                f"The agent of session {observed.id} cannot be ended: {', '.join(map(str, stopped.left))} run on.",
                why="It may go on working in the session's workspace.",
                fix="See whose these processes are, end them, and try again.",
            )
        return not stopped.idle

    def send(self, observed: ObservedSession, text: str) -> None:
        """Give a session's agent a text: as a prompt that its driver takes from the log, or as a line that is recorded first.

        Raises:
            AdapterUnavailable: no process of it reads.
        """
        if not self.speaks_acp(observed):
            self.board.engine.get_session(observed.id).record("user_message", {"text": text})
            self.process(observed).send(text if text.endswith("\n") else f"{text}\n")
            return
        if self.process(observed).observe().state != "alive":
            raise AdapterUnavailable(f"The agent of session {observed.id} reads nothing any more.", fix="Restore the session.")
        with self.board.locked(observed.project, observed.id):
            self.board.append(observed.id, ("prompt.queued", {"text": text, "source": "person"}))

    def _last(self, id: str) -> int:
        return max(agent_directories(self.board.engine.store.directory(id)), default=0)

    def _environment(self, observed: ObservedSession) -> dict[str, str]:
        found = self.board.agents.inherited() if self.board.environment is None else dict(self.board.environment)
        facts = observed.state.identity
        variables = {"AO_SESSION": observed.id, "AO_PROJECT_ID": observed.project.id, "AO_ISSUE_ID": facts.get("issue")}
        return {**found, **dict.fromkeys(VARIABLES, observed.id), **{name: value for name, value in variables.items() if value}}


def _checked_activity(activity: Activity | None) -> Activity | None:
    """A plugin's report, made fit for a log. Raises TypeError or ValueError if it is not valid."""
    if activity is None:
        return None
    if not isinstance(activity, Activity):
        raise TypeError(f"it tells {type(activity).__name__}, and no Activity")
    if activity.state not in (*ACTIVITIES, UNKNOWN) or activity.source not in SOURCES:
        raise ValueError(f"it tells of the state {activity.state!r} from {activity.source!r}")
    if activity.observed_ns is not None and type(activity.observed_ns) is not int:
        raise TypeError(f"it tells the time {activity.observed_ns!r}, which is no whole number")
    if activity.detail is None:
        return activity
    # The agent wrote the detail: half a character, or a page of text, must not keep the rest from being recorded.
    return replace(activity, detail=str(activity.detail).encode(errors="replace").decode()[:_MOST_DETAIL])


def runtime_data(runtime: Runtime, *, reason: str | None = None) -> dict[str, Any]:
    """The data of ``runtime.observed``; ``reason`` replaces the probe's."""
    names = ("state", "pid", "start_time", "exit_code", "source", "reason", "confinement", "limit")
    fields = {name: getattr(runtime, name) for name in names}
    return {name: value for name, value in {**fields, "reason": reason or runtime.reason}.items() if value is not None}


def alive_data(owner: Owner, confined: Confinement) -> dict[str, Any]:
    """The data of ``runtime.observed`` for an agent that is about to run."""
    return runtime_data(Runtime("alive", owner.pid, owner.start_time, None, RUNTIME, _REASONS["alive"], confinement=str(confined)))


def tolerated(board: Board, id: str, action: Callable[[], object]) -> None:
    """Do an action whose failure is only announced."""
    try:
        action()
    except GittrixError as problem:
        board.complain(id, problem)
