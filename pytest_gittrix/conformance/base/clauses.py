"""The base class of all clauses: it gives each a fresh stage, skips what a system does not claim, and expects what is waived to fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from pytest_gittrix.conformance.base.clause import LACKING, PROPERTY, SYSTEM, WAIVED, Clause, clause_of, is_ours
from pytest_gittrix.conformance.base.waivers import check_class, check_waivers
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import SessionSystem, check_system


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


def apply_clause(request: pytest.FixtureRequest, clause: Clause, system: SessionSystem, waivers: Mapping[str, str]) -> None:
    """Tell the report which clause a test is, skip what the system does not claim to do, and expect what is waived to fail.

    Raises:
        InvalidInput: one of the system's own waivers names no clause, or has no reason.
    """
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
