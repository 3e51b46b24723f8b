"""What a trial takes for a system under test: how a sandbox is opened, what may be asked of it, and how one more engine joins it.

Any session system will do. One that is opened with our engine's own verbs (a ``World``) is called native: it can do everything, and is held
to what our engine decided where the contract leaves a choice. Must know no Hypothesis and no pytest, and nothing of how a system is judged.
"""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.faults.faults import Kill
from pytest_gittrix.testing.faults.supervisor import supervise_function, supported
from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
from pytest_gittrix.testing.systems.driver import sandbox_of
from pytest_gittrix.testing.systems.protocol import Capability, SessionSystem, check_system

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import FrozenClock


class Sandbox(Protocol):
    """What a trial needs of a place with the system under test in it: ``World`` has it, and so has ``driver.Stage``.

    ``reopen``, where there is one, gives one more engine on the same sessions, as a second process would have.
    """

    durable: DurableRepo
    rival: Rival
    clock: FrozenClock
    gittrix: Any


Opens = Callable[..., AbstractContextManager[Any]]
"""Opens a ``Sandbox``; takes ``files=``, ``workspace=``, ``bare=`` and ``sweep_interval=`` as ``World.open`` does."""

System = Opens | SessionSystem
"""What can be put to trial: a session system, or what opens a sandbox whose ``gittrix`` has the verbs of our engine."""


@dataclass(frozen=True)
class Access:
    """How a trial reaches a system; made by ``access_to``.

    Attributes:
        opens: opens a sandbox.
        capabilities: what the system declares.
        native: it has our engine's own verbs (``review``, ``info``, ``on_overlap=``), and is held to our engine's own decisions.
    """

    opens: Opens
    capabilities: frozenset[Capability]
    native: bool

    def can(self, *needed: Capability) -> bool:
        """Whether the system declares all of these."""
        return self.capabilities.issuperset(needed)

    def states(self, engine: Any) -> dict[str, str]:
        """Each session's state by id, as an engine lists them."""
        return {one.id: one.state for one in engine.list_sessions()} if self.native else engine.states()

    def evict(self, engine: Any, held: Held) -> None:
        """End a session by force."""
        if self.native:
            engine.evict(held.id)
        else:
            held.handle.evict()

    def hunks(self, handle: Any) -> Mapping[str, Sequence[int]]:
        """The numbers of the hunks of each touched text file that can be promoted in parts."""
        found = handle.review().hunks.items() if self.native else handle.hunks().items()
        return {path: [getattr(hunk, "index", hunk) for hunk in hunks] for path, hunks in found if hunks}

    @property
    def strikes(self) -> int:
        """At how many moments ``elsewhere`` may strike: points of our engine, or calls of the system's that change a file."""
        return 16 if self.native else 60

    def elsewhere(self, world: Any, action: Callable[[], object], *, dies_at: int | None = None) -> bool:
        """Run an action in another process, which is killed at its ``dies_at``-th moment in a sandbox; whether it came to its end.

        Where processes cannot be supervised, one of a system that is not native always comes to its end.
        """
        if self.native or dies_at is None or supported() is not None:
            return in_another_process(action, dies_at=dies_at)
        run = supervise_function(_without_refusals(action), fault=Kill(dies_at), within=world.path)
        if run.exit_code not in (0, None) and not run.killed:
            raise AssertionError(f"An operation in another process failed with what is no error of the system.\n{os.fsdecode(run.stderr)}")
        return not run.killed


def access_to(system: System) -> Access:
    """Find out how to reach a system.

    Raises:
        InvalidInput: it is neither a session system nor callable; or see ``check_system``.
    """
    declared = system if hasattr(system, "capabilities") else getattr(system, "system", None)
    if hasattr(declared, "capabilities"):
        checked = check_system(declared)  # type: ignore[arg-type]
        return Access(sandbox_of(checked), checked.capabilities, native=False)
    if callable(system):
        return Access(system, frozenset(Capability), native=True)
    raise InvalidInput(
        f"{system!r} cannot be put to trial.",
        why="It is neither a session system nor a function that opens a sandbox.",
        fix="Give an object with a name, capabilities and open(place); or World.open.",
    )


@dataclass(eq=False)
class Held:
    """A session as its user holds it, alive or not.

    Attributes:
        name: ``s1``, ``s2`` and so on, in the order of their starts.
        id: its id.
        handle: the object to work with.
        workspace: where its files are, or would be; None where it has none to work on.
        baseline: the commit it started from.
        hidden: commits of durable made since, which it may not see.
        commits: what the agent committed through it since it last ran git of its own, oldest first.
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
        world: the sandbox; what its ``reopen`` gives, if it has one, otherwise a ``GitTrix`` like that of a ``World``.
        number: which one it is, from 1, so that it makes ids of its own.
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
    """Run an action in a forked process; whether it came to its end. An error of the system is an end, too.

    Args:
        action: what to run.
        dies_at: the process is killed at the point of this number that it passes, from 1; None lets it live.

    Raises:
        AssertionError: it failed with what is no error of the system.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks beside other threads; the child uses none
        pid = os.fork()
    if pid == 0:
        _live_and_die(action, dies_at, writing)
    os.close(writing)
    with open(reading, "rb") as said:
        trace = said.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise AssertionError(f"An operation in another process failed with what is no error of the system.\n{trace}")
    return status == 0


def _live_and_die(action: Callable[[], object], dies_at: int | None, writing: int) -> None:
    passed: list[str] = []

    def listen(name: str) -> None:
        passed.append(name)
        if len(passed) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    status = 1
    try:
        with points.listening(listen):
            _without_refusals(action)()
        status = 0
    except BaseException:  # noqa: BLE001  (nothing may get back into the parent's test run)
        os.write(writing, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)


def _without_refusals(action: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        try:
            action()
        except Exception as error:
            if not isinstance(getattr(error, "code", None), str):
                raise

    return run


def directory_of(engine: Any, id_: str) -> Path | None:
    """Where a native engine keeps a session; None where that is the system's own affair."""
    store = getattr(engine, "store", None)
    return Path(store.directory(id_)) if store is not None else None
