"""All clauses of the suite, and the page of the reference that lists them.

``python -m pytest_gittrix.conformance.base.catalogue > docs/reference/conformance.md`` regenerates the page.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import groupby
from types import ModuleType
from typing import Any, Final

from pytest_gittrix.conformance.base.clause import SETS, Clause, clause_of, families_by_letters
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.extensions import OURS, find, registered
from pytest_gittrix.testing.systems.protocol import BASE, EXTENDED, Capability

_FAMILIES: Final = "pytest_gittrix.conformance.families"

_CAPABILITIES = {
    Capability.DELETE: "the agent can delete files",
    Capability.DISCARD: "a person can end a session whose work is not wanted",
    Capability.COMMITS: "the agent can commit in its workspace",
    Capability.HUNKS: "single hunks can be promoted",
    Capability.STRATEGIES: "a promotion can land elsewhere than on the branch: `strategy=`",
    Capability.EXTEND: "a session can be given more time",
    Capability.RESUME: "sessions survive the engine that started them",
    Capability.SHELL: "the agent has a directory to run programs in",
    Capability.EVENTS: "the events of a session can be read",
    Capability.CLOCK: "times to live follow the clock of the place",
    Capability.ABSOLUTE: "sessions can have an absolute time to live",
    Capability.PROCESSES: "several processes may work on the same sessions",
    Capability.CRASH: "a killed process leaves nothing that a person has to repair",
    Capability.HISTORY: "events of a session can be recorded, announced and subscribed to",
    Capability.TURNS: "the agent's code can run concurrently with the program, and be interrupted",
    Capability.FORKS: "a session can begin as a copy of an earlier state of another one",
    Capability.LINES: "a session can be handed on, or have a successor after a crash; lineages of sessions can be queried",
    Capability.MEMBERS: "members of a team have sessions in workspaces of several repositories, and their work is saved when they end",
    Capability.STATUS: "the status of a session follows from observations of its agent, its runtime and its pull request",
    Capability.SIDE_WORK: "what an ended session held on branches of its own and in stashes can be had back",
    Capability.ARCHIVE: "the work of an ended session that was not promoted can be had back",
}

_HEAD = """\
# Conformance clauses

Each clause is one promise of a session system, and one test. Its code is stable and is never reused for another promise.
[Check your own session system](../how-to/check-your-own-session-system.md) explains how to run them.

## Levels

| level | reached when |
|---|---|
| `BASE` | every clause that needs no capability is kept |
| `EXTENDED` | all clauses are kept |

A waived clause counts as not kept. The report names no level if the run left out clauses.

## Capabilities

Every system has {base}.
It also declares which of the following capabilities it has.
A clause that needs an undeclared capability is skipped, and reported as not claimed.

| capability | means | clauses |
|---|---|---|
"""


@cache
def families() -> tuple[type[Any], ...]:
    """The classes that hold the clauses, in the order in which the families are registered.

    A family of another package that cannot be loaded is left out, with a RuntimeWarning.
    """
    import_module(_FAMILIES)  # which lets pytest explain the assertions of all of them
    return tuple(found for name in registered("clauses") for found in _loaded(name))


def _loaded(name: str) -> list[type[Any]]:
    try:
        return _families_of(find("clauses", name))
    except CapabilityMissing as problem:
        if name in OURS["clauses"]:
            raise
        warnings.warn(f"The clauses of the family {name} are missing: {problem.fact}", RuntimeWarning, stacklevel=4)
        return []


def family(letters: str) -> type[Any]:
    """The class that holds the clauses of one family, to be subclassed in a test module: ``class TestIsolation(family("ISO"))``.

    Args:
        letters: those that the codes of its clauses begin with.

    Raises:
        InvalidInput: there is no such family.
        CapabilityMissing: the package that registers it cannot be loaded.
    """
    import_module(_FAMILIES)
    return _families_of(find("clauses", letters.upper()))[0]


@cache
def all_clauses() -> tuple[Clause, ...]:
    """Every clause, by family and number."""
    tests = (test for family in families() for test in vars(family).values() if callable(test))
    return tuple(sorted((clause for test in tests if (clause := clause_of(test))), key=in_order))


def clauses_by_code() -> dict[str, Clause]:
    """Every clause, by its code."""
    return {clause.code: clause for clause in all_clauses()}


def in_order(clause: Clause) -> tuple[int, str]:
    """The key that sorts clauses as reports show them: by family in the order of registration, then by number."""
    names = [*registered("clauses")]
    return (names.index(clause.family) if clause.family in names else len(names), clause.code)


def page() -> str:
    """The page of the reference, as Markdown."""
    return "".join(_page())


def _page() -> Iterator[str]:
    clauses = all_clauses()
    yield _HEAD.format(base=", ".join(f"`{one}`" for one in Capability if one in BASE))
    for one in (one for one in Capability if one in EXTENDED):
        needing = ", ".join(clause.code for clause in clauses if one in clause.needs)
        yield f"| `{one}` | {_CAPABILITIES[one]} | {needing or 'none'} |\n"
    for family, members in groupby(clauses, key=lambda clause: clause.family):
        yield f"\n## {family}: {families_by_letters()[family]}\n\n| clause | promise | why | needs |\n|---|---|---|---|\n"
        for clause in members:
            needed = ", ".join(f"`{one}`" for one in sorted(clause.needs))
            yield f"| `{clause.code}` | {_cell(clause.promise)} | {_cell(clause.why)} | {needed} |\n"
    yield from _sets()


def _sets() -> Iterator[str]:
    yield "\n## Sets\n\n`gittrix conform --clauses` runs the clauses of one set, which stays as it is.\n\n| set | clauses |\n|---|---|\n"
    for name, last in SETS.items():
        yield f"| `{name}` | {', '.join(f'`{family}-01` to `{family}-{number:02}`' for family, number in last.items())} |\n"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _families_of(module: ModuleType) -> list[type[Any]]:
    own = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)
    return [one for one in own if any(map(clause_of, filter(callable, vars(one).values())))]


if __name__ == "__main__":
    print(page(), end="")
