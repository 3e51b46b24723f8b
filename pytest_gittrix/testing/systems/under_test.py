"""How a trial reaches a system under test: how a sandbox is opened, which capabilities it has, and how one more engine joins it.

Any session system will do. One with the verbs of our engine (a ``World``) is called native: it has all capabilities, and where the contract
leaves a choice it must choose as our engine does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.testing.faults.faults import KillAt
from pytest_gittrix.testing.faults.supervisor import supervise_function, supported
from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
from pytest_gittrix.testing.systems.driver import sandbox_of
from pytest_gittrix.testing.systems.protocol import Capability, SessionSystem, check_system

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import FrozenClock


class Sandbox(Protocol):
    """A place with the system under test in it, as a trial needs it: a ``World`` or a ``driver.Stage``.

    If it has a method ``reopen``, that gives one more engine on the same sessions, as a second process would have.
    """

    durable: DurableRepo
    rival: Rival
    clock: FrozenClock
    gittrix: Any


Opens = Callable[..., AbstractContextManager[Any]]
"""Opens a ``Sandbox``; takes ``files=``, ``workspace=``, ``bare=`` and ``sweep_interval=`` as ``World.open`` does."""

System = Opens | SessionSystem
"""What a trial can test: a session system, or a function that opens a sandbox whose ``gittrix`` has the verbs of our engine."""


@dataclass(frozen=True)
class Access:
    """How a trial reaches a system; made by ``access_to``.

    Attributes:
        opens: opens a sandbox.
        capabilities: what the system declares.
        native: whether it has our engine's own verbs (``review``, ``info``, ``on_overlap=``), and must choose as our engine does.
        waivers: the promises that the system waives itself, clauses and invariants, with the reasons.
    """

    opens: Opens
    capabilities: frozenset[Capability]
    native: bool
    waivers: Mapping[str, str] = field(default_factory=dict)

    def can(self, *needed: Capability) -> bool:
        """Whether the system declares all of these."""
        return self.capabilities.issuperset(needed)

    def states(self, engine: Any) -> dict[str, str]:
        """Each session's state by id, as an engine lists them."""
        return {one.id: one.state for one in engine.list_sessions()} if self.native else engine.states()

    def evict(self, engine: Any, held: HeldSession) -> None:
        """End a session by force."""
        if self.native:
            engine.evict(held.id)
        else:
            held.handle.evict()

    def read(self, handle: Any, path: str) -> bytes:
        """The bytes at a path as git stores them: of a link, its target."""
        found: bytes = handle.read(path, follow=False) if self.native else handle.read(path)
        return found

    def write(self, handle: Any, path: str, data: bytes) -> None:
        """Make a path a file with these bytes, whatever is there."""
        if self.native:
            handle.write(path, data, follow=False)
        else:
            handle.write(path, data)

    def hunks(self, handle: Any) -> Mapping[str, Sequence[int]]:
        """The numbers of the hunks of each touched text file that can be promoted in parts."""
        found = handle.review().hunks.items() if self.native else handle.hunks().items()
        return {path: [getattr(hunk, "index", hunk) for hunk in hunks] for path, hunks in found if hunks}

    @property
    def moments(self) -> int:
        """At how many moments ``elsewhere`` can kill: points of our engine, or calls of the system's that change a file."""
        return 16 if self.native else 60

    def elsewhere(self, world: Any, action: Callable[[], object], *, dies_at: int | None = None) -> bool:
        """Run an action in another process, which is killed at its ``dies_at``-th moment; whether the action came to its end.

        Where processes cannot be supervised, the process of a system that is not native is never killed.
        """
        if self.native or dies_at is None or supported() is not None:
            return in_another_process(action, dies_at=dies_at)
        run = supervise_function(_without_refusals(action), fault=KillAt(dies_at), within=world.path)
        if run.exit_code not in (0, None) and not run.killed:
            raise AssertionError(
                f"An operation in another process failed with an error that is not one of the system's.\n{os.fsdecode(run.stderr)}"
            )
        return not run.killed


def access_to(system: System) -> Access:
    """Find out how to reach a system.

    Raises:
        InvalidInput: it is neither a session system nor callable; or see ``check_system``.
    """
    declared = system if hasattr(system, "capabilities") else getattr(system, "system", None)
    if hasattr(declared, "capabilities"):
        checked = check_system(declared)  # type: ignore[arg-type]
        return Access(sandbox_of(checked), checked.capabilities, native=False, waivers=getattr(checked, "waivers", {}))
    if callable(system):
        return Access(system, frozenset(Capability), native=True)
    raise InvalidInput(
        f"{system!r} cannot be put to trial.",
        why="It is neither a session system nor a function that opens a sandbox.",
        fix="Give an object with a name, capabilities and open(place); or World.open.",
    )


@dataclass(eq=False)
class HeldSession:
    """A session in a trial, live or not.

    Attributes:
        name: ``s1``, ``s2`` and so on, in the order of their starts.
        id: its id.
        handle: its handle in the engine.
        workspace: the directory of its files, there or removed; None if it has none.
        baseline: the commit it started from.
        hidden: commits made in durable since, which its workspace must not contain.
        commits: the agent's commits through the session since it last ran git itself, oldest first.
    """

    name: str
    id: str
    handle: Any
    workspace: Path | None
    baseline: str
    hidden: set[str] = field(default_factory=set)
    commits: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.name


def another_engine(world: Any, number: int) -> Any:
    """One more engine on the sessions of a sandbox, initialised, as another process would have.

    Args:
        world: the sandbox; its ``reopen`` is used if it has one, otherwise a ``GitTrix`` like that of a ``World`` is made.
        number: the number of the engine, from 1: each number makes other ids.
    """
    if hasattr(world, "reopen"):
        return world.reopen()
    first: GitTrix = world.gittrix
    return GitTrix(
        LocalDurable(world.durable.path, world.durable.branch, sync=False),
        first.ephemeral,
        store=first.store.root,
        home=first.home,
        clock=world.clock,
        sweep_interval=None,
        durability="fast",
        strategy="commit",
        ids=seeded_ids(number),
    ).init()


# Other processes -----------------------------------------------------------------------------------------------------------------


def in_another_process(action: Callable[[], object], *, dies_at: int | None = None) -> bool:
    """Run an action in a forked process; whether it came to its end. A refusal by the system is an end, too.

    Args:
        action: what to run.
        dies_at: the process is killed at the point of this number that it passes, from 1; None lets it live.

    Raises:
        AssertionError: it failed with an error that is not one of the system's.
    """
    passed = count(1)
    ended = in_fork(killed_when(lambda _name: next(passed) == dies_at, _without_refusals(action)))
    if ended.error is not None or ended.timed_out or ended.signal not in (None, signal.SIGKILL):
        problem = repr(ended.error or ended)
        raise AssertionError(
            f"An operation in another process failed with an error that is not one of the system's: {problem}"
        ) from ended.error
    return ended.signal is None


def killed_when(at: Callable[[str], bool], action: Callable[[], object]) -> Callable[[], None]:
    """An action that kills its process at the first point of our engine for whose name ``at`` returns True."""

    def listen(name: str) -> None:
        if at(name):
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        with points.listening(listen):
            action()

    return run


def _without_refusals(action: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        try:
            action()
        except Exception as error:
            if not isinstance(getattr(error, "code", None), str):
                raise

    return run


def directory_of(engine: Any, id_: str) -> Path | None:
    """The directory in which a native engine keeps a session; None for another system."""
    store = getattr(engine, "store", None)
    return Path(store.directory(id_)) if store is not None else None
