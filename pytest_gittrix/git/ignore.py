"""Decide which untracked files the ``.gitignore`` files of a tree ignore.

A line means the same as to git, byte for byte: gitignore(5), and git's ``dir.c`` and ``wildmatch.c`` for what that leaves open. A line that
never matches in git never matches here.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_SPECIAL: Final = re.compile(rb"[*?\[\\]")
_NAMES: Final = b"[^/]*?"
_DIRECTORIES: Final = b"(?:[^/]*/)*?"
_ANYTHING: Final = b".*?"
"""What wildcards match: as little as they can."""
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


class Unmatchable(ValueError):
    """A pattern that no name can match."""


class _Rule(NamedTuple):
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
        sources: contents of each ``.gitignore``, by its directory ('' is the root). A directory may be added until a
            path below it is asked for.
        exclude: contents of ``info/exclude``, which decide where no ``.gitignore`` does.

    Attributes:
        sources: as given.
    """

    def __init__(self, sources: Mapping[str, bytes], exclude: bytes = b"") -> None:
        self.sources = sources
        self._exclude = _parse(exclude)
        self._directories: dict[str, bool] = {}
        self._rules: dict[bytes, Sequence[_Rule]] = {}

    def _rules_of(self, directory: bytes) -> Sequence[_Rule]:
        """The rules of a directory, in reverse order, since the last matching line decides."""
        rules = self._rules.get(directory)
        if rules is None:
            rules = self._rules[directory] = _parse(self.sources.get(os.fsdecode(directory), b""))
        return rules

    def ignored(self, path: str, *, directory: bool = False) -> bool:
        """Whether the rules ignore ``path`` or a directory above it."""
        if not self.sources and not self._exclude:
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
        """Whether ``path`` itself is ignored: the nearest ``.gitignore`` with a matching rule decides, and last ``info/exclude``."""
        raw = os.fsencode(path)
        name = raw.rpartition(b"/")[2]
        base = raw
        while base:
            base = base.rpartition(b"/")[0]
            below = raw[len(base) + 1 :] if base else raw
            for rule in self._rules_of(base) if base else (*self._rules_of(base), *self._exclude):
                if (directory or not rule.directories_only) and rule.pattern.fullmatch(below if rule.whole_path else name):
                    return rule.ignores
        return False


@lru_cache(maxsize=256)
def _parse(data: bytes) -> Sequence[_Rule]:
    rules: list[_Rule] = []
    for line in data.removeprefix(_BOM).split(b"\n"):
        if line.startswith(b"#"):
            continue
        line = line.removesuffix(b"\r").partition(b"\0")[0]
        text = _without_trailing_spaces(line)
        ignores = not text.startswith(b"!")
        pattern = text if ignores else text[1:]
        directories_only = pattern.endswith(b"/")
        pattern = pattern.removesuffix(b"/")
        try:
            compiled = compile_pattern(pattern.removeprefix(b"/"))
        except Unmatchable:
            continue
        rules.append(_Rule(compiled, ignores, directories_only, b"/" in pattern))
    return rules[::-1]


def _without_trailing_spaces(line: bytes) -> bytes:
    """A line without the spaces at its end, of which a backslash keeps the first."""
    text = line.rstrip(b" ")
    escaped = (len(text) - len(text.rstrip(b"\\"))) % 2
    return line[: len(text) + escaped]


def compile_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """The regular expression for a pattern of git's ``wildmatch``, whose wildcards match no slash.

    The text between two wildcards is looked for at its first place and never anywhere else: the next wildcard takes whatever lies
    between. So the time to match grows with the lengths of pattern and path, however many wildcards there are.
    """
    special = _SPECIAL.search(pattern)
    # Git compares the text before the first special character separately, so the rest is a pattern that starts after it.
    at = special.start() if special else len(pattern)
    pieces: list[list[bytes]] = [[b"", re.escape(pattern[:at])]]
    pattern, at = pattern[at:], 0
    while at < len(pattern):
        letter = pattern[at : at + 1]
        if letter == b"*":
            wildcard, at = _stars(pattern, at)
            pieces.append([wildcard, b""])
            continue
        if letter == b"[":
            part, at = _bracket(pattern, at + 1)
        elif letter == b"?":
            part, at = b"[^/]", at + 1
        else:
            at += letter == b"\\"
            part, at = re.escape(_byte(pattern, at)), at + 1
        pieces[-1][1] += part
    return re.compile(_matched_once(pieces), re.DOTALL)


def _matched_once(pieces: list[list[bytes]]) -> bytes:
    """Join wildcards, each with what follows it, into an expression that tries each piece at its first place only.

    A wildcard of directories may leave the same pieces to others that lie deeper, so there all pieces up to the next such wildcard are
    tried together.
    """
    groups: list[list[bytes]] = [[b""]]
    for wildcard, text in pieces:
        if wildcard in (_DIRECTORIES, _ANYTHING):
            groups.append([wildcard])
        groups[-1].append((b"" if wildcard in (_DIRECTORIES, _ANYTHING) else wildcard) + text)
    for group in groups[:-1]:
        group[2:] = [b"(?>%s)" % piece for piece in group[2:]]
    last = groups[-1]
    if len(last) > 2:
        last[2:] = [*(b"(?>%s)" % piece for piece in last[2:-1]), b"[^/]*" + last[-1].removeprefix(_NAMES)]
    return b"".join([*(b"(?>%s)" % b"".join(group) for group in groups[:-1]), *last])


def _byte(pattern: bytes, at: int) -> bytes:
    if at >= len(pattern):
        raise Unmatchable
    return pattern[at : at + 1]


def _stars(pattern: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    rest = pattern[end:]
    alone = (at == 0 or pattern[at - 1 : at] == b"/") and (not rest or rest.startswith((b"/", b"\\/")))
    if end - at == 1 or not alone:
        return _NAMES, end
    if rest.startswith(b"/"):
        return _DIRECTORIES, end + 1
    return _ANYTHING, end


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
                raise Unmatchable
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
        raise Unmatchable
    return b"[" + b"".join(re.escape(bytes([value])) for value in sorted(allowed)) + b"]", at + 1
