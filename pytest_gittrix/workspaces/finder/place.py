"""Finds the worktree that a path is in, and refuses one that git itself would take for another."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import NamedTuple

from pytest_gittrix.errors import GitFailed, InvalidInput
from pytest_gittrix.git import libgit2
from pytest_gittrix.workspaces.finder.plain_files import open_repository, read_file, require_own_files
from pytest_gittrix.workspaces.provided import NOTHING, Provided, read_provided


class WorktreePlace(NamedTuple):
    """A worktree.

    Attributes:
        root: its directory, without links.
        repository: its repository, of which libgit2 waits for nothing.
        holds_repository: whether the repository itself is in that directory, and goes with it.
        baseline: the commit that the engine noted when it made this workspace; None for a directory that is no session's.
        provided: what was put into a session's workspace at its start.
    """

    root: str
    repository: libgit2.Repository
    holds_repository: bool
    baseline: str | None = None
    provided: Provided = NOTHING


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
        if baseline is not None and (kind != "worktree" or os.path.isdir(os.path.join(top, ".git"))):
            require_own_files(top, git_dir)
        repository = open_repository(git_dir)
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
    provided = NOTHING if baseline is None else read_provided(_state_dir(root))
    return WorktreePlace(root, repository, _holds_repository(root, repository.path), baseline, provided)


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
    if os.path.basename(root) == "workspace":
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(read_file(os.path.join(_state_dir(root), "workspace.json")))
            return str(note["kind"]), str(note["commit"])
    return "", None


def _state_dir(root: str) -> str:
    """Where the engine keeps its notes about a session's workspace."""
    return os.path.join(os.path.dirname(root), "engine")


def _holds_repository(root: str, git_dir: str) -> bool:
    pointer = os.fsdecode(read_file(os.path.join(git_dir, "commondir")).strip())
    return f"{os.path.realpath(os.path.join(git_dir, pointer))}/".startswith(f"{root}/")
