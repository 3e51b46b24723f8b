"""A server that speaks the Messages API, with streaming, and answers what it was told to: it stands for a model, on a real connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Block = dict[str, Any]


def text(words: str) -> Block:
    """A block of text of an answer."""
    return {"type": "text", "text": words}


def use(tool: str, **arguments: Any) -> Block:
    """A block in which the model uses a tool."""
    return {"type": "tool_use", "id": f"toolu_{tool}_{abs(hash(json.dumps(arguments))):x}", "name": tool, "input": arguments}


class ModelServer:
    """A model that gives scripted answers.

    Attributes:
        url: its base address.
        requests: the bodies of the requests that had tools, in order.
        keys: the keys that came with them.
    """

    def __init__(self, answers: Sequence[Sequence[Block]]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self._answers = [*answers]
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"model": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @classmethod
    @contextmanager
    def answering(cls, *answers: Sequence[Block]) -> Iterator[ModelServer]:
        """A server that gives an answer to each request with tools, in order, and a word to every other one."""
        model = cls(answers)
        model._thread.start()
        try:
            yield model
        finally:
            model._server.shutdown()
            model._thread.join()
            model._server.server_close()

    def tool_results(self) -> list[str]:
        """What tools gave, as the model was told."""
        last = self.requests[-1]["messages"]
        blocks = [block for message in last if isinstance(message["content"], list) for block in message["content"]]
        return [json.dumps(block.get("content")) for block in blocks if block["type"] == "tool_result"]

    def answer(self, body: dict[str, Any], key: str) -> list[Block]:
        """The blocks for a request."""
        with self._lock:
            self.keys.add(key)
            if not body.get("tools"):
                return [text("a title")]
            self.requests.append(body)
            return [*self._answers.pop(0)] if self._answers else [text("Nothing more to do.")]


class _Handler(BaseHTTPRequestHandler):
    model: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path.partition("?")[0] != "/v1/messages":
            return self._send(b'{"input_tokens": 1}', "application/json")
        blocks = self.model.answer(body, self.headers.get("x-api-key", ""))
        used = any(block["type"] == "tool_use" for block in blocks)
        whole = {
            "id": f"msg_{len(self.model.requests)}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "model"),
            "stop_reason": "tool_use" if used else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        if not body.get("stream"):
            return self._send(json.dumps({**whole, "content": blocks}).encode(), "application/json")
        return self._send(b"".join(_events(whole, blocks)), "text/event-stream")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _events(whole: dict[str, Any], blocks: Sequence[Block]) -> Iterator[bytes]:
    """An answer as the events of a stream."""
    yield _event("message_start", message={**whole, "content": [], "stop_reason": None})
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield _event("content_block_start", index=index, content_block=empty)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta={"stop_reason": whole["stop_reason"], "stop_sequence": None}, usage={"output_tokens": 1})
    yield _event("message_stop")


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
