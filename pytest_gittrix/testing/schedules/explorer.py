"""Schedules of actors: played from a short list, explored up to a number of preemptions, or drawn and shrunk by Hypothesis.

One thread runs at a time; the others wait at named points (see ``points``). An actor that runs goes on until it ends or waits, so a
schedule lists only its preemptions: ``[(3, "B")]`` lets B go on at step 3. A choice for each step would say the same, and would neither
shrink nor fit on a line.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from pytest_gittrix import points
from pytest_gittrix.errors import Deadlock, InvalidInput
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.schedules.actors import Actors, Outcome
from pytest_gittrix.testing.schedules.trace_table import PlayedOrder, TraceStep, TurnChoice, checked, columns, ending

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from pytest_gittrix.git.commit import Commit
    from pytest_gittrix.git.tree import Entry

Schedule = Sequence[tuple[int, str]]
"""The preemptions: which actor goes on at which step (from 0), where it is not the usual one."""

W = TypeVar("W")
Make = Callable[[], AbstractContextManager[W]]
Act = Callable[[W], object]

_MOST_STEPS: Final = 10_000
_PATIENCE: Final = 0.1  # real seconds in which an actor may still get what it waits for from outside the actors


@dataclass(frozen=True)
class Run(PlayedOrder):
    """One order that was played.

    Attributes:
        actors: the names of the actors, in the order they were given.
        schedule: the order; preemptions that made no difference are left out.
        steps: what happened, step by step.
        outcomes: the outcomes of the actors that ended, by name.
        log: durable's commits afterwards, newest first; empty if the world has no ``durable``.
        tree: what durable held afterwards, by path.
        finding: what is wrong, or None.
    """

    actors: tuple[str, ...]
    schedule: tuple[tuple[int, str], ...]
    steps: tuple[TraceStep, ...]
    outcomes: Mapping[str, Outcome]
    log: tuple[Commit, ...] = ()
    tree: Mapping[str, Entry] = field(default_factory=dict)
    finding: str | None = None

    @property
    def ending(self) -> str:
        """How the actors ended, on a line: ``A done, B BASELINE_CONFLICT``."""
        return ", ".join(f"{name} {ending(self.outcomes[name]) if name in self.outcomes else 'stuck'}" for name in self.actors)

    @property
    def turns(self) -> int:
        """The number of turns, which are the lines of the trace."""
        return sum(1 for _ in groupby(self.steps, lambda step: step.actor))

    def trace(self, *, full: bool = False) -> str:
        """Draw a column for each actor, and the verdict below; ``full`` draws a line for each point instead of one for each turn."""
        return columns(self.actors, self.steps, self.outcomes, self.finding or self.ending, full=full)

    def __str__(self) -> str:
        return f"{self.trace()}\n    schedule = {list(self.schedule)!r}"


@dataclass(frozen=True)
class Exploration:
    """The result of exploring schedules.

    Attributes:
        runs: the different orders that were played, those with fewer preemptions first.
        complete: whether these are all orders within the bound.
        seconds: the real time it took.
    """

    runs: tuple[Run, ...]
    complete: bool
    seconds: float

    @property
    def findings(self) -> tuple[Run, ...]:
        """The orders in which something is wrong, the simplest first."""
        return tuple(run for run in self.runs if run.finding is not None)

    @property
    def endings(self) -> Counter[str]:
        """How often the actors ended in each way."""
        return Counter(run.ending for run in self.runs)

    def __str__(self) -> str:
        all_of = "" if self.complete else "the first "
        summary = f"{all_of}{len(self.runs)} orders in {self.seconds:.1f} s, {len(self.findings)} wrong"
        return "\n".join([summary, *(f"  {count:5} x {ends}" for ends, count in self.endings.most_common())])

    def verify(self) -> Self:
        """Return this exploration if nothing is wrong in any order.

        Raises:
            AssertionError: something is wrong; the message has the simplest order in which it happens.
        """
        __tracebackhide__ = True
        for run in self.findings[:1]:
            raise AssertionError(f"{run.headline} (so in {len(self.findings)} of {len(self.runs)} orders)\n\n{run}\n")
        return self


class _Player(Generic[W]):
    """What stays the same from one schedule to the next."""

    def __init__(self, make: Make[W], actors: Mapping[str, Act[W]], check: Callable[[W, Run], object] | None, timeout: float):
        if not actors:
            raise InvalidInput(
                "There are no actors.",
                why="Without one there is nothing to run.",
                fix="Give at least one: actors={'A': lambda world: ...}.",
            )
        self.make, self.actors, self.check, self.timeout = make, actors, check, timeout

    def play(self, schedule: Schedule) -> tuple[Run, list[TurnChoice[str]]]:
        """Play one schedule in a fresh world; return the run, and the alternatives at each step."""
        names, check = tuple(self.actors), self.check
        with self.make() as world:
            with Actors({name: partial(act, world) for name, act in self.actors.items()}, timeout=self.timeout) as actors:
                scheduler = _TurnScheduler(actors, names, dict(schedule))
                with points.listening(actors.pause):
                    finding = scheduler.play()
            durable = getattr(world, "durable", None)
            log, tree = (tuple(durable.log()), dict(durable.tree())) if isinstance(durable, DurableRepo) else ((), {})
            run = Run(names, tuple(scheduler.taken), tuple(scheduler.steps), actors.outcomes, log, tree, finding)
            return run if check is None else checked(run, lambda run: check(world, run)), scheduler.choices


class _TurnScheduler:
    """Plays one schedule.

    An actor at a ``:busy`` point waits, and gets a turn again only after another actor has made progress.
    """

    def __init__(self, actors: Actors, names: Sequence[str], wanted: Mapping[int, str]) -> None:
        self.steps: list[TraceStep] = []
        self.choices: list[TurnChoice[str]] = []
        self.taken: list[tuple[int, str]] = []
        self._actors = actors
        self._wanted = wanted
        self._alive = list(names)  # the actor that ran last is first
        self._waiting: set[str] = set()
        self._retried: set[str] = set()

    def play(self) -> str | None:
        """Let all actors go on to the end; return what went wrong, or None."""
        while self._alive:
            if len(self.steps) == _MOST_STEPS:
                return f"ENDLESS: {_MOST_STEPS} steps, and {' and '.join(self._alive)} still under way"
            able = [name for name in self._alive if name not in self._retried]
            problem = self._go(*self._chosen(able)) if able else self._wait()
            if problem is not None:
                return problem
        return None

    def _chosen(self, able: list[str]) -> tuple[str, TurnChoice[str]]:
        usual = next((name for name in able if name not in self._waiting), able[0])
        wanted = self._wanted.get(len(self.steps), usual)
        under_way = bool(self.steps) and self.steps[-1].point is not None and not self.steps[-1].waits
        choice = TurnChoice(len(self.steps), tuple(name for name in able if name != usual), preempts=under_way)
        return wanted if wanted in able else usual, choice

    def _go(self, name: str, choice: TurnChoice[str]) -> str | None:
        problem = None
        try:
            step = TraceStep(name, self._actors.step(name))
        except Deadlock as stuck:
            return f"DEADLOCK: {stuck.fact}"
        except Exception as error:
            if name not in self._actors.outcomes:
                raise
            step, problem = TraceStep(name, None), f"BROKEN: {name} raised {type(error).__name__}: {error}"
        if step.waits and name in self._waiting:
            self._retried.add(name)
            return None
        if name in choice.others:
            self.taken.append((choice.step, name))
        self.steps.append(step)
        self.choices.append(choice)
        self._progressed(step)
        return problem

    def _progressed(self, step: TraceStep) -> None:
        self._retried = {step.actor} if step.waits else set()
        (self._waiting.add if step.waits else self._waiting.discard)(step.actor)
        self._alive.remove(step.actor)
        if step.point is not None:
            self._alive.insert(0, step.actor)

    def _wait(self) -> str | None:
        """Wait for one of the actors, which all wait, to make progress; return a deadlock if none does within a moment."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for name in tuple(self._alive):
                before = len(self.steps)
                problem = self._go(name, TurnChoice(before, (), False))
                if problem is not None or len(self.steps) > before:
                    return problem
        where = {step.actor: step.point for step in self.steps}
        return "DEADLOCK: " + ", ".join(f"{name} waits at {where[name]}" for name in sorted(self._alive))


def replay(
    schedule: Schedule,
    make: Make[W],
    *,
    actors: Mapping[str, Act[W]],
    check: Callable[[W, Run], object] | None = None,
    timeout: float = 5.0,
) -> Run:
    """Play one schedule.

    Args:
        schedule: which actor goes on at which step, where it is not the usual one: the actor that ran last and neither ended nor waits, and
            at first the first actor. A preemption by an actor that cannot go on, or at a step that never comes, makes no difference.
        make: opens a fresh world; a context manager.
        actors: what each actor does in that world. A ``GittrixError`` that one raises is an outcome, anything else a finding.
        check: checks the world and the run afterwards, and raises AssertionError. It is not called if there is a finding already.
        timeout: real seconds that an actor may take from one point to the next.

    Returns:
        The run. It may have a finding: ``replay(...).verify()`` raises it.

    Raises:
        InvalidInput: there are no actors, or the schedule names an unknown one.
    """
    unknown = [name for _, name in schedule if name not in actors]
    if unknown:
        raise InvalidInput(
            f"There is no actor {unknown[0]!r}.", why="A schedule names the actor that goes next.", fix=f"Actors: {', '.join(actors)}."
        )
    return _Player(make, actors, check, timeout).play(schedule)[0]


def explore(
    make: Make[W],
    *,
    actors: Mapping[str, Act[W]],
    bound: int = 2,
    check: Callable[[W, Run], object] | None = None,
    most: int = 10_000,
    timeout: float = 5.0,
) -> Exploration:
    """Play every order of the actors with at most ``bound`` preemptions.

    Which actor starts, and which one goes on when another has ended or waits, is no preemption: all of that is tried. Most races need one
    or two (Musuvathi and Qadeer, "Iterative context bounding", 2007), and the number of orders grows with the power of the bound.

    Args:
        make, actors, check, timeout: as for ``replay``.
        bound: the highest number of preemptions.
        most: the highest number of orders.

    Returns:
        The different orders, with what was found. ``explore(...).verify()`` raises the simplest finding.

    Raises:
        InvalidInput: there are no actors.
    """
    began = time.monotonic()
    stage = _Player(make, actors, check, timeout)
    runs: dict[tuple[TraceStep, ...], Run] = {}
    pending: deque[tuple[tuple[tuple[int, str], ...], int]] = deque([((), 0)])
    while pending and len(runs) < most:
        schedule, spent = pending.popleft()
        run, choices = stage.play(schedule)
        if run.steps in runs:
            continue  # the preempting actor only went on waiting
        runs[run.steps] = run
        fresh = choices[schedule[-1][0] + 1 :] if schedule else choices
        for choice in fresh:
            price = spent + choice.preempts
            if price <= bound:
                pending.extend(((*schedule, (choice.step, other)), price) for other in choice.others)
    return Exploration(tuple(runs.values()), not pending, time.monotonic() - began)


def schedules(actors: Iterable[str], *, steps: int = 40, most: int = 4) -> SearchStrategy[list[tuple[int, str]]]:
    """Return a Hypothesis strategy of schedules for ``replay``. It shrinks to few and early preemptions.

    Args:
        actors: the names of the actors.
        steps: about how many steps a run has; preemptions are drawn among these.
        most: the highest number of preemptions.

    Raises:
        InvalidInput: there are no actors.
    """
    from hypothesis import strategies as st

    names = list(actors)
    if not names:
        raise InvalidInput("There are no actors.", why="A schedule names the actor that goes next.", fix="Give their names.")
    preemption = st.tuples(st.integers(0, max(steps - 1, 0)), st.sampled_from(names))
    return st.lists(preemption, max_size=most, unique_by=lambda drawn: drawn[0]).map(sorted)
