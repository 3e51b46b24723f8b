"""Clones a real repository as a durable one, so that tests can run on its history."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.repository import Repository

_CONFIG: Final = {"user.name": "Human", "user.email": "human@example.com", "gc.auto": "0", "maintenance.auto": "false"}


def clone_into(source: str | os.PathLike[str], path: Path, *, branch: str, bare: bool, home: Path) -> None:
    """Clone a repository of this machine, with its whole history, as a durable repository without a remote.

    Args:
        source: the repository, or a directory inside its work tree; it is only read.
        path: where to; must not exist.
        branch: the clone's name for the branch that the source's HEAD is on.
        bare: the clone has no work tree.
        home: HOME of the git programs.

    Raises:
        AdapterUnavailable: ``source`` is no repository.
        UnsupportedRepository: it is shallow, partial or of unknown storage.
        InvalidInput: it has no commit.
        GitFailed: git refused.
    """
    environment = hermetic_env(home)
    with Repository.open(source) as original:
        git_dir = original.git_dir
        head = original.current_branch()
        if head is not None and original.head(head) is None:
            raise InvalidInput(f"{os.fspath(source)} has no commit yet.", why="A session starts from one.", fix="Commit something there.")
    options = ["--bare"] if bare else ["--no-checkout"]
    run_git(["clone", "-q", "--no-hardlinks", "--no-tags", *options, "--", git_dir, str(path)], env=environment)
    at = ["-C", str(path)]
    commit = run_git([*at, "rev-parse", "HEAD"], env=environment).decode().strip()
    run_git([*at, "update-ref", f"refs/heads/{branch}", commit], env=environment)
    run_git([*at, "symbolic-ref", "HEAD", f"refs/heads/{branch}"], env=environment)
    run_git([*at, "remote", "remove", "origin"], env=environment)
    for name, value in _CONFIG.items():
        run_git([*at, "config", name, value], env=environment)
    if not bare:
        run_git([*at, "reset", "-q", "--hard"], env=environment)
