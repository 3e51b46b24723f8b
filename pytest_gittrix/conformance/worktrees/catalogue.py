"""All clauses of the worktree profile, and those of them that a person names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final

from pytest_gittrix.conformance.base.clause import SETS, of_set
from pytest_gittrix.conformance.worktrees.base.clause import FAMILY_TITLES, WorktreeClause
from pytest_gittrix.conformance.worktrees.clauses import crashes, create, finish, listing, merged, remove
from pytest_gittrix.errors import InvalidInput, did_you_mean

_HEAD: Final = """\
# Worktree clauses

What a manager of git worktrees must not lose. [Test your worktree tool](../how-to/test-your-worktree-tool.md) says how to run them.
A clause is claimed by tools that have its commands. Each code is stable, and is never given to another promise.

`WREM-26`, `WMRG-16`, `WNEW-20`, `WNEW-23` and `WTRU-04` count a plain `git worktree prune` as a loss: it drops the last name of commits in
a worktree that is not mounted.
`WSRV-04` needs `delete` and `finish` for all of its cases, although one case is about two creations alone. Where a command is wrong
even when it runs alone, `WSRV-03` and `WSRV-04` give no verdict, and say what was wrong.
"""
FAST: Final = ("WREM", "WMRG")
"""The families that lose the most work."""
_MODULES: Final = (remove, merged, finish, create, listing, crashes)


@lru_cache(maxsize=1)
def worktree_clauses() -> tuple[WorktreeClause, ...]:
    """All clauses of the profile, in the order of families and codes."""
    found = [one for module in _MODULES for one in vars(module).values() if isinstance(one, WorktreeClause)]
    order = [*FAMILY_TITLES]
    return tuple(sorted([*remove.OF_FORMS, *found], key=lambda one: (order.index(one.family), one.code)))


def select_worktree_clauses(words: Sequence[str] = ()) -> tuple[WorktreeClause, ...]:
    """The clauses that some words name, each a code or the letters of a family; all if there are none. The name of a set, such as
    ``2026.1``, leaves out what is not in it.

    Raises:
        InvalidInput: there is no such family or clause.
    """
    every = worktree_clauses()
    sets = [word for word in words if word in SETS]
    wanted = {*map(str.upper, words)} - {*sets}
    known = {*FAMILY_TITLES, *(one.code for one in every)}
    for word in wanted - known:
        raise InvalidInput(
            f"{word!r} is no clause, family or set of the worktree profile.",
            fix=f"{did_you_mean(word, sorted(known))}The families are {', '.join(FAMILY_TITLES)}, the sets {', '.join(SETS)}; "
            "`--list` lists all clauses.",
        )
    chosen = [one for one in every if not wanted or not wanted.isdisjoint({one.family, one.code})]
    for name in sets:
        chosen = of_set(chosen, name)
    return tuple(chosen)


def page() -> str:
    """The page of the reference, as Markdown."""
    return "".join(_page())


def _page() -> Iterator[str]:
    yield _HEAD
    for family, members in groupby(worktree_clauses(), key=lambda one: one.family):
        yield f"\n## {family}: {FAMILY_TITLES[family]}\n\n| clause | promise | why | needs |\n|---|---|---|---|\n"
        for one in members:
            needed = [*(f"`{command}`" for command in one.needs), *(["a remote"] if one.remote else [])]
            yield f"| `{one.code}` | {one.promise} | Otherwise {one.why}. | {', '.join(needed)} |\n"


if __name__ == "__main__":
    print(page(), end="")
