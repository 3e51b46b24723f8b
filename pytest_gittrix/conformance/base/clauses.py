"""The base class of all clauses. It gives each a fresh stage, skips undeclared capabilities, and expects waived clauses to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, ClassVar

import pytest

from pytest_gittrix.conformance.base.clause import LACKING, PROPERTY, SYSTEM, WAIVED, Clause, also_needs, clause_of, in_set, is_of_suite
from pytest_gittrix.conformance.base.outcome import HISTORY, incomplete_refusals_last, properties_of
from pytest_gittrix.conformance.base.search import asked_for, share_of
from pytest_gittrix.conformance.base.shell_lines import shows_again
from pytest_gittrix.conformance.base.waivers import check_class, check_waivers
from pytest_gittrix.testing.repos.journal import Journal, as_json_lines
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability, SessionSystem, check_system
from pytest_gittrix.testing.waivers import waived_for_the_run


class Clauses:
    """Base of the classes that hold clauses. Subclass a family, or ``SessionSystemSuite``, to run it on your system.

    Override the fixture ``gittrix_system`` for the system, and ``waivers`` for promises it does not keep yet.

    Attributes:
        waivers: for a clause's code, the reason why the system need not keep it. A waived clause must fail: once it passes, the
            waiver has to go.
    """

    waivers: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, needs: Iterable[Capability] = (), **arguments: Any) -> None:
        """Judge each clause of the class by ``incomplete_refusals_last``; refuse a class of a user that leaves out a clause unwaived.

        Args:
            needs: the capabilities that every clause of the class needs.
            arguments: those of other bases.

        Raises:
            InvalidInput: as for ``waivers.check_class``.
        """
        super().__init_subclass__(**arguments)
        if not is_of_suite(cls.__module__):
            check_class(cls)
            return
        for name, test in vars(cls).copy().items():
            if callable(test) and clause_of(test):
                setattr(cls, name, also_needs(_judged(test), needs))

    @pytest.fixture
    def stage(self, request: pytest.FixtureRequest, gittrix_system: SessionSystem) -> Iterator[Stage]:
        """A fresh place with the system in it; durable holds the files of ``files()``."""
        system = check_system(gittrix_system)
        clause = clause_of(request.function)
        if clause is not None:
            apply_clause(request, clause, system, self.waivers)
        with Stage.open(system, files=self.files()) as stage:
            stage.budget = share_of(request, system.capabilities)
            yield stage

    def files(self) -> Mapping[str, Any]:
        """The files that durable holds at first."""
        return {"README.md": "hello\n", "app.py": "one\ntwo\nthree\n", "lib/util.py": "util\n", "lib/deep/data.txt": "data\n"}


def _judged(test: Callable[..., None]) -> Callable[..., None]:
    @wraps(test)
    def judged(*arguments: Any, **options: Any) -> None:
        __tracebackhide__ = True
        with incomplete_refusals_last():
            test(*arguments, **options)

    return judged


def apply_clause(request: pytest.FixtureRequest, clause: Clause, system: SessionSystem, waivers: Mapping[str, str]) -> None:
    """Record in the report which clause a test is, skip it for undeclared capabilities, and expect it to fail if it is waived.

    Raises:
        InvalidInput: a waiver of the system names no clause, or has no reason.
    """
    properties = request.node.user_properties
    properties += [(PROPERTY, clause.code), (SYSTEM, system.name)]
    lacking = ", ".join(sorted(clause.needs - asked_for(clause) - system.capabilities))
    if lacking:
        properties.append((LACKING, lacking))
        reasons = getattr(system, "reasons", {})
        because = "; ".join(str(reasons[one]) for one in lacking.split(", ") if one in reasons)
        pytest.skip(f"{system.name} does not declare {lacking}{f' ({because})' if because else ''}")
    waived = {**check_waivers(getattr(system, "waivers", {}), system.name), **waivers, **waived_for_the_run()}
    if clause.code in waived:
        properties.append((WAIVED, waived[clause.code].strip()))
        request.applymarker(pytest.mark.xfail(reason=f"waived: {waived[clause.code].strip()}", strict=True))


class OnlyOfSet:
    """A plugin of pytest that leaves out the clauses that a set does not have.

    Args:
        name: of the set.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the tests that are clauses of no concern; other tests stay."""
        later = [*filter(self._is_later, items)]
        if later:
            config.hook.pytest_deselected(items=later)
            items[:] = [item for item in items if not self._is_later(item)]

    def _is_later(self, item: pytest.Item) -> bool:
        clause = clause_of(item.function) if isinstance(item, pytest.Function) else None
        return clause is not None and not in_set(clause.code, self._name)


def describe_end(item: Any, error: BaseException | None, *, history: bool = False) -> None:
    """Add to a clause's test what its report says beyond passed and failed; called when the test has run, while its stage is open.

    Args:
        item: pytest's item.
        error: the exception that ended it; None if it passed.
        history: also add each operation of its stage.
    """
    stage, clause = item.funcargs.get("stage"), clause_of(item.function)
    if isinstance(stage, Stage):
        if history and clause is not None:
            item.user_properties.append((HISTORY, as_json_lines(stage.journal.operations(), system=stage.system.name, clause=clause.code)))
        if error is not None:
            stage.note_end()
        waived = any(name == WAIVED for name, _ in item.user_properties)
        item.user_properties += properties_of(
            error,
            stage.journal,
            protects_work=clause is not None and clause.protects_work,
            promise=clause.promise if clause is not None else "",
            shows=None if waived else _shows_again,
        )


def _shows_again(script: str, journal: Journal) -> bool | None:
    """As ``shows_again``; None also where the script could not be run, since the report of the clause must not depend on that."""
    try:
        return shows_again(script, journal)
    except Exception:  # noqa: BLE001  (the system under test is the user's code, and may leave its place in any state)
        return None
