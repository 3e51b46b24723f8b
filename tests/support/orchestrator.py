"""Orchestrated sessions for tests: logs that are written by hand and polled, and real sessions with real agents."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, open_site
from support.events import CREATED, NOW

from pytest_gittrix.durations import instant_text
from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.orchestrator.config import ACTIVITY_LOG, CommandAgent, Project, SpawnConfig
from pytest_gittrix.orchestrator.flat_audit import audit_path
from pytest_gittrix.orchestrator.orchestrator import Orchestrator
from pytest_gittrix.orchestrator.session import Session
from pytest_gittrix.record.eventlog.events import Event, check
from pytest_gittrix.record.state.observations import Activity, Observations, ObservedPullRequest, Runtime, observations_of
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit, AgentScript
from pytest_gittrix.views.orchestrator_status import Decision, Dialect, PollResult, decide, status

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
ID = "app-1"


def at(minute: float) -> int:
    """The instant some minutes after the session was created, in nanoseconds since 1970 UTC."""
    return NOW + round(minute * MINUTE / 1000) * 1000


def does(state: str, minute: float | None = None, source: str = "native") -> Activity:
    """An agent's activity that was last observed at a minute."""
    return Activity(state, source, None if minute is None else at(minute))


class Watched:
    """A session of a project that is polled: each poll records new observations, decides, and records a new decision.

    Args:
        identity: its identity; ``project=None`` for a session without a project.
    """

    def __init__(self, **identity: Any) -> None:
        facts = {name: value for name, value in {"project": "app", **identity}.items() if value is not None}
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.tell(0, "session.created", **CREATED, identity=facts)
        self.tell(0, "workspace.ready", path="/w")

    @property
    def observations(self) -> Observations:
        """The observations by now."""
        return observations_of(self.events)

    def status(self, dialect: Dialect = "document") -> str:
        """Its status by now."""
        return status(self.observations, dialect=dialect)

    def tell(self, minute: float, type: str, **data: Any) -> None:
        """Append an event."""
        check(type, data)
        self.events.append(Event(len(self.events), at(minute), ID, type, "system", data))

    def decided(self, minute: float, session: str, reason: str = "task_in_progress", **data: Any) -> None:
        """Append a decision of a status."""
        self.tell(minute, "status.decided", session=session, reason=reason, **data)

    def look(
        self, minute: float, runtime: str | None = None, activity: Activity | None = None, pr: ObservedPullRequest | None = None
    ) -> str:
        """Poll it, and return its status then in the newest dialect."""
        if runtime is not None and runtime != self.observations.runtime.state:
            self.tell(minute, "runtime.observed", state=runtime)
        if activity is not None and activity.state not in ("unknown", self.observations.activity.state):
            instant = {} if activity.observed_ns is None else {"observed_ns": activity.observed_ns}
            self.tell(minute, "activity.observed", state=activity.state, source=activity.source, **instant)
        if pr is not None and pr.state != self.observations.pr.state:
            self.tell(minute, "pr.observed", state=pr.state, ci=pr.ci, review=pr.review, mergeable=pr.mergeable)
        decision = decide(self.observations, PollResult(None if runtime is None else Runtime(runtime), activity, pr), at(minute))
        self.decisions.append(decision)
        if decision.changed:
            self.tell(minute, "status.decided", **decision.to_data())
        return self.status("head")


# Real ones ---------------------------------------------------------------------------------------------------------------------

ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath)}
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents as processes need Linux")


def write_activity(path: Path, state: str, now_ns: int) -> None:
    """Add a state to an agent's log of states, as an agent does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        log.write(json.dumps({"ts": instant_text(now_ns), "state": state, "source": "native"}) + "\n")


@dataclass
class Tracked:
    """A tracker with issues: the branch of each, or None; and those that are completed. With ``problem``, it cannot be reached."""

    issues: dict[str, str | None] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    problem: GittrixError | None = None

    def exists(self, issue: str) -> bool:
        if self.problem is not None:
            raise self.problem
        return issue in self.issues

    def branch(self, issue: str) -> str | None:
        return self.issues[issue]

    def completed(self, issue: str) -> bool:
        return issue in self.done


@dataclass
class Fleet:
    """A site, an orchestrator of its sessions, and agents that follow scripts.

    Attributes:
        site: the durable repository, the clock and the engine.
        kit: scripts of agents.
        notifications: the notifications of every orchestrator here, in order.
        errors: the announced errors.
        options: options of the project.
    """

    site: Site
    kit: AgentKit
    notifications: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.site.engine.init().on("engine.error", lambda event: self.errors.append(event.data["message"]))
        self.site.clock.advance(seconds=1)
        self.lead = self.another()

    def agent(self, script: AgentScript | None = None, name: str = "agent", **options: Any) -> CommandAgent:
        """An agent plugin that follows a script; by default one that hangs until it is asked to end."""
        return CommandAgent(name, tuple((script or self.kit.script(name).polite().hang()).command), **options)

    def project(self, **options: Any) -> Project:
        """The project ``app`` on the site's durable repository."""
        given = {"id": "app", "durable": self.site.durable.path, **self.options, **options}
        return Project(**given if "agents" in given else {**given, "agents": (self.agent(),)})

    def another(self, *projects: Project, **options: Any) -> Orchestrator:
        """One more orchestrator, as another process would have; the project is ``app`` unless some are given.

        Its agents obey scripts outside of their workspaces, so they are not confined.
        """
        given = {"notify": self.notifications.append, "environment": ENVIRONMENT, "grace": 5.0, "confine": "off", **options}
        return Orchestrator(self.site.engine, projects or [self.project()], **given)

    def spawn(self, lead: Orchestrator | None = None, **config: Any) -> Session:
        """A session of the project ``app``."""
        return (lead or self.lead).spawn(SpawnConfig("app", **config))

    def does(self, session: Session, state: str) -> None:
        """Have its agent write its present activity."""
        assert session.workspace_path is not None
        write_activity(Path(session.workspace_path) / ACTIVITY_LOG, state, self.site.clock.now_ns())

    def process(self, id: str) -> AgentProcess:
        """The last agent of a session."""
        directory = max(self.site.directory(id).glob("agent-*"), key=lambda path: int(path.name.partition("-")[2]))
        return AgentProcess(directory)

    def now(self, id: str) -> Session:
        """A session that is there."""
        found = self.lead.get(id)
        assert found is not None
        return found

    def decided(self, id: str) -> list[tuple[str, str]]:
        """The decisions about a session, in order."""
        return [(event.data["session"], event.data["reason"]) for event in self.site.events(id) if event.type == "status.decided"]

    def types(self) -> list[str]:
        """The types of the notifications, in order."""
        return [one["type"] for one in self.notifications]

    @property
    def files(self) -> Path:
        """The directory of the flat files."""
        return self.lead.directory / "app" / "sessions"

    def left(self) -> dict[str, list[str]]:
        """All that a spawn can leave behind: sessions, reservations, work trees that durable knows, and processes."""
        store, files = self.site.store, self.files
        return {
            "sessions": sorted(path.name for path in store.iterdir() if not path.name.startswith((".", "index"))),
            "reservations": sorted(path.name for path in files.iterdir() if path.is_file() and path.name != ".lock")
            if files.is_dir()
            else [],
            "worktrees": self.site.durable.git("worktree", "list", "--porcelain").split("\n\n")[1:],
            "branches": [name for name in self.site.durable.branches() if name != "main"],
            "processes": [str(pid) for pid in self.kit.alive()],
        }


NOTHING: dict[str, list[str]] = {"sessions": [], "reservations": [], "worktrees": [], "branches": [], "processes": []}


@contextmanager
def open_fleet(root: Path, **options: Any) -> Iterator[Fleet]:
    """An orchestrator on a new site below a directory; every agent is gone at the end.

    Args:
        root: the directory.
        options: of the project ``app``.
    """
    with AgentKit(root / "kit", timeout=60.0) as kit, open_site(root) as site:
        fleet = Fleet(site, kit, options=options)
        try:
            yield fleet
        finally:
            fleet.lead.close()
            for record in site.store.glob("*/agent-*/agent.json"):
                AgentProcess(record.parent).stop(grace=0)


def filed_audit(directory: Path, id: str) -> list[dict[str, Any]]:
    """The entries of the file of a session's reports, newest first."""
    path = audit_path(directory, id)
    return [json.loads(line) for line in reversed(path.read_text("utf-8").splitlines())] if path.exists() else []
