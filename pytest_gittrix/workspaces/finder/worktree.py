"""What would be lost if a worktree were removed now: every form of work in it that is nowhere else.

Each finding has one of three grades. It is an *only copy*, which would be lost; it is *elsewhere*, such as a commit that was pushed; or it
can be made *again*, such as ``node_modules``. No program is started, so that a tool can ask before each removal. Commits that are only in a
reflog, as after ``git reset --hard HEAD~1`` or ``git commit --amend``, are not named: what was left behind on purpose looks the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import islice
from typing import Any, Final

from pytest_gittrix.errors import GitFailed, GittrixError, InvalidInput, UnsupportedRepository
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.index import IndexEntry, IndexFile, operations_in
from pytest_gittrix.git.objects import object_format
from pytest_gittrix.git.tree import EXECUTABLE, SUBMODULE, SYMLINK
from pytest_gittrix.os_level.proc import running_in
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.finder.findings import FoundWork
from pytest_gittrix.workspaces.finder.ignored import Graded, Regenerable
from pytest_gittrix.workspaces.finder.landed import commits_of, have_landed
from pytest_gittrix.workspaces.finder.place import WorktreePlace, find_place
from pytest_gittrix.workspaces.finder.plain_files import open_repository, read_file, require_plain_rules
from pytest_gittrix.workspaces.finder.settings import regenerable_by
from pytest_gittrix.workspaces.repositories.walk import files_below, find_repositories

_SHA256: Final = 64
_SHORT: Final = 12
_REMOTE: Final = "refs/remotes/"
_NAMED: Final = ("refs/heads/", _REMOTE, "refs/tags/")
_OF_WORKTREE: Final = ("refs/worktree/", "refs/rewritten/", "refs/bisect/")
_BASES: Final = (
    "refs/remotes/origin/HEAD",
    "refs/remotes/origin/main",
    "refs/remotes/origin/master",
    "refs/heads/main",
    "refs/heads/master",
)
_MOST_BASES: Final = 20


@dataclass(frozen=True, slots=True)
class UnfinishedWork:
    """The work in a worktree that is nowhere else, by form. Paths are relative to it; those in submodules have the submodule's path before.

    Attributes:
        path: the worktree.
        base: the reference that commits were compared with; empty if there is none.
        modified: tracked files that differ from the index; deleted ones too.
        staged: paths whose staged content differs from the commit that is checked out.
        untracked: untracked files, whatever ``status.showUntrackedFiles`` says.
        ignored: ignored files and directories, with the bytes in them that cannot be made again.
        hidden: files that are assumed to be unchanged, or skipped, and differ from the index.
        unmerged: commits of the branch that are not on the base, neither as they are nor as a squash or a rebase, and that no other
            reference has.
        detached: commits of a detached HEAD, or of a reference of this worktree alone (``refs/worktree/``), that no other reference has.
        unpushed: where the directory holds the repository itself, references with commits that neither a remote branch nor the recorded
            baseline of a session has.
        stashes: entries of the stash, where the directory holds the repository itself.
        nested: repositories of their own inside, in ignored directories too.
        submodules: submodules with commits that none of their remote branches has, be they on a branch, a tag, HEAD or the stash. One
            that is not checked out is named too.
        operations: the operations that git is in the middle of; in a submodule, with its path before it.
        processes: the numbers of the processes that run inside.
        locked: the reason of the worktree's lock; None if it is not locked.
        noted: what would not be lost.
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
    unpushed: tuple[str, ...] = ()
    stashes: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    submodules: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    locked: str | None = None
    noted: tuple[FoundWork, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(True for _ in self.forms())

    def forms(self) -> Iterator[tuple[str, Sequence[object]]]:
        """Each form of work that was found, with its items."""
        for one in fields(self)[2:-2]:
            if found := getattr(self, one.name):
                yield one.name, found
        if self.locked is not None:
            yield "locked", (self.locked,)

    def to_json(self) -> dict[str, Any]:
        """The work as JSON values; each ignored path has ``path`` and ``bytes``, each note ``form``, ``item``, ``grade`` and ``where``."""
        return asdict(self) | {
            "ignored": [{"path": path, "bytes": size} for path, size in self.ignored],
            "noted": [note._asdict() for note in self.noted],
            "unfinished": bool(self),
        }


def unfinished_work(
    path: str | os.PathLike[str], base: str | None = None, *, strict: bool = False, keep: Collection[str] = ()
) -> UnfinishedWork:
    """Find what would be lost if a worktree were removed now.

    Args:
        path: the worktree, or a directory in it.
        base: the branch that finished work is on; by default the remote's HEAD, or else ``main`` or ``master``.
        strict: count what is elsewhere or can be made again as work, too.
        keep: gitignore patterns of ignored files that count as work although they can be made again.

    Raises:
        InvalidInput: there is no worktree at the path, or no such base; or the path is not the worktree that its git directory is for.
        GitFailed: the repository cannot be read.
        UnsupportedRepository: its index is of a kind that cannot be read here, such as a split or a sparse one.
    """
    place = find_place(os.fspath(path))
    try:
        return _Look(place, strict, keep).work(base)
    except (libgit2.GitError, KeyError, ValueError, OSError) as problem:
        raise GitFailed(f"{os.fspath(path)} cannot be read: {problem}.", why="In doubt a worktree holds work.") from problem


class _Look:
    """One look at a worktree."""

    def __init__(self, place: WorktreePlace, strict: bool = False, keep: Collection[str] = ()) -> None:
        self.place, self.repository = place, (repository := place.repository)
        self.root, self.git_dir = place.root, repository.path
        self.detached = repository.head_is_detached
        self.head = None if repository.head_is_unborn else repository.head.peel(libgit2.Commit)
        self.branch = None if self.detached or self.head is None else repository.head.shorthand
        self.noted: list[FoundWork] = []
        self._strict, self._keep = strict, keep
        self._regenerable = Regenerable(strict=True)

    def work(self, wanted: str | None) -> UnfinishedWork:
        """All of it."""
        base = self._base(wanted)
        if not self._strict:
            self._regenerable = regenerable_by(self._tree(base), self._keep, self.place.provided)
        files = self.files()
        unpushed = tuple(self._unpushed()) if self.place.holds_repository else ()
        return UnfinishedWork(
            self.root,
            base,
            unmerged=() if self.detached or self.place.holds_repository else tuple(self._missing(base)),
            detached=() if self.place.holds_repository else tuple(self._unnamed()),
            unpushed=unpushed,
            stashes=tuple(self._stashes()),
            processes=tuple(running_in(self.root)),
            locked=self._lock(),
            **{form: tuple(found) for form, found in files.items()},
            noted=tuple(self.noted),
        )

    def _tree(self, base: str) -> libgit2.Tree | None:
        """The tree whose settings count: that of the base, which the work in a worktree does not change, or else of HEAD."""
        tips = self._commits([base])
        return tips[0].tree if tips else None if self.head is None else self.head.tree

    # Files -------------------------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, list[Any]]:
        """The work that is not in commits of this repository, by form; that of its submodules is below their paths."""
        index, submodules = self.index, self.submodules
        modified, staged, untracked, ignored = self._files(index)
        nested = [*self._nested([*untracked, *ignored])]
        found: dict[str, list[Any]] = {
            "modified": modified,
            "staged": staged,
            "untracked": [one for one, _ in self._lasting("untracked", [one for one in untracked if one.rstrip("/") not in nested])],
            "ignored": self._lasting("ignored", ignored),
            "hidden": [path for path, entry in index.hidden() if self._differs(path, entry)],
            "nested": nested,
            "submodules": [],
            "operations": operations_in(self.git_dir),
        }
        looked_into = set()
        for path in dict.fromkeys(index.submodules()):
            inner = submodules.get(path)
            if inner is None:  # git looks at no file in there
                found["untracked"] += [os.path.relpath(file, self.root) for file in files_below(os.path.join(self.root, path))]
                continue
            inner._regenerable, inner._strict = self._regenerable, self._strict
            looked_into.add(os.path.realpath(inner.git_dir))
            if inner.has_unpushed():
                found["submodules"].append(path)
            for form, more in inner.files().items():
                found[form] += [(f"{path}/{one[0]}", one[1]) if form == "ignored" else f"{path}/{one}" for one in more]
            self.noted += [note._replace(item=f"{path}/{note.item}") for note in inner.noted]
        modules = os.path.realpath(os.path.join(self.git_dir, "modules"))
        for name in find_repositories(modules):  # those of other commits, and of `git submodule deinit`, are not in the work tree
            git_dir = os.path.join(modules, name)
            if git_dir not in looked_into and _Look(self.place._replace(repository=open_repository(git_dir))).has_unpushed():
                found["submodules"].append(name)
        return found

    def _lasting(self, form: str, paths: Sequence[str]) -> list[tuple[str, int]]:
        """Those of some untracked paths that cannot be made again, with their bytes; the others are noted."""
        lasting: list[tuple[str, int]] = []
        noted: dict[FoundWork, None] = {}
        with SafeDir.open(self.root) as files:
            for path in paths:
                try:
                    found = self._regenerable.graded(files, path)
                except GittrixError:  # in doubt it holds work
                    lasting.append((path, 0))
                    continue
                lost = [] if found or not self._strict else [0]
                for one in found:
                    if one.path.endswith("/.git"):
                        continue  # a repository, which is named as such
                    if one.again:
                        noted[FoundWork(form, one.path, "again", "can be made again")] = None
                    elif one.elsewhere:
                        noted[FoundWork(form, one.path, "elsewhere", "durable's checkout")] = None
                    elif not self._strict and self._leads_elsewhere(one):
                        noted[FoundWork(form, one.path, "again", "a link to another place")] = None
                    elif one.status is not None:
                        lost.append(one.status.st_size)
                if lost:
                    lasting.append((path, sum(lost)))
        self.noted += noted
        return lasting

    def _leads_elsewhere(self, one: Graded) -> bool:
        is_link = one.status is not None and stat.S_ISLNK(one.status.st_mode)
        return is_link and not f"{os.path.realpath(os.path.join(self.root, one.path))}/".startswith(f"{self.root}/")

    def _files(self, index: IndexFile) -> tuple[list[str], list[str], list[str], list[str]]:
        """The modified, staged, untracked and ignored paths.

        Both comparisons are with one reading of the index. The tree that an index notes for itself is not trusted: some programs leave an
        old one there when they stage files.
        """
        option, delta = libgit2.DiffOption, libgit2.DeltaStatus
        every = option.INCLUDE_UNTRACKED | option.RECURSE_UNTRACKED_DIRS | option.INCLUDE_IGNORED | option.INCLUDE_TYPECHANGE
        own = self.repository.index
        if self.head is None:
            staged = {entry.path for entry in own}
        else:
            staged = {one.new_file.path for one in own.diff_to_tree(self.head.tree).deltas if one.status != delta.CONFLICTED}
        skipped = {path for path, entry in index.hidden() if entry.skip_worktree}
        modified, untracked, ignored = set(), [], []
        for one in own.diff_to_workdir(every).deltas:
            path = one.new_file.path
            if one.status == delta.IGNORED:
                ignored.append(path)
            elif one.status == delta.UNTRACKED and path not in staged:
                untracked.append(path)
            elif one.status != delta.DELETED or path not in skipped:  # a sparse checkout has no such file
                modified.add(path)
        return sorted(modified), sorted(staged), sorted(untracked), sorted(ignored)

    def _nested(self, paths: Sequence[str]) -> Iterator[str]:
        with SafeDir.open(self.root) as files:
            for path in paths:
                if not path.endswith("/"):
                    continue
                if self._regenerable.covers(files, path):
                    yield from (one.path.removesuffix("/.git") for one in self._regenerable.repositories(files, path))
                    continue
                whole = os.path.join(self.root, path)
                yield from (os.path.relpath(os.path.join(whole, one), self.root) for one in find_repositories(whole))

    @cached_property
    def submodules(self) -> dict[str, _Look]:
        """A look into each submodule that has a repository. libgit2 reads all of them, and theirs, so all of them are looked at first."""
        require_plain_rules(self.repository, self.root, self.index)
        found: dict[str, _Look] = {}
        for path in self.index.submodules():
            whole = os.path.join(self.root, path)
            if os.path.exists(os.path.join(whole, ".git")):
                found[path] = _Look(WorktreePlace(os.path.realpath(whole), open_repository(whole), holds_repository=False))
                found[path].submodules  # noqa: B018
        return found

    @cached_property
    def index(self) -> IndexFile:
        """The index of the work tree."""
        data = read_file(os.path.join(self.git_dir, "index"))
        format_ = object_format("sha256" if len(str(self.head.id if self.head else "")) == _SHA256 else "sha1")
        try:
            return IndexFile(data, format_)
        except UnsupportedRepository as problem:
            raise UnsupportedRepository(
                problem.fact,
                why="It has to be read to find files that git does not look at. In doubt a worktree holds work.",
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

    # Commits -----------------------------------------------------------------------------------------------------------------------

    def _base(self, wanted: str | None) -> str:
        if wanted is not None:
            for name in (wanted, f"refs/heads/{wanted}", f"refs/remotes/{wanted}"):
                if name.startswith("refs/") and self._commits([name]):
                    return name
            raise InvalidInput(f"There is no branch {wanted!r}.", fix="Name the branch that finished work is on.")
        own = f"refs/heads/{self.branch}"
        # A worktree of main, where nothing else is to compare with, is on the base itself.
        return next((name for name in _BASES if name != own and self._commits([name])), own if own in _BASES else "")

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

    def _staying(self, *, without: Collection[str] = ()) -> list[str]:
        """The references that stay when the worktree goes."""
        return [name for name in self.repository.references if name not in without and not name.startswith(_OF_WORKTREE)]

    def _missing(self, base: str) -> Iterator[str]:
        """The commits of the branch that nothing else has. Those that another reference than the base has are noted."""
        if self.head is None:
            return
        own = f"refs/heads/{self.branch}"
        others = [base] if base else [name for name in self._below(*_NAMED) if name != own]
        commits = [*self._walk([self.head], self._commits(others))]
        if not commits or (base and self._has_landed_on(base, commits)):
            return
        staying = [] if self._strict else self._staying(without={own, base})
        alone = [*self._walk([self.head], self._commits([*others, *staying]))]
        if alone:
            landed = next((name for name in self._likely_bases(staying) if self._has_landed_on(name, alone)), None)
            self.noted += [FoundWork("unmerged", str(one.id)[:_SHORT], "elsewhere", landed) for one in alone if landed is not None]
            yield from (str(one.id)[:_SHORT] for one in alone if landed is None)
        rest = [one for one in commits if one.id not in {other.id for other in alone}]
        where = self._holder(rest[0], staying) if rest else ""
        self.noted += [FoundWork("unmerged", str(one.id)[:_SHORT], "elsewhere", where) for one in rest]

    def _has_landed_on(self, name: str, commits: Sequence[libgit2.Commit]) -> bool:
        return any(have_landed(self.repository, commits[0], commits, tip) for tip in self._commits([name]))

    def _likely_bases(self, names: Collection[str]) -> list[str]:
        """The branches among some references that commits may have landed on in another shape, the youngest first."""
        dated = [(-tip.commit_time, name) for name in names if name.startswith(("refs/heads/", _REMOTE)) for tip in self._commits([name])]
        return [name for _, name in islice(sorted(dated), _MOST_BASES)]

    def _holder(self, commit: libgit2.Commit, names: Sequence[str]) -> str:
        """The name of a reference among the first of some that leads to a commit."""
        for name in islice(names, _MOST_BASES):
            if any(tip.id == commit.id or self.repository.descendant_of(tip.id, commit.id) for tip in self._commits([name])):
                return name
        return "another reference"

    def _walk(self, tips: Sequence[libgit2.Commit], without: Iterable[libgit2.Commit]) -> Iterator[libgit2.Commit]:
        return commits_of(self.repository, tips, without)

    def _unnamed(self) -> Iterator[str]:
        """The commits that only a detached HEAD or a reference of the worktree leads to; those that a stash or the like has are noted."""
        tips = self._commits(self._below(*_OF_WORKTREE))
        if self.detached and self.head is not None:
            tips.append(self.head)
        if not tips:
            return
        commits = [*self._walk(tips, self._commits(self._below(*_NAMED)))]
        staying = [] if self._strict else [name for name in self._staying() if not name.startswith(_NAMED)]
        alone = {one.id for one in self._walk(tips, self._commits([*self._below(*_NAMED), *staying]))}
        self.noted += [
            FoundWork("detached", str(one.id)[:_SHORT], "elsewhere", self._holder(one, staying)) for one in commits if one.id not in alone
        ]
        yield from (str(one.id)[:_SHORT] for one in commits if one.id in alone)

    def _unpushed(self) -> Iterator[str]:
        """The references, and the HEADs, with commits that neither a remote branch nor a recorded baseline has."""
        known = [] if self.place.baseline is not None else self._commits(self._below(_REMOTE))
        if self.place.baseline is not None:
            known.append(self.repository[self.place.baseline].peel(libgit2.Commit))
        names = sorted(name for name in self.repository.references if not name.startswith((_REMOTE, "refs/stash")))
        tips = {name: self._commits([name]) for name in names}
        if self.head is not None and self.detached:
            tips["HEAD"] = [self.head]
        for name, found in tips.items():
            count = len([*self._walk(found, known)]) if found else -1
            if count:
                yield f"{name} ({count} commit{'' if count == 1 else 's'})" if count > 0 else name
            known += found

    def has_unpushed(self) -> bool:
        """Whether HEAD or a reference leads to commits that no remote branch has."""
        tips = self._commits(name for name in self.repository.references if not name.startswith(_REMOTE))
        if self.head is not None:
            tips.append(self.head)
        return any(True for _ in self._walk(tips, self._commits(self._below(_REMOTE))))

    def _stashes(self) -> Iterator[str]:
        """The entries of the stash that go with the worktree; the stash of a repository that stays is noted."""
        if "refs/stash" not in self.repository.references:
            return
        made = tuple(f"{how} {self.branch or '(no branch)'}:" for how in ("WIP on", "On"))
        for number, entry in enumerate(self.repository.references["refs/stash"].log()):
            if self.place.holds_repository or (self._strict and entry.message.startswith(made)):
                yield f"stash@{{{number}}}"
            elif entry.message.startswith(made):
                self.noted.append(FoundWork("stashes", f"stash@{{{number}}}", "elsewhere", "the stash of the repository"))

    def _lock(self) -> str | None:
        path = os.path.join(self.git_dir, "locked")
        return read_file(path).decode(errors="replace").strip() if os.path.lexists(path) else None
