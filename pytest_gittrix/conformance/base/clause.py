"""A clause: one promise of a session system, as one test with a stable code.

A clause is a method ``test_<family>_<number>_<the promise>`` of a subclass of ``Clauses``. The last sentence of its docstring, which begins
with "Otherwise", says why a user cares. A sentence before it words the promise where the name of the method is too short to be clear.
``@needs(...)`` names the capabilities of ``EXTENDED`` that the clause uses. ``@protects_work`` says that work is lost where it is broken.
A clause that needs ``crash`` or ``processes`` searches for crashes or races for as long as the user gives it; ``@without_search`` says that
it does not.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.extensions import OURS, Names, registered
from pytest_gittrix.testing.systems.protocol import Capability


def families_by_letters() -> Mapping[str, str]:
    """The titles of the families of clauses, by the three letters that their codes begin with: ours, then those of other packages."""
    return {name: family.what for name, family in registered("clauses").items()}


PROPERTY: Final = "gittrix_clause"
"""Name of the property of a test report that holds the clause's code."""

SYSTEM: Final = "gittrix_system"
"""Name of the property that holds the name of the tested system."""

LACKING: Final = "gittrix_lacking"
"""Name of the property that holds the needed capabilities which the system does not declare; present only if there are any."""

WAIVED: Final = "gittrix_waived"
"""Name of the property that holds the reason of the clause's waiver; present only if it is waived."""


def _set(text: str) -> Mapping[str, int]:
    return {family: int(number) for family, number in zip(text.split()[::2], text.split()[1::2], strict=True)}


SETS: Final[Mapping[str, Mapping[str, int]]] = {
    "2026.1": _set(
        "ISO 25 OVL 12 PRM 37 FIL 5 CNF 27 LCK 16 EVC 22 END 12 DUR 15 LOG 15 TRN 21 LIN 25 LIF 18 FIN 15 RET 15 STA 14 IDS 9 NAM 19 "
        "ERR 13 CAP 3 WREM 27 WMRG 17 WFIN 22 WNEW 23 WTRU 4 WSRV 4"
    ),
}
"""The sets of clauses, oldest first: for each family the number of its last clause. Numbers are given in order and once, so that a clause
that comes later is in none of the sets that were closed before."""

_NAME: Final = re.compile(r"test_([a-z]{3})_(\d\d)_(\w+)")
_NEEDS: Final = "_gittrix_needs"
_PROTECTS_WORK: Final = "_gittrix_protects_work"
_WITHOUT_SEARCH: Final = "_gittrix_without_search"


class _HasCode(Protocol):
    @property
    def code(self) -> str: ...


Coded = TypeVar("Coded", bound=_HasCode)
Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True, order=True)
class Clause:
    """One promise of a session system.

    Attributes:
        code: such as ``CNF-03``; never given to another promise.
        promise: the promise, in a few words.
        why: why a user cares, in one sentence.
        needs: the capabilities beyond ``BASE`` that the clause uses.
        protects_work: whether work of a person or an agent is lost where the promise is broken.
        searches: whether it searches for crashes or races for as long as the user gives it.
    """

    code: str
    promise: str
    why: str
    needs: frozenset[Capability]
    protects_work: bool = False
    searches: bool = False

    @property
    def family(self) -> str:
        """The family's letters: those before the number of the code."""
        return self.code.partition("-")[0]

    @property
    def since(self) -> str:
        """The first set that the clause is in; empty if it is newer than all of them, or of another package."""
        return first_set(self.code)


def first_set(code: str) -> str:
    """The first of ``SETS`` that has a clause; empty if none has."""
    family, _, number = code.partition("-")
    return next((name for name, last in SETS.items() if int(number) <= last.get(family, 0)), "")


def in_set(code: str, name: str) -> bool:
    """Whether a set has a clause. Clauses of other packages are in every set: those packages have versions of their own.

    Raises:
        InvalidInput: there is no such set.
    """
    if name not in SETS:
        raise InvalidInput(
            f"{name!r} is no set of clauses.",
            why="With a set, a run asks the same clauses in every later version of this package.",
            fix=f"The sets are {', '.join(SETS)}.",
            opt_out="Without --clauses, all clauses are run.",
        )
    family, _, number = code.partition("-")
    is_of_others = family in registered("clauses").keys() - OURS["clauses"].keys()
    return is_of_others or int(number) <= SETS[name].get(family, 0)


def of_set(clauses: Iterable[Coded], name: str) -> list[Coded]:
    """Those of some clauses that a set has.

    Raises:
        InvalidInput: there is no such set, or it has none of them.
    """
    chosen = [clause for clause in clauses if in_set(clause.code, name)]
    if not chosen:
        raise InvalidInput(
            f"None of these clauses is in the set {name}.",
            why="A run of no clause says nothing.",
            fix="Name a newer set, or leave --clauses out.",
        )
    return chosen


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Declare the capabilities beyond ``BASE`` that a clause uses; the clause is skipped for systems that lack one."""

    return partial(also_needs, capabilities=capabilities)


def also_needs(test: Test, capabilities: Iterable[Capability]) -> Test:
    """Add capabilities to those that a clause uses."""
    setattr(test, _NEEDS, frozenset(capabilities) | getattr(test, _NEEDS, frozenset()))
    return test


def protects_work(test: Test) -> Test:
    """Declare that work of a person or an agent is lost, or overwritten, where the promise of a clause is broken."""
    setattr(test, _PROTECTS_WORK, True)
    return test


def without_search(test: Test) -> Test:
    """Declare that a clause needs ``crash`` or ``processes``, and calls neither ``kill_during`` nor ``races``, which search."""
    setattr(test, _WITHOUT_SEARCH, True)
    return test


def clause_of(test: Callable[..., object] | None) -> Clause | None:
    """The clause of a test function, by its name and docstring; None if there is no function, or its name is not that of a clause."""
    name = _NAME.fullmatch(getattr(test, "__name__", ""))
    if name is None or name[1].upper() not in Names("clauses"):
        return None
    text = " ".join((inspect.getdoc(test) or "").split())
    title, otherwise, rest = text.partition("Otherwise ")
    why, title = otherwise + rest, title.strip()
    promise = title[:1].lower() + title[1:].removesuffix(".") if title else name[3].replace("_", " ")
    code = f"{name[1].upper()}-{name[2]}"
    needed: frozenset[Capability] = getattr(test, _NEEDS, frozenset())
    searches = bool(needed & {Capability.CRASH, Capability.PROCESSES}) and not hasattr(test, _WITHOUT_SEARCH)
    return Clause(code, promise, why, needed, getattr(test, _PROTECTS_WORK, False), searches)


def is_of_suite(module: str) -> bool:
    """Whether a module belongs to the suite, so that its tests with the name of a clause are that clause."""
    return module.startswith("pytest_gittrix.conformance.") or module in {family.address for family in registered("clauses").values()}
