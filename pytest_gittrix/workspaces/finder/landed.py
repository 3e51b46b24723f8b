"""Whether a branch has the changes of some commits in another shape: squashed into one commit, rebased, or picked one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from pytest_gittrix.git import libgit2

_MOST_COMMITS: Final = 2000
_PLACE: Final = re.compile(rb"^(?:@@|index) .*$", re.MULTILINE)


def commits_of(
    repository: libgit2.Repository, tips: Sequence[libgit2.Commit], without: Iterable[libgit2.Commit]
) -> Iterator[libgit2.Commit]:
    """The commits that tips lead to, and those of ``without`` do not, newest first."""
    walker = repository.walk(None, libgit2.SortMode.TOPOLOGICAL)
    for one in tips:
        walker.push(one.id)
    for one in without:
        walker.hide(one.id)
    yield from walker if tips else ()


def have_landed(repository: libgit2.Repository, head: libgit2.Commit, commits: Sequence[libgit2.Commit], tip: libgit2.Commit) -> bool:
    """Whether a branch has the changes of all commits, one by one or in one commit. No changes at all are no sign of a merge.

    A merge can hold work of its own, so commits with a merge among them count only in one commit.

    Args:
        repository: the repository.
        head: the newest of the commits.
        commits: those that the branch does not have as they are.
        tip: the branch.
    """
    start = repository.merge_base(head.id, tip.id)
    if start is None:
        return False
    fork = repository[start].peel(libgit2.Commit)
    together = fork.tree.diff_to_tree(head.tree)
    linear = len(commits) <= _MOST_COMMITS and all(len(one.parents) == 1 for one in commits)
    alone = [_diff(one) for one in commits] if linear else []
    if not all(map(len, alone)):
        alone = []
    whole = _patch(together) or None
    missing = {_patch(one) for one in alone}
    shapes = {_paths(one) for one in (together, *alone)}
    for one in islice(commits_of(repository, [tip], [fork]), _MOST_COMMITS):
        if whole is not None and one.tree.id == head.tree.id:
            return True
        if len(one.parents) != 1 or _paths(diff := _diff(one)) not in shapes:
            continue
        patch = _patch(diff)
        missing.discard(patch)
        if patch == whole or (alone and not missing):
            return True
    return False


def _diff(commit: libgit2.Commit) -> libgit2.Diff:
    """What a commit with one parent changes."""
    return commit.parents[0].tree.diff_to_tree(commit.tree)


def _paths(diff: libgit2.Diff) -> frozenset[str]:
    return frozenset(one.new_file.path for one in diff.deltas)


def _patch(diff: libgit2.Diff) -> bytes:
    """A diff as text, without the places where it applies; of a binary file the ids of its contents. Empty if nothing is changed."""
    parts = []
    for delta, patch in zip(diff.deltas, diff, strict=True):
        if patch is not None:
            parts.append(_PLACE.sub(b"@@", patch.data))
        if patch is None or patch.delta.is_binary:
            parts.append(f"{delta.new_file.path} {delta.old_file.id} {delta.new_file.id}\n".encode(errors="surrogateescape"))
    return b"".join(parts)
