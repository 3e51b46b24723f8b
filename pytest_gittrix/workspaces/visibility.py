"""Decides which untracked files of a workspace are work: everything that looks at a workspace asks here (decision 006).

There are two sets of ignore rules: those of the baseline, which no agent can change, and those of the workspace as they are now. A file
that either set shows is work. So is one that the agent's own git tracks, as after ``git add --force``, and one that was named: written
through the session, or selected. A file that only the workspace's rules ignore is withheld: it is touched, but a promotion of everything
leaves it out, and says so. So is one that the start included from durable's checkout (``provided``), whatever shows it, unless it is named.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, MutableMapping
from functools import cached_property
from typing import Literal, Protocol, cast

from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.tree import parents

Standing = Literal["work", "withheld", "ignored"]
"""What becomes of an untracked file: it is work, it is withheld from a promotion of everything, or both sets of rules ignore it."""


class WorkspaceGit(Protocol):
    """What the git of a workspace says of its untracked files."""

    @property
    def exclude(self) -> bytes:
        """Contents of its ``info/exclude``."""

    def tracked_at(self, path: str, *, directory: bool) -> Collection[str]:
        """The tracked paths that the baseline does not have: the path itself, or those below the directory."""


class Visibility:
    """The standing of the untracked files of one workspace. A caller asks for a directory before it asks for what is in it.

    Args:
        baseline: the rules of the baseline.
        named: paths that are work whatever the rules say.
        git: the workspace's git.
        included: says of a path whether it is one that was included from durable's checkout.
    """

    def __init__(self, baseline: Ignore, named: Collection[str], git: WorkspaceGit, included: Callable[[str], bool]) -> None:
        self._baseline, self._git, self._included = baseline, git, included
        self._named = set(named)
        self._above_named = {parent for path in named for parent in parents(path)}
        self._changed: dict[str, bytes] = {}
        self._untracked: set[str] = set()

    def read_rules(self, directory: str, rules: bytes) -> None:
        """Take over the contents of a ``.gitignore`` of the workspace, empty for one that is gone, before anything in its directory."""
        if rules != self._baseline.sources.get(directory, b""):
            self._changed[directory] = rules

    @cached_property
    def _present(self) -> Ignore:
        """The rules of the workspace as they are now."""
        unchanged = cast("MutableMapping[str, bytes]", self._baseline.sources)  # a chain changes its first mapping alone
        return Ignore(ChainMap(self._changed, unchanged), self._git.exclude)

    def standing(self, path: str, *, directory: bool = False) -> Standing:
        """The standing of an untracked path. A directory that is work can hold files that are not."""
        if path in self._named or (directory and path in self._above_named):
            return "work"
        was_hidden = self._baseline.ignored(path, directory=directory)
        is_hidden = self._present.ignored(path, directory=directory) if self._changed or self._git.exclude else was_hidden
        if not is_hidden or self._is_tracked(path, directory):
            return "withheld" if not directory and self._included(path) else "work"
        return "ignored" if was_hidden else "withheld"

    def _is_tracked(self, path: str, directory: bool) -> bool:
        """Whether the agent's git tracks a path, or something below a directory; what it tracks is named from then on."""
        if path.rpartition("/")[0] in self._untracked:
            tracked: Collection[str] = ()
        else:
            tracked = self._git.tracked_at(path, directory=directory)
        if not tracked:
            if directory:
                self._untracked.add(path)
            return False
        self._named.update(tracked)
        self._above_named.update(parent for one in tracked for parent in parents(one))
        return True


def sized(path: str, files: int, size: int) -> str:
    """A path with its size for people; that of a directory, which ends in ``/``, with the number of its files."""
    count = f"{files} file{'' if files == 1 else 's'}, " if path.endswith("/") else ""
    return f"{path!r} ({count}{size} byte{'' if size == 1 else 's'})"
