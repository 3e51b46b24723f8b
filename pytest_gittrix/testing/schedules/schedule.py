"""Orders of actors: played from a short list, tried exhaustively up to a number of preemptions, or drawn and shrunk by Hypothesis.

One thread runs at a time; the others stand at named points (see ``points``). Whoever runs goes on running until it ends or waits, so
that an order is told by its exceptions: ``[(3, "B")]`` lets B go on at step 3 (RELIABILITY 2e). A choice for each step would say the same,
and would neither shrink nor fit on a line. It must not know what actors do, nor what is right.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from pytest_gittrix import points
from pytest_gittrix.errors import Deadlock, InvalidInput
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.schedules.actors import Actors, Outcome
from pytest_gittrix.testing.schedules.trace_table import Step, columns, ending

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from pytest_gittrix.git.commit import Commit
    from pytest_gittrix.git.tree import Entry

Schedule = Sequence[tuple[int, str]]
"""Who goes on at which step (from 0), where it is not the one that would anyway."""

W = TypeVar("W")
Make = Callable[[], AbstractContextManager[W]]
Act = Callable[[W], object]

_MOST_STEPS: Final = 10_000
_PATIENCE: Final = 0.1  # real seconds: who waits for something outside the actors may get it yet


@dataclass(frozen=True)
class Run:
    """One order that was played.

    Attributes:
        actors: their names, in the order they were given.
        schedule: the order; without what made no difference, so it may be shorter than what was asked for.
        steps: what happened.
        outcomes: how those ended that did end, by name.
        log: durable's commits afterwards, newest first; empty if the world has no ``durable``.
        tree: what durable held afterwards, by path.
        finding: what is wrong, or None.
    """

    actors: tuple[str, ...]
    schedule: tuple[tuple[int, str], ...]
    steps: tuple[Step, ...]
    outcomes: Mapping[str, Outcome]
    log: tuple[Commit, ...] = ()
    tree: Mapping[str, Entry] = field(default_factory=dict)
    finding: str | None = None

    @property
    def ending(self) -> str:
        """How everybody ended, on a line: ``A done, B BASELINE_CONFLICT``."""
        return ", ".join(f"{name} {ending(self.outcomes[name]) if name in self.outcomes else 'stuck'}" for name in self.actors)

    @property
    def turns(self) -> int:
        """How often somebody went on: the lines of the trace."""
        return sum(1 for _ in groupby(self.steps, lambda step: step.actor))

    @property
    def headline(self) -> str:
        """The finding on a line; how everybody ended, if there is none."""
        return (self.finding or self.ending).partition("\n")[0]

    def trace(self, *, full: bool = False) -> str:
        """A column for each actor, and the verdict below; ``full`` for a line for each point instead of one for each turn."""
        return columns(self.actors, self.steps, self.outcomes, self.finding or self.ending, full=full)

    def __str__(self) -> str:
        return f"{self.trace()}\n    schedule = {list(self.schedule)!r}"

    def verify(self) -> Self:
        """This run, if nothing is wrong with it.

        Raises:
            AssertionError: something is; the message is the trace, and the schedule that plays it again.
        """
        __tracebackhide__ = True
        if self.finding is not None:
            raise AssertionError(f"{self.headline}\n\n{self}\n")
        return self


@dataclass(frozen=True)
class Exploration:
    """What came of trying orders.

    Attributes:
        runs: each different order that was played, those with fewer exceptions first.
        complete: whether these are all there are within the bound.
        seconds: real time it took.
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
        """How often actors ended how: what was seen at all."""
        return Counter(run.ending for run in self.runs)

    def __str__(self) -> str:
        all_of = "" if self.complete else "the first "
        told = f"{all_of}{len(self.runs)} orders in {self.seconds:.1f} s, {len(self.findings)} wrong"
        return "\n".join([told, *(f"  {count:5} x {ends}" for ends, count in self.endings.most_common())])

    def verify(self) -> Self:
        """This exploration, if nothing was found.

        Raises:
            AssertionError: something was; the message has the simplest order in which it happens.
        """
        __tracebackhide__ = True
        for run in self.findings[:1]:
            raise AssertionError(f"{run.headline} (so in {len(self.findings)} of {len(self.runs)} orders)\n\n{run}\n")
        return self


class _Stage(Generic[W]):
    """What stays the same from one order to the next."""

    def __init__(self, make: Make[W], actors: Mapping[str, Act[W]], check: Callable[[W, Run], object] | None, timeout: float):
        if not actors:
            raise InvalidInput("There are no actors.", why="Nobody could go on.", fix="Give at least one: actors={'A': lambda world: ...}.")
        self.make, self.actors, self.check, self.timeout = make, actors, check, timeout

    def play(self, schedule: Schedule) -> tuple[Run, list[_Choice]]:
        """One order in a fresh world."""
        names = tuple(self.actors)
        with self.make() as world:
            with Actors({name: partial(act, world) for name, act in self.actors.items()}, timeout=self.timeout) as actors:
                table = _Table(actors, names, dict(schedule))
                with points.listening(actors.pause):
                    finding = table.play()
            durable = getattr(world, "durable", None)
            log, tree = (tuple(durable.log()), dict(durable.tree())) if isinstance(durable, DurableRepo) else ((), {})
            run = Run(names, tuple(table.taken), tuple(table.steps), actors.outcomes, log, tree, finding)
            return self._judged(world, run), table.choices

    def _judged(self, world: W, run: Run) -> Run:
        if self.check is None or run.finding is not None:
            return run
        try:
            self.check(world, run)
        except AssertionError as error:
            return replace(run, finding=_said(error))
        except Exception as error:
            error.add_note(f"The check failed to run, after:\n{run}")
            raise
        return run


def _said(error: AssertionError) -> str:
    """What a check says. What pytest adds below a message tells of objects, differently in each order: the message alone is shown."""
    said, _, added = str(error).partition("\nassert ")
    return said if added else str(error).partition("\n +")[0] or "The check failed."


@dataclass(frozen=True, slots=True)
class _Choice:
    """Who else could have gone on at a step, and whether that would have cut the turn of somebody short."""

    step: int
    others: tuple[str, ...]
    preempts: bool


class _Table:
    """One order as it is played.

    Who came to a ``:busy`` point waits, and is asked again only once somebody else has got on.
    """

    def __init__(self, actors: Actors, names: Sequence[str], wanted: Mapping[int, str]) -> None:
        self.steps: list[Step] = []
        self.choices: list[_Choice] = []
        self.taken: list[tuple[int, str]] = []
        self._actors = actors
        self._wanted = wanted
        self._alive = list(names)  # who ran last is first
        self._waiting: set[str] = set()
        self._asked: set[str] = set()

    def play(self) -> str | None:
        """Let everybody go on to the end; what went wrong, if anything did."""
        while self._alive:
            if len(self.steps) == _MOST_STEPS:
                return f"ENDLESS: {_MOST_STEPS} steps, and {' and '.join(self._alive)} still under way"
            able = [name for name in self._alive if name not in self._asked]
            problem = self._go(*self._chosen(able)) if able else self._wait()
            if problem is not None:
                return problem
        return None

    def _chosen(self, able: list[str]) -> tuple[str, _Choice]:
        usual = next((name for name in able if name not in self._waiting), able[0])
        wanted = self._wanted.get(len(self.steps), usual)
        under_way = bool(self.steps) and self.steps[-1].point is not None and not self.steps[-1].waits
        choice = _Choice(len(self.steps), tuple(name for name in able if name != usual), preempts=under_way)
        return wanted if wanted in able else usual, choice

    def _go(self, name: str, choice: _Choice) -> str | None:
        problem = None
        try:
            step = Step(name, self._actors.step(name))
        except Deadlock as stuck:
            return f"DEADLOCK: {stuck.fact}"
        except Exception as error:
            if name not in self._actors.outcomes:
                raise
            step, problem = Step(name, None), f"BROKEN: {name} raised {type(error).__name__}: {error}"
        if step.waits and name in self._waiting:
            self._asked.add(name)
            return None
        if name in choice.others:
            self.taken.append((choice.step, name))
        self.steps.append(step)
        self.choices.append(choice)
        self._got_on(step)
        return problem

    def _got_on(self, step: Step) -> None:
        self._asked = {step.actor} if step.waits else set()
        (self._waiting.add if step.waits else self._waiting.discard)(step.actor)
        self._alive.remove(step.actor)
        if step.point is not None:
            self._alive.insert(0, step.actor)

    def _wait(self) -> str | None:
        """Everybody waits: for each other, unless somebody gets what it waits for within a moment."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for name in tuple(self._alive):
                before = len(self.steps)
                problem = self._go(name, _Choice(before, (), False))
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
    """Play one order.

    Args:
        schedule: who goes on at which step, where it is not the one that would anyway: whoever ran last and neither ended nor waits, and
            at first the first actor. What names somebody who cannot go on, or a step that never comes, makes no difference.
        make: opens a fresh world; a context manager.
        actors: what each does in that world. A ``GittrixError`` that one raises is an outcome, anything else a finding.
        check: judges the world and the run afterwards, by raising AssertionError. It is not asked if there is a finding already.
        timeout: real seconds that an actor may take from one point to the next.

    Returns:
        The run. It may have a finding: ``replay(...).verify()`` raises it.

    Raises:
        InvalidInput: there are no actors, or the schedule names one there is not.
    """
    unknown = [name for _, name in schedule if name not in actors]
    if unknown:
        raise InvalidInput(
            f"There is no actor {unknown[0]!r}.", why="A schedule says which actor goes on.", fix=f"Actors: {', '.join(actors)}."
        )
    return _Stage(make, actors, check, timeout).play(schedule)[0]


def explore(
    make: Make[W],
    *,
    actors: Mapping[str, Act[W]],
    bound: int = 2,
    check: Callable[[W, Run], object] | None = None,
    most: int = 10_000,
    timeout: float = 5.0,
) -> Exploration:
    """Play every order of the actors in which at most ``bound`` times somebody is cut short in the middle.

    Who starts, and who goes on when another has ended or waits, is free: all of that is tried. Most races need one preemption or two
    (Musuvathi and Qadeer, "Iterative context bounding", 2007), and the number of orders grows with the power of the bound.

    Args:
        make, actors, check, timeout: as for ``replay``.
        bound: how many preemptions.
        most: stop after so many orders.

    Returns:
        Every order that differs from the others, with what was found. ``explore(...).verify()`` raises the simplest finding.

    Raises:
        InvalidInput: there are no actors.
    """
    began = time.monotonic()
    stage = _Stage(make, actors, check, timeout)
    runs: dict[tuple[Step, ...], Run] = {}
    pending: deque[tuple[tuple[tuple[int, str], ...], int]] = deque([((), 0)])
    while pending and len(runs) < most:
        schedule, spent = pending.popleft()
        run, choices = stage.play(schedule)
        if run.steps in runs:
            continue  # whoever was let go on only went on waiting
        runs[run.steps] = run
        fresh = choices[schedule[-1][0] + 1 :] if schedule else choices
        for choice in fresh:
            price = spent + choice.preempts
            if price <= bound:
                pending.extend(((*schedule, (choice.step, other)), price) for other in choice.others)
    return Exploration(tuple(runs.values()), not pending, time.monotonic() - began)


def schedules(actors: Iterable[str], *, steps: int = 40, most: int = 4) -> SearchStrategy[list[tuple[int, str]]]:
    """A Hypothesis strategy of schedules for ``replay``, drawn whole before anything runs. It shrinks to few and early preemptions.

    Args:
        actors: their names.
        steps: how many steps a run has, about; preemptions fall among these.
        most: how many preemptions.

    Raises:
        InvalidInput: there are no actors.
    """
    from hypothesis import strategies as st

    names = list(actors)
    if not names:
        raise InvalidInput("There are no actors.", why="A schedule says which actor goes on.", fix="Give their names.")
    preemption = st.tuples(st.integers(0, max(steps - 1, 0)), st.sampled_from(names))
    return st.lists(preemption, max_size=most, unique_by=lambda chosen: chosen[0]).map(sorted)
