"""What a clause is: one promise of a session system, as one test with a stable code.

A clause is a method ``test_<family>_<number>_<the promise>`` of a subclass of ``Clauses``. Its docstring says, in one sentence, why a user
cares. ``@needs(...)`` names the capabilities of ``EXTENDED`` that it makes use of.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import pytest

from pytest_gittrix.harness.driver import Stage
from pytest_gittrix.harness.system import Capability, SessionSystem, check_system

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


class Clauses:
    """Base of the classes that hold clauses. Subclass a family, or ``SessionSystemSuite``, to run it on a system of your own.

    Override the fixture ``gittrix_system`` for the system, and ``waivers`` for promises it does not keep yet.

    Attributes:
        waivers: for a clause's code, the reason why the system need not keep it. A waived clause must fail: once it passes, the
            waiver has to go.
    """

    waivers: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse a subclass that is silent about a clause it leaves out; see ``waivers.check_class``."""
        super().__init_subclass__(**arguments)
        if not is_ours(cls.__module__):
            from pytest_gittrix.conformance.waivers import check_class

            check_class(cls)

    @pytest.fixture
    def stage(self, request: pytest.FixtureRequest, gittrix_system: SessionSystem) -> Iterator[Stage]:
        """A fresh place with the system in it; durable holds ``FILES``."""
        system = check_system(gittrix_system)
        clause = clause_of(request.function)
        if clause is not None:
            apply_clause(request, clause, system, self.waivers)
        with Stage.open(system, files=self.files()) as stage:
            yield stage

    def files(self) -> Mapping[str, Any]:
        """What durable holds at first."""
        return {"README.md": "hello\n", "app.py": "one\ntwo\nthree\n", "lib/util.py": "util\n", "lib/deep/data.txt": "data\n"}


def is_ours(module: str) -> bool:
    """Whether a module is of this suite: what it defines under a clause's name is that clause."""
    return module.startswith("pytest_gittrix.conformance.")


def apply_clause(request: pytest.FixtureRequest, clause: Clause, system: SessionSystem, waivers: Mapping[str, str]) -> None:
    """Tell the report which clause a test is, skip what the system does not claim to do, and expect what is waived to fail.

    Raises:
        InvalidInput: one of the system's own waivers names no clause, or has no reason.
    """
    from pytest_gittrix.conformance.waivers import check_waivers

    properties = request.node.user_properties
    properties += [(PROPERTY, clause.code), (SYSTEM, system.name)]
    lacking = ", ".join(sorted(clause.needs - system.capabilities))
    if lacking:
        properties.append((LACKING, lacking))
        known = getattr(system, "reasons", {})
        because = "; ".join(str(known[one]) for one in sorted(clause.needs - system.capabilities) if one in known)
        pytest.skip(f"{system.name} does not declare {lacking}{f' ({because})' if because else ''}")
    waived = {**check_waivers(getattr(system, "waivers", {}), system.name), **waivers}
    if clause.code in waived:
        properties.append((WAIVED, waived[clause.code].strip()))
        request.applymarker(pytest.mark.xfail(reason=f"waived: {waived[clause.code].strip()}", strict=True))
