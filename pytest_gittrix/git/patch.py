"""Patches in git's format, which ``git apply`` applies exactly, forwards and in reverse.

Pure functions from contents to bytes: names, modes, symlinks, submodules and binary contents are written as git writes them, with full
object ids and without rename detection.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from base64 import b85encode
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from pytest_gittrix.git.hunks import CONTEXT, is_binary, unified_body

_LETTERS: Final = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}
_ESCAPES: Final = {
    **{byte: b"\\%03o" % byte for byte in (*range(0x20), *range(0x7F, 0x100))},
    **{byte: b"\\" + letter for byte, letter in _LETTERS.items()},
}
# Git does not quote a directory whose name ends in a space, and then cannot read the header of its own patch.
_UNUSUAL: Final = re.compile(rb'[\x00-\x1f\x7f-\xff"\\]| /')

# Git's base 85 has 52 bytes per line, as 65 characters, after a letter for the number of bytes.
_LINE_BYTES: Final = 52
_LINE_CHARACTERS: Final = 65
_LENGTHS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Side(NamedTuple):
    """A file, symlink or submodule at a path, before or after a change.

    Attributes:
        mode: its git mode.
        data: its contents: a symlink's target, ``b"Subproject commit <id>\\n"`` for a submodule.
        id: full hex object id; a submodule's commit.
    """

    mode: int
    data: bytes
    id: str


class FileChange(NamedTuple):
    """The change of one path: its old and its new side, None if the path does not exist on that side."""

    path: str
    old: Side | None
    new: Side | None


def patch_bytes(changes: Iterable[FileChange], *, context: int = CONTEXT, on_step: Callable[[], object] = lambda: None) -> bytes:
    """A patch of these changes, sorted by the bytes of their paths, from which ``git apply`` produces exactly their new sides.

    A change of kind (file, symlink, submodule) is written as a deletion and a creation, as git does. A change with equal sides is left
    out.

    Args:
        changes: one change per path, in any order.
        context: unchanged lines around each change of text; ``git apply`` accepts 0 only with ``--unidiff-zero``.
        on_step: called for each change; may raise to end the work.
    """
    parts: list[bytes] = []
    for change in sorted(changes, key=lambda change: os.fsencode(change.path)):
        on_step()
        parts += _file_patch(change, context)
    return b"".join(parts)


def patch_text(changes: Iterable[FileChange], *, context: int = CONTEXT, on_step: Callable[[], object] = lambda: None) -> str:
    """The patch as text; bytes that are not UTF-8 are decoded by surrogateescape, so that encoding the text restores the patch."""
    return patch_bytes(changes, context=context, on_step=on_step).decode("utf-8", "surrogateescape")


def _file_patch(change: FileChange, context: int) -> Iterator[bytes]:
    old, new = change.old, change.new
    if old == new:
        return
    if old and new and stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        yield from _one_kind(change.path, old, None, context)
        yield from _one_kind(change.path, None, new, context)
        return
    yield from _one_kind(change.path, old, new, context)


def _one_kind(path: str, old: Side | None, new: Side | None, context: int) -> Iterator[bytes]:
    raw = os.fsencode(path)
    old_name, new_name = _quoted(b"a/" + raw), _quoted(b"b/" + raw)
    yield b"diff --git %s %s\n" % (old_name, new_name)
    yield from _modes(old, new)
    before, after = old.data if old else b"", new.data if new else b""
    if old and new and before == after:
        return
    yield _index(old, new)
    if is_binary(before) or is_binary(after):
        yield b"GIT binary patch\n" + _literal(after) + _literal(before)
    elif body := unified_body(before, after, context):
        yield b"--- %s\n+++ %s\n" % (_with_tab(old_name) if old else b"/dev/null", _with_tab(new_name) if new else b"/dev/null")
        yield body


def _modes(old: Side | None, new: Side | None) -> Iterator[bytes]:
    if old and new:
        if old.mode != new.mode:
            yield b"old mode %06o\nnew mode %06o\n" % (old.mode, new.mode)
    elif new:
        yield b"new file mode %06o\n" % new.mode
    elif old:
        yield b"deleted file mode %06o\n" % old.mode


def _index(old: Side | None, new: Side | None) -> bytes:
    known = old or new
    assert known is not None
    nothing = "0" * len(known.id)
    ids = f"index {old.id if old else nothing}..{new.id if new else nothing}"
    mode = f" {old.mode:06o}" if old and new and old.mode == new.mode else ""
    return f"{ids}{mode}\n".encode("ascii")


def _literal(data: bytes) -> bytes:
    """One direction of a binary patch: the whole contents, compressed."""
    deflated = zlib.compress(data)
    encoded = b85encode(deflated, pad=True)
    rows = [b"literal %d\n" % len(data)]
    for row, at in enumerate(range(0, len(deflated), _LINE_BYTES)):
        size = min(_LINE_BYTES, len(deflated) - at)
        rows.append(_LENGTHS[size - 1 : size] + encoded[row * _LINE_CHARACTERS : (row + 1) * _LINE_CHARACTERS] + b"\n")
    rows.append(b"\n")
    return b"".join(rows)


def _quoted(name: bytes) -> bytes:
    """A name as git writes it with ``core.quotePath``: in quotes with C escapes, if it has a byte that needs an escape."""
    if not _UNUSUAL.search(name):
        return name
    return b'"%s"' % b"".join(_ESCAPES.get(byte) or bytes((byte,)) for byte in name)


def _with_tab(name: bytes) -> bytes:
    # Git adds a tab after a name with a space; otherwise a reader may take the text after the space for a date.
    return name + b"\t" if b" " in name else name
