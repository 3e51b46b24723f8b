"""Who answers a request to a model: a tape, a script, a function of the test, or the real server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.model.answers.delivery import Delivery, Script, Source
from pytest_gittrix.model.answers.faults import AnswerFault
from pytest_gittrix.model.answers.replies import ModelReply
from pytest_gittrix.model.protocols.values import Request
from pytest_gittrix.model.tapes.player import Player

NextFault: TypeAlias = Callable[[ModelReply, Request], AnswerFault | None]
"""Gives what goes wrong with an exchange that begins; None for nothing."""


class AnswerRule:
    """Who answers which conversations.

    Args:
        about: a text of their first message; None for all.
        make: makes the answerer, in its first state.
        next_fault: as ``Delivery`` takes it.
        session: the id of the session whose programs it answers alone; None for all.
    """

    def __init__(
        self, about: str | None, make: Callable[[], Source], next_fault: NextFault | None = None, session: str | None = None
    ) -> None:
        self.about = about
        self.session = session
        self.make = make
        self.answerer = make()
        self.delivery = Delivery(self.answerer, next_fault)
        self.was_replayed = False

    def fits(self, request: Request) -> bool:
        """Whether it is for a request."""
        return self.about is None or self.about in request.opening

    def left_over(self) -> GittrixError | None:
        """The error for unused steps; None if there is none. A replay need not use all."""
        if (self.was_replayed and not self.delivery.number) or not isinstance(self.answerer, (Script, Player)):
            return None
        return self.answerer.left_over()

    def restarted(self, next_fault: NextFault | None) -> AnswerRule:
        """The rule in its first state."""
        self.was_replayed = True
        return AnswerRule(self.about, self.make, next_fault, self.session)


class Answerers:
    """Who answers, in this order: whoever a session has for itself, the tape, the script or function given last that fits, the real server.

    Attributes:
        tape: what plays a tape, and answers alone; None without one.
        server: what asks the real server; None without one.
    """

    def __init__(self, rules: Sequence[AnswerRule] = (), tape: AnswerRule | None = None, server: AnswerRule | None = None) -> None:
        self._rules = [*rules]
        self._of_sessions: list[AnswerRule] = []
        self.tape = tape
        self.server = server

    def add(self, rule: AnswerRule) -> None:
        """Add who answers before all others."""
        (self._rules if rule.session is None else self._of_sessions).insert(0, rule)

    def without_the_tape(self, request: Request) -> AnswerRule | None:
        """The rule that answers a request if the tape does not."""
        return next((rule for rule in self._rules if rule.fits(request)), self.server)

    def of_any_session(self, request: Request) -> AnswerRule | None:
        """The rule that answers a request, whatever session it is of."""
        return self.tape or self.without_the_tape(request)

    def for_request(self, request: Request, session: str | None) -> Delivery | None:
        """The delivery that answers a request of a session."""
        own = (one for one in self._of_sessions if session is not None and one.session == session)
        rule = next(own, None) or self.of_any_session(request)
        return None if rule is None else rule.delivery

    def left_over(self) -> GittrixError | None:
        """The error for unused steps; None if there is none. Scripts and tapes are of no use after that."""
        duties = [self.tape] if self.tape is not None else self._rules
        found = [rule.left_over() for rule in [*self._of_sessions, *duties]]
        self._of_sessions = []
        self._rules = [rule for rule in self._rules if not isinstance(rule.answerer, Script)]
        self.tape = None
        return next((one for one in found if one is not None), None)

    def restarted(self, next_fault: NextFault | None) -> Answerers:
        """All in their first state."""
        tape = None if self.tape is None else self.tape.restarted(next_fault)
        server = None if self.server is None else self.server.restarted(next_fault)
        again = Answerers([rule.restarted(next_fault) for rule in self._rules], tape, server)
        again._of_sessions = [rule.restarted(next_fault) for rule in self._of_sessions]
        return again
