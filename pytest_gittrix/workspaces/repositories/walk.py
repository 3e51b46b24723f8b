"""Walks directories that an agent made: no link is followed, and no depth is too much."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

_BARE: Final = frozenset({"HEAD", "objects", "refs"})


def walk(root: str, *, unread: Callable[[str], object] = lambda _directory: None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a directory tree as ``os.walk`` does, without recursion: an agent may have made it deeper than Python's recursion limit.

    Args:
        root: the directory. Links below it are not followed.
        unread: called with a directory that cannot be listed. One that has vanished is skipped silently.

    Yields:
        A directory, the names of its subdirectories (remove a name from the list to skip it), and the names of everything else in it.
    """
    pending = [root]
    while pending:
        parent = pending.pop()
        directories: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(parent) as entries:
                for entry in entries:
                    (directories if _is_directory(entry) else names).append(entry.name)
        except FileNotFoundError:
            continue
        except OSError:
            unread(parent)
            continue
        yield parent, directories, names
        below = (os.path.join(parent, name) for name in reversed(directories))
        pending.extend(path for path in below if not os.path.islink(path))


def files_below(root: str) -> Iterator[str]:
    """The path of everything below a directory except directories. No link is followed; a directory that cannot be listed is skipped."""
    for parent, _, names in walk(root):
        for name in names:
            yield os.path.join(parent, name)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a loop of links


def find_repositories(root: str) -> list[str]:
    """The paths below a directory of everything that looks like a repository, bare ones too, relative and sorted.

    Links are not followed. A directory outside these repositories that cannot be listed counts as one, since it may contain one.
    """
    found: list[str] = []

    def unread(directory: str) -> None:
        here = os.path.relpath(directory, root)
        if here != "." and not any(path == "." or here.startswith(f"{path}/") for path in found):
            found.append(here)

    for parent, directories, names in walk(root, unread=unread):
        here = os.path.relpath(parent, root)
        if ".git" in directories or ".git" in names:
            found.append(here)
        if ".git" in directories:
            directories.remove(".git")
        elif {*directories, *names} >= _BARE:
            found.append(here)
            directories.clear()
    return sorted(found)
