"""Bring a person's checkout forward when a commit lands on its branch.

Otherwise the checkout would show the landed change as undone, and the person's next ``git commit -a`` would undo it (rule 5,
docs/explanation/rules.md). Only the selected paths get their new contents, and only if they were clean. Meanwhile ``index.lock`` is held,
as git holds it, with the landing commit's id in it. An editor takes no lock, so each path is checked again right before it is written, and
a file that was saved meanwhile stays. Files are what ``git checkout`` would write, but for filters, none of which is run.

Once the branch has moved, the index follows even where a file cannot: then ``git status`` shows that file as changed, and the next plain
``git commit`` takes nothing back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from pytest_gittrix import points
from pytest_gittrix.errors import GittrixError, WorktreeDirty
from pytest_gittrix.git.index import IndexEntry, IndexFile, operations_in, stat_numbers
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.refs import temporary_prefix
from pytest_gittrix.git.repository import Checkout
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry, parents
from pytest_gittrix.git.worktree.attributes import ATTRIBUTES
from pytest_gittrix.git.worktree.checkout_obstacles import (
    dirty_error,
    is_directory,
    is_fixed,
    submodule_obstacle,
    untracked_obstacle,
    unwritable_error,
)
from pytest_gittrix.git.worktree.conversion import Conversions
from pytest_gittrix.git.worktree.encodings import Unconvertible
from pytest_gittrix.os_level.file_lock import make_lock_file
from pytest_gittrix.os_level.files import create_whole, is_temporary, read_text, sync_directory, write_file
from pytest_gittrix.os_level.open_below import tolerating_shape
from pytest_gittrix.os_level.safe_dir import SafeDir

_T = TypeVar("_T")
Sides = Mapping[str, tuple[Entry | None, Entry | None]]
"""Old and new entry of each selected path."""


@dataclass(frozen=True)
class LockedCheckout:
    """A checkout whose index is locked and whose selected paths are clean. Made by ``lock_checkout``."""

    checkout: Checkout
    format: ObjectFormat
    sides: Sides
    contents: Callable[[str], bytes]
    index: IndexFile
    index_mtime_ns: int
    token: str
    resumed: bool = False
    _found: dict[str, list[IndexEntry]] = field(default_factory=dict, repr=False)

    def update(self, *, sync: bool = False) -> dict[str, str]:
        """Give the selected paths their new contents, in the work tree and in the index.

        Args:
            sync: write the files and the index through to the disk.

        Returns:
            The paths that were not changed, each with the reason: another program changed them after ``lock_checkout`` had checked them, or
            the system refused to write them. What the person staged at one of them stays staged.

        Raises:
            WriteRejected, OSError: the index could not be written. Files that were written stay.
        """
        staged: dict[str, IndexEntry | None] = {}
        skipped: dict[str, str] = {}
        removed = _removed(self.sides)
        with SafeDir.open(self.checkout.path, hold=True) as files:
            # Deletions come first, to make room for new files, and a directory's files are deleted before the directory.
            for path in sorted(self.sides, key=lambda path: (path in removed, path), reverse=True):
                reason = self._index_obstacle(path, removed)
                if not reason:
                    staged[path], reason = self._bring(files, path, removed, sync)
                if reason:
                    skipped[path] = reason
                    removed.discard(path)
            if sync:
                skipped.update(_unsynced(files, [path for path in self.sides if path not in skipped]))
        _tried_twice(lambda: self._write_index(staged, sync))
        return skipped

    def update_index(self, *, sync: bool = False) -> None:
        """Give the selected paths their new contents in the index alone, where nothing else is staged: the work tree is not there.

        Raises:
            WriteRejected, OSError: the disk refused.
        """
        removed = _removed(self.sides)
        staged = {path: self._unwritten(path) for path in self.sides if not self._index_obstacle(path, removed)}
        _tried_twice(lambda: self._write_index(staged, sync))

    def _write_index(self, staged: Mapping[str, IndexEntry | None], sync: bool) -> None:
        points.reached("worktree:files-written")
        data, prefix, permit = self.index.with_changes(staged), temporary_prefix(self.token), self.checkout.permit
        write_file(self._index_path, data, mode=0o666, sync=sync, prefix=prefix, permit=permit)
        if sync:
            sync_directory(self.checkout.git_dir)

    @property
    def _index_path(self) -> str:
        return os.path.join(self.checkout.git_dir, "index")

    def require_clean(self) -> None:
        """Check that every selected path can be brought forward.

        Raises:
            WorktreeDirty: a person's work is in the way.
            WorktreeUnwritable: the system would refuse it.
        """
        removed = _removed(self.sides)
        with SafeDir.open(self.checkout.path, hold=True) as files:
            for path in self.sides:
                reason = self._index_obstacle(path, removed) or self._file_obstacle(files, path, removed, trusts_index=True)
                if reason:
                    raise dirty_error(self.checkout, f"{path!r} {reason}", "Commit, stash or remove it, then promote again.")
            self._require_writable(files)

    def _require_writable(self, files: SafeDir) -> None:
        """Check that the system lets the files and the index be replaced, as far as it says so. Raises WorktreeUnwritable."""
        root = self.checkout.path
        if is_fixed(self._index_path):
            raise unwritable_error(self.checkout, self._index_path)
        written = [path for path in self.sides if not self._leaves_out(path)]
        for path in written:
            if is_fixed(os.path.join(root, path)):
                raise unwritable_error(self.checkout, path)
        for directory in {path.rpartition("/")[0] for path in written}:
            while directory and not is_directory(files, directory):
                directory = directory.rpartition("/")[0]
            if not os.access(os.path.join(root, directory), os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
                raise unwritable_error(self.checkout, directory or ".")

    def remove_temporaries(self) -> None:
        """Remove the temporary files of a killed update. The caller holds the index lock, so no other update is running."""
        with SafeDir.open(self.checkout.path, hold=True) as files:
            for directory in {path.rpartition("/")[0] or "." for path in self.sides}:
                with tolerating_shape():
                    for found in [*files.scan(directory, skip=lambda path: not is_temporary(path.rpartition("/")[2]))]:
                        files.delete(found.path)

    def _staged(self, path: str) -> list[IndexEntry]:
        """The entries that the index has for a path."""
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self.index.entries(path)
        return found

    def _index_obstacle(self, path: str, removed: Collection[str]) -> str:
        """Why the index cannot have the new entry of a path, if the paths in ``removed`` are deleted; empty if it can."""
        old, new = self.sides[path]
        staged = self._staged(path)
        if any(entry.stage for entry in staged):
            return "is in an unresolved merge"
        if [(entry.mode, entry.id) for entry in staged] not in (_staged_as(old), *([_staged_as(new)] if self.resumed else ())):
            return "has staged changes"
        if old is not None or new is None:
            return ""
        others = [other for other in (*parents(path), *self.index.below(path)) if other not in removed and self._staged(other)]
        return f"collides with {others[0]!r}, which is staged" if others else ""

    def _file_obstacle(self, files: SafeDir, path: str, removed: Collection[str], *, trusts_index: bool = False) -> str:
        """Why the file at a path cannot be brought forward now, if the paths in ``removed`` are deleted; empty if it can.

        With ``trusts_index`` a file is clean whose status the index has, as it is to git. The file that is then replaced has been read.
        """
        old, new = self.sides[path]
        staged = self._staged(path)
        if any(entry.skip_worktree for entry in staged) or (self.resumed and self._is_written(files, path, new)):
            return ""
        if old is not None and old.mode == SUBMODULE:
            return "" if new is not None and new.mode == SUBMODULE else submodule_obstacle(files, path)
        if old is not None:
            is_clean = staged and ((trusts_index and self._is_recorded(files, path, staged[0])) or self._is_clean(files, path, staged[0]))
            return "" if is_clean else "has changes that are not committed"
        return "" if new is None else untracked_obstacle(files, path, removed)

    def _is_recorded(self, files: SafeDir, path: str, staged: IndexEntry) -> bool:
        """Whether a file has the status that the index has, which was written a while after it was saved."""
        status = files.lstat(path)
        return (
            status is not None
            and stat.S_ISREG(status.st_mode)
            and self._is_kind(status, staged.mode)
            and staged.matches(status)
            and status.st_mtime_ns < self.index_mtime_ns
        )

    def _is_clean(self, files: SafeDir, path: str, staged: IndexEntry) -> bool:
        if self._matches(files, path, Entry(staged.mode, staged.id)):
            return True
        status = files.lstat(path)
        if status is None or not self._is_kind(status, staged.mode):
            return False
        # A file that a filter converted has other bytes, but its recorded stat says that git found it clean.
        return stat.S_ISREG(status.st_mode) and (staged.matches(status) or self._is_stored_as(files, path, staged, status))

    def _is_stored_as(self, files: SafeDir, path: str, staged: IndexEntry, status: os.stat_result) -> bool:
        """Whether git would store a file with other times than it recorded just as it is staged."""
        if staged.stat[9] not in (0, status.st_size):  # what has another size is changed to git, without a look into it
            return False
        try:
            data = self._conversions_in(files).of(path).to_git(files.read(path)[0], lambda: self.contents(staged.id))
        except Unconvertible:
            return False
        return self.format.hash_object("blob", data) == staged.id

    def _is_written(self, files: SafeDir, path: str, new: Entry | None) -> bool:
        """Whether a path has its new contents already."""
        if self._matches(files, path, new):
            return True
        status = files.lstat(path)
        if new is None or status is None or new.mode not in (FILE, EXECUTABLE) or not self._is_kind(status, new.mode):
            return False
        return files.read(path)[0] == self._as_checked_out(path, new)

    def _as_checked_out(self, path: str, entry: Entry) -> bytes:
        """The bytes that ``git checkout`` would write for a file."""
        return self._conversions.of(path).to_worktree(self.contents(entry.id), entry.id)

    @cached_property
    def _conversions(self) -> Conversions:
        """How git converts files that it checks out: by the attributes that the index has once the new contents are in it."""

        def read(directory: str) -> bytes:
            path = f"{directory}/{ATTRIBUTES}" if directory else ATTRIBUTES
            staged = next((Entry(entry.mode, entry.id) for entry in self._staged(path)), None)
            entry = self.sides[path][1] if path in self.sides else staged
            return self.contents(entry.id) if entry is not None and entry.mode in (FILE, EXECUTABLE) else b""

        return Conversions(read, self.checkout.common_dir)

    def _conversions_in(self, files: SafeDir) -> Conversions:
        """How git converts the files that are there: by the attributes in the work tree, and where one is missing there, in the index."""

        def read(directory: str) -> bytes:
            path = f"{directory}/{ATTRIBUTES}" if directory else ATTRIBUTES
            status = files.lstat(path)
            if status is not None:
                return files.read(path)[0] if stat.S_ISREG(status.st_mode) else b""
            staged = self._staged(path)
            return self.contents(staged[0].id) if staged and staged[0].mode in (FILE, EXECUTABLE) else b""

        return Conversions(read, self.checkout.common_dir)

    def _matches(self, files: SafeDir, path: str, entry: Entry | None) -> bool:
        """Whether the file at a path equals the entry in kind, mode and bytes."""
        if entry is not None and entry.mode in (FILE, EXECUTABLE):
            with tolerating_shape():
                data, status = files.read(path)
                return self._is_kind(status, entry.mode) and self.format.hash_object("blob", data) == entry.id
            return False
        found = files.lstat(path)
        if found is None or entry is None:
            return found is None and entry is None
        if entry.mode == SUBMODULE:
            return stat.S_ISDIR(found.st_mode)
        return stat.S_ISLNK(found.st_mode) and self.format.hash_object("blob", files.read_link(path)) == entry.id

    def _is_kind(self, status: os.stat_result, mode: int) -> bool:
        if stat.S_ISLNK(status.st_mode) or mode == SYMLINK:
            return stat.S_ISLNK(status.st_mode) and mode == SYMLINK
        if not stat.S_ISREG(status.st_mode):
            return False
        return not self.checkout.trusts_modes or bool(status.st_mode & 0o100) == (mode == EXECUTABLE)

    def _leaves_out(self, path: str) -> bool:
        """Whether a path is not to be in the work tree."""
        staged = self._staged(path)
        return any(entry.skip_worktree for entry in staged) or (not staged and self.index.leaves_out(os.path.dirname(path)))

    def _unwritten(self, path: str) -> IndexEntry | None:
        """The new index entry of a path whose file is not as the entry says; None for a deletion."""
        new = self.sides[path][1]
        return None if new is None else IndexEntry(new.mode, new.id, skip_worktree=self._leaves_out(path))

    def _bring(self, files: SafeDir, path: str, removed: Collection[str], sync: bool) -> tuple[IndexEntry | None, str]:
        """Give a path its new contents if nothing is in the way, and try once more, from that look on, where the system refused it.

        Returns:
            Its new index entry, in any case; and why it was not written, empty if it was.
        """
        for is_last in (False, True):
            if reason := self._file_obstacle(files, path, removed):
                return self._unwritten(path), reason
            try:
                return self._write_path(files, path, sync), ""
            except (GittrixError, OSError) as error:
                if is_last:
                    return self._unwritten(path), _refusal(error)
        raise AssertionError

    def _write_path(self, files: SafeDir, path: str, sync: bool) -> IndexEntry | None:
        """Give a path its new contents. Returns its new index entry; None for a deletion."""
        old, new = self.sides[path]
        if self._leaves_out(path):
            return IndexEntry(new.mode, new.id, skip_worktree=True) if new is not None else None
        if old is not None and old.mode == SUBMODULE and (new is None or new.mode != SUBMODULE):
            files.prune(path)
        elif new is None or (new.mode == SUBMODULE and old is not None and old.mode != SUBMODULE):
            files.delete(path)
        if new is None:
            return None
        if new.mode == SUBMODULE:
            os.makedirs(os.path.join(self.checkout.path, path), exist_ok=True)
            return IndexEntry(new.mode, new.id)
        if new.mode != SYMLINK:
            is_there = old is not None and old.id == new.id and old.mode != SYMLINK  # with another mode: a filter's output stays
            data = files.read(path)[0] if is_there and files.lstat(path) is not None else self._as_checked_out(path, new)
            # The stat of the file as it was written, not as it is now, so that git notices a save right after it.
            status = files.write(path, data, executable=new.mode == EXECUTABLE, sync=sync)
            return IndexEntry(new.mode, new.id, stat_numbers(status, new.mode))
        files.make_link(path, self.contents(new.id))
        link = files.lstat(path)
        return IndexEntry(new.mode, new.id, stat_numbers(link, new.mode) if link is not None else (0,) * 10)


@contextmanager
def lock_checkout(
    checkout: Checkout,
    format_: ObjectFormat,
    sides: Sides,
    contents: Callable[[str], bytes],
    *,
    token: str,
    settle: Callable[[str], bool] | None = None,
    resumed: bool = False,
    wait: float = 2.0,
    sync: bool = False,
) -> Iterator[LockedCheckout]:
    """Lock a checkout's index and check that every selected path is clean.

    Args:
        checkout: the work tree.
        format_: the repository's object format.
        sides: old and new entry of each selected path.
        contents: returns the bytes of an object by its id; of a new one, once the commit has landed.
        token: contents of the lock, which identify its owner: the id of the commit that lands.
        settle: called with the contents of a lock that is in the way; removes the lock and what its owner left if the owner is known to
            be dead, and returns whether it did.
        resumed: finish an update that was killed: a path that has its new contents already is no obstacle, half-written files are
            removed, and a path in whose way a person's work is by now does not stop the others.
        wait: seconds to wait for another holder of the lock, such as an editor's ``git status``.
        sync: write the lock through to the disk, so that its owner can be identified after a power cut too, and its removal, so that
            none comes back.

    Raises:
        WorktreeDirty: uncommitted work is at a selected path or in its way, an operation such as a merge is in progress, or another
            program holds the index lock.
        WorktreeUnwritable: the system would refuse to write the files or the index.
        UnsupportedRepository: the engine cannot write this kind of index.
    """
    lock = os.path.join(checkout.git_dir, "index.lock")
    _acquire(checkout, lock, token, settle, wait, sync)
    try:
        if operations := operations_in(checkout.git_dir):
            raise dirty_error(checkout, f"a {operations[0]} is in progress", "Finish or abort it, then promote again.")
        data, mtime_ns = _read_index(os.path.join(checkout.git_dir, "index"))
        locked = LockedCheckout(checkout, format_, sides, contents, IndexFile(data, format_), mtime_ns, token, resumed)
        if not resumed:
            locked.require_clean()
        elif os.path.isdir(checkout.path):
            locked.remove_temporaries()
        yield locked
    finally:
        if read_text(lock) == token:
            os.unlink(lock)
            if sync:
                sync_directory(checkout.git_dir)


def _read_index(path: str) -> tuple[bytes, int]:
    """The bytes of an index and when it was written (ns since the epoch); empty and 0 where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return b"", 0


def _acquire(checkout: Checkout, lock: str, token: str, settle: Callable[[str], bool] | None, wait: float, sync: bool) -> None:
    def make() -> None:
        prefix = temporary_prefix(token)
        create_whole(lock, token.encode() + b"\n", beside=checkout.git_dir, prefix=prefix, sync=sync, permit=checkout.permit)

    def refusal() -> WorktreeDirty:
        fix = "Wait for it to end; if no git is running there, remove the file."
        return dirty_error(checkout, f"another program holds {lock}", fix)

    make_lock_file(lock, make, wait=wait, settle=settle, busy=lambda: points.reached("index:busy"), refusal=refusal)


def _tried_twice(act: Callable[[], _T]) -> _T:
    """Do something, and once more if the system refused it, as a disk can for a moment: the branch has moved, so there is no way back."""
    try:
        return act()
    except (GittrixError, OSError):
        return act()


def _unsynced(files: SafeDir, paths: Sequence[str]) -> dict[str, str]:
    """Write the names of written files through to the disk; returns why that failed, for each path of which it did."""
    try:
        files.sync(paths)
    except (GittrixError, OSError):
        failed: dict[str, str] = {}
        for path in paths:
            try:
                files.sync([path])
            except (GittrixError, OSError) as error:
                failed[path] = _refusal(error)
        return failed
    return {}


def _refusal(error: GittrixError | OSError) -> str:
    cause = error if isinstance(error, OSError) and error.strerror else error.__cause__
    return f"could not be written: {cause.strerror if isinstance(cause, OSError) else error}"


def _removed(sides: Sides) -> set[str]:
    return {path for path, (_, new) in sides.items() if new is None}


def _staged_as(entry: Entry | None) -> list[tuple[int, str]]:
    return [(entry.mode, entry.id)] if entry is not None else []
