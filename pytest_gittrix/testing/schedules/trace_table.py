"""Draws what several actors did, one at a time, as a table: a column for each actor, ``|`` while it stands still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.testing.schedules.actors import WAITING, Outcome

_STANDS: Final = "|"
_SHORT: Final = 2


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
