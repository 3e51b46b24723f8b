"""The files that views write for other systems: whole or not at all, and typed errors for what the system refuses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.os_level.files import write_file


def check_place(path: str | os.PathLike[str]) -> Path:
    """A path as the operating system accepts it. Raises InvalidInput for one with a null byte, which no file has."""
    name = os.fspath(path)
    if "\0" in name:
        raise InvalidInput(f"{name!r} is no path: it has a null byte.", fix="Leave it out.")
    return Path(name)


def is_unfinished(name: str) -> bool:
    """Whether a name is that of a file which ``write_whole`` is writing, or was when it was killed."""
    return name.startswith(".") and name.endswith(".tmp")


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a file of text whole or not at all; missing directories are made, escaped bytes are written as they were.

    Raises:
        AdapterUnavailable: it cannot be written; then the old one is as it was.
        InvalidInput: the text cannot be encoded, or the path has a null byte.
    """
    check_place(path)
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as problem:
        raise InvalidInput(f"{problem.object[problem.start : problem.end]!r} cannot be written: it is no byte.") from None
    # One name per writer, so that two never write one file; no session's id begins with a dot.
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with typed_file(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, raw, mode=mode, temporary=fresh)


@contextmanager
def typed_file(path: str | os.PathLike[str], done: str = "written") -> Iterator[None]:
    """What the system refuses in this block becomes AdapterUnavailable, which says that the file cannot be ``done``."""
    try:
        yield
    except GittrixError:
        raise
    except OSError as problem:
        raise AdapterUnavailable(
            f"{os.fspath(path)} cannot be {done}: {problem.strerror}.", fix="See that it is a file you may use, in a directory with space."
        ) from problem
