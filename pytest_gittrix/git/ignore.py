"""Decide which untracked files the ``.gitignore`` files of a tree ignore.

A snapshot uses the baseline's rules, never the workspace's, so that an agent cannot hide files by editing ``.gitignore`` (rule 3,
docs/explanation/rules.md). A line means the same as to git, byte for byte: gitignore(5), and git's ``dir.c`` and ``wildmatch.c`` for what
that leaves open. A line that never matches in git never matches here.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

_SPECIAL: Final = re.compile(rb"[*?\[\\]")
_TRAILING_SPACES: Final = re.compile(rb"((?:\\.|[^\\])*?) *", re.DOTALL)
_BOM: Final = b"\xef\xbb\xbf"
_BLANK, _SPACE = frozenset(b" \t"), frozenset(b" \t\n\r")
_PRINT: Final = frozenset(range(0x20, 0x7F))
_CLASSES: Final[Mapping[bytes, frozenset[int]]] = {
    b"alnum": frozenset((string.ascii_letters + string.digits).encode()),
    b"alpha": frozenset(string.ascii_letters.encode()),
    b"blank": _BLANK,
    b"cntrl": frozenset([*range(0x20), 0x7F]),
    b"digit": frozenset(string.digits.encode()),
    b"graph": _PRINT - _SPACE,
    b"lower": frozenset(string.ascii_lowercase.encode()),
    b"print": _PRINT,
    b"punct": frozenset(string.punctuation.encode()),
    b"space": _SPACE,
    b"upper": frozenset(string.ascii_uppercase.encode()),
    b"xdigit": frozenset(string.hexdigits.encode()),
}


class _Unmatchable(ValueError):
    """A pattern that no name can match."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of a ``.gitignore`` file.

    Attributes:
        pattern: what the last component, or the path from the file's own directory, must match.
        ignores: False for a line that starts with ``!``.
        directories_only: whether the line ended in a slash.
        whole_path: whether the line had a slash elsewhere, so that the pattern applies to the path.
    """

    pattern: re.Pattern[bytes]
    ignores: bool
    directories_only: bool
    whole_path: bool


class Ignore:
    """The ignore rules of one tree.

    Args:
        sources: contents of each ``.gitignore``, by its directory ('' is the root).
    """

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self._sources = sources
        self._directories: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._sources)

    @cached_property
    def _rules(self) -> dict[bytes, list[_Rule]]:
        """The rules by directory, in reverse order, since the last matching line decides."""
        return {os.fsencode(directory): _parse(data)[::-1] for directory, data in self._sources.items()}

    def ignored(self, path: str, *, directory: bool = False) -> bool:
        """Whether the rules ignore ``path`` or a directory above it."""
        if not self._sources:
            return False
        return self._directory_ignored(path.rpartition("/")[0]) or self._matched(path, directory)

    def _directory_ignored(self, directory: str) -> bool:
        if not directory:
            return False
        known = self._directories.get(directory)
        if known is None:
            known = self._directories[directory] = self.ignored(directory, directory=True)
        return known

    def _matched(self, path: str, directory: bool) -> bool:
        """Whether ``path`` itself is ignored: the nearest ``.gitignore`` with a matching rule decides."""
        raw = os.fsencode(path)
        name = raw.rpartition(b"/")[2]
        base = raw
        while base:
            base = base.rpartition(b"/")[0]
            below = raw[len(base) + 1 :] if base else raw
            for rule in self._rules.get(base, ()):
                if (directory or not rule.directories_only) and rule.pattern.fullmatch(below if rule.whole_path else name):
                    return rule.ignores
        return False


def _parse(data: bytes) -> list[_Rule]:
    rules = []
    for line in data.removeprefix(_BOM).split(b"\n"):
        if line.startswith(b"#"):
            continue
        line = line.removesuffix(b"\r").partition(b"\0")[0]
        trimmed = _TRAILING_SPACES.fullmatch(line)
        text = trimmed[1] if trimmed else line
        ignores = not text.startswith(b"!")
        pattern = text if ignores else text[1:]
        directories_only = pattern.endswith(b"/")
        pattern = pattern.removesuffix(b"/")
        try:
            compiled = _compile(pattern.removeprefix(b"/"))
        except _Unmatchable:
            continue
        rules.append(_Rule(compiled, ignores, directories_only, b"/" in pattern))
    return rules


def _compile(pattern: bytes) -> re.Pattern[bytes]:
    """The regular expression for a pattern of git's ``wildmatch``, whose wildcards match no slash."""
    special = _SPECIAL.search(pattern)
    # Git compares the text before the first special character separately, so the rest is a pattern that starts after it.
    at = special.start() if special else len(pattern)
    parts = [re.escape(pattern[:at])]
    pattern, at = pattern[at:], 0
    while at < len(pattern):
        letter = pattern[at : at + 1]
        if letter == b"*":
            part, at = _stars(pattern, at)
        elif letter == b"[":
            part, at = _bracket(pattern, at + 1)
        elif letter == b"?":
            part, at = b"[^/]", at + 1
        else:
            at += letter == b"\\"
            part, at = re.escape(_byte(pattern, at)), at + 1
        parts.append(part)
    return re.compile(b"".join(parts), re.DOTALL)


def _byte(pattern: bytes, at: int) -> bytes:
    if at >= len(pattern):
        raise _Unmatchable
    return pattern[at : at + 1]


def _stars(pattern: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    rest = pattern[end:]
    alone = (at == 0 or pattern[at - 1 : at] == b"/") and (not rest or rest.startswith((b"/", b"\\/")))
    if end - at == 1 or not alone:
        return b"[^/]*", end
    if rest.startswith(b"/"):
        return b"(?:.*/)?", end + 1
    return b".*", end


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Parse a set of bytes, from after its opening bracket."""
    negated = _byte(pattern, at) in b"!^"
    at += negated
    chosen: set[int] = set()
    before = 0
    first = True
    while first or _byte(pattern, at) != b"]":
        first = False
        letter = _byte(pattern, at)
        named = re.compile(rb"\[:([^\]]*):\]").match(pattern, at)
        if named is not None:
            if named[1] not in _CLASSES:
                raise _Unmatchable
            chosen |= _CLASSES[named[1]]
            before, at = 0, named.end()
        elif letter == b"-" and before and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1 + (pattern[at + 1 : at + 2] == b"\\")
            chosen |= set(range(before, _byte(pattern, at)[0] + 1))
            before, at = 0, at + 1
        else:
            at += letter == b"\\"
            before = _byte(pattern, at)[0]
            chosen.add(before)
            at += 1
    allowed = (set(range(256)) - chosen if negated else chosen) - {ord("/")}
    if not allowed:
        raise _Unmatchable
    return b"[" + b"".join(re.escape(bytes([value])) for value in sorted(allowed)) + b"]", at + 1
