"""Decide which attributes the ``.gitattributes`` files of a tree give to a path.

A line means the same as to git, byte for byte: gitattributes(5), and git's ``attr.c`` for what that leaves open. The attributes of a user
and of a machine count for nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pytest_gittrix.git.ignore import Unmatchable, compile_pattern
from pytest_gittrix.git.tree import parents

ATTRIBUTES: Final = ".gitattributes"
"""The name of the files."""

Value = bool | str | None
"""Set, unset, a text, or unspecified (None)."""

_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n"
_MACRO: Final = b"[attr]"
_LONGEST_LINE: Final = 2047
_NAME: Final = re.compile(rb"(?!-)[-A-Za-z0-9_.]+")
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\(?:[abfnrtv"\\]|[0-3][0-7]{2}))*)"')
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_LETTERS: Final = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))


class _Line(NamedTuple):
    """One line: the attributes of the paths that match, or a macro.

    Attributes:
        pattern: what the last component, or the path from the file's own directory, must match; None for a macro.
        whole_path: whether the pattern applies to the path.
        macro: the name of the macro; empty for a pattern.
        values: each attribute with its value, the last one first.
    """

    pattern: re.Pattern[bytes] | None
    whole_path: bool
    macro: str
    values: tuple[tuple[str, Value], ...]


_BINARY: Final = (("text", False), ("merge", False), ("diff", False))


class Attributes:
    """The attributes that the files of one tree give.

    Args:
        read: returns the contents of a directory's ``.gitattributes`` ('' is the root); empty where there is none.
        info: contents of the repository's ``info/attributes``, which take precedence.
    """

    def __init__(self, read: Callable[[str], bytes], info: bytes = b"") -> None:
        self._read = lru_cache(maxsize=None)(read)
        self._info = _parse(info)
        self._macros: dict[str, Sequence[tuple[str, Value]]] = {"binary": _BINARY}
        for line in (*reversed(_parse(self._read(""))), *reversed(self._info)):
            if line.pattern is None:
                self._macros[line.macro] = line.values

    def of(self, path: str) -> Mapping[str, Value]:
        """The attributes of a file. One that is missing is unspecified."""
        found: dict[str, Value] = {}
        raw = os.fsencode(path)
        name = raw.rpartition(b"/")[2]
        for lines, below in self._sources(path, raw):
            for line in lines:
                if line.pattern is not None and line.pattern.fullmatch(below if line.whole_path else name):
                    self._take(found, line.values)
        return found

    def _sources(self, path: str, raw: bytes) -> Iterator[tuple[Sequence[_Line], bytes]]:
        """The lines that may match a path, the last of those that take precedence first, each with the path as their patterns see it."""
        yield self._info, raw
        for directory in reversed(["", *parents(path)]):
            if data := self._read(directory):
                yield _parse(data), raw[len(os.fsencode(directory)) + 1 :] if directory else raw

    def _take(self, found: dict[str, Value], values: Sequence[tuple[str, Value]]) -> None:
        for name, value in values:
            if name not in found:
                found[name] = value
                if value is True and name in self._macros:
                    self._take(found, self._macros[name])


@lru_cache(maxsize=256)
def _parse(data: bytes) -> Sequence[_Line]:
    """The lines of a file, the last one first."""
    lines = map(_parse_line, data.removeprefix(_BOM).split(b"\n"))
    return [line for line in lines if line is not None][::-1]


def _parse_line(raw: bytes) -> _Line | None:
    text = raw.partition(b"\0")[0]
    if len(text) > _LONGEST_LINE:
        return None
    text = text.lstrip(_BLANK)
    if not text or text.startswith(b"#"):
        return None
    quoted = _QUOTED.match(text)
    pattern = _ESCAPE.sub(_unescaped, quoted[1]) if quoted is not None else _word(text)
    rest = text[quoted.end() :] if quoted is not None else text[len(pattern) :]
    is_macro = len(pattern) > len(_MACRO) and pattern.startswith(_MACRO)
    if is_macro and not _NAME.fullmatch(_word(pattern[len(_MACRO) :].lstrip(_BLANK))):
        return None
    values: list[tuple[str, Value]] = []
    while rest := rest.lstrip(_BLANK):
        state = _word(rest)
        rest = rest[len(state) :]
        name, equals, value = state.partition(b"=")
        bare = name[1:] if name[:1] in (b"-", b"!") else name
        if not _NAME.fullmatch(bare):
            return None
        if bare is not name:
            values.append((bare.decode(), False if name.startswith(b"-") else None))
        else:
            values.append((bare.decode(), os.fsdecode(value) if equals else True))
    if is_macro:
        return _Line(None, False, _word(pattern[len(_MACRO) :].lstrip(_BLANK)).decode(), tuple(values[::-1]))
    if pattern.startswith(b"!") or pattern.endswith(b"/"):  # git knows no negative pattern here, and asks for no directory
        return None
    try:
        return _Line(compile_pattern(pattern.removeprefix(b"/")), b"/" in pattern, "", tuple(values[::-1]))
    except Unmatchable:
        return None


def _word(text: bytes) -> bytes:
    """The text before the first blank."""
    return re.match(rb"[^ \t\r\n]*", text)[0]  # type: ignore[index]


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8) if len(code) == 3 else _LETTERS[code[0]]])
