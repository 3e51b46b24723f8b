"""Answers from a tape, by what is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.model.answers.delivery import Planned, Source
from pytest_gittrix.model.answers.replies import ModelReply
from pytest_gittrix.model.protocols.values import Answer, Failure, Request
from pytest_gittrix.model.tapes.matching import first_difference, key_of, lenient_form, normal_form
from pytest_gittrix.model.tapes.neutral import Json
from pytest_gittrix.model.tapes.placeholders import Known
from pytest_gittrix.model.tapes.tape import Recorded, Tape


class TapeMismatch(GittrixError):
    """An agent asked what its tape does not have."""

    code = "MODEL_TAPE"


class Player:
    """Answers from a tape: equal requests get their answers in order, and any other request none.

    Args:
        tape: the tape.
        known: gives the placeholders of this machine and test.
        name: of the tape, for messages.
        again: the line that records it again.
        lenient: whether only roles, tools offered, calls and results are compared.
        otherwise: answers what the tape does not have; an error by default.
    """

    def __init__(
        self,
        tape: Tape,
        known: Callable[[], Known],
        *,
        name: str,
        again: str,
        lenient: bool = False,
        otherwise: Source | None = None,
    ) -> None:
        self._otherwise = otherwise
        self._known, self._name, self._again = known, name, again
        self._form = lenient_form if lenient else dict
        self._waiting: dict[str, list[Recorded]] = defaultdict(list)
        self._order: list[Recorded] = [*tape.exchanges]
        for one in tape.exchanges:
            self._waiting[key_of(self._form(one.form))].append(one)

    def __call__(self, request: Request) -> Planned | ModelReply | Answer | Failure | str:
        """The recorded answer, or that of ``otherwise``. Raises as ``recorded``, if there is no ``otherwise``."""
        form = self.form_of(request)
        found = self._taken(form)
        return self._unrecorded(form, request) if found is None else ModelReply(found.answer(self._known()), origin="tape")

    def recorded(self, request: Request) -> Answer | Failure:
        """The recorded answer.

        Raises:
            TapeMismatch: none is recorded. It names the first leaf that differs.
        """
        form = self.form_of(request)
        found = self._taken(form)
        if found is None:
            raise self._mismatch(form)
        return found.answer(self._known())

    @property
    def waiting(self) -> tuple[Recorded, ...]:
        """What was not asked for yet, in order."""
        return tuple(self._order)

    def form_of(self, request: Request) -> dict[str, Json]:
        """A request as tapes have it."""
        return normal_form(request, self._known())

    def pass_over(self, form: Mapping[str, Json]) -> None:
        """Have an exchange count as asked for, if it is on the tape: whoever asked got the answer elsewhere."""
        self._taken(form)

    def _taken(self, form: Mapping[str, Json]) -> Recorded | None:
        """The next exchange of a request, which counts as asked for; None if there is none."""
        waiting = self._waiting.get(key_of(self._form(form)))
        if not waiting:
            return None
        found = waiting.pop(0)
        self._order.remove(found)
        return found

    def _unrecorded(self, form: dict[str, Json], request: Request) -> Planned | ModelReply | Answer | Failure | str:
        """The answer to a request that the tape does not have. Raises TapeMismatch: there is none."""
        if self._otherwise is not None:
            return self._otherwise(request)
        raise self._mismatch(form)

    def left_over(self) -> TapeMismatch | None:
        """The error for unused exchanges; None if there are none."""
        left = len(self._order)
        if not left:
            return None
        return TapeMismatch(
            f"{left} exchange{'s' * (left > 1)} of the tape {self._name} {'were' if left > 1 else 'was'} not asked for.",
            why="The agent did less than when it was recorded.",
            fix=f"If that is meant, record it again: {self._again}",
        )

    def _mismatch(self, form: Mapping[str, Json]) -> TapeMismatch:
        again = f"If that is meant, record it again: {self._again}"
        if not self._order:
            return TapeMismatch(
                f"The tape {self._name} is used up, and the agent asks for more.", why="It does more than when it was recorded.", fix=again
            )
        nearest = min(self._order, key=lambda one: (one.form["protocol"] != form["protocol"], self._order.index(one)))
        difference = first_difference(self._form(nearest.form), self._form(form))
        return TapeMismatch(
            f"The agent asks what the tape {self._name} does not have: {difference}",
            why="An answer to another question would be no test of this one.",
            fix=again,
            opt_out="--gittrix-model-lenient compares roles, tools, calls and results only.",
        )
