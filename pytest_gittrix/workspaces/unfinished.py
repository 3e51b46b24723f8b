"""What would be lost if a worktree were removed now: every form of work in it that is nowhere else.

No program is started, so that a tool can ask before each removal. Git's own check knows four of these forms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import pygit2

from pytest_gittrix.errors import GitFailed, InvalidInput
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import object_format
from pytest_gittrix.os_level.proc import running_in
from pytest_gittrix.workspaces.rescue import files_below, find_repositories

OPERATIONS: Final = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
"""The operations that git can be in the middle of, by the file in its directory that shows it."""

_STAGED: Final = (
    pygit2.enums.FileStatus.INDEX_NEW
    | pygit2.enums.FileStatus.INDEX_MODIFIED
    | pygit2.enums.FileStatus.INDEX_DELETED
    | pygit2.enums.FileStatus.INDEX_RENAMED
    | pygit2.enums.FileStatus.INDEX_TYPECHANGE
)
_SHA256: Final = 64
_SHORT: Final = 12
_MOST_COMMITS: Final = 2000


@dataclass(frozen=True, slots=True)
class UnfinishedWork:
    """The work in a worktree, by form. Paths are relative to it.

    Attributes:
        path: the worktree.
        base: the reference that commits were compared with; empty if there is none.
        modified: tracked files that differ from the index; deleted ones too.
        staged: paths whose staged content differs from the commit that is checked out.
        untracked: untracked files, whatever ``status.showUntrackedFiles`` says.
        ignored: ignored files and directories, with the bytes in them.
        hidden: files that are assumed to be unchanged, or skipped, and differ from the index.
        unmerged: commits of the branch that are not on the base; none if the base has them as a squash or a rebase.
        detached: commits of a detached HEAD that no branch, tag or remote branch has.
        stashes: entries of the stash that were made on the branch.
        nested: repositories of their own inside, in ignored directories too.
        submodules: submodules with commits that none of their remote branches has.
        operations: the operations that git is in the middle of.
        processes: the numbers of the processes that run inside.
        locked: the reason of the worktree's lock; None if it is not locked.
    """

    path: str
    base: str = ""
    modified: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    ignored: tuple[tuple[str, int], ...] = ()
    hidden: tuple[str, ...] = ()
    unmerged: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()
    stashes: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    submodules: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    locked: str | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(True for _ in self.forms())

    def forms(self) -> Iterator[tuple[str, Sequence[object]]]:
        """Each form that there is, with what was found."""
        for one in fields(self)[2:-1]:
            if found := getattr(self, one.name):
                yield one.name, found
        if self.locked is not None:
            yield "locked", (self.locked,)

    def to_json(self) -> dict[str, Any]:
        """The work as JSON values; of ignored paths each has ``path`` and ``bytes``."""
        return asdict(self) | {"ignored": [{"path": path, "bytes": size} for path, size in self.ignored], "unfinished": bool(self)}


def unfinished_work(path: str | os.PathLike[str], base: str | None = None) -> UnfinishedWork:
    """Find what would be lost if a worktree were removed now.

    Args:
        path: the worktree, or a directory in it.
        base: the branch that finished work is on; by default the remote's HEAD, or else ``main`` or ``master``.

    Raises:
        InvalidInput: there is no worktree at the path, or no such base.
        GitFailed: the repository cannot be read.
    """
    found = pygit2.discover_repository(os.fspath(path))
    if found is None:
        raise InvalidInput(f"{os.fspath(path)} is in no git repository.", fix="Name a worktree.")
    try:
        return _Look(pygit2.Repository(found)).work(base)
    except (pygit2.GitError, KeyError, OSError) as problem:
        raise GitFailed(f"{os.fspath(path)} cannot be read: {problem}.", why="In doubt a worktree holds work.") from problem


class _Look:
    """One look at a worktree."""

    def __init__(self, repository: pygit2.Repository) -> None:
        if repository.is_bare:
            raise InvalidInput(f"{repository.path} is a bare repository.", fix="Name a worktree.")
        self.repository = repository
        self.root = os.path.realpath(repository.workdir)
        self.git_dir = repository.path
        self.detached = repository.head_is_detached
        self.head = None if repository.head_is_unborn else repository.head.peel(pygit2.Commit)
        self.branch = None if self.detached or self.head is None else repository.head.shorthand

    def work(self, wanted: str | None) -> UnfinishedWork:
        """All of it."""
        base, index = self._base(wanted), self._index()
        modified, staged, untracked, ignored = self._files()
        nested = tuple(self._nested([*untracked, *ignored]))
        return UnfinishedWork(
            self.root,
            base,
            modified,
            staged,
            tuple(one for one in untracked if one.rstrip("/") not in nested),
            tuple((one, self._size(one)) for one in ignored),
            tuple(self._hidden(index)),
            () if self.detached else tuple(self._missing(base)),
            tuple(self._unnamed()) if self.detached else (),
            tuple(self._stashes()),
            nested,
            tuple(self._submodules(index)),
            tuple(dict.fromkeys(name for file, name in OPERATIONS.items() if os.path.exists(os.path.join(self.git_dir, file)))),
            tuple(running_in(self.root)),
            self._lock(),
        )

    def _base(self, wanted: str | None) -> str:
        references = self.repository.references
        if wanted is not None:
            for name in (wanted, f"refs/heads/{wanted}", f"refs/remotes/{wanted}"):
                if name.startswith("refs/") and name in references:
                    return name
            raise InvalidInput(f"There is no branch {wanted!r}.", fix="Name the branch that finished work is on.")
        names = ["refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"]
        return next((name for name in names if name in references and name != f"refs/heads/{self.branch}"), "")

    def _files(self) -> tuple[tuple[str, ...], tuple[str, ...], list[str], list[str]]:
        modified, staged, untracked, ignored = [], [], [], []
        status = pygit2.enums.FileStatus
        for path, flags in self.repository.status(untracked_files="all", ignored=True).items():
            if flags & status.IGNORED:
                ignored.append(path)
            elif flags & status.WT_NEW and not flags & _STAGED:
                untracked.append(path)
            else:
                if flags & _STAGED:
                    staged.append(path)
                if flags & ~_STAGED:
                    modified.append(path)
        return tuple(sorted(modified)), tuple(sorted(staged)), sorted(untracked), sorted(ignored)

    def _size(self, path: str) -> int:
        whole = os.path.join(self.root, path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            return sum(os.lstat(file).st_size for file in files_below(whole))
        return os.lstat(whole).st_size

    def _nested(self, paths: Sequence[str]) -> Iterator[str]:
        for path in paths:
            if path.endswith("/"):
                whole = os.path.join(self.root, path)
                yield from (os.path.relpath(os.path.join(whole, one), self.root) for one in find_repositories(whole))

    def _index(self) -> IndexFile:
        try:
            with open(os.path.join(self.git_dir, "index"), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        return IndexFile(data, object_format("sha256" if len(str(self.head.id if self.head else "")) == _SHA256 else "sha1"))

    def _hidden(self, index: IndexFile) -> Iterator[str]:
        for path, entry in index.hidden():
            whole = os.path.join(self.root, path)
            try:
                status = os.lstat(whole)
            except OSError:
                if not entry.skip_worktree:
                    yield path
                continue
            if not entry.matches(status) and str(pygit2.hashfile(whole)) != entry.id:
                yield path

    def _missing(self, base: str) -> Iterator[str]:
        """The commits of the branch that the base has neither as they are nor as a squash or a rebase."""
        if self.head is None or not base:
            return
        tip = self.repository.references[base].peel(pygit2.Commit)
        commits = [*self._walk(self.head, [tip])]
        if commits and not self._has_changes(self.head, commits, tip):
            yield from (str(one.id)[:_SHORT] for one in commits)

    def _has_changes(self, head: pygit2.Commit, commits: Sequence[pygit2.Commit], tip: pygit2.Commit) -> bool:
        """Whether the base has the changes of all commits, one by one or in one commit. No changes at all are no sign of a merge."""
        start = self.repository.merge_base(head.id, tip.id)
        if start is None:
            return False
        fork = self.repository[start].peel(pygit2.Commit)
        landed = {_patch(one) for one in self._walk(tip, [fork])} - {None}
        together = fork.tree.diff_to_tree(head.tree)
        if len(together) and together.patchid in landed:
            return True
        each = {_patch(one) for one in commits if len(one.parents) < 2}
        return None not in each and each <= landed

    def _walk(self, first: pygit2.Commit, without: Sequence[pygit2.Commit]) -> Iterator[pygit2.Commit]:
        walker = self.repository.walk(first.id, pygit2.enums.SortMode.TOPOLOGICAL)
        for one in without:
            walker.hide(one.id)
        for number, commit in enumerate(walker):
            if number >= _MOST_COMMITS:
                return
            yield commit

    def _unnamed(self) -> Iterator[str]:
        if self.head is None:
            return
        named = [*_commits_of(self.repository, "refs/heads/", "refs/remotes/", "refs/tags/")]
        yield from (str(one.id)[:_SHORT] for one in self._walk(self.head, named))

    def _stashes(self) -> Iterator[str]:
        if "refs/stash" in self.repository.references and self.branch is not None:
            made = tuple(f"{how} {self.branch}:" for how in ("WIP on", "On"))
            for number, entry in enumerate(self.repository.references["refs/stash"].log()):
                if entry.message.startswith(made):
                    yield f"stash@{{{number}}}"

    def _submodules(self, index: IndexFile) -> Iterator[str]:
        for path in index.submodules():
            whole = os.path.join(self.root, path)
            if os.path.exists(os.path.join(whole, ".git")) and _has_unpushed(whole):
                yield path

    def _lock(self) -> str | None:
        try:
            with open(os.path.join(self.git_dir, "locked"), encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None


def _patch(commit: pygit2.Commit) -> pygit2.Oid | None:
    """What a commit changes, whatever it was changed in; None for a merge, and where it changes nothing."""
    if len(commit.parents) != 1:
        return None
    diff = commit.parents[0].tree.diff_to_tree(commit.tree)
    return diff.patchid if len(diff) else None


def _commits_of(repository: pygit2.Repository, *below: str) -> Iterator[pygit2.Commit]:
    """The commits that references point to, those of tags included."""
    for name in repository.references:
        if name.startswith(below):
            with suppress(pygit2.InvalidSpecError, KeyError):  # a tag of a file, or a reference to nothing
                yield repository.references[name].peel(pygit2.Commit)


def _has_unpushed(path: str) -> bool:
    """Whether a repository has commits, on its HEAD or a branch, that none of its remote branches has."""
    repository = pygit2.Repository(path)
    own = [*_commits_of(repository, "refs/heads/")]
    if not repository.head_is_unborn:
        own.append(repository.head.peel(pygit2.Commit))
    pushed = [*_commits_of(repository, "refs/remotes/")]
    for first in own:
        walker = repository.walk(first.id)
        for one in pushed:
            walker.hide(one.id)
        if next(iter(walker), None) is not None:
            return True
    return False
