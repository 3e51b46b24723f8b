"""Differences of two texts: edits, the hunks a person sees and chooses from, and the three-way merge of texts.

Texts are bytes of any encoding, cut into lines at the line feed only, so that every result is exact to the byte: carriage
returns, invalid UTF-8 and a missing last newline included. libgit2 finds the differences. Knows no repository, no mode and
no patch file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from pygit2 import Patch
from pygit2.enums import DiffOption

from pytest_gittrix.errors import InvalidInput

CONTEXT: Final = 3
"""Unchanged lines shown around a change, as git does."""

_NUL_WITHIN: Final = 8000
_TOO_BIG: Final = 512 * 1024 * 1024

_HUNK: Final = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*\n((?:[ +\-\\].*\n)*)", re.MULTILINE)

# Git's own default for display: of equally small differences, the one that follows the indentation.
_DISPLAYED: Final = DiffOption.FORCE_TEXT | DiffOption.INDENT_HEURISTIC


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines ``[start, end)`` of the old text become lines ``[new_start, new_end)`` of the new one (both from 0)."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk of a file's difference, as displayed and as chosen from.

    Attributes:
        path: the file.
        index: its place in the file's difference, from 1.
        id: 8 hex digits over the path, the old range and the lines. Chosen neighbours do not change it, as they move only the new range.
        old_start, old_lines: the range of the old text, lines from 1; a range of no lines names the line before it.
        new_start, new_lines: likewise of the new text.
        header: the ``@@`` line, without its newline.
        text: the whole hunk with its header; bytes that are not UTF-8 by surrogateescape.
    """

    path: str
    index: int
    id: str
    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    header: str
    text: str


def is_binary(data: bytes) -> bool:
    """Whether git would hold these bytes to be no text: a NUL among the first 8000, or more than 512 MiB (core.bigFileThreshold)."""
    return data.find(b"\0", 0, _NUL_WITHIN) != -1 or len(data) > _TOO_BIG


def unified_body(old: bytes, new: bytes, context: int = CONTEXT) -> bytes:
    """The hunks between two texts in unified form, without file headers; empty for equal texts."""
    return _body(old, new, context, _DISPLAYED)


def hunks_of(path: str, old: bytes, new: bytes, context: int = CONTEXT) -> list[Hunk]:
    """The hunks of one file's difference, in order.

    Args:
        path: the file, as it is to be named in the hunks.
        old: its text at the base; ``b""`` where there was none.
        new: its text now; ``b""`` where it is gone.
        context: unchanged lines around a change. Changes nearer than twice that share a hunk.

    Raises:
        InvalidInput: one of the two is binary.
    """
    _require_text(old, new)
    return [_hunk(path, index, found) for index, found in enumerate(_HUNK.finditer(unified_body(old, new, context)), 1)]


def choose(old: bytes, new: bytes, wanted: Collection[int], context: int = CONTEXT) -> bytes:
    """The old text with some hunks applied, exact to the byte; all of them give the new text, none the old.

    Args:
        old: the text the hunks start from.
        new: the text they lead to.
        wanted: ``Hunk.index`` of each chosen hunk, in any order.
        context: what the hunks were made with.

    Raises:
        InvalidInput: there is no hunk of such an index (the message lists those there are), or one of the texts is binary.
    """
    _require_text(old, new)
    edits = _edits(_body(old, new, context, _DISPLAYED))
    known = range(1, len(edits) + 1)
    if unknown := sorted(set(wanted).difference(known)):
        raise InvalidInput(
            f"There is no hunk {_listed(unknown)}.",
            why="A hunk is chosen by its place in the difference, from 1.",
            fix=f"Choose from {_listed(known)}." if known else "There is nothing to choose: the texts are equal.",
        )
    new_lines = _lines(new)
    return _apply(old, [(edit, new_lines) for index, edit in zip(known, edits, strict=True) if index in wanted])


def merge_text(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """The text with the edits of both sides, or None where a person has to decide.

    The rule is that of git's own merge (``git merge-file``): edits merge when at least one unchanged line of the base stands between
    them, or when both sides made the very same one. Any other two that overlap or touch conflict. Bytes returned here are what git
    returns. Git merges a little more: where both sides have the same lines in a contested region though their edits of it differ
    (repeated lines let one change be written as several edits), it takes those lines. Here that is None. It is rare: one of 5 000
    conflicts between random texts of only two different lines.

    Binary contents do not merge, unless two of the three are equal, which needs no merge.
    """
    if base == theirs or ours == theirs:
        return ours
    if base == ours:
        return theirs
    if any(map(is_binary, (base, ours, theirs))):
        return None
    # Without the heuristic for display: git merges without it, and edits that slid elsewhere would meet other neighbours.
    our_edits = _edits(_body(base, ours, 0, DiffOption.FORCE_TEXT))
    their_edits = _edits(_body(base, theirs, 0, DiffOption.FORCE_TEXT))
    merged = _interleave(our_edits, _lines(ours), their_edits, _lines(theirs))
    return None if merged is None else _apply(base, merged)


_Replacement = tuple[Edit, list[bytes]]
"""An edit, and all lines of the text that its new range counts in."""


def _interleave(ours: list[Edit], our_lines: list[bytes], theirs: list[Edit], their_lines: list[bytes]) -> list[_Replacement] | None:
    """The edits of both sides in order of the base, each once; None if two of them conflict."""
    merged: list[_Replacement] = []
    at_ours = at_theirs = 0
    while at_ours < len(ours) and at_theirs < len(theirs):
        our, their = ours[at_ours], theirs[at_theirs]
        if their.end < our.start:
            merged.append((their, their_lines))
            at_theirs += 1
            continue
        if our.end >= their.start:
            same_range = (our.start, our.end) == (their.start, their.end)
            if not same_range or our_lines[our.new_start : our.new_end] != their_lines[their.new_start : their.new_end]:
                return None
            at_theirs += 1
        merged.append((our, our_lines))
        at_ours += 1
    merged += [(edit, our_lines) for edit in ours[at_ours:]]
    merged += [(edit, their_lines) for edit in theirs[at_theirs:]]
    return merged


def _apply(base: bytes, replacements: list[_Replacement]) -> bytes:
    """The base with some of its line ranges replaced; the replacements are in order and do not overlap."""
    lines = _lines(base)
    result: list[bytes] = []
    at = 0
    for edit, source in replacements:
        result += lines[at : edit.start]
        result += source[edit.new_start : edit.new_end]
        at = edit.end
    return b"".join(result + lines[at:])


def _lines(data: bytes) -> list[bytes]:
    # Not splitlines(), which also cuts at a lone carriage return.
    return list(BytesIO(data))


def _require_text(*texts: bytes) -> None:
    if any(map(is_binary, texts)):
        raise InvalidInput(
            "Hunks need text, and this content is binary.",
            why="A binary file has no lines to choose from.",
            fix="Take the file as a whole.",
        )


def _body(old: bytes, new: bytes, context: int, flag: DiffOption) -> bytes:
    data = Patch.create_from(old, new, flag=flag, context_lines=context).data
    start = data.find(b"\n@@ ")
    return data[start + 1 :] if start != -1 else b""


def _edits(body: bytes) -> list[Edit]:
    """The ranges that the hunks of a body replace."""
    return [_edit(*_ranges(found)) for found in _HUNK.finditer(body)]


def _edit(old_start: int, old_lines: int, new_start: int, new_lines: int) -> Edit:
    # A range of no lines names the line before it, any other its own first line.
    start = old_start - (old_lines > 0)
    first = new_start - (new_lines > 0)
    return Edit(start, start + old_lines, first, first + new_lines)


def _ranges(found: re.Match[bytes]) -> tuple[int, int, int, int]:
    """Start and number of lines, old and new, as a hunk's header has them; a number left out is one."""
    return int(found[1]), int(found[2] or 1), int(found[3]), int(found[4] or 1)


def _hunk(path: str, index: int, found: re.Match[bytes]) -> Hunk:
    old_start, old_lines, new_start, new_lines = _ranges(found)
    identity = b"%s\0%d,%d\n%s" % (os.fsencode(path), old_start, old_lines, found[5])
    text = found[0].decode("utf-8", "surrogateescape")
    return Hunk(
        path=path,
        index=index,
        id=hashlib.sha1(identity, usedforsecurity=False).hexdigest()[:8],
        old_start=old_start,
        old_lines=old_lines,
        new_start=new_start,
        new_lines=new_lines,
        header=text.partition("\n")[0],
        text=text,
    )


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
