"""Files, changes of files, and what a person does to durable, as plain values that a strategy draws and a test prints.

Pure: they know no disk and draw nothing. ``strategies`` makes them, ``model`` calculates with them, and ``DurableEdit.make`` plays one on
a real repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from pytest_gittrix.git.commit import Commit
from pytest_gittrix.git.tree import parents
from pytest_gittrix.testing.repos.history import Content, Contents

DurableKind = Literal[
    "overlap",
    "disjoint",
    "rename-away",
    "rename-onto",
    "delete/modify",
    "modify/delete",
    "directory/file",
    "mode",
    "symlink",
    "case-only",
    "same-content",
    "revert-to-baseline",
    "rewind",
    "dirty",
    "staged",
]
"""What a person can do to durable behind a session's back; see ``strategies.durable_edits``."""

DURABLE_KINDS: tuple[DurableKind, ...] = get_args(DurableKind)


class Plain:
    """A value that pretty printers, Hypothesis' among them, show as its own short ``repr``."""

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Plain, Mapping[str, Content]):
    """Files by path, as a commit or a workspace holds them; fit for ``World.open(files=...)``. No path is a directory of another."""

    files: Mapping[str, Content]

    def __getitem__(self, path: str) -> Content:
        return self.files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"Tree({dict(self.files)!r})"

    def apply(self, edits: Contents) -> Tree:
        """The tree that the edits make of this one. Raises ValueError if a path would be both a file and a directory."""
        files = {path: content for path, content in {**self.files, **edits}.items() if content is not None}
        for path in files:
            if not files.keys().isdisjoint(parents(path)):
                raise ValueError(f"{path!r} stands below a file")
        return Tree(dict(sorted(files.items())))

    def made_by(self, edits: Contents) -> Tree:
        """What the edits make of this tree whether they fit or not: each takes away what is in its way, or deletes what is there."""
        tree = self
        for path, content in edits.items():
            tree = tree.apply({path: None} if content is None else tree.placing(path, content))
        return tree

    def to(self, other: Mapping[str, Content]) -> Edits:
        """The edits that make another tree of this one: their difference, no rename guessing."""
        return Edits({path: other.get(path) for path in sorted(self.keys() | other.keys()) if self.get(path) != other.get(path)})

    def placing(self, path: str, content: Content) -> Edits:
        """The edits that put a file at a path and take away what is in its way: files that would be its directories, and files below it."""
        way = [other for other in self.files if path.startswith(other + "/") or other.startswith(path + "/")]
        return Edits({**dict.fromkeys(way), path: content})


@dataclass(frozen=True, eq=False, repr=False)
class Edits(Plain, Mapping[str, Content | None]):
    """New contents by path, None to delete; fit for ``DurableRepo.commit``."""

    changes: Contents

    def __getitem__(self, path: str) -> Content | None:
        return self.changes[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __repr__(self) -> str:
        return f"Edits({dict(self.changes)!r})"

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that change, sorted."""
        return tuple(sorted(self.changes))

    def only(self, paths: Iterable[str]) -> Edits:
        """The edits of some paths."""
        return Edits({path: self.changes[path] for path in paths})


class Repository(Protocol):
    """What ``DurableEdit.make`` asks of a repository: ``DurableRepo`` and ``Rival`` have it."""

    def commit(self, changes: Contents, message: str | None = None, /) -> str:
        """Commit to the branch."""

    def rewind(self, sha: str, /) -> None:
        """Move the branch."""

    def dirty(self, changes: Contents, /) -> None:
        """Change files of the work tree."""

    def stage(self, changes: Contents, /) -> None:
        """Change files of the work tree and stage them."""

    def git(self, *arguments: str) -> str:
        """Run git there."""

    def log(self, at: str, /) -> Sequence[Commit]:
        """Commits, newest first."""

    def head(self) -> str:
        """The commit the branch is at."""


@dataclass(frozen=True)
class DurableEdit(Plain):
    """What a person does to durable, in one go. Drawn by ``strategies.durable_edits``.

    Attributes:
        kind: what it is meant to be; the tests' statistics count it.
        commits: what each commit changes, oldest first.
        rewrite: the commits replace the head instead of following it, as ``git commit --amend`` and a forced push do.
        dirty: files changed in the work tree and not committed.
        staged: files changed in the work tree and staged.
    """

    kind: DurableKind
    commits: tuple[Edits, ...] = ()
    rewrite: bool = False
    dirty: Edits | None = None
    staged: Edits | None = None

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name in ("commits", "rewrite", "dirty", "staged") if (value := getattr(self, name))]
        return f"DurableEdit({', '.join([repr(self.kind), *parts])})"

    def tree_after(self, tree: Tree) -> Tree:
        """What the branch holds afterwards, if it held ``tree``."""
        for edits in self.commits:
            tree = tree.apply(edits)
        return tree

    def make(self, repository: Repository) -> list[str]:
        """Do it; gives the new commits that are on the branch, oldest first.

        Raises:
            InvalidInput: it does not fit on what the repository holds.
            CapabilityMissing: work tree edits of a bare repository.
        """
        before = repository.head()
        made = [repository.commit(edits, f"{self.kind}: {', '.join(map(ascii, edits.paths))}") for edits in self.commits]
        if self.rewrite:
            made = [_replanted(repository, before, made[-1] if made else before)]
            repository.rewind(made[0])
        if self.dirty:
            repository.dirty(self.dirty)
        if self.staged:
            repository.stage(self.staged)
        return made


def _replanted(repository: Repository, before: str, tree: str) -> str:
    """A commit of the same files as ``tree`` that stands where ``before`` stands: on that commit's own parents."""
    placed = [argument for parent in repository.log(before)[0].parents for argument in ("-p", parent)]
    return repository.git("commit-tree", f"{tree}^{{tree}}", *placed, "-m", "History, written anew")
