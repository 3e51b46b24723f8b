"""Differences of two texts: the hunks that a person sees and chooses from, and the three-way merge of texts.

Texts are bytes of any encoding, split into lines at line feeds only, so that every result is exact to the byte: carriage returns, invalid
UTF-8 and a missing last newline included. libgit2 finds the differences.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Final, NamedTuple

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git import libgit2

CONTEXT: Final = 3
"""Unchanged lines shown around a change, as git does."""

_NUL_WITHIN: Final = 8000
_BIG_FILE: Final = 512 * 1024 * 1024

_HUNK: Final = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*\n((?:[ +\-\\].*\n)*)", re.MULTILINE)


class Edit(NamedTuple):
    """One edit: lines ``[start, end)`` of the old text become lines ``[new_start, new_end)`` of the new text (both from 0)."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk of a file's difference, for display and for choosing.

    Attributes:
        path: the file.
        index: its position in the file's difference, from 1.
        id: hash of the path, the old range and the lines, in 8 hex digits. It does not depend on which other hunks are chosen, since they
            move only the new range.
        old_start, old_lines: its range in the old text, lines from 1; an empty range names the line before it.
        new_start, new_lines: its range in the new text.
        header: the ``@@`` line, without its newline.
        text: the whole hunk with its header; bytes that are not UTF-8 are decoded by surrogateescape.
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
    """Whether git treats these bytes as binary: a NUL among the first 8000, or more than 512 MiB (core.bigFileThreshold)."""
    return data.find(b"\0", 0, _NUL_WITHIN) != -1 or len(data) > _BIG_FILE


def unified_body(old: bytes, new: bytes, context: int = CONTEXT) -> bytes:
    """The hunks between two texts in unified form, without file headers; empty for equal texts."""
    # Git's default for display: of several equally small differences, the one that follows the indentation.
    return _body(old, new, context, libgit2.DiffOption.FORCE_TEXT | libgit2.DiffOption.INDENT_HEURISTIC)


def hunks_of(path: str, old: bytes, new: bytes, context: int = CONTEXT) -> list[Hunk]:
    """The hunks of one file's difference, in order.

    Args:
        path: the file's name in the hunks.
        old: its old text; ``b""`` for a new file.
        new: its new text; ``b""`` for a deleted file.
        context: unchanged lines around a change. Changes that are less than twice as many lines apart share a hunk.

    Raises:
        InvalidInput: one of the texts is binary.
    """
    _require_text(old, new)
    return [_hunk(path, index, found) for index, found in enumerate(_HUNK.finditer(unified_body(old, new, context)), 1)]


def choose(old: bytes, new: bytes, chosen: Collection[int], context: int = CONTEXT) -> bytes:
    """Apply some hunks to the old text, exact to the byte. All hunks give the new text, none give the old.

    Args:
        old: the old text.
        new: the new text.
        chosen: ``Hunk.index`` of each hunk to apply, in any order.
        context: the value that the hunks were made with.

    Raises:
        InvalidInput: there is no hunk with such an index (the message lists the existing ones), or one of the texts is binary.
    """
    _require_text(old, new)
    edits = _edits(unified_body(old, new, context))
    known = range(1, len(edits) + 1)
    if unknown := sorted(set(chosen).difference(known)):
        raise InvalidInput(
            f"There is no hunk {_listed(unknown)}.",
            why="A hunk is chosen by its place in the difference, from 1.",
            fix=f"Choose from {_listed(known)}." if known else "There is nothing to choose: the texts are equal.",
        )
    new_lines = _lines(new)
    return _apply(old, [(edit, new_lines) for index, edit in zip(known, edits, strict=True) if index in chosen])


def merge_text(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge the edits of both sides; None if a person has to decide.

    The rule is that of ``git merge-file``: two edits merge if at least one unchanged line of the base is between them, or if both sides
    made the same edit. Other edits that overlap or touch are a conflict. Where this function returns bytes, git returns the same bytes. Git
    merges slightly more: where both sides have the same lines in a conflicting region although their edits differ (repeated lines allow
    several edits for one change), git takes those lines, and this function returns None. That is rare: one in 5 000 conflicts between
    random texts of only two different lines.

    Binary contents do not merge, unless two of the three are equal.
    """
    if base == theirs or ours == theirs:
        return ours
    if base == ours:
        return theirs
    if any(map(is_binary, (base, ours, theirs))):
        return None
    # Without the heuristic for display, as git merges: it could move an edit, which would then touch other edits.
    our_edits = _edits(_body(base, ours, 0, libgit2.DiffOption.FORCE_TEXT))
    their_edits = _edits(_body(base, theirs, 0, libgit2.DiffOption.FORCE_TEXT))
    merged = _interleave(our_edits, _lines(ours), their_edits, _lines(theirs))
    return None if merged is None else _apply(base, merged)


_Replacement = tuple[Edit, list[bytes]]
"""An edit, and all lines of the text that its new range refers to."""


def _interleave(ours: list[Edit], our_lines: list[bytes], theirs: list[Edit], their_lines: list[bytes]) -> list[_Replacement] | None:
    """The edits of both sides in the order of the base, each once; None if two of them conflict."""
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
    """Replace line ranges of the base; the replacements are in order and do not overlap."""
    lines = _lines(base)
    result: list[bytes] = []
    at = 0
    for edit, source in replacements:
        result += lines[at : edit.start]
        result += source[edit.new_start : edit.new_end]
        at = edit.end
    return b"".join(result + lines[at:])


def _lines(data: bytes) -> list[bytes]:
    # Not splitlines(), which also splits at a lone carriage return.
    return list(BytesIO(data))


def _require_text(*texts: bytes) -> None:
    if any(map(is_binary, texts)):
        raise InvalidInput(
            "Hunks need text, and this content is binary.",
            why="A binary file has no lines to choose from.",
            fix="Take the file as a whole.",
        )


def _body(old: bytes, new: bytes, context: int, flag: libgit2.DiffOption) -> bytes:
    data = libgit2.Patch.create_from(old, new, flag=flag, context_lines=context).data
    start = data.find(b"\n@@ ")
    return data[start + 1 :] if start != -1 else b""


def _edits(body: bytes) -> list[Edit]:
    """The ranges that the hunks of a body replace."""
    return [_edit(*_ranges(found)) for found in _HUNK.finditer(body)]


def _edit(old_start: int, old_lines: int, new_start: int, new_lines: int) -> Edit:
    # An empty range names the line before it, any other range its own first line.
    start = old_start - (old_lines > 0)
    first = new_start - (new_lines > 0)
    return Edit(start, start + old_lines, first, first + new_lines)


def _ranges(found: re.Match[bytes]) -> tuple[int, int, int, int]:
    """Start and number of lines, old and new, from a hunk's header; a missing number is one."""
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
