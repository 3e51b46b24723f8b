"""Reads what the git of a workspace tracks: its index and its HEAD, as plain files that hold hostile data."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Container, Iterator
from functools import cached_property
from itertools import islice
from typing import Final, Protocol

from pytest_gittrix.errors import GittrixError, InvalidInput, UnsupportedRepository
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import ObjectFormat, Trees
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.tree import DIRECTORY, ReadTree, lookup
from pytest_gittrix.os_level.open_below import tolerating_shape
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.repositories.agent_objects import AgentObjects

_LARGEST_INDEX: Final = 256 << 20
_LARGEST_TEXT: Final = 1 << 20
_LARGEST_PACKED: Final = 64 << 20
_MOST_PATHS: Final = 100_000


class Baseline(Protocol):
    """What a repository began with."""

    @property
    def commit(self) -> str:
        """The commit."""

    @property
    def format(self) -> ObjectFormat:
        """Its object format."""

    @property
    def entries(self) -> Container[str]:
        """Its paths."""

    @property
    def index(self) -> bytes:
        """The index that the repository was made with."""


def read_head(git_dir: str, common_dir: str, format_: ObjectFormat) -> tuple[str | None, str | None]:
    """The branch, as a full reference, and the commit that HEAD is at, as far as plain files say; either may be None.

    Args:
        git_dir: the directory with HEAD.
        common_dir: the directory with the references; the same one, but for a linked work tree.
        format_: the object format.

    Raises:
        GittrixError: the system refused to read a file; what the agent broke is passed over.
    """
    id_ = re.compile(rf"[0-9a-f]{{{format_.hex_size}}}")
    head = _text(git_dir, "HEAD", _LARGEST_TEXT)
    if not head.startswith("ref:"):
        return None, head if id_.fullmatch(head) else None
    try:
        ref = branch_ref(head.removeprefix("ref:").strip())
    except InvalidInput:
        return None, None
    loose = _text(common_dir, ref, _LARGEST_TEXT)
    if loose:
        return ref, loose if id_.fullmatch(loose) else None
    packed = re.search(rf"^({id_.pattern}) {re.escape(ref)}$", _text(common_dir, "packed-refs", _LARGEST_PACKED), re.MULTILINE)
    return ref, packed[1] if packed else None


def _text(directory: str, path: str, limit: int) -> str:
    """The text of a file; empty if it is not there, or not a plain file."""
    return os.fsdecode(_bytes(directory, path, limit)).strip()


def _bytes(directory: str, path: str, limit: int) -> bytes:
    with tolerating_shape(), SafeDir.open(directory) as git:
        return git.read(path, max_bytes=limit)[0]
    return b""


class AgentGit:
    """What the git of a workspace says of files that the baseline does not have, read when somebody asks for the first time.

    Args:
        git_dir: its git directory, which need not be there.
        common_dir: the same one, or for a linked work tree the git directory of durable.
        baseline: the baseline that it was made from.
    """

    def __init__(self, git_dir: str, common_dir: str, baseline: Baseline) -> None:
        self._git_dir, self._common_dir, self._baseline = git_dir, common_dir, baseline

    @cached_property
    def exclude(self) -> bytes:
        """Contents of its ``info/exclude``; empty if there is none."""
        return self._bytes(self._common_dir, "info/exclude", _LARGEST_TEXT)

    @staticmethod
    def _bytes(directory: str, path: str, limit: int) -> bytes:
        """The bytes of a file; none if the agent took away the right to read it."""
        try:
            return _bytes(directory, path, limit)
        except GittrixError as problem:
            if isinstance(problem.__cause__, PermissionError):
                return b""
            raise

    @cached_property
    def _index(self) -> IndexFile | None:
        """Its index; None if nothing was staged since the workspace was made, or only git can read it."""
        data = self._bytes(self._git_dir, "index", _LARGEST_INDEX)
        if not data or data == self._baseline.index:
            return None
        try:
            return IndexFile(data, self._baseline.format)
        except (UnsupportedRepository, ValueError, IndexError):
            return None

    @cached_property
    def _head(self) -> tuple[ReadTree, str] | None:
        """The root tree of its HEAD and a reader of trees; None if that is the baseline, or cannot be read."""
        try:
            commit = read_head(self._git_dir, self._common_dir, self._baseline.format)[1]
            if commit is None or commit == self._baseline.commit:
                return None
            objects = AgentObjects(os.path.join(self._common_dir, "objects"), self._baseline.format)
            return Trees(objects).read, parse_commit(commit, objects.read(commit)[1]).tree
        except (GittrixError, LookupError, ValueError, OSError):
            return None

    def tracked_at(self, path: str, *, directory: bool) -> Collection[str]:
        """The tracked paths that the baseline does not have: the path itself, or those below the directory."""
        found: set[str] = set()
        if self._index is not None:
            found |= {*self._index.below(path)} if directory else {path} if self._index.entries(path) else set()
        if self._head is not None:
            found |= self._committed_at(*self._head, path, directory=directory)
        return [one for one in found if one not in self._baseline.entries]

    def _committed_at(self, read_tree: ReadTree, root: str, path: str, *, directory: bool) -> set[str]:
        try:
            item = lookup(read_tree, root, path)
            if item is None or (item[0] == DIRECTORY) != directory:
                return set()
            return {*islice(_paths_below(read_tree, item[1], f"{path}/"), _MOST_PATHS)} if directory else {path}
        except (GittrixError, LookupError, ValueError):  # what its trees hold can be anything
            return set()


def _paths_below(read_tree: ReadTree, root: str, prefix: str) -> Iterator[str]:
    """The paths of what a tree holds, one by one: a few small trees that hold one another can stand for billions."""
    pending = [(prefix, root)]
    while pending:
        above, tree = pending.pop()
        for name, (mode, id_) in read_tree(tree).items():
            if mode == DIRECTORY:
                pending.append((f"{above}{os.fsdecode(name)}/", id_))
            else:
                yield above + os.fsdecode(name)
