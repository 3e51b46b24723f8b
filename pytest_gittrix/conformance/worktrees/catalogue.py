"""All clauses of the worktree profile, and those of them that a person names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from pytest_gittrix.conformance.worktrees.base.clause import FAMILY_TITLES, WorktreeClause
from pytest_gittrix.conformance.worktrees.clauses import crashes, create, finish, listing, merged, remove
from pytest_gittrix.errors import InvalidInput, did_you_mean

_MODULES: Final = (remove, merged, finish, create, listing, crashes)


@lru_cache(maxsize=1)
def worktree_clauses() -> tuple[WorktreeClause, ...]:
    """All clauses of the profile, in the order of families and codes."""
    found = [one for module in _MODULES for one in vars(module).values() if isinstance(one, WorktreeClause)]
    order = [*FAMILY_TITLES]
    return tuple(sorted([*remove.OF_FORMS, *found], key=lambda one: (order.index(one.family), one.code)))


def select_worktree_clauses(families: Sequence[str] = (), codes: Sequence[str] = ()) -> tuple[WorktreeClause, ...]:
    """The clauses of some families and those with some codes; all if neither is given.

    Raises:
        InvalidInput: there is no such family or clause.
    """
    every = worktree_clauses()
    wanted = {*map(str.upper, families), *map(str.upper, codes)}
    known = {*FAMILY_TITLES, *(one.code for one in every)}
    for word in wanted - known:
        raise InvalidInput(
            f"{word!r} is no clause or family of the worktree profile.",
            fix=f"{did_you_mean(word, known)}The families are {', '.join(FAMILY_TITLES)}; `--list` lists all clauses.",
        )
    return tuple(one for one in every if not wanted or not wanted.isdisjoint({one.family, one.code}))
