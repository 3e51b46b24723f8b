"""What would be lost if a worktree were removed now: every form of work in it that is nowhere else.

No program is started, so that a tool can ask before each removal. Git's own check knows four of these forms. Commits that are only in a
reflog, as after ``git reset --hard HEAD~1`` or ``git commit --amend``, are not named: what was left behind on purpose looks the same.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, Final

from pytest_gittrix.errors import GitFailed, InvalidInput, UnsupportedRepository
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.index import IndexEntry, IndexFile, operations_in
from pytest_gittrix.git.objects import object_format
from pytest_gittrix.git.tree import EXECUTABLE, SUBMODULE, SYMLINK
from pytest_gittrix.os_level.proc import running_in

_SHA256: Final = 64
_SHORT: Final = 12
_MOST_COMMITS: Final = 2000
_REMOTE: Final = "refs/remotes/"
_NAMED: Final = ("refs/heads/", _REMOTE, "refs/tags/")
_OF_WORKTREE: Final = ("refs/worktree/", "refs/rewritten/")
_PLACE: Final = re.compile(rb"^(?:@@|index) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class UnfinishedWork:
    """The work in a worktree, by form. Paths are relative to it. Files in submodules are named as those of the worktree are.

    Attributes:
        path: the worktree.
        base: the reference that commits were compared with; empty if there is none.
        modified: tracked files that differ from the index; deleted ones too.
        staged: paths whose staged content differs from the commit that is checked out.
        untracked: untracked files, whatever ``status.showUntrackedFiles`` says.
        ignored: ignored files and directories, with the bytes in them.
        hidden: files that are assumed to be unchanged, or skipped, and differ from the index.
        unmerged: commits of the branch that are not on the base; none if the base has them as a squash or a rebase. Without a base, those
            that no other branch, tag or remote branch has.
        detached: commits of a detached HEAD, or of a reference of this worktree alone (``refs/worktree/``), that no branch, tag or
            remote branch has.
        stashes: entries of the stash that were made on the branch.
        nested: repositories of their own inside, in ignored directories too.
        submodules: submodules with commits that none of their remote branches has, be they on a branch, a tag, HEAD or the stash. One
            that is not checked out is named too.
        operations: the operations that git is in the middle of; in a submodule, with its path before it.
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
        UnsupportedRepository: its index is of a kind that cannot be read here, such as a split or a sparse one.
    """
    try:
        found = libgit2.discover_repository(os.fspath(path))
        if found is None:
            raise InvalidInput(f"{os.fspath(path)} is in no git repository.", fix="Name a worktree.")
        return _Look(libgit2.Repository(found)).work(base)
    except (libgit2.GitError, KeyError, ValueError, OSError) as problem:
        raise GitFailed(f"{os.fspath(path)} cannot be read: {problem}.", why="In doubt a worktree holds work.") from problem


class _Look:
    """One look at a worktree."""

    def __init__(self, repository: libgit2.Repository) -> None:
        if repository.is_bare:
            raise InvalidInput(f"{repository.path} is a bare repository.", fix="Name a worktree.")
        self.repository = repository
        self.root = os.path.realpath(repository.workdir)
        self.git_dir = repository.path
        self.detached = repository.head_is_detached
        self.head = None if repository.head_is_unborn else repository.head.peel(libgit2.Commit)
        self.branch = None if self.detached or self.head is None else repository.head.shorthand

    def work(self, wanted: str | None) -> UnfinishedWork:
        """All of it."""
        base, files = self._base(wanted), self.files()
        return UnfinishedWork(
            self.root,
            base,
            unmerged=() if self.detached else tuple(self._missing(base)),
            detached=tuple(self._unnamed()),
            stashes=tuple(self._stashes()),
            processes=tuple(running_in(self.root)),
            locked=self._lock(),
            **{form: tuple(found) for form, found in files.items()},
        )

    def files(self) -> dict[str, list[Any]]:
        """The work that is not in commits of this repository, by form; that of its submodules is below their paths."""
        index = self._index()
        modified, staged, untracked, ignored = self._files()
        nested = [*self._nested([*untracked, *ignored])]
        found: dict[str, list[Any]] = {
            "modified": modified,
            "staged": staged,
            "untracked": [one for one in untracked if one.rstrip("/") not in nested],
            "ignored": [(one, self._size(one)) for one in ignored],
            "hidden": [path for path, entry in index.hidden() if self._differs(path, entry)],
            "nested": nested,
            "submodules": [],
            "operations": operations_in(self.git_dir),
        }
        looked_into = set()
        for path in dict.fromkeys(index.submodules()):
            whole = os.path.join(self.root, path)
            if not os.path.exists(os.path.join(whole, ".git")):  # git looks at no file in there
                found["untracked"] += [os.path.relpath(file, self.root) for file in _files_below(whole)]
                continue
            inner = _Look(libgit2.Repository(whole))
            looked_into.add(os.path.realpath(inner.git_dir))
            if inner.has_unpushed():
                found["submodules"].append(path)
            for form, more in inner.files().items():
                found[form] += [(f"{path}/{one[0]}", one[1]) if form == "ignored" else f"{path}/{one}" for one in more]
        modules = os.path.realpath(os.path.join(self.git_dir, "modules"))
        for name in _repositories_below(modules):  # those of other commits, and of `git submodule deinit`, are not in the work tree
            git_dir = os.path.join(modules, name)
            if git_dir not in looked_into and _Look(libgit2.Repository(git_dir)).has_unpushed():
                found["submodules"].append(name)
        return found

    def _base(self, wanted: str | None) -> str:
        if wanted is not None:
            for name in (wanted, f"refs/heads/{wanted}", f"refs/remotes/{wanted}"):
                if name.startswith("refs/") and self._commits([name]):
                    return name
            raise InvalidInput(f"There is no branch {wanted!r}.", fix="Name the branch that finished work is on.")
        own = f"refs/heads/{self.branch}"
        names = ["refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"]
        # A worktree of main, where nothing else is to compare with, is on the base itself.
        return next((name for name in names if name != own and self._commits([name])), own if own in names else "")

    def _commits(self, names: Iterable[str]) -> list[libgit2.Commit]:
        """The commits that references lead to, those of tags included; a reference that leads to none is left out."""
        found = []
        for name in names:
            try:
                found.append(self.repository.references[name].peel(libgit2.Commit))
            except (libgit2.GitError, KeyError, ValueError):
                continue
        return found

    def _below(self, *prefixes: str) -> list[str]:
        return [name for name in self.repository.references if name.startswith(prefixes)]

    def _files(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """The modified, staged, untracked and ignored paths.

        Both comparisons are with one reading of the index. The tree that an index notes for itself is not trusted: some programs leave an
        old one there when they stage files.
        """
        option, delta = libgit2.DiffOption, libgit2.DeltaStatus
        every = option.INCLUDE_UNTRACKED | option.RECURSE_UNTRACKED_DIRS | option.INCLUDE_IGNORED | option.INCLUDE_TYPECHANGE
        index = self.repository.index
        if self.head is None:
            staged = {entry.path for entry in index}
        else:
            staged = {one.new_file.path for one in index.diff_to_tree(self.head.tree).deltas if one.status != delta.CONFLICTED}
        modified, untracked, ignored = set(), [], []
        for one in index.diff_to_workdir(every).deltas:
            path = one.new_file.path
            if one.status == delta.IGNORED:
                ignored.append(path)
            elif one.status == delta.UNTRACKED and path not in staged:
                untracked.append(path)
            else:
                modified.add(path)
        return sorted(modified), sorted(staged), sorted(untracked), sorted(ignored)

    def _size(self, path: str) -> int:
        whole = os.path.join(self.root, path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            return sum(os.lstat(file).st_size for file in _files_below(whole))
        return os.lstat(whole).st_size

    def _nested(self, paths: Sequence[str]) -> Iterator[str]:
        for path in paths:
            if path.endswith("/"):
                whole = os.path.join(self.root, path)
                yield from (os.path.relpath(os.path.join(whole, one), self.root) for one in _repositories_below(whole))

    def _index(self) -> IndexFile:
        try:
            with open(os.path.join(self.git_dir, "index"), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        format_ = object_format("sha256" if len(str(self.head.id if self.head else "")) == _SHA256 else "sha1")
        try:
            return IndexFile(data, format_)
        except UnsupportedRepository as problem:
            raise UnsupportedRepository(
                problem.fact,
                why="It has to be read to find files that git was told not to look at. In doubt a worktree holds work.",
                fix="See what `git status` says there. `git update-index --no-split-index` ends a split index, and "
                "`git sparse-checkout reapply --no-sparse-index` a sparse one.",
            ) from problem

    def _differs(self, path: str, entry: IndexEntry) -> bool:
        """Whether a file differs from its index entry, as git would find if it looked. What is skipped and not there does not."""
        whole = os.path.join(self.root, path)
        try:
            status = os.lstat(whole)
        except OSError:
            return not entry.skip_worktree
        if entry.mode == SUBMODULE:
            return not stat.S_ISDIR(status.st_mode)
        if entry.mode == SYMLINK:
            return not stat.S_ISLNK(status.st_mode) or str(libgit2.hash(os.fsencode(os.readlink(whole)))) != entry.id
        if not stat.S_ISREG(status.st_mode):
            return True
        if entry.matches(status):
            return False
        executable = bool(status.st_mode & stat.S_IXUSR)
        return executable != (entry.mode == EXECUTABLE) or str(self.repository.hashfile(whole, as_path=path)) != entry.id

    def _missing(self, base: str) -> Iterator[str]:
        """The commits of the branch that the base has neither as they are nor as a squash or a rebase."""
        if self.head is None:
            return
        others = [base] if base else [name for name in self._below(*_NAMED) if name != f"refs/heads/{self.branch}"]
        tips = self._commits(others)
        commits = [*self._walk([self.head], tips)]
        if commits and not (base and self._has_changes(self.head, commits, tips[0])):
            yield from (str(one.id)[:_SHORT] for one in commits)

    def _has_changes(self, head: libgit2.Commit, commits: Sequence[libgit2.Commit], tip: libgit2.Commit) -> bool:
        """Whether the base has the changes of all commits, one by one or in one commit. No changes at all are no sign of a merge.

        A merge can hold work of its own, so commits with a merge among them count only in one commit.
        """
        start = self.repository.merge_base(head.id, tip.id)
        if start is None:
            return False
        fork = self.repository[start].peel(libgit2.Commit)
        together = fork.tree.diff_to_tree(head.tree)
        linear = len(commits) <= _MOST_COMMITS and all(len(one.parents) == 1 for one in commits)
        alone = [_diff(one) for one in commits] if linear else []
        if not all(map(len, alone)):
            alone = []
        whole = _patch(together) or None
        missing = {_patch(one) for one in alone}
        shapes = {_paths(one) for one in (together, *alone)}
        for one in islice(self._walk([tip], [fork]), _MOST_COMMITS):
            if len(one.parents) != 1 or _paths(diff := _diff(one)) not in shapes:
                continue
            patch = _patch(diff)
            missing.discard(patch)
            if patch == whole or (alone and not missing):
                return True
        return False

    def _walk(self, tips: Sequence[libgit2.Commit], without: Iterable[libgit2.Commit]) -> Iterator[libgit2.Commit]:
        """The commits that tips lead to, and those of ``without`` do not, newest first."""
        walker = self.repository.walk(None, libgit2.SortMode.TOPOLOGICAL)
        for one in tips:
            walker.push(one.id)
        for one in without:
            walker.hide(one.id)
        yield from walker if tips else ()

    def _unnamed(self) -> Iterator[str]:
        tips = self._commits(self._below(*_OF_WORKTREE))
        if self.detached and self.head is not None:
            tips.append(self.head)
        if tips:
            yield from (str(one.id)[:_SHORT] for one in self._walk(tips, self._commits(self._below(*_NAMED))))

    def has_unpushed(self) -> bool:
        """Whether HEAD or a reference leads to commits that no remote branch has."""
        tips = self._commits(name for name in self.repository.references if not name.startswith(_REMOTE))
        if self.head is not None:
            tips.append(self.head)
        return any(True for _ in self._walk(tips, self._commits(self._below(_REMOTE))))

    def _stashes(self) -> Iterator[str]:
        if "refs/stash" in self.repository.references and self.branch is not None:
            made = tuple(f"{how} {self.branch}:" for how in ("WIP on", "On"))
            for number, entry in enumerate(self.repository.references["refs/stash"].log()):
                if entry.message.startswith(made):
                    yield f"stash@{{{number}}}"

    def _lock(self) -> str | None:
        try:
            with open(os.path.join(self.git_dir, "locked"), encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None


def _files_below(directory: str) -> Iterator[str]:
    from pytest_gittrix.workspaces.repositories.agent_repository import files_below  # dear to load, and most worktrees do without

    return files_below(directory)


def _repositories_below(directory: str) -> Sequence[str]:
    if not os.path.isdir(directory):
        return ()
    from pytest_gittrix.workspaces.repositories.agent_repository import find_repositories

    return find_repositories(directory)


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
