"""Which sessions a store has, and whether their files changed, without opening a file of a session."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Container
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable

LOG = "events.jsonl"
METADATA = "metadata.json"
# What can name a session, and so never a path.
ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TEMPORARY: Final = re.compile(rf"\.{re.escape(METADATA)}\.[0-9]+-[0-9]+\.tmp|{re.escape(LOG)}\.[0-9]+\.tmp|tmp_[0-9a-f]{{16}}")

Signature = tuple[int, int, int]
"""Size, time of the last change and inode of a file: another one means other contents."""

_UNREADABLE: Final[Signature] = (-1, 0, 0)  # a session is there, whatever it is: who reads it finds the reason


def is_temporary(name: str) -> bool:
    """Whether a name in a session's directory is that of a file on its way to its own name, which a killed writer leaves."""
    return _TEMPORARY.fullmatch(name) is not None


def names_of(root: str | os.PathLike[str]) -> list[str]:
    """The names in a store that can be sessions."""
    try:
        return [name for name in os.listdir(root) if ID.fullmatch(name)]
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise _unlistable(root, problem) from problem


def signatures(root: str | os.PathLike[str], known: Container[str] = (), *, names: Collection[str] | None = None) -> dict[str, Signature]:
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


def _unlistable(root: str | os.PathLike[str], problem: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(f"The store {root} cannot be listed: {problem.strerror}.")
