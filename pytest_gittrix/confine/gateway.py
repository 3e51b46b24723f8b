"""The gateway of a confined program: the only way out of a network that is a list.

It is a process outside of the confinement. Number 1 of a jail binds a port on the loopback of the jail's network and hands the listening
socket over; a socket stays in the network where it was made, so nothing of the gateway is inside. At guard, where there is no such network,
it is handed the other end of each socket that the program gets. It serves

- model endpoints: plain HTTP requests to ``/<name>/...``. Listed requests are passed on by TLS, with the key that the jail does not have.
- a proxy: ``CONNECT host:port`` to listed addresses. The gateway resolves the name, connects to the address that it checked, and lets
  nothing through but TLS that names the same host.

Each connection carries one request. What is not listed is refused, with a reason, and each decision is a line of the gateway's log.
Sources: RFC 9112 (HTTP/1.1), RFC 8446 (TLS), RFC 6066 (server names), unix(7).
"""

from __future__ import annotations

import _socket
import os
import struct

from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.proc import open_descriptors

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    import asyncio
    import ssl
    from typing import Any, NoReturn

PORT = 3128
"""Where the gateway listens on a jail's loopback."""
KEYS = "GITTRIX_GATEWAY_KEYS"
"""The variable by which keys come to whoever confines a program. The program never has it."""
LISTENER, CONNECTION = b"l", b"c"
"""What a gateway is handed: a socket to accept connections on, or one connection."""
TCP = "tcp://"
"""What an address begins with that is reached by other protocols than TLS."""
PRIVATE = "private:"
"""What an entry begins with whose host may be on a private network, or this machine."""

HEAD_SECONDS = 15.0
CONNECT_SECONDS = 20.0
LONGEST_HEAD = 1 << 16
MOST_CONNECTIONS = 256
MOST_LOGGED = 10_000

_BLOCK = 1 << 16
_LONGEST_HELLO = 1 << 16
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
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
        EOFError: nobody can send any more.
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


class Refused(Exception):
    """A request that is not passed on. The text is the answer."""

    def __init__(self, text: str, target: str = "", status: int = 403) -> None:
        super().__init__(text)
        self.target = target
        self.status = status


class RequestHead:
    """The head of one request.

    Args:
        head: all of it, with the empty line at its end.

    Raises:
        Refused: it is malformed, or two servers could read it differently.
    """

    def __init__(self, head: bytes) -> None:
        try:
            first, *rest = head.removesuffix(b"\r\n\r\n").decode("ascii").split("\r\n")
        except UnicodeDecodeError:
            raise Refused("The head of the request is not ASCII.", status=400) from None
        words = first.split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[0].isalpha() or not words[1].isprintable():
            raise Refused("The first line is no request of HTTP/1.1.", status=400)
        self.method, self.target = words[0], words[1]
        self.headers: list[tuple[str, str]] = []
        for line in rest:
            name, colon, value = line.partition(":")
            value = value.strip(" \t")
            if not colon or not name or not set(name) <= _TOKEN or not value.replace("\t", " ").isprintable():
                raise Refused("A header of the request is malformed.", self.target, status=400)
            self.headers.append((name.lower(), value))
        lengths, codings = self.values("content-length"), self.values("transfer-encoding")
        self.chunked = bool(codings)
        if (
            len(lengths) + len(codings) > 1
            or (codings and codings != ["chunked"])
            or not all(one.isdigit() and len(one) < 16 for one in lengths)
        ):
            raise Refused("The request does not say one length of its body.", self.target, status=400)
        self.length = int(lengths[0]) if lengths else 0

    def values(self, name: str) -> list[str]:
        """The values of a header, in lower case."""
        return [value.lower() for known, value in self.headers if known == name]


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
        """Answer connections that are handed over one by one, until nobody can hand over more and all are answered."""
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
            except Refused as refusal:
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

    def _log(self, decision: str, target: str, why: str = "") -> None:
        if self._lines < 0 or self._logged >= MOST_LOGGED:
            return
        import json
        import time

        self._logged += 1
        line = {"at": round(time.time(), 3), "decision": decision, "target": target[:500], **({"why": why} if why else {})}
        try:
            os.write(self._lines, json.dumps(line).encode() + b"\n")
        except OSError:
            self._logged = MOST_LOGGED  # a full disk keeps nobody from working

    # Model endpoints

    async def _pass_on(self, request: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import asyncio

        said = f"{request.method} {request.target}"
        path, _, query = request.target.partition("?")
        _, name, *below = path.split("/", 2) if path.startswith("/") else ("", "")
        model = self._models.get(name)
        if model is None:
            listed = ", ".join(f"/{known}" for known in self._models) or "none"
            raise Refused(f"{said} is for no endpoint of this agent; there are: {listed}. Its launcher can list more (network=).", said)
        inner = "/" + "".join(below)
        if "%" in path or ".." in path or "//" in path or "\\" in path or not _is_listed(f"{request.method} {inner}", model["requests"]):
            raise Refused(
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
            raise Refused(
                f"The server of the endpoint {name} cannot be reached: {problem or 'it did not answer in time'}.", said, 502
            ) from None
        try:
            self._log("passed", said)
            dropped = _HOP_BY_HOP | _CREDENTIALS | {"host"}
            lines = [f"{request.method} {model['base']}{inner}{'?' if query else ''}{query} HTTP/1.1", f"Host: {model['netloc']}"]
            lines += [f"{known}: {value}" for known, value in request.headers if known not in dropped]
            if model["key"] is not None:
                lines.append(model["header"].format(key=self._keys[model["key"]]))
            lines += ["Connection: close", *(["Transfer-Encoding: chunked"] if request.chunked else []), "", ""]
            far_writer.write("\r\n".join(lines).encode("ascii"))
            if "100-continue" in request.values("expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            sending = asyncio.ensure_future(_send_body(request, reader, far_writer))
            try:
                await _copy(far_reader, writer)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            far_writer.close()

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
        if not host or not port.isdigit() or len(port) > 5 or not set(host) <= _TOKEN:
            raise Refused(f"{said}: that is no host and port.", said, 400)
        entry = self._entry(host, int(port))
        if entry is None:
            listed = ", ".join(self._addresses) or "none"
            raise Refused(
                f"{host}:{port} is not among the addresses that this agent may reach: {listed}. Its launcher can list it (network=).", said
            )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                address = await _checked_address(host, int(port), said, entry)
                far_reader, far_writer = await asyncio.open_connection(address, int(port))
        except (OSError, TimeoutError) as problem:
            raise Refused(f"{host}:{port} cannot be reached: {problem or 'it did not answer in time'}.", said, 502) from None
        try:
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await writer.drain()
            if not entry.removeprefix(PRIVATE).startswith(TCP):
                async with asyncio.timeout(HEAD_SECONDS):
                    hello = await read_client_hello(reader)
                named = None if hello is None else server_name(hello[1])
                if hello is None or named != (None if _is_numeric(host) else host):
                    # There may be no word of HTTP in the tunnel: the connection ends.
                    return self._log("refused", said, f"the tunnel carries {'no TLS' if hello is None else f'TLS for {named}'}")
                far_writer.write(hello[0])
            self._log("passed", said)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
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


def _is_listed(asked: str, requests: list[str]) -> bool:
    """Whether a request is passed on: it is listed as a whole, or begins with what stands before a ``*``."""
    return any(asked.startswith(one[:-1]) if one.endswith("*") else asked == one for one in requests)


def _is_numeric(host: str) -> bool:
    try:
        _socket.inet_aton(host)
    except OSError:
        return False
    return True


async def _checked_address(host: str, port: int, said: str, entry: str) -> str:
    """The address that a listed host is reached at.

    Raises:
        Refused: the name leads to this machine's link, or its entry does not say ``private:`` and it leads to this machine or to a
            private network. An address on a private network may be listed as a number, too.
        OSError: it cannot be resolved.
    """
    import asyncio
    import ipaddress
    import socket

    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    listed = entry.startswith(PRIVATE)
    by_number = "*" not in entry and _is_numeric(host)
    for address in addresses:
        its = getattr(address, "ipv4_mapped", None) or address
        leads = f"{host} leads to {address}, which is"
        if not by_number and (its.is_link_local or its.is_unspecified or its.is_multicast or (its.is_reserved and not its.is_loopback)):
            raise Refused(f"{leads} no address for a name to lead to.", said)
        if not listed and (its.is_loopback or is_own(str(its))):
            raise Refused(f"{leads} this machine. The agent's launcher can list {PRIVATE}{entry.removeprefix('*.')}.", said)
        if not listed and not by_number and not its.is_global:
            raise Refused(f"{leads} on a private network. The agent's launcher can list {PRIVATE}{entry.removeprefix('*.')}.", said)
    return str(addresses[0])


def is_own(address: str) -> bool:
    """Whether an address is that of an interface of this machine: a socket connected to it is at the same address. No packet is sent."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return False
        return bool(probe.getsockname()[0] == address)


async def _send_body(request: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send on the body of one request, and no byte after it."""
    if not request.chunked:
        await _copy_exactly(reader, writer, request.length)
        return
    size = -1
    while size:
        line = await reader.readuntil(b"\r\n")
        digits = line[:-2].partition(b";")[0].strip()
        size = int(digits, 16) if digits and len(digits) < 16 and digits.isalnum() else 0
        writer.write(b"%x\r\n" % size)
        await _copy_exactly(reader, writer, size)
        if size:
            await reader.readexactly(2)
        writer.write(b"\r\n")
    await writer.drain()


async def _copy_exactly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> None:
    while length:
        data = await reader.read(min(length, _BLOCK))
        if not data:
            raise EOFError
        writer.write(data)
        await writer.drain()
        length -= len(data)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send on what comes until its end, and say that it ended."""
    while data := await reader.read(_BLOCK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def read_client_hello(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """The first message of a TLS connection, however many records it comes in: all bytes that were read, and the message.

    None if it is no TLS.
    """
    raw, message = b"", b""
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        header = await reader.readexactly(5)
        length = int.from_bytes(header[3:], "big")
        if header[0] != _HANDSHAKE or header[1] != 3 or not 0 < length <= 1 << 14 or len(raw) > _LONGEST_HELLO:
            return None
        body = await reader.readexactly(length)
        raw += header + body
        message += body
        if message[0] != _CLIENT_HELLO:
            return None
    return raw, message[: 4 + int.from_bytes(message[1:4], "big")]


def server_name(hello: bytes) -> str | None:
    """The host that a ClientHello names; None if it names none, and empty if that cannot be read."""
    try:
        at = 4 + 2 + 32
        at += 1 + hello[at]
        at += 2 + int.from_bytes(hello[at : at + 2], "big")
        at += 1 + hello[at]
        end = at + 2 + int.from_bytes(hello[at : at + 2], "big")
        at += 2
        while at + 4 <= end:
            kind, length = struct.unpack_from(">HH", hello, at)
            if kind == _SERVER_NAME:
                its_kind, its_length = struct.unpack_from(">BH", hello, at + 6)
                name = hello[at + 9 : at + 9 + its_length]
                return name.decode("ascii").lower().removesuffix(".") if its_kind == 0 and its_length == len(name) == length - 5 else ""
            at += 4 + length
    except (IndexError, struct.error, UnicodeDecodeError):
        return ""
    return None
