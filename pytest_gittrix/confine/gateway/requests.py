"""What a gateway reads and checks: requests of HTTP, their bodies, the beginning of TLS, and the addresses that names lead to.

Sources: RFC 9112 (HTTP/1.1), RFC 8446 (TLS), RFC 6066 (server names).
"""

from __future__ import annotations

import _socket
import struct

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TCP = "tcp://"
"""What an address begins with that is reached by other protocols than TLS."""
PRIVATE = "private:"
"""What an entry begins with whose host may be on a private network, or this machine."""

_BLOCK = 1 << 16
_LONGEST_HELLO = 1 << 16
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0
TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class RequestRefused(Exception):
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
        RequestRefused: it is malformed, or two servers could read it differently.
    """

    def __init__(self, head: bytes) -> None:
        try:
            first, *rest = head.removesuffix(b"\r\n\r\n").decode("ascii").split("\r\n")
        except UnicodeDecodeError:
            raise RequestRefused("The head of the request is not ASCII.", status=400) from None
        words = first.split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[0].isalpha() or not words[1].isprintable():
            raise RequestRefused("The first line is no request of HTTP/1.1.", status=400)
        self.method, self.target = words[0], words[1]
        self.headers: list[tuple[str, str]] = []
        for line in rest:
            name, colon, value = line.partition(":")
            value = value.strip(" \t")
            if not colon or not name or not set(name) <= TOKEN or not value.replace("\t", " ").isprintable():
                raise RequestRefused("A header of the request is malformed.", self.target, status=400)
            self.headers.append((name.lower(), value))
        lengths, codings = self.values("content-length"), self.values("transfer-encoding")
        self.chunked = bool(codings)
        if (
            len(lengths) + len(codings) > 1
            or (codings and codings != ["chunked"])
            or not all(one.isdigit() and len(one) < 16 for one in lengths)
        ):
            raise RequestRefused("The request does not say one length of its body.", self.target, status=400)
        self.length = int(lengths[0]) if lengths else 0

    def values(self, name: str) -> list[str]:
        """The values of a header, in lower case."""
        return [value.lower() for known, value in self.headers if known == name]


def is_listed(asked: str, requests: list[str]) -> bool:
    """Whether a request is passed on: it is listed as a whole, or begins with the text before a ``*``."""
    return any(asked.startswith(one[:-1]) if one.endswith("*") else asked == one for one in requests)


def is_numeric(host: str) -> bool:
    """Whether a host is an address of IPv4 in numbers."""
    try:
        _socket.inet_aton(host)
    except OSError:
        return False
    return True


async def checked_address(host: str, port: int, said: str, entry: str) -> str:
    """The address that a listed host is reached at.

    Raises:
        RequestRefused: the name leads to this machine's link, or its entry does not say ``private:`` and it leads to this machine or to a
            private network. An address on a private network may be listed as a number, too.
        OSError: it cannot be resolved.
    """
    import asyncio
    import ipaddress
    import socket

    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    listed = entry.startswith(PRIVATE)
    by_number = "*" not in entry and is_numeric(host)
    for address in addresses:
        its = getattr(address, "ipv4_mapped", None) or address
        leads = f"{host} leads to {address}, which is"
        if not by_number and (its.is_link_local or its.is_unspecified or its.is_multicast or (its.is_reserved and not its.is_loopback)):
            raise RequestRefused(f"{leads} no address for a name to lead to.", said)
        if not listed and (its.is_loopback or is_own(str(its))):
            raise RequestRefused(f"{leads} this machine. The agent's launcher can list {PRIVATE}{entry.removeprefix('*.')}.", said)
        if not listed and not by_number and not its.is_global:
            raise RequestRefused(f"{leads} on a private network. The agent's launcher can list {PRIVATE}{entry.removeprefix('*.')}.", said)
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


async def send_body(
    request: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hear: Callable[[bytes], object] | None = None
) -> None:
    """Send on the body of one request, and no byte after it; ``hear`` is called with each piece."""
    if not request.chunked:
        await _copy_exactly(reader, writer, request.length, hear)
        return
    size = -1
    while size:
        line = await reader.readuntil(b"\r\n")
        digits = line[:-2].partition(b";")[0].strip()
        size = int(digits, 16) if digits and len(digits) < 16 and digits.isalnum() else 0
        writer.write(b"%x\r\n" % size)
        await _copy_exactly(reader, writer, size, hear)
        if size:
            await reader.readexactly(2)
        writer.write(b"\r\n")
    await writer.drain()


async def _copy_exactly(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int, hear: Callable[[bytes], object] | None
) -> None:
    while length:
        data = await reader.read(min(length, _BLOCK))
        if not data:
            raise EOFError
        if hear is not None:
            hear(data)
        writer.write(data)
        await writer.drain()
        length -= len(data)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hear: Callable[[bytes], object] | None = None) -> None:
    """Send on what comes until its end, and say that it ended; before that ``hear`` gets each piece, and nothing at the end."""
    while data := await reader.read(_BLOCK):
        if hear is not None:
            hear(data)
        writer.write(data)
        await writer.drain()
    if hear is not None:
        hear(b"")
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
