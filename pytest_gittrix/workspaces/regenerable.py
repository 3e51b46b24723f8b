"""Which ignored files can be made again, so that nothing is lost when they are removed: caches, installed packages, compiled files.

The table is a list of gitignore patterns. It says nothing of names such as ``build/`` or ``dist/``, below which people also keep what
nothing makes again. A directory that its own program marked as a cache (``CACHEDIR.TAG``) or as a virtual environment (``pyvenv.cfg``)
counts whatever its name is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.ignore import Ignore
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
MARKS: Final = {"CACHEDIR.TAG": _TAG, "pyvenv.cfg": b""}
"""Files by which programs mark a directory that they make again, with their first bytes."""
_LARGEST_MARK: Final = 1 << 16


class Regenerable:
    """Says of ignored paths whether they can be made again.

    Args:
        patterns: more gitignore patterns, the last of which that fits decides; ``!`` before one takes paths out again.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._rules = Ignore({"": (TABLE + "".join(f"{pattern}\n" for pattern in patterns)).encode(errors="surrogateescape")})

    def covers(self, path: str, *, directory: bool = False) -> bool:
        """Whether a path can be made again by its name, or by that of a directory above it."""
        return self._rules.ignored(path, directory=directory)

    def is_marked(self, files: SafeDir, directory: str) -> bool:
        """Whether a program marked a directory as one that it makes again.

        Args:
            files: what the directory is in.
            directory: its path there, without a slash at the end.
        """
        for name, start in MARKS.items():
            try:
                if files.read(f"{directory}/{name}", max_bytes=_LARGEST_MARK)[0].startswith(start):
                    return True
            except (GittrixError, FileNotFoundError):
                continue
        return False
