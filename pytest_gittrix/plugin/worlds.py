"""The context managers behind the fixtures, which also work inside ``@given``, state machines and scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from inspect import Parameter, signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.clock.shown import for_programs
from pytest_gittrix.durations import parse_instant
from pytest_gittrix.errors import InvalidInput, did_you_mean
from pytest_gittrix.plugin.marker import OF_THE_TEST, SOURCES
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.repos.templates import Templates
from pytest_gittrix.testing.schedules.race import Race
from pytest_gittrix.testing.world import World
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.user_session import UserSession
    from pytest_gittrix.git.tree import Changes

_TRASH_LIMIT: Final = 100
_ARGUMENTS: Final = tuple(name for name, parameter in signature(World.open).parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY)


@dataclass(eq=False)
class Opened:
    """A world that was opened.

    Attributes:
        world: the world.
        path: its directory.
        closed: whether its block has ended.
        failed: whether its block raised.
    """

    world: World
    path: Path
    closed: bool = False
    failed: bool = False


class Worlds:
    """Opens worlds, each in a fresh directory, and removes them.

    Args:
        directory: the parent of the worlds' directories; made when needed.
        shared: the directory of templates, which several processes may share; ``directory`` by default.
        defaults: default arguments of ``World.open``.
        run_from: the directory that the test run was started in; the current one by default.
        prepare: called with each world before its user gets it.
        keep_all: whether :meth:`open` leaves all worlds on disk.

    Attributes:
        opened: the worlds since the last :meth:`settle` that are still on disk.
    """

    def __init__(
        self,
        directory: Path,
        *,
        shared: Path | None = None,
        defaults: Mapping[str, Any] | None = None,
        run_from: Path | None = None,
        prepare: Callable[[World], object] | None = None,
        keep_all: bool = False,
    ) -> None:
        self.opened: list[Opened] = []
        self._directory = directory
        self._defaults = {"templates": Templates((shared or directory) / "templates"), **(defaults or {})}
        self._run_from = run_from
        self._prepare = prepare
        self._keep_all = keep_all
        self._numbers = count()
        self._trash = Trash(str(directory / "trash"))
        self._thrown = 0

    def __repr__(self) -> str:
        return "gittrix_worlds"  # Hypothesis shows it among the arguments of a failing example

    @contextmanager
    def open(self, /, **arguments: Any) -> Iterator[World]:
        """One fresh world, closed and removed when the block ends. If the block raises, its world stays for the report.

        Of several that raise, the last stays: under Hypothesis that is the smallest example.

        Args:
            arguments: as ``World.open`` takes them.
        """
        opened: Opened | None = None
        try:
            with self.standing(self.create("example", **arguments)) as opened:
                yield opened.world
        except BaseException as error:
            if opened is not None:
                opened.failed = _is_verdict(error)
            raise
        finally:
            if opened is not None and not self._keep_all:
                self._keep_only_failed(opened)

    def create(self, name: str, /, **arguments: Any) -> World:
        """Create a world in a fresh directory.

        Args:
            name: to know its directory by.
            arguments: as ``World.open`` takes them.

        Raises:
            GittrixError: an argument is not allowed, or what it names cannot be used; see ``World.open``.
        """
        unknown = [argument for argument in arguments if argument not in _ARGUMENTS]
        if unknown:
            raise InvalidInput(
                f"A world has no argument {unknown[0]!r}.",
                why="What it asks for would be left out.",
                fix=f"{did_you_mean(unknown[0], _ARGUMENTS)}Arguments: {', '.join(_ARGUMENTS)}.",
            )
        number = next(self._numbers)
        if number == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{number:04}-{re.sub(r'[^A-Za-z0-9_]+', '-', name)[:40]}"
        world = World.open(path, **{**self._defaults, **arguments})
        if self._run_from is not None:
            world.durable.run_from = world.rival.run_from = self._run_from
        return world

    @contextmanager
    def standing(self, world: World) -> Iterator[Opened]:
        """A created world, closed when the block ends, that stays on disk until :meth:`settle`."""
        with world:
            opened = Opened(world, world.path)
            self.opened.append(opened)
            try:
                if self._prepare is not None:
                    self._prepare(world)
                yield opened
            finally:
                opened.closed = True

    def _keep_only_failed(self, latest: Opened) -> None:
        earlier = [one for one in self.opened if one.closed and one.failed and one is not latest]
        for superfluous in earlier if latest.failed else [latest]:
            self.discard(superfluous)

    def settle(self, *, keep: bool) -> None:
        """Forget the closed worlds, and remove them unless ``keep`` is set."""
        for one in [one for one in self.opened if one.closed]:
            if keep:
                self.opened.remove(one)
            else:
                self.discard(one)

    def discard(self, opened: Opened) -> None:
        """Remove a world: rename it at once, and delete its files later."""
        self.opened.remove(opened)
        self._trash.discard(str(opened.path))
        self._thrown += 1
        if self._thrown % _TRASH_LIMIT == 0:
            self._trash.empty_soon()

    def close(self) -> None:
        """Delete the files of the removed worlds."""
        self._trash.wait()
        self._trash.empty()


def _is_verdict(error: BaseException) -> bool:
    """Whether an exception fails the test, and does not skip it or request another example of Hypothesis."""
    return type(error).__module__.partition(".")[0] != "hypothesis" and type(error).__name__ != "Skipped"


def world_arguments(marker: Mapping[str, Any], options: object, files: object) -> dict[str, Any]:
    """The arguments of a test's world, of which those of its markers win.

    Args:
        marker: the merged arguments of its markers.
        options: what ``gittrix_world_options`` gives.
        files: what ``gittrix_files`` gives.

    Raises:
        InvalidInput: ``options`` is no mapping, or its ``clock_start`` is no instant.
    """
    if not isinstance(options, Mapping):
        raise InvalidInput(
            f"gittrix_world_options gives {options!r}, which is no mapping.",
            why="It gives arguments of World.open by their names.",
            fix='Return a mapping, such as {"workspace": "copy"}; {} for none.',
        )
    project = {**options} if files is None else {**options, "files": files}
    if marker.keys() & SOURCES:
        project = {name: value for name, value in project.items() if name not in SOURCES}
    if isinstance(start := project.get("clock_start"), str):
        project["clock_start"] = parse_instant(start)
    return {**project, **{name: value for name, value in marker.items() if name not in OF_THE_TEST}}


def clock_before_world(marker: Mapping[str, Any], options: object, default: datetime) -> AbstractContextManager[FrozenClock]:
    """The clock that a test's world will be opened on, closed when the block ends; ``world_arguments`` has arguments and errors.

    Args:
        marker: the merged arguments of the test's markers.
        options: what ``gittrix_world_options`` gives.
        default: where it starts unless one of them says.
    """
    return closing(FrozenClock(world_arguments(marker, options, None).get("clock_start", default)))


def required_clock(clock: object, who: str) -> FrozenClock:
    """Validate the clock that an override gives.

    Args:
        clock: the clock.
        who: whose it is, with a verb, for the message.

    Raises:
        InvalidInput: it is no ``FrozenClock``.
    """
    if isinstance(clock, FrozenClock):
        return clock
    raise InvalidInput(
        f"{who} {clock!r}, which is no FrozenClock.",
        why="The test moves the clock of a world: timers run as it moves, and git, other programs and files get their dates from it.",
        fix="Return a FrozenClock, such as FrozenClock(start), or extend the plugin's: def gittrix_clock(gittrix_clock).",
        opt_out="For another clock, override gittrix with an engine of your own: GitTrix(LocalDurable(path), clock=...).",
    )


def required_durable(durable: object) -> DurableRepo:
    """Validate what an override of ``gittrix_durable`` gives.

    Raises:
        InvalidInput: it is no ``DurableRepo``.
    """
    if isinstance(durable, DurableRepo):
        return durable
    raise InvalidInput(
        f"gittrix_durable gives {durable!r}, which is no DurableRepo.",
        why="gittrix, gittrix_rival and other fixtures are made from its path and its branch.",
        fix="Return DurableRepo(path, branch) for a repository of yours, or extend the plugin's: def gittrix_durable(gittrix_durable).",
        opt_out="A test that names none of those fixtures takes any object.",
    )


def start_session(gittrix: GitTrix, task: str, worlds: Worlds | None) -> UserSession:
    """Start a session on a test's engine; it is among the sessions of its world, if one was opened for it.

    Args:
        gittrix: the engine.
        task: the task.
        worlds: the worlds of the test.

    Raises:
        InvalidInput: it is no engine.
        GittrixError: as ``GitTrix.start_session``.
    """
    if not hasattr(gittrix, "start_session"):
        raise InvalidInput(
            f"gittrix gives {gittrix!r}, which starts no sessions.",
            why="gittrix_session is a session that the engine of the test started.",
            fix="Return a GitTrix, or extend the plugin's: def gittrix(gittrix).",
        )
    for one in worlds.opened if worlds is not None else ():
        if one.world.gittrix is gittrix:
            return one.world.start(task)
    return gittrix.start_session(task)


@dataclass(frozen=True)
class Ephemeral:
    """A workspace without a session.

    Attributes:
        path: its root.
        kind: ``clone``, ``lazy``, ``copy`` or ``worktree``.
        baseline: the commit it was made from.
        workspace: the engine's own object, for what is not here.
    """

    path: Path
    kind: str
    baseline: str
    workspace: Workspace

    def changes(self) -> Changes:
        """What differs from the baseline now: new entry by path, None for a deletion; sorted by path."""
        return self.workspace.snapshot().changes

    def touched_files(self) -> list[str]:
        """The paths that differ from the baseline, sorted."""
        return [*self.changes()]


@contextmanager
def ephemeral(world: World) -> Iterator[Ephemeral]:
    """A workspace of the world's kind, at the head of its durable repository, without a session."""
    directory = world.path / "ephemeral"
    durable = world.gittrix.durable
    assert durable is not None
    head = durable.head(durable.branch)
    seed = durable.seed(str(world.gittrix.home / "seeds"), head, "none")
    workspace = world.gittrix.ephemeral.create(
        str(directory / "workspace"),
        str(directory / "engine"),
        seed,
        branch=durable.branch,
        durable_objects=durable.objects_dir,
        name="ephemeral",
    )
    try:
        yield Ephemeral(Path(workspace.path), workspace.kind, head, workspace)
    finally:
        workspace.close()


class Environment(Mapping[str, str]):
    """A read-only copy of a world's environment, whose dates follow the world's clock.

    Args:
        world: the world.
        adjust: called once with all variables, to change them in place.
    """

    def __init__(self, world: World, adjust: Callable[[dict[str, str]], object] | None = None) -> None:
        self._variables = dict(world.env)
        self._clock = world.clock
        if adjust is not None:
            adjust(self._variables)

    def __getitem__(self, name: str) -> str:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._now()!r})"

    def _now(self) -> dict[str, str]:
        return for_programs(self._clock, self._variables | self._clock.environment())


@contextmanager
def race(world: World, env: Mapping[str, str] | None = None) -> Iterator[Race]:
    """Control over interleavings of the actors on a world; their environment is ``env``, by default that of the world."""
    with world.new_race(lambda: world.env if env is None else env) as control:
        yield control
