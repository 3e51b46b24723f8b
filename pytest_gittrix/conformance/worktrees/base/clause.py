"""A clause of the worktree profile: one promise, the commands that it needs, and the function that judges it in a world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool
from pytest_gittrix.conformance.worktrees.base.world import ToolWorld

FAMILY_TITLES: Final[Mapping[str, str]] = {
    "WREM": "removing keeps unfinished work",
    "WMRG": "what counts as finished",
    "WFIN": "finishing",
    "WNEW": "creating",
    "WTRU": "the list",
    "WSRV": "crashes and races",
}
"""The titles of the families of worktree clauses, by the letters that their codes begin with."""

Verdict: TypeAlias = Literal["kept", "broken", "as git", "documented", "waived", "not claimed", "no verdict"]
Judge: TypeAlias = Callable[[ToolWorld, str], None]
Search: TypeAlias = Literal["", "crash", "race"]
Applies: TypeAlias = Callable[[WorktreeTool], bool]


@dataclass(frozen=True)
class WorktreeClause:
    """One promise of a manager of worktrees.

    Attributes:
        code: such as ``WREM-03``; never given to another promise.
        promise: the promise, in a few words.
        why: what happens to people where it is broken.
        needs: the commands that a tool must have to claim it.
        controls: the commands that must first be seen to work on finished work; without that there is no verdict.
        judge: puts the tool to one case in a world; raises PromiseBroken or NoVerdict.
        cases: the names of the cases; one without a name by default.
        remote: whether the world needs a remote.
        applies: whether a tool that has the commands claims the promise.
        searches: what each case searches for as long as the user's seconds last: a ``crash``, a ``race``, or nothing.
    """

    code: str
    promise: str
    why: str
    needs: tuple[str, ...]
    controls: tuple[str, ...]
    judge: Judge
    cases: tuple[str, ...] = ("",)
    remote: bool = False
    applies: Applies = lambda _tool: True
    searches: Search = ""

    @property
    def family(self) -> str:
        """The letters that the code begins with."""
        return self.code[:4]

    def claimed_by(self, tool: WorktreeTool) -> bool:
        """Whether a tool has what the clause is about."""
        return all(tool.has(command) for command in self.needs) and self.applies(tool)


def clause(
    code: str,
    promise: str,
    why: str,
    *needs: str,
    cases: tuple[str, ...] = ("",),
    remote: bool = False,
    applies: Applies = lambda _tool: True,
    controls: tuple[str, ...] | None = None,
    searches: Search = "",
) -> Callable[[Judge], WorktreeClause]:
    """Make a clause of the function that judges it.

    The arguments are the attributes of WorktreeClause. Every clause needs ``create``. The controls are all the commands that it needs, by
    default.
    """
    needed = ("create", *needs)

    def make(judge: Judge) -> WorktreeClause:
        return WorktreeClause(code, promise, why, needed, needed if controls is None else controls, judge, cases, remote, applies, searches)

    return make


def named(tool: WorktreeTool) -> bool:
    """Whether a tool takes the names of worktrees from its caller."""
    return not tool.unnamed


def works_anywhere(tool: WorktreeTool) -> bool:
    """Whether a tool works on whatever repository it is started in; one that is started elsewhere, or moves the main checkout, does not."""
    return not tool.main and tool.cwd in ("repo", "worktree")
