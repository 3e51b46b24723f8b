"""A bare repository of the engine's own that borrows the objects of others, so that git can be asked about them safely.

Git runs here, with a configuration that the engine wrote; of the repositories that it borrows from, it sees object directories only. Git
would also list their references, by running there: ``core.alternateRefsCommand`` stops that. Commits are replayed here too, without a
work tree. It must not know whose the objects are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import GitFailed
from pytest_gittrix.git.commit import Commit, parse_commit
from pytest_gittrix.git.environment import git_version, hermetic_env, run_git
from pytest_gittrix.git.objects import SHA256, ObjectFormat, Objects, Trees, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.os_level.files import write_new

_HAVE: Final = "refs/have/"
_MERGES_TREES: Final = (2, 38)
_DROPPED: Final = (b"tree ", b"parent ", b"gpgsig", b"mergetag")


@dataclass(frozen=True)
class Borrowing:
    """One such repository. Made by ``Borrowing.make``; its directory is the caller's to remove.

    Attributes:
        path: its git directory.
        format: its object format.
        left: gives the seconds that the next git program may take; may raise if there are none.
    """

    path: str
    format: ObjectFormat
    left: Callable[[], float]
    _written: dict[str, tuple[str, bytes]] = field(default_factory=dict, repr=False)

    @classmethod
    def make(
        cls, path: str, format_: ObjectFormat, lenders: Sequence[str], *, shallow: Collection[str] = (), left: Callable[[], float]
    ) -> Borrowing:
        """Make one.

        Args:
            path: its directory, which is not there yet.
            format_: its object format.
            lenders: the object directories that it borrows from.
            shallow: commits whose parents are left out.
            left: see the class.

        Raises:
            OSError: the disk refused.
        """
        for name in ("objects/info", "objects/pack", "refs"):
            os.makedirs(os.path.join(path, name))
        extensions = "[extensions]\n\tobjectFormat = sha256\n" if format_ is SHA256 else ""
        core = f"[core]\n\trepositoryFormatVersion = {int(format_ is SHA256)}\n\tbare = true\n\talternateRefsCommand = :\n"
        write_new(os.path.join(path, "config"), (core + extensions).encode())
        write_new(os.path.join(path, "objects", "info", "alternates"), b"".join(os.fsencode(lender) + b"\n" for lender in lenders))
        if shallow:
            write_new(os.path.join(path, "shallow"), "".join(f"{id_}\n" for id_ in sorted(shallow)).encode())
        write_new(os.path.join(path, "HEAD"), b"ref: refs/heads/none\n")
        return cls(path, format_, left)

    # Reading ---------------------------------------------------------------------------------------------------------------------

    @property
    def objects_dir(self) -> str:
        """Its own object directory."""
        return os.path.join(self.path, "objects")

    @cached_property
    def objects(self) -> Objects:
        """Reader of its objects and those it borrows."""
        return open_objects(Path(self.objects_dir), self.format)

    @cached_property
    def trees(self) -> Trees:
        """Their parsed trees."""
        return Trees(self.objects)

    def commit(self, id_: str) -> Commit:
        """A commit, parsed. Raises MissingObject."""
        return parse_commit(id_, self.objects.read(id_)[1])

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """What git answers here. Raises GitFailed."""
        return run_git(arguments, env=hermetic_env() | {"GIT_DIR": self.path}, stdin=stdin, timeout=self.left())

    def kinds(self, ids: Iterable[str]) -> dict[str, str]:
        """The kind of each of these objects that is there."""
        asked = "".join(f"{id_}\n" for id_ in ids).encode()
        if not asked:
            return {}
        lines = (line.split() for line in self.git("cat-file", "--batch-check", stdin=asked).decode().splitlines())
        return {line[0]: line[1] for line in lines if len(line) == 3}

    def new(self, tips: Iterable[str], known: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The commits that ``tips`` lead to and ``known`` do not, newest first, each with its parents."""
        asked = [*tips, *(f"^{id_}" for id_ in known)]
        answer = self.git("rev-list", "--topo-order", "--parents", "--stdin", stdin="".join(f"{line}\n" for line in asked).encode())
        return {line[0]: tuple(line[1:]) for line in map(str.split, answer.decode().splitlines())}

    def leads_to(self, descendant: str, commit: str) -> bool:
        """Whether ``commit`` is ``descendant`` or an ancestor of it."""
        return not self.git("rev-list", "--max-count=1", commit, f"^{descendant}")

    def touched(self, commits: Iterable[str]) -> set[str]:
        """Every path that one of these commits added or changed; of a merge, those that are as in none of its parents."""
        asked = "".join(f"{id_}\n" for id_ in commits).encode()
        options = ("--stdin", "--no-commit-id", "-r", "--root", "-c", "--no-renames", "--diff-filter=AMT", "--name-only", "-z")
        return {os.fsdecode(path) for path in self.git("diff-tree", *options, stdin=asked).split(b"\0") if path}

    def have(self, ids: Iterable[str]) -> None:
        """Note commits that are here with all their history, so that a fetch need not bring it."""
        lines = "".join(f"{id_} {_HAVE}{number}\n" for number, id_ in enumerate(sorted(set(ids))))
        write_new(os.path.join(self.path, "packed-refs"), f"# pack-refs with: sorted \n{lines}".encode())

    # Writing ---------------------------------------------------------------------------------------------------------------------

    def write(self, objects: Mapping[str, tuple[str, bytes]]) -> None:
        """Put objects (kind and data by id) here. Raises OSError."""
        if objects:
            install_pack(self.objects_dir, build_pack(objects, self.format))

    def replay(self, tip: str, onto: str) -> str | None:
        """What ``git rebase`` would make of the commits that ``tip`` has and ``onto`` has not: the new tip.

        Author, message, and the committer with the time stay, so that the same replay gives the same commits. A commit that ``onto`` has
        already, replayed, is left out; then there may be nothing left, and the answer is ``onto``.

        Returns:
            None if it cannot be done without somebody's judgement, or without losing something: a conflict, a merge, a commit that would
            become empty, histories that have nothing in common.
        """
        if git_version() < _MERGES_TREES:
            return None
        theirs = self.new([onto], [tip])
        mine = self.new([tip], [onto])
        if any(len(parents) != 1 for parents in mine.values()):
            return None
        known = {self._fingerprint(id_) for id_ in theirs}
        at, tree = onto, self.commit(onto).tree
        for id_ in reversed(mine):
            commit = self.commit(id_)
            before = self.commit(commit.parents[0]).tree
            merged = self._merged(before, tree, commit.tree)
            if merged is None:
                return None
            if merged == tree and before != commit.tree:
                if self._fingerprint(id_) not in known:
                    return None
                continue
            at, tree = self._copied(id_, merged, at), merged
        return at

    def _fingerprint(self, id_: str) -> bytes:
        """What stays of a commit when it is replayed, but for its change: author, time, message."""
        head, _, message = self.objects.read(id_)[1].partition(b"\n\n")
        return next(line for line in head.split(b"\n") if line.startswith(b"author ")) + b"\n" + message

    def _merged(self, base: str, ours: str, theirs: str) -> str | None:
        """The tree that three trees merge to; None if they do not."""
        if base == ours or ours == theirs:
            return theirs
        # Git finds the base of a merge by itself: commits are made for it of which it is plain.
        root = self._bare_commit(base)
        left, right = self._bare_commit(ours, root), self._bare_commit(theirs, root)
        try:
            merged = self.git("merge-tree", "--write-tree", "--no-messages", left, right)
        except GitFailed:
            return None  # a conflict is status 1, like nothing else that matters here: in doubt, nothing is merged
        return merged.decode().split("\n", 1)[0].partition("\0")[0]

    def _bare_commit(self, tree: str, parent: str | None = None) -> str:
        above = f"parent {parent}\n" if parent is not None else ""
        who = "gittrix <gittrix@localhost> 0 +0000"
        return self._commit(f"tree {tree}\n{above}author {who}\ncommitter {who}\n\n".encode())

    def _copied(self, id_: str, tree: str, parent: str) -> str:
        head, _, message = self.objects.read(id_)[1].partition(b"\n\n")
        kept: list[bytes] = []
        dropping = False
        for line in head.split(b"\n"):
            dropping = line.startswith(_DROPPED) or (line.startswith(b" ") and dropping)
            if not dropping:
                kept.append(line)
        lines = [b"tree " + tree.encode(), b"parent " + parent.encode(), *kept]
        return self._commit(b"\n".join(lines) + b"\n\n" + message)

    def _commit(self, raw: bytes) -> str:
        id_ = self.format.hash_object("commit", raw)
        if id_ not in self._written:
            self._written[id_] = ("commit", raw)
            self.write({id_: ("commit", raw)})
        return id_

    def close(self) -> None:
        """Give back descriptors and processes."""
        with suppress(KeyError):
            self.__dict__.pop("objects").close()
