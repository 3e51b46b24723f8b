"""Grades untracked files: caches, installed packages and compiled files can be made again, so that nothing is lost with them.

The table is a list of gitignore patterns. It says nothing of names such as ``build/`` or ``dist/``, below which people also keep what
nothing makes again. A directory that its own program marked as a cache (``CACHEDIR.TAG``) or as a virtual environment (``pyvenv.cfg``)
counts whatever its name is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.tree import parents
from pytest_gittrix.os_level.safe_dir import SafeDir

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


class Graded(NamedTuple):
    """A file, or a whole directory that can be made again.

    Attributes:
        path: its path; that of a directory ends in ``/``.
        status: of the file, or of the link where it is one; None for a directory.
        again: whether it can be made again.
    """

    path: str
    status: os.stat_result | None
    again: bool


class Regenerable:
    """Says of untracked paths whether they can be made again.

    Args:
        patterns: more gitignore patterns, the last of which that fits decides; ``!`` before one takes paths out again.
        strict: say of none that it can be made again.
    """

    def __init__(self, patterns: Iterable[str] = (), *, strict: bool = False) -> None:
        table = TABLE + "".join(f"{pattern}\n" for pattern in patterns)
        self._rules = Ignore({} if strict else {"": table.encode(errors="surrogateescape")})
        self._marks: Mapping[str, bytes] = {} if strict else _MARKS

    def covers(self, files: SafeDir, path: str) -> bool:
        """Whether a path can be made again as a whole, by its name or by the mark of a program; that of a directory ends in ``/``."""
        directory = path.endswith("/")
        return self._rules.ignored(path.rstrip("/"), directory=directory) or (directory and self._is_marked(files, path.rstrip("/")))

    def _is_marked(self, files: SafeDir, directory: str) -> bool:
        for name, start in self._marks.items():
            try:
                if files.read(f"{directory}/{name}", max_bytes=_LARGEST_MARK)[0].startswith(start):
                    return True
            except (GittrixError, FileNotFoundError):
                continue
        return False

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
            return [Graded(next(above, top), None, again=True)]
        if not top.endswith("/"):
            status = files.lstat(top)
            return [] if status is None else [Graded(top, status, again=False)]
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
                found.append(Graded(one.path, one.stat, self._rules.ignored(one.path)))
        whole = [Graded(f"{path}/", None, again=True) for path in again]
        return whole + [one for one in found if not one.path.startswith(tuple(directory.path for directory in whole))]
