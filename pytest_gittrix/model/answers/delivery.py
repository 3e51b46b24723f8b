"""Who gets which answer: a right one for each exchange, and again for whoever did not get it.

Clients ask again when an answer does not come. A request that is sent again is equal to the first one, so that neither its contents nor its
number tells what it is: what became of the last answer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from threading import RLock
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
                f"The script of the model is used up: after {self._answered} of {self._answered} answers it was asked for one more.",
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


@dataclass
class _Turn:
    """What one conversation got last.

    Attributes:
        right: the right reply.
        asked: the request that it is for.
        waiting: the faults that happen before it comes.
        left: how often the first of them still happens; None for each time.
        spoiled: what went wrong with what was sent last; None for nothing.
        lost: whether that did not reach whoever asked.
        listens: tells whether whoever asked still listens, as long as the answer is on its way; None once it is sent.
        only_late: whether it was right, and came late.
    """

    right: ModelReply
    asked: Request
    waiting: list[AnswerFault]
    left: int | None = None
    spoiled: AnswerFault | None = None
    lost: bool = False
    listens: Callable[[], bool] | None = None
    only_late: bool = False

    def has_come(self, request: Request) -> bool:
        """Whether a request shows that whoever sends it had the last right answer, or has no use for it."""
        if self.spoiled is None or self.only_late:
            gave_up = self.lost or (self.listens is not None and not self.listens())
            return not (gave_up and same_conversation(request, self.asked))
        content = self.right.content
        if self.spoiled.seen_as != "part" or not isinstance(content, Answer):
            return False
        if not content.calls:
            return not same_conversation(request, self.asked)
        return {one.id for one in content.calls} <= {one.id for one in request.results}

    def send(self, request: Request, listens: Callable[[], bool] | None) -> ModelReply:
        """What is sent now: the right reply, or the next fault in its place, which has happened once more then."""
        self.asked, self.listens = request, listens
        self.spoiled, self.lost, self.only_late = None, False, False
        if not self.waiting:
            return self.right
        fault = self.spoiled = self.waiting[0]
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.waiting.pop(0)
                self.left = self.waiting[0].times if self.waiting else None
        sent = fault.apply(request, self.right)
        self.only_late = sent.stall > 0
        return sent


class Delivery:
    """The exchanges of one answerer. Each conversation has a last answer of its own, since several may go on at the same time.

    Args:
        answerer: who answers. One that has ``concurrent`` set is asked by several conversations at once, any other one by one at a time.
        next_fault: gives what goes wrong with the exchange that begins, in addition to what the answerer itself plans; None for nothing.

    Attributes:
        number: of the exchange that was answered last, from 1; one that is asked for again has the same.
    """

    def __init__(self, answerer: Source, next_fault: Callable[[ModelReply, Request], AnswerFault | None] | None = None) -> None:
        self._answerer = answerer
        self._next_fault = next_fault
        self._lock = RLock()
        self._turns: dict[str, _Turn] = {}
        self.number = 0

    def reply(self, request: Request, listens: Callable[[], bool] | None = None) -> tuple[ModelReply, AnswerFault | None]:
        """What is sent for a request, and what is wrong with it on purpose. Raises what the answerer raises.

        Args:
            request: the request.
            listens: tells whether whoever asked still listens.
        """
        with nullcontext() if getattr(self._answerer, "concurrent", False) else self._lock:
            turn = self._turns.get(request.conversation)
            if turn is None or turn.has_come(request):
                turn = self._turns[request.conversation] = self._begun(request)
            return turn.send(request, listens), turn.spoiled

    def _begun(self, request: Request) -> _Turn:
        given = self._answerer(request)
        planned = given if isinstance(given, Planned) else Planned(reply_of(given))
        with self._lock:
            self.number += 1
        right = _with_ids(planned.reply, request)
        fault = None if self._next_fault is None else self._next_fault(right, request)
        waiting = [*planned.faults, *([] if fault is None else [fault])]
        return _Turn(right, request, waiting, waiting[0].times if waiting else None)

    def sent(self, request: Request, *, lost: bool) -> None:
        """Say that the last reply to a request was sent, or that it did not reach whoever asked."""
        turn = self._turns.get(request.conversation)
        if turn is not None and turn.asked is request:
            turn.lost, turn.listens = lost, None


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
