"""A git repository that promotions land in: opened after its configuration was checked, read at a commit, and moved commit by commit.

Everything goes through the object database and the references; ``checkout_update`` changes the person's work tree and index. No git is
spawned, so no hook, filter or signing program can run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, PathNotFound, UnsupportedRepository
from pytest_gittrix.git.commit import BuiltCommit, Commit, Signature, parse_commit
from pytest_gittrix.git.consolidation import consolidate
from pytest_gittrix.git.git_directory import GitConfig, Location, config_of, discover, shared_mode
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import MissingObject, Trees, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack, release_pack
from pytest_gittrix.git.refs import References
from pytest_gittrix.git.tree import Entry, entry_at, flatten
from pytest_gittrix.os_level.files import append, make_directories, names_in, read_text

_HEADS: Final = "refs/heads/"
_BRANCHES_LISTED: Final = 20
_LANDINGS_PER_OPENING: Final = 16
_MOST_REMEMBERED: Final = 1 << 20
"""Bytes in the objects of a landed commit that are kept in memory."""


class Checkout(NamedTuple):
    """A work tree of the repository: the main one or a linked one.

    Attributes:
        git_dir: directory of its HEAD and index.
        path: root of the work tree.
        branch: full name of the branch it is on, or returns to after the current rebase or bisection; None if HEAD is detached.
        trusts_modes: whether the executable bit of its files is meaningful (``core.fileMode``).
        shared: ``core.sharedRepository``, None if it is not set.
        common_dir: the directory of objects and branches.
        called_bare: whether the configuration says that there is no such work tree.
    """

    git_dir: str
    path: str
    branch: str | None
    trusts_modes: bool = True
    shared: str | None = None
    common_dir: str | None = None
    called_bare: bool = False

    def permit(self, mode: int) -> int:
        """``shared_mode`` of what is written into its git directory."""
        return shared_mode(self.shared, mode)


class Repository:
    """A repository that promotions may land in. Use ``Repository.open``; close it, or use it as a context manager.

    Attributes:
        git_dir: the git directory of the work tree it was opened from.
        common_dir: directory of objects and branches; differs from ``git_dir`` only in a linked work tree.
        format: its object format.
        landed: the commit that this object landed last, since the next session mostly starts from it; None if that was a large one.
    """

    def __init__(self, location: Location) -> None:
        self.git_dir = location.git_dir
        self.common_dir = common_dir = location.common_dir
        self._root = location.work_tree if location.git_dir == common_dir else None
        self.format = self._config.format
        if not os.path.isdir(self.objects_dir):
            raise AdapterUnavailable(
                f"{location.work_tree or location.git_dir} belongs to the repository {common_dir}, which is not there.",
                why="A linked work tree is of no use without its repository: no objects and no branches are in it.",
                fix="If the repository was moved, run `git worktree repair` in it; or give the path of another one.",
            )
        self._landings = 0
        self.landed: BuiltCommit | None = None
        self.references = References(common_dir, self.format, self.permit)
        self.objects = open_objects(Path(common_dir, "objects"), self.format)
        self.trees = Trees(self.objects)
        self.commit = lru_cache(maxsize=1024)(self._commit)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Repository:
        """Open the repository at ``path`` or above it (bare, with a work tree, or from a linked work tree).

        Raises:
            AdapterUnavailable: there is no repository.
            UnsupportedRepository: it is shallow, partial, or uses a storage that the engine does not know; the message says which.
        """
        start = os.path.realpath(path)
        if not os.path.isdir(start):
            raise AdapterUnavailable(f"{start} is not a directory.", fix="Give the path of a git repository.")
        return cls(discover(start))

    def __enter__(self) -> Repository:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release descriptors and processes; a later read opens them again."""
        self.objects.close()

    def is_found_from(self, path: str) -> bool:
        """Whether opening a path opens this repository."""
        try:
            return os.path.realpath(discover(os.path.realpath(path)).common_dir) == os.path.realpath(self.common_dir)
        except AdapterUnavailable:
            return False

    @property
    def _config(self) -> GitConfig:
        return config_of(self.common_dir)

    def permit(self, mode: int) -> int:
        """``shared_mode`` of what is written into this repository."""
        return shared_mode(self._config.shared, mode)

    @property
    def bare(self) -> bool:
        """Whether it has no main work tree."""
        return self._config.bare

    @property
    def objects_dir(self) -> str:
        """Its object directory."""
        return os.path.join(self.common_dir, "objects")

    @property
    def identity(self) -> tuple[str | None, str | None]:
        """The name and address configured in this repository, each None if it is not set."""
        return self._config.identity

    def head(self, ref: str) -> str | None:
        """The commit that a branch (full name) is at; None if there is no such branch."""
        return self.references.read(ref)

    def current_branch(self) -> str | None:
        """Full name of the branch that HEAD is on, whether the branch exists yet or not; None if HEAD is detached."""
        return _head_ref(self.git_dir)

    def _commit(self, id_: str) -> Commit:
        landed = self.landed
        kind, raw = landed.objects[id_] if landed is not None and landed.id == id_ else self.objects.read(id_)
        if kind != "commit":
            raise MissingObject(f"Object {id_} is a {kind}, not a commit.", why="A branch must lead to a commit.", fix="Run `git fsck`.")
        return parse_commit(id_, raw)

    def tree(self, commit: str) -> str:
        """The root tree of a commit."""
        return self.commit(commit).tree

    def entries(self, commit: str) -> dict[str, Entry]:
        """Every file, symlink and submodule in a commit, by path."""
        return flatten(self.trees.read, self.tree(commit))

    def blob(self, id_: str) -> bytes:
        """The contents of a blob."""
        return self.objects.read(id_)[1]

    def read(self, path: str, at: str) -> bytes:
        """The bytes of a file (or a symlink's target) in a commit.

        Raises:
            PathNotFound: the commit has no file at that path.
        """
        entry = entry_at(self.trees.read, self.tree(at), path)
        if entry is None or entry.kind == "submodule":
            raise PathNotFound(f"{path!r} is not a file in {at}.")
        return self.blob(entry.id)

    def log(self, at: str, limit: int | None = None) -> Iterator[Commit]:
        """Commits from ``at`` backwards along first parents."""
        next_id: str | None = at
        while next_id is not None and (limit is None or limit > 0):
            commit = self.commit(next_id)
            yield commit
            next_id = commit.parents[0] if commit.parents else None
            limit = None if limit is None else limit - 1

    def checkouts(self) -> list[Checkout]:
        """Every work tree, the main one first."""
        found: list[Checkout] = []
        config = self._config
        rest = config.trusts_modes, config.shared, self.common_dir
        root = self._main_root(config)
        if root is not None:
            found.append(Checkout(self.common_dir, root, _branch_of(self.common_dir), *rest, config.bare))
        linked = os.path.join(self.common_dir, "worktrees")
        for name in names_in(linked):
            git_dir = os.path.join(linked, name)
            pointer = read_text(os.path.join(git_dir, "gitdir"))
            if pointer:
                root = os.path.dirname(os.path.normpath(os.path.join(git_dir, pointer)))
                found.append(Checkout(git_dir, root, _branch_of(git_dir), *rest))
        return found

    def _main_root(self, config: GitConfig) -> str | None:
        """Root of the main work tree; None if there is none or it is unknown (a separate git directory that was opened by its own path)."""
        above, name = os.path.split(self.common_dir)
        if config.bare:
            return above if name == ".git" and self._is_checked_out(above) else None
        if config.worktree:
            return os.path.normpath(os.path.join(self.common_dir, config.worktree))
        return self._root or (above if name == ".git" else None)

    def _is_checked_out(self, root: str) -> bool:
        """Whether a directory has files that are staged, so that ``core.bare`` is true by accident."""
        try:
            index = IndexFile(Path(self.common_dir, "index").read_bytes(), self.format)
        except (OSError, UnsupportedRepository):
            return False
        return any(os.path.lexists(os.path.join(root, path)) for path, _ in index.staged())

    def land(
        self,
        ref: str,
        built: BuiltCommit,
        *,
        signature: Signature,
        note: str,
        keep: str,
        expected: str | None = None,
        sync: bool = False,
        wait: float = 10.0,
        settle: Callable[[str], bool] | None = None,
        checkouts: Iterable[Checkout] | None = None,
    ) -> None:
        """Write a built commit's objects and make it the head of a branch, or change nothing.

        Objects are written only once the branch is locked and known to be at ``expected``, so a refused landing leaves no byte behind.

        Args:
            ref: full name of the branch.
            built: the commit to land.
            signature: who moves the branch, for the reflog.
            note: text for the reflog.
            keep: text of the ``.keep`` file that protects the pack from gc until the branch leads to it.
            expected: the commit that the branch must be at; None for a branch that must not exist.
            sync: write everything through to the disk.
            wait: seconds to wait for another holder of the lock.
            settle: see ``References.compare_and_swap``.
            checkouts: the work trees on the branch, if the caller knows them; they are searched for otherwise.

        Raises:
            RefMoved: the branch is elsewhere.
            DurableLocked: another program holds the lock.
        """
        permit = partial(shared_mode, self._config.shared)  # asked once for all its files: to ask takes three system calls
        with ExitStack() as shield:

            def write_objects() -> None:
                # libgit2 keeps every pack open that it has read, so the packs are closed from time to time.
                self._landings += 1
                if self._landings % _LANDINGS_PER_OPENING == 0:
                    self.objects.close()
                install_pack(self.objects_dir, built.pack, keep=keep, sync=sync, mode=0o444, permit=permit)
                shield.callback(release_pack, self.objects_dir, built.pack.name, sync=sync)
                points.reached("land:packed")

            self.references.compare_and_swap(ref, built.id, expected=expected, prepare=write_objects, wait=wait, sync=sync, settle=settle)
            points.reached("land:moved")
            self._append_reflog(ref, expected, built.id, signature, note, checkouts)
        self._remember(built)

    def _remember(self, built: BuiltCommit) -> None:
        """Keep what a landed commit has brought, so that it is not read back from the disk."""
        for id_, lines in built.trees.items():
            self.trees.parsed.put(id_, lines)
        size = sum(len(data) for _, data in built.objects.values())
        self.landed = built if size <= _MOST_REMEMBERED else None

    def consolidate(self, landed: str) -> None:
        """Put the packs of promotions into one, if there are many; not after every landing, since to count them is to list them.

        Args:
            landed: the name of the pack that landed last.
        """
        config = self._config
        if config.precious or self._landings % _LANDINGS_PER_OPENING != 1:
            return
        if consolidate(self.objects_dir, landed, self.format, permit=partial(shared_mode, config.shared)):
            self.objects.close()

    def _append_reflog(
        self, ref: str, old: str | None, new: str, signature: Signature, note: str, checkouts: Iterable[Checkout] | None
    ) -> None:
        config = self._config
        if (config.log_all_updates or "").lower() in ("false", "no", "off", "0"):
            return
        line = b"%s %s %s\t%s\n" % (
            (old or self.format.zero).encode(),
            new.encode(),
            signature.encode(),
            " ".join(note.split()).encode(errors="surrogateescape"),
        )
        logs = [os.path.join(self.common_dir, "logs", ref)]
        on_it = checkouts if checkouts is not None else [checkout for checkout in self.checkouts() if checkout.branch == ref]
        logs += [os.path.join(checkout.git_dir, "logs", "HEAD") for checkout in on_it]
        for log in logs:
            if config.bare and not os.path.exists(log):
                continue
            make_directories(os.path.dirname(log), self.permit)
            append(log, line, self.permit)

    def write_objects(self, objects: Mapping[str, tuple[str, bytes]], *, sync: bool = False) -> None:
        """Add objects to the database (kind and data by id), as one pack."""
        if objects:
            install_pack(self.objects_dir, build_pack(objects, self.format), sync=sync, mode=0o444, permit=self.permit)


def _head_ref(git_dir: str) -> str | None:
    head = read_text(os.path.join(git_dir, "HEAD")) or ""
    return head.removeprefix("ref:").strip() if head.startswith("ref:") else None


def _branch_of(git_dir: str) -> str | None:
    """The branch of a work tree by git's own rule: a branch that is being rebased or bisected is in use although HEAD is detached."""
    for name in ("rebase-merge/head-name", "rebase-apply/head-name", "BISECT_START"):
        started = read_text(os.path.join(git_dir, name))
        if started and not started.startswith("detached"):
            return started if started.startswith("refs/") else _HEADS + started
    return _head_ref(git_dir)


def require_head(repository: Repository, ref: str) -> str:
    """The commit that a branch is at.

    Raises:
        InvalidInput: there is no such branch; the message lists the existing ones.
        AdapterUnavailable: the repository itself is gone.
    """
    head = repository.head(ref)
    if head is None:
        if not os.path.isdir(repository.common_dir):
            raise AdapterUnavailable(
                f"{repository.common_dir} is not there any more.",
                why="The repository was moved or removed since it was opened.",
                fix="Put it back, or make an engine on the place where it is now.",
            )
        refs = repository.references.below(_HEADS)
        raise no_branch_error(repository.common_dir, ref, refs, if_none="make a first commit")
    return head


def no_branch_error(repository: str, ref: str, refs: Iterable[str], *, if_none: str) -> InvalidInput:
    """The error for a branch that does not exist.

    Args:
        repository: how the message names the repository.
        ref: full name of the branch.
        refs: full names of the references that exist; the message lists the first branches among them.
        if_none: what to do if the repository has no branch at all.
    """
    branches = [name.removeprefix(_HEADS) for name in refs if name.startswith(_HEADS)]
    return InvalidInput(
        f"{repository} has no branch {ref.removeprefix(_HEADS)!r}.",
        why="A session starts from the head of a branch.",
        fix=f"Branches there: {', '.join(branches[:_BRANCHES_LISTED]) or f'none ({if_none})'}.",
    )
