"""The model's server as HTTP: requests of the four protocols, answers that are streamed or whole, and what a fault does to their bytes."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple
from typing import Protocol as Interface

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.answers.replies import ModelReply, parts_at
from pytest_gittrix.model.bodies import json_body
from pytest_gittrix.model.protocols.base import AnswerContext, Asked, Codec
from pytest_gittrix.model.protocols.codecs import CODECS
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.values import Answer, Failure, Message, Protocol, Request, estimated

MODEL: Final = "test-model"
"""The model that the list of models has."""
LONGEST_STALL: Final = 10.0
"""The most real seconds for which nothing is sent, whatever a script asks for."""

_ABSOLUTE: Final = re.compile(r"\Ahttps?://[^/?]*", re.IGNORECASE)
_OF_SESSION: Final = re.compile(r"/session/(?P<id>[A-Za-z0-9_-]{1,128})(?=/|\?|\Z)")
_BEARER: Final = re.compile(r"\Abearer +", re.IGNORECASE)
_CREDENTIALS: Final = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization"})


class _Route(NamedTuple):
    protocol: Protocol
    counts: bool = False


_ROUTES: Final[Mapping[str, _Route]] = {
    "/messages": _Route("anthropic"),
    "/messages/count_tokens": _Route("anthropic", counts=True),
    "/responses": _Route("responses"),
    "/responses/input_tokens": _Route("responses", counts=True),
    "/chat/completions": _Route("chat"),
}


def route(path: str) -> _Route | None:
    """Which protocol a path belongs to, and whether it only counts tokens; None if it is none's. A leading version is not looked at."""
    if ":" in path.rpartition("/")[2]:
        method = path.rpartition(":")[2]
        if method in ("generateContent", "streamGenerateContent", "countTokens"):
            return _Route("gemini", counts=method == "countTokens")
        return None
    return _ROUTES.get(path.rstrip("/").removeprefix("/v1"))


class Host(Interface):
    """Whose connections a handler serves."""

    @property
    def now(self) -> float:
        """The time of answers, in seconds since 1970."""

    def came(self, path: str, headers: Mapping[str, str], body: object, keys: Collection[str]) -> None:
        """Note what a client sent; its keys stand apart from everything else."""

    def conversation_before(self, id_: str) -> Sequence[Message]:
        """The messages up to an earlier answer, with it. Raises InvalidInput: there is none of this id."""

    def decide(self, request: Request, session: str | None, listens: Callable[[], bool]) -> tuple[Exchange, ModelReply]:
        """What a request gets, noted as an exchange of a session, if its address is one's."""

    def finished(self, exchange: Exchange, began: float, *, delivered: bool) -> None:
        """Note what becomes of an answer."""

    def lost(self, exchange: Exchange) -> None:
        """Note that an answer did not reach whoever asked."""

    def stall(self, seconds: float) -> None:
        """Wait."""


class ModelHandler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Host  # type: ignore[assignment]
    _on_its_way: Callable[..., None]
    _session: str | None = None

    def parse_request(self) -> bool:
        """Read the head of a request, and take the session out of its address."""
        if not super().parse_request():
            return False
        self.path = _ABSOLUTE.sub("", self.path)
        found = _OF_SESSION.match(self.path)
        self._session = None if found is None else found["id"]
        if found is not None:
            self.path = self.path[found.end() :] or "/"
        return True

    def do_HEAD(self) -> None:
        """Answer clients that look whether anybody is there."""
        self._send(200, {})

    def do_GET(self) -> None:
        """Answer with the list of models, or with one."""
        path = self.path.partition("?")[0]
        self.server.came(self.path, self._headers(), None, self._keys())
        gemini = path.startswith("/v1beta")
        if path.rstrip("/").endswith("/models"):
            return self._send(200, _gemini_models() if gemini else _models())
        if "/models/" in path:
            return self._send(200, _gemini_models()["models"][0] if gemini else _models()["data"][0])
        return self._send(200 if path == "/" else 404, {})

    def do_POST(self) -> None:
        """Answer a request to a model."""
        began = time.perf_counter()
        path = self.path.partition("?")[0]
        found = route(path)
        if found is None:
            self.close_connection = True
            return self._send(404, {"error": {"message": f"There is no {path} here.", "type": "not_found_error"}})
        codec = CODECS[found.protocol]
        try:
            body = json_body(self.rfile, self.headers)
            headers = self._headers()
            self.server.came(self.path, headers, body, self._keys())
            request = codec.decode(Asked(self.path, body, headers, self.server.conversation_before))
        except InvalidInput as problem:
            self.close_connection = True
            return self._send(400, codec.error(Failure("invalid", message=problem.fact)))
        if found.counts:
            return self._send(200, codec.counted(estimated(request, Answer()).input))
        exchange, reply = self.server.decide(request, self._session, self._listens)
        self._on_its_way = lambda *, delivered: self.server.finished(exchange, began, delivered=delivered)
        try:
            self._deliver(codec, exchange, reply)
        except OSError:
            self.close_connection = True
            self.server.lost(exchange)
        return None

    def _listens(self) -> bool:
        """Whether the client has not closed its connection."""
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _deliver(self, codec: Codec, exchange: Exchange, reply: ModelReply) -> None:
        """Send a reply. What becomes of it is noted before its last byte, so that whoever has that finds it noted."""
        if isinstance(reply.content, Answer):
            return self._answer(codec, exchange, reply)
        self._stall(reply)
        self._on_its_way(delivered=True)
        return self._fail(codec, reply.content)

    def _fail(self, codec: Codec, failure: Failure) -> None:
        headers = {}
        if failure.retry_after is not None:
            # Whole seconds are what the header has; the other one is what the clients of two protocols look at first.
            headers = {"retry-after": str(-int(-failure.retry_after // 1)), "retry-after-ms": str(round(failure.retry_after * 1000))}
        self._send(failure.status, codec.error(failure), headers)

    def _answer(self, codec: Codec, exchange: Exchange, reply: ModelReply) -> None:
        assert isinstance(reply.content, Answer)
        answered = AnswerContext(exchange.request, reply.content, exchange.usage, exchange.number, int(self.server.now))
        stream = exchange.request.stream
        if stream:
            frames = list(codec.frames(answered))
        else:
            whole = _json(codec.encode(answered))
        kind = reply.content_type or ("text/event-stream; charset=utf-8" if stream else "application/json")
        if reply.cut is None:
            pieces: list[bytes] = [frame.data for frame in frames] if stream else [whole]
        elif stream:
            pieces = [*parts_at(frames, reply.cut)]
        else:
            at = int(len(whole) * reply.cut) if isinstance(reply.cut, float) else len(whole) // 2
            pieces = [whole[:at], whole[at:]]
        if reply.cut == 0.0:
            self._stall(reply)
        self.send_response(200)
        self.send_header("content-type", kind)
        chunked = stream and self.request_version != "HTTP/1.0"
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        elif stream:
            self.close_connection = True  # the end of the connection is the end of the answer
        else:
            self.send_header("content-length", str(sum(map(len, pieces)) * reply.copies))
        self.end_headers()
        sent = pieces * reply.copies
        for number, piece in enumerate(sent, 1):
            cut_here = number == 1 and reply.cut is not None and not reply.stall
            if number == len(sent) or cut_here:
                self._on_its_way(delivered=not cut_here)
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if cut_here:
                self.close_connection = True
                return
            if number == 1 and reply.cut:
                self._stall(reply)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _stall(self, reply: ModelReply) -> None:
        if reply.stall:
            self.server.stall(reply.stall)

    def _send(self, status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        body = b"" if self.command == "HEAD" else _json(value)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def _headers(self) -> dict[str, str]:
        return {name.lower(): text for name, text in self.headers.items() if name.lower() not in _CREDENTIALS}

    def _keys(self) -> list[str]:
        return [_BEARER.sub("", text) for name, text in self.headers.items() if name.lower() in _CREDENTIALS]

    def version_string(self) -> str:
        """What the server calls itself."""
        return "pytest-gittrix-model"

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The date of an answer, by the clock of the test."""
        return formatdate(self.server.now if timestamp is None else timestamp, usegmt=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what came and went is in the exchanges."""

    def log_error(self, format: str, *args: Any) -> None:
        """Say nothing: a client that is gone is no event."""


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def _models() -> Mapping[str, Any]:
    """The list of models, in the forms of Anthropic, OpenAI and Gemini at once, which share an address."""
    one = {
        "id": MODEL,
        "object": "model",
        "type": "model",
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "display_name": MODEL,
        "lifecycle": "active",
        "owned_by": "test",
    }
    return {"object": "list", "data": [one], "has_more": False, "first_id": MODEL, "last_id": MODEL, **_gemini_models()}


def _gemini_models() -> Mapping[str, Any]:
    one = {
        "name": f"models/{MODEL}",
        "displayName": MODEL,
        "inputTokenLimit": 1_000_000,
        "outputTokenLimit": 65_536,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    return {"models": [one]}
