"""What a user of the suite may leave out, and that it is said: every clause that is not run as it stands has a waiver with a reason.

It must not know how a clause is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import getattr_static
from typing import Any

import pytest

from pytest_gittrix.conformance.base.catalogue import clauses_by_code
from pytest_gittrix.conformance.base.clause import clause_of, is_ours
from pytest_gittrix.errors import InvalidInput


def check_waivers(waivers: Mapping[str, str], owner: str) -> Mapping[str, str]:
    """See that waivers are codes of clauses with reasons; gives them back.

    Args:
        waivers: a reason for each code.
        owner: whose they are, for the message.

    Raises:
        InvalidInput: they are no mapping, a code is of no clause, or a reason is missing.
    """
    if not isinstance(waivers, Mapping):
        raise InvalidInput(f"The waivers of {owner} are no mapping.", fix='Write waivers = {"CNF-03": "the reason"}.')
    known = clauses_by_code() if waivers else {}
    for code, reason in waivers.items():
        if code not in known:
            raise InvalidInput(
                f"{owner} waives {code!r}, which is no clause.",
                why="A waiver of nothing would hide that the clause it was meant for is not waived.",
                fix=f"{_near(code, known)}`gittrix conform --list` lists all clauses.",
            )
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidInput(
                f"The waiver of {code} by {owner} has no reason.",
                why="The report shows the reason to those who rely on the promise.",
                fix="Say why the system need not keep this promise.",
                opt_out="Without a waiver the clause is run, and may fail.",
            )
    return waivers


def check_class(cls: type[Any]) -> None:
    """See that a user's subclass runs every clause as it stands, or waives it.

    A clause that the subclass sets to None, and waives, stays in the report: it is put back as a test that fails.

    Raises:
        InvalidInput: its waivers are wrong, it overrides or leaves out a clause that it does not waive, or it has a clause of its own.
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
        if getattr(mine, "__name__", "") != name:  # pytest would not know it for the clause
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
        if is_ours(base.__module__):
            yield from ((name, test) for name, test in vars(base).items() if callable(test) and clause_of(test))


def _left_out(original: Callable[..., object]) -> Callable[..., object]:
    @wraps(original)
    def absent(self: Any, stage: Any) -> None:  # noqa: ARG001  (the stage is where the waiver is applied)
        pytest.fail("left out by the class")

    return absent


def _near(code: object, known: Mapping[str, object]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(str(code).upper(), [*known], 1)
    return f"Did you mean {near[0]}? " if near else ""
