"""Directories that a process makes for its samples, and that the next process removes if it was killed.

Harnesses clean up after an error and after Ctrl-C; after SIGTERM and SIGKILL nothing does. So all directories of a process are below one
whose name tells the process, by its number and its start: a number alone is used again. Source: eval-anchors section 0, finding 8.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "gittrix-samples"


def sample_directory(root: Path | None = None) -> Path:
    """A fresh directory for one sample of this process.

    Args:
        root: where; the directory for temporary files by default.
    """
    pid = os.getpid()
    mine = _root(root) / f"{PREFIX}-{os.getuid()}-{pid}-{_started(pid)}"
    mine.mkdir(mode=0o700, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=mine))


def forget(directory: Path) -> None:
    """Remove a sample's directory if it is still there, and that of the process after its last one."""
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        directory.parent.rmdir()


def remove_abandoned(root: Path | None = None) -> list[Path]:
    """Remove what processes of this user left behind that are gone; gives what was removed, sorted.

    Args:
        root: where to look; the directory for temporary files by default.
    """
    removed = []
    for found in sorted(_root(root).glob(f"{PREFIX}-{os.getuid()}-*-*")):
        pid, _, started = found.name.removeprefix(f"{PREFIX}-{os.getuid()}-").partition("-")
        if pid.isdigit() and started and found.is_dir() and not found.is_symlink() and _started(int(pid)) != started:
            shutil.rmtree(found, ignore_errors=True)
            removed.append(found)
    return removed


def _root(root: Path | None) -> Path:
    return Path(os.path.realpath(root or tempfile.gettempdir()))


def _started(pid: int) -> str:
    """When a process was started, in clock ticks since boot; empty if there is none (where there is no /proc: whether there is one)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "0"
