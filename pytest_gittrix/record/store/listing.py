"""Which sessions a store has, and whether their files changed, without opening a file of a session."""

from __future__ import annotations

import os
from collections.abc import Collection, Container
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.record.store.store import ID, LOG, METADATA

Signature = tuple[int, int, int]
"""Size, time of the last change and inode of a file: another one means other contents."""

_UNREADABLE: Final[Signature] = (-1, 0, 0)  # a session is there, whatever it is: who reads it finds the reason


def names_of(root: Path) -> list[str]:
    """The names in a store that can be sessions."""
    try:
        return [name for name in os.listdir(root) if ID.fullmatch(name)]
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise _unlistable(root, problem) from problem


def signatures(root: Path, known: Container[str] = (), *, names: Collection[str] | None = None) -> dict[str, Signature]:
    """Size, time and inode of each session's log (of its record, when it has no log) under its id; of all, or of those named."""
    try:
        directory = os.open(root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise _unlistable(root, problem) from problem
    try:
        found = {}
        for name in os.listdir(directory) if names is None else names:
            if name not in known and not ID.fullmatch(name):
                continue
            # In line, because this loop is nearly the whole cost of an index with nothing to do.
            try:
                stat = os.stat(f"{name}/{LOG}", dir_fd=directory)
            except (FileNotFoundError, NotADirectoryError):
                stat = None
            except OSError:
                found[name] = _UNREADABLE
                continue
            if stat is None or not stat.st_size:
                try:
                    stat = os.stat(f"{name}/{METADATA}", dir_fd=directory)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError:
                    found[name] = _UNREADABLE
                    continue
            found[name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return found
    finally:
        os.close(directory)


def _unlistable(root: Path, problem: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(f"The store {root} cannot be listed: {problem.strerror}.")
