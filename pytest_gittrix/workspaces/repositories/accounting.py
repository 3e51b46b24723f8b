"""Accounts for the objects of an agent's repository: which of them something that stays leads to, and which nothing leads to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.objects import Objects
from pytest_gittrix.git.tree import DIRECTORY, SUBMODULE, parse_tree


class Accounting:
    """The objects of a repository that nobody has accounted for yet.

    Args:
        own: the ids of the objects that only this repository is known to have.
        objects: reads them.
        on_step: called for each object that is read; may raise to end the reading.

    Attributes:
        left: those that are not accounted for.
        damaged: those that something leads to and that cannot be read.
    """

    def __init__(self, own: Iterable[str], objects: Objects, on_step: Callable[[], object] = lambda: None) -> None:
        self.left = set(own)
        self.damaged: set[str] = set()
        self._objects, self._on_step = objects, on_step

    def cover(self, ids: Iterable[str]) -> None:
        """Account for objects, and for all that they lead to."""
        pending = [id_ for id_ in ids if id_ in self.left]
        while pending:
            id_ = pending.pop()
            if id_ in self.left:
                self.left.discard(id_)
                below, contents = self._links(id_)
                self.left.difference_update(contents)
                pending += [one for one in below if one in self.left]

    def roots(self) -> list[str]:
        """Those of ``left`` that no other of them leads to, sorted."""
        linked: set[str] = set()
        for id_ in self.left:
            linked.update(*self._links(id_))
        return sorted(self.left - linked)

    def kind(self, id_: str) -> str:
        """The kind of an object; empty if it cannot be read."""
        try:
            return self._objects.header(id_)[0]
        except GittrixError:
            self.damaged.add(id_)
            return ""

    def _links(self, id_: str) -> tuple[list[str], list[str]]:
        """The commits, trees and tags that an object names, and the contents of files, which name nothing themselves."""
        self._on_step()
        kind = self.kind(id_)
        if kind in ("blob", ""):
            return [], []
        try:
            data = self._objects.read(id_)[1]
            if kind == "tree":
                items = parse_tree(data, self._objects.format.size).values()
                return [item for mode, item in items if mode == DIRECTORY], [
                    item for mode, item in items if mode not in (DIRECTORY, SUBMODULE)
                ]
            if kind == "tag":
                return [line.split()[1].decode() for line in data.split(b"\n\n", 1)[0].splitlines() if line.startswith(b"object ")], []
            commit = parse_commit(id_, data)
            return [commit.tree, *commit.parents], []
        except (GittrixError, LookupError, ValueError, OverflowError):  # what an agent's objects hold can be anything
            self.damaged.add(id_)
            return [], []
