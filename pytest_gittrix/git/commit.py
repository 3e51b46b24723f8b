"""Commits as values: signatures, parsing, and building a commit in memory from a set of changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.pack import Pack, build_pack
from pytest_gittrix.git.tree import Changes, Item, ReadTree, write_trees


class Signature(NamedTuple):
    """Who wrote a commit, and when.

    Attributes:
        name: the person's name.
        email: the person's address.
        seconds: seconds since 1970, UTC.
        offset: offset of the person's time zone from UTC, in minutes.
    """

    name: str
    email: str
    seconds: int
    offset: int = 0

    @property
    def when(self) -> datetime:
        """The time as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.seconds, UTC)

    def encode(self) -> bytes:
        """Encode the signature as a commit object or a reflog holds it."""
        sign = "-" if self.offset < 0 else "+"
        hours, minutes = divmod(abs(self.offset), 60)
        return f"{_clean(self.name)} <{_clean(self.email)}> {self.seconds} {sign}{hours:02d}{minutes:02d}".encode(errors="surrogateescape")


def _clean(text: str) -> str:
    return re.sub(r"[<>\n\0]", "", text).strip()


_SIGNATURE = re.compile(rb"(?P<name>.*?) ?<(?P<email>[^>]*)> ?(?P<seconds>-?\d+) (?P<sign>[+-])(?P<hours>\d\d)(?P<minutes>\d\d)$")


def _parse_signature(raw: bytes) -> Signature:
    match = _SIGNATURE.match(raw)
    if match is None:
        return Signature(raw.decode(errors="replace"), "", 0)
    offset = int(match["hours"]) * 60 + int(match["minutes"])
    return Signature(
        match["name"].decode(errors="replace"),
        match["email"].decode(errors="replace"),
        int(match["seconds"]),
        -offset if match["sign"] == b"-" else offset,
    )


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that was read: ids in hex, parents in order."""

    id: str
    tree: str
    parents: tuple[str, ...]
    author: Signature
    committer: Signature
    message: str


def parse_commit(id_: str, raw: bytes) -> Commit:
    """Parse the data of a commit object."""
    head, _, message = raw.partition(b"\n\n")
    fields: dict[bytes, list[bytes]] = {}
    for line in head.split(b"\n"):
        if not line.startswith(b" "):
            key, _, value = line.partition(b" ")
            fields.setdefault(key, []).append(value)
    return Commit(
        id_,
        fields[b"tree"][0].decode(),
        tuple(parent.decode() for parent in fields.get(b"parent", ())),
        _parse_signature(fields[b"author"][0]),
        _parse_signature(fields[b"committer"][0]),
        message.decode(errors="replace"),
    )


@dataclass(frozen=True)
class BuiltCommit:
    """A commit that so far exists only in memory.

    Attributes:
        id: its id.
        tree: its root tree.
        parent: its parent; None for a first commit.
        objects: every object that is new with it: kind and data by id.
        format: the object format of its repository.
        level: compression level of its pack, 0 to 9.
        trees: the lines of the trees among its objects, by id.
        changes: the changes that it makes to its parent, as they were given.
    """

    id: str
    tree: str
    parent: str | None
    objects: Mapping[str, tuple[str, bytes]]
    format: ObjectFormat
    level: int = 1
    trees: Mapping[str, Mapping[bytes, Item]] = field(default_factory=dict, compare=False, repr=False)
    changes: Changes = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def pack(self) -> Pack:
        """Its objects as one pack."""
        return build_pack(self.objects, self.format, level=self.level)


def build_commit(
    read_tree: ReadTree,
    base_tree: str | None,
    changes: Changes,
    blobs: Mapping[str, bytes],
    *,
    parent: str | None,
    author: Signature,
    committer: Signature | None = None,
    message: str,
    format_: ObjectFormat,
    level: int = 1,
) -> BuiltCommit:
    """Build the commit that applies ``changes`` to ``base_tree``, with all its new objects.

    Args:
        read_tree: reads the parent's trees.
        base_tree: root tree to change; None for an empty tree.
        changes: new entry by path, None to delete the path.
        blobs: contents of the entries by id, as far as the repository lacks them.
        parent: the parent commit; None for a first commit.
        author: author of the change.
        committer: committer; the author by default.
        message: the commit message; a missing final newline is added.
        format_: the repository's object format.
        level: compression level of the pack; 0 stores objects uncompressed, which is fastest.

    Raises:
        TreeClash: the changes do not fit the tree.
    """
    lines_of: dict[str, Mapping[bytes, Item]] = {}
    root, trees = write_trees(read_tree, base_tree, changes, format_.hash_object, on_tree=lines_of.__setitem__)
    lines = [b"tree " + root.encode()]
    if parent is not None:
        lines.append(b"parent " + parent.encode())
    lines.append(b"author " + author.encode())
    lines.append(b"committer " + (committer or author).encode())
    text = message if message.endswith("\n") else message + "\n"
    raw = b"\n".join(lines) + b"\n\n" + text.encode(errors="surrogateescape").replace(b"\0", b"")
    id_ = format_.hash_object("commit", raw)
    objects: dict[str, tuple[str, bytes]] = {id_: ("commit", raw)}
    objects.update((tree, ("tree", data)) for tree, data in trees.items())
    used = {entry.id for entry in changes.values() if entry is not None}
    objects.update((blob, ("blob", data)) for blob, data in blobs.items() if blob in used)
    return BuiltCommit(id_, root, parent, objects, format_, level, lines_of, changes)
