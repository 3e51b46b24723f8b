"""How a command's result is printed: one JSON envelope for programs; text, tables and diffs for people.

Bytes are written as they are. Text is written with the bytes of the names in it; on a terminal, characters that would steer the terminal
are made visible, because an agent chooses file names and contents. rich is loaded only by the functions that need it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.safe_text import ONE_LINE, VISIBLE

_CONTROLS = {code: shown for code, shown in VISIBLE.items() if code < 0xA0}

_GAP = "  "
_BOLD = 1
_DIFF_STYLES = {"@": 36, "+": 32, "-": 31}
_EXTRAS = {
    "conflicting_files": "conflictingFiles",
    "durable_sha": "durableSha",
    "baseline_sha": "baselineSha",
    "kinds": "kinds",
    "secrets": "secrets",
    "hazards": "hazards",
    "filters": "filters",
    "stage": "stage",
    "state": "state",
    "outcome": "outcome",
    "session": "session",
}


FAILED = 1
"""The exit status of a command that was refused or failed."""


class OutputLost(Exception):
    """Standard output cannot be written to, because the disk is full for instance. Nothing more is written there."""


class Table(NamedTuple):
    """Rows under headings, for people.

    Attributes:
        headings: one for each column.
        rows: texts, one for each column.
        elastic: the heading of the column that is cut where a terminal is too narrow.
        styles: ANSI style codes by the text of a cell.
        foot: lines below the rows, each with its newline.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    elastic: str
    styles: dict[str, int]
    foot: str = ""


class Diff(NamedTuple):
    """A unified diff, coloured on a terminal."""

    text: str


class CommandResult(NamedTuple):
    """What a command found or did.

    Attributes:
        data: the envelope's ``data``, for programs.
        output: the same for people; text with its newlines, bytes as they are.
        notes: remarks for people, one line each, for standard error.
        status: the exit status of the command.
        printed: whether the command has printed its result itself.
    """

    data: object
    output: str | bytes | Table | Diff = ""
    notes: tuple[str, ...] = ()
    status: int = 0
    printed: bool = False


def print_result(result: CommandResult, *, as_json: bool) -> None:
    """Print a result. Raises OutputLost as :func:`put`."""
    if result.printed:
        return
    if as_json:
        put_json({"ok": True, "data": result.data})
        return
    put(_encoded(result.output))
    for note in result.notes:
        put_error(note)


def visible(text: str) -> str:
    """What somebody wrote, a task or a message, with its control characters as escapes; a pipe may end at a terminal, too."""
    return text.translate(_CONTROLS)


def message_of(error: Exception) -> str:
    """The message of an error for who typed a command; an unexpected exception is named by its type."""
    if isinstance(error, GittrixError):
        return error.command_message()
    return str(error) if isinstance(error, OutputLost) else f"{type(error).__name__}: {error}"


def error_data(error: Exception, *, of_command: bool = False) -> dict[str, Any]:
    """The envelope's ``error``: a stable code (``UNKNOWN`` for an unexpected exception), the message, and the error's further fields.

    Args:
        error: what was raised.
        of_command: whether the message is for who typed a command, and speaks of flags.
    """
    message = error.command_message() if of_command and isinstance(error, GittrixError) else str(error)
    known = {wire: getattr(error, name) for name, wire in _EXTRAS.items() if getattr(error, name, None) is not None}
    return {"code": getattr(error, "code", "UNKNOWN"), "message": message or type(error).__name__, **known}


def put_json(envelope: Mapping[str, Any]) -> None:
    """Print one object on one line of plain ASCII. Raises OutputLost as :func:`put`."""
    import json

    put(json.dumps(envelope).encode("ascii") + b"\n")


def put_error(message: str) -> None:
    """Print a message to standard error: the fact first, then the reason and the remedy below it."""
    first, *rest = message.splitlines() or [""]
    print("\n".join([f"gittrix: {first}", *(f"  {line}" for line in rest)]).translate(VISIBLE), file=sys.stderr)


def put_note(message: str) -> None:
    """Print a message at once while the command works on. A daemon runs commands in threads, and in those nothing is shown."""
    import threading

    if threading.current_thread() is threading.main_thread():
        put_error(message)


def put(data: bytes) -> None:
    """Write all of ``data`` to standard output.

    A reader that went away (``| head``) wants no more, so the rest is dropped silently.

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
    """Redirect a broken standard output to the null device; the interpreter would fail on its buffer when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def working(what: str, *, after: float = 1.0) -> Iterator[None]:
    """Show a spinner once the command has worked for ``after`` seconds and a person is watching standard error.

    A daemon runs commands in threads, and in those nothing is shown.
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


def _encoded(output: str | bytes | Table | Diff) -> bytes:
    if isinstance(output, bytes):
        return output
    terminal, colour = _is_terminal(sys.stdout), _has_colour(sys.stdout)
    if isinstance(output, Table):
        return _drawn(output, terminal=terminal, colour=colour).encode("utf-8", "backslashreplace")
    text = output.text if isinstance(output, Diff) else output
    if terminal:
        text = text.translate(VISIBLE)
    if colour and isinstance(output, Diff):
        text = "".join(_coloured(text))
    return text.encode("utf-8", "surrogateescape")


def _drawn(table: Table, *, terminal: bool, colour: bool) -> str:
    """A table as text. It is drawn here, with rich's widths of characters: rich's own table takes a second for some thousand rows."""
    import shutil

    headings = tuple(heading.upper() for heading in table.headings)
    rows = [headings, *(tuple(cell.translate(ONE_LINE) for cell in row) for row in table.rows)]
    widths = [max(map(_cells, column)) for column in zip(*rows, strict=True)]
    if terminal:  # a pipe gets whole lines
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - shutil.get_terminal_size().columns
        elastic = table.headings.index(table.elastic)
        widths[elastic] = max(widths[elastic] - max(excess, 0), len(headings[elastic]))
    styles = table.styles | dict.fromkeys(headings, _BOLD) if colour else {}
    return "".join(_line(row, widths, styles) for row in rows) + table.foot


def _line(row: Iterable[str], widths: Iterable[int], styles: Mapping[str, int]) -> str:
    *padded, last = ((cell, width) for cell, width in zip(row, widths, strict=True))
    fitted = [*((cell, _fitted(cell, width)) for cell, width in padded), (last[0], _cut(*last))]
    return _GAP.join(_styled(text, styles[cell]) if cell in styles else text for cell, text in fitted).rstrip() + "\n"


def _cells(text: str) -> int:
    """The columns that a text takes on a terminal. rich, which knows the wide characters, is loaded for a text that may have some."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fitted(cell: str, width: int) -> str:
    return _cut(cell, width) + " " * (width - _cells(cell))


def _cut(cell: str, width: int) -> str:
    """A cell cut to ``width``. A shorter one is not padded: one long cell must not make every row as long."""
    if _cells(cell) <= width:
        return cell
    from rich.cells import set_cell_size

    return set_cell_size(cell, width - 1) + "…"


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
    """Whether a stream is a terminal whose user has not switched colour off (https://no-color.org)."""
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
