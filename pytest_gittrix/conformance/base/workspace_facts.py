"""What a clause finds in a workspace: its files with their modes, its repository, and what an ended session left there."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.base.expect import beyond_a_script, run, set_traps
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage

REPOSITORY: Final = "git init -q 2>/dev/null"
"""Shell commands that make a repository in a workspace which has none, and change nothing in one which has."""
PRIVATE_DEVICES: Final = """
mkdir "$1"
mount -t tmpfs devices "$1"
mknod -m 666 "$1/null" c 1 3 2>/dev/null || : > "$1/null"
: > "$1/urandom"; mount --bind /dev/urandom "$1/urandom"
if [ -d /dev/shm ]; then mkdir "$1/shm"; mount --rbind /dev/shm "$1/shm"; fi
mount --rbind "$1" /dev
cd "$PWD"
"""
"""Shell commands that give a mount namespace a device directory; its null device is an empty file where no device can be made."""
_SET_FLAGS: Final = 0x40086602
"""FS_IOC_SETFLAGS of linux/fs.h, by which `chattr` makes a file immutable."""


def private_devices_work(namespace: list[str], directory: Path) -> bool:
    """Whether a program that is started with ``namespace`` before it can have a device directory of its own."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    command = [*namespace, "sh", "-euc", PRIVATE_DEVICES, "sh", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def bytes_below(root: Path) -> dict[str, tuple[str, bytes]]:
    """The target of each link and the bytes of each file below a directory, git's own among them; a link to a file has both."""
    return {
        str(path.relative_to(root)): (os.readlink(path) if path.is_symlink() else "", path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    }


def next_after(stage: Stage, script: str) -> DrivenSession:
    """Start a session, run a script of its agent's, end it, and start the next one."""
    one = stage.start("one")
    run(stage, one, script)
    one.evict()
    return stage.start("later")


def files_of(session: DrivenSession) -> dict[str, tuple[object, ...]]:
    """The facts of each path of a workspace outside its repository: mode, attributes, and a file's link count and bytes.

    A ``.git`` that is a file leads to a repository elsewhere. That it does is for ISO-07, and where it leads differs for each workspace.
    """
    root = workspace_of(session)
    found: dict[str, tuple[object, ...]] = {}
    for parent, directories, names in os.walk(root):
        here = os.path.relpath(parent, root)
        directories[:] = [name for name in directories if (here, name) != (".", ".git")]
        for name in [".", *directories, *(name for name in names if (here, name) != (".", ".git"))]:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            attributes = tuple(os.listxattr(path, follow_symlinks=False)) if hasattr(os, "listxattr") else ()
            facts: tuple[object, ...] = (status.st_mode, attributes)
            if stat.S_ISREG(status.st_mode):
                facts += (status.st_nlink, Path(path).read_bytes())
            elif stat.S_ISLNK(status.st_mode):
                facts += (os.readlink(path),)
            found[os.path.normpath(os.path.join(here, name))] = facts
    return found


@contextmanager
def changeable_afterwards(root: Path, *names: str) -> Iterator[None]:
    """A block after which files and directories can be changed and removed again, wherever they are by then."""
    held = [os.open(root / name, os.O_RDONLY) for name in names]
    try:
        yield
    finally:
        for descriptor in held:
            with suppress(OSError, ImportError):  # a system without such flags makes nothing immutable
                import fcntl

                fcntl.ioctl(descriptor, _SET_FLAGS, bytes(8))
            os.fchmod(descriptor, os.fstat(descriptor).st_mode | stat.S_IWUSR)
            os.close(descriptor)


def is_writable(path: Path) -> bool:
    """Whether this process can open a file to write to it."""
    try:
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        return False
    return True


def bytes_taken(path: Path) -> int:
    """The bytes of the disk that a file takes."""
    return path.stat().st_blocks * 512


def git_state(stage: Stage, session: DrivenSession) -> str:
    """References, index, configuration and hooks of a workspace's repository; empty if there is none.

    Where ``.git`` is a file, only what is the workspace's own: that everything else is shared is for ISO-07.
    """
    git = workspace_of(session) / ".git"
    if not git.exists():
        return ""
    own = "git ls-files -v --stage; git status --short; git config --worktree --list 2>/dev/null || true"
    if git.is_file():
        return run(stage, session, own)
    return run(
        stage,
        session,
        """
        git for-each-ref; cat .git/HEAD; git ls-files -v --stage; git stash list; git status --short; git config --local --list
        cat .git/info/exclude .git/hooks/* .git/logs/HEAD 2>/dev/null || true
        """,
    )


def workspace_of(session: DrivenSession) -> Path:
    """The directory in which the agent's programs run."""
    path = session.workspace_path
    assert path is not None
    return path


def set_traps_in(stage: Stage, session: DrivenSession) -> Path:
    """Configure the workspace's repository so that git runs programs of the agent in it; gives the file that they write."""
    beyond_a_script(stage, "Programs are named in the configuration of the workspace's repository.")
    traps = stage.path / "traps"
    mark = set_traps(traps)
    run(stage, session, f"{REPOSITORY}; cat '{traps}/config' >> \"$(git rev-parse --git-common-dir)/config\"; git status 2>&1 || true")
    assert mark.exists(), "the traps work on git itself"
    mark.unlink()
    return mark
