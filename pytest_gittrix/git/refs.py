"""Read references that are kept as files, and move them by compare-and-swap.

Git's protocol is followed exactly (the program that creates ``<ref>.lock`` next to the reference owns the lock), so that git, libgit2 and
the engine exclude each other. One thing differs: the engine's lock is linked into place with its contents already in it, the id that the
branch is about to get. A lock that a killed engine left behind therefore always identifies its owner, which an empty file cannot (rule 9,
docs/explanation/rules.md).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, DurableLocked, InvalidInput, UnsupportedRepository
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.tree import parents
from pytest_gittrix.os_level.file_lock import make_lock_file
from pytest_gittrix.os_level.files import Permit, create_whole, make_directories, read_text, sync_directory

# A reference's file and the lock of that file need names that the file system allows.
_MAX_COMPONENT: Final = 255 - len(".lock")
_MAX_NAME: Final = 1024
_FORBIDDEN: Final = re.compile(r"[\x00-\x20~^:?*\[\\\x7f]|\.\.|@\{|//|/\.|\.$|\.lock(/|$)|^[./]|/$|^@$")


BRANCHES_AND_TAGS: Final = ("refs/heads/", "refs/tags/")


def temporary_prefix(token: str) -> str:
    """The prefix of a landing's temporary files. It has the id of the commit that lands, to identify the files of a killed landing."""
    return f"gittrix-{token[:20]}-"


class RefMoved(Exception):
    """A compare-and-swap found the reference at another commit than expected; ``current`` is that commit, None for no reference."""

    def __init__(self, ref: str, current: str | None) -> None:
        super().__init__(f"{ref} is at {current}")
        self.current = current


def short_branch(branch: str) -> str:
    """The short name of a branch: ``refs/heads/main`` and ``main`` give ``main``.

    Raises:
        InvalidInput: git does not allow the name for a branch (a tag, an expression or an option), or it is too long for a file.
    """
    name = branch.removeprefix("refs/heads/")
    if not name or name.startswith("-") or name == "HEAD" or _FORBIDDEN.search(name) or not _fits_a_file(name):
        raise InvalidInput(
            f"{branch[:300]!r} is not a branch name.",
            why="The engine moves branches by their full name only, so that no tag, option or expression can stand in for one.",
            fix=f"Give a name such as 'main' or 'feature/x' (see `git help check-ref-format`), of at most {_MAX_COMPONENT} bytes a part.",
        )
    return name


def _fits_a_file(name: str) -> bool:
    try:
        raw = os.fsencode(name)
    except UnicodeEncodeError:  # a surrogate that encodes no byte
        return False
    return len(raw) <= _MAX_NAME and all(len(part) <= _MAX_COMPONENT for part in raw.split(b"/"))


def branch_ref(branch: str) -> str:
    """The full name of a branch: ``main`` gives ``refs/heads/main``. Raises what ``short_branch`` raises."""
    return f"refs/heads/{short_branch(branch)}"


@dataclass(frozen=True)
class PackedReferences:
    """The references of a ``packed-refs`` file.

    Nothing is parsed ahead: a repository may have 100 000 references, of which an operation needs one.

    Attributes:
        data: the contents of the file.
    """

    data: bytes = b""

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the contents, in hex."""
        return hashlib.sha256(self.data).hexdigest()

    def get(self, ref: str) -> str | None:
        """The id of a reference, by its full name; None if it is not packed."""
        return next((id_ for id_, name in self._lines(ref) if name == ref), None)

    def below(self, *prefixes: str) -> dict[str, str]:
        """Every packed reference whose name starts with one of ``prefixes``, with its id."""
        return {name: id_ for prefix in prefixes for id_, name in self._lines(prefix)}

    def _lines(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The id and the name of each reference whose name starts so; the other lines are passed over without a step each."""
        data, sought = self.data, b" " + os.fsencode(prefix)
        at = data.find(sought)
        while at != -1:
            begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            end = len(data) if end == -1 else end
            if data[begin] not in b"#^":
                yield data[begin:at].decode(), os.fsdecode(data[at + 1 : end].rstrip(b"\r"))
            at = data.find(sought, end)


@lru_cache(maxsize=8)
def _packed_as_of(path: str, *_stamp: int) -> PackedReferences:
    """The packed references. The stamp is part of the cache's key, so that the file is read again when it was replaced."""
    try:
        return PackedReferences(Path(path).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return PackedReferences()


class References:
    """The references of one repository with the ``files`` storage.

    Args:
        common_dir: the repository's common git directory.
        format_: its object format.
        permit: its rule for the modes of new files; only who moves references needs it.
    """

    def __init__(self, common_dir: str, format_: ObjectFormat, permit: Permit | None = None) -> None:
        self._directory = common_dir
        self._permit = permit
        self._id = re.compile(rf"[0-9a-f]{{{format_.hex_size}}}")

    def path(self, ref: str) -> str:
        """The path of the reference's own file."""
        return os.path.join(self._directory, ref)

    def read(self, ref: str) -> str | None:
        """The id that a loose or packed reference holds; None if there is no such reference.

        Raises:
            UnsupportedRepository: the reference is symbolic, or does not hold an id.
        """
        text = read_text(self.path(ref))
        if text is None:
            return self.packed().get(ref)
        if self._id.fullmatch(text):
            return text
        raise UnsupportedRepository(
            f"{ref} holds {text[:80]!r}, which is not an object id.",
            why="A branch that points at another branch, or a damaged one, cannot be moved by compare-and-swap.",
            fix="Name the branch it leads to, or repair it with `git update-ref`.",
        )

    def packed(self) -> PackedReferences:
        """The packed references. The file is read again only when it was replaced, as every program that writes it does."""
        path = os.path.join(self._directory, "packed-refs")
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return PackedReferences()
        return _packed_as_of(path, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)

    def loose(self, *prefixes: str) -> dict[str, str]:
        """The references with a file of their own whose name starts with one of ``prefixes`` (``refs/heads/``), with their ids."""
        loose = {ref: read_text(self.path(ref)) for prefix in prefixes for ref in self._files(prefix.removesuffix("/"))}
        return {ref: text for ref, text in loose.items() if text and self._id.fullmatch(text)}

    def below(self, *prefixes: str) -> dict[str, str]:
        """Every reference whose name starts with one of ``prefixes`` (``refs/heads/``), with its id, sorted."""
        found = self.loose(*prefixes)
        # The packed ones are read last, as git does: git writes a reference to packed-refs before it deletes the file.
        return dict(sorted((self.packed().below(*prefixes) | found).items()))

    def _files(self, directory: str) -> Iterator[str]:
        try:
            entries = os.scandir(os.path.join(self._directory, directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as problem:
            raise AdapterUnavailable(
                f"{os.path.join(self._directory, directory)} cannot be listed: {problem.strerror}.",
                why="A branch that cannot be seen would be taken for one that was deleted.",
                fix="Mend the cause, then try again.",
            ) from problem
        with entries:
            for entry in entries:
                name = f"{directory}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    yield from self._files(name)
                elif not name.endswith(".lock"):
                    yield name

    def compare_and_swap(
        self,
        ref: str,
        new: str,
        *,
        expected: str | None,
        prepare: Callable[[], object] = lambda: None,
        wait: float = 10.0,
        sync: bool = False,
        settle: Callable[[str], bool] | None = None,
    ) -> None:
        """Move a reference from one id to another, under its lock, or leave it as it is.

        Args:
            ref: full name of the reference.
            new: the id to move it to; also the contents of the lock.
            expected: the id that it must hold now; None if it must not exist.
            prepare: called just before the move, when the lock is held and the reference is known to be at ``expected``. If it raises, the
                reference is not moved.
            wait: seconds to wait for another holder of the lock.
            sync: write the move through to the disk.
            settle: called with the contents of a lock that is in the way; removes the lock and what its owner left if the owner is known
                to be dead, and returns whether it did.

        Raises:
            RefMoved: the reference is not at ``expected``.
            DurableLocked: another program held the lock for longer than ``wait``.
        """
        path = self.path(ref)
        lock = path + ".lock"
        self._acquire(ref, lock, new, wait, sync, settle)
        try:
            self._require_at(ref, expected)
            points.reached("ref:locked")
            prepare()
            # Empty directories that deleted branches left; git removes them in the same way.
            for directory, _, _ in os.walk(path, topdown=False):
                os.rmdir(directory)
            os.rename(lock, path)
        finally:
            if read_text(lock) == new:
                os.unlink(lock)
            if sync:
                self._sync_above(ref)

    def _sync_above(self, ref: str) -> None:
        """Write the directories above a reference through to the disk: new ones are names too, and temporary files stood in the topmost."""
        directory = os.path.dirname(ref)
        while directory:
            if os.path.isdir(self.path(directory)):
                sync_directory(self.path(directory))
            directory = os.path.dirname(directory)
        sync_directory(self._directory)

    def _require_at(self, ref: str, expected: str | None) -> None:
        current = self.read(ref)
        if current != expected:
            raise RefMoved(ref, current)
        if expected is None:
            self._refuse_clash(ref)

    def _refuse_clash(self, ref: str) -> None:
        packed = self.packed()
        above = (name for name in parents(ref) if packed.get(name) is not None)
        taken = next(above, None) or next(iter(self.below(ref + "/")), None)
        if taken is not None:
            raise InvalidInput(f"{ref} cannot be made: {taken} exists.", why="Git cannot hold both.", fix="Choose another branch name.")

    def _acquire(self, ref: str, lock: str, new: str, wait: float, sync: bool, settle: Callable[[str], bool] | None) -> None:
        def make() -> None:
            try:
                create_whole(
                    lock, new.encode() + b"\n", beside=self._directory, prefix=temporary_prefix(new), sync=sync, permit=self._permit
                )
            except FileNotFoundError:
                # Git may have removed the directory just now, because the deletion of a branch had left it empty.
                make_directories(os.path.dirname(lock), self._permit)
                make()
            except NotADirectoryError as error:
                raise InvalidInput(
                    f"{ref} cannot be made: a branch is where its directory would be.",
                    why="Git cannot hold both.",
                    fix="Choose another branch name.",
                ) from error

        def refusal() -> DurableLocked:
            return DurableLocked(
                f"{lock} is held by another program.",
                stage="apply",
                why="While it is there no writer may move the branch, and a lock that is not provably ours is not ours to break.",
                fix="Wait for the other git to end; if none is running, remove the file.",
            )

        make_lock_file(lock, make, wait=wait, settle=settle, busy=lambda: points.reached("ref:busy"), refusal=refusal)
