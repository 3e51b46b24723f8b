"""Find the files of a work tree that differ from a commit, without git and without the index that the agent used.

Ignored files are left out as git leaves them out, by the work tree's current ``.gitignore`` files and by ``info/exclude``. Files are
compared by their bytes, never by times; filters and line-ending conversions are not applied.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix.errors import GittrixError, PathNotFound
from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.path_rules import is_safe_path
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry, parents
from pytest_gittrix.os_level.open_below import tolerating_shape
from pytest_gittrix.os_level.safe_dir import Found, SafeDir

MAX_FILE: Final = 100 << 20
"""Most bytes that one committed file may have; forges refuse more."""

MAX_TOTAL: Final = 1 << 30
"""Most bytes that all committed files together may have; they are held in memory."""

_UNSAFE: Final = "its name could be taken for a git directory"
_SUBMODULE: Final = "it is inside a submodule"


@dataclass
class Uncommitted:
    """The difference between a work tree and a commit.

    Attributes:
        changes: new entry by path, None where the commit's file was deleted.
        blobs: bytes of the new entries, by id.
        refused: paths that exist but can never be committed, each with the reason.
        ignored: untracked paths that ignore rules leave out; that of a directory ends in ``/``.
        times: last modification of each new entry, in seconds since 1970, by path.
    """

    changes: dict[str, Entry | None] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict, repr=False)
    refused: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict, repr=False)


def find_uncommitted(
    root: str,
    entries: Mapping[str, Entry],
    format_: ObjectFormat,
    *,
    may_be_deleted: Callable[[str], bool],
    exclude: bytes = b"",
    nested: Collection[str] = (),
    on_file: Callable[[], object] = lambda: None,
    max_file: int = MAX_FILE,
    max_total: int = MAX_TOTAL,
) -> Uncommitted:
    """Compare a work tree with a commit.

    Args:
        root: the work tree.
        entries: everything in the commit, by path.
        format_: the commit's object format.
        may_be_deleted: called with the path of a missing file; says whether that is a deletion.
        exclude: more ignore rules, which decide where no ``.gitignore`` does.
        nested: directories below the root that are other repositories; they are skipped.
        on_file: called for each file; may raise to end the comparison.
        max_file: most bytes that one file may have.
        max_total: most bytes that all files together may have. A file over either limit is refused.

    Raises:
        PathNotFound: the work tree is gone.
        WriteRejected: a directory in it cannot be listed.
    """
    with SafeDir.open(root) as files:
        walk = _Comparison(files, entries, format_, exclude, frozenset(nested), (max_file, max_total))
        for found in files.scan(skip=walk.skips):
            on_file()
            if not found.is_dir:
                walk.compare(found)
        for path in entries.keys() - walk.present:
            if entries[path].mode != SUBMODULE and path not in walk.result.refused and may_be_deleted(path):
                walk.result.changes[path] = None
    result = walk.result
    result.changes = dict(sorted(result.changes.items()))
    return result


class _Comparison:
    """Compares the files of one work tree with a commit, one by one."""

    def __init__(
        self,
        files: SafeDir,
        entries: Mapping[str, Entry],
        format_: ObjectFormat,
        exclude: bytes,
        nested: frozenset[str],
        limits: tuple[int, int],
    ) -> None:
        self._files, self._entries, self._format = files, entries, format_
        self._max_file, self._bytes_left = limits
        self._nested = nested
        self._directories = {above for path in entries for above in parents(path)}
        self._submodules = {path for path, entry in entries.items() if entry.mode == SUBMODULE}
        self._rules: dict[str, bytes] = {}
        self._ignore = Ignore(self._rules, exclude)
        self.present: set[str] = set()
        self.result = Uncommitted()

    def skips(self, path: str) -> bool:
        """Whether to skip a path and everything below it. Called for each name of a directory when it is listed."""
        parent, _, name = path.rpartition("/")
        if name == ".git" or path in self._nested:
            return True
        self._read_rules(parent)
        if path in self._entries or path in self._directories:
            return False
        status = self._files.lstat(path)
        if status is None:
            return True
        is_directory = stat.S_ISDIR(status.st_mode)
        is_ignored = self._ignore.ignored(path, directory=is_directory)
        if is_ignored:
            self.result.ignored.append(f"{path}/" if is_directory else path)
        return is_ignored

    def _read_rules(self, directory: str) -> None:
        """Add the ignore rules of one directory; those of its parents have been read before."""
        if directory in self._rules:
            return
        self._rules[directory] = b""
        # Git also ignores a .gitignore that is a link.
        # What the system refuses to read is raised: without these rules, what a person keeps out of commits would be in one.
        with tolerating_shape():
            self._rules[directory] = self._files.read(f"{directory}/.gitignore" if directory else ".gitignore")[0]

    def compare(self, found: Found) -> None:
        """Compare one file with the commit and note the result."""
        path, kind = found.path, stat.S_IFMT(found.stat.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            return  # a commit cannot hold a socket, a pipe or a device
        self.present.add(path)
        if any(parent in self._submodules for parent in parents(path)):
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
        if not is_safe_path(path):
            self.result.refused[path] = _UNSAFE
            return
        if len(data) > self._bytes_left:
            self.result.refused[path] = "with it, there would be more bytes than one finalization can commit"
            return
        self._bytes_left -= len(data)
        self.result.changes[path] = entry
        self.result.blobs[entry.id] = data
        self.result.times[path] = status.st_mtime_ns // 10**9

    def _contents(self, path: str, kind: int) -> tuple[int, bytes, os.stat_result]:
        if kind == stat.S_IFLNK:
            return SYMLINK, self._files.read_link(path), self._files.lstat(path) or os.stat_result((0,) * 10)
        data, status = self._files.read(path)
        return EXECUTABLE if status.st_mode & 0o100 else FILE, data, status
