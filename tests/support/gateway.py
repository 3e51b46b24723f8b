"""A gateway without a jail, servers of models beside it, and what clients of both get to hear."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import trustme

from pytest_gittrix.confine.gateway.server import Gateway
from pytest_gittrix.confine.network import ModelEndpoint, check_network

KEY: Final = "a-key-that-nobody-inside-has"


@dataclass
class Server:
    """A server of TLS, or of plain HTTP, on this machine's loopback.

    Attributes:
        port: where it listens.
        heard: method, path, headers in lower case, and body of each request.
    """

    port: int = 0
    heard: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def serving(authority: trustme.CA | None = None, said: Sequence[bytes] = (b"hello ", b"from ", b"the model")) -> Iterator[Server]:
    """A server that answers each request with a few chunks, over TLS if there is an authority."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = b""
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            server.heard.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in said:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = answer  # noqa: N815  (the names that the base class looks for)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        if authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
            http.socket = context.wrap_socket(http.socket, server_side=True)
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def model_at(url: str, *requests: str, **other: Any) -> ModelEndpoint:
    """An endpoint ``mine`` of some server, with a key."""
    return ModelEndpoint("mine", url, requests or ("POST /v1/messages",), **{"key": "MY_MODEL_KEY", **other})


@dataclass(frozen=True)
class OpenGateway:
    """A gateway that runs.

    Attributes:
        port: where it listens.
        log: its log.
    """

    port: int
    log: Path

    def send(self, data: bytes) -> bytes:
        """All that is answered to some bytes, until the gateway closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as client:
            client.sendall(data)
            return b"".join(iter(lambda: client.recv(65536), b""))

    def post(self, target: str, *headers: str, body: bytes = b"{}", method: str = "POST") -> bytes:
        """What is answered to one request."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(body)}", "", ""]
        return self.send("\r\n".join(lines).encode() + body)

    @contextmanager
    def tunnel(self, target: str) -> Iterator[socket.socket]:
        """A connection through the proxy, which has to be made."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as client:
            client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            assert client.recv(4096) == b"HTTP/1.1 200 Connected\r\n\r\n"
            yield client

    def decisions(self) -> list[tuple[str, str]]:
        """What was decided about which target."""
        return [(one["decision"], one["target"]) for one in map(json.loads, self.log.read_text().splitlines())]


@contextmanager
def open_gateway(directory: Path, network: Sequence[str | ModelEndpoint]) -> Iterator[OpenGateway]:
    """A gateway in a thread, on this machine's loopback."""
    wanted = check_network(network)
    assert not isinstance(wanted, str)
    log = directory / "network.jsonl"
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    gateway = Gateway(wanted.rules(), {"MY_MODEL_KEY": KEY}, lines)
    running: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        served = asyncio.ensure_future(gateway.serve(listener))
        running.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, served.cancel))
        with suppress(asyncio.CancelledError):
            await served

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield OpenGateway(port, log)
    finally:
        running.result()()
        thread.join()
        os.close(lines)
