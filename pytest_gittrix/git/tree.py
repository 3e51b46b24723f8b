"""Trees as values: entries, changed paths, the overlap rule, and new trees from a set of changes.

All functions are pure and read trees through a ``read_tree`` callable, so that their cost grows with what changed, and tests need no
repository.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, cast

FILE = 0o100644
EXECUTABLE = 0o100755
SYMLINK = 0o120000
SUBMODULE = 0o160000
DIRECTORY = 0o040000

Value = TypeVar("Value")

Kind = Literal["file", "executable", "symlink", "submodule"]
KINDS: Mapping[int, Kind] = {FILE: "file", EXECUTABLE: "executable", SYMLINK: "symlink", SUBMODULE: "submodule"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, symlink or submodule in a tree: its git mode and object id (hex)."""

    mode: int
    id: str

    @property
    def kind(self) -> Kind:
        """``file``, ``executable``, ``symlink`` or ``submodule``."""
        return KINDS[self.mode]


Item = tuple[int, str]
"""One line of a tree object: mode (directories included) and hex id."""

Changes = Mapping[str, Entry | None]
"""New entry by path; None deletes the path."""

ReadTree = Callable[[str], Mapping[bytes, Item]]
"""Returns the parsed tree object of an id."""

Hash = Callable[[str, bytes], str]
"""Returns the hex id of an object from its kind and data."""


class TreeClash(ValueError):
    """A change would write a file where a directory remains, or the reverse; ``path`` is the path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} would be both a file and a directory")
        self.path = path


def parse_tree(raw: bytes, id_size: int) -> dict[bytes, Item]:
    """Parse a tree object's data; ``id_size`` is the length of a binary id in bytes (20 or 32)."""
    items: dict[bytes, Item] = {}
    at, end = 0, len(raw)
    while at < end:
        space = raw.index(b" ", at)
        nul = raw.index(b"\0", space)
        after = nul + 1 + id_size
        items[raw[space + 1 : nul]] = (int(raw[at:space], 8), raw[nul + 1 : after].hex())
        at = after
    return items


def serialise_tree(items: Mapping[bytes, Item]) -> bytes:
    """The data of a tree object, in git's order."""
    return _data_of(_in_order(items))


def _data_of(ordered: Mapping[bytes, Item]) -> bytes:
    return b"".join([b"%o %b\0%b" % (mode, name, bytes.fromhex(id_)) for name, (mode, id_) in ordered.items()])


def _in_order(items: Mapping[bytes, Item]) -> dict[bytes, Item]:
    """The lines of a tree in git's order, in which a directory sorts as if its name ended in a slash."""
    return dict(sorted(items.items(), key=lambda named: named[0] + b"/" if named[1][0] == DIRECTORY else named[0]))


def _changes_order(old: Item | None, new: Item | None) -> bool:
    """Whether a line that replaces another one, or none, may have another place in its tree."""
    return new is not None and (old is None or (old[0] == DIRECTORY) != (new[0] == DIRECTORY))


def _leaf(item: Item | None) -> Entry | None:
    if item is None or item[0] == DIRECTORY:
        return None
    mode, id_ = item
    if mode in KINDS:
        return Entry(mode, id_)
    return Entry(EXECUTABLE if mode & 0o100 else FILE, id_)


def subtree_of(item: Item | None) -> str | None:
    """Return the tree that a line names; None if it names something else."""
    return item[1] if item is not None and item[0] == DIRECTORY else None


class DirectoryChange(NamedTuple):
    """A directory that differs between two trees.

    Attributes:
        prefix: its path with a slash at the end; empty for the root.
        tree: its newer tree; None if it is gone.
        lines: the name, the older and the newer line of everything in it that differs.
    """

    prefix: bytes
    tree: str | None
    lines: tuple[tuple[bytes, Item | None, Item | None], ...]


def changed_directories(
    read_tree: ReadTree, old: str | None, new: str | None, *, read_new: ReadTree | None = None
) -> Iterator[DirectoryChange]:
    """Every directory that differs between two trees; a subtree that is in both is never read, so the cost grows with what changed.

    Args:
        read_tree: reads the older tree.
        old: the older root; None is the empty tree.
        new: the newer root.
        read_new: reads the newer tree, if another reader has it.
    """
    pending: list[tuple[bytes, str | None, str | None]] = [(b"", old, new)]
    nothing: Mapping[bytes, Item] = {}
    while pending:
        prefix, before_id, after_id = pending.pop()
        if before_id == after_id:
            continue
        before = read_tree(before_id) if before_id else nothing
        after = (read_new or read_tree)(after_id) if after_id else nothing
        names = before.keys() | after.keys()
        lines = tuple((name, left, right) for name in names if (left := before.get(name)) != (right := after.get(name)))
        yield DirectoryChange(prefix, after_id, lines)
        for name, left, right in lines:
            if subtree_of(left) or subtree_of(right):
                pending.append((prefix + name + b"/", subtree_of(left), subtree_of(right)))


def changed_paths(
    read_tree: ReadTree, old: str | None, new: str | None, *, read_new: ReadTree | None = None
) -> dict[str, tuple[Entry | None, Entry | None]]:
    """Every path whose entry differs between two trees, with its old and its new entry; renames are not detected.

    The cost grows with what changed. For the arguments see ``changed_directories``.
    """
    found = changed_directories(read_tree, old, new, read_new=read_new)
    return {path: leaves for change in found for path, leaves in changed_entries(change)}


def changed_entries(change: DirectoryChange) -> Iterator[tuple[str, tuple[Entry | None, Entry | None]]]:
    """The files, symlinks and submodules that differ in a directory itself, by path, each with its old and its new entry."""
    for name, left, right in change.lines:
        leaves = (_leaf(left), _leaf(right))
        if leaves != (None, None):
            yield os.fsdecode(change.prefix + name), leaves


def flatten(read_tree: ReadTree, root: str | None) -> dict[str, Entry]:
    """Every entry below a tree, by path, in git's order of paths."""
    found: list[tuple[bytes, Entry]] = []
    pending: list[tuple[bytes, str]] = [(b"", root)] if root else []
    while pending:
        prefix, id_ = pending.pop()
        for name, item in read_tree(id_).items():
            if item[0] == DIRECTORY:
                pending.append((prefix + name + b"/", item[1]))
                continue
            entry = _leaf(item)
            assert entry is not None
            found.append((prefix + name, entry))
    found.sort(key=lambda named: named[0])
    return {os.fsdecode(path): entry for path, entry in found}


def by_directory(files: Mapping[str, Entry]) -> dict[str, dict[str, Entry]]:
    """Files by directory ('' is the root) and name; parents come before their children."""
    found: dict[str, dict[str, Entry]] = {"": {}}
    for path, entry in files.items():
        directory, _, name = path.rpartition("/")
        if directory not in found:
            for parent in parents(path):
                found.setdefault(parent, {})
        found[directory][name] = entry
    return found


class _ReadOnDemand(Mapping[str, Value]):
    """A mapping by path that reads what is looked up, and everything once somebody goes through it."""

    whole: dict[str, Value] | None = None

    def __init__(self) -> None:
        self._asked: dict[str, Value | None] = {}

    @abstractmethod
    def _read(self, path: str) -> Value | None: ...

    @abstractmethod
    def _read_all(self) -> dict[str, Value]: ...

    def all(self) -> dict[str, Value]:
        """Everything."""
        if self.whole is None:
            self.whole = self._read_all()
        return self.whole

    def __getitem__(self, path: str) -> Value:
        if self.whole is not None:
            return self.whole[path]
        try:
            found = self._asked[path]
        except KeyError:
            found = self._asked[path] = self._read(path)
        if found is None:
            raise KeyError(path)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def items(self) -> ItemsView[str, Value]:
        """Every path and its value."""
        return self.all().items()

    def values(self) -> ValuesView[Value]:
        """Every value."""
        return self.all().values()


class TreeFiles(_ReadOnDemand[Entry]):
    """What ``flatten`` gives, read when it is asked for: a look at one path reads the trees above it, an iteration reads all.

    Args:
        read_tree: reads the trees.
        root: the tree.

    Attributes:
        whole: all of them, once somebody has gone through them.
    """

    def __init__(self, read_tree: ReadTree, root: str) -> None:
        super().__init__()
        self._read_tree, self._root = read_tree, root

    def _read(self, path: str) -> Entry | None:
        return entry_at(self._read_tree, self._root, path)

    def _read_all(self) -> dict[str, Entry]:
        return flatten(self._read_tree, self._root)


class _FilesOfTree(Mapping[str, Entry]):
    """The files among the lines of one tree, by name."""

    def __init__(self, lines: Mapping[bytes, Item]) -> None:
        self._lines = lines

    def __getitem__(self, name: str) -> Entry:
        entry = _leaf(self._lines.get(os.fsencode(name)))
        if entry is None:
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        return (os.fsdecode(name) for name, (mode, _) in self._lines.items() if mode != DIRECTORY)

    def __len__(self) -> int:
        return sum(mode != DIRECTORY for mode, _ in self._lines.values())


class TreeDirectories(_ReadOnDemand[Mapping[str, Entry]]):
    """What ``by_directory`` gives of the files of a tree, read when it is asked for.

    Args:
        read_tree: reads the trees.
        root: the tree.
        files: its files.

    Attributes:
        whole: all of them, once somebody has gone through them.
    """

    def __init__(self, read_tree: ReadTree, root: str, files: TreeFiles) -> None:
        super().__init__()
        self._read_tree, self._root, self._files = read_tree, root, files

    def _read(self, path: str) -> Mapping[str, Entry] | None:
        tree = subtree_of(lookup(self._read_tree, self._root, path)) if path else self._root
        return None if tree is None else _FilesOfTree(self._read_tree(tree))

    def _read_all(self) -> dict[str, Mapping[str, Entry]]:
        return cast("dict[str, Mapping[str, Entry]]", by_directory(self._files))


def lookup(read_tree: ReadTree, root: str | None, path: str) -> Item | None:
    """The file, symlink, submodule or directory at ``path``; None if there is none."""
    item: Item | None = (DIRECTORY, root) if root else None
    for name in os.fsencode(path).split(b"/"):
        subtree = subtree_of(item)
        if subtree is None:
            return None
        item = read_tree(subtree).get(name)
    return item


def entry_at(read_tree: ReadTree, root: str | None, path: str) -> Entry | None:
    """The file, symlink or submodule at ``path``; None for a directory, or if there is nothing."""
    return _leaf(lookup(read_tree, root, path))


def parents(path: str) -> Iterator[str]:
    """The directories above ``path``, nearest last: ``a/b/c`` gives ``a``, ``a/b``."""
    at = path.find("/")
    while at != -1:
        yield path[:at]
        at = path.find("/", at + 1)


def overlap(selected: Iterable[str], drift: Iterable[str]) -> set[str]:
    """The selected paths that drift touches: the same path, or one is a directory above the other (rule 4, docs/explanation/rules.md)."""
    drifted = set(drift)
    if not drifted:
        return set()
    directories = {parent for path in drifted for parent in parents(path)}
    return {path for path in selected if path in drifted or path in directories or not drifted.isdisjoint(parents(path))}


class _Pending:
    """The changes of one directory: those of its own entries, those of its subdirectories, and whether there is a file then."""

    __slots__ = ("adds", "directories", "entries")

    def __init__(self) -> None:
        self.adds = False
        self.entries: dict[bytes, Entry | None] = {}
        self.directories: dict[bytes, _Pending] = {}


def _nested(changes: Changes) -> _Pending:
    root = _Pending()
    for path, entry in changes.items():
        *above, name = os.fsencode(path).split(b"/")
        node, adds = root, entry is not None
        for directory in above:
            node.adds = node.adds or adds
            node = node.directories.setdefault(directory, _Pending())
        node.adds = node.adds or adds
        node.entries[name] = entry
    return root


def write_trees(
    read_tree: ReadTree,
    base: str | None,
    changes: Changes,
    hash_object: Hash,
    *,
    on_tree: Callable[[str, dict[bytes, Item]], object] = lambda _id, _items: None,
) -> tuple[str, dict[str, bytes]]:
    """Apply ``changes`` to the tree ``base``. The cost grows with the changed paths and the directories above them.

    Args:
        read_tree: reads the trees that change.
        base: the tree's id; None for an empty one.
        changes: new entry by path, None to delete the path.
        hash_object: gives the id of an object from its kind and data.
        on_tree: called with the id and the lines of each new tree, as ``parse_tree`` gives them from its data.

    Returns:
        The new root's id, and the data of each new tree object by id. A directory that becomes empty is removed, as in git.

    Raises:
        TreeClash: a changed path is a directory that keeps other files, or is below a file that remains.
    """
    written: dict[str, bytes] = {}

    def rewrite(tree: str | None, pending: _Pending, prefix: bytes) -> str | None:
        before = read_tree(tree) if tree else {}
        items = dict(before)
        for name, entry in pending.entries.items():
            if entry is not None:
                if name not in pending.directories and subtree_of(items.get(name)):
                    raise TreeClash(os.fsdecode(prefix + name))
                continue
            if subtree_of(items.get(name)) is None:
                items.pop(name, None)
        for name, below in pending.directories.items():
            item = items.get(name)
            subtree = subtree_of(item)
            if item is not None and subtree is None and below.adds:
                raise TreeClash(os.fsdecode(prefix + name))
            if subtree is None and not below.adds:
                continue
            rewritten = rewrite(subtree, below, prefix + name + b"/")
            if rewritten is None:
                items.pop(name, None)
            else:
                items[name] = (DIRECTORY, rewritten)
        for name, entry in pending.entries.items():
            if entry is None:
                continue
            if subtree_of(items.get(name)):
                raise TreeClash(os.fsdecode(prefix + name))
            items[name] = (entry.mode, entry.id)
        if not items and prefix:
            return None
        if any(_changes_order(before.get(name), items.get(name)) for name in (*pending.entries, *pending.directories)):
            items = _in_order(items)
        raw = _data_of(items)
        id_ = hash_object("tree", raw)
        if id_ != tree:
            written[id_] = raw
            on_tree(id_, items)
        return id_

    root = rewrite(base, _nested(changes), b"")
    assert root is not None
    return root, written
