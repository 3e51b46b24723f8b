"""Accounts for an agent's objects and commits: which of them something that stays leads to, and which only the agent's git leads to.

``Accounting`` is for a repository of its own, where every object is looked at. ``SharedHistory`` is for a linked work tree, whose
repository is durable: there the history of commits is walked, as far as that is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.objects import MissingObject, ObjectFormat, Objects, open_objects
from pytest_gittrix.git.refs import References
from pytest_gittrix.git.tree import DIRECTORY, SUBMODULE, parse_tree

FORGED = (MissingObject, ValueError, LookupError, OverflowError)
"""What reading an agent's object can raise: it can hold anything."""


class Accounting:
    """The objects of a repository that nothing accounts for yet.

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

    def holds(self, id_: str) -> bool:
        """Whether an object is not accounted for."""
        return id_ in self.left

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


class SharedHistory:
    """The commits of a repository that others share, as far as only some heads lead to them.

    Args:
        common_dir: the git directory of the repository.
        baseline: a commit that stays.
        format_: the object format.
        on_step: called for each commit that is read; may raise to end the reading.

    Attributes:
        commits: those that are found to be held, newest first of each head.
        edge: their parents that are not among them, with the parents of each; without the baseline.
    """

    def __init__(self, common_dir: str, baseline: str, format_: ObjectFormat, on_step: Callable[[], object]) -> None:
        self._common_dir, self._format, self._on_step = common_dir, format_, on_step
        self._stays = [baseline]
        self.commits: dict[str, None] = {}
        self._edge: dict[str, tuple[str, ...]] = {}

    @property
    def edge(self) -> dict[str, tuple[str, ...]]:
        """See the class."""
        return {id_: parents for id_, parents in self._edge.items() if id_ not in self.commits}

    def holds(self, id_: str) -> bool:
        """Whether a head leads to commits that nothing that stays leads to; these are in ``commits`` from then on."""
        more, border = self._since(id_)
        self.commits |= more
        self._edge |= border
        return bool(more)

    def cover(self, ids: Iterable[str]) -> None:
        """Account for commits, and for all that they lead to."""
        self._stays += ids

    def cover_references(self) -> None:
        """Account for all that the repository's references lead to."""
        self.cover(References(self._common_dir, self._format).below("refs/").values())

    @cached_property
    def objects(self) -> Objects:
        """The repository's objects, opened when one is needed."""
        return open_objects(Path(self._common_dir, "objects"), self._format)

    def close(self) -> None:
        """Release descriptors and processes."""
        if "objects" in vars(self):
            self.objects.close()

    def _since(self, head: str) -> tuple[dict[str, None], dict[str, tuple[str, ...]]]:
        """The commits that a head leads to and ``_stays`` does not, and their other parents, as ``git rev-list --boundary`` finds them.

        Both histories are read from the newest commit to the oldest, until all that is left to read is known. Dates that a clock or an
        agent set wrong make this read more, or return commits that are known as well; none is left out. The baseline counts as no parent.
        """
        known: Sequence[str] = self._stays
        parents: dict[str, tuple[str, ...]] = {}
        of_baseline = {*known}
        unread: list[tuple[int, bool, str]] = []
        undecided: set[str] = set()

        def read(id_: str) -> None:
            self._on_step()
            with suppress(*FORGED):
                commit = parse_commit(id_, self.objects.read(id_)[1])
                parents[id_] = commit.parents
                heappush(unread, (-commit.committer.seconds, id_ not in of_baseline, id_))  # at equal dates the baseline's come first
                if id_ not in of_baseline:
                    undecided.add(id_)

        for id_ in (*known, head):
            read(id_)
        found: list[str] = []
        while undecided:
            id_ = heappop(unread)[2]
            undecided.discard(id_)
            found.append(id_)
            if id_ in of_baseline:
                marked = list(parents[id_])
                while marked:
                    below = marked.pop()
                    if below not in of_baseline:
                        of_baseline.add(below)
                        undecided.discard(below)
                        marked += parents.get(below, ())
            for parent in parents[id_]:
                if parent not in parents:
                    read(parent)
        commits = dict.fromkeys(id_ for id_ in found if id_ not in of_baseline)
        beyond = {parent for id_ in commits for parent in parents[id_] if parent not in commits and parent != known[0]}
        return commits, {id_: parents[id_] for id_ in sorted(beyond) if id_ in parents}
