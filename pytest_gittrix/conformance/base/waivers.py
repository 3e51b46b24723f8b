"""Checks of waivers: every clause that a user of the suite overrides or leaves out must have a waiver with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import getattr_static
from typing import Any

import pytest

from pytest_gittrix.conformance.base.catalogue import clauses_by_code
from pytest_gittrix.conformance.base.clause import clause_of, is_of_suite
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.waivers import INVARIANTS
from pytest_gittrix.testing.waivers import check_waivers as check_names


def check_waivers(waivers: Mapping[str, str], owner: str) -> Mapping[str, str]:
    """Check that waivers are of clauses, or of invariants of the state machine, and have reasons; gives them back.

    Args:
        waivers: the reasons, by the code of a clause or the name of an invariant.
        owner: the class or system that the waivers belong to, for the error message.

    Raises:
        InvalidInput: the waivers are no mapping, a name is unknown, or a reason is missing.
    """
    return check_names(waivers, owner, clauses_by_code()) if waivers else waivers


def check_waivers_of_clauses(waivers: Mapping[str, str], owner: str) -> Mapping[str, str]:
    """As ``check_waivers``, where no state machine is run, so that a waiver of an invariant would waive nothing.

    Raises:
        InvalidInput: a name is that of no clause, or a reason is missing.
    """
    if invariant := next((name for name in waivers if name in INVARIANTS), None):
        raise InvalidInput(
            f"{owner} waives {invariant!r}, which is an invariant of the state machine and no clause.",
            why="Only clauses are run here, so the waiver would waive nothing.",
            fix="Waive it where the state machine is run: pytest --gittrix-waive, or waivers= of machine_for.",
        )
    return check_waivers(waivers, owner)


def check_class(cls: type[Any]) -> None:
    """Check that a user's subclass runs every clause unchanged, or waives it.

    A waived clause that the subclass sets to None stays in the report: it is replaced by a test that fails.

    Raises:
        InvalidInput: a waiver is wrong, a clause is overridden or left out without a waiver, or a new test has the name of a clause.
    """
    waivers = check_waivers(cls.waivers, cls.__qualname__)
    originals = dict(_originals(cls))
    for name, original in originals.items():
        clause, mine = clause_of(original), getattr_static(cls, name, None)
        if clause is None or mine is original:
            continue
        if clause.code not in waivers:
            raise InvalidInput(
                f"{cls.__qualname__} {'overrides' if callable(mine) else 'leaves out'} {clause.code} and does not waive it.",
                why="Who reads the report takes the clause for the promise that the reference tells.",
                fix=f"Remove {name} from the class.",
                opt_out=f'Or add a waiver: waivers = {{"{clause.code}": "the reason"}}.',
            )
        if getattr(mine, "__name__", "") != name:  # without this name pytest would not collect it as the clause
            setattr(cls, name, _left_out(original))
    for name in dir(cls):
        if name not in originals and (own := clause_of(getattr_static(cls, name))):
            raise InvalidInput(
                f"{cls.__qualname__}.{name} has the name of a clause.",
                why=f"Codes are given once, in the reference; {own.code} is not one of this class's clauses.",
                fix="Give the test another name, one that does not begin with the letters of a family.",
            )


def _originals(cls: type[Any]) -> Iterator[tuple[str, Callable[..., object]]]:
    for base in cls.__mro__:
        if is_of_suite(base.__module__):
            yield from ((name, test) for name, test in vars(base).items() if callable(test) and clause_of(test))


def _left_out(original: Callable[..., object]) -> Callable[..., object]:
    @wraps(original)
    def absent(self: Any, stage: Any) -> None:  # noqa: ARG001  (the stage is where the waiver is applied)
        pytest.fail("left out by the class")

    return absent
