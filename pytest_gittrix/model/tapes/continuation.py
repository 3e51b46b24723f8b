"""Answers that are those of a tape up to one exchange, and somebody else's from there on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gittrix.model.answers.delivery import Planned, Source
from pytest_gittrix.model.answers.replies import ModelReply
from pytest_gittrix.model.protocols.values import Answer, Failure, Request
from pytest_gittrix.model.tapes.neutral import Json
from pytest_gittrix.model.tapes.placeholders import Known
from pytest_gittrix.model.tapes.player import Player, TapeMismatch
from pytest_gittrix.model.tapes.tape import Tape


class Continuation(Player):
    """Answers from a tape until it is used up, and has somebody else answer what follows.

    A request that the tape does not have follows it only in a conversation whose exchanges were all asked for, or in one that such a
    conversation may have begun. Anywhere else it is a difference from the tape.

    Args:
        tape: the exchanges before the one at which another way is taken.
        known: gives the placeholders of this machine and session.
        later: answers what follows.
        reached: called once, before the first answer of ``later``. What it raises is answered as an error.
        name, lenient: as for ``Player``.
    """

    def __init__(
        self,
        tape: Tape,
        known: Callable[[], Known],
        *,
        later: Source,
        reached: Callable[[], object] = lambda: None,
        name: str,
        lenient: bool = False,
    ) -> None:
        super().__init__(tape, known, name=name, again="", lenient=lenient)
        self._later, self._reached = later, reached
        self._openings = [_opening(one.form) for one in tape.exchanges]
        self.replayed = 0
        self.was_reached = False

    def __call__(self, request: Request) -> Planned | ModelReply | Answer | Failure | str:
        """The recorded answer, or that of whoever answers what follows. Raises TapeMismatch: it is neither."""
        left = len(self._order)
        found = super().__call__(request)
        if len(self._order) < left:
            self.replayed += 1
            if isinstance(self._later, Player):
                self._later.pass_over(self.form_of(request))
        return found

    def _unrecorded(self, form: dict[str, Json], request: Request) -> Planned | ModelReply | Answer | Failure | str:
        opening = _opening(form)
        unasked = [_opening(one.form) for one in self._order]
        begun_later = opening not in self._openings and (self.was_reached or not unasked)
        if opening in unasked or not (begun_later or opening in self._openings):
            problem = self._mismatch(form)
            raise TapeMismatch(
                problem.fact,
                why="The run is repeated up to the exchange at which another way is taken, and this is no repetition.",
                fix="Run the agent as it was run then: the same program, the same task, the same variables.",
                opt_out="Leniently (--lenient, lenient=True) words may differ, and calls and results may not.",
            )
        if not self.was_reached:
            self.was_reached = True
            self._reached()
        return self._later(request)

    def left_over(self) -> TapeMismatch | None:
        """The error for an agent that ended before it came to the exchange; else that of whoever answers what follows."""
        if self._order or not self.was_reached:
            return TapeMismatch(
                f"The agent ended before the exchange at which another way is taken: {self.replayed} of "
                f"{self.replayed + len(self._order)} exchanges before it were asked for.",
                why="It did less than when it was recorded.",
                fix="Run it as it was run then: the same program, the same task, the same variables.",
            )
        theirs: Any = getattr(self._later, "left_over", lambda: None)()
        return theirs if theirs is None or isinstance(theirs, TapeMismatch) else TapeMismatch(theirs.fact, why=theirs.why, fix=theirs.fix)


def _opening(form: Any) -> Json:
    return form["messages"][:1]
