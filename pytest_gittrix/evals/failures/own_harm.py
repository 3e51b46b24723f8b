"""What an agent did to its own sandbox, as a plain sentence: it is the agent's failure, however the machine notices it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.evals.failures.machine import has_no_room
from pytest_gittrix.os_level.remove_tree import remove_tree

FILLED: Final = "the agent filled the disk that it works on"

_MOST_BYTES: Final = 64 << 20
_MOST_FILES: Final = 100_000
_SHARE: Final = 4
"""An agent counts as who filled a disk if a quarter of the disk, or so many bytes or files, are its own."""
_BLOCK: Final = 512
_OWNER_READS: Final = stat.S_IRUSR | stat.S_IXUSR


def locked_whole(workspace: Path | None) -> str:
    """How the agent locked its whole workspace; empty if it did not. Root can read it all the same, and is told the same."""
    if workspace is None or not workspace.is_dir() or workspace.is_symlink() or workspace.stat().st_mode & _OWNER_READS == _OWNER_READS:
        return ""
    return f"the agent locked its workspace (chmod {_mode(workspace)} .)"


def locked_part(workspace: Path | None) -> str:
    """How the agent made its workspace unreadable; empty if it did not."""
    if workspace is None:
        return ""
    if not workspace.is_dir() or workspace.is_symlink():
        return "the agent took its workspace away"
    if not os.access(workspace, os.R_OK | os.X_OK):
        return locked_whole(workspace)
    for root, names, files in os.walk(workspace):
        names.sort()
        for name, needed in [*((name, os.R_OK | os.X_OK) for name in names), *((name, os.R_OK) for name in sorted(files))]:
            path = os.path.join(root, name)
            if not os.path.islink(path) and not os.access(path, needed):
                inside = os.path.relpath(path, workspace)
                return f"the agent locked {inside} (chmod {_mode(path)} {inside})"
    return ""


def _mode(path: str | os.PathLike[str]) -> str:
    try:
        return f"{stat.S_IMODE(os.lstat(path).st_mode):03o}"
    except OSError:
        return "000"


class DiskUse:
    """What an agent takes of the disk that its sample works on.

    Args:
        directory: the directory of the sample.

    Attributes:
        is_filled: whether the agent filled the disk, as far as was looked.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: tuple[Path, ...] = ()
        self._began = 0
        self.is_filled = False

    def begin(self, *own: Path | None) -> None:
        """Note that the agent begins, and the directories that it can write to."""
        self._own = tuple(path for path in own if path is not None)
        self._began = SystemClock().now_ns()

    def look(self) -> bool:
        """Whether the disk is full, and what the agent wrote since it began is a large part of it."""
        self.is_filled = has_no_room(self._directory) and self._is_large()
        return self.is_filled

    def made_room(self) -> bool:
        """Remove what the agent filled the disk with; whether it had filled it."""
        if self.is_filled:
            for path in self._own:
                remove_tree(path)
        return self.is_filled

    def _is_large(self) -> bool:
        whole = os.statvfs(self._directory)
        most_bytes = min(_MOST_BYTES, whole.f_blocks * whole.f_frsize // _SHARE)
        most_files = min(_MOST_FILES, whole.f_files // _SHARE or _MOST_FILES)
        taken = 0
        for count, status in enumerate(_changed(self._own, self._began), 1):
            taken += status.st_blocks * _BLOCK
            if taken >= most_bytes or count >= most_files:
                return True
        return False


def _changed(directories: tuple[Path, ...], since_ns: int) -> Iterator[os.stat_result]:
    """The entries below directories that were changed since. An agent can set the time of a content, not that of a change of the file."""
    for directory in directories:
        for root, names, files in os.walk(directory):
            for name in [*names, *files]:
                with suppress(OSError):
                    status = os.lstat(os.path.join(root, name))
                    if status.st_ctime_ns >= since_ns:
                        yield status
