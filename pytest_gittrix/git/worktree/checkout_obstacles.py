"""What is in the way of a checkout that is to be brought forward, and the errors that say so."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from typing import Final

from pytest_gittrix.errors import Advice, WorktreeDirty, WorktreeUnwritable
from pytest_gittrix.git.repository import Checkout
from pytest_gittrix.git.tree import parents
from pytest_gittrix.os_level.open_below import ParentNotDirectory
from pytest_gittrix.os_level.safe_dir import SafeDir

_ELSEWHERE: Final = Advice(
    "Or promote with strategy='branch', which leaves the checked-out branch alone.",
    "Or promote with --strategy branch, which leaves the checked-out branch alone.",
)


def submodule_obstacle(files: SafeDir, path: str) -> str:
    """Why a submodule's directory cannot be removed; empty if it can, or is gone already."""
    status = files.lstat(path)
    if status is None:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return "has changes that are not committed"
    return "is a submodule with files in it" if any(True for _ in files.scan(path)) else ""


def untracked_obstacle(files: SafeDir, path: str, removed: Collection[str]) -> str:
    """Why a new file cannot be written because of what is at its path, or above it; empty if it can."""
    try:
        status = files.status(path)
    except ParentNotDirectory as error:
        return "" if error.parent in removed else "would go below a file that is not committed"
    if status is None:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return "is there already, untracked"
    emptied = {parent for other in removed for parent in parents(other)}
    left = [found.path for found in files.scan(path) if found.path not in removed and not (found.is_dir and found.path in emptied)]
    if left or path not in emptied:
        return f"is a directory there, with {left[0]!r} in it" if left else "is an empty directory there"
    return ""


def is_fixed(path: str) -> bool:
    """Whether a file cannot even be replaced: it is immutable, or on a file system that is read-only. Permissions do not hinder that."""
    if os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids) or not os.path.isfile(path):
        return False
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EROFS)
    return False


def is_directory(files: SafeDir, path: str) -> bool:
    """Whether a real directory is at a path."""
    status = files.lstat(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def unwritable_error(checkout: Checkout, path: str) -> WorktreeUnwritable:
    """The error for a path that the system would not let the promotion write."""
    branch = (checkout.branch or "").removeprefix("refs/heads/")
    return WorktreeUnwritable(
        f"{branch!r} is checked out in {checkout.path}, and {path!r} cannot be written there.",
        stage="staging",
        why="The branch would move, and the checkout would show the promotion as undone: the next commit there would take it back.",
        fix="See that this user may write there (permissions, a read-only mount, an immutable file), then promote again.",
        opt_out=_ELSEWHERE,
    )


def dirty_error(checkout: Checkout, what: str, fix: str) -> WorktreeDirty:
    """The error for what a person has in the way; ``what`` says it as a clause."""
    branch = (checkout.branch or "").removeprefix("refs/heads/")
    return WorktreeDirty(
        f"{branch!r} is checked out in {checkout.path}, and {what}.",
        stage="staging",
        why="Promoting would have to overwrite your work there, or leave the checkout showing the promotion as undone.",
        fix=fix,
        opt_out=_ELSEWHERE,
    )
