"""Which untracked files the baseline's own ``.gitignore`` files leave out.

The rules are the baseline's, never the workspace's: an agent that edits ``.gitignore`` cannot hide what it wrote
(DESIGN rule 3). A line means here what it means to git (gitignore(5), and where that is silent git's ``dir.c`` and
``wildmatch.c``), down to bytes; a line that git makes nothing of is nothing here. Reads no file.
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
    """One line.

    Attributes:
        pattern: what a name must match: the last component, or the path from the file's own directory.
        leaves_out: False for a line that starts with ``!``.
        directories_only: the line ended in a slash.
        whole_path: the line had a slash elsewhere.
    """

    pattern: re.Pattern[bytes]
    leaves_out: bool
    directories_only: bool
    whole_path: bool


class Ignore:
    """The ignore rules of one tree.

    Args:
        sources: contents of each ``.gitignore``, by the directory it stands in ('' is the root).
    """

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self._sources = sources
        self._directories: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._sources)

    @cached_property
    def _rules(self) -> dict[bytes, list[_Rule]]:
        """The rules by directory, the last line first, since it decides."""
        return {os.fsencode(directory): _parse(data)[::-1] for directory, data in self._sources.items()}

    def ignored(self, path: str, *, directory: bool = False) -> bool:
        """Whether the rules leave out ``path``: itself, or a directory above it, with which goes all that is untracked below it."""
        if not self._sources:
            return False
        return self._below_ignored(path.rpartition("/")[0]) or self._named(path, directory)

    def _below_ignored(self, directory: str) -> bool:
        if not directory:
            return False
        known = self._directories.get(directory)
        if known is None:
            known = self._directories[directory] = self.ignored(directory, directory=True)
        return known

    def _named(self, path: str, directory: bool) -> bool:
        """What the nearest ``.gitignore`` that says anything about ``path`` says."""
        raw = os.fsencode(path)
        name = raw.rpartition(b"/")[2]
        base = raw
        while base:
            base = base.rpartition(b"/")[0]
            below = raw[len(base) + 1 :] if base else raw
            for rule in self._rules.get(base, ()):
                if (directory or not rule.directories_only) and rule.pattern.fullmatch(below if rule.whole_path else name):
                    return rule.leaves_out
        return False


def _parse(data: bytes) -> list[_Rule]:
    rules = []
    for line in data.removeprefix(_BOM).split(b"\n"):
        if line.startswith(b"#"):
            continue
        line = line.removesuffix(b"\r").partition(b"\0")[0]
        trimmed = _TRAILING_SPACES.fullmatch(line)
        text = trimmed[1] if trimmed else line
        leaves_out = not text.startswith(b"!")
        pattern = text if leaves_out else text[1:]
        directories_only = pattern.endswith(b"/")
        pattern = pattern.removesuffix(b"/")
        try:
            compiled = _compile(pattern.removeprefix(b"/"))
        except _Unmatchable:
            continue
        rules.append(_Rule(compiled, leaves_out, directories_only, b"/" in pattern))
    return rules


def _compile(pattern: bytes) -> re.Pattern[bytes]:
    """A regular expression for a pattern of git's ``wildmatch`` that respects slashes."""
    special = _SPECIAL.search(pattern)
    # Git compares what comes before the first special character by itself, and to the rest that is the beginning.
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
    """A set of bytes, from just after its opening bracket."""
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
