"""The bodies of requests as they come over HTTP: with a length or in pieces, plain or packed, and never more than fits."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from email.message import Message
from io import BufferedIOBase
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput

LONGEST: Final = 64 << 20
"""The most bytes of one request, as it comes and as it is unpacked."""

_DEEPEST: Final = 100
_SEE_CLIENT: Final = "See the client that sent it."
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


def json_body(stream: BufferedIOBase, headers: Message) -> Mapping[str, Any]:
    """The JSON of a request.

    Raises:
        InvalidInput: it is none, is cut off or too long, or is packed in an unknown way.
    """
    raw = _unpacked(_raw(stream, headers), (headers.get("content-encoding") or "").strip().lower())
    try:
        found = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"The body of the request is not JSON: {problem}.", fix=_SEE_CLIENT) from None
    if not isinstance(found, dict):
        raise InvalidInput("The body of the request is not a JSON object.", fix=_SEE_CLIENT)
    return found


def texts_in(value: object, depth: int = 0) -> Iterator[str]:
    """All texts within a JSON value. Raises InvalidInput: nothing could work on it, it is nested so deeply."""
    if depth > _DEEPEST:
        raise InvalidInput(f"The body of the request is nested more than {_DEEPEST} times.", fix="See the client that sent it.")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from texts_in(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one, depth + 1)
    elif value is not None:
        yield str(value)


def _raw(stream: BufferedIOBase, headers: Message) -> bytes:
    coding = (headers.get("transfer-encoding") or "").strip().lower()
    if coding == "chunked":
        return b"".join(_chunks(stream))
    if coding not in ("", "identity"):
        raise InvalidInput(f"The request is sent as {coding!r}.", why="The server reads a length, or chunks.", fix=_SEE_CLIENT)
    lengths = {text.strip() for text in headers.get_all("content-length", ["0"])}
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdigit()):
        raise InvalidInput("The request has no valid length.", fix=_SEE_CLIENT)
    if len(length) > len(str(LONGEST)) or int(length) > LONGEST:
        raise _too_long()
    return _exactly(stream, int(length))


def _exactly(stream: BufferedIOBase, size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise InvalidInput(f"The request ends after {len(found):,} of {size:,} bytes.", fix=_SEE_CLIENT)
    return found


def _chunks(stream: BufferedIOBase) -> Iterator[bytes]:
    total = 0
    while True:
        try:
            size = int(stream.readline(4096).partition(b";")[0].strip(), 16)
        except ValueError:
            raise InvalidInput("The chunks of the request are malformed.", fix=_SEE_CLIENT) from None
        total += size
        if total > LONGEST or size < 0:
            raise _too_long()
        if not size:
            break
        yield _exactly(stream, size)
        stream.readline(8)
    while stream.readline(65_536).strip():
        pass  # trailers say nothing of the body


def _unpacked(raw: bytes, coding: str) -> bytes:
    if coding in ("", "identity"):
        return raw
    if coding in ("gzip", "x-gzip"):
        return _inflated(raw, coding, _GZIP)
    if coding == "deflate":
        # The name stands for zlib's form; a few clients send what is within it.
        return _inflated(raw, coding, _ZLIB if raw[:1] and raw[0] & 0x0F == 8 else _RAW)
    raise InvalidInput(
        f"The body of the request is packed by {coding!r}.",
        why="The server unpacks gzip and deflate.",
        fix="Let the client send its requests plain.",
    )


def _inflated(raw: bytes, coding: str, form: int) -> bytes:
    unpacking = zlib.decompressobj(form)
    try:
        found = unpacking.decompress(raw, LONGEST + 1)
    except zlib.error as problem:
        raise InvalidInput(f"The body of the request is not {coding}: {problem}.", fix=_SEE_CLIENT) from None
    if len(found) > LONGEST:
        raise _too_long()
    if not unpacking.eof:
        raise InvalidInput(f"The body of the request is not {coding}: it is cut off.", fix=_SEE_CLIENT)
    return found


def _too_long() -> InvalidInput:
    return InvalidInput("The request is too long.", fix=f"Send at most {LONGEST:,} bytes.")
