"""A team whose members have sessions: remotes, an engine on a clock that stands still, and agents that do what a test says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.git import GitRepo

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.members.members import Members
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.testing.repos.member_workspaces import git
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit, AgentScript
from pytest_gittrix.testing.world import World
from pytest_gittrix.workspaces.multi_repo import RepositorySpec

FILES: Final = {"a.txt": "one\n", "src/b.txt": "two\n"}
AT: Final = 1_893_456_000
LONG: Final = 60.0


class Crew:
    """A team with two repositories, ``app`` and its own.

    Attributes:
        world: engine and clock.
        agents: scripts for agents.
        app, team: the remotes.
        members: the manager.
    """

    def __init__(self, world: World, agents: AgentKit, **options: Any) -> None:
        self.world, self.agents = world, agents
        self.app = GitRepo.make(world.path / "remotes" / "app.git", FILES, bare=True)
        self.team = GitRepo.make(world.path / "remotes" / "team.git", {"README.md": "the team\n"}, bare=True)
        self.members = self.manager(**options)

    @classmethod
    @contextmanager
    def open(cls, path: Path, **options: Any) -> Iterator[Crew]:
        """Make one in a directory; its agents are gone afterwards."""
        with World.open(path / "world", keep=True) as world, AgentKit(path / "kit", timeout=LONG) as agents:
            crew = cls(world, agents, **options)
            yield crew
            crew.members.close()

    @property
    def engine(self) -> GitTrix:
        return self.world.gittrix

    @property
    def clock(self) -> FrozenClock:
        return self.world.clock

    @property
    def specs(self) -> list[RepositorySpec]:
        return [RepositorySpec("app", str(self.app.path)), RepositorySpec("crew", str(self.team.path), team=True)]

    def manager(self, engine: GitTrix | None = None, **options: Any) -> Members:
        """A manager on the engine, or on another one. Its agents obey scripts outside of their workspaces, so they are not confined."""
        given = {"grace": 5.0, "deadline": 40.0, "confine": "off", **options}
        return Members(engine or self.engine, self.specs, team="crew", **given)

    @contextmanager
    def restarted(self, **options: Any) -> Iterator[Members]:
        """A manager on a new engine over the same store, as another process would have it."""
        with GitTrix(None, store=self.engine.store.root, home=self.engine.home, clock=self.clock, durability="fast") as engine:
            members = self.manager(engine, **options)
            yield members
            members.close()

    # Sessions --------------------------------------------------------------------------------------------------------------------

    def script(self, name: str = "agent") -> AgentScript:
        return self.agents.script(name)

    def start(self, script: AgentScript | None = None, *, member: str = "alice", kind: str = "loop", **options: Any) -> Life:
        """Start a session; by default its agent hangs, and is polite."""
        if kind != "interactive" and "command" not in options:
            options["command"] = (script or self.script().polite().hang()).command
        return self.members.start(member, kind, **options)

    def chat(self, **options: Any) -> Life:
        """Start an interactive session, without an agent."""
        return self.start(kind="interactive", **options)

    def ended(self, script: AgentScript | None = None, **options: Any) -> Life:
        """Start a session whose agent comes to its end."""
        life = self.start(script or self.script(), **options)
        self.wait_gone(life.id)
        return life

    def wait_gone(self, id_: str) -> None:
        """Wait until the agent of a session is gone."""
        process = self.members.process(id_)
        assert process is not None
        assert process.wait(LONG).state == "exited"

    def directory(self, id_: str) -> Path:
        return self.engine.store.directory(id_)

    def workspace(self, id_: str) -> Path:
        return self.directory(id_) / "workspace"

    def repo(self, id_: str, place: str = "projects/app") -> Path:
        return self.workspace(id_) / place

    def git(self, id_: str, *arguments: str, place: str = "projects/app") -> str:
        """What the agent's own git answers in a repository of a workspace."""
        return git(self.repo(id_, place), *arguments, at=AT)

    def put(self, id_: str, path: str, text: str = "work\n", *, place: str = "projects/app") -> None:
        at = self.repo(id_, place) / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def commit(self, id_: str, path: str, *, branch: str | None = None, place: str = "projects/app") -> str:
        """Have the agent commit a new file, on a new branch or where HEAD is; gives the commit."""
        if branch is not None:
            self.git(id_, "checkout", "-q", "-b", branch, place=place)
        self.put(id_, path, f"{path}\n", place=place)
        self.git(id_, "add", path, place=place)
        self.git(id_, "commit", "-q", "-m", path, place=place)
        return self.git(id_, "rev-parse", "HEAD", place=place)

    # What can be seen ------------------------------------------------------------------------------------------------------------

    def events(self, id_: str) -> list[Event]:
        return self.engine.store.log(id_).read()

    def types(self, id_: str) -> list[str]:
        return [event.type for event in self.events(id_)]

    def wait_for(self, id_: str, type_: str) -> None:
        """Wait until the log of a session has an event of a type."""
        deadline = real_seconds() + LONG
        while type_ not in self.types(id_):
            assert real_seconds() < deadline, f"no {type_} came: {self.types(id_)}"
            pause(0.005)

    def states(self, id_: str) -> list[str]:
        """The states that a session went through."""
        return [event.data["to"] for event in self.events(id_) if event.type == "life.moved"]

    def sessions(self) -> list[str]:
        """The directories in the store."""
        return sorted(name for name in os.listdir(self.engine.store.root) if not name.startswith((".", "index")))

    def branches(self, remote: GitRepo | None = None) -> dict[str, str]:
        """The branches of a remote, by default of ``app``, with their commits."""
        lines = (remote or self.app).text("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").splitlines()
        return dict(line.split(" ") for line in lines)

    def held(self) -> dict[str, str]:
        """The work items that are held, with the sessions that hold them."""
        return {lock.item: lock.session for lock in self.members._team.locks.held()}
