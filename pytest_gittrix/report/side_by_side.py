"""A patch as two columns, old on the left and new on the right, with syntax colours and the changed words marked.

Reads the patches that ``git.patch`` writes. The result is HTML in which every text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from html import escape
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, Literal

from pytest_gittrix.safe_text import visible

if TYPE_CHECKING:
    from pygments.lexer import Lexer

Kind = Literal["same", "gone", "new", "none"]

LONGEST_LINE: Final = 1_000
"""How many characters of a line are shown."""

_HUNK: Final = re.compile(r"@@ -([0-9]+)(?:,[0-9]+)? \+([0-9]+)(?:,[0-9]+)? @@(.*)")
_NOTE: Final = re.compile(r"(old mode|new mode|rename|Binary files|new file mode (?!100644)|deleted file mode (?!100644))")
_ALIKE: Final = 0.5
_PLAIN: Final = ("n", "p", "w")
"""The kinds of words that have no colour of their own: names, punctuation and spaces."""

_Spans = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class DiffCell:
    """One line of one side.

    Attributes:
        number: of the line, from 1; None where this side has none.
        html: the line, escaped and coloured.
        kind: ``same`` on both sides, ``gone`` (left), ``new`` (right), or ``none``.
    """

    number: int | None = None
    html: str = ""
    kind: Kind = "none"


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A line of both sides; or only a ``title`` where a hunk begins."""

    left: DiffCell = field(default_factory=DiffCell)
    right: DiffCell = field(default_factory=DiffCell)
    title: str = ""

    @property
    def change(self) -> str:
        """``gone`` or ``new`` if only one side has the line, ``changed`` if both have another one, and empty if they have the same."""
        if self.left.kind == "gone":
            return "changed" if self.right.kind == "new" else "gone"
        return "new" if self.right.kind == "new" else ""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The changes of a patch to one file.

    Attributes:
        path: the new path of the file; for a deleted file the old one.
        what: ``changed``, ``added``, ``deleted``, ``renamed``, ``binary``, ``mode``.
        notes: header lines of the patch, such as a new mode.
        added, removed: the numbers of added and removed lines.
        rows: the lines.
        left_out: how many lines are not shown.
    """

    path: str
    what: str
    notes: tuple[str, ...]
    added: int
    removed: int
    rows: tuple[DiffRow, ...]
    left_out: int = 0


def file_diffs(patch: bytes, *, most_lines: int = 600) -> list[FileDiff]:
    """The files of a patch, side by side.

    Args:
        patch: a patch for ``git apply``. Bytes that are not UTF-8 are shown as U+FFFD.
        most_lines: how many lines of all files together are shown; further ones are only counted.
    """
    text = patch.decode("utf-8", "replace")
    parts = re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)
    found = []
    left = most_lines
    for part in parts:
        if part.startswith("diff --git "):
            one = _file(part.split("\n"), left)
            left = max(left - len(one.rows), 0)
            found.append(one)
    return found


def _file(lines: Sequence[str], limit: int) -> FileDiff:
    start = next((number for number, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    head, body = lines[1:start], lines[start:]
    path = _path(lines[0], head)
    added = sum(line.startswith("+") for line in body)
    removed = sum(line.startswith("-") for line in body)
    shown = body[:limit]
    notes = tuple(line for line in head if _NOTE.match(line))
    rows = tuple(_rows(shown, path)) if limit else ()
    return FileDiff(path, _what(head, body), notes, added, removed, rows, len(body) - len(shown))


def _path(first: str, head: Sequence[str]) -> str:
    for mark, prefix in (("+++ ", "b/"), ("--- ", "a/"), ("rename to ", "")):
        for line in head:
            name = line.removeprefix(mark).strip('"')
            if line.startswith(mark) and name != "/dev/null":
                return name.removeprefix(prefix).rstrip("\t")
    return first.removeprefix("diff --git ").partition(" b/")[2] or first


def _what(head: Sequence[str], body: Sequence[str]) -> str:
    words = " ".join(head)
    if "Binary files" in words or "GIT binary patch" in words:
        return "binary"
    for mark, what in (("new file mode", "added"), ("deleted file mode", "deleted"), ("rename to", "renamed")):
        if mark in words:
            return what
    return "changed" if body else "mode"


def _rows(body: Sequence[str], path: str) -> Iterator[DiffRow]:
    colour = _Colours(path)
    left = right = 0
    gone: list[str] = []
    new: list[str] = []
    for line in [*body, "@@ -0,0 +0,0 @@"]:
        hunk = _HUNK.match(line)
        if not hunk and line[:1] == "-":
            gone.append(line[1:])
            continue
        if not hunk and line[:1] == "+":
            new.append(line[1:])
            continue
        yield from _changed(gone, new, left, right, colour)
        left, right = left + len(gone), right + len(new)
        gone, new = [], []
        if hunk:
            left, right = int(hunk[1]), int(hunk[2])
            if left or right:
                yield DiffRow(title=line)
        elif line[:1] == " ":
            html = colour.line(line[1:])
            yield DiffRow(DiffCell(left, html, "same"), DiffCell(right, html, "same"))
            left, right = left + 1, right + 1


def _changed(gone: list[str], new: list[str], left: int, right: int, colour: _Colours) -> Iterator[DiffRow]:
    for offset in range(max(len(gone), len(new))):
        old = gone[offset] if offset < len(gone) else None
        now = new[offset] if offset < len(new) else None
        marks = _marks(old, now) if old is not None and now is not None else ([], [])
        yield DiffRow(
            DiffCell() if old is None else DiffCell(left + offset, colour.line(old, marks[0]), "gone"),
            DiffCell() if now is None else DiffCell(right + offset, colour.line(now, marks[1]), "new"),
        )


def _marks(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The ranges that differ between two lines; none if the lines have little in common."""
    if max(len(old), len(new)) > LONGEST_LINE:
        return [], []
    matcher = SequenceMatcher(None, _words(old), _words(new), autojunk=False)
    if matcher.ratio() < _ALIKE:
        return [], []
    before, after = _word_starts(old), _word_starts(new)
    codes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    return [(before[a], before[b]) for _, a, b, _, _ in codes], [(after[c], after[d]) for _, _, _, c, d in codes]


def _words(line: str) -> list[str]:
    return re.findall(r"\w+|\s+|.", line)


def _word_starts(line: str) -> list[int]:
    """The positions at which the words of a line start, and its end."""
    return [0, *accumulate(map(len, _words(line)))]


class _Colours:
    """The syntax colours for a file, by its name; none if its language is unknown."""

    def __init__(self, path: str) -> None:
        self._lexer = _lexer_for(path.rpartition("/")[2])

    def line(self, text: str, marks: Sequence[tuple[int, int]] = ()) -> str:
        """A line as HTML, with some ranges marked."""
        more = len(text) - LONGEST_LINE
        shown = text[:LONGEST_LINE]
        html = "".join(_marked(kind, piece, start, marks) for kind, piece, start in self._pieces(shown))
        return html + (f'<span class="cut">… {more} more</span>' if more > 0 else "")

    def _pieces(self, text: str) -> Iterator[tuple[str, str, int]]:
        start = 0
        for kind, piece in _spans(self._lexer, text):
            yield kind, piece, start
            start += len(piece)


# The samples of a run change the same files, often the same lines.
@lru_cache(maxsize=256)
def _lexer_for(name: str) -> Lexer | None:
    from pygments.lexers import get_lexer_for_filename
    from pygments.util import ClassNotFound

    try:
        return get_lexer_for_filename(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=4096)
def _spans(lexer: Lexer | None, text: str) -> _Spans:
    if lexer is None:
        return [("", text)]
    from pygments.token import STANDARD_TYPES

    kinds = ((STANDARD_TYPES.get(kind, ""), piece.rstrip("\n")) for kind, piece in lexer.get_tokens(text))
    return [("" if kind in _PLAIN else kind, piece) for kind, piece in kinds]


def _marked(kind: str, text: str, start: int, marks: Sequence[tuple[int, int]]) -> str:
    """A piece of a line that begins at ``start``, with the parts of it that are in a mark wrapped."""
    cuts = sorted({start, start + len(text), *(edge for mark in marks for edge in mark if start < edge < start + len(text))})
    out = []
    for begin, end in pairwise(cuts):
        html = escape(visible(text[begin - start : end - start]), quote=False)
        inside = any(low <= begin and end <= high for low, high in marks)
        out.append(f"<mark>{html}</mark>" if inside else html)
    joined = "".join(out)
    return f'<span class="{kind}">{joined}</span>' if kind and joined else joined
