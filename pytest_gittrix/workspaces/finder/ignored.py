"""Finds ignored and other untracked files that would be lost: caches, installed packages and compiled files can be made again.

The table is a list of gitignore patterns. It says nothing of names such as ``build/`` or ``dist/``, below which people also keep what
nothing makes again. A directory that its own program marked as a cache (``CACHEDIR.TAG``) or as a virtual environment (``pyvenv.cfg``)
counts whatever its name is. The repositories that pip puts into an environment are work all the same.

Before a workspace is removed, what is small is read, so that it can be archived. What is large is named with its size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.path_rules import is_safe_path
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SYMLINK, Entry, parents
from pytest_gittrix.os_level.safe_dir import Found, SafeDir
from pytest_gittrix.workspaces.provided import NOTHING, Provided
from pytest_gittrix.workspaces.visibility import sized

if TYPE_CHECKING:
    from pytest_gittrix.workspaces.snapshot import Snapshot

TABLE: Final = """\
# Python
__pycache__/*.py[co]
__pycache__/*.nb[ic]
*.py[co]
*.egg-info/
.eggs/
.venv/
venv/
.tox/
.nox/
.pytest_cache/
.mypy_cache/
.ruff_cache/
.hypothesis/
.ipynb_checkpoints/
.coverage
.coverage.*
htmlcov/
# JavaScript
node_modules/
.yarn/cache/
.yarn/unplugged/
.pnpm-store/
.npm/
.next/
.nuxt/
.svelte-kit/
.parcel-cache/
.turbo/
.angular/cache/
.eslintcache
*.tsbuildinfo
# Compiled files
*.o
*.obj
*.class
*.gcda
*.gcno
.ccache/
CMakeFiles/
CMakeCache.txt
# Build caches
.gradle/
.terraform/
.dart_tool/
.stack-work/
.zig-cache/
.bundle/
.sass-cache/
.cache/
# Systems and editors
.DS_Store
Thumbs.db
*.sw[op]
*~
"""
"""Gitignore patterns of what can be made again."""

_TAG: Final = b"Signature: 8a477f597d28d172789f06886806bc55"  # https://bford.info/cachedir/
_MARKS: Final = {"CACHEDIR.TAG": _TAG, "pyvenv.cfg": b""}
"""Files by which programs mark a directory that they make again, with their first bytes."""
_LARGEST_MARK: Final = 1 << 16
_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 32 << 20
"""What is kept of all together."""


class Graded(NamedTuple):
    """A file, or a whole directory that can be made again.

    Attributes:
        path: its path; that of a directory ends in ``/``.
        status: of the file, or of the link where it is one; None for a directory.
        again: whether it can be made again.
        elsewhere: whether it is as it was included from durable's checkout.
    """

    path: str
    status: os.stat_result | None
    again: bool
    elsewhere: bool = False


class Regenerable:
    """Says of untracked paths whether they can be made again.

    Args:
        patterns: more gitignore patterns, the last of which that fits decides; ``!`` before one takes paths out again.
        strict: say of none that it can be made again.
        provided: what was put into the workspace at its start.
    """

    def __init__(self, patterns: Iterable[str] = (), *, strict: bool = False, provided: Provided = NOTHING) -> None:
        more = [*patterns]
        self._provided = NOTHING if strict else provided
        self._rules = Ignore({} if strict else {"": (TABLE + "\n".join(more)).encode(errors="surrogateescape")})
        # The same patterns the other way round ignore what they take out, whatever a program marked.
        self._taken_out = Ignore({"": "\n".join(map(_inverted, more)).encode(errors="surrogateescape")})
        self._marks: Mapping[str, bytes] = {} if strict else _MARKS

    def covers(self, files: SafeDir, path: str) -> bool:
        """Whether a path can be made again as a whole, by its name or by the mark of a program; that of a directory ends in ``/``."""
        directory = path.endswith("/")
        return self._rules.ignored(path.rstrip("/"), directory=directory) or (directory and self._is_marked(files, path.rstrip("/")))

    def _is_marked(self, files: SafeDir, directory: str) -> bool:
        if self._taken_out.ignored(directory, directory=True):
            return False
        for name, start in self._marks.items():
            try:
                if files.read(f"{directory}/{name}", max_bytes=_LARGEST_MARK)[0].startswith(start):
                    return True
            except (GittrixError, FileNotFoundError):
                continue
        return False

    def repositories(self, files: SafeDir, directory: str) -> Iterator[Found]:
        """Find the ``.git`` of each package that pip installed from a repository, to be edited, into a virtual environment.

        They are in ``src`` of the environment, which can be made again without what was committed there.

        Args:
            files: the directory that the environment is in.
            directory: the environment; its path ends in ``/``.
        """
        packages, most = f"{directory}src", directory.count("/") + 2

        def too_deep(path: str) -> bool:
            return path.count("/") > most or (path.count("/") == most and not path.endswith("/.git"))

        with suppress(GittrixError):
            yield from (one for one in files.scan(packages, skip=too_deep) if one.path.endswith("/.git"))

    def graded(self, files: SafeDir, top: str, on_step: Callable[[], object] = lambda: None) -> list[Graded]:
        """Grade all files at or below a path.

        Args:
            files: the directory that the path is in.
            top: the path; that of a directory ends in ``/``.
            on_step: called for each file; may raise to end the grading.

        Raises:
            WriteRejected: a directory cannot be listed.
        """
        if self.covers(files, top):
            above = (f"{directory}/" for directory in parents(top.rstrip("/")) if self._rules.ignored(directory, directory=True))
            whole = [Graded(next(above, top), None, again=True)]
            return whole + self._kept_in(files, [top] if top.endswith("/") else [])
        if not top.endswith("/"):
            status = files.lstat(top)
            return [] if status is None else [self._graded(top, status)]
        found: list[Graded] = []
        again: dict[str, None] = {}
        for one in files.scan(top.rstrip("/"), skip=lambda path: path.rpartition("/")[0] in again):
            on_step()
            directory, _, name = one.path.rpartition("/")
            if name in self._marks and self._is_marked(files, directory):
                again[directory] = None
            if one.is_dir and self._rules.ignored(one.path, directory=True):
                again[one.path] = None
            elif not one.is_dir:
                found.append(self._graded(one.path, one.stat))
        directories = tuple(f"{path}/" for path in again)
        whole = [Graded(path, None, again=True) for path in directories]
        return whole + self._kept_in(files, directories) + [one for one in found if not one.path.startswith(directories)]

    def _graded(self, path: str, status: os.stat_result) -> Graded:
        return Graded(path, status, self._rules.ignored(path), self._provided.origin_of(path, status) == "durable")

    def _kept_in(self, files: SafeDir, directories: Iterable[str]) -> list[Graded]:
        return [Graded(one.path, one.stat, again=False) for directory in directories for one in self.repositories(files, directory)]


def _inverted(pattern: str) -> str:
    if not pattern.startswith("!"):
        return f"!{pattern}"
    plain = pattern[1:]
    return f"\\{plain}" if plain.startswith(("!", "#")) else plain


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
    files: SafeDir, tops: Iterable[str], on_step: Callable[[], object] = lambda: None, provided: Provided = NOTHING
) -> tuple[tuple[Found, ...], tuple[str, ...]]:
    """Find the files at or below ignored paths that cannot be made again, and name those that are too large to be kept.

    Args:
        files: the directory that they are in.
        tops: the paths; that of a directory ends in ``/``.
        on_step: called for each file; may raise to end the search.
        provided: what was put there at the start; what of it is unchanged is passed over.

    Returns:
        The files to keep, and a line with path and size for each of ``tops`` that is too large.

    Raises:
        AdapterUnavailable: there is a git repository among them.
        WriteRejected: a directory cannot be listed.
    """
    regenerable = Regenerable(provided=provided)
    kept: list[Found] = []
    lines: list[str] = []
    left = _MOST_BYTES
    for top in tops:
        graded = (one for one in regenerable.graded(files, top, on_step) if not one.again and not one.elsewhere)
        found = [Found(one.path, one.status) for one in graded if one.status is not None]
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
    found, lines = find_left_out(files, (*snapshot.withheld_tops, *snapshot.ignored), on_step, snapshot.provided)
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
