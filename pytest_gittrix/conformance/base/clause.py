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
from typing import Final, TypeVar

from pytest_gittrix.extensions import Names, registered
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

_NAME: Final = re.compile(r"test_([a-z]{3})_(\d\d)_(\w+)")
_NEEDS: Final = "_gittrix_needs"
_PROTECTS_WORK: Final = "_gittrix_protects_work"
_WITHOUT_SEARCH: Final = "_gittrix_without_search"

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
