"""The model of one sample: a server between its agent and whoever answers, which counts, records, replays and keeps to limits.

The agent reaches the server by the gateway of its confinement, and nothing else by that way. Keys stay in this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from pytest_gittrix.confine.network import ModelEndpoint
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.evals.models.plan import ModelPlan
from pytest_gittrix.evals.spending.model_limits import ModelLimits
from pytest_gittrix.evals.spending.prices import nothing_spent, spent_on
from pytest_gittrix.evals.spending.spent import Spent
from pytest_gittrix.model.answers.replies import ModelReply
from pytest_gittrix.model.conversations import side_answer, side_request
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.values import Answer, Failure, Request, Usage, estimated
from pytest_gittrix.model.server import ModelServer
from pytest_gittrix.model.tapes.placeholders import Known, days, known_here
from pytest_gittrix.model.tapes.player import Player, TapeMismatch
from pytest_gittrix.model.tapes.tape import Tape
from pytest_gittrix.model.tapes.upstream import Upstream

_SERVERS_OWN: Final = frozenset({401, 403, 408, 429})
"""Statuses below 500 that are no answer to what was asked: keys, quotas, time."""


@dataclass(frozen=True)
class ModelOfSample:
    """What the model of a sample is made of.

    Attributes:
        plan: that of the run.
        limits: what the agent may use of it.
        tape: the file that a replay answers from; None where servers are asked.
        name: of the sample, for messages.
        instant: the time of the sample's clock.
    """

    plan: ModelPlan
    limits: ModelLimits
    tape: Path | None
    name: str
    instant: datetime


class SampleModel:
    """A model's server for one sample. A context manager: it serves between entering and leaving.

    Args:
        made_of: what it is made of.
        session: the id of the sample's session.
        places: the names under which a tape has texts of this sample, such as ``{"workspace": "/tmp/x"}``.

    Attributes:
        spent: what was used so far.
        tape: what was said so far.
        over: the limit that was passed, in a sentence; empty if none was.
        drift: the first request that the tape does not have; None if there was none.
        outage: why the last exchange failed, if that is the server's failure; None if it did not.
        seconds: how long exchanges took.

    Raises:
        InvalidInput: the tape is missing, or cannot be read.
    """

    def __init__(self, made_of: ModelOfSample, session: str, places: Mapping[str, str]) -> None:
        self._limits, self._prices = made_of.limits, made_of.plan.prices
        self._session, self._places, self._instant = session, dict(places), made_of.instant
        self._server = ModelServer(now=made_of.instant.timestamp, answer_side_requests=False)
        self._server.answer_with(self)
        self._player: Player | None = None
        if made_of.tape is not None:
            self._player = Player(Tape.read(made_of.tape), self._known, name=f"of {made_of.name}", again="gittrix eval run --tape record")
        self._ask: Callable[[Request], Answer | Failure] = self._replay if self._player is not None else self._ask_server
        self._upstream = Upstream(servers=made_of.plan.servers)
        self._programs: list[Running] = []
        self._held = ExitStack()
        self._count = threading.Lock()
        self._waiting: list[Request] = []
        self.spent = nothing_spent(self._prices)
        self.tape = Tape()
        self.over = ""
        self.drift: TapeMismatch | None = None
        self.outage: GittrixError | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._held.enter_context(self._server)
        self._places |= {"model-url": self._server.url}
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def endpoint(self) -> ModelEndpoint:
        """The server as the agent's confined programs reach it."""
        return self._server.endpoint_for(self._session)

    @property
    def url(self) -> str:
        """The address for clients in this process."""
        return self.variables["ANTHROPIC_BASE_URL"]

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which programs that are not confined, and clients in this process, find the server."""
        return self._server.env(self._session)

    def admit(self, running: Running) -> None:
        """Take note of a program of the agent, which is ended when a limit is passed or a request drifts from the tape."""
        with self._count:
            self._programs.append(running)
        if self.ended_agent:
            running.kill()

    @property
    def ended_agent(self) -> bool:
        """Whether the agent was ended for what it asked."""
        return bool(self.over) or self.drift is not None

    @property
    def left_over(self) -> str:
        """What of the tape was not asked for, in a sentence; empty if nothing is. Side requests need not come again."""
        left = [] if self._player is None else [one for one in self._player.waiting if side_request(one.request) is None]
        many = len(left) > 1
        return f"{len(left)} exchange{'s' * many} of the tape {'were' if many else 'was'} not asked for" if left else ""

    @property
    def used(self) -> Spent:
        """What was used, with what the server was still busy with when the agent ended: its tokens are estimated."""
        with self._count:
            left = (spent_on(self._prices, one.model, estimated(one, Answer()), was_estimated=True) for one in self._waiting)
            return sum(left, self.spent)

    # Answering. A real server is asked by several conversations at once.

    concurrent = True

    def __call__(self, request: Request) -> ModelReply:
        """What the agent gets for a request.

        Raises:
            TapeMismatch: the tape does not have it.
            InvalidInput: no server may be asked for it, or what it costs is unknown and limited.
        """
        with self._count:
            over = self.over or self._limits.before_another(replace(self.spent, exchanges=self.spent.exchanges + len(self._waiting)))
            if not over:
                self._require_price(request.model)
                self._waiting.append(request)
        if over:
            return self._end(over)
        began = time.perf_counter()
        try:
            content = self._ask(request)
        finally:
            with self._count:
                self._waiting = [one for one in self._waiting if one is not request]
                self.seconds += time.perf_counter() - began
                over = self._limits.passed(self.spent)
        return self._end(over) if over else ModelReply(content)

    def _require_price(self, model: str) -> None:
        if self._limits.max_cost is None or (self._prices is not None and self._prices.of(model) is not None):
            return
        self.outage = InvalidInput(
            f"There is no price of the model {model!r}, so that max_cost cannot be kept.",
            why="It may cost anything.",
            fix="Add it to the file that --prices names.",
        )
        raise self.outage

    def _replay(self, request: Request) -> Answer | Failure:
        assert self._player is not None
        try:
            with self._count:
                content = self._player.recorded(request)
                self._note(request, content)
        except TapeMismatch as mismatch:
            side = side_request(request)
            if side is not None:
                return side_answer(side, request)
            with self._count:
                self.drift = self.drift or mismatch
            self._end_programs()
            raise
        return content

    def _ask_server(self, request: Request) -> Answer | Failure:
        try:
            content = self._upstream(request)
        except AdapterUnavailable as problem:
            # Clients ask again after this, as they do where a connection breaks.
            self.outage = problem
            return Failure.of_status(502, message=problem.fact)
        except GittrixError as problem:
            self.outage = problem
            raise
        with self._count:
            self._note(request, content)
        return content

    def _note(self, request: Request, content: Answer | Failure) -> None:
        usage, was_estimated = _usage_of(request, content)
        if isinstance(content, Answer):
            content = replace(content, usage=usage)
        self.tape.add(Exchange(len(self.tape.exchanges) + 1, request, content, usage), self._known())
        self.spent += spent_on(self._prices, request.model, usage, was_estimated=was_estimated)
        self.outage = _outage(content)

    def _end(self, over: str) -> ModelReply:
        """End the agent, which passed a limit."""
        with self._count:
            self.over = self.over or over
        self._end_programs()
        return ModelReply(Failure("invalid", message=f"This sample has reached its limit of {over}."))

    def _end_programs(self) -> None:
        with self._count:
            programs = [*self._programs]
        for program in programs:
            program.kill()

    def _known(self) -> Known:
        return known_here(tuple(self._places.items()), days(time.time(), self._instant.timestamp()))


def _usage_of(request: Request, content: Answer | Failure) -> tuple[Usage, bool]:
    """The tokens of an exchange, and whether they are estimated."""
    if isinstance(content, Failure):
        return Usage(), False
    if content.usage is not None and content.usage != Usage():
        return content.usage, False
    return estimated(request, content), True


def _outage(content: Answer | Failure) -> GittrixError | None:
    if isinstance(content, Answer) or (content.status < 500 and content.status not in _SERVERS_OWN):
        return None
    return AdapterUnavailable(
        f"The model's server failed: {content.status} {content.message}",
        why="The agent did not get its answer.",
        fix="See the state of the server and of its key, and run the sample again.",
    )
