"""Read and hash git objects: sha1 objects through libgit2, sha256 objects through the git binary.

Only an object directory is opened, never a repository, so that no configuration is read. What starts git is loaded for sha256 alone.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pytest_gittrix.errors import AdapterUnavailable, UnsupportedRepository
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.tree import Item, parse_tree

if TYPE_CHECKING:
    import subprocess

_T = TypeVar("_T")
_KINDS: Final = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """The hash that a repository names its objects by.

    Attributes:
        name: ``sha1`` or ``sha256``.
        size: length of a binary id in bytes.
    """

    name: str
    size: int

    @property
    def hex_size(self) -> int:
        """Length of a hex id in characters."""
        return self.size * 2

    @property
    def zero(self) -> str:
        """The id that means no object."""
        return "0" * self.hex_size

    def digest(self, data: bytes) -> bytes:
        """The hash of some bytes, with which a pack or an index ends."""
        return hashlib.new(self.name, data, usedforsecurity=False).digest()

    def hash_object(self, kind: str, data: bytes) -> str:
        """The id of an object with this kind (``blob``, ``tree``, ``commit``) and data."""
        hasher = self.hasher(kind, len(data))
        hasher.update(data)
        return hasher.hexdigest()

    def hasher(self, kind: str, size: int) -> hashlib._Hash:
        """What hashes an object of a kind, once the ``size`` bytes of its data are put into it."""
        return hashlib.new(self.name, object_header(kind, size), usedforsecurity=False)


def object_header(kind: str, size: int) -> bytes:
    """What git puts before an object's data, to hash it and in a loose object."""
    return b"%s %d\0" % (kind.encode(), size)


SHA1: Final = ObjectFormat("sha1", 20)
SHA256: Final = ObjectFormat("sha256", 32)
FORMATS: Final = {format_.name: format_ for format_ in (SHA1, SHA256)}


# How often the object directory is opened again for an object that is not found, before the object counts as missing.
_TRIES: Final = 3


def object_format(name: str) -> ObjectFormat:
    """The object format of a name.

    Raises:
        UnsupportedRepository: the name is neither sha1 nor sha256.
    """
    if name not in FORMATS:
        raise UnsupportedRepository(
            f"The repository names its objects by {name!r}.",
            why="The engine can hash only what it knows.",
            fix=f"Use one of: {', '.join(FORMATS)}.",
        )
    return FORMATS[name]


class MissingObject(AdapterUnavailable):
    """An object that should exist cannot be read: the repository is damaged, or the object was pruned."""


class Objects(Protocol):
    """Reads objects from an object directory."""

    format: ObjectFormat

    def read(self, id_: str) -> tuple[str, bytes]:
        """Kind and data of an object. Raises MissingObject."""

    def header(self, id_: str) -> tuple[str, int]:
        """Kind and size of an object. Raises MissingObject."""

    def size(self, id_: str) -> int:
        """The size of an object's data in bytes. Raises MissingObject."""

    def close(self) -> None:
        """Release descriptors and processes."""


class Libgit2Objects:
    """Reads sha1 objects, loose, packed and in alternates. Finds packs that were written after it was opened."""

    format = SHA1

    def __init__(self, objects_dir: Path) -> None:
        self._directory = objects_dir
        self._odb: libgit2.Odb | None = None

    def open(self) -> libgit2.Odb:
        """Open the directory, if it is not open. Raises AdapterUnavailable if it cannot be opened."""
        if self._odb is None:
            try:
                self._odb = self._opened()
            except libgit2.GitError as error:
                raise AdapterUnavailable(
                    f"The objects in {self._directory} cannot be opened: {error}.",
                    why="The repository was moved or removed, or the system refuses to read it.",
                    fix="Put it back, or mend the cause.",
                ) from error
        return self._odb

    def _opened(self) -> libgit2.Odb:
        return libgit2.Odb(str(self._directory))

    def read(self, id_: str) -> tuple[str, bytes]:
        """Kind and data of an object."""
        kind, data = self._ask(libgit2.Odb.read, id_)
        return _KINDS[kind], data

    def header(self, id_: str) -> tuple[str, int]:
        """Kind and size of an object: its data is not inflated."""
        kind, size = self._ask(libgit2.Odb.read_header, id_)
        return _KINDS[kind], size

    def size(self, id_: str) -> int:
        """The size of an object, from its header."""
        return self._ask(libgit2.Odb.read_header, id_)[1]

    def _ask(self, question: Callable[[libgit2.Odb, str], tuple[int, _T]], id_: str) -> tuple[int, _T]:
        for tries_left in reversed(range(_TRIES)):
            odb = self.open()
            try:
                return question(odb, id_)
            except (KeyError, ValueError, libgit2.GitError) as error:
                # A gc may have moved the object to another pack since the list of packs was read.
                self._odb = None
                if not tries_left:
                    raise _missing(id_, self._directory) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Make libgit2 unmap its packs."""
        self._odb = None


class CatFileObjects:
    """Reads sha256 objects, which libgit2 cannot, through one long-running ``git cat-file --batch``."""

    format = SHA256

    def __init__(self, objects_dir: Path) -> None:
        self._directory = objects_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Any] | None = None
        self._lock = threading.Lock()

    def _pipes(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            import subprocess

            from pytest_gittrix.git.environment import empty_repository, git_binary, hermetic_env
            from pytest_gittrix.os_level.proc import HELPERS

            environment = hermetic_env() | {"GIT_DIR": empty_repository("sha256"), "GIT_OBJECT_DIRECTORY": str(self._directory)}
            self._process = subprocess.Popen(
                [git_binary(), "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
            )
            HELPERS.add(self._process.pid)
            # A reader that is never closed leaves no process behind.
            self._end = weakref.finalize(self, _end_process, self._process)
        return self._process

    def read(self, id_: str) -> tuple[str, bytes]:
        """Kind and data of an object."""
        with self._lock:
            process = self._pipes()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(id_.encode() + b"\n")
            process.stdin.flush()
            header = process.stdout.readline().split()
            if len(header) != 3:
                raise _missing(id_, self._directory)
            data = process.stdout.read(int(header[2]))
            process.stdout.read(1)
            return header[1].decode(), data

    def header(self, id_: str) -> tuple[str, int]:
        """Kind and size of an object, which is read whole."""
        kind, data = self.read(id_)
        return kind, len(data)

    def size(self, id_: str) -> int:
        """The size of an object's data."""
        return len(self.read(id_)[1])

    def close(self) -> None:
        """End the git process."""
        with self._lock:
            self._process = None
            if self._end is not None:
                self._end()


def _end_process(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    # It only reads. Its input may stay open in a process that was forked from this one, so its end is not waited for.
    process.kill()
    process.wait()


def _missing(id_: str, directory: Path) -> MissingObject:
    return MissingObject(
        f"Object {id_} cannot be read from {directory}.",
        why="Without it the engine cannot tell what is in the repository, and will not guess.",
        fix="Run `git fsck` there; if it was pruned, restore it from a clone.",
    )


def open_objects(objects_dir: Path, format_: ObjectFormat, *, at_once: bool = True) -> Objects:
    """Open an object directory of an object format.

    Args:
        objects_dir: the directory.
        format_: its format.
        at_once: whether it is opened now, and not when something is read first, which raises the same.

    Raises:
        AdapterUnavailable: it cannot be opened.
    """
    if format_ is not SHA1:
        return CatFileObjects(objects_dir)
    objects = Libgit2Objects(objects_dir)
    if at_once:
        objects.open()
    return objects


class ParsedTrees:
    """Parsed trees by id, for all who read the same repository: those that were parsed last, up to a number of lines of all together.

    A repository can have a thousand small directories or one of thousands of files, so their number says nothing of the memory they take.

    Args:
        most_lines: how many lines are kept; the last tree is kept in any case. A line takes some 200 bytes.
    """

    def __init__(self, most_lines: int = 1 << 17) -> None:
        self._most_lines = most_lines
        self._lines = 0
        self._changing = threading.Lock()
        self._trees: OrderedDict[str, Mapping[bytes, Item]] = OrderedDict()
        self.get = self._trees.get  # without a call in between, since every look at a tree asks

    def put(self, id_: str, items: Mapping[bytes, Item]) -> None:
        """Keep a tree, in exchange for the oldest ones if there is no room. While another one is being put, nothing is kept."""
        # No wait: a process that was forked while a thread held the lock would wait for ever.
        if not self._changing.acquire(blocking=False):
            return
        try:
            if id_ in self._trees:
                return
            self._trees[id_] = items
            self._lines += len(items)
            while self._lines > self._most_lines and len(self._trees) > 1:
                _, oldest = self._trees.popitem(last=False)
                self._lines -= len(oldest)
        finally:
            self._changing.release()


class Trees:
    """Reads and parses tree objects, and keeps those that were parsed last (tree objects never change).

    Args:
        objects: where they are read from.
        parsed: what another reader has parsed, to be used and added to.
    """

    def __init__(self, objects: Objects, parsed: ParsedTrees | None = None) -> None:
        self.parsed = ParsedTrees() if parsed is None else parsed
        self._objects = objects

    def read(self, id_: str) -> Mapping[bytes, Item]:
        """The lines of a tree by name. Raises MissingObject if there is no such tree."""
        known = self.parsed.get(id_)
        if known is not None:
            return known
        kind, data = self._objects.read(id_)
        if kind != "tree":
            raise MissingObject(f"Object {id_} is a {kind}, not a tree.", why="The repository is damaged.", fix="Run `git fsck`.")
        items = parse_tree(data, self._objects.format.size)
        self.parsed.put(id_, items)
        return items
