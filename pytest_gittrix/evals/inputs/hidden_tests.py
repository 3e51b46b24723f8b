"""Hidden tests from a repository: the files of tests as one commit has them, with the files next to them that they use."""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from pytest_gittrix.errors import GitFailed, InvalidInput
from pytest_gittrix.git.environment import hermetic_env, run_git

_DIRECTORIES: Final = frozenset({"test", "tests", "testing"})
_SETTINGS: Final = "pytest.ini"


def is_of_tests(path: str) -> bool:
    """Whether a path of a repository belongs to its tests: by its directory, or by its name as pytest looks for it."""
    *directories, name = path.split("/")
    return not _DIRECTORIES.isdisjoint(directories) or name == "conftest.py" or is_test_file(path)


def is_test_file(path: str) -> bool:
    """Whether pytest collects tests from a file of that path."""
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def imports_of(source: str) -> set[str]:
    """The modules that a file imports anywhere, and what it imports from them, without leading dots; none if it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = [node.module] if node.module else []
            found |= {".".join(whole)} | {".".join([*whole, one.name]) for one in node.names}
    return found - {""}


def imported_files(sources: Mapping[str, bytes], path: str) -> dict[str, bytes]:
    """The files, of some, that a file imports by their names, and those that these import.

    Args:
        sources: the files by path.
        path: that of the file, which is among them.
    """
    found: dict[str, bytes] = {}
    pending = [path]
    while pending:
        names = {name.rpartition(".")[2] for name in imports_of(sources[pending.pop()].decode("utf-8", "replace"))}
        new = [one for one in sources if PurePosixPath(one).stem in names and one not in (path, *found)]
        found |= {one: sources[one] for one in new}
        pending += new
    return found


@contextmanager
def scratch_index(repository: Path) -> Iterator[dict[str, str]]:
    """The variables with which git uses a temporary index and object store, so that nothing in the repository changes.

    Args:
        repository: the repository; its objects are there.
    """
    with tempfile.TemporaryDirectory() as scratch:
        named = run_git(["-C", str(repository), "rev-parse", "--path-format=absolute", "--git-common-dir"], env=hermetic_env())
        git_dir = os.fsdecode(named.removesuffix(b"\n"))
        objects = Path(scratch, "objects")
        objects.mkdir()
        yield {
            **hermetic_env(),
            "GIT_DIR": git_dir,
            "GIT_INDEX_FILE": str(Path(scratch, "index")),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(Path(git_dir, "objects")),
        }


def write_tests(repository: Path, commit: str, target: Path, ids: Iterable[str], *, patch: bytes = b"") -> None:
    """Write the files of tests, and what is in the same directories of tests, as a commit has them.

    Args:
        repository: the repository; nothing in it is changed.
        commit: the commit.
        target: a new directory.
        ids: pytest's ids of the tests, or paths of whole files.
        patch: a patch that adds or changes tests; applied first.

    Raises:
        InvalidInput: there is no such file, or the patch does not apply.
    """
    modules = sorted({one.partition("::")[0] for one in ids})
    with scratch_index(repository) as environment:
        environment["GIT_WORK_TREE"] = str(target)
        target.mkdir(parents=True)
        try:
            run_git(["read-tree", commit], env=environment)
            if patch:
                run_git(["apply", "--cached", "--whitespace=nowarn"], env=environment, stdin=patch)
            paths = run_git(["ls-files", "-z"], env=environment).decode(errors="surrogateescape").split("\0")[:-1]
            missing = [module for module in modules if module not in paths]
            if missing:
                raise InvalidInput(f"{commit} has no {missing[0]}.", why="A test that is not there judges nothing.", fix="Name its tests.")
            chosen = [path for path in paths if _is_beside(path, modules)]
            listed = "".join(f"{path}\0" for path in chosen).encode(errors="surrogateescape")
            run_git(["checkout-index", "-z", "--stdin"], env=environment, stdin=listed)
        except GitFailed as problem:
            raise InvalidInput(
                f"The tests of {commit} cannot be read from {repository}.",
                why=problem.fact,
                fix="Name a commit of the repository, and a patch that applies to it.",
            ) from None


def _is_beside(path: str, modules: Collection[str]) -> bool:
    """Whether tests of the modules may need a file: it is in their topmost directory of tests, or a conftest.py above them."""
    if path in modules:
        return True
    place = PurePosixPath(path)
    if place.name == "conftest.py" and any(PurePosixPath(module).is_relative_to(place.parent) for module in modules):
        return True
    return place.name != _SETTINGS and any(root and place.is_relative_to(root) for root in map(_root_of, modules))


def _root_of(module: str) -> str:
    """The topmost directory of tests that a module is in; empty if there is none."""
    parts = module.split("/")[:-1]
    return next(("/".join(parts[: number + 1]) for number, part in enumerate(parts) if part in _DIRECTORIES), "")
