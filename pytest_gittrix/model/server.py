"""A model's server on this machine's loopback, which is moved by whoever tests an agent.

It speaks the four protocols to clients of any language, and asks an answerer what to say. Nothing of it reaches further than this machine.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from pytest_gittrix.confine.network import ModelEndpoint
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.model.answerers import Answerers, AnswerRule, NextFault
from pytest_gittrix.model.answers.delivery import Delivery, Planned, Script, ScriptFailed, Source
from pytest_gittrix.model.answers.faults import AnswerFault
from pytest_gittrix.model.answers.replies import ModelReply
from pytest_gittrix.model.answers.script import Step
from pytest_gittrix.model.bodies import texts_in
from pytest_gittrix.model.conversations import Conversation, readable, side_answer, side_request
from pytest_gittrix.model.http import LONGEST_STALL, ModelHandler
from pytest_gittrix.model.listener import LoopbackListener
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.responses import response_id
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Message, Request, Usage, estimated
from pytest_gittrix.model.tapes.continuation import Continuation
from pytest_gittrix.model.tapes.neutral import placed_here
from pytest_gittrix.model.tapes.placeholders import Known, days, known_here
from pytest_gittrix.model.tapes.player import Player, TapeMismatch
from pytest_gittrix.model.tapes.tape import Tape
from pytest_gittrix.model.tapes.upstream import Upstream

KEY: Final = "key-of-a-test"
"""The key that clients are given. The server takes any."""

_VARIABLES: Final = (
    ("ANTHROPIC_BASE_URL", "{url}"),
    ("ANTHROPIC_API_KEY", KEY),
    ("OPENAI_BASE_URL", "{url}/v1"),
    ("OPENAI_API_BASE", "{url}/v1"),
    ("OPENAI_API_KEY", KEY),
    ("GOOGLE_GEMINI_BASE_URL", "{url}"),
    ("GEMINI_API_KEY", KEY),
)

TapeMode = Literal["replay", "once", "new", "rewrite", "live"]
TAPE_MODES: Final[tuple[TapeMode, ...]] = get_args(TapeMode)


@dataclass
class _State:
    exchanges: list[Exchange] = field(default_factory=list)
    problems: list[GittrixError] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    deliveries: dict[int, Delivery] = field(default_factory=dict)


class ModelServer:
    """A server of a model. A context manager: it serves between entering and leaving.

    Args:
        now: gives the time of its answers, in seconds since 1970; this machine's if nothing is said.
        on_exchange: is called with each exchange when its answer is sent, on the server's thread.
        on_request: is called with each request of the work, and the id of its session if there is one, before it is answered; gives the
            tree of the session's files.
        places: gives the names under which a tape has texts of this run, such as ``{"workspace": "/tmp/x"}``.
        answer_side_requests: whether side requests, such as for titles, are answered by a rule; else they are answered as all others are.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.time,
        on_exchange: Callable[[Exchange], None] | None = None,
        on_request: Callable[[Request, str | None], str | None] | None = None,
        places: Callable[[], Mapping[str, str]] = dict,
        answer_side_requests: bool = True,
    ) -> None:
        self._answers_sides = answer_side_requests
        self._places = places
        self._recording: Path | None = None
        self._recorded_before = 0
        self._now = now
        self._on_exchange = on_exchange
        self._on_request = on_request
        self._lock = threading.RLock()
        self._state = _State()
        self._before: Callable[[Request], None] | None = None
        self._closing = threading.Event()
        self._answerers = Answerers()
        self._listener: LoopbackListener | None = None

    def __repr__(self) -> str:
        where = "stopped" if self._listener is None else self.url
        return f"<{type(self).__name__} {where}, exchanges: {len(self.exchanges)}>"

    def __enter__(self) -> Self:
        self._listener = LoopbackListener(self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; connections that are open are closed."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.stop()
        self._closing.set()
        listener.join()

    # Where it is

    @property
    def url(self) -> str:
        """The address for clients, without a path.

        Raises:
            InvalidInput: it does not serve.
        """
        if self._listener is None:
            raise InvalidInput(
                "The model server is not running.", fix="Use it between entering and leaving it: with ModelServer() as model."
            )
        return f"http://127.0.0.1:{self._listener.port}"

    def env(self, session: str | None = None) -> dict[str, str]:
        """The variables by which programs find the model: those of the protocols' own clients, with a key of no value.

        Args:
            session: the id of the session that the programs belong to, whose log gets their exchanges.
        """
        url = self._url_of(session)
        return {name: value.format(url=url) for name, value in _VARIABLES}

    @property
    def endpoint(self) -> ModelEndpoint:
        """The model as the only thing that a confined program reaches: an entry of ``network``."""
        return replace(self.endpoint_for(None), by_session=True)

    def endpoint_for(self, session: str | None) -> ModelEndpoint:
        """The model as confined programs of a session reach it.

        Args:
            session: the session's id; None for programs of no session.
        """
        return ModelEndpoint("model", self._url_of(session), ("GET /*", "POST /*", "HEAD /*"), variables=_VARIABLES)

    def _url_of(self, session: str | None) -> str:
        return self.url if session is None else f"{self.url}/session/{session}"

    # Who answers

    def script(self, *steps: Step | str | AnswerFault | Answer | Sequence[Step], about: str | None = None) -> None:
        """Let the model answer by a script. The last script that fits a request answers it.

        Args:
            steps: what it answers, in order; see ``say``, ``call``, ``call_any``, ``edit``, ``when``, ``stop`` and the faults. One function
                from a request to an answer is a script that does not end.
            about: a text of the first message of the conversations that it is for; all if nothing is said.
        """
        self._answerers.add(AnswerRule(about, lambda: Script(steps)))

    def answer_with(self, answerer: Source, *, about: str | None = None) -> None:
        """Let a function answer.

        Args:
            answerer: gives a text, an Answer, a Failure or a ModelReply for a request.
            about: as in ``script``.
        """
        self._answerers.add(AnswerRule(about, lambda: answerer))

    def tape(
        self, path: str | os.PathLike[str], mode: TapeMode = "once", *, lenient: bool = False, again: str = 'tape(path, "rewrite")'
    ) -> None:
        """Let the model answer from a recording, or make one. It is written by ``check``.

        Where it records, a script or a function answers if there is one; else the protocol's real server does, with the key of this
        process, which no agent has. Where it replays, the tape alone answers.

        Args:
            path: of the file.
            mode: ``replay`` answers from it alone; ``once`` too, and records it if there is none; ``new`` records what it does not have;
                ``rewrite`` records it again; ``live`` asks the real server, and records nothing.
            lenient: whether only roles, tools offered, calls and results are compared.
            again: the line that records it again, for messages.

        Raises:
            InvalidInput: there is no such mode; or no such tape, or none that can be read.
        """
        if mode not in TAPE_MODES:
            raise InvalidInput(f"mode={mode!r} is not a tape mode.", fix=f"Use one of {', '.join(TAPE_MODES)}.")
        file = Path(path)
        replays = mode == "replay" or (mode in ("once", "new") and file.exists())
        if replays:
            otherwise = self._answer_without_the_tape if mode == "new" else None
            player = partial(Player, Tape.read(file), self._known, name=file.name, again=again, lenient=lenient, otherwise=otherwise)
            self._answerers.tape = AnswerRule(None, player)
        if mode == "new" or not replays:
            self._answerers.server = AnswerRule(None, Upstream)
        self._recorded_before = len(self.exchanges)
        self._recording = file if mode in ("new", "rewrite") or (mode == "once" and not replays) else None

    def go_on(
        self,
        session: str,
        tape: Tape,
        known: Callable[[], Known],
        *,
        later: Source | None = None,
        reached: Callable[[], object] = lambda: None,
        lenient: bool = False,
    ) -> None:
        """Let programs of a session get the answers of a tape until it is used up, and others from there on.

        Args:
            session: its id.
            tape: the exchanges before the one at which another way is taken.
            known: gives the placeholders of the session.
            later: answers what follows; whoever answers other sessions, if nothing is said.
            reached: called once before the first answer that is not the tape's. A GittrixError that it raises is answered as an error.
            lenient: as for ``tape``.
        """
        source = self._answer_of_others if later is None else later
        make = partial(Continuation, tape, known, later=source, reached=reached, name=f"of {session}", lenient=lenient)
        self._answerers.add(AnswerRule(None, make, session=session))

    def _answer_of_others(self, request: Request) -> Planned | ModelReply | Answer | Failure | str:
        rule = self._answerers.of_any_session(request)
        if rule is None:
            raise _unscripted(request)
        return rule.answerer(request)

    def _answer_without_the_tape(self, request: Request) -> Planned | ModelReply | Answer | Failure | str:
        rule = self._answerers.without_the_tape(request)
        assert rule is not None, "the real server is there"
        return rule.answerer(request)

    def _recorded(self) -> Tape:
        tape, known = Tape(), self._known()
        for one in self.exchanges[self._recorded_before :]:
            if one.side is None:
                tape.add(one, known)
        return tape

    def _known(self) -> Known:
        return known_here(tuple(self._places().items()), days(time.time(), self.now))

    @contextmanager
    def restarted(self, next_fault: NextFault | None = None, before: Callable[[Request], None] | None = None) -> Iterator[None]:
        """Within the block, scripts begin again; its exchanges are forgotten when it ends.

        Args:
            next_fault: gives what goes wrong with the exchange that begins; None for nothing.
            before: is called with each request before it is answered. A GittrixError that it raises is answered as an error.
        """
        with self._lock:
            known = self._state, self._answerers, self._before
            self._state, self._before = _State(), before
            self._answerers = self._answerers.restarted(next_fault)
        try:
            yield
        finally:
            with self._lock:
                self._state, self._answerers, self._before = known

    # What was said

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges, including side requests, in the order of arrival."""
        with self._lock:
            return tuple(self._state.exchanges)

    @property
    def problems(self) -> tuple[GittrixError, ...]:
        """What of the requests no script and no tape could answer, until ``check`` raises the first."""
        with self._lock:
            return tuple(self._state.problems)

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests of the work."""
        return tuple(one.request for one in self.exchanges if one.side is None)

    @property
    def sent(self) -> str:
        """All texts that ever came to the server, one after the other: of bodies, of addresses and of headers, without credentials."""
        with self._lock:
            return "\n".join(self._state.sent)

    @property
    def keys(self) -> frozenset[str]:
        """The keys that came with requests. They are in nothing else: not in ``sent``, nor on a tape."""
        with self._lock:
            return frozenset(self._state.keys)

    @property
    def usage(self) -> Usage:
        """The tokens of all exchanges."""
        return sum((one.usage for one in self.exchanges), Usage())

    def calls(self, name: str | None = None) -> tuple[Call, ...]:
        """The calls that the model asked for.

        Args:
            name: of the tool; all if nothing is said.
        """
        answers = [one.content for one in self.exchanges if isinstance(one.content, Answer)]
        return tuple(call for answer in answers for call in answer.calls if name in (None, call.name))

    def conversation(self, about: str | None = None, *, last: int | None = None) -> str:
        """What was said, as a text to read. Several conversations follow one another.

        Args:
            about: a text of the first message of the conversations that are wanted; all if nothing is said.
            last: only so many exchanges of each; all if nothing is said.
        """
        grouped: dict[str, list[Exchange]] = {}
        for one in self.exchanges:
            if one.side is None and (about is None or about in one.request.opening):
                grouped.setdefault(one.request.opening, []).append(one)
        return Conversation("\n\n".join(readable(group, last) for group in grouped.values()) or "(no request has come)")

    def check(self) -> None:
        """See that scripts and tapes were asked for all that they have, and for no more. What is recorded is written then.

        Raises:
            ScriptFailed: something of a script is left over, or was missing. The text has the conversation.
            TapeMismatch: the same of a tape.
            AdapterUnavailable: the real server could not be asked.
            OSError: the tape cannot be written.
        """
        with self._lock:
            left = self._answerers.left_over()
            problem = self._state.problems[0] if self._state.problems else left
            self._state.problems.clear()
        if problem is not None:
            said = f"The conversation:\n{self.conversation()}"
            kind = type(problem) if isinstance(problem, (TapeMismatch, AdapterUnavailable)) else ScriptFailed
            raise kind(
                problem.fact, why=problem.why, fix=problem.fix, opt_out="\n".join(filter(None, [problem.opt_out, said]))
            ) from problem
        if self._recording is not None:
            self._recorded().write(self._recording)

    # Serving

    def _serve(self, connection: socket.socket, address: Any) -> None:
        ModelHandler(connection, address, self)  # type: ignore[arg-type]

    def conversation_before(self, id_: str) -> Sequence[Message]:
        """The messages up to an earlier answer, with it; for clients that let the server keep them."""
        for one in self.exchanges:
            if response_id(one.number) == id_ and isinstance(one.content, Answer):
                return (*one.request.messages, Message("assistant", one.content.parts))
        raise InvalidInput(f"There is no earlier answer {id_!r}.", why="The request goes on from it.", fix="Send the conversation whole.")

    def decide(self, request: Request, session: str | None, listens: Callable[[], bool]) -> tuple[Exchange, ModelReply]:
        """What a request gets, noted as an exchange of a session, if its address is one's."""
        side = side_request(request) if self._answers_sides else None
        with self._lock:
            state = self._state
            delivery = None if side else self._answerers.for_request(request, session)
        files = None if side or self._on_request is None else self._on_request(request, session)
        # Nothing is locked while somebody is asked: a real server takes its time, and other conversations go on.
        reply, fault = (ModelReply(side_answer(side, request)), None) if side else self._reply(state, delivery, request, listens)
        if isinstance(reply.content, Answer) and reply.content.placed:
            reply = replace(reply, content=placed_here(reply.content, self._known().show))
        content = reply.content
        usage = (content.usage or estimated(request, content)) if isinstance(content, Answer) else Usage()
        with self._lock:
            exchange = Exchange(len(state.exchanges) + 1, request, content, usage, side.name if side else None, session=session)
            exchange.fault = None if fault is None else str(fault)
            exchange.origin, exchange.files = reply.origin, files
            state.exchanges.append(exchange)
            if delivery is not None:
                state.deliveries[exchange.number] = delivery
        return exchange, reply

    def _reply(
        self, state: _State, delivery: Delivery | None, request: Request, listens: Callable[[], bool]
    ) -> tuple[ModelReply, AnswerFault | None]:
        try:
            if delivery is None:
                raise _unscripted(request)
            if self._before is not None:
                self._before(request)
            return delivery.reply(request, listens)
        except GittrixError as problem:
            with self._lock:
                state.problems.append(problem)
            # 400 is what no client asks again after.
            return ModelReply(Failure("invalid", message=problem.fact)), None

    def came(self, path: str, headers: Mapping[str, str], body: object, keys: Collection[str]) -> None:
        """Note the texts of a request that came, and the keys that came with it."""
        with self._lock:
            self._state.keys.update(keys)
            self._state.sent += [path, *headers.values(), *texts_in(body)]

    def finished(self, exchange: Exchange, began: float, *, delivered: bool) -> None:
        """Note what becomes of an answer, and tell of the exchange."""
        exchange.delivered, exchange.seconds = delivered, time.perf_counter() - began
        self._sent(exchange, lost=False)
        if self._on_exchange is not None:
            self._on_exchange(exchange)

    def lost(self, exchange: Exchange) -> None:
        """Note that an answer did not reach whoever asked, so that a request that is sent again gets it."""
        exchange.delivered = False
        self._sent(exchange, lost=True)

    def _sent(self, exchange: Exchange, *, lost: bool) -> None:
        with self._lock:
            delivery = self._state.deliveries.get(exchange.number)
        if delivery is not None:
            delivery.sent(exchange.request, lost=lost)

    def stall(self, seconds: float) -> None:
        """Wait until that time is over, by the clock of answers or by this machine's, or until the server is closed."""
        end = self._now() + seconds
        for _ in range(round(min(seconds, LONGEST_STALL) / 0.01)):  # a test may freeze every clock of this process
            if self._now() >= end or self._closing.wait(0.01):
                return

    @property
    def now(self) -> float:
        """The time of answers, in seconds since 1970."""
        return self._now()


def _unscripted(request: Request) -> InvalidInput:
    return InvalidInput(
        "The model was asked, and has no script.",
        why=f"The request says: {request.text[-200:]!r}.",
        fix="Give it one before the agent starts: gittrix_model.script(say('Done.')).",
    )
