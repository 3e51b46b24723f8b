"""Who gets which answer: a right one for each exchange, and again for whoever did not get it.

Clients ask again when an answer does not come. A request that is sent again is equal to the first one, so that neither its contents nor its
number tells what it is: what became of the last answer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.model.answers.faults import AnswerFault
from pytest_gittrix.model.answers.replies import ModelReply, reply_of
from pytest_gittrix.model.answers.script import LeftOver, ScriptEnded, Step, Turns, play
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Request


class ScriptFailed(GittrixError):
    """A model was asked for more than its script has, or for less, or for something else."""

    code = "MODEL_SCRIPT"


class Planned(NamedTuple):
    """A right reply, and what goes wrong before it comes."""

    reply: ModelReply
    faults: tuple[AnswerFault, ...] = ()


Source: TypeAlias = Callable[[Request], "Planned | ModelReply | Answer | Failure | str"]
"""Whoever answers: an answerer of a test, a script, a tape, a real server."""


class Script:
    """A script, as an answerer.

    Args:
        steps: what the model answers, in order.
    """

    def __init__(self, steps: Sequence[Step | str | AnswerFault | Answer | Sequence[Step]]) -> None:
        self._steps = steps
        self._turns: Turns | None = None
        self._answered = 0

    def __call__(self, request: Request) -> Planned:
        """The next answer.

        Raises:
            ScriptFailed: there is none.
        """
        faults: list[AnswerFault] = []
        try:
            if self._turns is None:
                self._turns = play(self._steps, request)
                given = next(self._turns)
            else:
                given = self._turns.send(request)
            while isinstance(given, AnswerFault):
                faults.append(given)
                given = self._turns.send(request)
        except StopIteration:
            if faults:
                # A fault at the end is an exchange of its own: no right answer follows it.
                return Planned(faults[-1].apply(request, ModelReply(Answer())), tuple(faults[:-1]))
            raise ScriptFailed(
                f"The script of the model is used up: it has {self._answered} answers, and was asked for one more.",
                why="The agent went on where the script ends.",
                fix="Add a step to the script, or see in the conversation why the agent did not stop.",
            ) from None
        self._answered += 1
        return Planned(reply_of(given), tuple(faults))

    def left_over(self) -> ScriptFailed | None:
        """The error for unused steps; None if there are none. The script is of no use after that."""
        left = self._steps_left()
        if not left:
            return None
        return ScriptFailed(
            f"{left} step{'s' * (left > 1)} of the model's script {'were' if left > 1 else 'was'} not asked for.",
            why="The agent ended before the script did, and what the script has left was not tested.",
            fix="Let the agent go on, or take the steps out of the script.",
        )

    def _steps_left(self) -> int:
        if self._turns is None:
            return len(self._steps)
        try:
            self._turns.throw(ScriptEnded())
        except LeftOver as left:
            return left.steps
        except (ScriptEnded, StopIteration):
            return 0
        return 0


class Delivery:
    """The exchanges of one answerer.

    Args:
        answerer: who answers.
        next_fault: gives what goes wrong with the exchange that begins, in addition to what the answerer itself plans; None for nothing.

    Attributes:
        number: of the exchange that was answered last, from 1; one that is asked for again has the same.
        spoiled: what went wrong with the last reply; None for nothing.
    """

    def __init__(self, answerer: Source, next_fault: Callable[[ModelReply, Request], AnswerFault | None] | None = None) -> None:
        self._answerer = answerer
        self._next_fault = next_fault
        self._right: ModelReply | None = None
        self._asked: Request | None = None
        self._waiting: list[AnswerFault] = []
        self._left: int | None = None
        self.spoiled: AnswerFault | None = None
        self._lost = self._only_late = False
        self.number = 0

    def reply(self, request: Request) -> ModelReply:
        """What is sent for a request. Raises what the answerer raises."""
        if self._right is None or self._has_come(request):
            given = self._answerer(request)
            planned = given if isinstance(given, Planned) else Planned(reply_of(given))
            self.number += 1
            self._right, self._waiting = _with_ids(planned.reply, request), [*planned.faults]
            fault = None if self._next_fault is None else self._next_fault(self._right, request)
            self._waiting += [] if fault is None else [fault]
            self._left = self._waiting[0].times if self._waiting else None
        self._asked, self.spoiled = request, None
        self._lost = self._only_late = False
        if not self._waiting:
            return self._right
        return self._spoil(self._waiting[0], self._right, request)

    def _spoil(self, fault: AnswerFault, right: ModelReply, request: Request) -> ModelReply:
        """What is sent instead of the right reply; the fault has happened once more."""
        self.spoiled = fault
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._waiting.pop(0)
                self._left = self._waiting[0].times if self._waiting else None
        sent = fault.apply(request, right)
        self._only_late = sent.stall > 0
        return sent

    def lost(self) -> None:
        """Say that the last reply did not reach whoever asked."""
        self._lost = True

    def _has_come(self, request: Request) -> bool:
        """Whether a request shows that whoever sends it had the last right answer, or has no use for it."""
        assert self._right is not None
        assert self._asked is not None
        content = self._right.content
        if self.spoiled is None or self._only_late:
            return not (self._lost and same_conversation(request, self._asked))
        if self.spoiled.seen_as != "part" or not isinstance(content, Answer):
            return False
        if not content.calls:
            return not same_conversation(request, self._asked)
        return {one.id for one in content.calls} <= {one.id for one in request.results}


def same_conversation(one: Request, other: Request) -> bool:
    """Whether two requests ask for the same: their messages are equal."""
    return one.protocol == other.protocol and one.messages == other.messages and one.system == other.system


def _with_ids(reply: ModelReply, request: Request) -> ModelReply:
    """A reply of which each call has an id. The ids follow from the length of the conversation, so that equal runs have equal ids."""
    if not isinstance(reply.content, Answer):
        return reply
    prefix = "toolu" if request.protocol == "anthropic" else "call"
    parts = [
        replace(part, id=f"{prefix}_{len(request.messages):04}_{number}") if isinstance(part, Call) and not part.id else part
        for number, part in enumerate(reply.content.parts)
    ]
    stop = "tool" if reply.content.calls and reply.content.stop == "end" else reply.content.stop
    return replace(reply, content=replace(reply.content, parts=tuple(parts), stop=stop))
