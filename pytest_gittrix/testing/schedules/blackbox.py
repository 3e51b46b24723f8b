"""Races between whole programs without instrumentation: process trees take turns at the calls that change files or ask for locks.

Each process tree stops at each such call, and the schedule says which one goes on. So a session system in any language can be raced, by its
command line or in a fork. Needs Linux, as ``supervisor``.

Steps are calls that change files, and flock. Reads are no steps: no other program is scheduled between two of them that have no change
between them. A program that waits in another way (fcntl locks, polling a file) counts as waiting when it sleeps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Final, Generic, Self, TypeVar

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.testing.faults.faults import FileCall
from pytest_gittrix.testing.faults.supervisor import StrPath, supported
from pytest_gittrix.testing.schedules.process_schedule import ProcessInterleaving, TurnScheduler
from pytest_gittrix.testing.schedules.process_stepper import Actor, Command, Ended, SteppedProcess
from pytest_gittrix.testing.schedules.trace_table import checked

__all__ = ["Command", "Ended", "Explored", "Intrusion", "ProcessInterleaving", "calls_of", "explore_processes", "interleave", "intrude"]

W = TypeVar("W")
Within = StrPath | Iterable[StrPath]


@dataclass(frozen=True)
class Intrusion:
    """The result of running one program in the middle of another.

    Attributes:
        action: how the held program ended.
        intruder: how the other program ended.
        held: the call at which the action was held; None if it ended before.
        waited: whether the intruder had to wait until the action went on.
        calls: the calls of the action, in order.
        intruder_calls: the calls of the intruder, in order.
        order: the whole order; ``print(intrusion.order)`` shows it.
    """

    action: Ended
    intruder: Ended
    held: FileCall | None
    waited: bool
    calls: tuple[FileCall, ...]
    intruder_calls: tuple[FileCall, ...]
    order: ProcessInterleaving


def intrude(action: Actor, intruder: Actor, *, at: int, within: Within = (), timeout: float = 60.0, patience: float = 0.15) -> Intrusion:
    """Hold a program in the middle of its work, let another one run, and then let the first go on.

    The intruder runs until it ends or waits, for instance for a lock that the action holds. Then the action goes on to its end, and the
    intruder is awaited. If the action ends before the ``at``-th call, the intruder runs after it.

    Args:
        action: a function, called in a fork of this process, or a program.
        intruder: the same.
        at: the action is held when it is about to make this one of its calls that change a file or ask for a lock; from 1.
        within: count only calls that concern a path below one of these; everywhere on disk if empty.
        timeout: seconds after which each is killed.
        patience: seconds of sleep after which a program counts as waiting.

    Raises:
        InvalidInput: ``at`` is less than 1, or an actor is empty.
        CapabilityMissing: supervision does not work here; ``supervisor.supported`` says why.
    """
    if at < 1:
        raise InvalidInput(f"at is {at}; calls are counted from 1", fix="calls_of() tells how many there are.")
    trees, order = _play([action, intruder], [], within, timeout, patience, enters=(at, 1))
    held = next((before.came_to for before, turn in zip(order.turns, order.turns[1:], strict=False) if turn.actor == 1), None)
    waited = any(turn.actor == 1 and turn.waits is not None for turn in order.turns)
    (first, second), (action_ended, intruder_ended) = trees, order.ended
    return Intrusion(action_ended, intruder_ended, held, waited, tuple(first.calls), tuple(second.calls), order)


def calls_of(action: Actor, *, within: Within = (), timeout: float = 60.0) -> int:
    """Run a program undisturbed, and count the calls at which `intrude` can hold it.

    Args:
        action, within, timeout: as for `intrude`.

    Raises:
        InvalidInput: it does not end well.
        CapabilityMissing: as for `intrude`.
    """
    [tree], order = _play([action], [], within, timeout, 1.0)
    [ended] = order.ended
    if ended.code is not None:
        raise InvalidInput(
            f"The action ended with {ended.code} although nothing disturbed it.",
            why="A race of a program that does not work would prove nothing.",
            fix=f"It says: {ended.text[-2000:]}",
        )
    return len(tree.calls)


def interleave(
    actors: Sequence[Actor],
    preemptions: Sequence[tuple[int, int]] = (),
    *,
    within: Within = (),
    timeout: float = 60.0,
    patience: float = 0.15,
) -> ProcessInterleaving:
    """Run programs one at a time, in one order.

    In a step one of them goes on: it starts, or makes the call it is held at, and runs to its next call. An actor goes on until it ends or
    waits; then the others follow, the one that ran last first. The first actor starts.

    Args:
        actors: functions, each called in a fork of this process, and programs.
        preemptions: ``(step, actor)``: which actor goes on at which step, from 0, where it is not the usual one. A preemption by an actor
            that cannot go on, or at a step that never comes, makes no difference.
        within: calls that concern no path below one of these are no steps; all on disk are if empty. Locks are waited for in turn wherever
            they are.
        timeout: seconds after which each is killed, from its start.
        patience: seconds of sleep after which an actor counts as waiting.

    Returns:
        What happened. ``DEADLOCK`` is a finding; how actors ended is not, see ``ended``.

    Raises:
        InvalidInput: there are no actors, one is empty, or ``preemptions`` names an unknown one.
        CapabilityMissing: supervision does not work here; ``supervisor.supported`` says why.
    """
    return _play(actors, preemptions, within, timeout, patience)[1]


@dataclass(frozen=True)
class Explored:
    """The result of exploring orders.

    Attributes:
        executions: how many orders were played.
        complete: whether these are all orders within the bound; False if one was wrong, which ends the exploration.
        seconds: the real time it took.
        missed: how often a preemption did not happen although an earlier order had the step for it: the program does not repeat itself.
        violation: the first order in which something is wrong, or None.
        left: how many orders were known and not played; playing them may show more.
    """

    executions: int
    complete: bool
    seconds: float
    missed: int
    violation: ProcessInterleaving | None
    left: int = 0

    def __str__(self) -> str:
        each = 1000 * self.seconds / max(self.executions, 1)
        summary = f"{'' if self.complete else 'the first '}{self.executions} orders in {self.seconds:.1f} s, {each:.0f} ms each"
        summary += f", {self.left} known and not played" if self.left else ""
        summary += f", {self.missed} not as foreseen" if self.missed else ""
        return f"{summary}: {'nothing wrong' if self.violation is None else self.violation.finding}"

    def verify(self) -> Self:
        """Return this exploration if nothing is wrong in any order.

        Raises:
            AssertionError: something is wrong; the message has its trace, and the list that plays it again.
        """
        __tracebackhide__ = True
        if self.violation is not None:
            raise AssertionError(f"{self.violation.headline} (in order {self.executions} of those tried)\n\n{self.violation}\n")
        return self


def explore_processes(
    make_world: Callable[[], AbstractContextManager[W]],
    actors: Callable[[W], Sequence[Actor]],
    check: Callable[[W, ProcessInterleaving], object],
    *,
    bound: int = 1,
    limit: int = 1000,
    seconds: float | None = None,
    within: Callable[[W], Within] = lambda _world: (),
    timeout: float = 60.0,
    patience: float = 0.15,
) -> Explored:
    """Play every order with at most ``bound`` preemptions, until something is wrong.

    Which actor starts, and which one goes on when another has ended or waits, is no preemption: all of that is tried. Orders that switch
    before a change of what several actors change, or of a reference, an index, HEAD or a lock, come first.

    Args:
        make_world: opens a fresh world; a context manager.
        actors: returns the actors in that world.
        check: checks the world and what happened, and raises AssertionError. Not called after a deadlock, which is wrong anyway.
        bound: the highest number of preemptions.
        limit: the highest number of orders.
        seconds: the time after which no further order is begun, once one was played; None for no end.
        within: which calls are steps in that world, as for `interleave`. The fewer, the fewer orders.
        timeout, patience: as for `interleave`.

    Raises:
        InvalidInput, CapabilityMissing: as for `interleave`.
    """
    search = OrderSearch(make_world, actors, bound=bound, limit=limit, seconds=seconds, within=within, timeout=timeout, patience=patience)
    violation = None
    with closing(search.orders()) as orders:
        for world, order in orders:
            found = checked(order, partial(check, world))
            if found.finding is not None:
                violation = found
                break
    return search.explored(violation)


class OrderSearch(Generic[W]):
    """The orders of some actors, for a caller that checks them itself. The arguments are those of `explore_processes`."""

    def __init__(
        self,
        make_world: Callable[[], AbstractContextManager[W]],
        actors: Callable[[W], Sequence[Actor]],
        *,
        bound: int = 1,
        limit: int = 1000,
        seconds: float | None = None,
        within: Callable[[W], Within] = lambda _world: (),
        timeout: float = 60.0,
        patience: float = 0.15,
    ) -> None:
        self._make_world, self._actors, self._within = make_world, actors, within
        self._bound, self._limit, self._seconds = bound, limit, seconds
        self._timeout, self._patience = timeout, patience
        self._began = real_seconds()
        self._pending: list[_Planned] = [(0, 0, 0, ())]
        self._played: set[tuple[str, ...]] = set()
        self._changed_by: dict[str, set[int]] = {}
        self._executions = self._missed = self._planned = 0

    def orders(self) -> Generator[tuple[W, ProcessInterleaving], None, None]:
        """Play the orders, and give each with its world, which is open until the next one is asked for.

        Raises:
            InvalidInput, CapabilityMissing: as for `interleave`.
        """
        while self._pending and self._executions < self._limit and not self._time_is_up():
            distance, spent, _, requested = heappop(self._pending)
            with self._make_world() as world:
                order = interleave(
                    self._actors(world), requested, within=self._within(world), timeout=self._timeout, patience=self._patience
                )
                self._executions += 1
                self._missed += len(order.missed)
                self._plan(order, distance, spent, requested)
                yield world, order

    def explored(self, violation: ProcessInterleaving | None = None) -> Explored:
        """What was explored so far; ``violation`` is the order in which the caller found something wrong."""
        complete = not self._pending and violation is None
        return Explored(self._executions, complete, real_seconds() - self._began, self._missed, violation, len(self._pending))

    def _time_is_up(self) -> bool:
        return self._executions > 0 and self._seconds is not None and real_seconds() - self._began >= self._seconds

    def _plan(self, order: ProcessInterleaving, distance: int, spent: int, requested: tuple[tuple[int, int], ...]) -> None:
        """Plan the orders that have one switch more than this one."""
        if order.preemptions != requested or order.points in self._played:
            return  # the preempting actor only went on waiting
        self._played.add(order.points)
        for turn in order.turns:
            if turn.did is not None and turn.did.path is not None:
                self._changed_by.setdefault(turn.did.path, set()).add(turn.actor)
        for choice in order.choices:
            price = spent + choice.preempts
            if price <= self._bound and (not requested or choice.step > requested[-1][0]):
                farther = distance + _distance(order, choice.step, self._changed_by)
                for other in choice.others:
                    self._planned += 1
                    heappush(self._pending, (farther, price, self._planned, (*requested, (choice.step, other))))


_Planned = tuple[int, int, int, tuple[tuple[int, int], ...]]
"""An order to play: how many of its switches are away from shared state, its price, when it was planned, and its preemptions."""

_STATE: Final = re.compile(r"(?:^|/)(?:HEAD|index|packed-refs|refs/.+|.+\.lock)$")


def _distance(order: ProcessInterleaving, step: int, changed_by: Mapping[str, set[int]]) -> int:
    """0 for a switch before a change of what several actors change, or of a reference, an index, HEAD or a lock; 1 for any other."""
    did = order.turns[step].did
    path = did.path if did is not None else None
    return 0 if path is not None and (len(changed_by[path]) > 1 or _STATE.search(path)) else 1


def _play(
    actors: Sequence[Actor],
    preemptions: Sequence[tuple[int, int]],
    within: Within,
    timeout: float,
    patience: float,
    enters: tuple[int, int] | None = None,
) -> tuple[list[SteppedProcess], ProcessInterleaving]:
    if not actors:
        raise InvalidInput(
            "There are no actors.", why="Without one there is nothing to run.", fix="Give at least one: a function or a command."
        )
    unknown = [actor for _, actor in preemptions if not 0 <= actor < len(actors)]
    if unknown:
        raise InvalidInput(f"There is no actor {unknown[0]}.", fix=f"Actors are 0 to {len(actors) - 1}, in the order they are given.")
    if timeout <= 0:
        raise InvalidInput(f"timeout is {timeout}; it must be more than 0 seconds")
    if (reason := supported()) is not None:
        raise CapabilityMissing(reason, fix="Skip with what testing.faults.supervisor.supported() returns.")
    paths: list[StrPath] = [within] if isinstance(within, str | os.PathLike) else [*within]
    roots = tuple(os.path.realpath(path) for path in paths)
    trees = [SteppedProcess(actor, roots, timeout) for actor in actors]
    scheduler = TurnScheduler(trees, dict(preemptions), patience, timeout, enters)
    try:
        finding = scheduler.play()
    finally:
        for tree in trees:
            tree.end()
    ended = tuple(tree.ended or Ended(code="KILLED") for tree in trees)
    root = os.path.commonpath(roots) if roots else ""
    missed = tuple(wanted for wanted in preemptions if wanted[0] not in scheduler.met)
    return trees, ProcessInterleaving(
        tuple(scheduler.taken), tuple(scheduler.turns), ended, tuple(scheduler.choices), missed, finding, root
    )
