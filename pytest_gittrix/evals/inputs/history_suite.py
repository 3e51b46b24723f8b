"""Suites from a repository's own history: a commit that changed code together with its tests becomes a case.

The agent starts at the commit before. Its task is the commit's message, and the hidden tests are the commit's. Meanwhile somebody else
commits a part of what really came next. Making a suite runs no code of the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import GitFailed, InvalidInput
from pytest_gittrix.evals.inputs.hidden_tests import is_of_tests, is_test_file, scratch_index, write_tests
from pytest_gittrix.evals.inputs.identity import suite_name
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.inputs.suite_writer import TESTS, case_with_tests, digest_of_cases, free_path, new_suite, overlap, write_files
from pytest_gittrix.git.environment import hermetic_env, run_git

_TRAILER: Final = re.compile(r"\n(?:[A-Z][A-Za-z-]+-by: [^\n]*\n?)+\Z")
_SHORT: Final = 12

# The repository's own settings of diff must not decide what a patch is like.
_FORMAT: Final = "--binary --full-index --no-renames --no-color --no-ext-diff --no-textconv --no-relative --src-prefix=a/ --dst-prefix=b/"
_PLAIN: Final = (*_FORMAT.split(), "--submodule=short", "--ignore-submodules=none", "--unified=3", "--inter-hunk-context=0")


@dataclass(frozen=True)
class Change:
    """A commit on the first-parent line of a branch.

    Attributes:
        commit: its id.
        parent: the id of the commit before it.
        message: what its author wrote.
        status: the letter that git gives each changed path: ``A``, ``M``, ``D`` or ``T``.
    """

    commit: str
    parent: str
    message: str
    status: Mapping[str, str]

    @property
    def code(self) -> list[str]:
        """The changed paths that are not tests."""
        return [path for path in self.status if not is_of_tests(path)]

    @property
    def tests(self) -> list[str]:
        """The files of tests that are there after the change."""
        return [path for path, letter in self.status.items() if is_test_file(path) and letter != "D"]

    @property
    def makes_a_case(self) -> bool:
        """Whether the commit changed code of Python and tests, so that these may fail before it and pass after it."""
        return bool(self.tests) and any(path.endswith(".py") for path in self.code)


@dataclass(frozen=True)
class HistorySuite:
    """A suite made from a history.

    Attributes:
        suite: the suite.
        commits: how many commits were looked at.
        left_out: the ids of the commits that would make a case, if git could apply their changes of code without those of tests.
    """

    suite: Suite
    commits: int
    left_out: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The digest of all cases."""
        return digest_of_cases(self.suite)


def make_history(repository: str | os.PathLike[str], out: str | os.PathLike[str], *, ref: str = "HEAD", most: int = 100) -> HistorySuite:
    """Make a suite of the commits of a repository that changed code together with tests.

    Args:
        repository: a repository of this machine; nothing in it is changed. The suite's cases start from it.
        out: the directory of the suite, which must not exist; it is made whole or not at all.
        ref: the branch, or its last commit.
        most: the most commits that are looked at, the latest ones; merges count as one, by their first parent.

    Raises:
        InvalidInput: there is no such repository or branch, no commit makes a case whose change applies as a patch, or ``out`` exists.
    """
    source, target = Path(os.path.realpath(repository)), free_path(out)
    changes = list(_changes(source, ref, most))
    patches = {one.commit: _diff(source, one.parent, one.commit, one.code) for one in changes if one.makes_a_case}
    left_out = tuple(one.commit for one in changes if one.commit in patches and not _applies(source, one, patches[one.commit]))
    gold = {commit: patch for commit, patch in patches.items() if commit not in left_out}
    if not gold:
        raise InvalidInput(
            f"None of {len(changes)} commits of {source} changed code of Python together with tests, in a way that applies as a patch.",
            why="Such a commit has the task and the tests of a case.",
            fix="Look at more commits, or at another branch.",
        )
    with new_suite(target) as draft:
        (draft / "suite.toml").write_text(f'schema = 1\nname = "{suite_name(target.name)}"\n', encoding="utf-8")
        for change, following in zip(changes, [*changes[1:], None], strict=True):
            if change.commit in gold:
                _write_case(source, draft / "cases" / change.commit[:_SHORT], change, following, gold[change.commit])
    return HistorySuite(Suite.load(target), len(changes), left_out)


def _write_case(source: Path, case: Path, change: Change, following: Change | None, gold: bytes) -> None:
    write_tests(source, change.commit, case / TESTS, change.tests)
    drift = _drifting(change, following)
    files: dict[str, str | bytes] = {
        "task.md": f"{_TRAILER.sub('', change.message.strip()).strip()}\n",
        "gold.patch": gold,
        "case.toml": case_with_tests(source, change.parent, change.tests, gold=True, drift=bool(drift)),
    }
    if following is not None and drift:
        files["drift.patch"] = _diff(source, following.parent, following.commit, drift)
    write_files(case, files)


def _drifting(change: Change, following: Change | None) -> list[str]:
    """The paths of the next commit that a rival changes: those that this commit leaves alone, so that its solution meets no conflict.

    Where the two commits meet, the rival changes no code: half of a change of code may well not run.
    """
    if following is None:
        return []
    apart = [path for path in following.status if not any(overlap(path, other) for other in change.status)]
    return apart if len(apart) == len(following.status) else [path for path in apart if not path.endswith(".py")]


def _changes(source: Path, ref: str, most: int) -> Iterator[Change]:
    """The latest commits that have a parent, oldest first."""
    listed = ["rev-list", "--first-parent", "--parents", f"--max-count={most}", "--end-of-options", ref]
    for line in reversed(_git(source, *listed).decode().splitlines()):
        commit, *parents = line.split()
        if parents:
            found = _git(source, "diff-tree", "-r", "-z", "--name-status", "--no-renames", parents[0], commit)
            fields = found.decode(errors="surrogateescape").split("\0")[:-1]
            message = _git(source, "show", "-s", "--format=%B", commit).decode(errors="replace")
            yield Change(commit, parents[0], message, dict(zip(fields[1::2], fields[::2], strict=True)))


def _diff(source: Path, old: str, new: str, paths: list[str]) -> bytes:
    """The change between two commits at some paths, as a patch."""
    given = [f":(literal){path}" for path in paths]
    return _git(source, "diff", *_PLAIN, old, new, "--", *given)


def _applies(source: Path, change: Change, patch: bytes) -> bool:
    """Whether a patch turns the code before a commit into that of the commit, and leaves everything else as it is."""
    with scratch_index(source) as environment:
        compared = ["diff-index", "--cached", "--no-renames", "--ignore-submodules=none", "--name-only", "-z"]
        try:
            run_git(["read-tree", change.parent], env=environment)
            run_git(["apply", "--cached", "--whitespace=nowarn"], env=environment, stdin=patch)
            before, after = (run_git([*compared, one], env=environment) for one in (change.parent, change.commit))
        except GitFailed:
            return False
    changed, differing = (found.decode(errors="surrogateescape").split("\0")[:-1] for found in (before, after))
    return {*changed} == {*change.code} and not {*differing} & {*change.code}


def _git(source: Path, *arguments: str) -> bytes:
    try:
        return run_git(["-C", str(source), *arguments], env=hermetic_env())
    except GitFailed as problem:
        raise InvalidInput(
            f"The history of {source} cannot be read.", why=problem.fact, fix="Name a repository of this machine and a branch of it."
        ) from None
