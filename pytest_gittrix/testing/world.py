"""A world: a durable repository, a clock, an engine and a rival in one hermetic directory, opened in about a millisecond.

Every fixture gives a part of one. The user's git configuration, other worlds and the real time have no effect on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.clock.clock import CLOCK_START, FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.os_level.command import Level
from pytest_gittrix.record.eventlog.log import Durability
from pytest_gittrix.testing.local_variables import GitVariables, withheld
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.repos.history import Contents, History, Step
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.repos.templates import Templates
from pytest_gittrix.testing.schedules.race import Race
from pytest_gittrix.workspaces.kinds import WorkspaceKind
from pytest_gittrix.workspaces.seeds.seed import History as SeedHistory
from pytest_gittrix.workspaces.seeds.seed import Seed

if TYPE_CHECKING:
    from pytest_gittrix.engine.user_session import UserSession
    from pytest_gittrix.record.state.records import Eviction
    from pytest_gittrix.testing.faults.model_sweep import WorldModel
    from pytest_gittrix.testing.scenarios.session_in import SessionsIn
    from pytest_gittrix.testing.scenarios.timeline import Timeline


class World(Place):
    """A place with the engine of this package in it. Created by ``World.open``; a context manager that closes it.

    Attributes:
        path: its directory, with ``durable``, ``gittrix`` (the engine's home, with ``sessions``) and ``home`` (of git).
        gittrix: the engine on ``durable``, initialised.
        sessions: the sessions that ``start`` started, in order.
        races: the races in this world, in order.
    """

    def __init__(self, place: Place, gittrix: GitTrix, closing: ExitStack, engine_on: Callable[[DurableRepo], GitTrix]) -> None:
        super().__init__(
            place.path, durable=place.durable, rival=place.rival, clock=place.clock, templates=place.templates, closing=closing
        )
        self.gittrix = gittrix
        self._engine_on = engine_on
        self.sessions: list[UserSession] = []
        self.races: list[Race] = []

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        files: Contents | None = None,
        history: History | Iterable[Step | Contents] | None = None,
        repository: str | os.PathLike[str] | None = None,
        workspace: WorkspaceKind | LocalEphemeral = "clone",
        bare: bool = False,
        branch: str = "main",
        eviction: Eviction | None = None,
        clock_start: datetime = CLOCK_START,
        seed: int = 0,
        object_format: str = "sha1",
        templates: Templates | None = None,
        strategy: str = "commit",
        durability: Durability = "fast",
        store: str | os.PathLike[str] | None = None,
        sweep_interval: timedelta | str | None = timedelta(minutes=5),
        clock: FrozenClock | None = None,
        separate_files: bool = True,
        keep: bool | None = None,
        git_variables: GitVariables = "drop",
    ) -> World:
        """Create a world. The same arguments give the same commit and session ids, everywhere (rule 13, docs/explanation/rules.md).

        Args:
            path: its directory, created if it does not exist; a temporary one by default.
            files: the contents of durable's one commit; see ``History.of``.
            history: durable's commits, instead of ``files``.
            repository: a repository of this machine to clone with its whole history, instead of either; it is only read.
            workspace: the kind of the sessions' workspaces, or their whole configuration.
            bare: durable has no work tree.
            branch: durable's branch.
            eviction: the default policy of sessions, or their idle TTL, such as ``"4h"``.
            clock_start: where the clock starts; durable's last commit is one minute older.
            seed: the seed of session ids.
            object_format: ``sha1``, or ``sha256`` (which needs git for every read, and is slow).
            templates: the cache of prepared histories; that of this process by default.
            strategy: the strategy of a promotion with ``auto``.
            durability: ``fast``, or ``full`` to write through to the disk.
            store: the directory of sessions; one in the world by default.
            sweep_interval: how often the clock runs the engine's sweep; None for never.
            clock: a clock to use instead of a new one; it decides where time starts, and is not closed.
            separate_files: see ``FrozenClock``.
            keep: whether the directory stays when the world is closed; by default a given one does and a temporary one does not.
            git_variables: ``drop`` to have none of git's local variables in ``os.environ`` until the world is closed, so that a git hook's
                ``GIT_DIR`` leads no program of the test to the repository of the hook; or ``keep``.

        Raises:
            InvalidInput: an argument is not allowed, or there is a world at ``path`` already.
            WriteRejected: a path in ``files`` or ``history`` may not be written.
        """
        level: Level = "jail" if workspace == "overlay" else "off"
        ephemeral = (
            workspace if isinstance(workspace, LocalEphemeral) else LocalEphemeral(kind=workspace, confine=level, project_settings=False)
        )
        with ExitStack() as closing:
            closing.enter_context(withheld(git_variables))
            place = closing.enter_context(
                Place.open(
                    path,
                    files=files,
                    history=history,
                    repository=repository,
                    bare=bare,
                    branch=branch,
                    clock_start=clock_start,
                    object_format=object_format,
                    templates=templates,
                    clock=clock,
                    separate_files=separate_files,
                    keep=keep,
                )
            )

            def engine_on(durable: DurableRepo) -> GitTrix:
                seeds = os.path.join(place.templates.directory, "seeds")
                return GitTrix(
                    _Durable(durable.path, durable.branch, sync=durability == "full", seeds=seeds),
                    ephemeral,
                    store=store if store is not None else place.home / "sessions",
                    home=place.home,
                    clock=place.clock,
                    eviction=eviction,
                    sweep_interval=sweep_interval,
                    durability=durability,
                    strategy=strategy,
                    ids=seeded_ids(seed),
                )

            gittrix = closing.enter_context(engine_on(place.durable))
            return cls(place, gittrix, closing.pop_all(), engine_on)

    @cached_property
    def race(self) -> Race:
        """Controls which actor goes next. A step that was named and never reached fails the block that the world is used in."""
        return self._closing.enter_context(self.new_race(lambda: self.env))

    def new_race(self, env: Callable[[], Mapping[str, str]]) -> Race:
        """Create a race in this world, to be entered.

        Args:
            env: returns the environment that the race's own is built on.
        """
        race = Race(self.path / "race", env)
        self.races.append(race)
        return race

    def work_on(self, durable: DurableRepo) -> None:
        """Put another durable repository in the place of the world's own, with a rival and a new engine; the old engine is closed.

        Args:
            durable: the repository; it stays open when the world is closed.

        Raises:
            AdapterUnavailable: there is no repository at its path, or it is of a kind that is not supported.
        """
        gittrix = self._closing.enter_context(self._engine_on(durable))
        self.gittrix.close()
        self.gittrix = gittrix
        if durable.run_from is None:
            durable.run_from = self.durable.run_from
        self.durable, self.rival = durable, self._closing.enter_context(durable.rival())

    @cached_property
    def model(self) -> WorldModel:
        """A model that answers by a script, on this machine's loopback; its time is the world's. It serves from now on."""
        from pytest_gittrix.testing.faults.model_sweep import WorldModel  # slow to import, and most tests need none

        model = WorldModel(
            self.start, lambda: self.durable, lambda: self.gittrix, now=lambda: self.clock.now_ns() / 1e9, places=self._places
        )
        return self._closing.enter_context(model)

    @property
    def session_in(self) -> SessionsIn:
        """Creates sessions in any state of any of the systems: ``world.session_in("retained", outcome="failed", age="25h")``."""
        from pytest_gittrix.testing.scenarios.session_in import SessionsIn  # slow to import, and most tests need none

        return SessionsIn(self.gittrix, self.clock)

    def timeline(self, **options: Any) -> Timeline:
        """Create a timeline of a session that is observed from outside, on the world's clock. Options are those of ``Timeline``."""
        return self.session_in.timeline(**options)

    def _places(self) -> dict[str, str]:
        """The names under which a tape has the paths of this world."""
        workspaces = [str(session.workspace_path) for session in self.sessions if session.workspace_path is not None]
        named = {f"workspace-{number}" if number > 1 else "workspace": path for number, path in enumerate(workspaces, 1)}
        return {**named, "world": str(self.path)}

    def start(self, task: str = "Improve the project", **options: Any) -> UserSession:
        """Start a session.

        Args:
            task: the agent's task.
            options: as for ``GitTrix.start_session``, whose errors it raises.
        """
        session = self.gittrix.start_session(task, **options)
        self.sessions.append(session)
        return session


class _Durable(LocalDurable):
    """Shares its seeds with other worlds: equal histories have equal seeds, which are never written to."""

    def __init__(self, path: Path, branch: str, *, sync: bool, seeds: str) -> None:
        super().__init__(path, branch, sync=sync)
        self._seeds = seeds

    def seed(self, seeds: str, commit: str, history: SeedHistory) -> Seed:  # noqa: ARG002 - part of the protocol
        return super().seed(self._seeds, commit, history)
