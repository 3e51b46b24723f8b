"""The durable repository of a case, from files, a git bundle or a repository of this machine; and patches as trees.

The same case gives the same commit ids on every machine. What git has to unpack is unpacked once and cached under the case's digest.
"""

from __future__ import annotations

import os
import secrets
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_gittrix.errors import AdapterUnavailable, GitFailed, InvalidInput
from pytest_gittrix.evals.inputs.suite import Case, CaseSource, is_left_out
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import changed_paths
from pytest_gittrix.os_level.files import whole_directory
from pytest_gittrix.testing.repos.history import Content, Contents, Executable, History, Symlink

BRANCH = "main"
ANY_OBJECT = "git -c uploadpack.allowAnySHA1InWant=true upload-pack"
"""The program that answers a fetch; with it a fetch can ask for any object by its id."""


def durable_arguments(case: Case, cache: Path) -> dict[str, Any]:
    """The arguments of ``World.open`` that make the durable repository of a case.

    Args:
        case: the case.
        cache: the directory of unpacked repositories; made when it is needed.

    Returns:
        A mapping with ``history`` or with ``repository``.

    Raises:
        InvalidInput: a file of the case cannot be in a repository, or the bundle or repository lacks the named commit.
        AdapterUnavailable: the unpacked repository cannot be stored.
    """
    if case.source.kind == "files":
        return {"history": _history(case.source.path, case.digest)}
    return {"repository": _unpacked(case.source, cache / f"{case.digest.removeprefix('sha256:')[:32]}.git")}


def contents_of(directory: Path) -> dict[str, Content]:
    """Every file and link below a directory, as a step of a history takes them; without ``.git`` and what tools leave behind.

    Raises:
        InvalidInput: an entry is neither a file nor a link, or cannot be read.
    """
    found: dict[str, Content] = {}
    for root, names, files in os.walk(directory):
        names[:] = [name for name in names if not is_left_out(name)]
        for name in files + [name for name in names if os.path.islink(os.path.join(root, name))]:
            if is_left_out(name):
                continue
            path = Path(root, name)
            found[path.relative_to(directory).as_posix()] = _content(path)
    return found


def _content(path: Path) -> Content:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return Symlink(os.fsencode(os.readlink(path)))
        if stat.S_ISREG(mode):
            data = path.read_bytes()
            return Executable(data) if mode & 0o100 else data
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read: {problem.strerror}.", fix="Let the user who runs the suite read it.") from None
    raise InvalidInput(f"{path} is neither a file nor a link.", why="Git stores nothing else.", fix="Take it out of the case.")


@lru_cache(maxsize=64)
def _history(directory: Path, _digest: str) -> History:
    """Cached by the digest, which says that the files have not changed."""
    return History.of(contents_of(directory))


def _unpacked(source: CaseSource, path: Path) -> Path:
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    options = [] if source.kind == "bundle" else [f"--upload-pack={ANY_OBJECT}"]
    try:
        with whole_directory(path, fresh):
            run_git(["init", "-q", "--bare", f"--initial-branch={BRANCH}", str(fresh)])
            # One pack, however few the objects: the run copies packs whole.
            fetch = ["-C", str(fresh), "-c", "fetch.unpackLimit=1", "fetch", "-q"]
            run_git([*fetch, "--no-tags", *options, "--", str(source.path), f"{source.ref}:refs/heads/{BRANCH}"])
    except GitFailed as problem:
        raise InvalidInput(
            f"{source.path} has no {source.ref!r} to start from.",
            why=problem.fact,
            fix="Give a bundle with that reference, or a whole repository with that commit.",
        ) from None
    except OSError as problem:
        if not path.is_dir():  # otherwise another process was faster, with the same objects
            raise AdapterUnavailable(
                f"{path} cannot be made: {problem.strerror}.", fix="Free disk space, or give another --scratch."
            ) from None
    return path


def patched_tree(repository: Repository, commit: str, patch: Path, scratch: Path) -> str:
    """The tree of a commit with a patch applied to it; the work tree and index of the repository stay as they are.

    Args:
        repository: the repository that has the commit; it gets the new objects.
        commit: the commit that the patch is applied to.
        patch: a file as ``git diff`` writes it.
        scratch: a directory for a temporary index.

    Raises:
        InvalidInput: the patch does not apply.
    """
    index = scratch / f"index-{secrets.token_hex(4)}"
    environment = {**hermetic_env(), "GIT_DIR": repository.common_dir, "GIT_INDEX_FILE": str(index)}
    try:
        run_git(["read-tree", commit], env=environment)
        run_git(["apply", "--cached", "--whitespace=nowarn"], env=environment, stdin=patch.read_bytes())
        return run_git(["write-tree"], env=environment).decode().strip()
    except GitFailed as problem:
        raise InvalidInput(
            f"{patch} does not apply to {commit}.", why=problem.fact, fix="Make it with git diff against the case's repository."
        ) from None
    finally:
        index.unlink(missing_ok=True)


def patch_contents(repository: Repository, commit: str, patch: Path, scratch: Path) -> Contents:
    """The changes of a patch, as ``Rival.commit`` takes them. Raises InvalidInput if the patch does not apply."""
    read = repository.trees.read
    changed = changed_paths(read, repository.tree(commit), patched_tree(repository, commit, patch, scratch))
    return {path: new for path, (_, new) in changed.items()}
