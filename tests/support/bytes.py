"""Every byte below a directory, and which paths changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

Snapshot = Mapping[str, tuple[int, int, bytes]]
"""Mode, modification time and contents by path; of a directory only the mode."""


def everything_below(root: Path) -> Snapshot:
    """Take a snapshot; links are not followed."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for parent, directories, names in os.walk(root):
        for name in (*directories, *names):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                contents = Path(path).read_bytes()
            else:
                contents = os.fsencode(os.readlink(path)) if stat.S_ISLNK(status.st_mode) else b""
            mtime = 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
            found[os.path.relpath(path, root)] = (status.st_mode, mtime, contents)
    return found


def changed(before: Snapshot, after: Snapshot) -> set[str]:
    """The paths that appeared, vanished or differ."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
