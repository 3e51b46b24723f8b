"""Finds the worktree that a path is in, and refuses one that git itself would take for another."""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from typing import NamedTuple

from pytest_gittrix.errors import GitFailed, InvalidInput
from pytest_gittrix.git import libgit2
from pytest_gittrix.workspaces.repositories.walk import walk

_STORED = ("HEAD", "config", "index", "packed-refs")
_LEADS_ON = re.compile(rb"\[\s*include|excludesfile|attributesfile|worktreeconfig", re.IGNORECASE)
"""What names other files in a configuration. A section begins anywhere in a line, and also behind a byte order mark."""


class WorktreePlace(NamedTuple):
    """A worktree.

    Attributes:
        root: its directory, without links.
        git_dir: where libgit2 opens its repository.
        holds_repository: whether the repository itself is in that directory, and goes with it.
        baseline: the commit that the engine noted when it made this workspace; None for a directory that is no session's.
    """

    root: str
    git_dir: str
    holds_repository: bool
    baseline: str | None = None


def find_place(path: str) -> WorktreePlace:
    """The worktree that a path is in.

    Raises:
        InvalidInput: there is none; or its git directory is that of another worktree, as after a copy or a move.
        GitFailed: the repository cannot be read.
    """
    top = _top(path)
    kind, baseline = _noted(top)
    if baseline is not None and (kind == "overlay" or not os.path.lexists(os.path.join(top, ".git"))):
        raise InvalidInput(
            f"{top} is the workspace of a session, and of the kind {kind!r}, which has no whole git repository.",
            why="What would be lost is known from the session's baseline, and not from a repository.",
            fix="Ask for it with `gittrix session diff`, or end the session: its work is archived.",
        )
    try:
        git_dir = libgit2.discover_repository(path)
        if git_dir is None:
            raise InvalidInput(f"{path} is in no git repository.", fix="Name a worktree.")
        _require_plain(git_dir)
        if baseline is not None and (kind != "worktree" or os.path.isdir(os.path.join(top, ".git"))):
            _require_own_files(top, git_dir)
        repository = libgit2.Repository(git_dir)
    except (libgit2.GitError, KeyError, ValueError, OSError) as problem:
        raise GitFailed(f"{path} cannot be read: {problem}.", why="In doubt a worktree holds work.") from problem
    if repository.is_bare:
        raise InvalidInput(f"{repository.path} is a bare repository.", fix="Name a worktree.")
    root = os.path.realpath(repository.workdir)
    if top != root:
        raise InvalidInput(
            f"{top} is not the worktree of its git directory: that is {root}.",
            why="It was copied or moved, or its configuration names another directory, so git would answer for the other one.",
            fix=f"If it was moved, run `git worktree repair {top}`. If it is a copy, compare it with the other one by hand.",
        )
    return WorktreePlace(root, git_dir, _holds_repository(root, repository.path), baseline)


def _top(path: str) -> str:
    """The nearest directory at or above a path with a ``.git``, or the workspace of a session; the path itself if there is none."""
    here = os.path.realpath(path)
    above = here
    while True:
        if os.path.lexists(os.path.join(above, ".git")) or _noted(above)[1] is not None:
            return above
        if above == os.path.dirname(above):
            return here
        above = os.path.dirname(above)


def _noted(root: str) -> tuple[str, str | None]:
    """The kind and the baseline of a session's workspace, as the engine noted them next to it; None for any other directory."""
    with (
        suppress(OSError, ValueError, KeyError, TypeError),
        open(os.path.join(os.path.dirname(root), "engine", "workspace.json"), "rb") as file,
    ):
        note = json.load(file)
        if os.path.basename(root) == "workspace":
            return str(note["kind"]), str(note["commit"])
    return "", None


def _require_plain(git_dir: str) -> None:
    """Refuse a repository in which a pipe or a link replaced a file that is read at once: a look would wait, or read elsewhere."""
    for name in _STORED:
        with suppress(FileNotFoundError):
            status = os.lstat(os.path.join(git_dir, name))
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{os.path.join(git_dir, name)} is no file")


def _require_own_files(top: str, git_dir: str) -> None:
    """Refuse the repository of a session's workspace if it leads to other files, or has a pipe: an agent wrote it."""
    if git_dir != os.path.join(top, ".git", ""):
        raise OSError(f"{top}/.git leads to {git_dir}")
    for directory, directories, names in walk(git_dir):
        if directory == git_dir and "hooks" in directories:
            directories.remove("hooks")  # which nothing here reads
        for name in (*directories, *names):
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise OSError(f"{path} is neither a file nor a directory")
            if path.endswith("/objects/info/alternates"):
                raise OSError(f"{path} leads to other objects")
            if name == "commondir" and os.path.basename(os.path.dirname(directory)) != "worktrees":
                raise OSError(f"{path} leads to another repository")
            if name == "config" and stat.S_ISREG(mode) and _leads_on(path):
                raise OSError(f"{path} includes or names other files")


def _leads_on(config: str) -> bool:
    with open(config, "rb") as file:
        return _LEADS_ON.search(file.read()) is not None


def _holds_repository(root: str, git_dir: str) -> bool:
    try:
        with open(os.path.join(git_dir, "commondir"), encoding="utf-8", errors="surrogateescape") as file:
            common = os.path.join(git_dir, file.read().strip())
    except OSError:
        common = git_dir
    return f"{os.path.realpath(common)}/".startswith(f"{root}/")
