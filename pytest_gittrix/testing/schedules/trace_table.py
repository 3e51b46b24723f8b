"""An order in which several actors went on, one at a time: its choices, its verdict, and the table that shows it.

The table has a column for each actor, with ``|`` while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Generic, Self, TypeVar

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.testing.schedules.actors import WAITING, Outcome

_STANDS: Final = "|"
_SHORT: Final = 2


A = TypeVar("A", int, str)
Order = TypeVar("Order", bound="PlayedOrder")


@dataclass(frozen=True, slots=True)
class TurnChoice(Generic[A]):
    """The other actors that could have gone on at a step, and whether one of them would have preempted the actor that ran."""

    step: int
    others: tuple[A, ...]
    preempts: bool


class PlayedOrder:
    """One order that was played, with what is wrong with it (``finding``; None if nothing is) and how the actors ended."""

    finding: str | None

    @property
    def ending(self) -> str:
        """How the actors ended, on a line."""
        raise NotImplementedError

    @property
    def headline(self) -> str:
        """The finding on a line; how the actors ended, if there is none."""
        return (self.finding or self.ending).partition("\n")[0]

    def with_finding(self, finding: str) -> Self:
        """Return this order with what is wrong with it."""
        return replace(self, finding=finding)  # type: ignore[type-var]

    def verify(self) -> Self:
        """Return this order if nothing is wrong with it.

        Raises:
            AssertionError: something is wrong; the message is the trace, and the list that plays it again.
        """
        __tracebackhide__ = True
        if self.finding is not None:
            raise AssertionError(f"{self.headline}\n\n{self}\n")
        return self


def checked(order: Order, check: Callable[[Order], object]) -> Order:
    """Have a check look at an order in which nothing is wrong so far; gives the order with what the check found."""
    if order.finding is not None:
        return order
    try:
        check(order)
    except AssertionError as error:
        # What pytest adds below the message names objects, which differ from order to order.
        message, _, added = str(error).partition("\nassert ")
        return order.with_finding((message if added else message.partition("\n +")[0]) or "The check failed.")
    except Exception as error:
        error.add_note(f"The check failed to run, after:\n{order}")
        raise
    return order


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step: an actor went on until something stopped it.

    Attributes:
        actor: the name of the actor.
        point: the point it came to, or None if it ended.
    """

    actor: str
    point: str | None

    @property
    def waits(self) -> bool:
        """Whether the actor waits for another one at this point."""
        return self.point is not None and self.point.endswith(WAITING)


def ending(outcome: Outcome) -> str:
    """Return how an actor ended, in a word: ``done``, the code of a ``GittrixError``, or the type of any other error."""
    if outcome.error is None:
        return "done"
    return outcome.error.code if isinstance(outcome.error, GittrixError) else type(outcome.error).__name__


def columns(actors: Sequence[str], steps: Sequence[TraceStep], outcomes: Mapping[str, Outcome], verdict: str, *, full: bool = False) -> str:
    """Draw the table of a run.

    Args:
        actors: the names of the columns, from left to right.
        steps: what happened, in order.
        outcomes: how actors ended, by name.
        verdict: the last line.
        full: a line for each point that was reached; otherwise one for each turn, from its first point to its last.
    """
    turns = list(_turns(steps, outcomes))
    lines = [(actor, text) for actor, points in turns for text in (points if full else [_in_short(points)])]
    widths = [max(len(name), *(len(text) for actor, text in lines if actor == name), 1) for name in actors]
    cells = [[text if actor == name else _STANDS for name in actors] for actor, text in lines]
    rows = [("", actors), *((str(number), row) for number, row in enumerate(cells, 1))]
    drawn = [f"{number:>3} " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for number, row in rows]
    return "\n".join([*(line.rstrip() for line in drawn), "    => " + verdict.replace("\n", "\n       ")])


def _turns(steps: Sequence[TraceStep], outcomes: Mapping[str, Outcome]) -> Iterator[tuple[str, list[str]]]:
    """Yield each turn: the actor, and the names of the points that it reached."""
    begun: set[str] = set()
    for actor, turn in groupby(steps, lambda step: step.actor):
        points = [_name(step, outcomes) for step in turn]
        yield actor, points if actor in begun else ["start", *points]
        begun.add(actor)


def _name(step: TraceStep, outcomes: Mapping[str, Outcome]) -> str:
    return step.point if step.point is not None else ending(outcomes[step.actor])


def _in_short(points: list[str]) -> str:
    return ", ".join(points) if len(points) <= _SHORT else f"{points[0]} .. {points[-1]}"
