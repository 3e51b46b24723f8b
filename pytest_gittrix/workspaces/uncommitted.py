"""The files of a work tree that differ from a commit, found without git and without the index of whoever worked there.

What git would leave out as ignored is left out: the rules are those of the ``.gitignore`` files as they stand, and of
``info/exclude``. Bytes are compared, never times; filters and line ends are nobody's business here. It must not know what is done with
what it finds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix.errors import GittrixError, PathNotFound, WriteRejected
from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.path_rules import is_safe_component
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry, parents
from pytest_gittrix.os_level.safe_dir import Found, GuardedDir

MAX_FILE: Final = 100 << 20
"""Bytes that one file may have to be committed; forges refuse more."""

MAX_TOTAL: Final = 1 << 30
"""Bytes that all of them together may have; they are held in memory."""

_UNSAFE: Final = "its name could be taken for a git directory"
_SUBMODULE: Final = "it is inside a submodule"


@dataclass
class Uncommitted:
    """What differs.

    Attributes:
        changes: new entry by path, None where the commit's file is gone.
        blobs: bytes of the new entries, by id.
        refused: paths that are there but can never be committed, each with the reason.
        times: when each of the new entries was modified last, in seconds since 1970, by path.
    """

    changes: dict[str, Entry | None] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict, repr=False)
    refused: dict[str, str] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict, repr=False)


def uncommitted(
    root: str,
    entries: Mapping[str, Entry],
    format_: ObjectFormat,
    *,
    may_be_deleted: Callable[[str], bool],
    exclude: bytes = b"",
    strangers: Collection[str] = (),
    tick: Callable[[], object] = lambda: None,
    max_file: int = MAX_FILE,
    max_total: int = MAX_TOTAL,
) -> Uncommitted:
    """Compare a work tree with a commit.

    Args:
        root: the work tree.
        entries: everything in the commit, by path.
        format_: how blobs are named.
        may_be_deleted: asked of a file of the commit that is not there whether that is a deletion.
        exclude: more rules, which come before those of the root's ``.gitignore``.
        strangers: directories below the root that are repositories of their own, and not looked into.
        tick: called for each file; may raise to end the walk.
        max_file: bytes that a file may have.
        max_total: bytes that all of them together may have. What goes beyond either is refused, file by file.

    Raises:
        PathNotFound: the work tree is gone.
        WriteRejected: something in it cannot be listed.
    """
    with GuardedDir.open(root) as files:
        walk = _Walk(files, entries, format_, exclude, frozenset(strangers), (max_file, max_total))
        for found in files.scan(skip=walk.skips):
            tick()
            if not found.is_dir:
                walk.look(found)
        for path in entries.keys() - walk.seen:
            if entries[path].mode != SUBMODULE and path not in walk.result.refused and may_be_deleted(path):
                walk.result.changes[path] = None
    result = walk.result
    result.changes = dict(sorted(result.changes.items()))
    return result


class _Walk:
    """One walk over one work tree."""

    def __init__(
        self,
        files: GuardedDir,
        entries: Mapping[str, Entry],
        format_: ObjectFormat,
        exclude: bytes,
        strangers: frozenset[str],
        limits: tuple[int, int],
    ) -> None:
        self._files, self._entries, self._format = files, entries, format_
        self._max_file, self._left = limits
        self._strangers = strangers
        self._directories = {above for path in entries for above in parents(path)}
        self._submodules = {path for path, entry in entries.items() if entry.mode == SUBMODULE}
        self._exclude = exclude
        self._sources: dict[str, bytes] = {}
        self._read: set[str] = set()
        self._ignore = Ignore({})
        self.seen: set[str] = set()
        self.result = Uncommitted()

    def skips(self, path: str) -> bool:
        """Whether a path, with all below it, is passed over. Called for each name of a directory when it is listed."""
        above, _, name = path.rpartition("/")
        if name == ".git" or path in self._strangers:
            return True
        self._rules_of(above)
        if path in self._entries or path in self._directories:
            return False
        status = self._files.lstat(path)
        return status is None or self._ignore.ignored(path, directory=stat.S_ISDIR(status.st_mode))

    def _rules_of(self, directory: str) -> None:
        """Take the rules of one directory into account. Those above it are known by then."""
        if directory in self._read:
            return
        self._read.add(directory)
        rules = b"" if directory else self._exclude + b"\n"
        # One that is a link is nothing to git either.
        with suppress(PathNotFound, WriteRejected):
            rules += self._files.read(f"{directory}/.gitignore" if directory else ".gitignore")[0]
        if rules.strip():
            self._sources[directory] = rules
            self._ignore = Ignore(dict(self._sources))

    def look(self, found: Found) -> None:
        """Compare one file."""
        path, kind = found.path, stat.S_IFMT(found.stat.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            return  # a socket, a pipe or a device has no place in a commit
        self.seen.add(path)
        if any(above in self._submodules for above in parents(path)):
            self.result.refused[path] = _SUBMODULE
            return
        too_large = kind == stat.S_IFREG and found.stat.st_size > self._max_file
        size = f"it has {found.stat.st_size} bytes; the limit is {self._max_file}"
        if too_large and path not in self._entries:
            self.result.refused[path] = size
            return
        try:
            mode, data, status = self._contents(path, kind)
        except PathNotFound:
            return
        except GittrixError as error:
            self.result.refused[path] = error.fact
            return
        entry = Entry(mode, self._format.hash_object("blob", data))
        if self._entries.get(path) == entry:
            return
        if too_large:
            self.result.refused[path] = size
            return
        if not all(map(is_safe_component, os.fsencode(path).split(b"/"))):
            self.result.refused[path] = _UNSAFE
            return
        if len(data) > self._left:
            self.result.refused[path] = "with it, there would be more bytes than one finalization can commit"
            return
        self._left -= len(data)
        self.result.changes[path] = entry
        self.result.blobs[entry.id] = data
        self.result.times[path] = status.st_mtime_ns // 10**9

    def _contents(self, path: str, kind: int) -> tuple[int, bytes, os.stat_result]:
        if kind == stat.S_IFLNK:
            return SYMLINK, self._files.read_link(path), self._files.lstat(path) or os.stat_result((0,) * 10)
        data, status = self._files.read(path)
        return EXECUTABLE if status.st_mode & 0o100 else FILE, data, status
