"""What a gateway notes of the answers of models that it passes on: status, model and tokens, and nothing of what was said.

It runs in the gateway, without site-packages. Sources: the protocols' own pages; RFC 9112, section 7.1 (chunks); the HTML standard, section
9.2 (server-sent events).
"""

from __future__ import annotations

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_PATHS = ("/messages", "/responses", "/chat/completions", ":generateContent", ":streamGenerateContent")
_LONGEST = 16 << 20
"""Bytes of a body, or of a line of a stream, that are looked at; what is longer is passed on, and its tokens are unknown."""
_LAST = (b"[DONE]", b'"message_stop"', b'"response.completed"', b'"response.incomplete"')
"""What is in the last event of a stream; a client may end when it has that, and the gateway with it."""


def is_exchange(method: str, path: str) -> bool:
    """Whether a request asks a model for an answer, by any of the protocols."""
    return method == "POST" and path.endswith(_PATHS)


def tokens_of(counts: Mapping[str, Any]) -> tuple[int, int, int]:
    """The tokens of a request, of its answer, and those of the request that a cache had, in a protocol's own counts."""

    def number(*names: str) -> int:
        return sum(counts.get(name) or 0 for name in names)

    details = counts.get("prompt_tokens_details") or counts.get("input_tokens_details") or {}
    cached = number("cache_read_input_tokens", "cachedContentTokenCount") + (details.get("cached_tokens") or 0)
    asked = number("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "prompt_tokens", "promptTokenCount")
    said = number("output_tokens", "completion_tokens", "candidatesTokenCount", "thoughtsTokenCount")
    return asked, said, cached


class AnswerReader:
    """Reads along while an exchange is passed on.

    Args:
        path: that was asked for; Gemini's has the model's name in it.

    Attributes:
        asked: what was read of the request's body.
        status: of the answer; 0 until it is known.
        ended: whether the answer is complete, as far as a client may see.
    """

    def __init__(self, path: str) -> None:
        self._model = path.rpartition("/models/")[2].partition(":")[0] if "/models/" in path else ""
        self.asked = bytearray()
        self.status = 0
        self.ended = False
        self._raw, self._text = bytearray(), bytearray()
        self._left: int | None = None
        self._chunked = self._streams = self._lost = False
        self._counts: dict[str, Any] = {}
        self._answered = ""

    def ask(self, data: bytes) -> None:
        """Take note of a piece of the request's body."""
        if len(self.asked) <= _LONGEST:
            self.asked += data

    def feed(self, data: bytes) -> None:
        """Take note of a piece of the answer."""
        self._raw += data
        if not self.status and not self._read_head():
            return
        text = self._dechunked() if self._chunked else bytes(self._raw)
        if not self._chunked:
            self._raw.clear()
        if self._left is not None and not self._chunked:
            self._left -= len(text)
            self.ended = self._left <= 0
        self._lost = self._lost or len(self._text) + len(text) > _LONGEST
        if self._lost:
            return
        self._text += text
        if self._streams:
            *lines, rest = bytes(self._text).split(b"\n")
            self._text = bytearray(rest)
            for line in lines:
                self._read_event(line.strip())

    def note(self) -> dict[str, Any]:
        """What is noted of the exchange: its status, and the model and the tokens where they are known."""
        if self._text and not self._streams and not self._lost:
            self._read_value(bytes(self._text))
        model = self._model or str(_json(bytes(self.asked)).get("model") or "") or self._answered
        found: dict[str, Any] = {"status": self.status, **({"model": model[:200]} if model else {})}
        if self._counts:
            try:
                return {**found, **dict(zip(("input", "output", "cached"), tokens_of(self._counts), strict=True))}
            except (TypeError, AttributeError):
                pass  # these are no counts
        return found

    def _read_head(self) -> bool:
        while True:
            head, end, rest = bytes(self._raw).partition(b"\r\n\r\n")
            if not end:
                return False
            first, *lines = head.decode("latin-1").split("\r\n")
            words = first.split(" ", 2)
            status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 599
            self._raw = bytearray(rest)
            if status >= 200:
                break
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines)}
        self.status = status
        self._chunked = "chunked" in headers.get("transfer-encoding", "")
        self._streams = "event-stream" in headers.get("content-type", "")
        self._lost = headers.get("content-encoding", "identity") != "identity"
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdigit() and len(length) < 16 else None
        return True

    def _dechunked(self) -> bytes:
        found = bytearray()
        while not self.ended:
            if self._left is None:
                line, end, _ = bytes(self._raw[:1024]).partition(b"\r\n")
                if not end:
                    break
                try:
                    size = int(line.partition(b";")[0].strip()[:16], 16)
                except ValueError:
                    size = 0
                del self._raw[: len(line) + 2]
                self.ended = size == 0
                self._left = size + 2
            piece = self._raw[: self._left]
            found += piece[: max(0, self._left - 2)]
            self._left -= len(piece)
            del self._raw[: len(piece)]
            if self._left:
                break
            self._left = None
        return bytes(found)

    def _read_event(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        self.ended = self.ended or any(one in line for one in _LAST)
        if b"sage" in line:  # usage, usageMetadata
            self._read_value(line.removeprefix(b"data:"))

    def _read_value(self, text: bytes) -> None:
        body = _json(text)
        for holder in (body, body.get("message"), body.get("response")):
            if not isinstance(holder, dict):
                continue
            self._answered = self._answered or str(holder.get("model") or holder.get("modelVersion") or "")
            for name in ("usage", "usageMetadata"):
                if isinstance(holder.get(name), dict):
                    self._counts |= {key: value for key, value in holder[name].items() if value is not None}


def _json(text: bytes) -> dict[str, Any]:
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, list):  # Gemini streams a list where it is not asked for events; its last value has the counts
        found = found[-1] if found else {}
    return found if isinstance(found, dict) else {}


class GatewayExchange:
    """An exchange that a gateway passed on.

    Attributes:
        model: the model that was asked; empty if that is unknown.
        tokens: those of the request, of the answer, and those of the request that a cache had; None if the server did not say.
    """

    def __init__(self, model: str, tokens: tuple[int, int, int] | None) -> None:
        self.model, self.tokens = model, tokens


def exchanges_in(lines: Iterable[str | bytes]) -> list[GatewayExchange]:
    """The exchanges in the log of a gateway: those that were answered, and then those that were cut off.

    Args:
        lines: of the log, each of JSON; one that a full disk cut off is passed over.
    """
    import json

    found: list[GatewayExchange] = []
    asked = 0
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        method, _, target = said["target"].partition(" ")
        asked += said["decision"] == "passed" and is_exchange(method, target.partition("?")[0])
        if said["decision"] == "answered":
            failed = said["status"] >= 400
            tokens = (said["input"], said["output"], said["cached"]) if "input" in said else (0, 0, 0) if failed else None
            found.append(GatewayExchange(said.get("model", ""), tokens))
    return [*found, *(GatewayExchange("", None) for _ in range(asked - len(found)))]
