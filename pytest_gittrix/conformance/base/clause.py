"""What a clause is: one promise of a session system, as one test with a stable code.

A clause is a method ``test_<family>_<number>_<the promise>`` of a subclass of ``Clauses``. Its docstring says, in one sentence, why a user
cares. ``@needs(...)`` names the capabilities of ``EXTENDED`` that it makes use of.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pytest_gittrix.testing.systems.protocol import Capability

FAMILIES: Final[Mapping[str, str]] = {
    "ISO": "isolation",
    "OVL": "overlay reads",
    "PRM": "promotion",
    "CNF": "conflict",
    "LCK": "concurrency",
    "EVC": "eviction",
    "DUR": "durability",
    "LOG": "the log",
    "TRN": "turns",
    "LIN": "lines and forks",
    "LIF": "lives of members' sessions",
    "FIN": "finalization",
    "RET": "retention",
    "STA": "status",
    "IDS": "identity",
    "NAM": "names and paths",
    "ERR": "bad input",
    "CAP": "capabilities",
}
"""The families of clauses, by the letters their codes begin with."""

PROPERTY: Final = "gittrix_clause"
"""Name of the property by which a test report says which clause it is of; its value is the code."""

SYSTEM: Final = "gittrix_system"
"""Name of the property that says which system the clause was put to."""

LACKING: Final = "gittrix_lacking"
"""Name of the property that says which needed capabilities the system does not declare; there only if it lacks one."""

WAIVED: Final = "gittrix_waived"
"""Name of the property that says why the clause is waived; there only if it is."""

_NAME: Final = re.compile(r"test_([a-z]{3})_(\d\d)_(\w+)")
_NEEDS: Final = "_gittrix_needs"

Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True, order=True)
class Clause:
    """One promise.

    Attributes:
        code: ``CNF-03``; never given to another promise.
        promise: in a few words.
        why: why a user cares, one sentence.
        needs: the capabilities beyond ``BASE`` that it makes use of.
    """

    code: str
    promise: str
    why: str
    needs: frozenset[Capability]

    @property
    def family(self) -> str:
        """The first three letters of its code."""
        return self.code[:3]


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Say which capabilities beyond ``BASE`` a clause makes use of; it is skipped for systems that lack one."""

    def mark(test: Test) -> Test:
        setattr(test, _NEEDS, frozenset(capabilities))
        return test

    return mark


def clause_of(test: Callable[..., object]) -> Clause | None:
    """The clause that a test function is, if it is one."""
    name = _NAME.fullmatch(getattr(test, "__name__", ""))
    if name is None or name[1].upper() not in FAMILIES:
        return None
    why = " ".join((inspect.getdoc(test) or "").split())
    return Clause(f"{name[1].upper()}-{name[2]}", name[3].replace("_", " "), why, getattr(test, _NEEDS, frozenset()))


def is_ours(module: str) -> bool:
    """Whether a module is of this suite: what it defines under a clause's name is that clause."""
    return module.startswith("pytest_gittrix.conformance.")
