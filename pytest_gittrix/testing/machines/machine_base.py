"""What all state machines share, how they are run and repeated, and the base of the small ones: a world with two engines on one store.

``log_machine``, ``turn_machine`` and ``lineage_machine`` each test one side of sessions; ``session_machine`` tests files and promotion.
"""

from __future__ import annotations

import datetime
import re
import signal
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition

from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.os_level.forks import ForkResult, in_fork
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.record.store.store import LOG
from pytest_gittrix.testing import profiles
from pytest_gittrix.testing.machines.draws import Meeting
from pytest_gittrix.testing.machines.trial_base import answer_of
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.repos.edits import DurableEdit, Edits, Tree
from pytest_gittrix.testing.repos.history import Executable, Submodule, Symlink
from pytest_gittrix.testing.session_model import FINE, Answers
from pytest_gittrix.testing.systems.under_test import Opens, another_engine, killed_when
from pytest_gittrix.testing.world import World

LONG: Final = 60.0
"""Real seconds to wait for another thread or process."""
FOREVER: Final = EvictionPolicy(manual=True)
ENDED: Final = frozenset({"SESSION_EXPIRED"})
ENGINES: Final = st.integers(0, 1)
"""The number of an engine."""
BASELINE: Final = b"1\n"
"""What the file ``a`` holds at first; durable has no other file."""

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound="WorldMachine")
A = TypeVar("A", bound=RuleBasedStateMachine)


@dataclass(eq=False, repr=False)
class MachineSession:
    """A session with a handle in each engine.

    Attributes:
        name: ``s1``, ``s2`` and so on.
        handles: the session, as each engine has it.
        events: its expected history.
        ended: whether it has ended.
    """

    name: str
    handles: list[UserSession]
    events: list[Any]
    ended: bool = False

    def __repr__(self) -> str:
        return self.name

    @property
    def id(self) -> str:
        """Its id."""
        return self.handles[0].id

    @property
    def allowed(self) -> Answers:
        """The answers to an operation that only a live session allows."""
        return ENDED if self.ended else FINE


class WorldMachine(RuleBasedStateMachine):
    """A world and two engines on its store, without rules.

    Attributes:
        system: opens the world; set by ``machine_of``.
        world: the world.
        engines: the two engines; either is replaced when it is closed.
        known: the sessions that have a handle in each engine.
    """

    system: ClassVar[Opens] = staticmethod(World.open)

    def __init__(self) -> None:
        super().__init__()
        self._closing = ExitStack()
        self._made = 0
        self._times: Counter[str] = Counter()
        self.known: list[Any] = []
        self.world: World = self._closing.enter_context(self.system(files={"a": BASELINE}, workspace="lazy", sweep_interval=None))
        self.engines: list[GitTrix] = [self.world.gittrix, self._another()]

    def teardown(self) -> None:
        """Close the engines and the world."""
        with self._closing:
            for engine in self.engines:
                engine.close()

    def _another(self) -> GitTrix:
        self._made += 1
        engine: GitTrix = another_engine(self.world, self._made)
        return engine

    def restart(self, number: int) -> GitTrix:
        """Close an engine and put a new one in its place, with handles of the live sessions, as a restarted program would."""
        self.engines[number].close()
        engine = self.engines[number] = self._another()
        for session in self.known:
            if not session.ended:
                session.handles[number] = engine.get_session(session.id)
        return engine

    def start_task(self, number: int) -> list[UserSession]:
        """Start a session by an engine; gives its handle in each engine."""
        id_ = self.engines[number].start_session("task", eviction=FOREVER).id
        return [engine.get_session(id_) for engine in self.engines]

    def path_of(self, id_: str) -> Path:
        """The log of a session."""
        return self.engines[0].store.directory(id_) / LOG

    def log_of(self, id_: str, *, torn: bool = False) -> list[Event]:
        """Every event of a session, by a new reader; an unfinished line at the end is damage, unless ``torn``."""
        try:
            return EventLog(self.path_of(id_), id_).read("repair-tail" if torn else "strict")
        except GittrixError as problem:
            raise AssertionError(f"A log can be read from the first event to the last.\n  {problem}") from problem


def at_most(times: int) -> Callable[[Callable[Concatenate[M, P], T]], Callable[Concatenate[M, P], T]]:
    """Limit how often a rule is used in one run; the decorator goes below ``rule``."""

    def limit(used: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], T]:
        @wraps(used)
        def counted(self: M, /, *args: P.args, **kwargs: P.kwargs) -> T:
            self._times[used.__name__] += 1
            return used(self, *args, **kwargs)

        limited: Callable[Concatenate[M, P], T] = precondition(lambda self: self._times[used.__name__] < times)(counted)
        return limited

    return limit


def ask(to: str, act: Callable[[], T], allowed: Collection[str] = FINE) -> T | None:
    """Make a request as ``answer_of`` does; gives its value, or None for an allowed error."""
    return answer_of(to, act, allowed)[1]


def require_equal(rule: str, expected: object, found: object) -> None:
    """Raise AssertionError, with both values, unless they are equal."""
    require(found == expected, rule, f"expected: {expected}", f"found:    {found}")


def done(how: ForkResult) -> object:
    """The value of a function that ran in a fork. Raises AssertionError if it did not return."""
    require(how.signal is None, "A process comes to its end.", f"signal: {how.signal}")
    if how.error is not None:
        raise AssertionError(f"Another process failed: {how.error}") from how.error
    return how.value


def die_at(point: str, action: Callable[[], object]) -> None:
    """Run an action in a fork that is killed at a point of the engine. Raises AssertionError if the point is not passed."""

    how = in_fork(killed_when(lambda name: name == point, action), timeout=LONG)
    require(how.signal == signal.SIGKILL, f"An operation passes {point}.", str(how.error or "it came to its end"))


def machine_of(machine: type[M], system: Opens = World.open, *, settings: hypothesis_settings | None = None) -> type[M]:
    """One of the small machines for a world that is opened in another way; ``.TestCase`` of the result is a test class.

    Args:
        machine: ``LogMachine``, ``TurnMachine`` or ``LineMachine``.
        system: opens a world, as ``World.open`` does. The arguments ``files=``, ``workspace=`` and ``sweep_interval=`` are the machine's.
        settings: of the test class; by default those that ``profiles.in_use`` gives.
    """
    made: type[Any] = type(machine.__name__, (machine,), {"system": staticmethod(system)})
    return capped(made, settings)


def capped(machine: type[A], settings: hypothesis_settings | None) -> type[A]:
    """Give the test class of a machine its settings, and less time to shrink than Hypothesis takes; returns the machine.

    Args:
        machine: the machine.
        settings: of the test class; by default those that ``profiles.in_use`` gives.
    """
    case: Any = machine.TestCase
    whole = case.runTest

    @wraps(whole)
    def run(test: Any) -> None:
        with profiles.shrinking_for(profiles.SHRINKING):
            whole(test)

    case.runTest = run
    case.settings = settings if settings is not None else profiles.in_use()
    return machine


def steps_of(error: BaseException) -> Sequence[str]:
    """The steps of a failure's shrunk example, as Hypothesis prints them, without opening and teardown."""
    notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
    return [line for line in notes if re.search(r"state\.(?!teardown|world_opens|stage_opens)", line)]


def replay(machine: type[RuleBasedStateMachine], steps: str) -> None:
    """Repeat the steps that a failing run printed, without Hypothesis.

    Args:
        machine: the machine of the same system, as ``machine_for`` made it.
        steps: the printed lines, from ``state = ...`` to ``state.teardown()``.
    """
    values = (DurableEdit, Edits, EvictionPolicy, Executable, Meeting, Submodule, Symlink, Tree)
    names = {one.__name__: one for one in values} | {"datetime": datetime, machine.__name__: machine}
    exec(textwrap.dedent(steps), names)
