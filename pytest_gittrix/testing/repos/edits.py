"""Files, changes of files, and a person's edits of durable, as plain values that a strategy draws and a test prints.

The module ``strategies`` draws them, ``session_model`` calculates with them, and ``DurableEdit.make`` applies one to a real repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pytest_gittrix.git.tree import parents
from pytest_gittrix.testing.repos.history import Content, Contents

if TYPE_CHECKING:
    from pytest_gittrix.testing.repos.durable import DurableRepo

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
    """A value that pretty printers, such as Hypothesis', show as its short ``repr``."""

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Plain, Mapping[str, Content]):
    """Files by path, as in a commit or a workspace; accepted by ``World.open(files=...)``. No path is a directory of another."""

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
        """Return the tree after the edits. Raises ValueError if a path would be both a file and a directory."""
        files = {path: content for path, content in {**self.files, **edits}.items() if content is not None}
        for path in files:
            if not files.keys().isdisjoint(parents(path)):
                raise ValueError(f"{path!r} is below a file")
        return Tree(dict(sorted(files.items())))

    def made_by(self, edits: Contents) -> Tree:
        """Return the tree after the edits, also if they do not fit: each edit removes the files that are in its way."""
        tree = self
        for path, content in edits.items():
            tree = tree.apply({path: None} if content is None else tree.placing(path, content))
        return tree

    def to(self, other: Mapping[str, Content]) -> Edits:
        """Return the edits that turn this tree into another one: their difference, without detecting renames."""
        return Edits({path: other.get(path) for path in sorted(self.keys() | other.keys()) if self.get(path) != other.get(path)})

    def placing(self, path: str, content: Content) -> Edits:
        """Return the edits that put a file at a path and remove what is in its way: files at its directories, and files below it."""
        in_the_way = [other for other in self.files if path.startswith(other + "/") or other.startswith(path + "/")]
        return Edits({**dict.fromkeys(in_the_way), path: content})


@dataclass(frozen=True, eq=False, repr=False)
class Edits(Plain, Mapping[str, Content | None]):
    """New contents by path, None to delete; accepted by ``DurableRepo.commit``."""

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
        """Return the edits of some paths only."""
        return Edits({path: self.changes[path] for path in paths})


@dataclass(frozen=True)
class DurableEdit(Plain):
    """What a person does to durable at once. Drawn by ``strategies.durable_edits``.

    Attributes:
        kind: the kind that was drawn; the tests' statistics count it.
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
        """Return what the branch holds afterwards, if it held ``tree``."""
        for edits in self.commits:
            tree = tree.apply(edits)
        return tree

    def make(self, repository: DurableRepo) -> list[str]:
        """Apply the edit to a repository.

        Returns:
            The new commits that are on the branch, oldest first.

        Raises:
            InvalidInput: the edit does not fit on what the repository holds.
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


def _replanted(repository: DurableRepo, before: str, tree: str) -> str:
    """Commit the files of ``tree`` on the parents of ``before``; return the commit."""
    parents_of = [argument for parent in repository.log(before)[0].parents for argument in ("-p", parent)]
    return repository.git("commit-tree", f"{tree}^{{tree}}", *parents_of, "-m", "Rewritten history")
