"""Reads the objects of a repository that an agent made, as hostile data.

No link and no alternate is followed, no pipe is waited for, and no configuration is read. A loose object is believed only if its contents
have its name. libgit2 reads packs, once every file in their directory is known to be a plain one.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.objects import SHA1, CatFileObjects, Libgit2Objects, MissingObject, ObjectFormat, Objects
from pytest_gittrix.os_level.safe_dir import SafeDir

_HEADER: Final = re.compile(rb"(commit|tree|blob|tag) (\d{1,18})\0")
_LONGEST_HEADER: Final = 32
_LARGEST: Final = 64 << 20
"""The largest object that is read whole. Commits, trees and tags are smaller."""


class AgentObjects:
    """Reads objects from the object directory of an agent's repository.

    Args:
        path: the directory.
        format_: its object format.

    Raises:
        PathNotFound, WriteRejected: it is no directory.
    """

    def __init__(self, path: str, format_: ObjectFormat) -> None:
        self.format = format_
        self._path = path
        self._directory = SafeDir.open(path)
        self._packs: Objects | None = None

    def read(self, id_: str) -> tuple[str, bytes]:
        """Kind and data of an object. Raises MissingObject if it is not there, damaged, or too large."""
        loose = self._loose(id_)
        if loose is None:
            packs = self._open_packs(id_)
            if packs.header(id_)[1] > _LARGEST:
                raise self._unreadable(id_)
            return packs.read(id_)
        kind, size, pieces = loose
        data = b"".join(pieces) if size <= _LARGEST else b""
        if self.format.hash_object(kind, data) != id_:
            raise self._unreadable(id_)
        return kind, data

    def header(self, id_: str) -> tuple[str, int]:
        """Kind and size of an object. Raises MissingObject if it is not there, or damaged."""
        loose = self._loose(id_)
        return loose[:2] if loose is not None else self._open_packs(id_).header(id_)

    def size(self, id_: str) -> int:
        """The size of an object. Raises MissingObject."""
        return self.header(id_)[1]

    def close(self) -> None:
        """Release descriptors and processes."""
        self._directory.close()
        if self._packs is not None:
            self._packs.close()

    def _loose(self, id_: str) -> tuple[str, int, Iterator[bytes]] | None:
        """Kind, size and data of a loose object; None if there is none."""
        try:
            raw = self._directory.pieces(f"{id_[:2]}/{id_[2:]}")
            inflated = _inflated(raw)
            head = next(inflated, b"")
        except FileNotFoundError:
            return None
        except (GittrixError, zlib.error) as problem:
            raise self._unreadable(id_) from problem
        found = _HEADER.match(head)
        if found is None:
            raise self._unreadable(id_)
        return found[1].decode(), int(found[2]), self._rest(id_, head[found.end() :], inflated)

    def _rest(self, id_: str, first: bytes, inflated: Iterator[bytes]) -> Iterator[bytes]:
        yield first
        size = len(first)
        try:
            for piece in inflated:
                size += len(piece)
                if size > _LARGEST:
                    raise self._unreadable(id_)
                yield piece
        except zlib.error as problem:
            raise self._unreadable(id_) from problem

    def _open_packs(self, id_: str) -> Objects:
        if self._packs is None:
            if not self._has_plain_packs():
                raise self._unreadable(id_)
            self._packs = _Packs(Path(self._path)) if self.format is SHA1 else CatFileObjects(Path(self._path))
        return self._packs

    def _has_plain_packs(self) -> bool:
        try:
            found = [*self._directory.scan("pack")]
        except FileNotFoundError:
            return False
        except GittrixError:
            return False
        leads_elsewhere = self.format is not SHA1 and self._directory.lstat("info/alternates") is not None
        return not leads_elsewhere and all(stat.S_ISREG(one.stat.st_mode) for one in found)

    def _unreadable(self, id_: str) -> MissingObject:
        return MissingObject(
            f"Object {id_} of the agent's repository {os.path.dirname(self._path)} cannot be read.",
            why="It is not there, damaged, or too large to be read whole.",
            fix="Run `git fsck` in a copy of it.",
        )


class _Packs(Libgit2Objects):
    """The packs of an object directory, and nothing else of it."""

    def _opened(self) -> libgit2.Odb:
        odb = libgit2.Odb()
        odb.add_backend(libgit2.OdbBackendPack(str(self._directory)), 1)
        return odb


def _inflated(raw: Iterator[bytes]) -> Iterator[bytes]:
    inflater = zlib.decompressobj()
    for piece in raw:
        waiting = piece
        while waiting and not inflater.eof:
            yield inflater.decompress(waiting, 1 << 20)
            waiting = inflater.unconsumed_tail
