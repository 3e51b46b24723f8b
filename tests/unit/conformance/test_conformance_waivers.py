"""Nothing is left out in silence: a subclass runs each clause as it stands, or waives it with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_gittrix.conformance import SessionSystemSuite
from pytest_gittrix.conformance.base.catalogue import all_clauses, families
from pytest_gittrix.conformance.base.clause import clause_of
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.waivers import check_waivers
from pytest_gittrix.conformance.families.conflict import ConflictClauses
from pytest_gittrix.errors import InvalidInput

FIRST = "test_cnf_01_an_edit_of_the_same_file_is_a_conflict"


def subclass(base: type[Clauses] = ConflictClauses, **body: Any) -> type[Clauses]:
    return type("TestMine", (base,), body)


def test_a_subclass_inherits_every_clause() -> None:
    mine = subclass(SessionSystemSuite)
    codes = {clause.code for name in dir(mine) if (clause := clause_of(getattr(mine, name)))}

    assert codes == {clause.code for clause in all_clauses()}
    assert set(families()) <= set(mine.__mro__)


def test_a_class_can_waive_clauses_of_other_families_too() -> None:
    assert subclass(waivers={"CNF-01": "merges on purpose", "ISO-01": "shared by several classes"})


@pytest.mark.parametrize(
    ("waivers", "message"),
    [
        ({"CNF-99": "no"}, "waives 'CNF-99', which is no clause"),
        ({"cnf-01": "no"}, "Did you mean CNF-01?"),
        ({"CNF-01": ""}, "The waiver of CNF-01 by TestMine has no reason"),
        ({"CNF-01": "  \n"}, "has no reason"),
        ({"CNF-01": None}, "has no reason"),
        (["CNF-01"], "The waivers of TestMine are no mapping"),
    ],
)
def test_a_wrong_waiver_is_refused_as_the_class_is_made(waivers: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message.replace("?", r"\?")):
        subclass(waivers=waivers)


@pytest.mark.parametrize("instead", [None, False, "later", lambda self, stage: None], ids=["none", "false", "text", "function"])
def test_a_clause_that_is_not_run_as_it_stands_must_be_waived(instead: Any) -> None:
    with pytest.raises(InvalidInput, match="CNF-01 and does not waive it") as refused:
        subclass(**{FIRST: instead})

    assert all((refused.value.fact, refused.value.why, refused.value.fix, refused.value.opt_out))


def test_a_mixin_that_stands_in_front_is_seen_too() -> None:
    mixin = type("Mixin", (), {FIRST: lambda self: None})

    with pytest.raises(InvalidInput, match="TestMine overrides CNF-01"):
        type("TestMine", (mixin, ConflictClauses), {})


def test_a_subclass_of_a_subclass_is_seen_too() -> None:
    waived = subclass(waivers={"CNF-01": "on purpose"}, **{FIRST: lambda self, stage: None})

    with pytest.raises(InvalidInput, match="overrides CNF-01"):
        subclass(waived, waivers={})


def test_a_waived_clause_that_is_left_out_stays_and_fails() -> None:
    mine = subclass(waivers={"CNF-01": "it hangs"}, **{FIRST: None})
    clause = clause_of(getattr(mine, FIRST))

    assert clause == next(one for one in all_clauses() if one.code == "CNF-01")
    with pytest.raises(pytest.fail.Exception, match="left out by the class"):
        getattr(mine(), FIRST)(None)


def test_a_waived_clause_may_be_overridden() -> None:
    def mine(self: Any, stage: Any) -> None: ...

    mine.__name__ = FIRST

    assert getattr(subclass(waivers={"CNF-01": "on purpose"}, **{FIRST: mine}), FIRST) is mine


def test_nobody_gives_a_code_of_their_own() -> None:
    def test_cnf_88_mine(self: Any) -> None: ...

    with pytest.raises(InvalidInput, match=r"test_cnf_88_mine has the name of a clause"):
        subclass(test_cnf_88_mine=test_cnf_88_mine)


def test_nor_does_who_writes_a_family_of_their_own() -> None:
    with pytest.raises(InvalidInput, match=r"test_cnf_01_mine has the name of a clause"):
        type("TestMine", (Clauses,), {"test_cnf_01_mine": _own_clause()})


def _own_clause() -> Any:
    def test_cnf_01_mine(self: Any) -> None: ...

    return test_cnf_01_mine


def test_tests_of_ones_own_and_other_files_are_welcome() -> None:
    assert subclass(test_mine=lambda self: None, files=lambda self: {"a.txt": "a"})


@pytest.mark.parametrize("waivers", [{}, {"CNF-01": "why"}])
def test_waivers_in_order_are_given_back(waivers: Mapping[str, str]) -> None:
    assert check_waivers(waivers, "acme") is waivers
