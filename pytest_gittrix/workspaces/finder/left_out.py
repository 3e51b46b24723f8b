"""Reads what a promotion of everything leaves out of a workspace, before the workspace is removed: untracked files that rules ignore.

What is small is read, so that it can be archived. What is large is named with its size. What can be made again is passed over.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.git.path_rules import is_safe_path
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SYMLINK, Entry
from pytest_gittrix.os_level.safe_dir import Found, SafeDir
from pytest_gittrix.workspaces.finder.regenerable import Regenerable
from pytest_gittrix.workspaces.snapshot import Snapshot, sized

_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 32 << 20
"""What is kept of all together."""


class LeftOut(NamedTuple):
    """Ignored files of a workspace.

    Attributes:
        entries: the entries of those that are kept, by path.
        blobs: their bytes, by id.
        lines: what is not kept because it is too large: a path and its size each.
    """

    entries: Mapping[str, Entry]
    blobs: Mapping[str, bytes]
    lines: tuple[str, ...]


def find_left_out(
    files: SafeDir, tops: Iterable[str], on_step: Callable[[], object] = lambda: None
) -> tuple[tuple[Found, ...], tuple[str, ...]]:
    """Find the files at or below ignored paths that cannot be made again, and name those that are too large to be kept.

    Args:
        files: the directory that they are in.
        tops: the paths; that of a directory ends in ``/``.
        on_step: called for each file; may raise to end the search.

    Returns:
        The files to keep, and a line with path and size for each of ``tops`` that is too large.

    Raises:
        AdapterUnavailable: there is a git repository among them.
        WriteRejected: a directory cannot be listed.
    """
    regenerable = Regenerable()
    kept: list[Found] = []
    lines: list[str] = []
    left = _MOST_BYTES
    for top in tops:
        found = [Found(one.path, one.status) for one in regenerable.graded(files, top, on_step) if one.status is not None and not one.again]
        _require_no_repository(found)
        found = [one for one in found if stat.S_ISREG(one.stat.st_mode) or stat.S_ISLNK(one.stat.st_mode)]
        size = sum(one.stat.st_size for one in found)
        if len(kept) + len(found) > _MOST_FILES or size > left:
            lines.append(sized(top, len(found), size))
        else:
            kept += found
            left -= size
    return tuple(kept), tuple(lines)


def read_left_out(files: SafeDir, snapshot: Snapshot, on_step: Callable[[], object] = lambda: None) -> LeftOut:
    """Read the files of a workspace that a promotion of everything leaves out, and that cannot be made again.

    Args:
        files: the workspace's files.
        snapshot: the workspace, at the moment when it was taken.
        on_step: called for each file; may raise to end the reading.

    Raises:
        AdapterUnavailable: there is a git repository among them, or a name that no commit may have.
        PathNotFound, WriteRejected: a file cannot be read.
    """
    found, lines = find_left_out(files, (*snapshot.withheld_tops, *snapshot.ignored), on_step)
    entries: dict[str, Entry] = {}
    blobs: dict[str, bytes] = {}
    for one in found:
        on_step()
        entry, data = _read(files, one, snapshot)
        entries[one.path], blobs[entry.id] = entry, data
    return LeftOut(entries, blobs, lines)


def _require_no_repository(found: Iterable[Found]) -> None:
    for one in found:
        place, inside, _ = f"/{one.path}/".partition("/.git/")
        if inside:
            raise AdapterUnavailable(f"{place.lstrip('/')!r} has a repository of its own, whose history is not archived.")


def _read(files: SafeDir, one: Found, snapshot: Snapshot) -> tuple[Entry, bytes]:
    if not is_safe_path(one.path):
        raise AdapterUnavailable(f"{one.path!r} is not archived: its name could be taken for a git directory.")
    if stat.S_ISLNK(one.stat.st_mode):
        mode, data = SYMLINK, files.read_link(one.path)
    else:
        mode, data = EXECUTABLE if one.stat.st_mode & 0o100 else FILE, files.read(one.path, max_bytes=_MOST_BYTES)[0]
    return Entry(mode, snapshot.seed.format.hash_object("blob", data)), data
