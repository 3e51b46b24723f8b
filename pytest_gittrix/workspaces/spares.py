"""Spares: workspaces that a thread in the background makes ahead of their sessions, so that a start is a rename.

No agent has worked in a spare, so there is nothing to reset in it. A spare is a directory whose name says what it is of; the one start
that renames it has it. When the baseline moves, the spares of the last one are brought forward by what differs.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.git.tree import parents
from pytest_gittrix.os_level.files import UNNEEDED_FOR, is_older, names_in, private_directory, sync_file_system
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.workspaces.creation_note import CreationState, note_creation, note_stamp, note_taken
from pytest_gittrix.workspaces.kinds import WITH_OWN_GIT, WorkspaceKind
from pytest_gittrix.workspaces.layers import lower_layers, make_repository_layer
from pytest_gittrix.workspaces.seeds.checkout import write_entry, write_git_directory
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.workspace import Workspace, create, open_workspace

KINDS_WITH_SPARES: Final = ("clone", "copy", "overlay")
"""The kinds of workspace that spares are made of: the others start as fast, or are part of durable."""

LEAST_FREE: Final = 1 << 30
"""Bytes that have to be free on the disk for a spare to be made."""

MOST_ORDERS: Final = 4
"""How many orders an engine keeps: those of the branches that sessions were last started from."""

_SMALL_INDEX: Final = 1 << 15
"""Bytes of the index of a workspace with some 400 files: to look at each takes a millisecond, which is as long as the start takes."""

CLAIMED: Final = ".spare"
"""What the name of a workspace ends with while a start turns a spare into it; only a start that was killed leaves such a directory."""


@dataclass(frozen=True)
class SpareOrder:
    """What spares are to be made of.

    Attributes:
        kind: the kind of workspace.
        branch: the branch that a ``clone`` is on.
        source: which repository it is of; any text that only it has.
        seed: prepares the seed of the commit that the branch is at now.
        most: how many spares there are to be.
    """

    kind: WorkspaceKind
    branch: str
    source: str
    seed: Callable[[], Seed] = field(compare=False)
    most: int = field(compare=False)

    def mark(self, made: str) -> str:
        """The same text for equal orders of spares that are ``made`` in the same way, and for no others."""
        parts = (self.kind, self.branch, self.source, made)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Spares:
    """The spares of a store, for all processes that start sessions in it.

    Args:
        directory: where they are; on the same file system as the sessions.
        trash: where those go that no start needs any more.
        sync: write each through to the disk before a start can take it. Otherwise a power cut may have emptied it, so it is not taken after
            the next boot.
    """

    def __init__(self, directory: str, trash: Trash, *, sync: bool) -> None:
        self._directory = directory
        self._trash = trash
        self._sync = sync
        self._orders: dict[str, SpareOrder] = {}
        self._created: dict[str, tuple[CreationState, tuple[int, ...]]] = {}
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._again = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self, order: SpareOrder, seed: Seed, path: str, state_dir: str) -> Workspace | None:
        """Make a spare the workspace of a session; None if there is no spare of the baseline. A damaged one goes to the trash.

        Args:
            order: what it is to be.
            seed: the baseline.
            path: where the workspace is to be.
            state_dir: where the engine keeps its notes about the workspace.

        Raises:
            OSError: the system refuses to list the spares, or to move a damaged one to the trash.
        """
        claimed = path + CLAIMED
        for name in self._of(order, seed.commit):
            known = self._created.pop(name, None)
            try:
                os.rename(os.path.join(self._directory, name), claimed)
            except OSError:  # another start was faster
                continue
            try:
                os.rename(os.path.join(claimed, "workspace"), path)
                os.rename(os.path.join(claimed, "engine"), state_dir)
                os.rmdir(claimed)
                if known is not None and known[1] == note_stamp(state_dir):
                    created = known[0]
                else:
                    created = open_workspace(path, state_dir, os.path.dirname(seed.directory)).created
                if not _is_as_made(path, created):
                    raise AdapterUnavailable(f"Somebody changed the spare {name}.")
                return Workspace(order.kind, path, seed, note_taken(state_dir, created), None, state_dir)
            except (OSError, GittrixError):
                for part in (claimed, path, state_dir):
                    self._trash.discard(part)
        return None

    def order(self, order: SpareOrder) -> None:
        """Have each ``refill`` from now on see that there are as many spares as are ordered, of the commit that the branch is at then."""
        mark = self._mark(order)
        with self._locked():
            self._orders.pop(mark, None)
            self._orders[mark] = order

    def refill(self) -> None:
        """Make in the background what is missing of the spares that were ordered, and bring forward those of earlier commits.

        It is called when a session has ended or was promoted, and not when one starts: the thread would take the processor from its agent.
        """
        with self._locked():
            self._again = True
            if self._orders and not self._closed and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="gittrix-spares", daemon=True)
                self._thread.start()

    def prune(self, *, older_than: float = UNNEEDED_FOR) -> None:
        """Remove the spares of engines that have ended, and what was half made, once they are ``older_than`` seconds old."""
        for name in names_in(self._directory):
            path = os.path.join(self._directory, name)
            if is_older(path, older_than):
                self._trash.discard(path)

    def wait(self) -> None:
        """Wait until the background thread has nothing to do."""
        with self._locked():
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Let the background thread end after the spare that it is making. The spares stay, for who comes next."""
        with self._locked():
            self._closed = True
        self.wait()

    def _locked(self) -> threading.Lock:
        """The lock; a new one in a process that was forked, since a thread of its parent may have held the old one."""
        if self._pid != os.getpid():
            self._lock, self._thread = threading.Lock(), None
            self._pid = os.getpid()
        return self._lock

    def _run(self) -> None:
        while True:
            with self._locked():
                if self._closed or not self._again:
                    self._thread = None
                    return
                self._again = False
                orders = list(self._orders.values())
            for order in orders[:-MOST_ORDERS]:
                self._drop(order)
            for order in orders[-MOST_ORDERS:]:
                # Without a spare the next start makes its own workspace, and says what is wrong.
                with suppress(OSError, GittrixError):
                    self._fill(order)
            there = names_in(self._directory)
            for name in set(self._created).difference(there):
                self._created.pop(name, None)

    def _drop(self, order: SpareOrder) -> None:
        """Forget an order, unless it was given again meanwhile, and remove its spares."""
        mark = self._mark(order)
        with self._locked():
            if self._orders.get(mark) is not order:
                return
            del self._orders[mark]
        with suppress(OSError):
            for name in self._of(order):
                self._trash.discard(os.path.join(self._directory, name))

    def _fill(self, order: SpareOrder) -> None:
        private_directory(self._directory, close=True)
        try:
            seed = order.seed()
        except (OSError, GittrixError):  # its branch or its repository is gone; a start that still finds them orders again
            self._drop(order)
            return
        fresh = list(self._of(order, seed.commit))
        old = [name for name in self._of(order) if name not in fresh]
        missing = order.most - len(fresh)
        for _ in range(missing):
            if self._closed or shutil.disk_usage(self._directory).free < LEAST_FREE:
                break
            self._make(order, seed, old.pop() if old else None)
        for name in old:
            self._trash.discard(os.path.join(self._directory, name))

    def _of(self, order: SpareOrder, commit: str | None = None) -> Iterator[str]:
        prefix = f"{self._mark(order)}-" if commit is None else f"{self._mark(order)}-{commit}-"
        return (name for name in names_in(self._directory) if name.startswith(prefix))

    def _mark(self, order: SpareOrder) -> str:
        return order.mark("synced" if self._sync else _boot())

    def _make(self, order: SpareOrder, seed: Seed, old: str | None) -> None:
        """Make one spare, from one of an earlier commit if there is one."""
        building = os.path.join(self._directory, f"tmp_{secrets.token_hex(8)}")
        workspace, engine = os.path.join(building, "workspace"), os.path.join(building, "engine")
        try:
            if old is None or not self._brought_forward(old, building, seed, order.branch):
                create(order.kind, workspace, engine, seed, branch=order.branch)
            if order.kind == "overlay":
                make_repository_layer(seed)
            if self._sync:
                sync_file_system(building)
            name = f"{self._mark(order)}-{seed.commit}-{secrets.token_hex(8)}"
            self._created[name] = open_workspace(workspace, engine, os.path.dirname(seed.directory)).created, note_stamp(engine)
            os.rename(building, os.path.join(self._directory, name))
        except BaseException:
            self._trash.discard(building)
            raise

    def _brought_forward(self, old: str, building: str, seed: Seed, branch: str) -> bool:
        """Make a spare of another one. Returns False if that is not possible: a start has taken it, or its seed is gone."""
        try:
            os.utime(os.path.join(self._directory, old))  # from now on it is not old, so it is not pruned
            os.rename(os.path.join(self._directory, old), building)
            engine = os.path.join(building, "engine")
            workspace = open_workspace(os.path.join(building, "workspace"), engine, os.path.dirname(seed.directory))
            bring_forward(workspace, engine, seed, branch)
        except (OSError, GittrixError):
            self._trash.discard(building)
            return False
        return True


def _is_as_made(path: str, created: CreationState) -> bool:
    """Whether a workspace that no agent has worked in has the names that it was made with, and its git directory as it was.

    Every directory is looked at, and of a small workspace every file. Of a large one ``CreationState.taken`` is for those.

    Raises:
        OSError: a directory is gone.
    """
    if not created.is_comparable:
        return False
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(root)
        # To rename the workspace changed the change time of its root.
        if status.st_ino != created.directories[""] or status.st_mtime_ns > created.stamp:
            return False
        for name, inode in created.directories.items():
            status = os.stat(name or ".", dir_fd=root, follow_symlinks=False)
            if status.st_ino != inode or (status.st_ctime_ns > created.stamp and name):
                return False
        git_dir = os.path.join(path, ".git")
        return _is_older(path if _is_small(git_dir) else git_dir, created.stamp)
    finally:
        os.close(root)


def _is_small(git_dir: str) -> bool:
    """Whether the workspace of a git directory has so few files that a start can look at each."""
    try:
        return os.stat(os.path.join(git_dir, "index")).st_size <= _SMALL_INDEX
    except FileNotFoundError:
        return False


def _is_older(directory: str, stamp: int) -> bool:
    """Whether everything in a directory, if there is one, was last changed at a kernel change time or before."""
    pending = [directory] if os.path.isdir(directory) else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_ctime_ns > stamp:
                    return False
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return True


@cache
def _boot() -> str:
    """The id of this boot of the machine; where the system does not say, one of this process."""
    return Owner.current().boot_id or secrets.token_hex(8)


def bring_forward(workspace: Workspace, state_dir: str, seed: Seed, branch: str) -> None:
    """Turn a workspace that no agent has worked in into one of another baseline; the cost grows with what differs.

    Args:
        workspace: the workspace, of one of ``KINDS_WITH_SPARES``.
        state_dir: where the engine noted what it knows about it.
        seed: the other baseline, of the same repository.
        branch: the branch that a ``clone`` is on.

    Raises:
        OSError: the disk refused; the workspace is no use any more.
    """
    directories = dict(workspace.created.directories)
    if workspace.kind == "overlay":
        lower_layers(seed)
    else:
        _bring_files_forward(workspace.path, directories, workspace.seed, seed)
    if workspace.kind in WITH_OWN_GIT:
        git_dir = os.path.join(workspace.path, ".git")
        shutil.rmtree(git_dir)
        write_git_directory(git_dir, seed, branch, above=workspace.kind == "overlay")
    note_creation(workspace.kind, state_dir, seed, directories, None)


def _bring_files_forward(root: str, directories: dict[str, int], old: Seed, seed: Seed) -> None:
    """Turn the files of one baseline into those of another; ``directories``, the inode of each directory, is kept up."""
    changes = {path: after for path, (_, after) in old.differences(seed).items()}
    for path in sorted(changes, reverse=True):
        entry = old.entries.get(path)
        if entry is not None:
            at = os.path.join(root, path)
            (os.rmdir if entry.kind == "submodule" else os.unlink)(at)
    for directory in sorted(directories.keys() - seed.directories.keys(), reverse=True):
        os.rmdir(os.path.join(root, directory))
        del directories[directory]
    for path in sorted(changes):
        new = changes[path]
        if new is None:
            continue
        directory, _, name = path.rpartition("/")
        for parent in parents(path):
            if parent not in directories:
                os.mkdir(os.path.join(root, parent))
                directories[parent] = os.stat(os.path.join(root, parent)).st_ino
        descriptor = os.open(os.path.join(root, directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_entry(descriptor, name, new, seed)
        finally:
            os.close(descriptor)
