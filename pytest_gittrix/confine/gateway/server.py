"""The gateway of a confined program: the only way out of a network that is a list.

It is a process outside of the confinement. Number 1 of a jail binds a port on the loopback of the jail's network and hands the listening
socket over; a socket stays in the network where it was made, so nothing of the gateway is inside. At guard, where there is no such network,
it is handed the other end of each socket that the program gets. It serves

- model endpoints: plain HTTP requests to ``/<name>/...``. Listed requests are passed on by TLS, with the key that the jail does not have.
- a proxy: ``CONNECT host:port`` to listed addresses. The gateway resolves the name, connects to the address that it checked, and lets
  nothing through but TLS that names the same host.

Each connection carries one request. What is not listed is refused, with a reason, and each decision is a line of the gateway's log.
Source: unix(7). ``requests`` reads what comes.
"""

from __future__ import annotations

import _socket
import os
import struct

from pytest_gittrix.confine.gateway.requests import (
    PRIVATE,
    TCP,
    TOKEN,
    RequestHead,
    RequestRefused,
    checked_address,
    copy,
    is_listed,
    is_numeric,
    read_client_hello,
    send_body,
    server_name,
)
from pytest_gittrix.confine.gateway.usage import AnswerReader, is_exchange
from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.proc import open_descriptors

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Mapping
    from typing import Any, NoReturn

PORT = 3128
"""Where the gateway listens on a jail's loopback."""
KEYS = "GITTRIX_GATEWAY_KEYS"
"""The variable by which keys come to whoever confines a program. The program never has it."""
LISTENER, CONNECTION = b"l", b"c"
"""What a gateway is handed: a socket to accept connections on, or one connection."""

HEAD_SECONDS = 15.0
CONNECT_SECONDS = 20.0
LONGEST_HEAD = 1 << 16
MOST_CONNECTIONS = 256
MOST_LOGGED = 10_000

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "upgrade", "transfer-encoding", "expect"}
)
_CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization"})


def fork_gateway(rules: dict[str, Any], keys: dict[str, str], log: str | None) -> _socket.socket:
    """Start a gateway; it ends with this process. Gives the line on which it is handed its listener, or its connections.

    Args:
        rules: what is passed on; see ``network.Reachable``.
        keys: of the model endpoints, by the names of their variables.
        log: the file to add a line of JSON to for each decision; None for none.

    Raises:
        OSError: there can be no process, or the log cannot be opened.
    """
    ours, its = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    parent = os.getpid()
    lines = -1 if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    pid = os.fork()
    if pid == 0:
        _be_gateway(its.fileno(), lines, parent, rules, keys)
    its.close()
    if lines >= 0:
        os.close(lines)
    return ours


def hand_out_listener(gateway: _socket.socket) -> None:
    """Bind the port on this network's loopback, and hand the listening socket to a gateway. Raises OSError if that fails."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(MOST_CONNECTIONS)
    hand_over(gateway, LISTENER, listener.fileno())
    listener.close()
    gateway.close()


def hand_over(line: _socket.socket, kind: bytes, descriptor: int) -> None:
    """Send a descriptor to the process at the other end of a line, with one byte that says what it is. Raises OSError."""
    line.sendmsg([kind], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", descriptor))])


def handed(line: _socket.socket) -> tuple[bytes, int]:
    """What ``hand_over`` sends next: what it is, and the descriptor; -1 if this process can have no more of these.

    Raises:
        EOFError: the other end is closed.
        OSError: as the system says.
    """
    kind, ancillary, _, _ = line.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
    if not kind:
        raise EOFError
    if not ancillary:
        return kind, -1
    (descriptor,) = struct.unpack("=i", ancillary[0][2])
    return kind, descriptor


def _be_gateway(line: int, lines: int, parent: int, rules: dict[str, Any], keys: dict[str, str]) -> NoReturn:
    status = 1
    try:
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        for fd in open_descriptors():
            if fd > 2 and fd not in (line, lines):
                try:
                    os.close(fd)
                except OSError:
                    continue
        import signal

        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # it ends with whoever forked it, and the program's last requests are answered
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control = _socket.socket(fileno=line)
        kind, first = handed(control)

        import asyncio
        import gc
        import socket

        gc.enable()
        gateway = Gateway(rules, keys, lines)
        asyncio.run(gateway.serve(socket.socket(fileno=first)) if kind == LISTENER else gateway.serve_handed(control, first))
        status = 0
    finally:
        os._exit(status)


class Gateway:
    """What passes connections of a jail on, or does not.

    Args:
        rules: what is passed on.
        keys: of the model endpoints.
        lines: the descriptor of the log; -1 for none.
    """

    def __init__(self, rules: dict[str, Any], keys: dict[str, str], lines: int) -> None:
        self._models = {model["name"]: model for model in rules["models"]}
        self._addresses: list[str] = rules["addresses"]
        self._keys = keys
        self._lines = lines
        self._logged = 0
        self._open = 0
        self._contexts: dict[str | None, ssl.SSLContext] = {}

    async def serve(self, listener: _socket.socket) -> None:
        """Answer all connections of a listening socket, for ever."""
        import asyncio

        server = await asyncio.start_server(self._answer, sock=listener, limit=LONGEST_HEAD)
        await server.serve_forever()

    async def serve_handed(self, line: _socket.socket, first: int) -> None:
        """Answer connections that are handed over one by one, until the other end is closed and all are answered."""
        import asyncio

        line.setblocking(False)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        answers: set[asyncio.Task[None]] = set()

        def answer(descriptor: int) -> None:
            task = loop.create_task(self._answer_handed(descriptor))
            answers.add(task)
            task.add_done_callback(answers.discard)

        def take() -> None:
            try:
                _, descriptor = handed(line)
            except BlockingIOError:
                return
            except (EOFError, OSError):
                loop.remove_reader(line.fileno())
                ended.set_result(None)
                return
            if descriptor >= 0:
                answer(descriptor)

        answer(first)
        loop.add_reader(line.fileno(), take)
        await ended
        await asyncio.gather(*answers, return_exceptions=True)

    async def _answer_handed(self, descriptor: int) -> None:
        import asyncio
        import socket

        await self._answer(*await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=LONGEST_HEAD))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import asyncio

        self._open += 1
        try:
            if self._open > MOST_CONNECTIONS:
                return
            try:
                async with asyncio.timeout(HEAD_SECONDS):
                    first = await reader.readexactly(1)
                    if not first.isalpha():  # TLS, most often, of a program that does not heed the proxy's variables
                        self._log("refused", "a connection past the proxy", "it does not begin with a request of HTTP")
                        return
                    head = first + await reader.readuntil(b"\r\n\r\n")
                request = RequestHead(head)
                if request.method == "CONNECT":
                    await self._tunnel(request, reader, writer)
                else:
                    await self._pass_on(request, reader, writer)
            except RequestRefused as refusal:
                self._log("refused", refusal.target, str(refusal))
                body = f"{refusal}\n".encode()
                said = b"Content-Type: text/plain\r\nContent-Length: %d\r\nConnection: close" % len(body)
                writer.write(b"HTTP/1.1 %d Refused\r\n%s\r\n\r\n%s" % (refusal.status, said, body))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            return  # whoever asked is gone, or does not say what it wants
        finally:
            self._open -= 1
            writer.close()

    def _log(self, decision: str, target: str, why: str = "", more: Mapping[str, Any] | None = None) -> None:
        # An exchange with a model is always logged: an agent could fill the log to have what it spends unseen.
        if self._lines < 0 or (self._logged >= MOST_LOGGED and more is None):
            return
        import json
        import time

        self._logged += 1
        line = {"at": round(time.time(), 3), "decision": decision, "target": target[:500], **({"why": why} if why else {}), **(more or {})}
        try:
            os.write(self._lines, json.dumps(line).encode() + b"\n")
        except OSError:
            self._logged = MOST_LOGGED  # a full disk stops no connection

    # Model endpoints

    async def _pass_on(self, request: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import asyncio

        said = f"{request.method} {request.target}"
        path, _, query = request.target.partition("?")
        _, name, *below = path.split("/", 2) if path.startswith("/") else ("", "")
        model = self._models.get(name)
        if model is None:
            listed = ", ".join(f"/{known}" for known in self._models) or "none"
            raise RequestRefused(
                f"{said} is for no endpoint of this agent; there are: {listed}. Its launcher can list more (network=).", said
            )
        inner = "/" + "".join(below)
        if "%" in path or ".." in path or "//" in path or "\\" in path or not is_listed(f"{request.method} {inner}", model["requests"]):
            raise RequestRefused(
                f"{said} is not among the requests that the endpoint {name} passes on: {', '.join(model['requests'])}. "
                "The agent's launcher can list more (ModelEndpoint).",
                said,
            )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(
                    model["host"], model["port"], ssl=self._context(model["ca"]) if model["tls"] else None, limit=LONGEST_HEAD
                )
        except (OSError, TimeoutError) as problem:
            raise RequestRefused(
                f"The server of the endpoint {name} cannot be reached: {problem or 'it did not answer in time'}.", said, 502
            ) from None
        heard = AnswerReader(inner) if is_exchange(request.method, inner) else None
        try:
            self._log("passed", said, more=None if heard is None else {})
            dropped = _HOP_BY_HOP | _CREDENTIALS | {"host"} | (set() if heard is None else {"accept-encoding"})
            lines = [f"{request.method} {model['base']}{inner}{'?' if query else ''}{query} HTTP/1.1", f"Host: {model['netloc']}"]
            lines += [f"{known}: {value}" for known, value in request.headers if known not in dropped]
            if model["key"] is not None:
                lines.append(model["header"].format(key=self._keys[model["key"]]))
            lines += ["Connection: close", *(["Transfer-Encoding: chunked"] if request.chunked else []), "", ""]
            far_writer.write("\r\n".join(lines).encode("ascii"))
            if "100-continue" in request.values("expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            sending = asyncio.ensure_future(send_body(request, reader, far_writer, None if heard is None else heard.ask))
            try:
                await copy(far_reader, writer, None if heard is None else lambda data: self._hear(heard, said, data))
            finally:
                if heard is not None:
                    self._hear(heard, said, b"")
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            far_writer.close()

    def _hear(self, heard: AnswerReader, said: str, data: bytes) -> None:
        """Take note of a piece of an answer before it is sent on: with the last one the agent may end, and this process with it."""
        had_ended = heard.ended
        if data:
            heard.feed(data)
        if not had_ended and (heard.ended or not data):
            heard.ended = True
            self._log("answered", said, more=heard.note())

    def _context(self, ca: str | None) -> ssl.SSLContext:
        if ca not in self._contexts:
            import ssl

            self._contexts[ca] = ssl.create_default_context(cafile=ca)
        return self._contexts[ca]

    # The proxy

    async def _tunnel(self, request: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import asyncio

        said = f"CONNECT {request.target}"
        host, _, port = request.target.rpartition(":")
        host = host.lower().removesuffix(".")
        if not host or not port.isdigit() or len(port) > 5 or not set(host) <= TOKEN:
            raise RequestRefused(f"{said}: that is no host and port.", said, 400)
        entry = self._entry(host, int(port))
        if entry is None:
            listed = ", ".join(self._addresses) or "none"
            raise RequestRefused(
                f"{host}:{port} is not among the addresses that this agent may reach: {listed}. Its launcher can list it (network=).", said
            )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                address = await checked_address(host, int(port), said, entry)
                far_reader, far_writer = await asyncio.open_connection(address, int(port))
        except (OSError, TimeoutError) as problem:
            raise RequestRefused(f"{host}:{port} cannot be reached: {problem or 'it did not answer in time'}.", said, 502) from None
        try:
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await writer.drain()
            if not entry.removeprefix(PRIVATE).startswith(TCP):
                async with asyncio.timeout(HEAD_SECONDS):
                    hello = await read_client_hello(reader)
                named = None if hello is None else server_name(hello[1])
                if hello is None or named != (None if is_numeric(host) else host):
                    # There may be no word of HTTP in the tunnel: the connection ends.
                    return self._log("refused", said, f"the tunnel carries {'no TLS' if hello is None else f'TLS for {named}'}")
                far_writer.write(hello[0])
            self._log("passed", said)
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        finally:
            far_writer.close()

    def _entry(self, host: str, port: int) -> str | None:
        for entry in self._addresses:
            listed, _, its_port = entry.removeprefix(PRIVATE).removeprefix(TCP).rpartition(":")
            if int(its_port) != port:
                continue
            if listed == host or (listed.startswith("*.") and host.endswith(listed[1:]) and len(host) > len(listed[1:])):
                return entry
        return None
