"""How an answer leaves the command: one JSON envelope for programs; text, tables and diffs for people.

Bytes go out as they are. Text goes out with the bytes its names came with; on a terminal everything is made visible that would otherwise
steer it, because an agent chooses file names and contents. Must not know what a session is; rich is loaded by what needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

# Control characters but tab and newline, bytes that are no UTF-8, and marks that reorder the text around them.
_STEERING = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xDC80, 0xDD00))
_VISIBLE = {code: f"\\x{code & 0xFF:02x}" if code < 0xA0 or code >= 0xDC80 else f"\\u{code:04x}" for code in _STEERING}
_ONE_LINE = _VISIBLE | {0x09: "\\t", 0x0A: "\\n"}

_GAP = "  "
_BOLD = 1
_DIFF_STYLES = {"@": 36, "+": 32, "-": 31}
_EXTRAS = {
    "conflicting_files": "conflictingFiles",
    "durable_sha": "durableSha",
    "baseline_sha": "baselineSha",
    "kinds": "kinds",
    "stage": "stage",
    "state": "state",
}


FAILED = 1
"""The exit status of a command that was refused or failed."""


class OutputLost(Exception):
    """Standard output cannot take what is written to it, because the disk is full for instance. Nothing more goes there."""


class Table(NamedTuple):
    """Rows under headings, for people.

    Attributes:
        headings: one for each column.
        rows: texts, one for each column.
        elastic: the heading of the column that is cut where a terminal is too narrow.
        styles: ANSI style codes by the text of a cell.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    elastic: str
    styles: dict[str, int]


class Diff(NamedTuple):
    """A unified diff, coloured on a terminal."""

    text: str


class Answer(NamedTuple):
    """What a command found or did.

    Attributes:
        data: the envelope's ``data``, for programs.
        shown: the same for people; text with its newlines, bytes as they are.
        notes: what people should know besides, one line each; goes to standard error.
        status: what the command exits with.
        said: whether it put out itself what there was to say.
    """

    data: object
    shown: str | bytes | Table | Diff = ""
    notes: tuple[str, ...] = ()
    status: int = 0
    said: bool = False


def say(answer: Answer, *, as_json: bool) -> None:
    """Put an answer out. Raises OutputLost as :func:`put`."""
    if answer.said:
        return
    if as_json:
        put_json({"ok": True, "data": answer.data})
        return
    put(_encoded(answer.shown))
    for note in answer.notes:
        put_error(note)


def error_data(error: Exception) -> dict[str, Any]:
    """The envelope's ``error``: a stable code (``UNKNOWN`` for what was not raised on purpose), the message, and what the error carries."""
    known = {wire: getattr(error, name) for name, wire in _EXTRAS.items() if hasattr(error, name)}
    return {"code": getattr(error, "code", "UNKNOWN"), "message": str(error) or type(error).__name__, **known}


def put_json(envelope: Mapping[str, Any]) -> None:
    """Put one object out on one line of plain ASCII. Raises OutputLost as :func:`put`."""
    import json

    put(json.dumps(envelope).encode("ascii") + b"\n")


def put_error(message: str) -> None:
    """Tell people, on standard error: the fact first, why and what to do below it."""
    first, *rest = message.splitlines() or [""]
    print("\n".join([f"gittrix: {first}", *(f"  {line}" for line in rest)]).translate(_VISIBLE), file=sys.stderr)


def put(data: bytes) -> None:
    """Write all of ``data`` to standard output.

    A reader that went away (``| head``) has had what it wanted: the rest is dropped without a word.

    Raises:
        OutputLost: standard output cannot take it.
    """
    stream = sys.stdout
    if stream is None:
        return
    binary = getattr(stream, "buffer", None)
    try:
        if binary is None:
            stream.write(data.decode("utf-8", "backslashreplace"))
        else:
            stream.flush()
            binary.write(data)
        stream.flush()
    except OSError as error:
        _silence(stream)
        if not isinstance(error, BrokenPipeError):
            raise OutputLost(f"Standard output cannot be written to: {error.strerror}.") from error


def _silence(stream: TextIO) -> None:
    """Lead a broken standard output to nowhere, or the interpreter would fail on what is still buffered as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def working(what: str, *, after: float = 1.0) -> Iterator[None]:
    """Show that the command is at work, once that has taken ``after`` seconds and a person is watching standard error.

    Nothing is shown where a daemon runs it for somebody else, which it does in threads.
    """
    import threading

    if not _is_terminal(sys.stderr) or threading.current_thread() is not threading.main_thread():
        yield
        return
    done = threading.Event()
    spinner = threading.Thread(target=_spin, args=(what, after, done), daemon=True)
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


def _spin(what: str, after: float, done: Any) -> None:
    if done.wait(after):
        return
    from rich.console import Console

    with Console(stderr=True, no_color=not _has_colour(sys.stderr)).status(f"{what} ...", spinner="line"):
        done.wait()


def _encoded(shown: str | bytes | Table | Diff) -> bytes:
    if isinstance(shown, bytes):
        return shown
    terminal, colour = _is_terminal(sys.stdout), _has_colour(sys.stdout)
    if isinstance(shown, Table):
        return _drawn(shown, terminal=terminal, colour=colour).encode("utf-8", "backslashreplace")
    text = shown.text if isinstance(shown, Diff) else shown
    if terminal:
        text = text.translate(_VISIBLE)
    if colour and isinstance(shown, Diff):
        text = "".join(_coloured(text))
    return text.encode("utf-8", "surrogateescape")


def _drawn(table: Table, *, terminal: bool, colour: bool) -> str:
    """A table as text. Drawn here with rich's widths: its own table takes a second for some thousand rows."""
    import shutil

    from rich.cells import cell_len

    headings = tuple(heading.upper() for heading in table.headings)
    rows = [headings, *(tuple(cell.translate(_ONE_LINE) for cell in row) for row in table.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if terminal:  # a pipe gets whole lines
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - shutil.get_terminal_size().columns
        elastic = table.headings.index(table.elastic)
        widths[elastic] = max(widths[elastic] - max(excess, 0), len(headings[elastic]))
    styles = table.styles | dict.fromkeys(headings, _BOLD) if colour else {}
    return "".join(_line(row, widths, styles) for row in rows)


def _line(row: Iterable[str], widths: Iterable[int], styles: Mapping[str, int]) -> str:
    *padded, last = ((cell, width) for cell, width in zip(row, widths, strict=True))
    fitted = [*((cell, _fitted(cell, width)) for cell, width in padded), (last[0], _cut(*last))]
    return _GAP.join(_styled(text, styles[cell]) if cell in styles else text for cell, text in fitted).rstrip() + "\n"


def _fitted(cell: str, width: int) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(_cut(cell, width), width)


def _cut(cell: str, width: int) -> str:
    """A cell that is no wider than there is room. Nothing is added: one long cell must not make every row as long."""
    from rich.cells import cell_len, set_cell_size

    return cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"


def _styled(text: str, code: int) -> str:
    return f"\x1b[{code}m{text}\x1b[m"


def _coloured(diff: str) -> Iterator[str]:
    in_hunk = False
    for line in diff.splitlines(keepends=True):
        in_hunk = line.startswith("@@ ") or (in_hunk and not line.startswith("diff --git "))
        code = _DIFF_STYLES.get(line[0]) if in_hunk else _BOLD
        text = line.rstrip("\n")
        yield line if code is None else _styled(text, code) + line[len(text) :]


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _has_colour(stream: TextIO | None) -> bool:
    """Colour is for terminals only, and for nobody who said no (https://no-color.org)."""
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
