"""A model's server on this machine's loopback, which is moved by whoever tests an agent.

It speaks the four protocols to clients of any language, and asks an answerer what to say. Nothing of it reaches further than this machine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias

from pytest_gittrix.confine.network import ModelEndpoint
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.model.conversations import opening, readable, side_answer, side_request
from pytest_gittrix.model.delivery import Delivery, Script, ScriptFailed
from pytest_gittrix.model.exchanges import Exchange
from pytest_gittrix.model.faults import Fault
from pytest_gittrix.model.http import ModelHandler
from pytest_gittrix.model.protocols.responses import response_id
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Message, Request, Usage, estimated
from pytest_gittrix.model.replies import Answerer, Reply
from pytest_gittrix.model.script import Step

KEY: Final = "key-of-a-test"
"""The key that clients are told. The server takes any."""

_VARIABLES: Final = (
    ("ANTHROPIC_BASE_URL", "{url}"),
    ("ANTHROPIC_API_KEY", KEY),
    ("OPENAI_BASE_URL", "{url}/v1"),
    ("OPENAI_API_BASE", "{url}/v1"),
    ("OPENAI_API_KEY", KEY),
    ("GOOGLE_GEMINI_BASE_URL", "{url}"),
    ("GEMINI_API_KEY", KEY),
)
_END_SECONDS: Final = 5.0

NextFault: TypeAlias = Callable[[Reply, Request], Fault | None]


class _Rule:
    """Who answers which conversations.

    Args:
        about: a text of their first message; None for all.
        make: makes the answerer, as it is before anybody asked.
        next_fault: as ``Delivery`` takes it.
    """

    def __init__(self, about: str | None, make: Callable[[], Answerer | Script], next_fault: NextFault | None = None) -> None:
        self.about = about
        self.make = make
        self.answerer = make()
        self.delivery = Delivery(self.answerer, next_fault)
        self.was_played_anew = False

    def left_over(self) -> int:
        """How many steps of a script nobody asked for; one that was played anew is no duty."""
        if self.was_played_anew and not self.delivery.number:
            return 0
        return self.answerer.left_over() if isinstance(self.answerer, Script) else 0


@dataclass
class _State:
    exchanges: list[Exchange] = field(default_factory=list)
    problems: list[GittrixError] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)


class ModelServer:
    """A server of a model. A context manager: it serves between entering and leaving.

    Args:
        now: gives the time of its answers, in seconds since 1970; this machine's if nothing is said.
        on_exchange: is told of each exchange when its answer is sent, on the server's thread.
    """

    def __init__(self, *, now: Callable[[], float] = time.time, on_exchange: Callable[[Exchange], None] | None = None) -> None:
        self._now = now
        self._on_exchange = on_exchange
        self._lock = threading.RLock()
        self._state = _State()
        self._deliveries: dict[int, Delivery] = {}
        self._before: Callable[[Request], None] | None = None
        self._closing = threading.Event()
        self._rules: list[_Rule] = []
        self._listener: socket.socket | None = None
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._accepting: threading.Thread | None = None

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener = listener
        self._accepting = threading.Thread(target=self._accept, args=(listener,), name="gittrix-model", daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; connections that are open are closed."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        _shut(listener)
        with self._lock:
            serving = [*self._connections.items()]
        for connection, _ in serving:
            _shut(connection)
        self._closing.set()
        for thread in [self._accepting, *(thread for _, thread in serving)]:
            if thread is not None and thread is not threading.current_thread():
                thread.join(_END_SECONDS)

    # Where it is

    @property
    def url(self) -> str:
        """The address for clients, without a path.

        Raises:
            InvalidInput: it does not serve.
        """
        if self._listener is None:
            raise InvalidInput(
                "The server of the model does not serve.", fix="Use it between entering and leaving it: with ModelServer() as model."
            )
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def env(self) -> dict[str, str]:
        """The variables by which programs find the model: those of the protocols' own clients, with a key of no value."""
        url = self.url
        return {name: value.format(url=url) for name, value in _VARIABLES}

    @property
    def endpoint(self) -> ModelEndpoint:
        """The model as the only thing that a confined program reaches: an entry of ``network``."""
        return ModelEndpoint("model", self.url, ("GET /*", "POST /*", "HEAD /*"), variables=_VARIABLES)

    # Who answers

    def script(self, *steps: Step | str | Fault | Answer | Sequence[Step], about: str | None = None) -> None:
        """Let the model answer by a script. The last script that fits a request answers it.

        Args:
            steps: what it answers, in order; see ``say``, ``call``, ``call_any``, ``edit``, ``when``, ``stop`` and the faults. One function
                from a request to an answer is a script that does not end.
            about: a text of the first message of the conversations that it is for; all if nothing is said.
        """
        self._add(_Rule(about, lambda: Script(steps)))

    def answer_with(self, answerer: Answerer, *, about: str | None = None) -> None:
        """Let a function answer.

        Args:
            answerer: gives a text, an Answer, a Failure or a Reply for a request.
            about: as in ``script``.
        """
        self._add(_Rule(about, lambda: answerer))

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.insert(0, rule)

    @contextmanager
    def played_anew(self, next_fault: NextFault | None = None, before: Callable[[Request], None] | None = None) -> Iterator[None]:
        """Within the block, nobody has asked yet: scripts begin anew, and what is said is forgotten when it ends.

        Args:
            next_fault: gives what goes wrong with the exchange that begins; None for nothing.
            before: is told of each request before it is answered. A GittrixError that it raises is answered as an error.
        """
        with self._lock:
            known = self._state, self._rules, self._deliveries, self._before
            self._state, self._deliveries, self._before = _State(), {}, before
            for rule in self._rules:
                rule.was_played_anew = True
            self._rules = [_Rule(rule.about, rule.make, next_fault) for rule in self._rules]
        try:
            yield
        finally:
            with self._lock:
                self._state, self._rules, self._deliveries, self._before = known

    # What was said

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges, those beside the work too, in the order of arrival."""
        with self._lock:
            return tuple(self._state.exchanges)

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
        """What was said, as a text to read. Several conversations stand one after the other.

        Args:
            about: a text of the first message of the conversations that are wanted; all if nothing is said.
            last: only so many exchanges of each; all if nothing is said.
        """
        grouped: dict[str, list[Exchange]] = {}
        for one in self.exchanges:
            if one.side is None and (about is None or about in opening(one.request)):
                grouped.setdefault(opening(one.request), []).append(one)
        return "\n\n".join(readable(group, last) for group in grouped.values()) or "(no request has come)"

    def check(self) -> None:
        """See that scripts were asked for all that they have, and for no more.

        Raises:
            ScriptFailed: something is left over, or was missing. The text has the conversation.
        """
        with self._lock:
            problems = [*self._state.problems]
            left = sum(rule.left_over() for rule in self._rules) if not problems else 0
            self._rules = [rule for rule in self._rules if not isinstance(rule.answerer, Script)]
        if problems:
            first = problems[0]
            raise ScriptFailed(first.fact, why=first.why, fix=first.fix, opt_out=f"The conversation:\n{self.conversation()}") from first
        if left:
            raise ScriptFailed(
                f"{left} step{'s' * (left > 1)} of the model's script {'were' if left > 1 else 'was'} not asked for.",
                why="The agent ended before the script did, and what the script has left was not tested.",
                fix="Let the agent go on, or take the steps out of the script.",
                opt_out=f"The conversation:\n{self.conversation()}",
            )

    # Serving

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, address), name="gittrix-model-client", daemon=True)
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket, address: Any) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ModelHandler(connection, address, self)  # type: ignore[arg-type]
        except OSError:
            return  # the client is gone
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            _shut(connection)

    def conversation_before(self, id_: str) -> Sequence[Message]:
        """The messages up to an earlier answer, with it; for clients that let the server keep them."""
        for one in self.exchanges:
            if response_id(one.number) == id_ and isinstance(one.content, Answer):
                return (*one.request.messages, Message("assistant", one.content.parts))
        raise InvalidInput(f"There is no earlier answer {id_!r}.", why="The request goes on from it.", fix="Send the conversation whole.")

    def decide(self, request: Request) -> tuple[Exchange, Reply]:
        """What a request gets, noted as an exchange."""
        with self._lock:
            side = side_request(request)
            delivery = (
                None if side else next((one.delivery for one in self._rules if one.about is None or one.about in opening(request)), None)
            )
            reply = Reply(side_answer(side, request)) if side else self._reply(delivery, request)
            content = reply.content
            usage = (content.usage or estimated(request, content)) if isinstance(content, Answer) else Usage()
            exchange = Exchange(len(self._state.exchanges) + 1, request, content, usage, side.name if side else None)
            if delivery is not None:
                exchange.fault = None if delivery.spoiled is None else str(delivery.spoiled)
                self._deliveries[exchange.number] = delivery
            self._state.exchanges.append(exchange)
            return exchange, reply

    def _reply(self, delivery: Delivery | None, request: Request) -> Reply:
        try:
            if delivery is None:
                raise InvalidInput(
                    "The model was asked, and has no script.",
                    why=f"The request says: {request.text[-200:]!r}.",
                    fix="Give it one before the agent starts: gittrix_model.script(say('Done.')).",
                )
            if self._before is not None:
                self._before(request)
            return delivery.reply(request)
        except GittrixError as problem:
            self._state.problems.append(problem)
            # 400 is what no client asks again after.
            return Reply(Failure("invalid", message=problem.fact))

    def came(self, path: str, headers: Mapping[str, str], body: object) -> None:
        """Note the texts of a request that came."""
        with self._lock:
            self._state.sent += [path, *headers.values(), *_strings(body)]

    def finished(self, exchange: Exchange, began: float, *, delivered: bool) -> None:
        """Note what becomes of an answer, and tell of the exchange."""
        exchange.delivered, exchange.seconds = delivered, time.perf_counter() - began
        if self._on_exchange is not None:
            self._on_exchange(exchange)

    def lost(self, exchange: Exchange) -> None:
        """Note that an answer did not reach whoever asked, so that a request that is sent again gets it."""
        with self._lock:
            exchange.delivered = False
            if exchange.number in self._deliveries:
                self._deliveries[exchange.number].lost()

    def stall(self, seconds: float) -> None:
        """Wait, until that time is over or the server is closed."""
        self._closing.wait(seconds)

    @property
    def now(self) -> float:
        """The time of answers, in seconds since 1970."""
        return self._now()


def _strings(value: object) -> Iterator[str]:
    """All texts within a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif value is not None:
        yield str(value)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
