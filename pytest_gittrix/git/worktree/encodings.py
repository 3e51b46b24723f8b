"""Encodings of files in a work tree (``working-tree-encoding``), converted by the system's iconv, which is what git uses."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

_UTF8: Final = "UTF-8"
_BOMS: Final = {16: (b"\xfe\xff", b"\xff\xfe"), 32: (b"\0\0\xfe\xff", b"\xff\xfe\0\0")}
_WITH_BOM: Final = {"utf16le-bom": (b"\xff\xfe", "UTF-16LE"), "utf16be-bom": (b"\xfe\xff", "UTF-16BE")}
_ALIASES: Final = {"latin-1": "ISO-8859-1"}
"""What git makes of a name that iconv does not know."""
_COMPARED: Final = "shift-jis"
"""The encoding that git converts back to see that nothing was lost (the default of ``core.checkRoundtripEncoding``)."""


class Unconvertible(ValueError):
    """Bytes are not in the encoding that is declared for them, or the system does not know that encoding."""


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text in UTF-8, and no text in UTF-16 or UTF-32, which has NULs in every line."""
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def recoded_in(data: bytes, encoding: str) -> bytes:
    """The bytes that git stores for a file in an encoding. Raises Unconvertible where ``git add`` fails."""
    kind = _kind(encoding)
    for width, boms in _BOMS.items():
        has_bom = data.startswith(boms)
        if kind in (f"utf{width}be", f"utf{width}le") and has_bom:
            raise Unconvertible(f"{encoding} allows no byte order mark, and it begins with one")
        if kind == f"utf{width}" and not has_bom:
            raise Unconvertible(f"{encoding} needs a byte order mark, and it begins with none")
    stored = _converted(data, "UTF-16" if kind == "utf16le-bom" else encoding, _UTF8)
    if encoding.lower() == _COMPARED and recoded_out(stored, encoding) != data:
        raise Unconvertible(f"it would not be the same after a conversion from {encoding} and back")
    return stored


def recoded_out(data: bytes, encoding: str) -> bytes:
    """The bytes that git writes into a work tree for a blob. Raises Unconvertible where git writes the blob as it is."""
    bom, target = _WITH_BOM.get(_kind(encoding), (b"", encoding))
    return bom + _converted(data, _UTF8, target)


def _kind(encoding: str) -> str:
    """The name of a Unicode encoding as git compares it: without its case, and with or without the first hyphen."""
    name = encoding.lower()
    return f"utf{name[4:]}" if name.startswith("utf-") else name


def _converted(data: bytes, source: str, target: str) -> bytes:
    with _descriptor(source, target) as descriptor:
        given = ctypes.create_string_buffer(data, len(data))
        inside, left = ctypes.cast(given, ctypes.c_char_p), ctypes.c_size_t(len(data))
        parts: list[bytes] = []
        while True:
            room = ctypes.create_string_buffer(4 * len(data) + 16)
            outside, free = ctypes.cast(room, ctypes.c_char_p), ctypes.c_size_t(len(room))
            failed = _iconv().iconv(descriptor, *map(ctypes.byref, (inside, left, outside, free))) == ctypes.c_size_t(-1).value
            parts.append(room.raw[: len(room) - free.value])
            if not failed:
                return b"".join(parts)
            if ctypes.get_errno() != errno.E2BIG:
                raise Unconvertible(f"it is not {source}" if target == _UTF8 else f"it has a character that {target} lacks")


@contextmanager
def _descriptor(source: str, target: str) -> Iterator[ctypes.c_void_p]:
    library = _iconv()
    names = [_ALIASES.get(name.lower(), name).encode("utf-8", "surrogateescape") for name in (target, source)]
    opened = library.iconv_open(*names)
    if opened in (None, ctypes.c_void_p(-1).value):
        raise Unconvertible(f"this system knows no encoding {source if target == _UTF8 else target!r}")
    try:
        yield ctypes.c_void_p(opened)
    finally:
        library.iconv_close(ctypes.c_void_p(opened))


@lru_cache(maxsize=1)
def _iconv() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    try:
        library.iconv_open.restype = ctypes.c_void_p
        library.iconv.restype = ctypes.c_size_t
    except AttributeError:  # a C library that leaves it to another one
        raise Unconvertible("the C library of this system converts no encodings") from None
    return library
