"""What credentials are wrapped in: text in UTF-16, archives, compressed files, and words in base64. Each is opened one level deep.

An agent made the bytes, so how much is unpacked has a limit, and nothing in them may raise.
"""

from __future__ import annotations

import base64
import codecs
import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import Final

_HEAD: Final = 8000
"""How many bytes show whether a file is text, as git decides it."""
_GUESSED: Final = 512
_ZIP: Final = b"PK\x03\x04"
_GZIP: Final = b"\x1f\x8b\x08"
_MEMBER: Final = b"PK\x01\x02"
"""Begins the entry of each file in the table of a zip."""
_MEMBERS: Final = 2000
UNPACKED: Final = 16 * 1024 * 1024
"""How many bytes of one file are unpacked."""
_PLAIN: Final = bytes(range(0x20, 0x7F)) + b"\t\n\r\f\x1b"
_LEAST: Final = 40
"""How long a word in base64 is at least: 30 bytes."""
_OF_BASE64: Final = bytes(0x41 if chr(one) in "+/" or (one < 128 and chr(one).isalnum()) else 0x20 for one in range(256))


def as_text(data: bytes) -> bytes | None:
    """The bytes of a file as text that can be searched line by line; None if they are none.

    UTF-16 is made UTF-8. A file that is plain text but for bytes of zero, such as a log or a tar of text files, has blanks in their place.
    """
    head = data[:_HEAD]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace").encode("utf-8", "replace")
    if head.startswith((_ZIP, _GZIP)):
        return None
    if b"\0" not in head:
        return data
    if (encoding := _wide(head[:_GUESSED])) is not None:
        return data.decode(encoding, "replace").encode("utf-8", "replace")
    written = head.replace(b"\0", b"")
    return data.replace(b"\0", b" ") if len(written.translate(None, _PLAIN)) * 20 < len(written) else None


def _wide(head: bytes) -> str | None:
    """The encoding of text whose every other byte is zero, without a mark that says so."""
    first, second = head[::2], head[1::2]
    for zeros, others, encoding in ((second, first, "utf-16-le"), (first, second, "utf-16-be")):
        if zeros.count(0) * 10 > len(zeros) * 8 and others.count(0) * 20 <= len(others):
            return encoding
    return None


def unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files in a zip by their names, or the contents of a gzip under no name, up to ``UNPACKED`` bytes in all; else nothing."""
    if data.startswith(_GZIP):
        yield "", _inflated(data)
    elif data.startswith(_ZIP) and data.count(_MEMBER) <= _MEMBERS:
        yield from _members(data)


def _inflated(data: bytes) -> bytes:
    parts, left = [], UNPACKED
    while data.startswith(_GZIP) and left > 0:
        unpacker = zlib.decompressobj(31)
        try:
            parts.append(unpacker.decompress(data, left))
        except zlib.error:
            break
        left -= len(parts[-1])
        data = unpacker.unused_data
    return b"".join(parts)


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    left = UNPACKED
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for one in archive.infolist():
                if one.is_dir() or one.flag_bits & 1 or one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or left <= 0:
                    continue
                with archive.open(one) as file:
                    content = file.read(left)
                left -= len(content)
                yield one.filename, content
    except Exception:  # noqa: BLE001  (an agent made the bytes, and zipfile raises what comes to it; what was read was looked at)
        return


def base64_words(text: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Where each long word in base64 begins and ends that encodes text, and that text."""
    marked = text.translate(_OF_BASE64)
    run, at = b"A" * _LEAST, 0
    while (at := marked.find(run, at)) >= 0:
        end = marked.find(b" ", at)
        end = end if end >= 0 else len(text)
        content = base64.b64decode(text[at : end - (end - at) % 4])
        if content.isascii():
            yield at, end, content
        at = end
