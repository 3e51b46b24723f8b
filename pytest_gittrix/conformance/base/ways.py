"""Plays a clause in the three ways in which a person works on durable: by a push, at the desk, and in a bare repository.

A push leaves the checkout of durable behind, and some systems refuse to touch such a checkout. That refusal says nothing about drift, so
that the other two ways say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import pytest

from pytest_gittrix.conformance.base.expect import IN_THE_WAY
from pytest_gittrix.conformance.base.outcome import ClauseEnd, ClauseFailure, Status, end_as, incomplete_refusals_last
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.repos.journal import Journal, VerbCall
from pytest_gittrix.testing.systems.driver import Stage


class Way(StrEnum):
    """How a person works on durable, as a sentence."""

    PUSH = "The person pushes, and the checkout stays behind."
    DESK = "The person commits in the checkout."
    BARE = "The repository is bare, and the person pushes."


@dataclass(frozen=True)
class PlayedWay:
    """One way of the three.

    Attributes:
        stage: a stage of its own.
        way: the way.
    """

    stage: Stage
    way: Way

    @property
    def person(self) -> DurableRepo:
        """The person's hands: those of the owner at the desk, those of a second person elsewhere."""
        return self.stage.durable if self.way is Way.DESK else self.stage.rival


Play = Callable[[PlayedWay], None]
_NOTHING: Final = -1


@dataclass
class _Worst:
    """The worst end of several plays, with its journal; the first of those that are equally bad."""

    rank: int = _NOTHING
    error: BaseException | None = None
    journal: Journal = field(default_factory=Journal)

    def take(self, error: BaseException, journal: Journal) -> None:
        """Keep an end if it is worse than all before."""
        rank = _rank(error)
        if rank > self.rank:
            self.rank, self.error, self.journal = rank, error, Journal()
            self.journal.take_over(journal)


def in_three_ways(stage: Stage, files: Mapping[str, Any], play: Play) -> None:
    """Play a clause in each way, and end as the worst play did.

    A clause is kept if it is kept in one way at least, and broken in none.

    Args:
        stage: the clause's stage, which is that of the push.
        files: what durable holds at first.
        play: the clause.

    Raises:
        ClauseEnd: no play has a verdict.
        Exception: what the worst play raised.
    """
    __tracebackhide__ = True
    worst, kept = _Worst(), False
    for way in Way:
        try:
            with _staged(stage, way, files) as there:
                _played(PlayedWay(there, way), play)
        except (Exception, pytest.fail.Exception, ClauseEnd) as error:
            if isinstance(error, pytest.skip.Exception) and not isinstance(error, ClauseEnd):
                raise
            worst.take(error, stage.journal)
        else:
            kept = True
    if worst.error is None or (kept and worst.rank == _rank(ClauseEnd(Status.NO_VERDICT, ""))):
        return
    stage.journal.take_over(worst.journal)
    raise worst.error


@contextmanager
def _staged(stage: Stage, way: Way, files: Mapping[str, Any]) -> Iterator[Stage]:
    if way is Way.PUSH:
        stage.journal.setting = way
        try:
            yield stage
        except BaseException:
            stage.note_end()
            raise
        return
    with stage.another(files=files, bare=way is Way.BARE) as there:
        there.journal.setting = way
        yield there
        stage.journal.met.update(there.journal.refusals())


def _played(scene: PlayedWay, play: Play) -> None:
    __tracebackhide__ = True
    try:
        with incomplete_refusals_last():
            play(scene)
    except ClauseFailure as failure:
        if failure.status is Status.INCOMPLETE_REFUSAL and scene.way is Way.PUSH and _of_the_checkout(scene.stage.journal):
            end_as(Status.NO_VERDICT, f"it was refused for the checkout that a push had left behind: {failure}")
        raise


def _of_the_checkout(journal: Journal) -> bool:
    """Whether the last refusal was for a checkout."""
    refusals = [step.error for step in journal.steps if isinstance(step, VerbCall) and step.error is not None]
    return bool(refusals) and getattr(refusals[-1], "code", None) in IN_THE_WAY


def _rank(error: BaseException) -> int:
    """How bad the end of a play is."""
    if isinstance(error, ClauseEnd):
        return 0
    if isinstance(error, ClauseFailure) and error.status is Status.INCOMPLETE_REFUSAL:
        return 1
    return 3 if isinstance(error, ClauseFailure) and error.lost else 2
