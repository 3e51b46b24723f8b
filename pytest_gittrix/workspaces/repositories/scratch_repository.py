"""A bare scratch repository that reads other repositories' objects through alternates, so that git can examine them safely.

Git runs in the scratch repository, with a configuration that the engine wrote, and sees only the object directories of the other
repositories. Git would also run in those repositories, to list their references: ``core.alternateRefsCommand`` prevents that. Commits are
replayed in the scratch repository too, without a work tree.
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


@dataclass(frozen=True, slots=True)
class Touched:
    """A path that a commit added or changed.

    Attributes:
        path: the path. id, is_file: what the commit has there, and whether that is a file rather than a link or a submodule.
        old: the ids of the files that the parents have there.
    """

    path: str
    id: str
    is_file: bool
    old: tuple[str, ...]

    @classmethod
    def of(cls, about: bytes, path: str) -> Touched:
        """Read what git says before a path: a colon for each parent, the modes and the ids of these and of the commit, and letters."""
        fields = about.decode("ascii").lstrip(":").split()
        parents = len(about) - len(about.lstrip(b":"))
        modes, ids = fields[: parents + 1], fields[parents + 1 : 2 * parents + 2]
        old = tuple(id_ for mode, id_ in zip(modes[:-1], ids[:-1], strict=True) if mode.startswith("100"))
        return cls(path, ids[-1], modes[-1].startswith("100"), old)


@dataclass(frozen=True)
class ScratchRepository:
    """A scratch repository. Made by ``ScratchRepository.make``; the caller removes its directory.

    Attributes:
        path: its git directory.
        format: its object format.
        time_left: returns the seconds that the next git program may take; may raise if no time is left.
    """

    path: str
    format: ObjectFormat
    time_left: Callable[[], float]
    _written: dict[str, tuple[str, bytes]] = field(default_factory=dict, repr=False)

    @classmethod
    def make(
        cls, path: str, format_: ObjectFormat, alternates: Sequence[str], *, shallow: Collection[str] = (), time_left: Callable[[], float]
    ) -> ScratchRepository:
        """Create a scratch repository.

        Args:
            path: its directory, which does not exist yet.
            format_: its object format.
            alternates: the object directories to read from.
            shallow: commits whose parents are missing.
            time_left: see the class.
        """
        for name in ("objects/info", "objects/pack", "refs"):
            os.makedirs(os.path.join(path, name))
        extensions = "[extensions]\n\tobjectFormat = sha256\n" if format_ is SHA256 else ""
        core = f"[core]\n\trepositoryFormatVersion = {int(format_ is SHA256)}\n\tbare = true\n\talternateRefsCommand = :\n"
        write_new(os.path.join(path, "config"), (core + extensions).encode())
        write_new(os.path.join(path, "objects", "info", "alternates"), b"".join(os.fsencode(directory) + b"\n" for directory in alternates))
        if shallow:
            write_new(os.path.join(path, "shallow"), _lines(sorted(shallow)))
        write_new(os.path.join(path, "HEAD"), b"ref: refs/heads/none\n")
        return cls(path, format_, time_left)

    # Reading ---------------------------------------------------------------------------------------------------------------------

    @property
    def objects_dir(self) -> str:
        """Its own object directory."""
        return os.path.join(self.path, "objects")

    @cached_property
    def objects(self) -> Objects:
        """Reader of its own objects and those of its alternates."""
        return open_objects(Path(self.objects_dir), self.format)

    @cached_property
    def trees(self) -> Trees:
        """Parsed trees of these objects."""
        return Trees(self.objects)

    def commit(self, id_: str) -> Commit:
        """Read and parse a commit. Raises MissingObject."""
        return parse_commit(id_, self.objects.read(id_)[1])

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run git in this repository and return its standard output. Raises GitFailed."""
        return run_git(arguments, env=hermetic_env() | {"GIT_DIR": self.path}, stdin=stdin, timeout=self.time_left())

    def object_kinds(self, ids: Iterable[str]) -> dict[str, str]:
        """The kind of each of these objects that exists, by id."""
        request = _lines(ids)
        if not request:
            return {}
        fields = (line.split() for line in self.git("cat-file", "--batch-check", stdin=request).decode().splitlines())
        return {field[0]: field[1] for field in fields if len(field) == 3}

    def new_commits(self, tips: Iterable[str], known: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The commits that are reachable from ``tips`` and not from ``known``, newest first, each with its parents."""
        revisions = _lines([*tips, *(f"^{id_}" for id_ in known)])
        listed = self.git("rev-list", "--topo-order", "--parents", "--stdin", stdin=revisions).decode()
        return {commit: tuple(parents) for commit, *parents in map(str.split, listed.splitlines())}

    def leads_to(self, descendant: str, commit: str) -> bool:
        """Whether ``commit`` is ``descendant`` or an ancestor of it."""
        return not self.git("rev-list", "--max-count=1", commit, f"^{descendant}")

    def touched(self, commits: Iterable[str]) -> list[Touched]:
        """Every path that one of these commits added or changed; of a merge, those that differ from every parent."""
        options = ("--stdin", "--no-commit-id", "-r", "--root", "-c", "--no-renames", "--diff-filter=AMT", "--raw", "--no-abbrev", "-z")
        listed = iter(self.git("diff-tree", *options, stdin=_lines(commits)).split(b"\0"))
        return [Touched.of(about, os.fsdecode(next(listed))) for about in listed if about]

    def declare_complete(self, ids: Iterable[str]) -> None:
        """Write references to commits whose whole history is present, so that a fetch does not transfer it again."""
        refs = "".join(f"{id_} {_HAVE}{number}\n" for number, id_ in enumerate(sorted(set(ids))))
        write_new(os.path.join(self.path, "packed-refs"), f"# pack-refs with: sorted \n{refs}".encode())

    # Writing ---------------------------------------------------------------------------------------------------------------------

    def write(self, objects: Mapping[str, tuple[str, bytes]]) -> None:
        """Add objects (kind and data by id) to this repository. Raises OSError."""
        if objects:
            install_pack(self.objects_dir, build_pack(objects, self.format))

    def replay(self, tip: str, onto: str) -> str | None:
        """Rebase the commits that ``tip`` has and ``onto`` lacks onto ``onto``, as ``git rebase`` would.

        Author, committer, times and message stay, so that the same replay gives the same commits. A commit whose replay ``onto`` already
        contains is skipped.

        Returns:
            The new tip, which is ``onto`` if every commit was skipped. None if a person has to decide, or something would be lost: there
            is a conflict, a merge commit, a commit that would become empty, or no common history.
        """
        if git_version() < _MERGES_TREES:
            return None
        theirs = self.new_commits([onto], [tip])
        mine = self.new_commits([tip], [onto])
        if any(len(parents) != 1 for parents in mine.values()):
            return None
        known = {self._fingerprint(id_) for id_ in theirs}
        at, tree = onto, self.commit(onto).tree
        for id_ in reversed(mine):
            commit = self.commit(id_)
            before = self.commit(commit.parents[0]).tree
            merged = self._merge_trees(before, tree, commit.tree)
            if merged is None:
                return None
            if merged == tree and before != commit.tree:
                if self._fingerprint(id_) not in known:
                    return None
                continue
            at, tree = self._copy_commit(id_, merged, at), merged
        return at

    def _fingerprint(self, id_: str) -> bytes:
        """What identifies a commit before and after a replay: author, time and message."""
        head, _, message = self.objects.read(id_)[1].partition(b"\n\n")
        return next(line for line in head.split(b"\n") if line.startswith(b"author ")) + b"\n" + message

    def _merge_trees(self, base: str, ours: str, theirs: str) -> str | None:
        """The tree that results from a three-way merge; None if there is a conflict."""
        if base == ours or ours == theirs:
            return theirs
        # git merge-tree finds the merge base in the history, so the trees become commits with the base as common parent.
        root = self._synthetic_commit(base)
        left, right = self._synthetic_commit(ours, root), self._synthetic_commit(theirs, root)
        try:
            merged = self.git("merge-tree", "--write-tree", "--no-messages", left, right)
        except GitFailed:
            return None  # status 1 is a conflict; after any other failure nothing is merged either
        return merged.decode().split("\n", 1)[0].partition("\0")[0]

    def _synthetic_commit(self, tree: str, parent: str | None = None) -> str:
        parent_line = f"parent {parent}\n" if parent is not None else ""
        signature = "gittrix <gittrix@localhost> 0 +0000"
        return self._write_commit(f"tree {tree}\n{parent_line}author {signature}\ncommitter {signature}\n\n".encode())

    def _copy_commit(self, id_: str, tree: str, parent: str) -> str:
        """Write a copy of a commit with another tree and parent, without the signatures that would no longer hold."""
        head, _, message = self.objects.read(id_)[1].partition(b"\n\n")
        header = [b"tree " + tree.encode(), b"parent " + parent.encode()]
        dropping = False
        for line in head.split(b"\n"):
            dropping = line.startswith(_DROPPED) or (line.startswith(b" ") and dropping)
            if not dropping:
                header.append(line)
        return self._write_commit(b"\n".join(header) + b"\n\n" + message)

    def _write_commit(self, raw: bytes) -> str:
        id_ = self.format.hash_object("commit", raw)
        if id_ not in self._written:
            self._written[id_] = ("commit", raw)
            self.write({id_: ("commit", raw)})
        return id_

    def close(self) -> None:
        """Release descriptors and processes."""
        with suppress(KeyError):
            self.__dict__.pop("objects").close()


def _lines(items: Iterable[str]) -> bytes:
    return "".join(f"{item}\n" for item in items).encode()
