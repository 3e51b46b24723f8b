"""Grades the untracked files of a worktree: those that can be made again, and links to other places, would not be lost with it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.tree import parents
from pytest_gittrix.workspaces.regenerable import MARKS, Regenerable

SETTINGS: Final = ".gittrix-unfinished"
"""A file of gitignore patterns at the root of a repository: what can be made again, and with ``!`` what cannot."""
_AGAIN: Final = "can be made again"
_LINK: Final = "a link to another place"


@dataclass(frozen=True)
class FileGrades:
    """Judges untracked paths of a worktree.

    Attributes:
        root: the worktree, or a submodule in it.
        regenerable: what can be made again; None to count everything as work.
    """

    root: str
    regenerable: Regenerable | None

    @classmethod
    def strict(cls, root: str) -> FileGrades:
        """One for which everything is work."""
        return cls(root, None)

    @classmethod
    def of(cls, root: str, tree: libgit2.Tree | None, keep: Collection[str]) -> FileGrades:
        """One with the settings of a repository.

        Args:
            root: the worktree.
            tree: the tree with ``.gittrix-unfinished`` and ``pyproject.toml``; None without one.
            keep: patterns of paths that are work in any case.

        Raises:
            InvalidInput: ``tool.gittrix.unfinished`` in pyproject.toml is no list of patterns.
        """
        own = [] if tree is None else [*_pyproject(tree), *_text(tree, SETTINGS).splitlines()]
        return cls(root, Regenerable([*own, *(f"!{pattern}" for pattern in keep)]))

    def below(self, root: str) -> FileGrades:
        """The same for a submodule."""
        return replace(self, root=root)

    def is_made_again(self, path: str) -> bool:
        """Whether a whole directory can be made again, by its name or by the mark of a program."""
        directory = path.rstrip("/")
        if self.regenerable is None:
            return False
        if self.regenerable.covers(directory, directory=True):
            return True
        return any(_begins(os.path.join(self.root, directory, name), start) for name, start in MARKS.items())

    def judge(self, path: str) -> tuple[int | None, Sequence[tuple[str, str]]]:
        """Judge an untracked path; that of a directory ends in ``/``.

        Returns:
            The bytes that would be lost, None if nothing would be; and what would not be lost, each with the reason.
        """
        if self.regenerable is not None and path.endswith("/") and self.is_made_again(path):
            return None, [(path, _AGAIN)]
        whole = os.path.join(self.root, path)
        files = [*files_below(whole)] if path.endswith("/") and not os.path.islink(whole.rstrip("/")) else [whole.rstrip("/")]
        lost: int | None = None
        noted: dict[tuple[str, str], None] = {}
        for file in files:
            name = os.path.relpath(file, self.root)
            why = self._reason(name)
            if why is None:
                lost = (lost or 0) + os.lstat(file).st_size
            else:
                noted[self._uppermost(name) if why == _AGAIN else name, why] = None
        if not files:
            lost = None if path.endswith("/") and self.regenerable is not None else 0
        return lost, [*noted]

    def _reason(self, path: str) -> str | None:
        """Why a file would not be lost; None if it would be."""
        if self.regenerable is None:
            return None
        if self.regenerable.covers(path):
            return _AGAIN
        whole = os.path.join(self.root, path)
        if os.path.islink(whole) and not f"{os.path.realpath(whole)}/".startswith(f"{self.root}/"):
            return _LINK
        return None

    def _uppermost(self, path: str) -> str:
        """The uppermost directory of a path that can be made again whole; the path itself if there is none."""
        assert self.regenerable is not None
        return next((f"{above}/" for above in parents(path) if self.regenerable.covers(above, directory=True)), path)


def files_below(directory: str) -> Iterator[str]:
    """As ``agent_repository.files_below``, which is dear to load, and most worktrees do without."""
    from pytest_gittrix.workspaces.repositories.agent_repository import files_below

    return files_below(directory)


def repositories_below(directory: str) -> Sequence[str]:
    """As ``agent_repository.find_repositories``; none where there is no such directory."""
    if not os.path.isdir(directory):
        return ()
    from pytest_gittrix.workspaces.repositories.agent_repository import find_repositories

    return find_repositories(directory)


def _begins(path: str, start: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def _text(tree: libgit2.Tree, name: str) -> str:
    with suppress(KeyError, AttributeError):
        return bytes(tree[name].data).decode(errors="surrogateescape")
    return ""


def _pyproject(tree: libgit2.Tree) -> list[str]:
    try:
        found = tomllib.loads(_text(tree, "pyproject.toml")).get("tool", {}).get("gittrix", {}).get("unfinished", [])
    except (tomllib.TOMLDecodeError, AttributeError):
        return []  # somebody else's tool will say so
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return found
    raise InvalidInput(
        "tool.gittrix.unfinished in pyproject.toml is no list of patterns.",
        why="It says which ignored files can be made again.",
        fix='Write a list of texts, such as ["build/", "!.cache/"].',
    )
