"""What git makes of a file's bytes between a work tree and a commit, by the file's attributes: git's ``convert.c``.

Line endings, encodings and ``$Id$`` are converted as git does it. A filter is a program of the person's, and none is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, Literal, NamedTuple

from pytest_gittrix.git.git_directory import TextConfig, info_attributes, text_config
from pytest_gittrix.git.worktree.attributes import Attributes, Value
from pytest_gittrix.git.worktree.encodings import Unconvertible, is_utf8, recoded_in, recoded_out

Text = Literal["no", "yes", "auto"]
_TEXT: Final[Mapping[Value, tuple[Text, bool | None]]] = {
    True: ("yes", None),
    False: ("no", None),
    "input": ("yes", False),
    "auto": ("auto", None),
}
_EOL: Final[Mapping[Value, bool]] = {"lf": False, "crlf": True}
_CLOSED_ID: Final = re.compile(rb"\$Id:[^$\n]*\$")
_OPEN_ID: Final = re.compile(rb"\$Id(?:\$|:(?:[^$\n][^ $\n]* ?)?\$)")
"""An identifier that git writes the blob's id into. It leaves alone one with spaces in other places, as other systems write it."""
_UNPRINTABLE: Final = bytes([*range(8), 11, *range(14, 27), *range(28, 32), 127])
_LFS_POINTER: Final = re.compile(
    rb"version https?://[^\n]+\n(?:ext-[^\n]*\n)*oid [a-z0-9]+:[0-9a-f]+\nsize [0-9]+\n(?:[a-z0-9.-]+ [^\n]*\n)*",
)
_LONGEST_POINTER: Final = 1024

BytesBefore = Callable[[], bytes | None]
"""Returns what the index has at the file's path; None if it has nothing there."""


class Conversion(NamedTuple):
    """How git converts one file.

    Attributes:
        text: whether its line endings are converted; ``auto`` if it looks like text.
        crlf: whether its lines end in CRLF in a work tree.
        ident: whether ``$Id$`` is expanded there.
        encoding: the encoding that it has there; None for that of the repository.
    """

    text: Text = "no"
    crlf: bool = False
    ident: bool = False
    encoding: str | None = None

    def to_git(self, data: bytes, before: BytesBefore, *, lenient: bool = False) -> bytes:
        """The bytes that ``git add`` stores for a file, but for its filter.

        Args:
            data: the file's bytes in a work tree.
            before: what is in the index; where that has CRLF already, ``text=auto`` lets it stay.
            lenient: whether a file may be in the encoding of the repository, as in a workspace, whatever encoding is declared.

        Raises:
            Unconvertible: it is not in its encoding.
        """
        if self.encoding is not None and data and not (lenient and is_utf8(data)):
            data = recoded_in(data, self.encoding)
        if self.text != "no" and b"\r\n" in data and (self.text == "yes" or not (_is_binary(data) or _has_crlf(before()))):
            data = data.replace(b"\r\n", b"\n")
        return _CLOSED_ID.sub(b"$Id$", data) if self.ident else data

    def to_worktree(self, data: bytes, id_: str) -> bytes:
        """The bytes that ``git checkout`` writes for a blob, but for its filter; ``id_`` is the blob's id."""
        if self.ident:
            data = _OPEN_ID.sub(b"$Id: %s $" % id_.encode(), data)
        if self.text != "no" and self.crlf and (self.text == "yes" or not (b"\r" in data or _is_binary(data))):
            data = data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        if self.encoding is not None and data:
            try:
                return recoded_out(data, self.encoding)
            except Unconvertible:
                return data  # as git does, with a message
        return data


class Conversions:
    """How git converts the files of one tree.

    Args:
        read: returns the contents of a directory's ``.gitattributes``; empty where there is none.
        common_dir: the repository whose ``info/attributes`` and own configuration count; None for neither.
    """

    def __init__(self, read: Callable[[str], bytes], common_dir: str | None) -> None:
        self._common_dir = common_dir
        self._attributes = Attributes(read, info_attributes(common_dir))

    @cached_property
    def _config(self) -> TextConfig:
        return text_config(self._common_dir)  # read when a file needs it: that loads libgit2

    def of(self, path: str) -> Conversion:
        """How git converts the file at a path."""
        found = self._attributes.of(path)
        text, crlf = self._line_endings(found)
        encoding = found.get("working-tree-encoding")
        return Conversion(
            text,
            crlf,
            found.get("ident") is True,
            encoding if isinstance(encoding, str) and encoding and encoding.lower() not in ("utf-8", "utf8") else None,
        )

    def filter_of(self, path: str) -> str | None:
        """The name of the program that the file at a path goes through; None for none."""
        found = self._attributes.of(path).get("filter")
        return found if isinstance(found, str) and found else None

    def _line_endings(self, found: Mapping[str, Value]) -> tuple[Text, bool]:
        declared = _TEXT.get(found.get("text")) or _TEXT.get(found.get("crlf"))
        text, crlf = declared or ("yes", None)
        asked = _EOL.get(found.get("eol"))
        if text != "no" and asked is not None:
            crlf, declared = asked, (text, asked)
        if declared is None:
            return ("auto", self._config.autocrlf is True) if self._config.autocrlf else ("no", False)
        return text, self._config.crlf if crlf is None else crlf


def is_as_filtered(data: bytes, filter_: str) -> bool:
    """Whether bytes are known to be what a filter would store: nothing, or a pointer of Git LFS."""
    return not data or (filter_ == "lfs" and len(data) < _LONGEST_POINTER and _LFS_POINTER.fullmatch(data) is not None)


def _has_crlf(data: bytes | None) -> bool:
    return data is not None and b"\r\n" in data and not _is_binary(data)


def _is_binary(data: bytes) -> bool:
    """Whether git takes bytes for no text, where it has to guess."""
    if b"\0" in data or data.count(b"\r") != data.count(b"\r\n"):
        return True
    unprintable = len(data) - len(data.translate(None, _UNPRINTABLE))
    printable = len(data) - unprintable - data.count(b"\n") - data.count(b"\r")
    return printable >> 7 < unprintable - data.endswith(b"\x1a")
